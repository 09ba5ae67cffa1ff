package tsdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/tombstones"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// rawHead reads the samples of the head that arrived in order.
//
// Truncation of the head does not wait for a rawHead: see openUnlisted.
// So the head may lose data while a rawHead reads it. A rawHead can detect this, because the head
// loses data in three steps. First the database serves a block with the data. Then the minimum
// time of the head grows; or, if series are evicted for another reason, the index of the head no
// longer has these series. Last the head removes the data. After each read, disturbed looks for the
// first two steps. If it finds one, the rest of a selection is read from a new view of the store, in which the head has
// the same appends.
type rawHead struct {
	store      *Store
	db         *tsdb.DB
	mint, maxt int64
	limit      int64         // no data of the view is lost while the head's minimum time is at most this
	served     []*tsdb.Block // the store's blocks when the view was opened
	lastMS     int64         // upper bound of the view's timestamps
	alone      bool          // no blocks are read: uncut chunks may have samples before mint

	reading sync.Mutex       // held while a selection reads: the readers of series and chunks have buffers, and files
	anchor  tsdb.ChunkReader // nil: of the view that this view goes on from
	index   tsdb.IndexReader
	chunks  tsdb.ChunkReader
	view    unsafe.Pointer // what chunks contains
	deleted tombstones.Reader
	files   map[int][]byte // of mapped chunks, by sequence; nil: not there
	cloned  int            // mapped chunks that the head cloned

	mu     sync.Mutex
	opened []interface{ Close() error } // readers and queriers of selections; closed with the rawHead
}

// openRawHead opens a view of the head from mint to maxt, in ms, inclusive. headMin is the
// head's minimum time and served are the store's blocks. The caller must read headMin first,
// then served, then call openRawHead. The view has the appends of the view from, which stays open; if from is nil, it
// has those that are committed now.
func (s *Store) openRawHead(db *tsdb.DB, mint, maxt, headMin int64, served []*tsdb.Block,
	from *rawHead) (_ *rawHead, err error) {
	head := db.Head()
	h := &rawHead{store: s, db: db, mint: mint, maxt: maxt, limit: max(mint, headMin), served: served,
		files: map[int][]byte{}}
	if from != nil {
		h.chunks, h.view, h.lastMS = from.chunks, from.view, from.lastMS
	} else {
		if h.anchor, h.chunks, err = openUnlisted(head, mint, maxt); err != nil {
			return nil, err
		}
		h.view = viewOf(h.chunks)
		h.lastMS = head.MaxTime()
	}
	defer func() {
		if err != nil && h.anchor != nil {
			err = errors.Join(err, h.anchor.Close())
		}
	}()
	view := tsdb.NewRangeHead(head, mint, maxt)
	if h.index, err = view.Index(); err != nil {
		return nil, err
	}
	h.deleted, err = view.Tombstones()
	return h, err
}

func (h *rawHead) close() error {
	h.mu.Lock()
	opened := h.opened
	h.opened = nil
	h.mu.Unlock()
	errs := []error{h.index.Close()}
	for _, o := range opened {
		errs = append(errs, o.Close())
	}
	if h.anchor != nil {
		errs = append(errs, h.anchor.Close())
	}
	return errors.Join(errs...)
}

// closeLater closes o with the head.
func (h *rawHead) closeLater(o interface{ Close() error }) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.opened = append(h.opened, o)
}

// disturbed reports whether the head may have lost data of the view. missing means that the
// caller did not find a series or a chunk.
func (h *rawHead) disturbed(missing bool) bool {
	if h.db.Head().MinTime() > h.limit {
		return true
	}
	if !missing {
		return false
	}
	for _, b := range h.db.Blocks() {
		if b.OverlapsClosedInterval(h.mint, h.maxt) && !slices.Contains(h.served, b) {
			return true
		}
	}
	return false
}

// selectSeries selects series in label order.
func (h *rawHead) selectSeries(ctx context.Context, opts series.SelectOptions, matchers []*labels.Matcher) series.Set {
	order, missing, err := h.order(ctx, true, matchers)
	if err != nil {
		return series.Failed(fmt.Errorf("head: %w", err))
	}
	set := &headSet{head: h, ctx: ctx, matchers: matchers, order: order, opts: opts}
	if h.disturbed(missing) {
		return &headRest{headSet: set, rest: h.resume(set)}
	}
	return &headRest{headSet: set}
}

// selectUnsorted selects series in the order of their references. Truncation of the head
// waits until h is closed: if the head lost data, the remaining series would have to be
// merged with the series of blocks, which requires label order.
func (h *rawHead) selectUnsorted(ctx context.Context, opts series.SelectOptions,
	matchers []*labels.Matcher) series.Set {
	hold, err := tsdb.NewRangeHead(h.db.Head(), h.mint, h.maxt).Chunks()
	if err != nil {
		return series.Failed(fmt.Errorf("head: %w", err))
	}
	h.closeLater(hold)
	order, missing, err := h.order(ctx, false, matchers)
	if err != nil {
		return series.Failed(fmt.Errorf("head: %w", err))
	}
	late, _, _ := h.db.Head().IsQuerierCollidingWithTruncation(h.mint, h.maxt)
	if late || h.disturbed(missing) {
		return h.selectSeries(ctx, opts, matchers)
	}
	return &headRest{headSet: &headSet{head: h, ctx: ctx, matchers: matchers, order: order, opts: opts}}
}

// resume selects the series that follow the current series of set. It reads them from a new
// view of the store, which has the data that the head lost.
func (h *rawHead) resume(set *headSet) series.Set {
	q, err := h.store.rawQuerier(set.ctx, h.mint, min(h.maxt, h.lastMS), h)
	if err != nil {
		return series.Failed(fmt.Errorf("head: read again: %w", err))
	}
	h.closeLater(q)
	rest := q.Select(set.ctx, series.SelectOptions{LabelsOnly: set.opts.LabelsOnly}, set.matchers...)
	if set.seen == 0 {
		return rest
	}
	return &after{Set: rest, last: slices.Clone(set.labels)}
}

// labelNames lists the label names of the head.
func (h *rawHead) labelNames(ctx context.Context) ([]string, error) {
	names, err := h.index.LabelNames(ctx)
	if err != nil || !h.disturbed(true) {
		return names, err
	}
	q, err := h.store.RawQuerier(ctx, h.mint, h.maxt)
	if err != nil {
		return nil, err
	}
	more, err := q.LabelNames(ctx, series.SelectOptions{})
	return append(names, more...), errors.Join(err, q.Close())
}

// after skips the series of a set up to and including the label set last.
type after struct {
	series.Set
	last []byte // nil: all series up to last were skipped
}

// Next implements series.Set.
func (a *after) Next() bool {
	for a.Set.Next() {
		if a.last == nil || labelenc.Compare(a.Set.Labels(), a.last) > 0 {
			a.last = nil
			return true
		}
	}
	return false
}

// headRest is a selection of the head. If the head loses data, the selection continues with a
// new view of the store.
type headRest struct {
	*headSet
	rest series.Set // the selection from the new view; nil: headSet is read
}

// Next implements series.Set.
func (r *headRest) Next() bool {
	if r.rest == nil {
		ok, lost := r.headSet.next()
		if !lost {
			return ok
		}
		r.rest = r.headSet.head.resume(r.headSet)
	}
	return r.rest.Next()
}

// Labels implements series.Set.
func (r *headRest) Labels() []byte {
	if r.rest != nil {
		return r.rest.Labels()
	}
	if r.headSet.labels == nil {
		r.headSet.setLabels(r.headSet.at - 1)
	}
	return r.headSet.labels
}

// Metric implements series.Decoded.
func (r *headRest) Metric() (_ labels.Labels, ok bool) {
	if r.rest != nil {
		return labels.EmptyLabels(), false
	}
	return r.headSet.builder.Labels(), true
}

// Ahead returns labels that are not greater than the labels of the next series, nil if unknown.
func (r *headRest) Ahead() []byte {
	if r.rest != nil {
		return nil
	}
	return r.headSet.ahead()
}

// Chunks implements series.Set.
func (r *headRest) Chunks() []series.Chunk {
	if r.rest != nil {
		return r.rest.Chunks()
	}
	return r.headSet.chunks
}

// Err implements series.Set.
func (r *headRest) Err() error {
	if r.rest != nil {
		return r.rest.Err()
	}
	return r.headSet.err
}

// Warnings implements series.Set.
func (r *headRest) Warnings() annotations.Annotations {
	if r.rest != nil {
		return r.rest.Warnings()
	}
	return nil
}
