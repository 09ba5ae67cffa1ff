package tsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

var _ series.Source = (*Store)(nil)

// openTries is the number of attempts to open a view; an attempt fails if a block is closed
// meanwhile.
const openTries = 10

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms. Blocks may be
// deleted while they are read: their files exist until Close.
//
// The head, and blocks that overlap no other block, are read directly. Overlapping blocks are
// read through Prometheus' chunk queriers. If the head has out-of-order samples in the range, or
// samples in the time range of blocks, all data is read through these queriers. They delay the
// deletion of blocks and the head's garbage collection until Close. The bytes of the result are
// the same in all cases.
func (s *Store) RawQuerier(ctx context.Context, mint, maxt int64) (series.Querier, error) {
	return s.rawQuerier(ctx, mint, maxt, nil)
}

// rawQuerier opens a view. If from is not nil and the head is read directly, it has the appends of from.
func (s *Store) rawQuerier(ctx context.Context, mint, maxt int64, from *rawHead) (series.Querier, error) {
	db := s.db.Load()
	if db == nil {
		return nil, ErrNotReady
	}
	for try := 1; ; try++ {
		q := &rawQuerier{store: s, mint: mint, maxt: maxt}
		err := q.open(db, from)
		if err == nil {
			return q, nil
		}
		err = errors.Join(err, q.Close())
		if !errors.Is(err, tsdb.ErrClosing) || try == openTries || ctx.Err() != nil {
			return nil, err
		}
	}
}

// rawQuerier is one view of a store. Its parts do not overlap in time.
type rawQuerier struct {
	store      *Store
	mint, maxt int64
	blocks     []*rawBlock
	head       *rawHead // may be nil
	queriers   []storage.ChunkQuerier
	live       bool // the head is read
	merging    bool // blocks that overlap each other or the head are merged by Prometheus' queriers
	unsorted   bool // no block is read: the series of the head need not be sorted by labels
}

// Capabilities implements series.Querier. If Prometheus' queriers are used, only one goroutine may read, because
// the sets of such a querier share its buffers.
func (q *rawQuerier) Capabilities() series.Capabilities {
	return series.Capabilities{OwnOrder: true, Concurrent: len(q.queriers) == 0, Immutable: !q.live, Merging: q.merging}
}

func (q *rawQuerier) open(db *tsdb.DB, from *rawHead) error {
	// Read the head's times before the list of blocks: samples that the head loses to a block
	// afterwards are in a block of the list.
	head := db.Head()
	headMin, lateMin, lateMax := head.MinTime(), head.MinOOOTime(), head.MaxOOOTime()
	late := lateMin <= q.maxt && lateMax >= q.mint
	end := q.mint // no block has samples at or after it
	var blocks []*tsdb.Block
	plain := !late
	served := db.Blocks()
	if err := q.store.mappings.prune(served); err != nil {
		return err
	}
	for _, b := range served {
		if !b.OverlapsClosedInterval(q.mint, q.maxt) {
			continue
		}
		meta := b.Meta()
		if meta.Compaction.FromStaleSeries() || meta.Compaction.FromSelectedSeries() {
			plain = false // the head has samples in its time range
		}
		blocks, end = append(blocks, b), max(end, meta.MaxTime)
	}
	q.unsorted = len(blocks) == 0
	if !plain || (len(blocks) > 0 && headMin < end) {
		q.live, q.merging = true, len(blocks) > 0
		return q.addQuerier(db.ChunkQuerier(q.mint, q.maxt))
	}
	if err := q.addBlocks(blocks); err != nil {
		return err
	}
	if end <= q.maxt && headMin <= q.maxt {
		q.live = true
		var err error
		if q.head, err = q.store.openRawHead(db, end, q.maxt, headMin, served, from); err != nil {
			return err
		}
		q.head.alone = len(q.blocks)+len(q.queriers) == 0
	}
	return nil
}

// addBlocks adds blocks sorted by start.
func (q *rawQuerier) addBlocks(blocks []*tsdb.Block) error {
	slices.SortStableFunc(blocks, func(a, b *tsdb.Block) int { return int(max(-1, min(1, a.MinTime()-b.MinTime()))) })
	for len(blocks) > 0 {
		n, end := 1, blocks[0].MaxTime()
		for n < len(blocks) && blocks[n].MinTime() < end {
			end = max(end, blocks[n].MaxTime())
			n++
		}
		if err := q.addGroup(blocks[:n]); err != nil {
			return err
		}
		blocks = blocks[n:]
	}
	return nil
}

// addGroup adds a group of overlapping blocks, or one block that overlaps no other.
func (q *rawQuerier) addGroup(group []*tsdb.Block) error {
	if len(group) == 1 {
		b, err := q.store.openRawBlock(group[0], q.mint, q.maxt)
		if err == nil {
			q.blocks = append(q.blocks, b)
			return nil
		}
		if !errors.Is(err, errForeign) {
			return err
		}
	}
	q.merging = q.merging || len(group) > 1
	var queriers []storage.ChunkQuerier
	for _, b := range group {
		one, err := tsdb.NewBlockChunkQuerier(b, q.mint, q.maxt)
		if err != nil {
			for _, opened := range queriers {
				err = errors.Join(err, opened.Close())
			}
			return fmt.Errorf("block %s: %w", b, err)
		}
		queriers = append(queriers, one)
	}
	floats := func() chunkenc.Encoding { return chunkenc.Encoding(q.store.encoding.Load()) }
	return q.addQuerier(storage.NewMergeChunkQuerier(queriers, nil,
		storage.NewCompactingChunkSeriesMergerWithFloatEncoding(storage.ChainedSeriesMerge, floats)), nil)
}

func (q *rawQuerier) addQuerier(stock storage.ChunkQuerier, err error) error {
	if err == nil {
		q.queriers = append(q.queriers, stock)
	}
	return err
}

// Select implements series.Querier. If only the head is read, its own order is the order of its postings.
// If blocks are read, uncut chunks of the head are still cut at the end of these blocks, because a chunk of the head
// may have samples that a block has as well.
func (q *rawQuerier) Select(ctx context.Context, opts series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	from := series.FromChunkSeriesSet
	if opts.LabelsOnly {
		from = series.LabelsOfChunkSeriesSet
	}
	if opts.OwnOrder && q.unsorted {
		switch {
		case q.head != nil:
			return q.head.selectUnsorted(ctx, opts, matchers)
		case len(q.queriers) == 1:
			return from(q.queriers[0].Select(ctx, false, nil, matchers...))
		}
	}
	sets := make([]series.Set, 0, len(q.blocks)+len(q.queriers)+1)
	for _, b := range q.blocks {
		sets = append(sets, b.selectSeries(ctx, opts, matchers))
	}
	if q.head != nil {
		sets = append(sets, q.head.selectSeries(ctx, opts, matchers))
	}
	for _, stock := range q.queriers {
		sets = append(sets, from(stock.Select(ctx, true, nil, matchers...)))
	}
	return series.Merge(sets...)
}

// LabelNames implements series.Querier.
func (q *rawQuerier) LabelNames(ctx context.Context, _ series.SelectOptions, _ ...*labels.Matcher) ([]string, error) {
	var all []string
	for _, b := range q.blocks {
		names, err := b.files.postings.LabelNames(ctx)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			all = append(all, strings.Clone(name)) // the mapping may be closed before the result is used
		}
	}
	if q.head != nil {
		names, err := q.head.labelNames(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	for _, stock := range q.queriers {
		names, _, err := stock.LabelNames(ctx, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

// Close implements series.Querier.
func (q *rawQuerier) Close() error {
	var errs []error
	for _, b := range q.blocks {
		errs = append(errs, b.close())
	}
	for _, stock := range q.queriers {
		errs = append(errs, stock.Close())
	}
	if q.head != nil {
		errs = append(errs, q.head.close())
	}
	q.blocks, q.queriers, q.head = nil, nil, nil
	return errors.Join(errs...)
}
