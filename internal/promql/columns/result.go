package columns

import (
	"math"
	"math/bits"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"
)

// result evaluates the root and returns its value.
func (q *query) result(ev *evaluation) (parser.Value, error) {
	if ev.isInstant() {
		return q.instant(ev)
	}
	q.points.release()
	q.points = &pointsPool{}
	mat := promql.Matrix{}
	sets := ev.newLabelsets()
	err := q.root.eval(ev, func(r *row) error {
		if err := ev.dropDelayed(sets, r); err != nil {
			return err
		}
		r.setUnread(q.runs != nil)
		points := q.points.get(r.has.count())
		var hists []promql.HPoint
		for k, word := range r.has {
			if word == math.MaxUint64 && r.hists == nil {
				for i, v := range r.values[k*64 : k*64+64] {
					points = append(points, promql.FPoint{T: ev.start + int64(k*64+i)*ev.interval, F: v})
				}
				continue
			}
			for ; word != 0; word &= word - 1 {
				i := k*64 + bits.TrailingZeros64(word)
				ts := ev.start + int64(i)*ev.interval
				if h := r.histogram(i); h != nil {
					hists = append(hists, promql.HPoint{T: ts, H: h})
				} else {
					points = append(points, promql.FPoint{T: ts, F: r.values[i]})
				}
			}
		}
		if len(points) == 0 {
			points = nil
		}
		if len(points)+len(hists) > 0 {
			mat = append(mat, promql.Series{Metric: r.metric, Floats: points, Histograms: hists})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if err := contextError(ev.ctx); err != nil {
		return nil, err
	}
	if sets.dupStep >= 0 {
		if slices.ContainsFunc(mat, func(s promql.Series) bool { return len(s.Histograms) > 0 }) {
			return nil, errGiveUp("histograms and floats with the same labels") // Prometheus allows a float and a histogram
		}
		ev.late = true
		return nil, errSameLabels
	}
	if ev.repeats || sets.repeated {
		mat = joinRepeated(mat)
	}
	if q.runs != nil { // some of the steps that a limit allows: more series may have samples at other times
		q.runs.Steps = max(1, min(batchSteps, ev.acct.limit/5*4/(ev.acct.peak/ev.steps+1)))
	}
	return mat, ev.sort(mat)
}

// sort sorts series by labels. It returns an error if the query has ended.
func (ev *evaluation) sort(mat promql.Matrix) (err error) {
	compared := 0
	slices.SortFunc(mat, func(a, b promql.Series) int {
		if compared++; err == nil {
			err = ev.check(compared)
		}
		if err != nil {
			return 0 // the remaining comparisons take no time
		}
		return labels.Compare(a.Metric, b.Metric)
	})
	return err
}

// dropDelayed removes the name of a series of the result, if the removal was delayed.
func (ev *evaluation) dropDelayed(sets *labelsets, r *row) error {
	if !ev.engine.opts.DelayedNameRemoval {
		return nil
	}
	if r.dropName {
		r.metric = r.metric.DropReserved(schema.IsMetadataLabel)
	}
	return sets.add(r)
}

// joinRepeated joins the points of series with the same labels. Such series have no timestamp in
// common.
func joinRepeated(mat promql.Matrix) promql.Matrix {
	at := map[uint64]int{}
	var joined promql.Matrix
	for _, s := range mat {
		hash := s.Metric.Hash()
		i, ok := at[hash]
		if !ok {
			at[hash] = len(joined)
			joined = append(joined, s)
			continue
		}
		all := slices.Concat(joined[i].Floats, s.Floats)
		slices.SortFunc(all, func(a, b promql.FPoint) int { return int(max(-1, min(1, a.T-b.T))) })
		joined[i].Floats = all
		hists := slices.Concat(joined[i].Histograms, s.Histograms)
		slices.SortFunc(hists, func(a, b promql.HPoint) int { return int(max(-1, min(1, a.T-b.T))) })
		joined[i].Histograms = hists
	}
	return joined
}

// instant returns a vector or a scalar.
func (q *query) instant(ev *evaluation) (parser.Value, error) {
	vector := promql.Vector{}
	sets := ev.newLabelsets()
	err := q.root.eval(ev, func(r *row) error {
		if err := ev.dropDelayed(sets, r); err != nil {
			return err
		}
		if r.has.get(0) {
			s := promql.Sample{Metric: r.metric, T: ev.start, F: r.values[0], H: r.histogram(0)}
			if s.H != nil {
				s.F = 0
			}
			vector = append(vector, s)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if sets.dupStep >= 0 {
		ev.late = true
		return nil, errSameLabels
	}
	switch ev.stmt.Expr.Type() {
	case parser.ValueTypeString:
		return promql.String{T: ev.start, V: text(ev.stmt.Expr)}, nil
	case parser.ValueTypeScalar:
		return promql.Scalar{T: ev.start, V: vector[0].F}, nil
	}
	return vector, nil
}

// text returns the value of a string literal.
func text(e parser.Expr) string {
	switch e := e.(type) {
	case *parser.ParenExpr:
		return text(e.Expr)
	case *parser.StepInvariantExpr:
		return text(e.Expr)
	case *parser.StringLiteral:
		return e.Val
	}
	return ""
}

// slabPoints is the number of points that are allocated at a time.
const slabPoints = 1 << 14

var slabs = sync.Pool{New: func() any { return new([slabPoints]promql.FPoint) }}

// pointsPool allocates the points of a result, and reuses them after release.
type pointsPool struct {
	taken []*[slabPoints]promql.FPoint
	free  []promql.FPoint
}

// get returns an empty slice with a capacity of n.
func (p *pointsPool) get(n int) []promql.FPoint {
	if n > slabPoints/2 {
		return make([]promql.FPoint, 0, n)
	}
	if n > len(p.free) {
		slab := slabs.Get().(*[slabPoints]promql.FPoint)
		p.taken, p.free = append(p.taken, slab), slab[:]
	}
	points := p.free[:0:n]
	p.free = p.free[n:]
	return points
}

func (p *pointsPool) release() {
	if p == nil {
		return
	}
	for _, slab := range p.taken {
		slabs.Put(slab)
	}
	p.taken, p.free = nil, nil
}
