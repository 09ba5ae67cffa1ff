package backtest

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// History holds the samples that rules have written, in memory. It is not safe for concurrent writes.
type History struct {
	byLabels map[uint64][]*written
	byName   map[string][]*written
	samples  int
}

// written is one series of a History.
type written struct {
	promql.Series
	firstMS, lastMS int64 // of its samples
}

func newHistory() *History {
	return &History{byLabels: map[uint64][]*written{}, byName: map[string][]*written{}}
}

// write appends the samples of one evaluation, and marks series stale that the rule has no longer returned.
func (h *History) write(rule *rule, ms int64, vector []promql.Sample) error {
	returned := make(map[*written]struct{}, len(vector))
	for _, s := range vector {
		if w := h.of(s.Metric); h.append(w, ms, s.F, s.H) {
			returned[w] = struct{}{}
		}
	}
	for w := range rule.previous {
		if _, ok := returned[w]; !ok {
			h.append(w, ms, math.Float64frombits(value.StaleNaN), nil)
		}
	}
	rule.previous = returned
	if h.samples > writtenMax {
		return fmt.Errorf("%w: rules write more than %d samples: choose a shorter range", ErrLimit, writtenMax)
	}
	return nil
}

// of returns the series with these labels.
func (h *History) of(set labels.Labels) *written {
	key := set.Hash()
	for _, w := range h.byLabels[key] {
		if labels.Equal(w.Metric, set) {
			return w
		}
	}
	w := &written{Series: promql.Series{Metric: set}, firstMS: math.MaxInt64, lastMS: math.MinInt64}
	h.byLabels[key] = append(h.byLabels[key], w)
	name := set.Get(labels.MetricName)
	h.byName[name] = append(h.byName[name], w)
	return w
}

// append appends a sample as a TSDB would: it reports false if the series has another or a later sample already.
func (h *History) append(w *written, ms int64, v float64, fh *histogram.FloatHistogram) bool {
	if w.lastMS >= ms {
		n := len(w.Floats)
		return w.lastMS == ms && fh == nil && n > 0 && w.Floats[n-1].T == ms &&
			math.Float64bits(w.Floats[n-1].F) == math.Float64bits(v)
	}
	w.firstMS, w.lastMS = min(w.firstMS, ms), ms
	if fh == nil {
		w.Floats = append(w.Floats, promql.FPoint{T: ms, F: v})
	} else {
		w.Histograms = append(w.Histograms, promql.HPoint{T: ms, H: fh})
	}
	h.samples++
	return true
}

// find returns the series that match, with samples of a range, sorted by labels.
func (h *History) find(mint, maxt int64, matchers []*labels.Matcher) []storage.Series {
	var found []storage.Series
	for name, list := range h.byName {
		if !matchesName(name, matchers) {
			continue
		}
		for _, w := range list {
			if !labels.Selector(matchers).Matches(w.Metric) || w.firstMS > maxt || w.lastMS < mint {
				continue
			}
			found = append(found, promql.NewStorageSeries(promql.Series{Metric: w.Metric,
				Floats:     within(w.Floats, func(p promql.FPoint) int64 { return p.T }, mint, maxt),
				Histograms: within(w.Histograms, func(p promql.HPoint) int64 { return p.T }, mint, maxt)}))
		}
	}
	slices.SortFunc(found, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return found
}

// within returns the points of a range, inclusive.
func within[P any](points []P, timeOf func(P) int64, mint, maxt int64) []P {
	from := sort.Search(len(points), func(i int) bool { return timeOf(points[i]) >= mint })
	to := sort.Search(len(points), func(i int) bool { return timeOf(points[i]) > maxt })
	return points[from:max(from, to)]
}

func matchesName(name string, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if m.Name == labels.MetricName && !m.Matches(name) {
			return false
		}
	}
	return true
}

// Range returns the times of the first and the last sample; false if there is none.
func (h *History) Range() (mint, maxt int64, ok bool) {
	mint, maxt = math.MaxInt64, math.MinInt64
	for _, list := range h.byName {
		for _, w := range list {
			mint, maxt = min(mint, w.firstMS), max(maxt, w.lastMS)
		}
	}
	return mint, maxt, mint <= maxt
}

// ChunkQuerier implements storage.ChunkQueryable.
func (h *History) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	return historyQuerier{storage.NoopChunkedQuerier(), h, mint, maxt}, nil
}

type historyQuerier struct {
	storage.ChunkQuerier
	of         *History
	mint, maxt int64
}

// Select implements storage.ChunkQuerier.
func (q historyQuerier) Select(_ context.Context, _ bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return storage.NewSeriesSetToChunkSet(series.NewList(q.of.find(q.mint, q.maxt, matchers)))
}

// owned are the series that the rules of a file write.
type owned struct {
	names  map[string]bool // of recording rules
	alerts map[string]bool // names of alerting rules
}

// readBy reports whether an expression may read such series.
func (o owned) readBy(expr parser.Expr) (reads bool) {
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			for name := range o.names {
				reads = reads || matchesName(name, n.LabelMatchers)
			}
			reads = reads || len(o.alerts) > 0 &&
				(matchesName(alertsName, n.LabelMatchers) || matchesName(forStateName, n.LabelMatchers))
		case *parser.Call:
			reads = reads || n.Func.Name == "info" && o.names["target_info"]
		}
		return nil
	})
	return reads
}

// has reports whether a series is one of them.
func (o owned) has(set labels.Labels) bool {
	switch name := set.Get(labels.MetricName); name {
	case alertsName, forStateName:
		return o.alerts[set.Get(labels.AlertName)] || o.names[name]
	default:
		return o.names[name]
	}
}

// overlay is a storage with what the rules have written so far. The storage may have been written by the same rules:
// of series that the rules own, it is read only before the first evaluation.
type overlay struct {
	storage.Queryable
	written *History
	owned   owned
	firstMS int64
}

// Querier implements storage.Queryable.
func (o overlay) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := o.Queryable.Querier(mint, maxt)
	if err != nil {
		return nil, err
	}
	return overlayQuerier{q, o, mint, maxt}, nil
}

type overlayQuerier struct {
	storage.Querier
	of         overlay
	mint, maxt int64
}

// Select implements storage.Querier.
func (q overlayQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	return storage.NewMergeSeriesSet([]storage.SeriesSet{
		before{q.Querier.Select(ctx, true, hints, matchers...), q.of},
		series.NewList(q.of.written.find(q.mint, q.maxt, matchers)),
	}, 0, storage.ChainedSeriesMerge)
}

// before is a set of series whose owned series end before the first evaluation.
type before struct {
	storage.SeriesSet
	of overlay
}

// At implements storage.SeriesSet.
func (b before) At() storage.Series {
	s := b.SeriesSet.At()
	if !b.of.owned.has(s.Labels()) {
		return s
	}
	return &storage.SeriesEntry{Lset: s.Labels(), SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
		return &until{s.Iterator(nil), b.of.firstMS}
	}}
}

// until ends before a time.
type until struct {
	chunkenc.Iterator
	endMS int64
}

// Next implements chunkenc.Iterator.
func (u *until) Next() chunkenc.ValueType { return u.cut(u.Iterator.Next()) }

// milliseconds is a timestamp. Without this alias vet would report that Seek has another signature than io.Seeker.
type milliseconds = int64

// Seek implements chunkenc.Iterator.
func (u *until) Seek(ms milliseconds) chunkenc.ValueType { return u.cut(u.Iterator.Seek(ms)) }

func (u *until) cut(kind chunkenc.ValueType) chunkenc.ValueType {
	if kind != chunkenc.ValNone && u.AtT() >= u.endMS {
		return chunkenc.ValNone
	}
	return kind
}
