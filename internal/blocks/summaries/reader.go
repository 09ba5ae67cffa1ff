package summaries

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/series"
)

// Table says where the groups of a file are.
type Table struct {
	entries []byte
	end     uint64 // of the last group
}

// table checks src, the bytes of the table, which the result aliases.
func (h header) table(src []byte) (Table, error) {
	entries, err := checked(src)
	if err != nil {
		return Table{}, fmt.Errorf("table: %w", err)
	}
	t := Table{entries, h.TableAt}
	ref, at := -1, uint64(headerBytes)
	for i := range t.Len() {
		if int(t.ref(i)) <= ref || t.offset(i) < at || t.offset(i) > t.end {
			return Table{}, fmt.Errorf("%w: group %d is out of order", ErrCorrupt, i)
		}
		ref, at = int(t.ref(i)), t.offset(i)
		if n := t.offset(i+1) - at; n > groupMax {
			return Table{}, fmt.Errorf("%w: group %d has %d bytes", ErrCorrupt, i, n)
		}
	}
	return t, nil
}

// Len returns the number of groups.
func (t Table) Len() int { return len(t.entries) / entryBytes }

func (t Table) ref(i int) uint64 {
	return uint64(binary.LittleEndian.Uint32(t.entries[i*entryBytes:]))
}

func (t Table) offset(i int) uint64 {
	if i == t.Len() {
		return t.end
	}
	return binary.LittleEndian.Uint64(t.entries[i*entryBytes+4:])
}

// Find returns the group that has the summaries of a series, if any group has; -1: none.
func (t Table) Find(ref uint64) int {
	return sort.Search(t.Len(), func(i int) bool { return t.ref(i) > ref }) - 1
}

// Range returns the range of a group in the file.
func (t Table) Range(group int) (from, to uint64) { return t.offset(group), t.offset(group + 1) }

// Group is the summaries of some series. Its zero value has none.
type Group struct {
	rest []byte
	ref  uint64 // of the series before rest; of the first one, its own
}

// OpenGroup checks the bytes of a group, which the result aliases.
func (t Table) OpenGroup(group int, src []byte) (Group, error) {
	body, err := checked(src)
	if err != nil {
		return Group{}, fmt.Errorf("group %d: %w", group, err)
	}
	return Group{body, t.ref(group)}, nil
}

// Seek moves forward to a series; ok is false if the group does not have it. The series must be behind the one of the
// call before.
func (g *Group) Seek(ref uint64) (s Series, ok bool, err error) {
	for len(g.rest) > 0 {
		r := blocks.Varints{Src: g.rest}
		at := g.ref + r.Uvarint()
		size := r.Uvarint()
		if r.Bad || size > uint64(len(r.Src)) {
			g.rest = nil
			return s, false, fmt.Errorf("%w: a group is cut short", ErrCorrupt)
		}
		if at > ref {
			return s, false, nil
		}
		g.ref, g.rest = at, r.Src[size:]
		if at == ref {
			return Series{r: blocks.Varints{Src: r.Src[:size]}}, true, nil
		}
	}
	return s, false, nil
}

// Series iterates over the summaries of a series, one for each chunk in the index.
type Series struct {
	r      blocks.Varints
	before before
	s      series.Summary
	cut    bool   // s is of a part of a chunk that another one follows
	parts  []part // of the chunk; none: it is not cut
	err    error
}

// Next reads the next summary. It returns false at the end and after an error.
func (s *Series) Next() bool {
	s.parts = s.parts[:0]
	ok := s.next()
	for ok && s.cut {
		s.parts = append(s.parts, part{Summary: s.s, end: s.before.times[2], start: s.before.times[3]})
		ok = s.next()
	}
	if len(s.parts) > 0 && ok {
		s.parts = append(s.parts, part{Summary: s.s})
		s.s = s.parts[0].Summary
		for i := range s.parts[1:] {
			s.s.Extend(&s.parts[i+1].Summary, false)
		}
	}
	return ok
}

// next reads the summary of a chunk or of a part of it.
func (s *Series) next() bool {
	if len(s.r.Src) == 0 && !s.cut {
		return false
	}
	b := &s.before
	s.cut = false
	flags := s.flags()
	if flags&present == 0 {
		if flags == 0 && len(s.parts) == 0 && !s.r.Bad {
			s.s = series.Summary{}
			return true
		}
		if flags == times {
			for i := range b.times {
				b.times[i] = int64(s.r.Uvarint())
			}
			flags = s.flags()
		}
		if s.cut = flags == cut; s.cut {
			flags = s.flags()
		}
	}
	if flags&newCount != 0 {
		b.count = int(min(s.r.Uvarint(), math.MaxUint32))
		b.gap = byte(min(s.r.Uvarint(), math.MaxUint8))
	}
	s.s.Gap, s.s.Second, s.s.Late = b.gap, b.times[0], b.times[1]
	s.s.Count, s.s.Falls = b.count, flags&falls != 0
	var first, last uint64
	if flags&(newChanges|same|flat|floats) == newChanges {
		var changes uint64
		changes, first, last = s.r.Three()
		b.changes = int(min(changes, math.MaxUint32))
	} else {
		if flags&newChanges != 0 {
			b.changes = int(min(s.r.Uvarint(), math.MaxUint32))
		}
		if flags&(same|floats) == 0 {
			first = s.r.Uvarint()
		}
		if flags&(flat|floats) == 0 {
			last = s.r.Uvarint()
		}
	}
	s.s.Changes = b.changes
	if flags&flat != 0 {
		s.s.Changes = 0
	}
	s.s.First = b.last
	if flags&floats != 0 {
		s.floats(flags)
	} else {
		s.integers(flags, blocks.Signed(first), blocks.Signed(last))
	}
	b.last = s.s.Last
	if s.r.Bad || flags&present == 0 || s.s.Count == 0 || s.s.Count > math.MaxUint16 || s.s.Changes >= s.s.Count ||
		s.s.Gap > series.GapMax || s.cut && (b.times[2] < 0 || b.times[3] <= 0 || len(s.parts) == partsMax) {
		s.r.Src, s.err = nil, fmt.Errorf("%w: a summary is not valid", ErrCorrupt)
		return false
	}
	return true
}

// flags reads a byte.
func (s *Series) flags() (b byte) {
	if s.r.Bad = s.r.Bad || len(s.r.Src) == 0; !s.r.Bad {
		b, s.r.Src = s.r.Src[0], s.r.Src[1:]
	}
	return b
}

// at returns the parts of a chunk, or with whole all of it. It returns none if their times are not within the chunk.
func (s *Series) at(minMS, maxMS int64, whole bool) []part {
	if len(s.parts) == 0 || whole {
		s.parts = append(s.parts[:0], part{Summary: s.s})
	}
	for i := range s.parts {
		p := &s.parts[i]
		p.minMS, p.maxMS = minMS, maxMS
		if i < len(s.parts)-1 {
			at := hour(minMS)
			p.maxMS, minMS = at-p.end, at+p.start
		}
		if p.minMS > p.maxMS || i < len(s.parts)-1 && minMS <= p.maxMS { // the next part is earlier: a sum overflowed
			return nil
		}
	}
	return s.parts
}

// The sum of 2*bytesMax bytes, each without its highest bit, fits into 16 bits.
const bytesMax = 256

// Extend adds the next summaries to sum, which ends with the current one: at most n, and only of integers of which none
// is less than the one before. It returns how many; the rest is for Next, before which At is not valid.
func (s *Series) Extend(sum *series.Summary, n int) (added int) {
	b := &s.before
	if b.count == 0 || b.last != sum.Last || b.last != float64(b.integer) {
		return 0
	}
	// In registers, and without branches that depend on the data. even and odd have sums of the bytes of first and last
	// with even and with odd numbers, without the highest bits.
	src, at, changes, count, total := s.r.Src, 0, uint64(b.changes), b.count, uint64(0)
	var even, odd uint64
	n = min(n, (math.MaxInt32-sum.Count)/count, bytesMax)
	for most := uint64(min(count, 0x80)); added < n && len(src)-at > 8; added++ {
		flags, w := src[at], binary.LittleEndian.Uint64(src[at+1:])
		size := uint64(flags&newChanges) / newChanges // of the changes, in bytes
		now := changes ^ (changes^w&0xff)&-size
		w >>= 8 * size & 63
		first := blocks.VarintEnds(w)
		second := first & (first - 1)
		i, j := uint64(bits.TrailingZeros64(first)), uint64(bits.TrailingZeros64(second))
		x, y := w&(first^(first-1)), w&(second^(second-1))>>((i+1)&63)
		if flags|newChanges != present|newChanges || now >= most || j+8*size >= 64 || (x|y)&1 != 0 {
			break
		}
		x = x&0x7f7f7f7f7f7f7f7f + y&0x7f7f7f7f7f7f7f7f
		even, odd = even+x&0x00ff00ff00ff00ff, odd+x>>8&0x00ff00ff00ff00ff
		changes, total = now, total+now+1
		at += int(j/8 + size + 2)
	}
	for i := 0; i < 64; i += 16 {
		b.integer += int64(even>>i&0xffff)<<(i/16*14)>>1 + int64(odd>>i&0xffff)<<(i/16*14+7)>>1
	}
	s.r.Src, b.changes, b.last = src[at:], int(changes), float64(b.integer)
	sum.Changes += int(total)
	sum.Count, sum.Last, sum.Max = sum.Count+added*count, b.last, max(sum.Max, b.last)
	return added
}

// integers computes integers from the differences to the numbers before them.
func (s *Series) integers(flags byte, first, last int64) {
	before := s.before.integer
	if flags&same != 0 {
		before = int64(s.before.last)
	}
	first += before
	s.before.integer = first + last
	s.s.First, s.s.Last = float64(first), float64(s.before.integer)
	s.s.Min, s.s.Max = s.s.First, s.s.Last
	if s.s.Min > s.s.Max { // the functions min and max take longer: they expect NaN
		s.s.Min, s.s.Max = s.s.Last, s.s.First
	}
	if flags&extremes != 0 {
		s.s.Min -= float64(s.r.Uvarint())
		s.s.Max += float64(s.r.Uvarint())
	}
}

func (s *Series) floats(flags byte) {
	first, last := math.Float64bits(s.s.First), uint64(0)
	if flags&same == 0 || flags&flat == 0 {
		x, y := s.pair()
		first ^= x
		last = y
	}
	s.s.First, s.s.Last = math.Float64frombits(first), math.Float64frombits(first^last)
	s.s.Min, s.s.Max = min(s.s.First, s.s.Last), max(s.s.First, s.s.Last)
	if flags&extremes != 0 {
		x, y := s.pair()
		s.s.Min = math.Float64frombits(math.Float64bits(s.s.Min) ^ x)
		s.s.Max = math.Float64frombits(math.Float64bits(s.s.Max) ^ y)
	}
}

func (s *Series) pair() (x, y uint64) {
	x, y, rest, ok := pair(s.r.Src)
	s.r.Src, s.r.Bad = rest, s.r.Bad || !ok
	return x, y
}

// At returns the current summary, borrowed until Next. Without samples it means that the chunk has none.
func (s *Series) At() *series.Summary { return &s.s }

// Err returns the error after which Next returned false, an ErrCorrupt; nil at the end.
func (s *Series) Err() error { return s.err }

// OpenTable reads the header and the table of the file of a block, of a size in bytes, and checks both; groups are
// checked when they are read. The result aliases what read returns.
func OpenTable(size uint64, block Block, read func(from, to uint64) ([]byte, error)) (Table, error) {
	head, err := read(0, min(size, headerBytes))
	if err != nil {
		return Table{}, err
	}
	h, err := readHeader(head, block)
	if err != nil {
		return Table{}, err
	}
	if end := h.TableAt + h.tableBytes(); size != end {
		return Table{}, fmt.Errorf("%w: %d bytes, not %d", ErrCorrupt, size, end)
	}
	src, err := read(h.TableAt, size)
	if err != nil {
		return Table{}, err
	}
	return h.table(src)
}

// Reader reads a file that is in memory as a whole, for example mapped. It is safe for concurrent use.
type Reader struct {
	file  []byte
	table Table
}

// Open is OpenTable for a file in memory, which the reader aliases.
func Open(file []byte, block Block) (*Reader, error) {
	r := &Reader{file: file}
	var err error
	r.table, err = OpenTable(uint64(len(file)), block, r.read)
	return r, err
}

func (r *Reader) read(from, to uint64) ([]byte, error) { return r.file[from:to], nil }

// Cursor finds series in a file. It is fastest if their references ascend.
type Cursor struct {
	table *Table
	read  func(from, to uint64) ([]byte, error)
	open  int // number of the group, from 1; 0: none
	group Group
}

// Cursor returns a cursor.
func (r *Reader) Cursor() *Cursor { return r.table.Cursor(r.read) }

// Cursor returns a cursor that reads groups by a function. What read returns must be valid until it is called again.
func (t *Table) Cursor(read func(from, to uint64) ([]byte, error)) *Cursor {
	return &Cursor{table: t, read: read}
}

// Seek returns the summaries of a series; ok is false if the file has none.
func (c *Cursor) Seek(ref uint64) (s Series, ok bool, err error) {
	t := c.table
	if c.open == 0 || ref <= c.group.ref || c.open < t.Len() && ref >= t.ref(c.open) {
		i := t.Find(ref)
		if i < 0 {
			return s, false, nil
		}
		from, to := t.Range(i)
		c.open = 0
		src, err := c.read(from, to)
		if err == nil {
			c.group, err = t.OpenGroup(i, src)
		}
		if err != nil {
			return s, false, err
		}
		c.open = i + 1
	}
	return c.group.Seek(ref)
}
