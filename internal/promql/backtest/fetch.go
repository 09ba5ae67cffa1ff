package backtest

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
)

// fetched are the results of a rule's expression at successive evaluations.
type fetched struct {
	first  time.Time
	series []labels.Labels
	at     [][]hit // by evaluation
	failed map[int]error
	points int

	alerts []*alert        // of series, if the labels of alerts depend on series only
	record []labels.Labels // of series
	vector promql.Vector   // reused
}

// hit is one element of a result.
type hit struct {
	series    int
	value     float64
	histogram *histogram.FloatHistogram
}

// fatal reports whether an error ends the backtest. Any other error of an evaluation is one that the rule manager would
// have had.
func fatal(err error) bool {
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
	f, interval := &rule.fetched, rule.group.Interval()
	start := f.first.Add(time.Duration(k)*interval - rule.group.QueryOffset())
	err := r.query(ctx, rule, start, n, func(m promql.Matrix) {
		f.add(m, k, n, start.UnixMilli(), interval.Milliseconds())
	})
	switch {
	case err == nil || fatal(err):
		return err
	case n > 1:
		if errors.As(err, new(promql.ErrTooManySamples)) {
			r.piece = max(1, n/2)
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

// query passes the result of an expression at n times to use, which must keep no points.
func (r *run) query(ctx context.Context, rule *rule, start time.Time, n int, use func(promql.Matrix)) error {
	var (
		q    promql.Query
		err  error
		expr = rule.Query().String()
	)
	if n == 1 {
		q, err = r.opts.Engine.NewInstantQuery(ctx, r.from, r.opts.QueryOpts, expr, start)
	} else {
		interval := rule.group.Interval()
		q, err = r.opts.Engine.NewRangeQuery(ctx, r.from, r.opts.QueryOpts, expr, start,
			start.Add(time.Duration(n-1)*interval), interval)
	}
	if err != nil {
		return err
	}
	defer q.Close()
	res := q.Exec(ctx)
	if len(r.warnings) < warningsMax {
		r.warnings.Merge(res.Warnings)
	}
	if res.Err != nil {
		return res.Err
	}
	switch v := res.Value.(type) {
	case promql.Matrix:
		use(v)
	case promql.Vector:
		m := make(promql.Matrix, len(v))
		for i, s := range v {
			m[i].Metric = s.Metric
			if s.H != nil {
				m[i].Histograms = []promql.HPoint{{T: start.UnixMilli(), H: s.H}}
			} else {
				m[i].Floats = []promql.FPoint{{T: start.UnixMilli(), F: s.F}}
			}
		}
		use(m)
	case promql.Scalar:
		use(promql.Matrix{{Floats: []promql.FPoint{{T: start.UnixMilli(), F: v.V}}}})
	}
	return nil
}

// warningsMax is the number of annotations of queries that are kept.
const warningsMax = 100

// add sorts the points of a matrix by evaluation.
func (f *fetched) add(m promql.Matrix, k, n int, startMS, stepMS int64) {
	counts := make([]int, n)
	total := 0
	for _, s := range m {
		for _, p := range s.Floats {
			counts[(p.T-startMS)/stepMS]++
		}
		for _, p := range s.Histograms {
			counts[(p.T-startMS)/stepMS]++
		}
		total += len(s.Floats) + len(s.Histograms)
	}
	all := make([]hit, total)
	at := f.at[k : k+n]
	for i, c := range counts {
		at[i], all = all[:0:c], all[c:]
	}
	for _, s := range m {
		series := len(f.series)
		f.series = append(f.series, s.Metric)
		for _, p := range s.Floats {
			i := (p.T - startMS) / stepMS
			at[i] = append(at[i], hit{series: series, value: p.F})
		}
		for _, p := range s.Histograms {
			i := (p.T - startMS) / stepMS
			at[i] = append(at[i], hit{series: series, histogram: p.H.Copy()})
		}
	}
	f.points += total
}
