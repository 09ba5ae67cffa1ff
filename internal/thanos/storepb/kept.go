package storepb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// Writer and reader keep deltas. If a later series has a kept delta again, the writer sends its number,
// which is called a repeat:
//
//	delta   as in appendDelta; a first edit of kind+4 marks a delta that the reader keeps
//	repeat  uvarint(skip) zigzag(number of the kept delta, less the expected number)
//
// The same deltas recur because each metric has series of the same containers. For example:
//
//	cpu{container="a"}   cpu{container="b"}   delta 0: skip 1 label, then replace "a" by "b"
//	memory{container="a"}
//	memory{container="b"}                     repeat: skip 1 label, number 0
//
// skip is the number of labels that the first edit copies, or the number of bytes that a patch keeps first.
// It is not part of the kept delta, because it differs from metric to metric. Kept deltas are numbered 0, 1,
// 2, … in the stream. Deltas tend to recur in the same order, so the number expected next is that of the last
// repeat plus 1.

// Limits of the kept deltas. A reader announces its limit of bytes; the others belong to the format.
const (
	keptEntriesMax = 1 << 14
	keptEntryMax   = 1 << 10 // bytes of one delta; longer ones are not kept
	keptBit        = 4       // flag in the kind of the first edit: the reader keeps the delta

	keptBytesMax = 1 << 20 // limit of a writer, even if the reader announces more
	keptDeltaMin = 8       // minimum bytes of a kept delta; a repeat of a shorter delta would save nothing
)

// KeptBytes is the number of bytes that a reader should announce: enough for the deltas between the
// series of 7,000 containers with long ids.
const KeptBytes = keptBytesMax

// keptDeltas has the deltas that a side keeps. Writer and reader add the same deltas and drop the oldest
// by the same rule, so that a number means the same delta on both sides.
type keptDeltas struct {
	limit    int         // of the bytes of all entries; 0: nothing is kept
	ring     []byte      // a ring buffer of entries; each entry is contiguous
	at       int         // offset of the next entry in ring
	used     int         // bytes of all entries
	entries  []keptDelta // by number modulo keptEntriesMax
	oldest   uint64      // number of the oldest entry
	end      uint64      // number of the next entry
	expected uint64      // number that follows the last repeat
}

// keptDelta is the location of an entry in the ring. An entry is the kind of the delta's first edit, in
// one byte, and the bytes of the delta after the skipped part.
type keptDelta struct{ at, size uint32 }

func (k *keptDeltas) bytes() int64 {
	return int64(cap(k.ring)) + int64(cap(k.entries))*int64(unsafe.Sizeof(keptDelta{}))
}

// has reports whether an entry has that number.
func (k *keptDeltas) has(number uint64) bool { return number >= k.oldest && number < k.end }

// entry returns an entry that exists. It is valid until the next add.
func (k *keptDeltas) entry(number uint64) (kind byte, body []byte) {
	e := k.entries[number%keptEntriesMax]
	text := k.ring[e.at : e.at+e.size]
	return text[0], text[1:]
}

// add adds an entry, whose size must not exceed keptEntryMax, and drops the oldest ones beyond the limits.
func (k *keptDeltas) add(kind byte, body []byte) {
	size := 1 + len(body)
	for k.oldest < k.end && (k.used+size > k.limit || k.end-k.oldest == keptEntriesMax) {
		k.used -= int(k.entries[k.oldest%keptEntriesMax].size)
		k.oldest++
	}
	// An entry that does not fit before the end of the ring goes to the start, and leaves a gap at the end.
	// The gap is shorter than keptEntryMax. So the ring is longer than all entries by at least
	// keptEntryMax. In a shorter ring the new entry would overwrite the oldest.
	if need := k.used + size + keptEntryMax; need > len(k.ring) {
		k.grow(need)
	}
	if k.at+size > len(k.ring) {
		k.at = 0
	}
	e := keptDelta{uint32(k.at), uint32(size)}
	k.ring[k.at] = kind
	copy(k.ring[k.at+1:], body)
	k.at += size
	if k.end < keptEntriesMax {
		k.entries = append(k.entries, e)
	} else {
		k.entries[k.end%keptEntriesMax] = e
	}
	k.used += size
	k.end++
}

// grow moves the entries to a longer ring.
func (k *keptDeltas) grow(need int) {
	ring := make([]byte, max(need, min(4*len(k.ring), k.limit+keptEntryMax), 4<<10))
	at := 0
	for number := k.oldest; number < k.end; number++ {
		e := &k.entries[number%keptEntriesMax]
		n := copy(ring[at:], k.ring[e.at:e.at+e.size])
		e.at = uint32(at)
		at += n
	}
	k.ring, k.at = ring, at
}

// keep adds a delta that the reader has received and that is marked to be kept. head is the first varint of
// the delta without keptBit, and rest what follows head.
func (k *keptDeltas) keep(head uint64, rest []byte) error {
	if k.limit == 0 {
		return fmt.Errorf("%w: a delta is to be kept without a request", ErrCorrupt)
	}
	if head&7 == editPatch {
		_, n := uvarint(rest)
		if n == 0 {
			return errEditShort()
		}
		rest = rest[n:]
	}
	if 1+len(rest) > min(keptEntryMax, k.limit) {
		return fmt.Errorf("%w: a delta of %d bytes is too long to be kept", ErrCorrupt, len(rest))
	}
	k.add(byte(head&7), rest)
	return nil
}

// repeated decodes a received repeat: it returns skip, and the entry with the number in the repeat.
func (k *keptDeltas) repeated(repeat []byte) (kind byte, skip uint64, body []byte, err error) {
	skip, n := uvarint(repeat)
	far, m := uvarint(repeat[n:])
	if n == 0 || m == 0 || n+m < len(repeat) {
		return 0, 0, nil, fmt.Errorf("%w: a repeat is cut short or too long", ErrCorrupt)
	}
	number := k.expected + far>>1
	if far&1 == 1 {
		number = k.expected - far>>1 - 1
	}
	if !k.has(number) {
		return 0, 0, nil, fmt.Errorf("%w: a repeat of delta %d, of which %d to %d are kept", ErrCorrupt, number,
			k.oldest, k.end)
	}
	k.expected = number + 1
	kind, body = k.entry(number)
	return kind, skip, body, nil
}

// deltaIndex finds the kept deltas of a writer by their bytes: a hash table with buckets of two slots. It
// does not find a delta whose slot was overwritten; the writer then sends and keeps this delta again.
type deltaIndex struct {
	keptDeltas
	slots  []uint16 // index of an entry in entries and hashes, plus 1; 0: free
	hashes []uint32 // of the entries, by number modulo keptEntriesMax

	added, addedBytes, repeats int // since the last check
}

// replace returns the repeat of a delta that is kept already. It overwrites the delta with the repeat.
// Another delta is marked for the reader to keep, and added to the kept deltas of the writer.
func (x *deltaIndex) replace(delta []byte) (_ []byte, isRepeat bool) {
	head, n := uvarint(delta)
	skip, kind, body := head>>3, byte(head&7), delta[n:]
	if kind == editPatch {
		skip, n = uvarint(body)
		body = body[n:]
	}
	if 1+len(body) > min(keptEntryMax, x.limit) {
		return delta, false
	}
	if x.has(x.expected) {
		if known, text := x.entry(x.expected); known == kind && bytes.Equal(text, body) {
			return x.repeat(delta, skip, x.expected), true
		}
	}
	hash := uint32(xxhash.Sum64(body)>>32) ^ uint32(kind)
	if number, ok := x.find(hash, kind, body); ok {
		return x.repeat(delta, skip, number), true
	}
	delta[0] |= keptBit
	x.add(kind, body)
	x.insert(hash)
	x.check(1 + len(body))
	return delta, false
}

// repeat encodes a repeat into the memory of the delta, which is longer.
func (x *deltaIndex) repeat(delta []byte, skip, number uint64) []byte {
	far := int64(number - x.expected)
	x.expected = number + 1
	x.repeats++
	return binary.AppendVarint(binary.AppendUvarint(delta[:0], skip), far)
}

// check counts an added delta of size bytes. Each time the added deltas reach a limit of the kept deltas,
// check looks at the number of repeats since then. If fewer than one in 16 added deltas was repeated,
// check ends the use of kept deltas for the stream: they cost memory and time and save hardly any bytes.
func (x *deltaIndex) check(size int) {
	x.added, x.addedBytes = x.added+1, x.addedBytes+size
	if x.addedBytes >= x.limit || x.added >= keptEntriesMax {
		if x.repeats < x.added/16 {
			*x = deltaIndex{} // limit is 0 from now on
		}
		x.added, x.addedBytes, x.repeats = 0, 0, 0
	}
}

// numberOf returns the number of the entry that is at this index of entries and hashes.
func (x *deltaIndex) numberOf(index uint64) uint64 {
	last := x.end - 1
	return last - (last-index)%keptEntriesMax
}

// bucket returns the two slots of a hash.
func (x *deltaIndex) bucket(hash uint32) []uint16 {
	at := int(hash) & (len(x.slots) - 1) &^ 1
	return x.slots[at : at+2]
}

// live returns the number of the entry to which a slot in the bucket of a hash refers. ok is false if the slot
// is free, or if its entry was dropped. After keptEntriesMax further deltas another entry has the same index. live
// detects this if the hash of that entry belongs to another bucket; otherwise find compares its bytes.
func (x *deltaIndex) live(slot uint16, hash uint32) (number uint64, ok bool) {
	if slot == 0 || (x.hashes[slot-1]^hash)&uint32(len(x.slots)-2) != 0 {
		return 0, false
	}
	number = x.numberOf(uint64(slot - 1))
	return number, x.has(number)
}

func (x *deltaIndex) find(hash uint32, kind byte, body []byte) (number uint64, ok bool) {
	if len(x.slots) == 0 {
		return 0, false
	}
	for _, slot := range x.bucket(hash) {
		number, ok := x.live(slot, hash)
		if !ok || x.hashes[slot-1] != hash {
			continue
		}
		if known, text := x.entry(number); known == kind && bytes.Equal(text, body) {
			return number, true
		}
	}
	return 0, false
}

// insert adds the entry that was added last to the hash table.
func (x *deltaIndex) insert(hash uint32) {
	number := x.end - 1
	if number < keptEntriesMax {
		x.hashes = append(x.hashes, hash)
	} else {
		x.hashes[number%keptEntriesMax] = hash
	}
	if count := int(x.end - x.oldest); 2*count <= len(x.slots) || len(x.slots) == 2*keptEntriesMax {
		x.place(number)
		return
	}
	x.slots = make([]uint16, max(64, 4*len(x.slots)))
	for number := x.oldest; number < x.end; number++ {
		x.place(number)
	}
}

// place puts an entry into a free slot of its bucket. If both slots are in use, it overwrites the slot of
// the older entry.
func (x *deltaIndex) place(number uint64) {
	hash := x.hashes[number%keptEntriesMax]
	bucket := x.bucket(hash)
	slot, oldest := &bucket[0], ^uint64(0)
	for i := range bucket {
		other, ok := x.live(bucket[i], hash)
		if !ok || other == number {
			slot = &bucket[i]
			break
		}
		if other < oldest {
			slot, oldest = &bucket[i], other
		}
	}
	*slot = uint16(number%keptEntriesMax) + 1
}
