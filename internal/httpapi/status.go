package httpapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/prometheus/prometheus/model/labels"
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

func (a *API) statusBuildInfo(*http.Request) (response, *apiError) {
	b := a.opts.BuildInfo
	return response{write: func(s *stream) {
		s.field(`{"version":`, b.Version)
		s.field(`,"revision":`, b.Revision)
		s.field(`,"branch":`, b.Branch)
		s.field(`,"buildUser":`, b.BuildUser)
		s.field(`,"buildDate":`, b.BuildDate)
		s.field(`,"goVersion":`, b.GoVersion)
		s.field(`,"program":`, b.Program)
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
	p, apiErr := a.storeParams(r, purpose{})
	if apiErr != nil {
		return response{}, apiErr
	}
	var matchers []*labels.Matcher
	for _, text := range r.Form["match[]"] {
		some, err := a.opts.Parser.ParseMetricSelector(text)
		if err != nil {
			return response{}, invalidParameter("match[]", err)
		}
		matchers = append(matchers, some...)
	}
	all, warnings, err := a.opts.Stores.Query(p).TSDBStatistics(r.Context(), matchers, limit)
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) {
		s.tsdbStatistics(&all)
	}, annotations: &responseAnnotations{list: warnings}}, nil
}

func (s *stream) tsdbStatistics(stats *storeapi.TSDBStatistics) {
	s.raw(`{"headStats":{"numSeries":`)
	s.unsigned(stats.Series)
	s.raw(`,"numLabelPairs":`)
	s.integer(stats.LabelPairs)
	s.raw(`,"chunkCount":`)
	s.integer(stats.Chunks)
	s.raw(`,"minTime":`)
	s.integer(stats.MinMS)
	s.raw(`,"maxTime":`)
	s.integer(stats.MaxMS)
	s.raw("}")
	s.cardinality(`,"seriesCountByMetricName":`, stats.SeriesByMetric)
	s.cardinality(`,"labelValueCountByLabelName":`, stats.ValuesByLabel)
	s.cardinality(`,"memoryInBytesByLabelName":`, stats.BytesByLabel)
	s.cardinality(`,"seriesCountByLabelValuePair":`, stats.SeriesByPair)
	s.raw("}")
}

func (s *stream) cardinality(key string, stats []storeapi.Statistic) {
	s.raw(key)
	s.raw("[")
	for i, stat := range stats {
		s.comma(i)
		s.field(`{"name":`, stat.Name)
		s.raw(`,"value":`)
		s.unsigned(stat.Value)
		s.raw("}")
		s.flushIfFull()
	}
	s.raw("]")
}
