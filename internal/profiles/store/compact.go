package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// fanout is the number of blocks of one level that are compacted into one block of the next.
const fanout = 4

// Compact compacts blocks of every tenant until no tenant has fanout adjacent blocks of one level
// that can be compacted.
func (s *Store) Compact(ctx context.Context) error {
	return s.all(func(t *tenant) error { return t.compact(ctx) })
}

func (t *tenant) compact(ctx context.Context) error {
	t.flushMu.Lock()
	defer t.flushMu.Unlock()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		run := t.pick()
		if run == nil {
			return nil
		}
		err := t.compactRun(ctx, run)
		if ctx.Err() == nil {
			t.compactRetry.result(t.store.now(), err)
		}
		if err != nil {
			t.store.metrics.compactFail.Inc()
			for _, b := range run { // any of them may be corrupt: none is compacted again
				b.excluded = b.excluded || errors.Is(err, profiles.ErrCorrupt)
			}
			return fmt.Errorf("profiles of tenant %s: compact blocks: %w", t.name, err)
		}
		t.store.metrics.compactions.Inc()
	}
}

// pick returns fanout adjacent blocks of one level whose total size and time range are within the
// limits; nil if there are none. It leaves out blocks that a block in the bucket has replaced. If
// such a block was compacted with others, the result would be shipped, and two blocks of the bucket
// would have the same rows.
func (t *tenant) pick() []*heldBlock {
	t.mu.RLock()
	defer t.mu.RUnlock()
	byLevel := map[uint64][]*heldBlock{}
	for _, b := range t.blocks {
		if b.excluded {
			continue
		}
		level := b.Meta().Level
		run := append(byLevel[level], b)
		var size, to int64
		from, _ := run[0].Bounds() // the earliest start: blocks are sorted by start
		for _, r := range run {
			_, end := r.Bounds()
			size, to = size+r.Bytes(), max(to, end)
		}
		switch {
		case size > t.store.opts.BlockBytes || to-from > int64(t.store.opts.blockSpan):
			run = []*heldBlock{b}
		case len(run) == fanout:
			run = slices.DeleteFunc(run, func(b *heldBlock) bool { return t.store.remotes.replaced(t.name, b) })
			if len(run) == fanout {
				return run
			}
		}
		byLevel[level] = run
	}
	return nil
}

// compactRun compacts blocks into one, which replaces them.
func (t *tenant) compactRun(ctx context.Context, run []*heldBlock) error {
	readers := make([]*block.Reader, len(run))
	for i, b := range run {
		readers[i] = b.Reader
	}
	// The output of a failed compaction may be on disk. A retry with the same blocks replaces it.
	if t.compacting.id != (ulid.ULID{}) && !slices.Equal(t.compacting.run, run) {
		if err := t.discard(t.compacting.id); err != nil {
			return err
		}
		t.compacting = failedCompaction{}
	}
	if t.compacting.id == (ulid.ULID{}) {
		t.compacting = failedCompaction{id: ulid.MustNewDefault(t.store.now()), run: run}
	}
	compacted, err := t.writeBlock(t.compacting.id, func(w *block.Writer) (*block.Content, error) {
		return mergeBlocks(ctx, w, readers)
	})
	if err != nil {
		return err
	}
	t.compacting = failedCompaction{}
	t.replace(run, compacted)
	return nil
}

// compactedMeta returns the level and the parents of a block that is compacted from the blocks of run. The parents of
// the new block are these blocks and the parents of these blocks: the bucket may have parents of a block that is never
// uploaded itself.
func compactedMeta(run []*block.Reader) (meta block.Meta) {
	known := map[[16]byte]bool{}
	for _, b := range run {
		m := b.Meta()
		meta.Level = max(meta.Level, m.Level+1)
		for _, parent := range append([][16]byte{m.ULID}, m.Parents...) {
			if !known[parent] {
				known[parent] = true
				meta.Parents = append(meta.Parents, parent)
			}
		}
	}
	return meta
}

// Merge writes to dir, an empty directory, a block with the rows of the blocks of run, and syncs it. A
// row that several blocks have is written once. The new block has the ULID id. Its parents are the
// blocks of run and the parents of these blocks.
func Merge(ctx context.Context, dir string, id ulid.ULID, run []*block.Reader) error {
	w, err := block.NewWriter(files.Disk{}, dir)
	if err != nil {
		return err
	}
	defer w.Abort()
	content, err := mergeBlocks(ctx, w, run)
	if err != nil {
		return err
	}
	content.Meta.ULID = id
	return w.Finish(content)
}

// replace removes the old blocks from the tenant and from the disk, and adds the block by in their
// place; nil: no block is added. The mapping of an old block stays until its last reader releases it.
func (t *tenant) replace(old []*heldBlock, by *heldBlock) {
	t.mu.Lock()
	blocks := slices.DeleteFunc(slices.Clone(t.blocks), func(b *heldBlock) bool { return slices.Contains(old, b) })
	if by != nil {
		blocks = append(blocks, by)
	}
	slices.SortFunc(blocks, byAge)
	t.blocks = blocks
	if by != nil {
		t.writing = ulid.ULID{}
	}
	t.mu.Unlock()
	for _, b := range old {
		if err := errors.Join(t.discard(b.Meta().ULID), b.release()); err != nil {
			t.store.logger.Warn("Removing a profile block failed", "tenant", t.name, "block", b.Name(), "err", err)
		}
	}
}

// blockRow is a row of a block that is being compacted.
type blockRow struct {
	headRow
	stacks []uint32
	values []int64
}

// cursor reads the rows of a block in order.
type cursor struct {
	row  blockRow
	next func() (blockRow, error, bool)
	stop func()
	done bool

	spans   *block.TraceSpans
	numbers []uint32 // by row: its number in the compacted block, or noRow; nil without spans
}

func (c *cursor) advance() error {
	row, err, ok := c.next()
	c.row, c.done = row, !ok
	return err
}

// rowsOfBlock iterates over a block's rows with types, series and stacks renumbered for
// the compacted block. The slices of a row are valid only until the next row.
func rowsOfBlock(ctx context.Context, b block.Source, merged []block.Series, numbers,
	nodes []uint32) iter.Seq2[blockRow, error] {
	return func(yield func(blockRow, error) bool) {
		spans, err := b.Spans()
		if err != nil {
			yield(blockRow{}, err)
			return
		}
		rows := make([]int, b.Rows())
		for i := range rows {
			rows[i] = i
		}
		var samples sampleSorter
		stop := errors.New("stop")
		span := 0
		err = b.Samples(ctx, rows, func(row int, stacks []uint32, values []int64) error {
			c, err := b.Columns(row)
			if err != nil {
				return err
			}
			id, err := b.ID(row)
			if err != nil {
				return err
			}
			for row >= spans[span].Hi {
				span++
			}
			samples.renumber(stacks, values, nodes)
			ref := numbers[c.SeriesAt(row-c.First)]
			r := blockRow{
				headRow: headRow{
					dataset: spans[span].Dataset, key: block.Key{ID: id, TimeNS: c.TimeAt(row - c.First)}, series: ref,
					t: merged[ref].Type, row: row,
				},
				stacks: samples.stacks, values: samples.values,
			}
			if !yield(r, nil) {
				return stop
			}
			return nil
		})
		if err != nil && !errors.Is(err, stop) {
			yield(blockRow{}, fmt.Errorf("%s: %w", b.Name(), err))
		}
	}
}

// mergeBlocks writes the rows of blocks in order. Of rows with the same profile and series in
// several blocks, it writes only the first.
func mergeBlocks(ctx context.Context, w *block.Writer, run []*block.Reader) (_ *block.Content, err error) {
	parts, nodes, err := mergeSymbols(ctx, run)
	if err != nil {
		return nil, err
	}
	content := &block.Content{Meta: compactedMeta(run)}
	shared := map[block.Key]bool{}
	for _, b := range run {
		for _, key := range b.Shared() {
			if !shared[key] {
				shared[key] = true
				content.Shared = append(content.Shared, key)
			}
		}
	}
	o, numbers, err := orderOf(run...)
	if err != nil {
		return nil, err
	}
	cursors := make([]*cursor, len(run))
	for i, b := range run {
		c := &cursor{}
		if c.spans, err = b.TraceSpans(); err != nil {
			return nil, fmt.Errorf("%s: %w", b.Name(), err)
		}
		if c.spans != nil {
			c.numbers = make([]uint32, b.Rows())
		}
		c.next, c.stop = iter.Pull2(rowsOfBlock(ctx, b, o.series, numbers[i], nodes[i]))
		defer c.stop()
		if err := c.advance(); err != nil {
			return nil, err
		}
		cursors[i] = c
	}
	if err := mergeRows(w, cursors); err != nil {
		return nil, err
	}
	var spans block.TraceSpansBuilder
	for i, c := range cursors {
		if c.spans != nil {
			if err := moveSpans(ctx, &spans, c.spans, c.numbers, numbersOf(nodes[i])); err != nil {
				return nil, fmt.Errorf("%s: %w", run[i].Name(), err)
			}
		}
	}
	content.Types, content.Series, content.Parts, content.Spans = o.types, o.series, parts, spans.Spans()
	return content, nil
}

func mergeRows(w *block.Writer, cursors []*cursor) error {
	var last headRow
	var rows uint32
	for first := true; ; first = false {
		var least *cursor
		for _, c := range cursors {
			if !c.done && (least == nil || compareRows(&c.row.headRow, &least.row.headRow) < 0) {
				least = c
			}
		}
		if least == nil {
			return nil
		}
		r, number := &least.row, uint32(noRow)
		if first || compareRows(&last, &r.headRow) != 0 {
			err := w.Add(&block.Row{Type: r.t, Dataset: r.dataset, Key: r.key, Series: r.series, Stacks: r.stacks,
				Values: r.values})
			if err != nil {
				return err
			}
			number = rows
			rows++
		}
		if least.numbers != nil {
			least.numbers[r.row] = number
		}
		last = r.headRow
		if err := least.advance(); err != nil {
			return err
		}
	}
}

// retain removes blocks beyond the retention time, and the oldest blocks while the total size
// exceeds the limit. With a bucket, a block beyond the retention time is removed only once the
// bucket has it, or once it is beyond the retention of the bucket. To get below the size limit,
// retain removes shipped blocks first, and unshipped blocks only if that is not enough.
func (t *tenant) retain() error {
	t.flushMu.Lock()
	defer t.flushMu.Unlock()
	t.mu.RLock()
	blocks := slices.Clone(t.blocks)
	t.mu.RUnlock()
	slices.SortFunc(blocks, func(a, b *heldBlock) int { // by end
		return cmp.Or(cmp.Compare(a.Meta().MaxNS, b.Meta().MaxNS), byAge(a, b))
	})
	o := t.store.opts
	oldest := t.store.aged().Add(-o.Retention).UnixNano()
	there := func(b *heldBlock) bool {
		return t.store.remotes == nil || t.store.remotes.expired(b.Meta().MaxNS) || t.store.remotes.has(t.name, b)
	}
	var gone, kept, safe, unsafe []*heldBlock
	var size int64
	for _, b := range blocks {
		if o.Retention > 0 && b.Meta().MaxNS < oldest && there(b) {
			gone = append(gone, b)
			continue
		}
		kept, size = append(kept, b), size+b.Bytes()
	}
	if o.RetentionBytes > 0 && size > o.RetentionBytes {
		for _, b := range kept {
			if there(b) {
				safe = append(safe, b)
			} else {
				unsafe = append(unsafe, b)
			}
		}
	}
	for i, b := range append(safe, unsafe...) {
		if size <= o.RetentionBytes {
			break
		}
		gone, size = append(gone, b), size-b.Bytes()
		if i >= len(safe) {
			t.store.metrics.lost.Inc()
			t.store.logger.Warn("Removing a profile block that is not in the bucket: retention size exceeded", "tenant", t.name,
				"block", b.Name())
		}
	}
	if len(gone) > 0 {
		t.replace(gone, nil)
	}
	return nil
}
