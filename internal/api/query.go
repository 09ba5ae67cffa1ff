package api

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/ferula-io/ferula/internal/nesting"
	"github.com/ferula-io/ferula/promjson"
)

// pointsMax is the maximum of steps of a range query: enough for 60 s steps over a week or
// 1 h steps over a year.
const pointsMax = 11_000

func (a *API) query(r *http.Request) (response, *apiError) {
	limit, apiErr := parseLimit(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	at, apiErr := optionalTime(r, "time", a.opts.Now())
	if apiErr != nil {
		return response{}, apiErr
	}
	return a.evaluate(r, limit, nil, a.opts.StoreDefaults.InstantResolution, func(e evaluation) (promql.Query, error) {
		return a.opts.Engine.NewInstantQuery(e.ctx, e.from, e.opts, r.FormValue("query"), at)
	})
}

func (a *API) queryRange(r *http.Request) (response, *apiError) {
	limit, apiErr := parseLimit(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	start, end, step, apiErr := a.parseSteps(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	grid := promjson.NewSteps(milliseconds(start), step.Milliseconds(), int(end.Sub(start)/step)+1)
	return a.evaluate(r, limit, grid, step/5, func(e evaluation) (promql.Query, error) {
		return a.opts.Engine.NewRangeQuery(e.ctx, e.from, e.opts, r.FormValue("query"), start, end, step)
	})
}

// parseSteps parses `start`, `end` and `step` of a range query.
func (a *API) parseSteps(r *http.Request) (start, end time.Time, step time.Duration, apiErr *apiError) {
	start, err := parseTime(r.FormValue("start"))
	if err != nil {
		return start, end, 0, invalidParameter("start", err)
	}
	if end, err = parseTime(r.FormValue("end")); err != nil {
		return start, end, 0, invalidParameter("end", err)
	}
	if end.Before(start) {
		return start, end, 0, invalidParameter("end", errors.New("end timestamp must not be before start time"))
	}
	if byDefault := a.opts.StoreDefaults.Step; byDefault > 0 && r.FormValue("step") == "" {
		step = max(end.Sub(start)/250, byDefault).Truncate(time.Second)
	} else if step, err = parseDuration(r.FormValue("step")); err != nil {
		return start, end, 0, invalidParameter("step", err)
	}
	if step <= 0 {
		return start, end, 0, invalidParameter("step", errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer"))
	}
	if end.Sub(start)/step > pointsMax {
		return start, end, 0, badData(errors.New("exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)"))
	}
	if step < time.Millisecond { // the engine counts in ms and would divide by 0
		return start, end, 0, invalidParameter("step", fmt.Errorf("query resolution step width %s is less than 1ms", step))
	}
	return start, end, step, nil
}

// evaluate executes a query. The points of the result belong to the engine and are valid
// until the response is released.
func (a *API) evaluate(r *http.Request, limit int, grid *promjson.Steps, resolution time.Duration, newQuery func(evaluation) (promql.Query, error)) (response, *apiError) {
	ctx, cancel, apiErr := a.queryContext(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	defer cancel()
	ctx, analyzed := a.analyze(ctx, r)
	opts, apiErr := queryOptions(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	from, opts, apiErr := a.samplesQueryable(r, opts, resolution)
	if apiErr != nil {
		return response{}, apiErr
	}
	if err := nesting.Check(r.FormValue("query"), nesting.LevelsMax); err != nil {
		return response{}, invalidParameter("query", err)
	}
	name := "promqlRangeQuery"
	if grid == nil {
		name = "promqlInstantQuery"
	}
	ctx, span := startQuerySpan(ctx, r, name)
	evaluatedBy := ""
	defer func() { span.end(evaluatedBy) }()
	qry, err := newQuery(evaluation{ctx, from, opts})
	if err != nil {
		span.failed(err)
		if queueErr := queueError(err); queueErr != nil {
			return response{}, queueErr
		}
		return response{}, invalidParameter("query", err)
	}
	release := true
	defer func() {
		if release {
			qry.Close()
		}
	}()
	res := qry.Exec(ctx)
	evaluatedBy = engineOf(qry)
	if res.Err != nil {
		span.failed(res.Err)
		if queueErr := queueError(res.Err); queueErr != nil {
			return response{}, queueErr
		}
		return response{}, a.asTimeout(queryError(res.Err))
	}
	warnings := res.Warnings
	if truncate(res, limit) {
		warnings = warnings.Add(errTruncated)
	}
	want := r.FormValue("stats")
	warnings = warnAboutStats(warnings, want)
	release = false
	analysis := analyzed.result(qry, a.opts.Now())
	return response{
		write:       func(s *stream) { s.result(res, grid, statsOf(qry, want), analysis) },
		annotations: &responseAnnotations{list: warnings, query: r.FormValue("query")},
		release:     qry.Close,
		engine:      evaluatedBy,
	}, nil
}

// engineHeader is the header with the name of the engine that evaluated a query and, if another engine was configured,
// the reason.
const engineHeader = "X-Ferula-Query-Engine"

// engineOf returns the value of engineHeader for a query that ran.
func engineOf(qry promql.Query) string {
	q, ok := qry.(interface {
		EvaluatedBy() (engine, reason string)
	})
	if !ok {
		return ""
	}
	engine, reason := q.EvaluatedBy()
	if reason != "" {
		return engine + "; reason=" + reason
	}
	return engine
}

var errTruncated = errors.New("results truncated due to limit")

// truncate truncates a vector or matrix to limit elements and reports whether it did.
func truncate(res *promql.Result, limit int) bool {
	if limit <= 0 {
		return false
	}
	switch v := res.Value.(type) {
	case promql.Matrix:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	case promql.Vector:
		if len(v) > limit {
			res.Value = v[:limit]
			return true
		}
	}
	return false
}

func warnAboutStats(warnings annotations.Annotations, want string) annotations.Annotations {
	if want == "" || want == "true" || want == "all" {
		return warnings
	}
	return warnings.Add(fmt.Errorf("value %q for parameter \"stats\" is deprecated and will be rejected in the next major release, use %q or %q", want, "true", "all"))
}

func statsOf(qry promql.Query, want string) stats.QueryStats {
	if want == "" {
		return nil
	}
	return stats.NewQueryStats(qry.Stats())
}
