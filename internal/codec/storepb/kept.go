package storepb

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/cespare/xxhash/v2"
)

// Deltas that both sides keep, so that a later series repeats one by its number:
//
//	delta   as in appendDelta; a first edit of kind+4 marks a delta that the reader keeps
//	repeat  uvarint(skip) zigzag(number of a kept delta, less the number expected)
//
// Label sets are often products: each metric has the same containers, each container the same interfaces. In
// label order the step from one container to the next then recurs for each metric, whatever it changes. What
// precedes the first change is not kept, because metrics differ in it: skip is what the first edit
// copies, or what a patch keeps at first. Kept deltas have the numbers 0, 1, 2, … of the stream.
// The number after that of the last repeat is expected, because steps tend to recur in the same order.

// Limits of the kept deltas. A reader announces its limit of bytes; the others belong to the format.
const (
	keptEntriesMax = 1 << 14
	keptEntryMax   = 1 << 10 // bytes of one delta; longer ones are not kept
	keptBit        = 4       // of the kind of the first edit

	keptBytesMax = 1 << 20 // of a writer, whatever the reader announces
	keptDeltaMin = 8       // bytes of the shortest delta that is worth a number
)

// KeptBytes is the memory that a reader should announce: enough for the steps between 7,000
// containers with long ids.
const KeptBytes = keptBytesMax

// keptDeltas are the last deltas that both sides keep. Reader and writer drop the oldest by the same rule.
type keptDeltas struct {
	limit    int         // of the bytes of all entries; 0: nothing is kept
	ring     []byte      // entries, each in one piece, up to its end and then from its start again
	at       int         // where the next entry goes
	used     int         // bytes of all entries
	entries  []keptDelta // by number modulo keptEntriesMax
	oldest   uint64      // number of the oldest entry
	end      uint64      // number of the next entry
	expected uint64      // number that follows the last repeat
}

// keptDelta is the place of an entry in the ring: the kind of the first edit, and what follows the
// skipped part.
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
	// An entry that does not fit before the end of the ring leaves a gap there, which is shorter than
	// keptEntryMax. With room for it in addition to the entries these never overlap.
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

// keep keeps a delta that a reader has received. head is its first varint without keptBit, rest what follows.
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

// repeated cuts the number of an entry and the skipped part off a received repeat.
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
		return 0, 0, nil, fmt.Errorf("%w: a repeat of delta %d, of which %d to %d are kept", ErrCorrupt, number, k.oldest, k.end)
	}
	k.expected = number + 1
	kind, body = k.entry(number)
	return kind, skip, body, nil
}

// deltaIndex finds the kept deltas of a writer by their bytes. It may miss one: the delta is then sent again.
type deltaIndex struct {
	keptDeltas
	slots  []uint16 // number modulo keptEntriesMax, plus 1, in buckets of two; 0: free
	hashes []uint32 // of the entries, by number modulo keptEntriesMax

	added, addedBytes, repeats int // since the use of the entries was last checked
}

// replace replaces a delta to a series by a repeat, or marks it for the reader to keep.
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

// repeat overwrites a delta, which is longer.
func (x *deltaIndex) repeat(delta []byte, skip, number uint64) []byte {
	far := int64(number - x.expected)
	x.expected = number + 1
	x.repeats++
	return binary.AppendVarint(binary.AppendUvarint(delta[:0], skip), far)
}

// check ends the use of kept deltas if hardly any was repeated while as many were added as both sides keep.
func (x *deltaIndex) check(size int) {
	x.added, x.addedBytes = x.added+1, x.addedBytes+size
	if x.addedBytes >= x.limit || x.added >= keptEntriesMax {
		if x.repeats < x.added/16 {
			*x = deltaIndex{} // its memory is of no use
		}
		x.added, x.addedBytes, x.repeats = 0, 0, 0
	}
}

// numberOf returns the number of the entry with that index.
func (x *deltaIndex) numberOf(index uint64) uint64 {
	last := x.end - 1
	return last - (last-index)%keptEntriesMax
}

// bucket returns the two slots of a hash.
func (x *deltaIndex) bucket(hash uint32) []uint16 {
	at := int(hash) & (len(x.slots) - 1) &^ 1
	return x.slots[at : at+2]
}

// live returns the number of the entry in a slot of the bucket of a hash. ok is false if the slot is free, or
// its entry was dropped.
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

// insert makes the last entry known.
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

// place puts an entry into a free slot of its bucket, or into that of the older entry.
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
