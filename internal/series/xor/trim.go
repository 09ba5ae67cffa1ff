package xor

import (
	"encoding/binary"
	"math"
)

// Trim appends the samples of an XOR chunk from mint to maxt, both in ms and inclusive.
// The bytes are those that Prometheus' encoder writes for these samples, if it has written the chunk. first and last are
// their timestamps. ok is false if the chunk has timestamps out of order, is corrupt up to the end of the range, or
// has no sample in the range: the caller then uses Prometheus' iterators.
//
// The state of an encoder is the last sample, the last interval, and the leading and trailing
// zeros that it wrote last. Once two encoders have equal states, they write equal bits for
// equal samples. So Trim goes through the chunk in three steps:
//
//  1. It decodes the samples before mint and drops them.
//  2. It decodes the samples from mint on and encodes them again, until its encoder has the state
//     that the chunk's encoder had after the same sample.
//  3. It decodes the samples up to maxt only to find the bit at which they end, and copies their
//     bits, shifted.
func Trim(dst, chunk []byte, mint, maxt int64) (out []byte, first, last int64, ok bool) {
	var r Reader
	if r.Reset(chunk, NotDescending) != nil {
		return dst, 0, 0, false
	}
	if mint > math.MinInt64 {
		if _, _, err := r.skip(mint - 1); err != nil {
			return dst, 0, 0, false
		}
	}
	begin := len(dst)
	w := writer{dst: append(dst, 0, 0), leading: noWindow}
	kept := 0           // samples in the range so far
	copied, end := 0, 0 // bits of chunk that step 3 copies; 0: step 3 has not begun
	for copied == 0 {
		was := r.state
		var sample [1]Point
		n, err := Read(&r, sample[:])
		if err != nil {
			return dst, 0, 0, false
		}
		if n == 0 || r.t > maxt {
			break
		}
		kept, last, end = kept+1, r.t, r.at
		switch {
		case r.read == 1:
			first, copied = r.t, was.at
		case kept == 1:
			first = r.t
			w.dst = binary.BigEndian.AppendUint64(binary.AppendVarint(w.dst, r.t), r.value)
			continue
		case kept == 2:
			w.dst = binary.AppendUvarint(w.dst, uint64(r.t-was.t)) // at a byte position, as the first sample
			w.value(was.value, r.value)
		default:
			w.change(int64(r.delta - was.delta))
			w.value(was.value, r.value)
		}
		if kept > 1 && w.leading == r.leading && (w.leading == noWindow || w.trailing == 64-r.leading-r.width) {
			copied = r.at
		}
	}
	if kept == 0 {
		return dst, 0, 0, false
	}
	if copied > 0 {
		n, t, err := r.skip(maxt)
		if err != nil {
			return dst, 0, 0, false
		}
		if n > 0 {
			kept, last, end = kept+n, t, r.at
		}
		w.copy(chunk, copied, end)
	}
	out = w.end()
	binary.BigEndian.PutUint16(out[begin:], uint16(kept))
	return out, first, last, true
}

// skip reads the samples up to limit. It returns their number and the timestamp of the last.
func (r *Reader) skip(limit int64) (skipped int, last int64, err error) {
	var samples [16]Point
	for {
		before := *r
		n, err := Read(r, samples[:])
		read := samples[:n]
		for len(read) > 0 && read[len(read)-1].T > limit {
			read = read[:len(read)-1]
		}
		if len(read) < n {
			*r, err = before, nil
			_, _ = Read(r, read) // again, without those after limit
		}
		if len(read) > 0 {
			skipped, last = skipped+len(read), read[len(read)-1].T
		}
		if len(read) < len(samples) || err != nil {
			return skipped, last, err
		}
	}
}

// copy appends the bits of src from bit from to bit to.
func (w *writer) copy(src []byte, from, to int) {
	for to-from >= 56 && from>>3+8 <= len(src) {
		w.put(load(src, from)>>8, 56)
		from += 56
	}
	for from < to {
		n := min(8-from&7, to-from)
		w.put(uint64(src[from>>3]<<(from&7)>>(8-n)), uint(n))
		from += n
	}
}
