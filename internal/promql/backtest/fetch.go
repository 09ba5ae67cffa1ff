package backtest

import (
	"context"
	"errors"
	"math"
	"sort"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/promql/columns"
)

// fetched are the results of a rule's expression at successive evaluations, which are read in order of time.
type fetched struct {
	first   time.Time
	results []result
	series  []labels.Labels
	failed  map[int]error
	points  int
	hits    []hit // reused

	alerts []*alert        // of series, if the labels of alerts depend on series only
	record []labels.Labels // of series
	vector promql.Vector   // reused
}

// result is the result of one query.
type result struct {
	promql.Query // owns the rows
	rows         promql.Matrix
	next         []position // of rows
	series       int        // index of the first row in fetched.series
	stepMS       int64
	endMS        int64  // of the last step
	joined       bool   // an Unread point stands for all steps before the next point
	live         []live // rows with points before untilMS
	untilMS      int64
}

// live is a row and the time of its next point. The time is here because each step compares it.
type live struct {
	nextMS int64
	row    int
}

// position is how many points of a row are read. The next float is used at ms if that is later than its time.
type position struct {
	floats, histograms int
	ms                 int64
}

// liveSteps is the number of steps for which a result knows its rows with points.
const liveSteps = 64

// hit is one element of a result.
type hit struct {
	series    int
	value     float64
	histogram *histogram.FloatHistogram
	ms        int64           // of the value, unless it is a histogram
	run       []promql.FPoint // with the value's, those at successive steps; valid as long as the result
}

// at returns the elements at a time, valid until the next call. With runs, it returns only those that are not in the
// run of an element before.
func (f *fetched) at(ms int64, runs bool) []hit {
	f.hits = f.hits[:0]
	for len(f.results) > 0 && f.results[0].endMS < ms {
		f.close()
	}
	if len(f.results) == 0 {
		return nil
	}
	r := &f.results[0]
	end := ms + r.stepMS
	if ms >= r.untilMS {
		r.untilMS, r.live = ms+liveSteps*r.stepMS, r.live[:0]
		for i := range r.rows {
			if nextMS := r.nextMS(i); nextMS < r.untilMS {
				r.live = append(r.live, live{nextMS, i})
			}
		}
	}
	for k := range r.live {
		if r.live[k].nextMS >= end {
			continue
		}
		i := r.live[k].row
		row, next := &r.rows[i], &r.next[i]
		if rest := row.Floats[next.floats:]; len(rest) > 0 && max(rest[0].T, next.ms) < end {
			now, n := max(rest[0].T, next.ms), 1
			if runs {
				n = r.successive(rest)
			}
			f.hits = append(f.hits, hit{series: r.series + i, value: rest[0].F, ms: now, run: rest[:n]})
			if next.ms = now + r.stepMS; n > 1 || len(rest) == 1 || !r.stands(rest[0]) || next.ms >= rest[1].T {
				next.floats += n
			}
		} else if rest := row.Histograms[next.histograms:]; len(rest) > 0 && rest[0].T < end {
			f.hits = append(f.hits, hit{series: r.series + i, histogram: rest[0].H.Copy()})
			next.histograms++
		}
		r.live[k].nextMS = r.nextMS(i)
	}
	return f.hits
}

// nextMS returns the time of the next point of a row, or the greatest time.
func (r *result) nextMS(i int) int64 {
	ms, next := int64(math.MaxInt64), r.next[i]
	if rest := r.rows[i].Floats[next.floats:]; len(rest) > 0 {
		ms = max(rest[0].T, next.ms)
	}
	if rest := r.rows[i].Histograms[next.histograms:]; len(rest) > 0 {
		ms = min(ms, rest[0].T)
	}
	return ms
}

// stands reports whether a point stands for all steps before the next point.
func (r *result) stands(p promql.FPoint) bool { return r.joined && columns.Unread(p.F) }

// successive returns how many points from the first on are at successive steps.
func (r *result) successive(points []promql.FPoint) int {
	n := 1
	for n < len(points) && (points[n].T-points[n-1].T == r.stepMS || r.stands(points[n-1])) {
		n++
	}
	return n
}

// rewind returns to the elements at a time, which are in the current result.
func (f *fetched) rewind(ms int64) {
	r := &f.results[0]
	r.untilMS = ms
	for i, row := range r.rows {
		n := sort.Search(len(row.Floats), func(i int) bool { return row.Floats[i].T >= ms })
		if 0 < n && n < len(row.Floats) && row.Floats[n].T > ms && r.stands(row.Floats[n-1]) {
			n--
		}
		r.next[i] = position{n, sort.Search(len(row.Histograms), func(i int) bool { return row.Histograms[i].T >= ms }), ms}
	}
}

// close closes the first result.
func (f *fetched) close() {
	for _, al := range f.alerts {
		if al != nil {
			al.last.to(al.until)
			al.last.hit.run = nil
		}
	}
	f.results[0].Close()
	f.results = f.results[1:]
}

// begin removes the results, and expects others from a time on.
func (f *fetched) begin(first time.Time) {
	for len(f.results) > 0 {
		f.close()
	}
	*f = fetched{first: first, hits: f.hits, vector: f.vector}
}

// fatal reports whether an error ends the backtest. Any other error of an evaluation is one that the rule manager would
// have had.
func fatal(err error) bool {
	if err == nil { // the usual case must not allocate
		return false
	}
	var (
		canceled promql.ErrQueryCanceled
		timeout  promql.ErrQueryTimeout
		stored   promql.ErrStorage
	)
	return errors.As(err, &canceled) || errors.As(err, &timeout) || errors.As(err, &stored) ||
		errors.Is(err, ErrLimit) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// fetch evaluates an expression at n times from the one with the index k. A range query that fails is split: Prometheus
// would have failed only where its instant query fails, and a limit of samples may be exceeded only by all together.
func (r *run) fetch(ctx context.Context, rule *rule, k, n int) error {
	if n == 0 {
		return nil
	}
	if piece := r.piece; n > piece { // the first call may make r.piece smaller
		if err := r.fetch(ctx, rule, k, piece); err != nil {
			return err
		}
		return r.fetch(ctx, rule, k+piece, n-piece)
	}
	f := &rule.fetched
	start := f.first.Add(time.Duration(k)*rule.group.Interval() - rule.group.QueryOffset())
	err := r.query(ctx, rule, start, n)
	switch {
	case err == nil || fatal(err):
		return err
	case n > 1:
		if errors.As(err, new(promql.ErrTooManySamples)) {
			r.piece = max(1, n/2)
			r.pieceMax = min(r.pieceMax, r.piece)
		}
		if err := r.fetch(ctx, rule, k, n/2); err != nil {
			return err
		}
		return r.fetch(ctx, rule, k+n/2, n-n/2)
	}
	if f.failed == nil {
		f.failed = map[int]error{}
	}
	f.failed[k] = err
	return nil
}

// query adds the result of an expression at n times.
func (r *run) query(ctx context.Context, rule *rule, start time.Time, n int) error {
	var (
		q        promql.Query
		err      error
		expr     = rule.Query().String()
		interval = rule.group.Interval()
		end      = start.Add(time.Duration(n-1) * interval)
	)
	if n == 1 {
		q, err = r.opts.Engine.NewInstantQuery(ctx, r.from, r.opts.QueryOpts, expr, start)
	} else {
		q, err = r.opts.Engine.NewRangeQuery(ctx, r.from, r.opts.QueryOpts, expr, start, end, interval)
	}
	if err != nil {
		return err
	}
	var runs columns.Runs
	if a := rule.alerting; a != nil && !r.allValues && !a.stepwise && !rule.writes && !r.opts.Resends {
		runs.Lead = a.def.HoldDuration() + interval
		ctx = columns.WithRuns(ctx, &runs)
	}
	res := q.Exec(ctx)
	if len(r.warnings) < warningsMax {
		r.warnings.Merge(res.Warnings)
	}
	if res.Err != nil {
		q.Close()
		return res.Err
	}
	rows := promql.Matrix{}
	switch v := res.Value.(type) {
	case promql.Matrix:
		rows = v
	case promql.Vector:
		rows = make(promql.Matrix, len(v))
		for i, s := range v {
			rows[i].Metric = s.Metric
			if s.H != nil {
				rows[i].Histograms = []promql.HPoint{{T: start.UnixMilli(), H: s.H}}
			} else {
				rows[i].Floats = []promql.FPoint{{T: start.UnixMilli(), F: s.F}}
			}
		}
	case promql.Scalar:
		rows = promql.Matrix{{Floats: []promql.FPoint{{T: start.UnixMilli(), F: v.V}}}}
	}
	r.pieceOfRuns = runs.Steps
	f := &rule.fetched
	f.results = append(f.results, result{Query: q, rows: rows, next: make([]position, len(rows)), series: len(f.series),
		stepMS: interval.Milliseconds(), endMS: end.UnixMilli(), joined: runs.Steps > 0})
	for _, row := range rows {
		f.series = append(f.series, row.Metric)
		f.points += len(row.Floats) + len(row.Histograms)
	}
	return nil
}

// warningsMax is the number of annotations of queries that are kept.
const warningsMax = 100
