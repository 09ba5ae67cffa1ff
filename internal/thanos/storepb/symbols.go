package storepb

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// Labels as symbols, between two ferula processes:
//
//	symbol batch  (0x0A len symbol | 0x12 len series)*   a symbol before the first series that uses it
//	symbol        [0x08 number of a label with the same name, plus 1] [0x12 len name] [0x1A len value]
//	series        [0x18 head] [0x0A len (number)*] [0x20 tail]  (0x12 len chunk)*    numbered
//	              0x2A len delta  (0x12 len chunk)*                                  delta: see appendDelta
//	              0x32 len repeat  (0x12 len chunk)*                                 of a kept delta: see keptDeltas
//
// A series is sent in one of two kinds. A numbered series refers to symbols: each of its labels is sent
// once per stream, as a symbol, which gets the next number. The other kind is a delta, or a repeat of a
// delta: it needs no numbers from the source of the series. Either kind is the difference from the series
// before in the same message, if that series is of the same kind, and otherwise the difference from an
// empty label set. In a numbered series head is the number of equal labels at the front, tail the number
// of equal labels at the end. Writers send deltas only to readers that request them, and repeats only to
// readers that announce how many bytes of deltas they keep.

// Limits of a writer's table. Once the table is full, further labels of the stream are sent as
// strings. A reader accepts twice as much, since the series that fills the table may have many
// new labels.
const (
	symbolsMax     = 1 << 20
	symbolBytesMax = 32 << 20
)

// SymbolWriter numbers the labels of a stream to send.
type SymbolWriter struct {
	numbers numberTable
	names   map[string]uint32 // number of a label with that name
	bytes   int               // of the names and values that were sent
	before  []uint64          // the caller's numbers of the labels of the series before in the same message
	next    []uint32          // the stream's numbers of the same labels
	base    []byte            // labels of the series before in the same message; empty if it was numbered
	packed  []byte
	kept    deltaIndex
}

// NewSymbolWriter returns the writer of a new stream.
func NewSymbolWriter() *SymbolWriter {
	return &SymbolWriter{names: map[string]uint32{}}
}

// KeepDeltas lets the writer send repeats. bytes is the number of bytes of deltas that the reader has announced to
// keep. The caller calls KeepDeltas before the first series.
func (w *SymbolWriter) KeepDeltas(bytes int64) { w.kept.limit = int(min(max(bytes, 0), keptBytesMax)) }

// Begin begins a message.
func (w *SymbolWriter) Begin() { w.before, w.next, w.base = w.before[:0], w.next[:0], w.base[:0] }

// Full reports whether the table is full. The caller then sends labels as strings.
func (w *SymbolWriter) Full() bool {
	return len(w.numbers.entries) >= symbolsMax-1<<10 || w.bytes >= symbolBytesMax
}

// SymbolSeriesSizeMax returns an upper bound of the bytes that AppendSeries appends, plus chunksSize.
func SymbolSeriesSizeMax(labelsLen, labelCount, chunksSize int) int {
	return labelsLen + 32*labelCount + 32 + chunksSize
}

// AppendSeries appends the new labels and then the head of a series, as AppendSeriesHead
// does. labels is the encoded set. numbers has one number per label, which identifies
// the label throughout the stream.
func (w *SymbolWriter) AppendSeries(dst, labels []byte, numbers []uint64, chunksSize int) ([]byte, error) {
	w.base = w.base[:0]
	shorter := min(len(numbers), len(w.before))
	head, tail := 0, 0
	for head < shorter && numbers[head] == w.before[head] {
		head++
	}
	for tail < shorter-head && numbers[len(numbers)-1-tail] == w.before[len(w.before)-1-tail] {
		tail++
	}
	w.packed = w.packed[:0]
	w.align(len(numbers), tail)
	for i := head; i < len(numbers)-tail; i++ {
		after := noLabel
		if i < shorter {
			after = w.next[i]
		}
		n, known := w.numbers.of(numbers[i], after)
		if !known {
			var err error
			if dst, err = w.appendSymbol(dst, labels, i, n); err != nil {
				return dst, err
			}
		}
		w.next[i] = n
		if n < 0x80 {
			w.packed = append(w.packed, byte(n))
		} else if n < 0x80<<7 {
			w.packed = append(w.packed, byte(n)|0x80, byte(n>>7))
		} else {
			w.packed = binary.AppendUvarint(w.packed, uint64(n))
		}
	}
	copy(w.before[head:], numbers[head:])
	size := varintFieldSize(uint64(head)) + varintFieldSize(uint64(tail)) + chunksSize
	if len(w.packed) > 0 {
		size += 1 + protowire.SizeVarint(uint64(len(w.packed))) + len(w.packed)
	}
	dst = binary.AppendUvarint(append(dst, 2<<3|wireBytes), uint64(size))
	dst = appendVarint(dst, 3<<3, uint64(head))
	if len(w.packed) > 0 {
		dst = append(dst, 1<<3|wireBytes)
		dst = binary.AppendUvarint(dst, uint64(len(w.packed)))
		dst = append(dst, w.packed...)
	}
	return appendVarint(dst, 4<<3, uint64(tail)), nil
}

// DeltaSeriesSizeMax returns an upper bound of the bytes that AppendDeltaSeries appends, plus chunksSize.
func (w *SymbolWriter) DeltaSeriesSizeMax(labelsLen, chunksSize int) int {
	return len(w.base) + labelsLen + 32 + chunksSize
}

// AppendDeltaSeries appends the head of a series as AppendSeries does, without numbers.
func (w *SymbolWriter) AppendDeltaSeries(dst, labels []byte, chunksSize int) ([]byte, error) {
	w.before, w.next = w.before[:0], w.next[:0]
	var exact bool
	var err error
	if w.packed, exact, err = appendDelta(w.packed[:0], w.base, labels); err != nil {
		return dst, err
	}
	first := len(w.base) == 0 // the delta is a whole set: it is not kept, because hardly any series repeats it
	if exact {
		w.base = append(w.base[:0], labels...)
	} else if w.base, err = applyDelta(nil, w.base, w.packed); err != nil {
		// base must be the labels that the reader decodes
		return dst, err
	}
	tag := byte(tagDelta)
	if w.kept.limit > 0 && !first && len(w.packed) >= keptDeltaMin {
		var isRepeat bool
		if w.packed, isRepeat = w.kept.replace(w.packed); isRepeat {
			tag = tagRepeat
		}
	}
	size := 1 + protowire.SizeVarint(uint64(len(w.packed))) + len(w.packed) + chunksSize
	dst = binary.AppendUvarint(append(dst, 2<<3|wireBytes), uint64(size))
	dst = binary.AppendUvarint(append(dst, tag), uint64(len(w.packed)))
	return append(dst, w.packed...), nil
}

// align sets the length of before and next to count, the number of labels of a series. The series
// has its last tail labels in common with the series before: align moves their elements of next to
// the new end of next.
func (w *SymbolWriter) align(count, tail int) {
	had := len(w.before)
	if had == count {
		return
	}
	w.before = slices.Grow(w.before, max(count-had, 0))[:count]
	w.next = slices.Grow(w.next, max(count-had, 0))[:max(count, had)]
	copy(w.next[count-tail:], w.next[had-tail:had])
	w.next = w.next[:count]
}

// noLabel stands for the label before the first label of a series.
const noLabel = ^uint32(0)

// numberTable maps the label numbers of a source to the label numbers of the stream. The stream
// numbers its labels 0, 1, 2, … in the order in which they first occur. The table is a hash table
// with open addressing, because it is looked up for every label that changes between two series.
// Labels tend to occur in the same order again, for example pod after pod for each container. So
// each entry has the number that followed the entry last, and a lookup tries this number first.
// The entry of that number is usually near in memory.
type numberTable struct {
	slots   []uint32 // numbers plus 1; the length is a power of two, at least twice the entries
	entries []tableEntry
}

type tableEntry struct {
	number uint64
	next   uint32 // the last number that followed this one
}

// of returns the stream's number for a source's number. after is the stream's number of the
// label before it, or noLabel. known is false if the number is new.
func (t *numberTable) of(number uint64, after uint32) (n uint32, known bool) {
	if after != noLabel {
		if n := t.entries[after].next; t.entries[n].number == number {
			return n, true
		}
	}
	if 2*len(t.entries) >= len(t.slots) {
		t.grow()
	}
	slot := t.find(number)
	if known = *slot > 0; !known {
		t.entries = append(t.entries, tableEntry{number: number, next: uint32(len(t.entries))})
		*slot = uint32(len(t.entries))
	}
	if after != noLabel {
		t.entries[after].next = *slot - 1
	}
	return *slot - 1, known
}

func (t *numberTable) find(number uint64) *uint32 {
	mask := uint64(len(t.slots) - 1)
	for at := number * 0x9E3779B97F4A7C15 >> 20; ; at++ { // the upper bits are well mixed
		if slot := &t.slots[at&mask]; *slot == 0 || t.entries[*slot-1].number == number {
			return slot
		}
	}
}

func (t *numberTable) grow() {
	t.slots = make([]uint32, max(256, 4*len(t.slots)))
	for i := range t.entries {
		*t.find(t.entries[i].number) = uint32(i + 1)
	}
}

// appendSymbol appends label i of a set as a symbol.
func (w *SymbolWriter) appendSymbol(dst, labels []byte, i int, number uint32) ([]byte, error) {
	name, value, err := labelAt(labels, i)
	if err != nil {
		return dst, err
	}
	w.bytes += len(name) + len(value)
	of, known := w.names[string(name)]
	size := 0
	if known {
		size = varintFieldSize(uint64(of) + 1)
	} else {
		w.names[string(name)] = number
		size = 1 + protowire.SizeVarint(uint64(len(name))) + len(name)
	}
	size += 1 + protowire.SizeVarint(uint64(len(value))) + len(value)
	dst = binary.AppendUvarint(append(dst, 1<<3|wireBytes), uint64(size))
	if known {
		dst = appendVarint(dst, 1<<3, uint64(of)+1)
	} else {
		dst = binary.AppendUvarint(append(dst, 2<<3|wireBytes), uint64(len(name)))
		dst = append(dst, name...)
	}
	dst = binary.AppendUvarint(append(dst, 3<<3|wireBytes), uint64(len(value)))
	return append(dst, value...), nil
}

// labelAt returns label i of an encoded set.
func labelAt(labels []byte, i int) (name, value []byte, err error) {
	for ; len(labels) > 0; i-- {
		label, rest, ok := prefixed(labels[1:])
		if !ok {
			break
		}
		if i > 0 {
			labels = rest
			continue
		}
		return namedValue(label)
	}
	return nil, nil, fmt.Errorf("%w: fewer labels than numbers", ErrCorrupt)
}

func namedValue(label []byte) (name, value []byte, err error) {
	for len(label) > 0 {
		field, rest, ok := prefixed(label[1:])
		if !ok {
			return nil, nil, fmt.Errorf("%w: a label is cut short", ErrCorrupt)
		}
		if label[0] == 1<<3|wireBytes {
			name = field
		} else {
			value = field
		}
		label = rest
	}
	return name, value, nil
}

// SealSymbolBatch ends a response that begins with AppendSymbolHead.
func SealSymbolBatch(buf []byte) {
	putPadded(buf[symbolTagBytes:], len(buf)-symbolTagBytes-paddedBytes)
}

const symbolTagBytes = 3

// AppendSymbolHead reserves the header of a symbol batch.
func AppendSymbolHead(dst []byte) []byte {
	return append(binary.AppendUvarint(dst, tagSymbolBatch), 0, 0, 0, 0)
}

// SymbolReader decodes symbol batches. It has the labels that the stream has sent so far.
type SymbolReader struct {
	pairs  []byte // the labels, encoded as in a label set
	ends   []int  // offset of the end of each label in pairs
	before []byte // labels of the series before in the same message
	starts []int  // offset of each label in before, and of the end
	spare  []int  // memory for the next starts
	base   []byte // labels of the series before in the same message; nil if it was numbered
	kept   keptDeltas
}

// The tags of a series without numbers.
const (
	tagDelta  = 5<<3 | wireBytes
	tagRepeat = 6<<3 | wireBytes
)

// KeepDeltas sets how many bytes of deltas are kept: what the request has announced.
func (r *SymbolReader) KeepDeltas(bytes int) { r.kept.limit = bytes }

// Begin begins a message.
func (r *SymbolReader) Begin() { r.before, r.base, r.starts = nil, nil, append(r.starts[:0], 0) }

// Bytes returns the memory of the table and of the kept deltas.
func (r *SymbolReader) Bytes() int64 {
	return r.kept.bytes() + int64(cap(r.pairs)) + int64(unsafe.Sizeof(int(0)))*int64(cap(r.ends)+cap(r.starts)+
		cap(r.spare))
}

// Next cuts the first series off a batch and adds the symbols before it to the table.
// series is nil at the end.
func (r *SymbolReader) Next(batch []byte) (series, rest []byte, err error) {
	for len(batch) > 0 {
		tag, n := uvarint(batch)
		if n == 0 {
			return nil, nil, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		switch tag {
		case 1<<3 | wireBytes, 2<<3 | wireBytes:
			body, rest, ok := prefixed(batch[n:])
			if !ok {
				return nil, nil, cutShort(tag)
			}
			if tag == 2<<3|wireBytes {
				return body, rest, nil
			}
			if err := r.addSymbol(body); err != nil {
				return nil, nil, err
			}
			batch = rest
		default:
			if batch, err = skip(tag, batch[n:]); err != nil {
				return nil, nil, err
			}
		}
	}
	return nil, nil, nil
}

func (r *SymbolReader) addSymbol(src []byte) error {
	var name, value []byte
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		var err error
		switch tag {
		case 1 << 3:
			of, m := uvarint(src[n:])
			if m == 0 || of > uint64(len(r.ends)) {
				return fmt.Errorf("%w: a symbol refers to the name of an unknown symbol", ErrCorrupt)
			}
			if of > 0 {
				if name, _, err = labelAt(r.pair(int(of-1)), 0); err != nil {
					return err
				}
			}
			src = src[n+m:]
		case 2<<3 | wireBytes, 3<<3 | wireBytes:
			text, rest, ok := prefixed(src[n:])
			if !ok {
				return cutShort(tag)
			}
			if tag == 2<<3|wireBytes {
				name = text
			} else {
				value = text
			}
			src = rest
		default:
			if src, err = skip(tag, src[n:]); err != nil {
				return err
			}
		}
	}
	if len(r.ends) >= 2*symbolsMax || len(r.pairs) > 2*symbolBytesMax {
		return fmt.Errorf("%w: more than %d symbols or %d bytes of symbols", ErrCorrupt, 2*symbolsMax, 2*symbolBytesMax)
	}
	body := 2 + protowire.SizeVarint(uint64(len(name))) + len(name) + protowire.SizeVarint(uint64(len(value))) + len(value)
	r.pairs = binary.AppendUvarint(append(r.pairs, 1<<3|wireBytes), uint64(body))
	r.pairs = binary.AppendUvarint(append(r.pairs, 1<<3|wireBytes), uint64(len(name)))
	r.pairs = append(r.pairs, name...)
	r.pairs = binary.AppendUvarint(append(r.pairs, 2<<3|wireBytes), uint64(len(value)))
	r.pairs = append(r.pairs, value...)
	r.ends = append(r.ends, len(r.pairs))
	return nil
}

func (r *SymbolReader) pair(n int) []byte {
	start := 0
	if n > 0 {
		start = r.ends[n-1]
	}
	return r.pairs[start:r.ends[n]]
}

// labelArenaMax limits the bytes of the decoded labels of one message.
const labelArenaMax = 64 << 20

// DecodeSeries decodes a series. It appends the labels of the series to arena. The caller must not
// overwrite arena before the next series of the message is decoded, because that series may be a
// difference from this one. It appends the chunks of the series, whose data aliases src, to chunks.
func (r *SymbolReader) DecodeSeries(src, arena []byte, chunks []Chunk) (labels, arenaOut []byte, _ []Chunk, err error) {
	var head, tail uint64
	var packed, delta []byte
	form := uint64(0) // tagDelta, tagRepeat, or 0 for numbers
	for len(src) > 0 {
		tag, n := uvarint(src)
		if n == 0 {
			return nil, arena, chunks, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
		}
		switch tag {
		case 3 << 3, 4 << 3:
			v, m := uvarint(src[n:])
			if m == 0 {
				return nil, arena, chunks, cutShort(tag)
			}
			if tag == 3<<3 {
				head = v
			} else {
				tail = v
			}
			src = src[n+m:]
		case 1<<3 | wireBytes, 2<<3 | wireBytes, tagDelta, tagRepeat:
			body, rest, ok := prefixed(src[n:])
			if !ok {
				return nil, arena, chunks, cutShort(tag)
			}
			switch tag {
			case 1<<3 | wireBytes:
				packed = body
			case tagDelta, tagRepeat:
				if form != 0 && form != tag {
					return nil, arena, chunks, fmt.Errorf("%w: a series has both a delta and a repeat", ErrCorrupt)
				}
				delta, form = body, tag
			default:
				if chunks, err = decodeSpan(body, chunks); err != nil {
					return nil, arena, chunks, err
				}
			}
			src = rest
		default:
			if src, err = skip(tag, src[n:]); err != nil {
				return nil, arena, chunks, err
			}
		}
	}
	start := len(arena)
	if form != 0 {
		if head|tail > 0 || len(packed) > 0 {
			return nil, arena, chunks, fmt.Errorf("%w: a series has both numbers and a delta", ErrCorrupt)
		}
		if form == tagRepeat {
			arena, err = r.appendRepeatLabels(arena, delta)
		} else {
			arena, err = r.appendDeltaLabels(arena, delta)
		}
	} else {
		arena, err = r.appendLabels(arena, head, tail, packed)
	}
	if err != nil {
		return nil, arena[:start], chunks, err
	}
	r.before, r.base = arena[start:len(arena):len(arena)], nil
	if form != 0 {
		r.base = r.before
	}
	return r.before, arena, chunks, nil
}

// appendDeltaLabels appends the label set of a series with a delta.
func (r *SymbolReader) appendDeltaLabels(arena, delta []byte) (_ []byte, err error) {
	if len(delta) > 0 && delta[0]&keptBit != 0 {
		head, n := uvarint(delta)
		if n == 0 {
			return arena, errEditShort()
		}
		head &^= keptBit
		if err := r.kept.keep(head, delta[n:]); err != nil {
			return arena, err
		}
		arena, err = applyEdits(arena, r.base, head, delta[n:])
	} else {
		arena, err = applyDelta(arena, r.base, delta)
	}
	return arena, r.endDelta(arena, err)
}

// appendRepeatLabels appends the label set of a series that repeats a kept delta.
func (r *SymbolReader) appendRepeatLabels(arena, repeat []byte) ([]byte, error) {
	kind, skip, body, err := r.kept.repeated(repeat)
	if err == nil {
		arena, err = applyRepeat(arena, r.base, kind, skip, body)
	}
	return arena, r.endDelta(arena, err)
}

func (r *SymbolReader) endDelta(arena []byte, err error) error {
	if err == nil && len(arena) > labelArenaMax {
		err = errArena()
	}
	if err == nil {
		r.starts = append(r.starts[:0], 0) // a numbered series has no head or tail in common with this one
	}
	return err
}

func errArena() error {
	return fmt.Errorf("%w: labels of a message have more than %d bytes", ErrCorrupt, labelArenaMax)
}

// appendLabels appends the label set of a series.
func (r *SymbolReader) appendLabels(arena []byte, head, tail uint64, packed []byte) ([]byte, error) {
	count := uint64(max(len(r.starts)-1, 0))
	if head > count || tail > count-head {
		return arena, fmt.Errorf("%w: head %d and tail %d exceed the %d labels of the series before", ErrCorrupt, head,
			tail, count)
	}
	start := len(arena)
	starts := r.spare[:0]
	if head > 0 {
		starts = append(starts, r.starts[:head]...)
		arena = append(arena, r.before[:r.starts[head]]...)
	}
	for len(packed) > 0 {
		n, m := uvarint(packed)
		if m == 0 || n >= uint64(len(r.ends)) {
			return arena, fmt.Errorf("%w: a series refers to the unknown symbol %d", ErrCorrupt, n)
		}
		packed = packed[m:]
		starts = append(starts, len(arena)-start)
		arena = append(arena, r.pair(int(n))...)
		if len(arena) > labelArenaMax {
			break
		}
	}
	if tail > 0 {
		from := r.starts[count-tail]
		shift := len(arena) - start - from
		for _, at := range r.starts[count-tail : count] {
			starts = append(starts, at+shift)
		}
		arena = append(arena, r.before[from:]...)
	}
	if len(arena) > labelArenaMax {
		return arena, errArena()
	}
	starts = append(starts, len(arena)-start)
	r.starts, r.spare = starts, r.starts
	return arena, nil
}
