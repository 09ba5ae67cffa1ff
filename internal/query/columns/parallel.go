package columns

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/query/columns/ordered"
	"github.com/ferula-io/ferula/internal/series"
)

const (
	// seriesAlone is the number of series that a selection reads before it uses workers.
	seriesAlone = 32
	// A batch has no more series than these, nor more encoded samples and steps unless it has
	// one series only. 256 KiB stay in the cache of a core until they are decoded.
	batchSeries = 64
	batchBytes  = 256 << 10
	batchSteps  = 32 << 10
)

// parallel reports whether series may be computed on several goroutines. Statistics of each
// step are counted where the windows are found.
func (ev *evaluation) parallel() bool {
	return ev.engine.opts.Workers.Any() && !ev.perStep && ev.steps <= batchSteps
}

// seriesBatch is some series of a selection, in their order.
type seriesBatch struct {
	labels []byte // encoded sets, one after the other
	chunks []series.Chunk
	data   []byte // of the chunks
	ends   []batchEnds
	items  []item

	compute func(*item, []promql.FPoint)
	points  []promql.FPoint
	builder labels.ScratchBuilder
}

// batchEnds are the ends of a series' labels and chunks.
type batchEnds struct{ labels, chunks int }

// read copies series from a set until the batch is full or the set ends, which it does once.
func (b *seriesBatch) read(ev *evaluation, set *rawSet) bool {
	b.labels, b.chunks, b.data, b.ends = b.labels[:0], b.chunks[:0], b.data[:0], b.ends[:0]
	most := min(ev.engine.together, max(1, batchSteps/ev.steps))
	for len(b.ends) < most && len(b.data) < batchBytes && ev.ctx.Err() == nil && set.next() {
		b.labels = append(b.labels, set.set.Labels()...)
		for _, c := range set.set.Chunks() {
			from := len(b.data)
			b.data = append(b.data, c.Data...)
			c.Data = b.data[from:]
			b.chunks = append(b.chunks, c)
		}
		b.ends = append(b.ends, batchEnds{len(b.labels), len(b.chunks)})
	}
	return len(b.ends) > 0
}

// computeAll computes the items of all series, up to the first that has an error.
func (b *seriesBatch) computeAll(ev *evaluation, mint, maxt int64) {
	labelsFrom, chunksFrom := 0, 0
	for i, end := range b.ends {
		if i == len(b.items) {
			b.items = append(b.items, item{row: newRow(ev.steps)})
		}
		it := &b.items[i]
		it.reset()
		if it.unread = contextError(ev.ctx); it.unread != nil {
			return
		}
		if it.metric, it.unread = labelenc.Labels(b.labels[labelsFrom:end.labels], &b.builder); it.unread != nil {
			return
		}
		if b.points, it.unread = appendPoints(b.points[:0], b.chunks[chunksFrom:end.chunks], mint, maxt); it.unread != nil {
			return
		}
		points := within(b.points, mint, maxt)
		if it.samples = len(points); it.samples > 0 {
			b.compute(it, points)
		}
		labelsFrom, chunksFrom = end.labels, end.chunks
	}
}

// eachParallel does work for the rest of a set, with the help of the workers that are free.
func (s *selector) eachParallel(ev *evaluation, set *rawSet, work perSeries) error {
	err := ordered.Run(ev.engine.opts.Workers, ordered.Stage[*seriesBatch]{
		New: func() *seriesBatch {
			return &seriesBatch{compute: work.compute(), builder: labels.NewScratchBuilder(16)}
		},
		Read:    func(b *seriesBatch) bool { return b.read(ev, set) },
		Compute: func(b *seriesBatch) { b.computeAll(ev, s.hints.Start, s.hints.End) },
		Consume: func(b *seriesBatch) error {
			for i := range b.ends {
				it := &b.items[i]
				if err := contextError(ev.ctx); err != nil {
					return err
				}
				if it.unread != nil {
					return it.unread
				}
				if it.samples == 0 {
					continue
				}
				if err := work.apply(it); err != nil {
					return err
				}
			}
			return nil
		},
	})
	if err == nil {
		err = contextError(ev.ctx) // it may have ended the reading
	}
	return err
}
