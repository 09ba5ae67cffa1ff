package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// temporary begins the name of a block's directory while its files are being written.
const temporary = "tmp-"

// openBlocks opens the tenant's blocks. It removes leftovers of a crash: temporary directories, and blocks that
// another block has replaced. A block that is corrupt, or of a newer version, is
// skipped and stays on disk.
func (t *tenant) openBlocks() error {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(t.dir, e.Name())
		if strings.HasPrefix(e.Name(), temporary) {
			if err := t.store.fs.RemoveAll(path); err != nil {
				return err
			}
			continue
		}
		if _, err := ulid.ParseStrict(e.Name()); err != nil || !e.IsDir() {
			continue
		}
		if isClosed(t.store.stop) {
			return errClosed
		}
		r, err := t.store.openBlock(path)
		if err == nil && ulid.ULID(r.Meta().ULID).String() != e.Name() { // a copy, whose rows would count twice
			err = errors.Join(fmt.Errorf("%w: %s: the block has the ULID %s", block.ErrCorrupt, path,
				ulid.ULID(r.Meta().ULID)), r.Close())
		}
		if err != nil {
			t.skip(err)
			continue
		}
		t.blocks = append(t.blocks, t.store.hold(r, path))
	}
	opened := t.verifyReplacing(t.blocks)
	replaced := lineageOf(opened).Replaced
	t.blocks = nil // after an error the caller releases the blocks in t.blocks
	for i, b := range opened {
		if !replaced[b.Meta().ULID] {
			t.store.sawBlock(b.Meta().ULID, true)
			t.blocks = append(t.blocks, b)
			continue
		}
		if err := errors.Join(b.release(), t.discard(b.Meta().ULID)); err != nil {
			t.blocks = append(t.blocks, opened[i+1:]...)
			return err
		}
	}
	slices.SortFunc(t.blocks, byAge)
	return nil
}

// skip leaves a block out of all queries, which get the error as a warning.
func (t *tenant) skip(err error) {
	t.store.metrics.skipped(err)
	t.store.logger.Error("Skipping a profile block", "tenant", t.name, "err", err)
	t.broken = append(t.broken, err)
}

func lineageOf(blocks []*heldBlock) block.Lineage {
	metas := make([]*block.Meta, len(blocks))
	for i, b := range blocks {
		meta := b.Meta()
		metas[i] = &meta
	}
	return block.LineageOf(metas)
}

// verifyReplacing reads each block as a whole because of which another one is to be removed, and skips it if it is
// damaged: it may be a copy that was interrupted.
func (t *tenant) verifyReplacing(opened []*heldBlock) []*heldBlock {
	onDisk := map[[16]byte]bool{}
	for _, b := range opened {
		onDisk[b.Meta().ULID] = true
	}
	duplicates := lineageOf(opened).Duplicates
	return slices.DeleteFunc(opened, func(b *heldBlock) bool {
		meta := b.Meta()
		isOnDisk := func(id [16]byte) bool { return onDisk[id] }
		if !slices.ContainsFunc(meta.Parents, isOnDisk) && !slices.ContainsFunc(duplicates[meta.ULID], isOnDisk) {
			return false
		}
		_, err := block.Verify(context.Background(), b.path)
		if err != nil {
			t.skip(errors.Join(err, b.release()))
		}
		return err != nil
	})
}

func (s *Store) hold(r *block.Reader, path string) *heldBlock {
	r.OnSymbols(func(bytes int64) { s.memory.symbols.Add(bytes) })
	b := &heldBlock{Reader: r, path: path}
	b.refs.Store(1)
	return b
}

func byAge(a, b *heldBlock) int {
	metaA, metaB := a.Meta(), b.Meta()
	return cmp.Or(cmp.Compare(metaA.MinNS, metaB.MinNS), bytes.Compare(metaA.ULID[:], metaB.ULID[:]))
}

func (t *tenant) closeBlocks() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, b := range t.blocks {
		if err := b.release(); err != nil {
			t.store.logger.Warn("Closing a profile block failed", "block", b.Name(), "err", err)
		}
	}
	t.blocks = nil
}

// flush writes the head as a block. On failure the head stays in memory and in the log, and
// the next flush retries. If again is set, flush only retries a flush that failed.
func (t *tenant) flush(ctx context.Context, again bool) error {
	t.flushMu.Lock()
	defer t.flushMu.Unlock()
	if t.failedFlush == nil {
		if again {
			return nil
		}
		reply := make(chan cut, 1)
		select {
		case t.cuts <- reply:
		case <-t.ended:
			return fmt.Errorf("%w: the store is closed", profiles.ErrUnavailable)
		case <-ctx.Done():
			return ctx.Err()
		}
		c := <-reply
		if c.err != nil {
			t.flushRetry.result(t.store.now(), c.err)
			t.store.metrics.flushesFailed.Inc()
			return fmt.Errorf("profiles of tenant %s: cut the log: %w", t.name, c.err)
		}
		if c.head == nil {
			return nil
		}
		t.failedFlush = &c
	}
	b, err := t.writeBlock(t.failedFlush.id, func(w *block.Writer) (*block.Content, error) {
		return writeHead(ctx, w, t.failedFlush.head.view())
	})
	if ctx.Err() == nil {
		t.flushRetry.result(t.store.now(), err)
	}
	if err != nil {
		t.store.metrics.flushesFailed.Inc()
		return fmt.Errorf("profiles of tenant %s: write a block: %w", t.name, err)
	}
	t.mu.Lock()
	t.blocks = append(slices.Clone(t.blocks), b)
	slices.SortFunc(t.blocks, byAge)
	t.flushing, t.writing = nil, ulid.ULID{}
	t.mu.Unlock()
	through := t.failedFlush.through
	t.store.memory.discharge(t.failedFlush.head)
	t.failedFlush = nil
	t.store.metrics.flushes.Inc()
	if err := removeSegments(t.store.fs, t.logDir(), through); err != nil {
		return fmt.Errorf("profiles of tenant %s: write-ahead log: %w", t.name, err)
	}
	return nil
}

// discard removes the directory of a block, complete or temporary, if it exists.
func (t *tenant) discard(id ulid.ULID) error {
	return files.Discard(t.store.fs, filepath.Join(t.dir, id.String()), filepath.Join(t.dir, temporary+id.String()))
}

// writeBlock creates a block's directory under a temporary name, calls fill to write its
// files, and renames the directory once all files are synced. If a step fails, writeBlock
// discards the block. If the block cannot be discarded either, a block with the rows of fill may
// exist. The caller must then retry with the same id, or discard the block, before it writes the
// rows under another id.
func (t *tenant) writeBlock(id ulid.ULID,
	fill func(w *block.Writer) (*block.Content, error)) (_ *heldBlock, err error) {
	t.store.sawBlock(id, false)
	t.setWriting(id)
	fs, tmp, path := t.store.fs, filepath.Join(t.dir, temporary+id.String()), filepath.Join(t.dir, id.String())
	if err := t.discard(id); err != nil {
		return nil, err
	}
	if err := fs.Mkdir(tmp); err != nil {
		return nil, err
	}
	defer func() {
		if err == nil {
			return
		}
		if discarded := t.discard(id); discarded != nil {
			err = errors.Join(err, discarded)
			return
		}
		t.setWriting(ulid.ULID{})
	}()
	w, err := block.NewWriter(fs, tmp)
	if err != nil {
		return nil, err
	}
	defer w.Abort()
	content, err := fill(w)
	if err != nil {
		return nil, err
	}
	content.Meta.ULID = id
	if err := w.Finish(content); err != nil {
		return nil, err
	}
	if err := fs.Rename(tmp, path); err != nil {
		return nil, err
	}
	if err := fs.SyncDir(t.dir); err != nil {
		return nil, err
	}
	r, err := t.store.openBlock(path)
	if err != nil {
		return nil, err
	}
	return t.store.hold(r, path), nil
}

// setWriting records which block is being written. The block may be shipped, and the bucket may list
// it, before the block is in t.blocks.
func (t *tenant) setWriting(id ulid.ULID) {
	t.mu.Lock()
	t.writing = id
	t.mu.Unlock()
}

// order has the types and series of a block, sorted.
type order struct {
	types  []profiles.Type
	series []block.Series
}

// orderOf merges the types and series of sources. It also returns, for each series of each source, its number in the
// block.
func orderOf[S block.Source](sources ...S) (o order, numbers [][]uint32, err error) {
	typeOf := map[profiles.Type]uint32{}
	for _, src := range sources {
		for _, t := range src.Types() {
			typeOf[t] = 0
		}
	}
	o.types = slices.SortedFunc(maps.Keys(typeOf), func(a, b profiles.Type) int {
		return strings.Compare(a.String(), b.String())
	})
	for i, t := range o.types {
		typeOf[t] = uint32(i)
	}
	of := make([][]block.Series, len(sources)) // with numbers of types of the block
	for i, src := range sources {
		series, err := src.Series()
		if err != nil {
			return o, nil, err
		}
		for _, s := range series {
			s.Type = typeOf[src.Types()[s.Type]]
			of[i] = append(of[i], s)
		}
	}
	o.series = slices.Concat(of...)
	slices.SortFunc(o.series, compareSeries)
	o.series = slices.CompactFunc(o.series, func(a, b block.Series) bool { return compareSeries(a, b) == 0 })
	for _, series := range of {
		own := make([]uint32, len(series))
		for i, s := range series {
			at, _ := slices.BinarySearchFunc(o.series, s, compareSeries)
			own[i] = uint32(at)
		}
		numbers = append(numbers, own)
	}
	return o, numbers, nil
}

func compareSeries(a, b block.Series) int {
	return cmp.Or(cmp.Compare(a.Type, b.Type), labelenc.Compare(a.Labels, b.Labels))
}

// headRow is a row of a head or block to be written to another block.
type headRow struct {
	dataset string
	key     block.Key
	series  uint32 // number in the new block
	t       uint32 // number of the type in the new block
	row     int    // number in the head or block
}

func compareRows(a, b *headRow) int {
	if c := cmp.Compare(a.t, b.t); c != 0 {
		return c
	}
	if c := strings.Compare(a.dataset, b.dataset); c != 0 {
		return c
	}
	if c := cmp.Compare(a.key.TimeNS, b.key.TimeNS); c != 0 {
		return c
	}
	if c := bytes.Compare(a.key.ID[:], b.key.ID[:]); c != 0 {
		return c
	}
	return cmp.Compare(a.series, b.series)
}

// writeHead writes the rows of a head in block order.
func writeHead(ctx context.Context, w *block.Writer, v *headView) (*block.Content, error) {
	o, of, err := orderOf(v)
	if err != nil {
		return nil, err
	}
	numbers := of[0]
	// If the rows of a profile have several services, the dataset of all its rows is the first of
	// these services in alphabetical order. So all rows of the profile that have one type are adjacent.
	datasets := make(map[block.Key]string, v.rows)
	services := make([]string, len(v.series))
	for i := range v.series {
		services[i] = string(labelenc.Value(v.series[i].Plain, profiles.LabelService))
	}
	rows := make([]headRow, v.rows)
	for i := range rows {
		ref := v.cols.SeriesAt(i)
		key := block.Key{ID: v.id(i), TimeNS: v.cols.TimeAt(i)}
		rows[i] = headRow{key: key, series: numbers[ref], t: o.series[numbers[ref]].Type, row: i}
		if known, ok := datasets[key]; !ok || services[ref] < known {
			datasets[key] = services[ref]
		}
	}
	for i := range rows {
		rows[i].dataset = datasets[rows[i].key]
	}
	slices.SortFunc(rows, func(a, b headRow) int { return compareRows(&a, &b) })
	parts, err := divide(ctx, v, rows)
	if err != nil {
		return nil, err
	}
	sorted := make([]int, len(rows))
	for i := range rows {
		sorted[i] = rows[i].row
	}
	var samples sampleSorter
	at := 0
	err = v.Samples(ctx, sorted, func(_ int, stacks []uint32, values []int64) error {
		r := &rows[at]
		if at == 0 || rows[at-1].dataset != r.dataset {
			parts.of[r.dataset].fill(parts.nodes)
		}
		at++
		samples.renumber(stacks, values, parts.nodes)
		return w.Add(&block.Row{Type: r.t, Dataset: r.dataset, Key: r.key, Series: r.series, Stacks: samples.stacks,
			Values: samples.values})
	})
	if err != nil {
		return nil, err
	}
	content := &block.Content{Types: o.types, Series: o.series, Parts: &parts.symbols, Shared: v.shared}
	if v.spans != nil {
		numbers, partOf := make([]uint32, len(rows)), make([]*headPart, len(rows))
		for at := range rows {
			numbers[rows[at].row], partOf[rows[at].row] = uint32(at), parts.of[rows[at].dataset]
		}
		var moved block.TraceSpansBuilder
		number := func(row, stack uint32) (uint32, bool) { return partOf[row].number(stack) }
		if err := moveSpans(ctx, &moved, v.spans, numbers, number); err != nil {
			return nil, err
		}
		content.Spans = moved.Spans()
	}
	return content, nil
}

// noRow stands for a row that the new block does not have.
const noRow = math.MaxUint32

// numbersOf returns a function to pass to moveSpans as number. nodes has the new number of each stack.
func numbersOf(nodes []uint32) func(row, stack uint32) (uint32, bool) {
	return func(_, stack uint32) (uint32, bool) {
		if int(stack) >= len(nodes) {
			return 0, false
		}
		return nodes[stack], true
	}
}

// moveSpans adds the spans of a source to another block. rows has the new number of each row
// of the source; the spans of a row with noRow are left out. number returns the new number of
// a stack; its arguments are the row and the stack of the source.
func moveSpans(ctx context.Context, to *block.TraceSpansBuilder, from *block.TraceSpans, rows []uint32,
	number func(row, stack uint32) (uint32, bool)) error {
	var sorter sampleSorter
	var stacks []uint32
	var values []int64
	for i := range from.Len() {
		if i%batchRows == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
		}
		span := from.Span(i)
		if rows[span.Row] == noRow {
			continue
		}
		var err error
		if stacks, values, err = from.Samples(span, stacks[:0], values[:0]); err != nil {
			return err
		}
		for i, stack := range stacks {
			var ok bool
			if stacks[i], ok = number(span.Row, stack); !ok {
				return fmt.Errorf("%w: span %016x has the unknown stack %d", profiles.ErrCorrupt, span.ID, stack)
			}
		}
		sorter.sort(stacks, values)
		to.Add(span.ID, from.TraceID(span), rows[span.Row], sorter.stacks, sorter.values)
	}
	return nil
}

// sampleSorter renumbers the stacks of samples and sorts the samples by stack. The result is
// in stacks and values until the next call.
type sampleSorter struct {
	keys   []uint64 // number of a stack in the upper 32 bits, index of its sample in the lower
	stacks []uint32
	values []int64
}

func (s *sampleSorter) renumber(stacks []uint32, values []int64, nodes []uint32) {
	s.keys = s.keys[:0]
	for i, stack := range stacks {
		s.keys = append(s.keys, uint64(nodes[stack])<<32|uint64(i))
	}
	s.sortKeys(values)
}

// sort sorts samples as renumber does, but the stacks have their new numbers already.
func (s *sampleSorter) sort(stacks []uint32, values []int64) {
	s.keys = s.keys[:0]
	for i, stack := range stacks {
		s.keys = append(s.keys, uint64(stack)<<32|uint64(i))
	}
	s.sortKeys(values)
}

func (s *sampleSorter) sortKeys(values []int64) {
	slices.Sort(s.keys)
	s.stacks, s.values = s.stacks[:0], s.values[:0]
	for _, key := range s.keys {
		s.stacks, s.values = append(s.stacks, uint32(key>>32)), append(s.values, values[uint32(key)])
	}
}

// maintainEvery is the interval of the maintenance of heads and blocks.
const maintainEvery = 2 * time.Second

// maintain writes heads as blocks, compacts blocks and removes old ones.
func (s *Store) maintain(ctx context.Context) {
	var swept time.Time
	kept := false
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.memory.wake:
			s.flushBiggest(ctx)
			continue
		case <-tick.C:
		}
		kept = kept || s.keepAged()
		if s.remotes != nil && s.now().Sub(swept) >= symbolsIdle {
			swept = s.now()
			s.remotes.sweep()
		}
		for _, t := range s.list() {
			if err := t.maintain(ctx); err != nil && ctx.Err() == nil {
				s.logger.Error("Maintaining profile blocks failed", "tenant", t.name, "err", err)
			}
		}
		s.forget()
	}
}

// Flush writes the heads of all tenants as blocks now.
func (s *Store) Flush(ctx context.Context) error {
	return s.all(func(t *tenant) error { return t.flush(ctx, false) })
}

func (s *Store) all(f func(t *tenant) error) error {
	var errs []error
	for _, t := range s.list() {
		errs = append(errs, f(t))
	}
	return errors.Join(errs...)
}

// symbolsIdle is the minimum time for which unused symbols stay in memory; the maximum is twice as
// long. If memory is short, they are dropped sooner.
const symbolsIdle = time.Minute

func (t *tenant) dropIdleSymbols() {
	if now := t.store.now(); now.Sub(t.symbolsSwept) >= symbolsIdle {
		t.symbolsSwept = now
		t.mu.RLock()
		defer t.mu.RUnlock()
		for _, b := range t.blocks {
			b.DropIdleSymbols()
		}
	}
}

func (t *tenant) maintain(ctx context.Context) error {
	now := t.store.now()
	t.mu.RLock()
	old := now.Sub(t.headFrom) >= t.store.opts.HeadAge
	head, stuck := t.head, t.flushing != nil
	t.mu.RUnlock()
	var errs []error
	if full := head.size() >= t.store.opts.HeadBytes; (full || stuck || (old && head.count() > 0)) &&
		t.flushRetry.due(now) {
		errs = append(errs, t.flush(ctx, !full && !old))
	}
	if t.compactRetry.due(now) {
		errs = append(errs, t.compact(ctx))
	}
	errs = append(errs, t.retain())
	t.dropIdleSymbols()
	return errors.Join(errs...)
}
