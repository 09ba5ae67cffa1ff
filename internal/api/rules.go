package api

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
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

// storeRules lists the rules that the stores' servers evaluate, as Prometheus does.
// What stores do not say of rules (when alerts last fired) is left out.
func (a *API) storeRules(r *http.Request) (answer, *apiError) {
	kind := strings.ToLower(r.FormValue("type"))
	switch kind {
	case "":
		kind = "all"
	case "alert", "record":
	default:
		return answer{}, invalidParameter("type", fmt.Errorf("not supported value %q", kind))
	}
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return answer{}, apiErr
	}
	groups, warnings, err := a.opts.Stores.Rules(r.Context(), p, kind)
	if err != nil {
		return answer{}, queryError(err)
	}
	groups = filterGroups(groups, r.Form["rule_name[]"], r.Form["rule_group[]"], r.Form["file[]"])
	return answer{write: func(s *stream) {
		s.raw(`{"groups":[`)
		for i := range groups {
			s.comma(i)
			s.ruleGroup(&groups[i])
		}
		s.raw(`]}`)
	}, notes: &notes{list: warnings}}, nil
}

// filterGroups keeps, in place, the rules of one of the names in groups of one of the
// names in one of the files; none are all. Of groups without rules nothing is left
// then.
func filterGroups(groups []storeapi.RuleGroup, names, groupNames, files []string) []storeapi.RuleGroup {
	if len(names)+len(groupNames)+len(files) == 0 {
		return groups
	}
	wanted := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	left := groups[:0]
	for _, g := range groups {
		g.Rules = slices.DeleteFunc(g.Rules, func(r storeapi.Rule) bool { return !wanted(names, r.Name) })
		if len(g.Rules) > 0 && wanted(groupNames, g.Name) && wanted(files, g.File) {
			left = append(left, g)
		}
	}
	return left
}

func (s *stream) ruleGroup(g *storeapi.RuleGroup) {
	s.field(`{"name":`, g.Name)
	s.field(`,"file":`, g.File)
	s.raw(`,"rules":[`)
	for i := range g.Rules {
		s.comma(i)
		if g.Rules[i].Alerting {
			s.alertingRule(&g.Rules[i])
		} else {
			s.recordingRule(&g.Rules[i])
		}
		s.room()
	}
	s.raw(`],"interval":`)
	s.number(g.IntervalSeconds)
	s.raw(`,"limit":`)
	s.integer(g.Limit)
	s.raw(`,"evaluationTime":`)
	s.number(g.EvaluationSeconds)
	s.raw(`,"lastEvaluation":`)
	s.moment(g.LastEvaluation)
	s.raw("}")
}

func (s *stream) recordingRule(r *storeapi.Rule) {
	s.field(`{"name":`, r.Name)
	s.field(`,"query":`, r.Query)
	if !r.Labels.IsEmpty() {
		s.raw(`,"labels":`)
		s.labels(r.Labels)
	}
	s.evaluated(r)
	s.raw(`,"type":"recording"}`)
}

func (s *stream) alertingRule(r *storeapi.Rule) {
	s.field(`{"state":`, r.State)
	s.field(`,"name":`, r.Name)
	s.field(`,"query":`, r.Query)
	s.raw(`,"duration":`)
	s.number(r.DurationSeconds)
	s.raw(`,"keepFiringFor":`)
	s.number(r.KeepFiringSeconds)
	s.raw(`,"labels":`)
	s.labels(r.Labels)
	s.raw(`,"annotations":`)
	s.labels(r.Annotations)
	s.raw(`,"alerts":[`)
	for i := range r.Alerts {
		s.comma(i)
		s.alert(&r.Alerts[i])
	}
	s.raw("]")
	s.evaluated(r)
	s.raw(`,"type":"alerting"}`)
}

// evaluated appends how the last evaluation of a rule went.
func (s *stream) evaluated(r *storeapi.Rule) {
	s.field(`,"health":`, r.Health)
	if r.LastError != "" {
		s.field(`,"lastError":`, r.LastError)
	}
	s.raw(`,"evaluationTime":`)
	s.number(r.EvaluationSeconds)
	s.raw(`,"lastEvaluation":`)
	s.moment(r.LastEvaluation)
}

func (s *stream) alert(a *storeapi.Alert) {
	s.raw(`{"labels":`)
	s.labels(a.Labels)
	s.raw(`,"annotations":`)
	s.labels(a.Annotations)
	s.field(`,"state":`, a.State)
	if !a.ActiveAt.IsZero() {
		s.raw(`,"activeAt":`)
		s.moment(a.ActiveAt)
	}
	s.field(`,"value":`, a.Value)
	s.raw("}")
	s.room()
}

// storeAlerts lists the alerts of the rules that alert.
func (a *API) storeAlerts(r *http.Request) (answer, *apiError) {
	p, apiErr := a.storeParams(r, purpose{dedup: true})
	if apiErr != nil {
		return answer{}, apiErr
	}
	groups, warnings, err := a.opts.Stores.Rules(r.Context(), p, "alert")
	if err != nil {
		return answer{}, queryError(err)
	}
	return answer{write: func(s *stream) {
		s.raw(`{"alerts":[`)
		n := 0
		for _, g := range groups {
			for _, rule := range g.Rules {
				for i := range rule.Alerts {
					s.comma(n)
					s.alert(&rule.Alerts[i])
					n++
				}
			}
		}
		s.raw(`]}`)
	}, notes: &notes{list: warnings}}, nil
}
