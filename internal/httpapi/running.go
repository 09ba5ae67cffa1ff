package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/series"
)

// Stages of a running query.
const (
	stageWaiting    = iota // for a slot of the engine
	stageEvaluating        // reads and computes
	stageSending           // the response is being sent; the result is in memory until then
)

var stageNames = [...]string{stageWaiting: "waiting", stageEvaluating: "evaluating", stageSending: "sending"}

// runningQueries are the instant and range queries whose requests have not ended.
type runningQueries struct {
	mu    sync.Mutex
	begun uint64 // queries begun since the start
	all   []*runningQuery
}

// runningQuery is one of them. The fields above stage do not change.
type runningQuery struct {
	id, kind, query, client, agent, tenant string
	begun                                  time.Time
	cancel                                 context.CancelFunc

	stage     atomic.Int32
	ended     atomic.Pointer[endedError]
	estimated atomic.Int64 // samples; 0: no estimate
	read      series.Reading
}

// endedError is the error of a query that somebody has ended.
type endedError struct{ by string }

func (e *endedError) Error() string { return "the query was ended by " + e.by }

// err returns the error of a query that somebody has ended, else nil.
func (q *runningQuery) err() error {
	if e := q.ended.Load(); e != nil {
		return e
	}
	return nil
}

// begin adds a query to the list. The query runs in the returned context.
func (a *API) begin(ctx context.Context, r *http.Request, kind string) (context.Context, *runningQuery) {
	q := &runningQuery{kind: kind, query: r.FormValue("query"), client: clientOf(r), agent: r.UserAgent(),
		begun: a.opts.Now()}
	if a.opts.Stores != nil {
		q.tenant, _, _ = a.opts.StoreDefaults.Tenancy.of(r) // a query whose tenant is not valid fails
	}
	ctx, q.cancel = context.WithCancel(series.WithReading(ctx, &q.read))
	l := &a.running
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	q.id = fmt.Sprintf("%d-%d", q.begun.UnixMilli(), l.begun) // of no query before a restart
	l.all = append(l.all, q)
	return ctx, q
}

// end removes a query from the list.
func (l *runningQueries) end(q *runningQuery) {
	l.mu.Lock()
	l.all = slices.DeleteFunc(l.all, func(other *runningQuery) bool { return other == q })
	l.mu.Unlock()
	q.cancel()
}

// clientOf returns the address of a client, preceded by the user name if the request has one.
func clientOf(r *http.Request) string {
	if user, _, ok := r.BasicAuth(); ok {
		return user + "@" + r.RemoteAddr
	}
	return r.RemoteAddr
}

// runningOf returns the running queries that a client may see, the oldest first. If tenants are enforced, these are the
// queries of its tenant.
func (a *API) runningOf(r *http.Request) ([]*runningQuery, *apiError) {
	tenancy := a.opts.StoreDefaults.Tenancy
	tenant, _, apiErr := tenancy.of(r)
	if apiErr != nil {
		return nil, apiErr
	}
	a.running.mu.Lock()
	all := slices.Clone(a.running.all)
	a.running.mu.Unlock()
	return slices.DeleteFunc(all, func(q *runningQuery) bool { return tenancy.Enforce && q.tenant != tenant }), nil
}

// queryShownMax is the number of bytes of a query in the list of running queries.
const queryShownMax = 4 << 10

// runningList lists the running queries.
func (a *API) runningList(r *http.Request) (response, *apiError) {
	all, apiErr := a.runningOf(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	now := a.opts.Now()
	return response{write: func(s *stream) {
		s.raw(`{"cancelable":`)
		s.boolean(a.opts.Admin)
		s.raw(`,"queries":`)
		each(s, all, func(q **runningQuery) { s.running(*q, now) })
		s.raw("}")
	}}, nil
}

func (s *stream) running(q *runningQuery, now time.Time) {
	shown := q.query
	if len(shown) > queryShownMax {
		shown = strings.ToValidUTF8(shown[:queryShownMax], "") + "…"
	}
	found, samples, bytes := q.read.Counts()
	s.value(struct {
		ID         string    `json:"id"`
		Kind       string    `json:"kind"`
		Query      string    `json:"query"`
		Begun      time.Time `json:"begun"`
		Seconds    float64   `json:"seconds"`
		Stage      string    `json:"stage"`
		Client     string    `json:"client"`
		UserAgent  string    `json:"userAgent"`
		Tenant     string    `json:"tenant,omitempty"`
		Estimated  int64     `json:"estimatedSamples,omitempty"`
		Series     int64     `json:"series"`
		Samples    int64     `json:"samples"`
		ChunkBytes int64     `json:"chunkBytes"`
	}{q.id, q.kind, shown, q.begun, now.Sub(q.begun).Seconds(), stageNames[q.stage.Load()], q.client, q.agent,
		q.tenant, q.estimated.Load(), found, samples, bytes})
}

// cancelRunning ends a running query.
func (a *API) cancelRunning(r *http.Request) (response, *apiError) {
	if !a.opts.Admin {
		return response{}, &apiError{kindUnavailable, errors.New("admin APIs disabled: start with --web.enable-admin-api")}
	}
	all, apiErr := a.runningOf(r)
	if apiErr != nil {
		return response{}, apiErr
	}
	id := r.PathValue("id")
	i := slices.IndexFunc(all, func(q *runningQuery) bool { return q.id == id })
	if i < 0 {
		return response{}, &apiError{kindNotFound, fmt.Errorf("no query %q is running", id)}
	}
	q, by := all[i], clientOf(r)
	q.ended.CompareAndSwap(nil, &endedError{by})
	q.cancel()
	a.opts.Logger.Warn("A query was ended", "id", q.id, "query", q.query, "client", q.client, "by", by)
	return response{write: func(s *stream) { s.field(`{"id":`, q.id); s.raw("}") }}, nil
}

// checkEstimate returns an error if the selections of a query read more than EstimateMax at most.
func (a *API) checkEstimate(ctx context.Context, qry promql.Query, run *runningQuery) error {
	most := a.opts.EstimateMax
	if most == 0 {
		return nil
	}
	var found, samples int64
	for _, s := range columns.SelectionsOf(qry) {
		inSelection, ofSelection, err := a.opts.Estimate(ctx, s.StartMS, s.EndMS, s.Matchers...)
		switch {
		case errors.Is(err, context.Canceled):
			return promql.ErrQueryCanceled("estimate")
		case errors.Is(err, context.DeadlineExceeded):
			return promql.ErrQueryTimeout("estimate")
		case err != nil:
			return fmt.Errorf("estimate: %w", err)
		}
		found, samples = found+inSelection, samples+ofSelection
	}
	run.estimated.Store(samples)
	if samples > most {
		return fmt.Errorf("the query would read up to %d samples of %d series by estimate, more than the limit of %d%s",
			samples, found, most, a.opts.Flags.Of("EstimateMax"))
	}
	return nil
}

// watch returns the storage of a running query, which notes that the evaluation has begun, and counts what it reads.
// Selections of Stores, and of the engine that reads chunks, count themselves.
func (a *API) watch(from storage.Queryable, q *runningQuery) storage.Queryable {
	w := watched{from, q, a.opts.Stores == nil}
	if source, ok := from.(series.Source); ok {
		return watchedSource{w, source}
	}
	return w
}

type watched struct {
	storage.Queryable
	run    *runningQuery
	counts bool
}

// Querier implements storage.Queryable.
func (w watched) Querier(mint, maxt int64) (storage.Querier, error) {
	w.run.stage.Store(stageEvaluating)
	q, err := w.Queryable.Querier(mint, maxt)
	if err != nil || !w.counts {
		return q, err
	}
	return countedQuerier{q}, nil
}

type watchedSource struct {
	watched
	source series.Source
}

// RawQuerier implements series.Source.
func (w watchedSource) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	w.run.stage.Store(stageEvaluating)
	return w.source.RawQuerier(ctx, mint, maxt)
}

// countedQuerier counts the series that it returns, but not their samples: to count these would cost time for each.
type countedQuerier struct{ storage.Querier }

// Select implements storage.Querier.
func (q countedQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	return countedSet{q.Querier.Select(ctx, sorted, hints, matchers...), series.ReadingOf(ctx)}
}

type countedSet struct {
	storage.SeriesSet
	read *series.Reading
}

// Next implements storage.SeriesSet.
func (s countedSet) Next() bool {
	if !s.SeriesSet.Next() {
		return false
	}
	s.read.Add(0, 0)
	return true
}
