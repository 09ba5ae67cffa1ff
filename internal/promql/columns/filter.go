package columns

import (
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/series"
)

// filter compares the samples of an instant selector with one number, the right operand of op.
type filter struct {
	op   parser.ItemType
	than float64
}

// filterOf returns the filter of an operator between an instant selector and a number that is the same at all steps.
func (v *vectorScalarNode) filterOf(scalar []float64) *filter {
	if s, ok := v.vector.(*selector); !ok || s.vs.Timestamp != nil || v.bool || !v.op.IsComparisonOperator() {
		return nil
	}
	for _, number := range scalar {
		if number != scalar[0] { // also NaN, to which no comparison is known beforehand
			return nil
		}
	}
	f := &filter{v.op, scalar[0]}
	if v.swap {
		switch v.op {
		case parser.GTR:
			f.op = parser.LSS
		case parser.LSS:
			f.op = parser.GTR
		case parser.GTE:
			f.op = parser.LTE
		case parser.LTE:
			f.op = parser.GTE
		}
	}
	return f
}

func (f *filter) keeps(value float64) bool { return compare(f.op, value, f.than) }

// keepsNone reports whether the filter keeps no sample of a chunk.
func (f *filter) keepsNone(s *series.Summary) bool {
	switch f.op {
	case parser.EQLC:
		return s.Max < f.than || s.Min > f.than
	case parser.NEQ:
		return s.Min == f.than && s.Max == f.than
	case parser.GTR, parser.GTE:
		return !f.keeps(s.Max)
	default:
		return !f.keeps(s.Min)
	}
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

// addNone appends a chunk of which the filter keeps no sample.
func (c *cover) addNone(to *decoded, chunk *series.Chunk) error {
	s, err := chunk.Summary()
	if err != nil {
		return err
	}
	first, last := max(chunk.MinMS, c.MinMS), min(chunk.MaxMS, c.MaxMS)
	n, m := len(to.points), len(to.stretches)
	if n > 0 && to.points[n-1].T >= first {
		return errNeedSamples
	}
	if m > 0 && int(to.stretches[m-1].at) == n-1 && first-to.points[n-1].T <= c.RangeMS {
		to.points[n-1].T = last
		return nil
	}
	to.points = append(to.points, promql.FPoint{T: first, F: s.First})
	if first < last {
		to.points = append(to.points, promql.FPoint{T: last, F: s.First})
		to.stretches = append(to.stretches, stretch{at: int32(n + 1)})
	}
	return nil
}
