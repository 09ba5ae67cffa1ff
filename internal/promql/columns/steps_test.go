package columns_test

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/internal/series"
)

// onlySteps is a storage that returns, for a selection at steps, no sample that the selection does not need.
type onlySteps struct {
	storage.Queryable
	selections *int // at steps
}

// Querier implements storage.Queryable.
func (o onlySteps) Querier(mint, maxt int64) (storage.Querier, error) {
	q, err := o.Queryable.Querier(mint, maxt)
	return stepsQuerier{q, o.selections}, err
}

type stepsQuerier struct {
	storage.Querier
	selections *int
}

var _ series.FloatsSelector = stepsQuerier{}

// SelectFloats implements series.FloatsSelector.
func (q stepsQuerier) SelectFloats(ctx context.Context, need series.Needs, hints *storage.SelectHints, matchers ...*labels.Matcher) series.FloatsSet {
	set := q.Select(ctx, false, hints, matchers...)
	if need.Steps == nil {
		return iteratedSet{set}
	}
	*q.selections++
	return iteratedSet{&stepsSet{set, *need.Steps}}
}

// iteratedSet is a series.FloatsSet whose floats are read through iterators.
type iteratedSet struct{ storage.SeriesSet }

// AtFloats implements series.FloatsSet.
func (s iteratedSet) AtFloats() series.Floats { return iterated{s.At()} }

type iterated struct{ storage.Series }

// AppendFloats implements series.Floats.
func (s iterated) AppendFloats(to []promql.FPoint, mint, maxt int64) ([]promql.FPoint, bool, error) {
	it := s.Iterator(nil)
	for kind := it.Seek(mint); kind != chunkenc.ValNone && it.AtT() <= maxt; kind = it.Next() {
		if kind != chunkenc.ValFloat {
			return to, false, nil
		}
		t, f := it.At()
		to = append(to, promql.FPoint{T: t, F: f})
	}
	return to, true, it.Err()
}

// Summarized implements series.Floats.
func (iterated) Summarized() []series.Chunk { return nil }

type stepsSet struct {
	storage.SeriesSet
	steps series.Steps
}

// At implements storage.SeriesSet.
func (s *stepsSet) At() storage.Series {
	from := s.SeriesSet.At()
	var all []chunks.Sample
	it := from.Iterator(nil)
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		one := sample{t: it.AtT()}
		switch kind {
		case chunkenc.ValFloat:
			_, one.f = it.At()
		case chunkenc.ValHistogram:
			_, one.h = it.AtHistogram(nil)
		default:
			_, one.fh = it.AtFloatHistogram(nil)
		}
		all = append(all, one)
	}
	var needed []chunks.Sample
	for i, one := range all {
		step := s.steps.NotBefore(one.T())
		if step <= s.steps.LastMS && (i+1 == len(all) || step < all[i+1].T()) {
			needed = append(needed, one)
		}
	}
	return storage.NewListSeries(from.Labels(), needed)
}

// sample implements chunks.Sample.
type sample struct {
	t  int64
	f  float64
	h  *histogram.Histogram
	fh *histogram.FloatHistogram
}

func (s sample) ST() int64               { return 0 }
func (s sample) T() int64                { return s.t }
func (s sample) F() float64              { return s.f }
func (s sample) H() *histogram.Histogram { return s.h }
func (s sample) Copy() chunks.Sample     { return s }

// FH returns a copy, because the engine may change it.
func (s sample) FH() *histogram.FloatHistogram {
	if s.h != nil {
		return s.h.ToFloat(nil)
	}
	return s.fh.Copy()
}

func (s sample) Type() chunkenc.ValueType {
	switch {
	case s.h != nil:
		return chunkenc.ValHistogram
	case s.fh != nil:
		return chunkenc.ValFloatHistogram
	}
	return chunkenc.ValFloat
}

// A selection at steps needs the last sample at or before each step, and no other.
func TestEngine_NeedsOnlyTheLastSamplesOfASelectionAtSteps(t *testing.T) {
	store := newWorld(t, false)
	selections := 0
	from := onlySteps{samplesOnly{store}, &selections}
	eachSpan(slices.Concat(known, histograms, partly), func(r request) {
		if by := compare(t, r, from, store, 50_000_000); by != "columns" {
			t.Errorf("%s evaluated by %q", r, by)
		}
	})
	if selections == 0 {
		t.Error("no selection was at steps")
	}
}

// Selectors of which more samples count are not selected at steps.
func TestEngine_SelectsAtSteps(t *testing.T) {
	store := newWorld(t, false)
	for query, want := range map[string]int{
		`g`: 1, `sum by (ns) (g)`: 1, `g offset 7m`: 1, `timestamp(g)`: 1, `g + c_total`: 2, `g + rate(c_total[5m])`: 1,
		`rate(c_total[5m])`: 0, `max_over_time(g[10m:1m])`: 0, `g @ 1767240000`: 0, `sum(g @ end())`: 0,
	} {
		got := 0
		r := request{query: query, start: spans[3].start, end: spans[3].end, step: spans[3].step}
		compare(t, r, onlySteps{samplesOnly{store}, &got}, store, 50_000_000)
		if got != want {
			t.Errorf("%s: %d selections at steps, want %d", query, got, want)
		}
	}
}
