package gateway

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/blocks/pages"
)

// refs are the selected series, ascending.
type refs struct {
	index.Postings
	lists []*pageRefs // all lists of which it reads pages
}

// release releases the pages that the lists hold. They may be used afterwards.
func (r refs) release() {
	for _, l := range r.lists {
		l.release()
	}
}

// pageRefs reads a list of postings directly from pages, or, without a reader, from memory. All numbers are big-endian:
//
//	len u32 | count u32 | ref u32* | crc32
type pageRefs struct {
	ctx    context.Context // stored because a pageRefs belongs to one request
	reader *pages.Reader
	object *pages.Object
	base   int64  // offset of the first reference
	n, i   int    // number of references; index of the next reference
	window []byte // the references that are read in one page
	from   int    // index of the reference at the start of window
	fail   error

	current uint32 // the last reference that was found, valid unless i is 0 or ended is set
	ended   bool   // there are no more
}

// openRefs verifies the checksum of a list and opens it.
func openRefs(ctx context.Context, from *pages.Object, l list) (*pageRefs, error) {
	r := &pageRefs{ctx: ctx, reader: from.Reader(), object: from, base: int64(l.off) + 8}
	defer r.release()
	if l.off > l.end || l.end > uint64(from.Size()) {
		return nil, fmt.Errorf("%w: postings at %d", ErrCorrupt, l.off)
	}
	if err := from.Fetch(ctx, []pages.Span{{Off: int64(l.off), Len: int64(l.end - l.off)}}); err != nil {
		return nil, err
	}
	head, err := r.reader.Bytes(ctx, from, int64(l.off), 8)
	if err != nil {
		return nil, err
	}
	size, count := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:])
	// A list must end before the next list starts. So the memory of a union is bounded by the bytes of
	// its lists in the index, even if the index is corrupt.
	if uint64(size) != 4+4*uint64(count) || l.off+8+uint64(size) > l.end {
		return nil, fmt.Errorf("%w: postings at %d: %d references in %d bytes", ErrCorrupt, l.off, count, size)
	}
	sum, off := crc32.Checksum(head[4:], castagnoli), int64(l.off)+8
	for left := 4 * int(count); left > 0; {
		part, err := r.reader.At(ctx, from, off)
		if err != nil {
			return nil, err
		}
		part = part[:min(len(part), left)]
		sum = crc32.Update(sum, castagnoli, part)
		left, off = left-len(part), off+int64(len(part))
		r.reader.Release()
	}
	want, err := r.reader.Bytes(ctx, from, off, 4)
	if err != nil {
		return nil, err
	}
	if binary.BigEndian.Uint32(want) != sum {
		return nil, fmt.Errorf("%w: checksum of the postings at %d", ErrCorrupt, l.off)
	}
	r.n = int(count)
	return r, nil
}

// fill sets window to the references from the next one to the end of its page.
func (r *pageRefs) fill() bool {
	if r.ended = r.fail != nil || r.i >= r.n; r.ended {
		return false
	}
	r.reader.Release()
	r.window = nil
	part, err := r.reader.At(r.ctx, r.object, r.base+4*int64(r.i))
	if err == nil && len(part) < 4 { // a reference lies in two pages
		part, err = r.reader.Bytes(r.ctx, r.object, r.base+4*int64(r.i), 4)
	}
	if err != nil {
		r.fail, r.ended = err, true
		return false
	}
	n := min(len(part)/4, r.n-r.i)
	r.window, r.from = part[:4*n], r.i
	return true
}

// Next implements index.Postings.
func (r *pageRefs) Next() bool {
	at := 4 * (r.i - r.from)
	if at >= len(r.window) {
		if !r.fill() {
			return false
		}
		at = 0
	}
	r.i, r.current = r.i+1, binary.BigEndian.Uint32(r.window[at:])
	return true
}

// Seek implements index.Postings. It gallops: it doubles its step until it has passed ref. Then it does a binary search
// within the last step.
func (r *pageRefs) Seek(to storage.SeriesRef) bool {
	if r.i > 0 && !r.ended && r.At() >= to {
		return true
	}
	ref := uint32(to) // all references have 32 bits
	for {
		at := r.i - r.from
		if 4*at >= len(r.window) {
			if !r.fill() {
				return false
			}
			at = 0
		}
		n := len(r.window) / 4
		if u32At(r.window, n-1) < ref {
			r.i = r.from + n
			continue
		}
		low, step := at, 1
		for low+step < n && u32At(r.window, low+step) < ref {
			low += step
			step *= 2
		}
		high := min(low+step, n-1) // not below ref
		for low < high {
			if mid := (low + high) / 2; u32At(r.window, mid) < ref {
				low = mid + 1
			} else {
				high = mid
			}
		}
		r.i, r.current = r.from+low+1, u32At(r.window, low)
		return true
	}
}

// At implements index.Postings.
func (r *pageRefs) At() storage.SeriesRef { return storage.SeriesRef(r.current) }

// Err implements index.Postings.
func (r *pageRefs) Err() error { return r.fail }

func (r *pageRefs) release() {
	if r.reader == nil {
		return
	}
	r.reader.Release()
	r.window, r.from = nil, r.i
}

// choice is the selection of one matcher: the series in the lists or, if negated is set, the
// series in none of the lists.
type choice struct {
	matcher *labels.Matcher
	lists   []list
	negated bool   // the lists have the series that do not match
	bytes   uint64 // size of the lists
}

// choose finds the lists of a matcher in the header. A matcher that matches the empty value, for
// example env!="dev", also matches series without the label, and these are in no list of the label.
// For such a matcher choose returns the lists of the values that do not match.
func (h *header) choose(m *labels.Matcher) choice {
	c := choice{matcher: m, negated: m.Matches("")}
	add := func(l list) {
		c.lists = append(c.lists, l)
		c.bytes += l.end - min(l.off, l.end)
	}
	exact := func(values ...string) choice {
		slices.Sort(values)
		for _, v := range slices.Compact(values) {
			if l, ok := h.find(m.Name, v); ok && v != "" {
				add(l)
			}
		}
		return c
	}
	switch set := m.SetMatches(); {
	case m.Type == labels.MatchEqual && !c.negated, m.Type == labels.MatchNotEqual && c.negated:
		return exact(m.Value)
	case m.Type == labels.MatchRegexp && !c.negated && len(set) > 0, m.Type == labels.MatchNotRegexp && c.negated &&
		len(set) > 0:
		return exact(slices.Clone(set)...)
	}
	h.each(m.Name, func(value []byte, l list) bool {
		if m.Matches(string(value)) != c.negated {
			add(l)
		}
		return true
	})
	return c
}

const (
	// entryBytes is the estimated size of a series entry. If the lists of a matcher are longer
	// than the entries of all series that the most selective matcher selects, expand does not read
	// the lists. Instead the matcher is applied to the labels of the selected series.
	entryBytes = 200
	// smallLists is the size up to which lists are always read.
	smallLists = 64 << 10
)

// expand returns the series that match by the postings that it has read. onLabels are the matchers
// whose postings it has not read: the caller must apply them to the labels of each series. If the
// postings of one matcher that selects several values exceed bytesMax, expand returns ErrLimit.
func (h *header) expand(ctx context.Context, from *pages.Object, matchers []*labels.Matcher,
	bytesMax uint64) (found refs, onLabels []*labels.Matcher, err error) {
	var positive, negative []choice
	for _, m := range matchers {
		c := h.choose(m)
		switch {
		case !c.negated && len(c.lists) == 0:
			return refs{Postings: index.EmptyPostings()}, nil, nil
		case !c.negated:
			positive = append(positive, c)
		case len(c.lists) > 0:
			negative = append(negative, c)
		}
	}
	slices.SortStableFunc(positive, func(a, b choice) int { return cmp.Compare(a.bytes, b.bytes) })
	if len(positive) == 0 {
		all, ok := h.find("", "")
		if !ok {
			return refs{Postings: index.EmptyPostings()}, nil, nil
		}
		positive = []choice{{lists: []list{all}, bytes: all.end - all.off}}
	}
	affordable := max(smallLists, positive[0].bytes/4*entryBytes)
	var wanted, gone []index.Postings
	for i, c := range slices.Concat(positive, negative) {
		if i > 0 && c.bytes > affordable {
			onLabels = append(onLabels, c.matcher)
			continue
		}
		l, err := union(ctx, from, c, bytesMax)
		if err != nil {
			return refs{}, nil, err
		}
		found.lists = append(found.lists, l)
		if c.negated {
			gone = append(gone, l)
		} else {
			wanted = append(wanted, l)
		}
	}
	found.Postings = index.Intersect(wanted...)
	for _, l := range gone {
		found.Postings = index.Without(found.Postings, l)
	}
	return found, onLabels, nil
}

// union returns the references in any of the lists of one label name. Unless the block is corrupt,
// these lists have no reference in common.
func union(ctx context.Context, from *pages.Object, c choice, bytesMax uint64) (*pageRefs, error) {
	if len(c.lists) == 1 {
		return openRefs(ctx, from, c.lists[0])
	}
	if c.bytes > bytesMax {
		return nil, fmt.Errorf("%w: matcher %s selects postings of %d bytes, more than %d", ErrLimit, c.matcher,
			c.bytes, bytesMax)
	}
	spans := make([]pages.Span, len(c.lists))
	for i, l := range c.lists {
		spans[i] = pages.Span{Off: int64(l.off), Len: int64(l.end - min(l.off, l.end))}
	}
	if err := from.Fetch(ctx, spans); err != nil {
		return nil, err
	}
	all := make([]uint32, 0, c.bytes/4)
	for _, l := range c.lists {
		one, err := openRefs(ctx, from, l)
		if err != nil {
			return nil, err
		}
		for one.Next() {
			all = append(all, one.current)
		}
		one.release()
		if one.fail != nil {
			return nil, one.fail
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	r := &pageRefs{n: len(all), window: make([]byte, 0, 4*len(all))}
	for _, ref := range all {
		r.window = binary.BigEndian.AppendUint32(r.window, ref)
	}
	return r, nil
}
