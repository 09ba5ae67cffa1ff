package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v2"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func (a *API) statusConfig(*http.Request) (response, *apiError) {
	cfg := a.opts.Config()
	return response{write: func(s *stream) {
		s.field(`{"yaml":`, withoutSecrets(cfg))
		s.raw("}")
	}}, nil
}

// scrapePoolConfig is like Prometheus', but shows no password in the URL of a discovery.
func (a *API) scrapePoolConfig(r *http.Request) (response, *apiError) {
	pool := r.FormValue("scrapePool")
	if pool == "" {
		return response{}, badData(errors.New("no scrapePool parameter provided"))
	}
	cfg, err := a.opts.Targets.ScrapePoolConfig(pool)
	if err != nil {
		return response{}, badData(fmt.Errorf("error retrieving scrape config: %w", err))
	}
	text, err := yaml.Marshal(cfg)
	if err != nil {
		return response{}, &apiError{kindInternal, fmt.Errorf("error marshaling scrape config: %w", err)}
	}
	return response{write: func(s *stream) {
		s.field(`{"yaml":`, withoutPasswords(string(text)))
		s.raw("}")
	}}, nil
}

// tsdbStatsMax is the maximum of `limit` in status/tsdb.
const tsdbStatsMax = 10_000

// storeStatusTSDB returns the statistics of all stores as status/tsdb does for one TSDB. As in Thanos `match[]` selects
// TSDBs by their external labels, and a limit of 0 is the default.
func (a *API) storeStatusTSDB(r *http.Request) (response, *apiError) {
	limit, apiErr := optionalInt(r, "limit") // -1 if it is absent
	switch {
	case apiErr != nil:
		return response{}, apiErr
	case limit < 0 && r.FormValue("limit") != "":
		return response{}, badData(errors.New("limit must be non-negative"))
	case limit > tsdbStatsMax:
		return response{}, badData(fmt.Errorf("limit must not exceed %d", tsdbStatsMax))
	case limit <= 0:
		limit = 10
	}
	var matchers []*labels.Matcher
	for _, text := range r.Form["match[]"] {
		some, err := a.opts.Parser.ParseMetricSelector(text)
		if err != nil {
			return response{}, invalidParameter("match[]", err)
		}
		matchers = append(matchers, some...)
	}
	return ofStores(a, r, purpose{}, func(q StoreQuery) (storeapi.TSDBStatistics, annotations.Annotations, error) {
		return q.TSDBStatistics(r.Context(), matchers, limit)
	}, (*stream).tsdbStatistics)
}

func (s *stream) tsdbStatistics(stats storeapi.TSDBStatistics) {
	s.raw(`{"headStats":`)
	s.value(struct {
		Series     uint64 `json:"numSeries"`
		LabelPairs int64  `json:"numLabelPairs"`
		Chunks     int64  `json:"chunkCount"`
		MinMS      int64  `json:"minTime"`
		MaxMS      int64  `json:"maxTime"`
	}{stats.Series, stats.LabelPairs, stats.Chunks, stats.MinMS, stats.MaxMS})
	s.raw(`,"seriesCountByMetricName":`)
	values(s, stats.SeriesByMetric)
	s.raw(`,"labelValueCountByLabelName":`)
	values(s, stats.ValuesByLabel)
	s.raw(`,"memoryInBytesByLabelName":`)
	values(s, stats.BytesByLabel)
	s.raw(`,"seriesCountByLabelValuePair":`)
	values(s, stats.SeriesByPair)
	s.raw("}")
}
