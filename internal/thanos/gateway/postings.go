package gateway

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/blocks/pages"
)

// refs is an ascending list of references to series. After an error ok is always false.
type refs interface {
	// next returns the next reference.
	next() (ref uint32, ok bool)
	// seek returns the first reference that is at least ref and was not returned yet.
	seek(ref uint32) (found uint32, ok bool)
	// release releases the pages that the list holds. The list may be used afterwards.
	release()
	err() error
}

// pageRefs reads a list of postings directly from pages. All numbers are big-endian:
//
//	len u32 | count u32 | ref u32* | crc32
type pageRefs struct {
	ctx    context.Context // stored because a pageRefs belongs to one request
	reader *pages.Reader
	index  *pages.Object
	base   int64  // offset of the first reference
	n, i   int    // number of references; index of the next reference
	window []byte // the references that are read in one page
	from   int    // index of the reference at the start of window
	fail   error
}

// openRefs verifies the checksum of a list and opens it.
func openRefs(ctx context.Context, index *pages.Object, l list) (*pageRefs, error) {
	r := &pageRefs{ctx: ctx, reader: index.Reader(), index: index, base: int64(l.off) + 8}
	defer r.release()
	if l.off > l.end || l.end > uint64(index.Size()) {
		return nil, fmt.Errorf("%w: postings at %d", ErrCorrupt, l.off)
	}
	if err := index.Fetch(ctx, []pages.Span{{Off: int64(l.off), Len: int64(l.end - l.off)}}); err != nil {
		return nil, err
	}
	head, err := r.reader.Bytes(ctx, index, int64(l.off), 8)
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
		part, err := r.reader.At(ctx, index, off)
		if err != nil {
			return nil, err
		}
		part = part[:min(len(part), left)]
		sum = crc32.Update(sum, castagnoli, part)
		left, off = left-len(part), off+int64(len(part))
		r.reader.Release()
	}
	want, err := r.reader.Bytes(ctx, index, off, 4)
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
	if r.fail != nil || r.i >= r.n {
		return false
	}
	r.reader.Release()
	r.window = nil
	part, err := r.reader.At(r.ctx, r.index, r.base+4*int64(r.i))
	if err == nil && len(part) < 4 { // a reference lies in two pages
		part, err = r.reader.Bytes(r.ctx, r.index, r.base+4*int64(r.i), 4)
	}
	if err != nil {
		r.fail = err
		return false
	}
	n := min(len(part)/4, r.n-r.i)
	r.window, r.from = part[:4*n], r.i
	return true
}

func (r *pageRefs) next() (uint32, bool) {
	at := 4 * (r.i - r.from)
	if at >= len(r.window) {
		if !r.fill() {
			return 0, false
		}
		at = 0
	}
	r.i++
	return binary.BigEndian.Uint32(r.window[at:]), true
}

// seek gallops: it doubles its step until it has passed ref. Then it does a binary search
// within the last step.
func (r *pageRefs) seek(ref uint32) (uint32, bool) {
	for {
		at := r.i - r.from
		if 4*at >= len(r.window) {
			if !r.fill() {
				return 0, false
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
		r.i = r.from + low + 1
		return u32At(r.window, low), true
	}
}

func (r *pageRefs) release() {
	r.reader.Release()
	r.window, r.from = nil, r.i
}

func (r *pageRefs) err() error { return r.fail }

// memoryRefs is a list in memory: the union of many short lists.
type memoryRefs struct{ list []uint32 }

func (m *memoryRefs) next() (uint32, bool) {
	if len(m.list) == 0 {
		return 0, false
	}
	ref := m.list[0]
	m.list = m.list[1:]
	return ref, true
}

func (m *memoryRefs) seek(ref uint32) (uint32, bool) {
	i, _ := slices.BinarySearch(m.list, ref)
	m.list = m.list[i:]
	return m.next()
}

func (*memoryRefs) release()   {}
func (*memoryRefs) err() error { return nil }

// both is the intersection of lists. The first list is the shortest: each of its references is
// looked up in the other lists.
type both struct{ all []refs }

func (b both) next() (uint32, bool)           { return b.from(b.all[0].next()) }
func (b both) seek(ref uint32) (uint32, bool) { return b.from(b.all[0].seek(ref)) }

// from returns the first reference from ref on that all lists have.
func (b both) from(ref uint32, ok bool) (uint32, bool) {
	for ok {
		agreed := true
		for _, other := range b.all[1:] {
			found, some := other.seek(ref)
			if !some {
				return 0, false
			}
			if found > ref {
				ref, ok = b.all[0].seek(found)
				agreed = false
				break
			}
		}
		if agreed {
			return ref, true
		}
	}
	return 0, false
}

func (b both) release() {
	for _, l := range b.all {
		l.release()
	}
}

func (b both) err() error { return firstError(b.all) }

func firstError(all []refs) error {
	for _, l := range all {
		if err := l.err(); err != nil {
			return err
		}
	}
	return nil
}

// peeked is a list that keeps the reference that seek found last. A seek for this reference, or
// for a lower one, returns the same reference again.
type peeked struct {
	refs
	at    uint32
	valid bool // at is the reference that seek found last; false before the first seek
	ended bool
}

func (p *peeked) seek(ref uint32) (uint32, bool) {
	if p.ended || p.valid && p.at >= ref {
		return p.at, !p.ended
	}
	at, ok := p.refs.seek(ref)
	p.at, p.valid, p.ended = at, ok, !ok
	return at, ok
}

// without is a list without the references that are in any of the lists gone.
type without struct {
	refs
	gone []*peeked
}

func (w without) next() (uint32, bool)           { return w.from(w.refs.next()) }
func (w without) seek(ref uint32) (uint32, bool) { return w.from(w.refs.seek(ref)) }

func (w without) from(ref uint32, ok bool) (uint32, bool) {
	for ; ok; ref, ok = w.refs.next() {
		gone := false
		for _, g := range w.gone {
			if at, some := g.seek(ref); some && at == ref {
				gone = true
				break
			}
		}
		if !gone {
			return ref, true
		}
	}
	return 0, false
}

func (w without) release() {
	w.refs.release()
	for _, g := range w.gone {
		g.release()
	}
}

func (w without) err() error {
	for _, g := range w.gone {
		if err := g.err(); err != nil {
			return err
		}
	}
	return w.refs.err()
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
func (h *header) expand(ctx context.Context, index *pages.Object, matchers []*labels.Matcher,
	bytesMax uint64) (_ refs, onLabels []*labels.Matcher, err error) {
	var positive, negative []choice
	for _, m := range matchers {
		c := h.choose(m)
		switch {
		case !c.negated && len(c.lists) == 0:
			return &memoryRefs{}, nil, nil
		case !c.negated:
			positive = append(positive, c)
		case len(c.lists) > 0:
			negative = append(negative, c)
		}
	}
	slices.SortStableFunc(positive, func(a, b choice) int { return compareUint(a.bytes, b.bytes) })
	if len(positive) == 0 {
		all, ok := h.find("", "")
		if !ok {
			return &memoryRefs{}, nil, nil
		}
		positive = []choice{{lists: []list{all}, bytes: all.end - all.off}}
	}
	affordable := max(smallLists, positive[0].bytes/4*entryBytes)
	var wanted []refs
	for i, c := range positive {
		if i > 0 && c.bytes > affordable {
			onLabels = append(onLabels, c.matcher)
			continue
		}
		l, err := union(ctx, index, c, bytesMax)
		if err != nil {
			return nil, nil, err
		}
		wanted = append(wanted, l)
	}
	result := wanted[0]
	if len(wanted) > 1 {
		for i := range wanted[1:] {
			wanted[i+1] = &peeked{refs: wanted[i+1]}
		}
		result = both{wanted}
	}
	var gone []*peeked
	for _, c := range negative {
		if c.bytes > affordable {
			onLabels = append(onLabels, c.matcher)
			continue
		}
		l, err := union(ctx, index, c, bytesMax)
		if err != nil {
			return nil, nil, err
		}
		gone = append(gone, &peeked{refs: l})
	}
	if len(gone) > 0 {
		result = without{result, gone}
	}
	return result, onLabels, nil
}

func compareUint(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// union returns the references in any of the lists of one label name. Unless the block is corrupt,
// these lists have no reference in common.
func union(ctx context.Context, index *pages.Object, c choice, bytesMax uint64) (refs, error) {
	if len(c.lists) == 1 {
		return openRefs(ctx, index, c.lists[0])
	}
	if c.bytes > bytesMax {
		return nil, fmt.Errorf("%w: matcher %s selects postings of %d bytes, more than %d", ErrLimit, c.matcher,
			c.bytes, bytesMax)
	}
	spans := make([]pages.Span, len(c.lists))
	for i, l := range c.lists {
		spans[i] = pages.Span{Off: int64(l.off), Len: int64(l.end - min(l.off, l.end))}
	}
	if err := index.Fetch(ctx, spans); err != nil {
		return nil, err
	}
	all := make([]uint32, 0, c.bytes/4)
	for _, l := range c.lists {
		one, err := openRefs(ctx, index, l)
		if err != nil {
			return nil, err
		}
		for ref, ok := one.next(); ok; ref, ok = one.next() {
			all = append(all, ref)
		}
		one.release()
		if one.fail != nil {
			return nil, one.fail
		}
	}
	slices.Sort(all)
	return &memoryRefs{slices.Compact(all)}, nil
}
