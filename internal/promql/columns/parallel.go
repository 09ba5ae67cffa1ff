package columns

import (
	"context"
	"errors"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
)

const (
	// seriesAlone is the number of series that a selection reads before it uses workers.
	seriesAlone = 32
	// stepsAlone is the number of steps, summed over its series, that a selection computes before it uses workers.
	stepsAlone = 1024
	// Limits of a batch: series, bytes of encoded samples, and steps of all series. A single series may exceed the bytes,
	// and a batch may have batchLeast series of any number of steps, because to pass it on takes as long as to read some
	// series; with more cores fewer, so that all batches of a selection have at most batchesLeast in this way. 256 KiB
	// stay in the CPU cache until they are decoded.
	batchSeries  = 64
	batchLeast   = 8
	batchesLeast = 64
	batchBytes   = 256 << 10
	batchSteps   = 32 << 10
)

// parallel reports whether several goroutines may compute the series of a selection. Two cases need a single goroutine:
// a query with statistics of each step, because finding a window also counts these statistics; and a query with more
// steps than a batch may have.
func (ev *evaluation) parallel() bool {
	return ev.engine.opts.Workers.Any() && !ev.perStep && ev.steps <= batchSteps
}

// aloneEnough reports whether a selection has read enough series on the goroutine of the query, and uses workers from
// now on. A series of an instant query is computed in a few microseconds, which is less than the cost of passing it to
// a worker.
func (ev *evaluation) aloneEnough(series int) bool {
	return series >= ev.engine.alone && series*ev.steps >= ev.engine.stepsAlone
}

// batchSource is a set whose series can be computed by several goroutines: a rawSet or a floatsSet.
type batchSource interface {
	next() bool
	// keep appends the current series to a batch.
	keep(b *seriesBatch)
}

// seriesBatch holds consecutive series of a selection.
type seriesBatch struct {
	labels  []byte          // encoded sets, one after the other, of the series without metrics
	metrics []labels.Labels // by series; empty: encoded, unless the series has no labels
	chunks  []series.Chunk
	data    []byte // of the chunks that are not mapped
	bytes   int    // of all chunks
	ends    []batchEnds
	floats  []series.Floats // the series of a floatsSet, which need no copy: the fields above are unused
	size    int             // number of series
	items   []item          // results, by series

	compute func(*item, decoded)
	cover   *cover
	of      decoded // the series being computed
	builder labels.ScratchBuilder
	lent    bool // the labels of items are valid only until the next call of read
}

// batchEnds are the ends of a series in seriesBatch.labels and chunks.
type batchEnds struct{ labels, chunks int }

// read fills the batch with series of a set until the batch is full, the set ends or the query ends. It returns
// false if the batch has no series.
func (b *seriesBatch) read(ev *evaluation, set batchSource) bool {
	b.labels, b.metrics, b.chunks, b.data, b.ends, b.floats, b.size, b.bytes = b.labels[:0], b.metrics[:0], b.chunks[:0],
		b.data[:0], b.ends[:0], b.floats[:0], 0, 0
	most := min(ev.engine.together, max(1, batchSteps/ev.steps, min(batchLeast, batchesLeast/ev.engine.opts.Workers.batches())))
	for b.size < most && b.bytes < batchBytes && ev.ctx.Err() == nil && set.next() {
		set.keep(b)
		b.size++
	}
	return b.size > 0
}

// keep copies the current series, which is valid only until next. Mapped chunks are not copied.
func (s *rawSet) keep(b *seriesBatch) {
	metric, ok := s.decoded()
	if b.metrics = append(b.metrics, metric); !ok {
		b.labels = append(b.labels, s.set.Labels()...)
	}
	for _, c := range s.set.Chunks() {
		b.bytes += len(c.Data)
		if !c.Mapped {
			from := len(b.data)
			b.data = append(b.data, c.Data...)
			c.Data = b.data[from:]
		}
		b.chunks = append(b.chunks, c)
	}
	b.ends = append(b.ends, batchEnds{len(b.labels), len(b.chunks)})
}

func (s *floatsSet) keep(b *seriesBatch) { b.floats = append(b.floats, s.floats.AtFloats()) }

// at decodes series i: its labels into the item, its points into b.of.
func (b *seriesBatch) at(i int, it *item, mint, maxt int64) (err error) {
	b.of.reset()
	if len(b.floats) > 0 {
		it.metric = b.floats[i].Labels()
		return appendFloats(&b.of, b.floats[i], b.cover, mint, maxt)
	}
	var from batchEnds
	if i > 0 {
		from = b.ends[i-1]
	}
	builder := &b.builder
	if b.lent {
		builder = &it.builder
	}
	if it.metric = b.metrics[i]; from.labels == b.ends[i].labels {
		return b.cover.decode(&b.of, b.chunks[from.chunks:b.ends[i].chunks], mint, maxt)
	}
	if it.metric, err = metricOf(b.labels[from.labels:b.ends[i].labels], builder, b.lent); err != nil {
		return err
	}
	return b.cover.decode(&b.of, b.chunks[from.chunks:b.ends[i].chunks], mint, maxt)
}

// computeAll computes the items of all series, up to the first that has an error. A series with
// histograms is not computed here: Consume does it.
func (b *seriesBatch) computeAll(ev *evaluation, mint, maxt int64) {
	for i := range b.size {
		if i == len(b.items) {
			b.items = append(b.items, item{row: newRow(ev.steps)})
		}
		it := &b.items[i]
		it.reset()
		if it.unread = contextError(ev.ctx); it.unread != nil {
			return
		}
		if it.unread = b.at(i, it, mint, maxt); errors.Is(it.unread, errHistograms) {
			continue
		} else if it.unread != nil {
			return
		}
		of := b.of.within(mint, maxt)
		if it.samples = len(of.points); it.samples > 0 {
			b.compute(it, of)
		}
	}
}

// eachParallel does work for the rest of a set, on this goroutine and on free workers.
func (s *selector) eachParallel(ev *evaluation, set batchSource, cover *cover, work perSeries) error {
	err := Run(ev.engine.opts.Workers, Stage[*seriesBatch]{
		New: func() *seriesBatch {
			return &seriesBatch{compute: work.compute(), cover: cover, builder: labels.NewScratchBuilder(16), lent: s.lent}
		},
		Read:    func(b *seriesBatch) bool { return b.read(ev, set) },
		Compute: func(b *seriesBatch) { b.computeAll(ev, s.hints.Start, s.hints.End) },
		Consume: func(b *seriesBatch) error {
			for i := range b.size {
				it := &b.items[i]
				if err := contextError(ev.ctx); err != nil {
					return err
				}
				if errors.Is(it.unread, errHistograms) {
					if err := work.histograms(&it.row, b.floats[i]); err != nil {
						return err
					}
					continue
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
		err = contextError(ev.ctx) // Read returns false, too, if the context has ended
	}
	return err
}

// operands evaluates both operands of an operator and returns their rows. If possible, a worker evaluates the right
// operand. The counts and the returned error are the same as if the operands were evaluated one after the other. rowsOf
// is collect or borrow.
func (ev *evaluation) operands(a, b node, counts *stepCounts,
	rowsOf func(node, *stepCounts) ([]row, error)) (left, right []row, err error) {
	ahead := ev.fork(b)
	if ahead != nil {
		defer ahead.end()
	}
	if left, err = rowsOf(a, counts); err != nil {
		return nil, nil, err
	}
	if ahead == nil {
		right, err = rowsOf(b, counts)
		return left, right, err
	}
	if err := ev.join(ahead); err != nil {
		return nil, nil, err
	}
	for i := range ahead.rows {
		counts.read(&ahead.rows[i])
	}
	return left, ahead.rows, nil
}

// branch is the evaluation of a node by a worker, with counts of its own.
type branch struct {
	own    evaluation
	cancel context.CancelFunc
	fork   *Fork
	rows   []row
	err    error
}

// fork starts to evaluate a node on a worker. It returns nil if no worker is free, or if the node cannot be evaluated
// concurrently with other nodes.
func (ev *evaluation) fork(n node) *branch {
	if from, ok := ev.source.(rawSource); !ok || !from.concurrent || !independent(n) {
		return nil
	}
	b := &branch{own: ev.child()}
	own := &b.own
	own.ctx, b.cancel = context.WithCancel(ev.ctx)
	if b.fork = ev.engine.opts.Workers.Fork(func() { b.rows, b.err = own.collect(n, nil) }); b.fork == nil {
		b.cancel()
		return nil
	}
	return b
}

// join waits for a branch, and adds its counts and annotations to ev. It returns the error of the branch.
func (ev *evaluation) join(b *branch) error {
	if p := b.fork.Wait(); p != nil {
		panic(p)
	}
	// The limit of samples comes before b.err: with the samples of the left operand, an evaluation without workers would
	// have reached the limit first.
	if err := ev.use(&sharedResult{acct: b.own.acct, samples: b.own.samples, repeats: b.own.repeats,
		warnings: b.own.warnings}); err != nil {
		return err
	}
	return b.err
}

// end cancels a branch, joined or not, and waits for it.
func (b *branch) end() {
	b.cancel()
	b.fork.Wait()
}

// independent reports whether a branch can evaluate a node. Such a node reads encoded chunks only, and uses no state
// that branches must not share.
func independent(n node) bool {
	switch n := n.(type) {
	case numberNode, timeNode, piNode, *selector, timestampNode, smoothedNode:
		return true
	case *windowNode:
		return independentAll(n.scalars) && (n.subquery == nil || independent(n.subquery.child))
	case *pointwiseNode:
		return independent(n.child) && independentAll(n.scalars)
	case *scalarsNode:
		return independent(n.a) && independent(n.b)
	case *vectorScalarNode:
		return independent(n.vector) && independent(n.scalar)
	case *matchNode:
		return independent(n.a) && independent(n.b)
	case *setNode:
		return independent(n.a) && independent(n.b)
	case *aggregateNode:
		return independent(n.child)
	case *quantileNode:
		return independent(n.child) && independent(n.param)
	case *topNode:
		return independent(n.child) && independent(n.param)
	case negateNode:
		return independent(n.child)
	case onceNode:
		return independent(n.child)
	case scalarNode:
		return independent(n.child)
	case vectorNode:
		return independent(n.child)
	}
	return false
}

func independentAll(nodes []node) bool {
	return !slices.ContainsFunc(nodes, func(n node) bool { return !independent(n) })
}
