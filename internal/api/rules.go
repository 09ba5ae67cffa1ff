package api

import (
	"fmt"
	"net/http"
	"strings"
)

// storeTargets lists what the stores' servers scrape, as Prometheus does; what is not
// passed on by stores (intervals, counts of what was dropped) is left out, as Thanos
// leaves it out.
func (a *API) storeTargets(r *http.Request) (answer, *apiError) {
	state := strings.ToLower(r.FormValue("state"))
	switch state {
	case "":
		state = "any"
	case "any", "active", "dropped":
	default:
		return answer{}, invalidParameter("state", fmt.Errorf("%q is none of any, active, dropped", state))
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return answer{}, apiErr
	}
	found, warnings, err := a.opts.Stores.Targets(r.Context(), p, state)
	if err != nil {
		return answer{}, queryError(err)
	}
	return answer{write: func(s *stream) {
		s.raw(`{"activeTargets":[`)
		for i, t := range found.Active {
			s.comma(i)
			s.raw(`{"discoveredLabels":`)
			s.labels(t.Discovered)
			s.raw(`,"labels":`)
			s.labels(t.Labels)
			s.field(`,"scrapePool":`, t.ScrapePool)
			s.field(`,"scrapeUrl":`, t.ScrapeURL)
			s.field(`,"globalUrl":`, t.GlobalURL)
			s.field(`,"lastError":`, t.LastError)
			s.raw(`,"lastScrape":`)
			s.moment(t.LastScrape)
			s.raw(`,"lastScrapeDuration":`)
			s.number(t.LastScrapeSeconds)
			s.field(`,"health":`, t.Health)
			s.raw("}")
			s.room()
		}
		s.raw(`],"droppedTargets":[`)
		for i, set := range found.Dropped {
			s.comma(i)
			s.raw(`{"discoveredLabels":`)
			s.labels(set)
			s.raw("}")
			s.room()
		}
		s.raw(`]}`)
	}, notes: &notes{list: warnings}}, nil
}
