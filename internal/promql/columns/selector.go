package columns

import (
	"context"
	"errors"
	"math/bits"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
)

// selector selects series from the storage.
type selector struct {
	vs    *parser.VectorSelector
	hints *storage.SelectHints
	steps *series.Steps // the only times whose last samples are needed; nil: all samples are needed
	lent  bool          // the consumer of the rows keeps none of their labels
	// window is evaluated at the steps of the query; nil: the selector is of something else. It is set in
	// compiler.selectors only.
	window *windowNode
}

// offset returns how many ms before a step the selector selects samples: the sum of the offset
// modifier and, with an @ modifier, the time from @ to the step.
func (s *selector) offset(ev *evaluation) int64 {
	offset := s.vs.OriginalOffset.Milliseconds()
	if s.vs.Timestamp != nil {
		offset += ev.start - *s.vs.Timestamp
	}
	return offset
}

// times returns the time at which an instant selector selects the samples of the first step, and the time between two
// steps. timestamp() of a selector with @ selects at @, at all steps, without the selector's offset.
func (s *selector) times(ev *evaluation, timestamps bool) (first, interval int64) {
	if timestamps && s.vs.Timestamp != nil {
		return *s.vs.Timestamp, 0
	}
	return ev.start - s.offset(ev), ev.interval
}

// perSeries has the functions that process the series of a selection.
type perSeries struct {
	// The consumer uses the samples in the window of each step, or only in the first window if all are the same. A window
	// ends offset ms before its step.
	use             use
	rangeMS, offset int64
	fixed           bool
	filter          *filter // nil: none
	// compute returns a function that computes an item from the points of its series, and retains no points. The returned
	// functions may run at the same time, each on its own goroutine.
	compute func() func(it *item, of decoded)
	// apply uses a computed item. It is called in the order of the series. The item is valid until apply returns.
	apply func(it *item) error
	// histograms replaces compute and apply for a series that has histograms.
	histograms func(r *row, from storage.Series) error
}

// item is the result of a computation from the points of one series.
type item struct {
	row
	unread      error // why the series could not be read
	samples     int   // samples of the series in the selected range
	err         error // of the computation
	warnings    annotations.Annotations
	total, read int64 // for the statistics: total counts a sample in each window that has it, read counts it once
	most, held  int   // samples of the greatest and of the last window

	builder labels.ScratchBuilder // of labels that are not copied; see lend
}

// reset removes the result of another series.
func (it *item) reset() {
	it.clear()
	*it = item{row: it.row, builder: it.builder}
}

// each processes each series of the selection.
func (s *selector) each(ev *evaluation, work perSeries) error {
	if err := contextError(ev.ctx); err != nil { // a query may have very many selections, all empty
		return err
	}
	cover := s.cover(ev, work)
	set := ev.source.sel(ev.ctx, s, cover)
	shared, _ := set.(batchSource) // nil: its series are valid on one goroutine only
	it, compute := &item{row: newRow(ev.steps)}, work.compute()
	var of decoded
	for n := 0; ; n++ {
		if shared != nil && ev.aloneEnough(n) && ev.parallel() {
			if err := s.eachParallel(ev, shared, cover, work); err != nil {
				return err
			}
			break
		}
		if !set.next() {
			break
		}
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		var err error
		it.reset()
		if it.metric, err = set.labels(); err != nil {
			return err
		}
		of.reset()
		err = set.points(&of, s.hints.Start, s.hints.End)
		// Points outside the range would change results: if Prometheus' engine evaluates a selector with @ at each step, it
		// looks at the later steps for samples after the timestamp of @, and its queriers return none.
		inside := of.within(s.hints.Start, s.hints.End)
		switch {
		case errors.Is(err, errHistograms):
			err = work.histograms(&it.row, set.series())
		case err == nil && len(inside.points) > 0:
			compute(it, inside)
			err = work.apply(it)
		}
		if err != nil {
			return err
		}
	}
	if err := set.err(); err != nil {
		return err
	}
	ev.warnings.Merge(set.warnings())
	return nil
}

// contextError returns Prometheus' error for a query that ended before its result.
func contextError(ctx context.Context) error {
	switch err := ctx.Err(); err {
	case nil:
		return nil
	case context.Canceled:
		return promql.ErrQueryCanceled("expression evaluation")
	case context.DeadlineExceeded:
		return promql.ErrQueryTimeout("expression evaluation")
	default:
		return err
	}
}

// checkEvery is the number of series of a loop between two checks of the context. A loop processes so many series in
// some tenths of a millisecond.
const checkEvery = 256

// check returns an error if the query has ended, once in checkEvery calls. i counts the calls.
func (ev *evaluation) check(i int) error {
	if i%checkEvery != 0 {
		return nil
	}
	return contextError(ev.ctx)
}

// eval implements node: an instant selector.
func (s *selector) eval(ev *evaluation, sink func(*row) error) error {
	return filteredNode{s, nil}.eval(ev, sink)
}

// instant calls do with each row of an instant selector and the number of samples of the row. The values of a row
// are the values of the samples or, with timestamps, their timestamps in seconds. of may be nil.
func (s *selector) instant(ev *evaluation, timestamps bool, of *filter, do func(r *row, n int) error) error {
	first, interval := s.times(ev, timestamps)
	return s.each(ev, perSeries{
		use: ofLast, rangeMS: ev.lookback, offset: ev.start - first, fixed: interval == 0, filter: of,
		compute: func() func(*item, decoded) {
			return func(it *item, from decoded) { s.last(ev, it, from, timestamps, of) }
		},
		apply: func(it *item) error {
			if it.most == 0 {
				return nil
			}
			ev.countRead(&it.row, it.most)
			return do(&it.row, it.most)
		},
		histograms: func(r *row, from storage.Series) error {
			if err := s.histograms(ev, r, from, timestamps); err != nil || r.has.empty() {
				return err
			}
			n := r.size()
			ev.countRead(r, n)
			return do(r, n)
		},
	})
}

// last sets the value of each step in the row of an item to the last sample at or before the step, unless the sample is
// stale or older than the lookback delta. It sets it.most to the number of steps that have a value, and with a filter
// it.kept to those whose values it keeps: only these are set.
func (s *selector) last(ev *evaluation, it *item, from decoded, timestamps bool, of *filter) {
	points, next, by := from.points, 0, 0 // points[next] is the first point after the step, by points after the last one
	at, interval := s.times(ev, timestamps)
	lookback, skipped := ev.lookback, from.stretch()
	if it.filtered = of != nil; it.filtered && it.kept == nil {
		it.kept = newBitmap(ev.steps)
		if of.leadMS > 0 {
			it.notRead = newBitmap(ev.steps)
		}
	}
	for word := range it.has {
		var has, kept, unread uint64
		values := it.values[word*64 : min(word*64+64, len(it.values))]
		for i := range values {
			was := next
			next = after(points, next, by, at)
			by = next - was
			for skipped < next {
				from.stretches = from.stretches[1:]
				skipped = from.stretch()
			}
			if skipped == next { // of whose samples the filter keeps none, or all
				steps := uint64(1) << i
				whole := i == 0 && points[next].T > at+63*interval
				if whole {
					steps = it.has.word(word, len(it.values))
				}
				has |= steps
				if from.stretches[0].kept {
					kept |= steps
					unread |= steps
				}
				if whole {
					at += 64 * interval
					break
				}
			} else if next > 0 && points[next-1].T > at-lookback && !value.IsStaleNaN(points[next-1].F) {
				f := points[next-1].F
				has |= 1 << i
				if of == nil || of.keeps(f) {
					kept |= 1 << i
					values[i] = f
				}
				if timestamps {
					values[i] = float64(points[next-1].T) / 1000
				}
			}
			at += interval
		}
		it.has[word] = has
		if of != nil {
			it.kept[word] = kept
		}
		if it.notRead != nil {
			it.notRead[word] = unread
		}
		it.most += bits.OnesCount64(has)
	}
}

// countRead counts the samples of an instant selector, n in total.
func (ev *evaluation) countRead(r *row, n int) {
	if !ev.perStep {
		ev.samples.TotalSamples += int64(n)
		ev.samples.SamplesRead += int64(n)
		return
	}
	for i := range ev.steps {
		if r.has.get(i) {
			size := int64(1)
			if h := r.histogram(i); h != nil {
				size = int64(pointSize(h))
			}
			ev.samples.IncrementSamplesAtStep(i, size)
			ev.samples.IncrementSamplesReadAtStep(i, size)
		}
	}
}
