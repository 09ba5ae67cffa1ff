package columns

import (
	"context"
	"math"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/series"
)

// filter keeps the samples of an instant selector from low to high, or with outside all others.
type filter struct {
	low, high float64
	outside   bool
	leadMS    int64 // the first values of a run that are needed; 0: all values are
}

// nothing keeps no sample.
var nothing = &filter{low: math.Inf(1), high: math.Inf(-1)}

// filters reports whether the operator compares an instant selector and keeps some of its samples.
func (v *vectorScalarNode) filters() bool {
	s, ok := v.vector.(*selector)
	return ok && s.vs.Timestamp == nil && !v.bool && v.op.IsComparisonOperator()
}

// filterOf returns the filter of an operator between an instant selector and a number that is the same at all steps.
func (v *vectorScalarNode) filterOf(scalar []float64) *filter {
	if !v.filters() {
		return nil
	}
	than := scalar[0]
	for _, number := range scalar {
		if number != than || math.IsInf(number, 0) { // also NaN, to which no comparison is known beforehand
			return nil
		}
	}
	f := &filter{low: than, high: than, outside: v.op == parser.NEQ, leadMS: v.leadMS}
	strict := v.op == parser.GTR || v.op == parser.LSS
	switch greater := v.op == parser.GTR || v.op == parser.GTE; {
	case v.op == parser.EQLC || v.op == parser.NEQ:
	case greater != v.swap:
		if f.high = math.Inf(1); strict {
			f.low = math.Nextafter(than, f.high)
		}
	default:
		if f.low = math.Inf(-1); strict {
			f.high = math.Nextafter(than, f.low)
		}
	}
	return f
}

func (f *filter) keeps(value float64) bool { return (f.low <= value && value <= f.high) != f.outside }

// same reports whether the filter keeps every sample of a chunk, or none, and which.
func (f *filter) same(s *series.Summary) (kept, ok bool) {
	within := f.low <= s.Min && s.Max <= f.high
	return within != f.outside, within || s.Max < f.low || f.high < s.Min
}

// filteredNode is a selector whose rows also say at which steps a filter keeps the value.
type filteredNode struct {
	*selector
	filter *filter
}

func (f filteredNode) eval(ev *evaluation, sink func(*row) error) error {
	return f.instant(ev, false, f.filter, func(r *row, n int) error {
		if err := ev.acct.add(n); err != nil {
			return err
		}
		return sink(r)
	})
}

// coverOf returns the cover for a filter: a chunk need not be decoded if all steps from its first to its last sample
// have a value, and the filter keeps no sample of it or, in a run, every one. Such a chunk is two points.
func (f *filter) coverOf(ev *evaluation, s *selector) *cover {
	first, interval := s.times(ev, false)
	return &cover{filter: f, Windows: series.Windows{Ends: series.Steps{LastMS: first + int64(ev.steps-1)*interval},
		RangeMS: ev.lookback, MinMS: s.hints.Start, MaxMS: s.hints.End}}
}

// filterSummaries returns which chunks may be summaries.
func (c *cover) filterSummaries() *series.Summaries {
	opts := &series.Summaries{LeadMS: c.filter.leadMS, Windows: series.Windows{Ends: series.Anywhere,
		RangeMS: c.RangeMS, MinMS: c.MinMS, MaxMS: c.Ends.LastMS}}
	if opts.LeadMS > 0 {
		opts.Keeps = func(s *series.Summary) bool {
			kept, ok := c.filter.same(s)
			return kept && ok
		}
	}
	opts.Fits = func(s *series.Summary) bool {
		kept, ok := c.filter.same(s)
		return ok && s.GapMS() <= c.RangeMS && (!kept || opts.Keeps != nil)
	}
	return opts
}

// addStretch appends a chunk of which the filter keeps no sample, or every one.
func (c *cover) addStretch(to *decoded, chunk *series.Chunk) error {
	s, err := chunk.Summary()
	if err != nil {
		return err
	}
	first, last, kept := max(chunk.MinMS, c.MinMS), min(chunk.MaxMS, c.MaxMS), chunk.Kept
	n, m := len(to.points), len(to.stretches)
	if n > 0 && to.points[n-1].T >= first {
		return errNeedSamples
	}
	if m > 0 && int(to.stretches[m-1].at) == n-1 && to.stretches[m-1].kept == kept &&
		first-to.points[n-1].T <= c.RangeMS {
		to.points[n-1] = promql.FPoint{T: last, F: s.Last}
		return nil
	}
	to.points = append(to.points, promql.FPoint{T: first, F: s.First})
	if first < last {
		to.points = append(to.points, promql.FPoint{T: last, F: s.Last})
		to.stretches = append(to.stretches, stretch{at: int32(n + 1), kept: kept})
	}
	return nil
}

type runsKey struct{}

// Runs allow a range query that compares a selector with a number to return values that are Unread: of a run, which is
// samples at successive steps, all but the last one and those up to Lead after the first one.
type Runs struct {
	Lead time.Duration
	// Steps is set by the query; 0: its result has a point for each step of a run. Otherwise an Unread point stands for
	// all steps before the next point, and a query over the same series may have so many steps.
	Steps int
}

// WithRuns returns a context whose query may use runs.
func WithRuns(ctx context.Context, runs *Runs) context.Context {
	return context.WithValue(ctx, runsKey{}, runs)
}

// RunsOf returns the argument of WithRuns; nil: all values are to be read.
func RunsOf(ctx context.Context) *Runs {
	runs, _ := ctx.Value(runsKey{}).(*Runs)
	return runs
}

// unreadBits is a NaN that is neither Prometheus' normal NaN nor its stale marker.
const unreadBits = 0x7ff8000000000fe1

// UnreadValue is the value of a sample that was not read.
var UnreadValue = math.Float64frombits(unreadBits)

// Unread reports whether a value is one that was not read, or a sample with the same bits.
func Unread(v float64) bool { return math.Float64bits(v) == unreadBits }
