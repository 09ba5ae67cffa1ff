package tsdb

import (
	"container/list"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ordersBytesMax limits the memory of the orders that a store keeps. With 200 bytes of labels
// a series, they hold about 150,000 series.
const ordersBytesMax = 32 << 20

// orderKey identifies an order. Of orders with the same key the last is kept.
type orderKey struct {
	hash   uint64 // of the postings
	sorted bool   // by labels; otherwise in the order of the postings
}

// headOrder is the series of a selection in the order in which they are returned. Except for known it is
// immutable: the labels of a series reference never change.
type headOrder struct {
	orderKey
	postings []storage.SeriesRef // as selected
	refs     []storage.SeriesRef
	labels   []byte                      // encoded label sets one after another; nil: too large to be kept
	ends     []uint32                    // offset in labels at which each label set ends
	known    []atomic.Pointer[memSeries] // by index in refs: the series, if it was read before
}

func (o *headOrder) bytes() int {
	return 8*(cap(o.postings)+cap(o.refs)) + cap(o.labels) + 4*cap(o.ends) + 8*len(o.known)
}

// at returns the encoded labels of series i; ok is false if they are not kept.
func (o *headOrder) at(i int) (lset []byte, ok bool) {
	if i >= len(o.ends) {
		return nil, false
	}
	start := uint32(0)
	if i > 0 {
		start = o.ends[i-1]
	}
	return o.labels[start:o.ends[i]], true
}

// headOrders keeps the orders of recent selections. Sorting series and encoding their labels
// costs more than reading their chunks, and most selections are repeated.
type headOrders struct {
	mu    sync.Mutex
	kept  map[orderKey]*list.Element // in uses
	uses  list.List                  // of *headOrder, the least recently used first
	bytes int
}

func (k *headOrders) find(key orderKey, postings []storage.SeriesRef) *headOrder {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.kept[key]; e != nil && slices.Equal(e.Value.(*headOrder).postings, postings) {
		k.uses.MoveToBack(e)
		return e.Value.(*headOrder)
	}
	return nil
}

func (k *headOrders) keep(o *headOrder) {
	if o.bytes() > ordersBytesMax {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(k.kept[o.orderKey])
	if k.kept == nil {
		k.kept = map[orderKey]*list.Element{}
	}
	k.kept[o.orderKey], k.bytes = k.uses.PushBack(o), k.bytes+o.bytes()
	for k.bytes > ordersBytesMax {
		k.remove(k.uses.Front())
	}
}

func (k *headOrders) remove(e *list.Element) {
	if e != nil {
		o := k.uses.Remove(e).(*headOrder)
		delete(k.kept, o.orderKey)
		k.bytes -= o.bytes()
	}
}

// PreCreation implements tsdb.SeriesLifecycleCallback.
func (*headOrders) PreCreation(labels.Labels) error { return nil }

// PostCreation implements tsdb.SeriesLifecycleCallback.
func (*headOrders) PostCreation(labels.Labels) {}

// PostDeletion implements tsdb.SeriesLifecycleCallback. It forgets all orders, so that no deleted series stays in
// memory.
func (k *headOrders) PostDeletion(deleted map[chunks.HeadSeriesRef]labels.Labels) {
	if len(deleted) > 0 {
		k.mu.Lock()
		defer k.mu.Unlock()
		clear(k.kept)
		k.uses.Init()
		k.bytes = 0
	}
}

// order returns the series that match, sorted by labels or in the order of the postings.
// missing reports whether the head no longer has some of the series.
func (h *rawHead) order(ctx context.Context, sorted bool,
	matchers []*labels.Matcher) (_ *headOrder, missing bool, err error) {
	p, err := tsdb.PostingsForMatchers(ctx, h.index, slices.Clone(matchers)...) // a clone, because it sorts them
	if err != nil {
		return nil, false, err
	}
	postings, err := index.ExpandPostings(p)
	if err != nil {
		return nil, false, err
	}
	var digest xxhash.Digest
	digest.Reset()
	var buf [8]byte
	for _, ref := range postings {
		binary.LittleEndian.PutUint64(buf[:], uint64(ref))
		_, _ = digest.Write(buf[:]) // never fails
	}
	o := &headOrder{orderKey: orderKey{digest.Sum64(), sorted}, postings: postings, refs: postings}
	if known := h.store.orders.find(o.orderKey, postings); known != nil {
		return known, len(known.refs) < len(postings), nil
	}
	if sorted {
		if o.refs, err = index.ExpandPostings(h.index.SortedPostings(index.NewListPostings(postings))); err != nil {
			return nil, false, err
		}
	}
	if err := h.encode(ctx, o); err != nil {
		return nil, false, err
	}
	h.store.orders.keep(o)
	return o, len(o.refs) < len(postings), nil
}

// encode encodes the labels of an order's series, and drops the series that are not found. If
// the labels take more than half of ordersBytesMax, the order does not keep them, and headSet
// encodes them at each read.
func (h *rawHead) encode(ctx context.Context, o *headOrder) error {
	builder := labels.NewScratchBuilder(0)
	found := o.refs[:0]
	if !o.sorted {
		found = make([]storage.SeriesRef, 0, len(o.refs))
	}
	var ends []uint32
	if o.sorted {
		ends = make([]uint32, 0, len(o.refs))
	}
	for n, ref := range o.refs {
		if n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		err := h.index.Series(ref, &builder, nil)
		if errors.Is(err, storage.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		found = append(found, ref)
		if ends == nil {
			continue
		}
		if o.labels = labelenc.Append(o.labels, builder.Labels()); len(ends) == 128 { // others are about as long
			o.labels = slices.Grow(o.labels, min(len(o.labels)/128*(len(o.refs)-n), ordersBytesMax/2))
		}
		if ends = append(ends, uint32(len(o.labels))); len(o.labels) > ordersBytesMax/2 {
			o.labels, ends = nil, nil
		}
	}
	o.refs, o.ends, o.known = found, ends, make([]atomic.Pointer[memSeries], len(found))
	o.labels = slices.Clip(o.labels)
	return nil
}
