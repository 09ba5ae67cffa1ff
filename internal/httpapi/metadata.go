package httpapi

import (
	"maps"
	"net/http"
	"slices"

	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/scrape"
)

// metricMetadata returns the metadata of all targets, sorted by metric. Prometheus returns them in the random order
// of a map.
func (a *API) metricMetadata(r *http.Request) (response, *apiError) {
	limit, perMetric, apiErr := metadataLimits(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	families := a.families(r.FormValue("metric"), perMetric)
	return response{write: func(s *stream) { s.families(families, limit) }}, nil
}

// metadataLimits parses `limit` and `limit_per_metric`; -1 if they are absent.
func metadataLimits(r *http.Request) (limit, perMetric int, apiErr *apiError) {
	if limit, apiErr = optionalInt(r, "limit"); apiErr != nil {
		return 0, 0, apiErr
	}
	perMetric, apiErr = optionalInt(r, "limit_per_metric")
	return limit, perMetric, apiErr
}

// families appends at most limit families; all of them if limit is negative.
func (s *stream) families(families map[string][]metadata.Metadata, limit int) {
	names := sortedKeys(families)
	if limit >= 0 && len(names) > limit {
		names = names[:limit]
	}
	s.raw("{")
	for i, name := range names {
		s.comma(i)
		s.str(name)
		s.raw(":")
		values(s, families[name])
		s.flushIfFull()
	}
	s.raw("}")
}

func (a *API) families(metric string, perMetric int) map[string][]metadata.Metadata {
	families := map[string][]metadata.Metadata{}
	add := func(md scrape.MetricMetadata) {
		known := families[md.MetricFamily]
		m := metadata.Metadata{Type: md.Type, Unit: md.Unit, Help: md.Help}
		if slices.Contains(known, m) || (perMetric > 0 && len(known) >= perMetric) {
			return
		}
		families[md.MetricFamily] = append(known, m)
	}
	active := a.opts.Targets.TargetsActive()
	for _, pool := range sortedKeys(active) {
		for _, t := range active[pool] {
			if metric == "" {
				for _, md := range t.ListMetadata() {
					add(md)
				}
			} else if md, ok := t.GetMetadata(metric); ok {
				add(md)
			}
		}
	}
	return families
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
