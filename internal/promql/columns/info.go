package columns

import (
	"context"
	"math"
	"slices"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/series"
)

// infoNode is info(). This engine evaluates the first argument. Prometheus' engine then evaluates info() of a selector
// that has the resulting series: it selects the info series and adds their labels.
type infoNode struct {
	call  *parser.Call
	child node
	given *parser.VectorSelector // replaces the first argument
}

func (c *compiler) info(e *parser.Call) (node, bool) {
	if c.opts.DelayedNameRemoval {
		return c.unknown("function_info_with_delayed_name_removal") // given loses dropName
	}
	child, ok := c.compile(e.Args[0])
	at := infoTime(e.Args[0])
	return &infoNode{e, child, &parser.VectorSelector{
		LabelMatchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, labels.MetricName, "given")},
		Timestamp:     at.at, OriginalOffset: time.Duration(at.offsetMS) * time.Millisecond,
	}}, ok
}

func (n *infoNode) eval(ev *evaluation, sink func(*row) error) error {
	rows, err := ev.collect(n.child, nil)
	if err != nil {
		return err
	}
	from, err := ev.samplesQuerier()
	if err != nil {
		return err
	}
	offset := n.given.OriginalOffset.Milliseconds()
	if n.given.Timestamp != nil {
		offset += ev.start - *n.given.Timestamp
	}
	given, counted := givenSeries{Queryable: from, matcher: n.given.LabelMatchers[0]}, make([]int64, ev.steps)
	for i := range rows {
		given.series = append(given.series, promql.NewStorageSeries(ev.givenSeries(&rows[i], offset, counted)))
	}
	call := *n.call
	call.Args = slices.Clone(n.call.Args)
	call.Args[0] = n.given
	return (&foreignNode{&call, "function_info"}).evalFrom(ev, given, counted, sink)
}

// givenSeries returns a row as samples that a selector with an offset selects at the steps of the row. A step without
// value has a stale marker, so that no older sample is selected. It adds the sizes of the samples to counted.
func (ev *evaluation) givenSeries(r *row, offset int64, counted []int64) promql.Series {
	s, ts := promql.Series{Metric: r.metric}, ev.start-offset
	for i, f := range r.values {
		h := r.histogram(i)
		switch {
		case !r.has.get(i):
			s.Floats = append(s.Floats, promql.FPoint{T: ts, F: math.Float64frombits(value.StaleNaN)})
		case h != nil:
			s.Histograms = append(s.Histograms, promql.HPoint{T: ts, H: h})
			counted[i] += int64(pointSize(h))
		default:
			s.Floats = append(s.Floats, promql.FPoint{T: ts, F: f})
			counted[i]++
		}
		ts += ev.interval
	}
	return s
}

// givenSeries is a storage that also has series which only one matcher selects.
type givenSeries struct {
	storage.Queryable
	matcher *labels.Matcher
	series  []storage.Series
}

// Querier implements storage.Queryable.
func (g givenSeries) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := g.Queryable.Querier(mint, maxt)
	return givenQuerier{q, g}, err
}

type givenQuerier struct {
	storage.Querier
	given givenSeries
}

// Select implements storage.Querier.
func (g givenQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	if len(matchers) == 1 && matchers[0] == g.given.matcher {
		return series.NewList(g.given.series)
	}
	return g.Querier.Select(ctx, sorted, hints, matchers...)
}

// reference is the time at which a selector selects: offsetMS before a step or, unless at is nil, before at.
type reference struct {
	at       *int64
	offsetMS int64
}

func (r reference) equal(s reference) bool {
	if r.at == nil || s.at == nil {
		return r.at == s.at && r.offsetMS == s.offsetMS
	}
	return *r.at-r.offsetMS == *s.at-s.offsetMS
}

// infoTime returns the time at which info() selects info series for an argument: the time of the argument's selectors
// if all of them have the same time and all vectors come from selectors, otherwise the step.
func infoTime(e parser.Expr) reference {
	var all []reference
	uniform := true
	var find func(e parser.Node, subqueries []*parser.SubqueryExpr) bool // reports whether e has a selector
	find = func(n parser.Node, subqueries []*parser.SubqueryExpr) (found bool) {
		e, ok := n.(parser.Expr)
		if !ok || e.Type() != parser.ValueTypeVector && e.Type() != parser.ValueTypeMatrix {
			return false
		}
		switch e := e.(type) {
		case *parser.VectorSelector:
			r := reference{e.Timestamp, e.OriginalOffset.Milliseconds()}
			for _, s := range slices.Backward(subqueries) {
				if r.at == nil {
					r.at, r.offsetMS = s.Timestamp, r.offsetMS+s.OriginalOffset.Milliseconds()
				}
			}
			all = append(all, r)
			uniform = uniform && r.equal(all[0])
			return true
		case *parser.Call:
			if e.Func.Name == "info" {
				return find(e.Args[0], subqueries)
			}
		case *parser.SubqueryExpr:
			subqueries = append(slices.Clip(subqueries), e)
		}
		for child := range parser.ChildrenIter(e) {
			found = find(child, subqueries) || found
		}
		uniform = uniform && found
		return found
	}
	if !find(e, nil) || !uniform {
		return reference{}
	}
	return all[0]
}
