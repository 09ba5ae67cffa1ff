package httpapi

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// analysis is the analysis of a query that was requested with analyze=true.
type analysis struct {
	begun  time.Time
	stores *fanout.Analysis
}

// analyze returns the context in which the query runs, and its analysis. The analysis is nil unless
// the request has analyze=true or analyze=1 and the API has Stores.
func (a *API) analyze(ctx context.Context, r *http.Request) (context.Context, *analysis) {
	if want := r.FormValue("analyze"); want != "true" && want != "1" || a.opts.Stores == nil {
		return ctx, nil
	}
	ctx, stores := fanout.WithAnalysis(ctx)
	return ctx, &analysis{a.opts.Now(), stores}
}

// result returns a function that writes the analysis as a tree. The root is the whole query, with its duration, its
// samples and the traffic of the stores. Its children are the operators of the plan, which have only names.
func (n *analysis) result(qry promql.Query, now time.Time) func(*stream) {
	if n == nil {
		return nil
	}
	took, stores, plan := now.Sub(n.begun), n.stores.Stores(), columns.PlanOf(qry)
	return func(s *stream) {
		s.field(`,"analysis":{"name":`, qry.String())
		s.field(`,"executionTime":`, took.String())
		if samples := qry.Stats().Samples; samples != nil {
			s.raw(`,"peakSamples":`)
			s.integer(int64(samples.PeakSamples))
			s.raw(`,"totalSamples":`)
			s.integer(samples.TotalSamples)
		}
		s.raw(`,"fanout":[`)
		for i, t := range stores {
			s.comma(i)
			s.field(`{"endpointAddr":`, t.Address)
			s.field(`,"duration":`, t.Duration.String())
			for _, n := range []struct {
				name  string
				value int
			}{{`,"bytesProcessed":`, t.Bytes}, {`,"numResponses":`, t.Selections}, {`,"series":`, t.Series}, {`,"chunks":`,
				t.Chunks}, {`,"samples":`, t.Samples}} {
				s.raw(n.name)
				s.integer(int64(n.value))
			}
			s.raw("}")
		}
		s.raw(`],"children":[`)
		s.plan(plan)
		s.raw("]}")
	}
}
