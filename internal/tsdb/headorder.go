package tsdb

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ordersBytesMax limits the memory of the orders that a store keeps. With 200 bytes of labels
// a series, they hold about 150,000 series.
const ordersBytesMax = 32 << 20

// headOrder is the series of a selection in the order in which they are returned. It is
// immutable: the labels of a series reference never change.
type headOrder struct {
	hash     uint64              // of the postings
	postings []storage.SeriesRef // as selected
	sorted   bool                // by labels; otherwise in the order of the postings
	refs     []storage.SeriesRef
	labels   []byte   // encoded label sets one after another; nil: too large to be kept
	ends     []uint32 // offset in labels at which each label set ends
}

func (o *headOrder) bytes() int {
	return 8*(cap(o.postings)+cap(o.refs)) + cap(o.labels) + 4*cap(o.ends)
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
	kept  []*headOrder // the least recently used first
	bytes int
}

func (k *headOrders) find(hash uint64, sorted bool, postings []storage.SeriesRef) *headOrder {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, o := range k.kept {
		if o.hash == hash && o.sorted == sorted && slices.Equal(o.postings, postings) {
			k.kept = append(slices.Delete(k.kept, i, i+1), o)
			return o
		}
	}
	return nil
}

func (k *headOrders) keep(o *headOrder) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, other := range k.kept {
		if other.hash == o.hash && other.sorted == o.sorted && slices.Equal(other.postings, o.postings) {
			return // another selection was first
		}
	}
	if o.bytes() > ordersBytesMax {
		return
	}
	k.kept, k.bytes = append(k.kept, o), k.bytes+o.bytes()
	for k.bytes > ordersBytesMax {
		k.bytes -= k.kept[0].bytes()
		k.kept = slices.Delete(k.kept, 0, 1)
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
	hash := digest.Sum64()
	if o := h.store.orders.find(hash, sorted, postings); o != nil {
		return o, len(o.refs) < len(postings), nil
	}
	o := &headOrder{hash: hash, postings: postings, sorted: sorted, refs: postings}
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
	o.refs, o.ends = found, ends
	o.labels = slices.Clip(o.labels)
	return nil
}
