package httpapi

import (
	"errors"
	"net/http"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/precheck"
)

func (a *API) queryExemplars(r *http.Request) (response, *apiError) {
	start, end, apiErr := optionalRange(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	if end.Before(start) {
		return response{}, badData(errors.New("end timestamp must not be before start timestamp"))
	}
	expr, err := a.parseExpr(r, precheck.LevelsMax)
	if err != nil {
		return response{}, badData(err)
	}
	selectors := parser.ExtractSelectors(expr)
	switch {
	case len(selectors) == 0 && a.opts.Stores == nil: // as in Prometheus; Thanos responds with an empty list
		return response{}, nil
	case len(selectors) == 0, a.opts.Stores == nil && a.opts.Exemplars == nil:
		return response{write: func(s *stream) { s.raw("[]") }}, nil
	case a.opts.Stores != nil:
		ask := func(q StoreQuery) ([]exemplar.QueryResult, annotations.Annotations, error) {
			return q.Exemplars(r.Context(), milliseconds(start), milliseconds(end), selectors)
		}
		return ofStores(a, r, purpose{dedup: true}, ask, (*stream).exemplarResults)
	}
	q, err := a.opts.Exemplars.ExemplarQuerier(r.Context())
	if err != nil {
		return response{}, queryError(err)
	}
	found, err := q.Select(milliseconds(start), milliseconds(end), selectors...)
	if err != nil {
		return response{}, queryError(err)
	}
	return response{write: func(s *stream) { s.exemplarResults(found) }}, nil
}

func (s *stream) exemplarResults(results []exemplar.QueryResult) {
	each(s, results, func(r *exemplar.QueryResult) {
		s.raw(`{"seriesLabels":`)
		s.labels(r.SeriesLabels)
		s.raw(`,"exemplars":`)
		each(s, r.Exemplars, s.exemplar)
		s.raw("}")
	})
}

func (s *stream) exemplar(e *exemplar.Exemplar) {
	s.raw(`{"labels":`)
	s.labels(e.Labels)
	s.raw(`,"value":`)
	s.quoted(e.Value)
	s.raw(`,"timestamp":`)
	s.timestamp(e.Ts)
	s.raw("}")
}
