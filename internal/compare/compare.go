// Package compare sends the same queries to two servers and names every difference between their responses.
//
// Load reads queries from files: query logs, dashboards, rule files and lists. Run fills the variables of dashboards
// from the labels of the left server, sends each query to both servers within the limits of Options, compares the
// responses (bytes first, then values bit by bit) and returns a Report, also when it is interrupted. Differences have
// the reason that a document gives for them, if there is one: reasons.go has all. Report writes itself as text, JSON or
// a page. Responses are held in memory, those of Concurrency queries at a time and each up to BytesMax; series of
// remote read and StoreAPI are compared while they arrive. Not here: flags, clients and their credentials.
package compare

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/series"
)

// ErrLimit is the error of a response that is longer than BytesMax.
var ErrLimit = errors.New("the response is longer than the limit")

// Side is one of the two servers.
type Side struct {
	URL  *url.URL      // of its HTTP API without /api/v1; nil: the server has only Raw
	HTTP *http.Client  // with the server's credentials
	Raw  series.Source // compared instead of query results if both sides have it
	Name string        // for the report, without a password
}

// Mode says how queries are evaluated whose source leaves it open.
type Mode string

// The modes. Auto: panels of dashboards over a range unless the panel says otherwise, all others at one time.
const (
	Auto    Mode = "auto"
	Instant Mode = "instant"
	Range   Mode = "range"
)

// Options are the options of Run.
type Options struct {
	Left, Right Side
	Queries     []Query
	Skipped     []Skipped // by Load, for the report

	Mode        Mode
	End         time.Time     // of all queries without times of their own; a multiple of Step
	Range, Step time.Duration // of range queries
	Repeat      int           // times that each query is sent to each server; 0: 1
	Concurrency int           // queries at a time; 0: 1
	PerSecond   float64       // requests to each server; 0: no limit
	Timeout     time.Duration // of one request
	BytesMax    int64         // of one response
	QueriesMax  int           // further queries are left out, and the report has their number
	Idle        bool          // afterwards measure the CPU of both servers for the same time without queries
	Now         func() time.Time
}

// Cost is what queries cost on one side.
type Cost struct {
	Requests    int     `json:"requests"`
	Bytes       int64   `json:"bytes"` // of the bodies
	MedianMS    float64 `json:"median_ms"`
	P95MS       float64 `json:"p95_ms"`
	WorstMS     float64 `json:"worst_ms"`
	latenciesMS []float64
}

func (c *Cost) add(bytes int64, took time.Duration) {
	c.Requests++
	c.Bytes += bytes
	c.latenciesMS = append(c.latenciesMS, float64(took.Microseconds())/1000)
}

func (c *Cost) sum() {
	if slices.Sort(c.latenciesMS); len(c.latenciesMS) > 0 {
		at := func(part float64) float64 { return c.latenciesMS[int(part*float64(len(c.latenciesMS)-1)+0.5)] }
		c.MedianMS, c.P95MS, c.WorstMS = at(0.5), at(0.95), at(1)
	}
}

// Result is what comparing one query found.
type Result struct {
	Query
	Left        Cost         `json:"left"`
	Right       Cost         `json:"right"`
	SameBytes   bool         `json:"same_bytes"`
	Differences []Difference `json:"differences,omitempty"`
	More        int          `json:"more_differences,omitempty"` // that are not listed
	NotCompared string       `json:"not_compared,omitempty"`     // why
}

// SideReport is what the report says of one server.
type SideReport struct {
	URL     string `json:"url"`
	Program string `json:"program,omitempty"` // with its version
	Cost
	CPUSeconds     *float64 `json:"cpu_seconds,omitempty"` // nil unless both servers expose it
	IdleCPUSeconds *float64 `json:"idle_cpu_seconds,omitempty"`
	program        program
}

// Report is the result of a run.
type Report struct {
	Started     time.Time  `json:"started"`
	Seconds     float64    `json:"seconds"`
	End         time.Time  `json:"end"`
	Left        SideReport `json:"left"`
	Right       SideReport `json:"right"`
	Interrupted bool       `json:"interrupted,omitempty"`
	OwnScrapes  bool       `json:"own_scrapes,omitempty"` // each server scrapes for itself
	Compared    int        `json:"compared"`
	SameBytes   int        `json:"same_bytes"`
	SameValues  int        `json:"same_values"` // with other bytes
	Different   int        `json:"different"`
	Explained   int        `json:"explained"`    // of these, all listed differences have a documented reason
	NotCompared int        `json:"not_compared"` // an error on the way, or not sent
	Results     []Result   `json:"queries"`
	Skipped     []Skipped  `json:"skipped,omitempty"`
}

// Skipped is a part of a file that is no query, or queries that were left out.
type Skipped struct {
	Source string `json:"source"`
	Why    string `json:"why"`
}

// runner has what the queries of a run share.
type runner struct {
	Options
	left, right *rate.Limiter
	report      *Report
}

// Run sends the queries and compares the responses until all are compared or ctx ends. It returns an error if nothing
// can be compared.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.Repeat, o.Concurrency = max(o.Repeat, 1), max(o.Concurrency, 1)
	r := &runner{Options: o, left: limiter(o.PerSecond), right: limiter(o.PerSecond), report: &Report{Started: o.Now(),
		End: o.End, Left: SideReport{URL: o.Left.Name}, Right: SideReport{URL: o.Right.Name}, Skipped: o.Skipped}}
	rep := r.report
	if err := r.identify(ctx); err != nil {
		return nil, err
	}
	queries := r.fill(ctx)
	if o.Left.Raw != nil {
		queries = r.selectors(queries)
	}
	if n := len(queries) - o.QueriesMax; n > 0 {
		queries = queries[:o.QueriesMax]
		rep.NotCompared += n
		rep.Skipped = append(rep.Skipped, Skipped{"--max-queries", fmt.Sprintf("%d queries were left out", n)})
	}
	if len(queries) == 0 {
		return nil, errors.Join(errors.New("there are no queries"), skippedError(rep.Skipped))
	}
	left, right := r.cpu(ctx, o.Left), r.cpu(ctx, o.Right)
	begin := o.Now()
	rep.Results = make([]Result, len(queries))
	var running errgroup.Group
	running.SetLimit(o.Concurrency)
	for i, q := range queries {
		running.Go(func() error {
			if rep.Results[i] = (Result{Query: q, NotCompared: "not sent"}); ctx.Err() == nil {
				rep.Results[i] = r.compare(ctx, i, q)
			}
			return nil
		})
	}
	_ = running.Wait() // the results have the errors
	took := o.Now().Sub(begin)
	rep.Interrupted = ctx.Err() != nil
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second) // also after an interruption
	leftEnd, rightEnd := r.cpu(last, o.Left), r.cpu(last, o.Right)
	cancel()
	rep.Left.CPUSeconds, rep.Right.CPUSeconds = used(left, leftEnd, right, rightEnd)
	if o.Idle && !rep.Interrupted {
		select {
		case <-time.After(took):
			left, right := r.cpu(ctx, o.Left), r.cpu(ctx, o.Right)
			rep.Left.IdleCPUSeconds, rep.Right.IdleCPUSeconds = used(leftEnd, left, rightEnd, right)
		case <-ctx.Done():
		}
	}
	r.summarize()
	rep.Seconds = o.Now().Sub(rep.Started).Seconds()
	return rep, nil
}

func limiter(perSecond float64) *rate.Limiter {
	if perSecond <= 0 {
		return rate.NewLimiter(rate.Inf, 1)
	}
	return rate.NewLimiter(rate.Limit(perSecond), 1)
}

func skippedError(list []Skipped) error {
	var errs []error
	for _, s := range list {
		errs = append(errs, fmt.Errorf("%s: %s", s.Source, s.Why))
	}
	return errors.Join(errs...)
}

// used returns the CPU time of both sides between two samples of each, nil unless all four samples are there.
func used(left, leftEnd, right, rightEnd *float64) (l, r *float64) {
	if left == nil || leftEnd == nil || right == nil || rightEnd == nil {
		return nil, nil
	}
	a, b := *leftEnd-*left, *rightEnd-*right
	return &a, &b
}

// summarize adds up the results.
func (r *runner) summarize() {
	rep := r.report
	for i := range rep.Results {
		q := &rep.Results[i]
		for j := range q.Differences {
			q.Differences[j].Reason = r.reason(q, &q.Differences[j])
		}
		switch {
		case q.NotCompared != "":
			rep.NotCompared++
		case len(q.Differences) > 0:
			rep.Different++
			if !slices.ContainsFunc(q.Differences, func(d Difference) bool { return d.Reason == "" }) {
				rep.Explained++
			}
		case q.SameBytes:
			rep.SameBytes++
		default:
			rep.SameValues++
		}
		for _, side := range []struct{ all, one *Cost }{{&rep.Left.Cost, &q.Left}, {&rep.Right.Cost, &q.Right}} {
			side.all.Requests += side.one.Requests
			side.all.Bytes += side.one.Bytes
			side.all.latenciesMS = append(side.all.latenciesMS, side.one.latenciesMS...)
			side.one.sum()
		}
	}
	rep.Compared = rep.SameBytes + rep.SameValues + rep.Different
	rep.Left.sum()
	rep.Right.sum()
}

// compare sends one query to both sides, Repeat times, and compares the responses of each time. The side that is asked
// first alternates.
func (r *runner) compare(ctx context.Context, n int, q Query) Result {
	result := Result{Query: q, SameBytes: true}
	for i := range r.Repeat {
		var d diff
		var err error
		if r.Left.Raw != nil {
			err = r.compareRaw(ctx, &result, &d)
		} else {
			err = r.compareResponses(ctx, (n+i)%2 == 1, &result, &d)
		}
		if err != nil && len(result.Differences) > 0 {
			break // the error does not undo what an earlier time has found
		}
		if err != nil {
			result.NotCompared = redact.Error(err).Error()
			if ctx.Err() != nil {
				result.NotCompared = "interrupted"
			}
			break
		}
		result.SameBytes = result.SameBytes && d.sameBytes
		if len(result.Differences) == 0 {
			result.Differences, result.More = d.list, d.more
		}
	}
	return result
}

func (r *runner) compareResponses(ctx context.Context, rightFirst bool, result *Result, d *diff) error {
	var left, right *response
	var err error
	ask := func(first bool) error {
		if first {
			left, err = r.ask(ctx, r.Left, r.left, &result.Query, &result.Left)
		} else {
			right, err = r.ask(ctx, r.Right, r.right, &result.Query, &result.Right)
		}
		return err
	}
	if err := errors.Join(ask(!rightFirst), ask(rightFirst)); err != nil {
		return err
	}
	if result.Logged && left.empty() && right.empty() { // the data of the time in the log is gone
		result.move(r.End)
		return r.compareResponses(ctx, rightFirst, result, d)
	}
	return d.responses(left, right, result.ordered())
}

// move lets a query end at a time.
func (q *Query) move(end time.Time) {
	q.StartMS, q.EndMS, q.Logged = end.UnixMilli()-(q.EndMS-q.StartMS), end.UnixMilli(), false
}
