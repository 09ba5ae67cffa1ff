package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/ferula-io/ferula/internal/precheck"
	"github.com/ferula-io/ferula/promjson"
)

// pointsMax is the maximum of steps of a range query: enough for 60 s steps over a week or
// 1 h steps over a year.
const pointsMax = 11_000

// queryOf returns the endpoint of instant or range queries.
func (a *API) queryOf(prepare func(*http.Request) (preparedQuery, *apiError)) endpoint {
	return func(r *http.Request) (response, *apiError) {
		limit, apiErr := parseLimit(r)
		if apiErr != nil {
			return response{}, apiErr
		}
		p, apiErr := prepare(r)
		if apiErr != nil {
			return response{}, apiErr
		}
		return a.evaluate(r, limit, p)
	}
}

// preparedQuery is an instant or range query with parsed times. open creates the query of the engine.
type preparedQuery struct {
	open       func(evaluation) (promql.Query, error)
	grid       *promjson.Steps // nil: an instant query
	steps      stepGrid        // of grid
	resolution time.Duration   // value of max_source_resolution=auto
}

func (a *API) instantQuery(r *http.Request) (preparedQuery, *apiError) {
	at, apiErr := optionalTime(r, "time", a.opts.Now())
	return preparedQuery{resolution: a.opts.StoreDefaults.InstantResolution,
		open: func(e evaluation) (promql.Query, error) {
			return a.opts.Engine.NewInstantQuery(e.ctx, e.from, e.opts, r.FormValue("query"), at)
		}}, apiErr
}

func (a *API) rangeQuery(r *http.Request) (preparedQuery, *apiError) {
	start, end, step, apiErr := a.parseSteps(r)
	if apiErr != nil {
		return preparedQuery{}, apiErr
	}
	steps := stepGrid{milliseconds(start), step.Milliseconds(), int(end.Sub(start)/step) + 1}
	return preparedQuery{grid: promjson.NewSteps(steps.start, steps.step, steps.count), steps: steps,
		resolution: step / 5, open: func(e evaluation) (promql.Query, error) {
			return a.opts.Engine.NewRangeQuery(e.ctx, e.from, e.opts, r.FormValue("query"), start, end, step)
		}}, nil
}

// parseSteps parses `start`, `end` and `step` of a range query.
func (a *API) parseSteps(r *http.Request) (start, end time.Time, step time.Duration, apiErr *apiError) {
	if start, end, apiErr = requiredRange(r); apiErr != nil {
		return start, end, 0, apiErr
	}
	var err error
	if byDefault := a.opts.StoreDefaults.Step; byDefault > 0 && r.FormValue("step") == "" {
		step = max(end.Sub(start)/250, byDefault).Truncate(time.Second)
	} else if step, err = parseDuration(r.FormValue("step")); err != nil {
		return start, end, 0, invalidParameter("step", err)
	}
	if step <= 0 {
		return start, end, 0, invalidParameter("step",
			errors.New("zero or negative query resolution step widths are not accepted. Try a positive integer"))
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
func (a *API) evaluate(r *http.Request, limit int, p preparedQuery) (resp response, apiErr *apiError) {
	ctx, cancel, apiErr := a.queryContext(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	defer cancel()
	name, kind := "promqlRangeQuery", "range"
	if p.grid == nil {
		name, kind = "promqlInstantQuery", "instant"
	}
	ctx, run := a.begin(ctx, r, kind)
	release := func() { a.running.end(run) }
	defer func() {
		if resp.release == nil {
			release()
		}
	}()
	ctx, analyzed := a.analyze(ctx, r)
	e, apiErr := a.evaluation(r, p, false)
	if apiErr != nil {
		return response{}, apiErr
	}
	ctx, span := startQuerySpan(ctx, r, name)
	evaluatedBy := ""
	defer func() { span.end(evaluatedBy) }()
	e.ctx, e.from = ctx, a.watch(e.from, run)
	qry, err := p.open(e)
	if err != nil {
		span.failed(err)
		if ended := run.err(); ended != nil {
			return response{}, queryError(ended)
		}
		return response{}, openError(err)
	}
	release = func() { qry.Close(); a.running.end(run) }
	res := &promql.Result{Err: a.checkEstimate(ctx, qry, run)}
	if res.Err == nil {
		res = qry.Exec(ctx)
		evaluatedBy = engineOf(qry)
	}
	if err := run.err(); err != nil { // the stores of an ended query may have returned a partial response
		span.failed(err)
		return response{}, queryError(err)
	}
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
	run.stage.Store(stageSending)
	analysis := analyzed.result(qry, a.opts.Now())
	rest, series := *res, columnsOf(r, res, p.steps)
	if series != nil {
		rest.Value = promql.Matrix{} // the series are in the columns, and the JSON has none
	}
	return response{
		negotiated:  p.grid != nil,
		columns:     series,
		write:       func(s *stream) { s.result(&rest, p.grid, statsOf(qry, want), analysis) },
		annotations: &responseAnnotations{list: warnings, query: r.FormValue("query")},
		release:     release,
		ended:       run.err,
		engine:      evaluatedBy,
	}, nil
}

// evaluation returns the storage and the options of a query. plan is true if the query is only explained. The caller
// sets e.ctx.
func (a *API) evaluation(r *http.Request, p preparedQuery, plan bool) (e evaluation, apiErr *apiError) {
	if e.opts, apiErr = queryOptions(r); apiErr != nil {
		return e, apiErr
	}
	if e.from, e.opts, apiErr = a.samplesQueryable(r, e.opts, p.resolution, plan); apiErr != nil {
		return e, apiErr
	}
	if err := precheck.Query(r.FormValue("query"), precheck.LevelsMax); err != nil {
		return e, invalidParameter("query", err)
	}
	return e, nil
}

// openError maps the error of an engine that created no query.
func openError(err error) *apiError {
	if queueErr := queueError(err); queueErr != nil {
		return queueErr
	}
	return invalidParameter("query", err)
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
	return warnings.Add(fmt.Errorf("value %q for parameter \"stats\" is deprecated and will be rejected "+
		"in the next major release, use %q or %q", want, "true", "all"))
}

func statsOf(qry promql.Query, want string) stats.QueryStats {
	if want == "" {
		return nil
	}
	return stats.NewQueryStats(qry.Stats())
}
