// Package xor decodes the float chunks of Prometheus' TSDB, encoding XOR, as a whole: into
// points, or in batches. Prometheus' iterator costs a call for every sample and reads bit by
// bit. Trim cuts a chunk to a time range, and AppendChunk encodes one.
//
//	chunk     number of samples, 2 bytes big endian  first  second  rest*
//	first     varint(time)  value, 64 bits
//	second    uvarint(time less the first)  xor
//	rest      interval  xor
//	interval  `0`: as before | `10`, `110`, `1110` or `1111`, then the change of the interval in 14, 17, 20 or 64 bits
//	xor       `0`: same value | `10`, then the bits, at the position of the last `11`
//	          | `11`, then number of leading zeros in 5 bits, number of bits in 6 bits, and the bits
//
// The varints begin at whole bytes; all other fields are packed as bits. A chunk that Prometheus'
// iterator accepts is decoded to the same samples, unless a value has more than 64 bits or
// Order forbids the timestamps. The other float encoding, XOR2, has start timestamps and is not
// decoded here: its callers use Prometheus' iterator.
//
// Every error means that the chunk is corrupt, and names the sample. The callers check that
// samples are within the time range that the index has for the chunk.
package xor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Order is the order of timestamps that a decoder accepts.
type Order uint8

// The orders.
const (
	AnyOrder      Order = iota // timestamps are not checked
	NotDescending              // no timestamp is less than the one before
	Ascending                  // each timestamp is greater than the one before
)

// least is the smallest interval between two samples.
func (o Order) least() int64 {
	switch o {
	case NotDescending:
		return 0
	case Ascending:
		return 1
	}
	return math.MinInt64
}

// Sample is a timestamp in ms and a value, like promql.FPoint.
type Sample interface {
	~struct {
		T int64
		F float64
	}
}

// Point is a Sample for callers that have no type of their own.
type Point struct {
	T int64
	F float64
}

var (
	errNoHeader = errors.New("it has no header")
	errCut      = errors.New("the chunk ends within it")
	errBits     = errors.New("its value has more than 64 bits")
	errOrder    = errors.New("it is not after the one before")
)

// headerBytes hold the number of samples.
const headerBytes = 2

// AppendPoints appends the samples of a chunk. With an error it appends the samples before
// the corrupt sample.
func AppendPoints[P Sample](dst []P, chunk []byte, order Order) ([]P, error) {
	return AppendPointsUntil(dst, chunk, order, math.MaxInt64)
}

// untilBatch is the number of samples that AppendPointsUntil decodes before it looks at the time.
const untilBatch = 16

// AppendPointsUntil is AppendPoints without most of the samples after maxt, in ms: it does not decode them.
func AppendPointsUntil[P Sample](dst []P, chunk []byte, order Order, maxt int64) ([]P, error) {
	var r Reader
	if err := r.Reset(chunk, order); err != nil {
		return dst, err
	}
	// A sample takes two bits or more. So the slice is bounded by the bytes of the chunk, even if
	// the header has a wrong number.
	n := min(r.samples, 2+len(chunk)*4)
	dst = slices.Grow(dst, n)
	batch := untilBatch
	if maxt == math.MaxInt64 {
		batch = n
	}
	for n > 0 {
		from := len(dst)
		read, err := Read(&r, dst[from:from+min(batch, n)])
		if dst = dst[:from+read]; read == 0 || err != nil || Point(dst[len(dst)-1]).T > maxt {
			return dst, err
		}
		n -= read
	}
	return dst, nil
}

// Reader decodes a chunk in batches. Its zero value has no samples.
type Reader struct {
	state
	src     []byte
	order   Order
	read    int // samples returned
	samples int // of the chunk
	err     error
	tail    [tailBytes + slackBytes]byte
}

// state is the state of a decoder between two samples.
type state struct {
	at    int // offset in bits
	t     int64
	delta uint64
	value uint64
	// Leading zeros and number of the bits of the last xor that encoded both.
	leading, width uint
}

// Reset begins a chunk, which must not change until its last sample is read.
func (r *Reader) Reset(chunk []byte, order Order) error {
	r.state = state{at: headerBytes * 8, leading: noWindow, width: 64}
	r.src, r.order, r.read, r.samples, r.err = chunk, order, 0, 0, nil
	if len(chunk) < headerBytes {
		r.err = fmt.Errorf("chunk of %d bytes: %w", len(chunk), errNoHeader)
		return r.err
	}
	r.samples = int(binary.BigEndian.Uint16(chunk))
	return nil
}

// Samples returns the number of samples that the chunk has by its header.
func (r *Reader) Samples() int { return r.samples }

// slackBytes is the number of bytes that decoding a sample may read, from the byte in which the
// sample begins. A sample has at most 4+64+13+64 bits and can begin at the last bit of a byte: 19
// bytes. The decoder may read up to eight bytes after these 19.
const slackBytes = 27

// tailBytes is the number of bytes at the end of a chunk that are decoded from a copy. The copy has
// slackBytes zeros after them, so that reads beyond the last sample stay within the copy.
const tailBytes = 2 * slackBytes

// Read decodes the next samples of a chunk into dst until it is full. It returns less than
// len(dst) only at the end of the chunk and with an error.
func Read[P Sample](r *Reader, dst []P) (n int, err error) {
	if r.err != nil {
		return 0, r.err
	}
	dst = dst[:min(len(dst), r.samples-r.read)]
	if r.read == 0 && len(dst) > 0 {
		if err = r.first(); err == nil {
			dst[0] = P(Point{r.t, math.Float64frombits(r.value)})
			n = 1
		}
	}
	if r.read+n == 1 && n < len(dst) && err == nil {
		if err = r.second(r.order.least()); err == nil {
			dst[n] = P(Point{r.t, math.Float64frombits(r.value)})
			n++
		}
	}
	if n < len(dst) && err == nil {
		n, err = readRest(r, dst, n)
	}
	r.read += n
	if err != nil {
		r.err = r.failed(err)
	}
	return n, r.err
}

// failed names the sample after those that were read.
func (r *Reader) failed(err error) error {
	return fmt.Errorf("sample %d of %d: %w", r.read+1, r.samples, err)
}

// readRest decodes samples after the second one into dst[n:]. Those that begin near the end
// of the chunk are decoded from a copy of its last bytes.
func readRest[P Sample](r *Reader, dst []P, n int) (int, error) {
	end := len(r.src) * 8
	least := r.order.least()
	s := r.state
	var err error
	if safe := end - slackBytes*8; s.at <= safe {
		if n, err = decode(&s, r.src, safe, end, least, dst, n); err != nil || n == len(dst) {
			r.state = s
			return n, err
		}
	}
	// The chunk has fewer than slackBytes bytes behind the byte in which the next sample
	// begins.
	from := s.at / 8
	clear(r.tail[copy(r.tail[:tailBytes], r.src[from:]):])
	s.at -= from * 8
	n, err = decode(&s, r.tail[:], end-from*8, end-from*8, least, dst, n)
	s.at += from * 8
	r.state = s
	if err == nil && n < len(dst) {
		err = errCut // the last sample ended with the chunk
	}
	return n, err
}

// decode decodes samples into dst[n:] while they begin at a bit up to safe. From the byte of bit
// safe on, src has at least slackBytes bytes. end is the end of the chunk, in bits.
func decode[P Sample](s *state, src []byte, safe, end int, least int64, dst []P, n int) (int, error) {
	at, t, delta, value, leading, width := s.at, s.t, s.delta, s.value, s.leading, s.width
	var err error
samples:
	for lastWord := min(safe, end-64); n < len(dst) && at <= safe; n++ {
		w := word(src, at)
		// As a rule many samples in a row have the interval of the one before, and its value or the position of its xor. In
		// a counter, every fifth has another position.
		if at <= lastWord {
			// Within these limits no timestamp of a chunk can overflow.
			if w>>61 == 0b010 && width <= 64-3 && delta < 1<<46 && t < 1<<62 {
				for {
					right, left, size := 64-width, 64-leading-width, 3+int(width)
					for w>>61 == 0b010 {
						t += int64(delta)
						value ^= w << 3 >> (right & 63) << (left & 63)
						at += size
						dst[n] = P(Point{t, math.Float64frombits(value)})
						if n+1 == len(dst) || at > lastWord {
							continue samples
						}
						n++
						w = word(src, at)
					}
					l, wide := uint(w>>56&31), uint(w>>50&63)
					if w>>61 != 0b011 || wide-1 >= 64-14 || l+wide > 64 { // another encoding, or more than w has, or invalid
						break
					}
					t += int64(delta)
					leading, width = l, wide
					value ^= w << 14 >> ((64 - wide) & 63) << ((64 - l - wide) & 63)
					at += 14 + int(wide)
					dst[n] = P(Point{t, math.Float64frombits(value)})
					if n+1 == len(dst) || at > lastWord {
						continue samples
					}
					n++
					w = word(src, at)
				}
			}
			same := min(bits.LeadingZeros64(w)/2, len(dst)-n)
			if same > 0 && delta < math.MaxInt64/64 && t+int64(delta)*int64(same) >= t {
				for i := range dst[n:][:same] {
					t += int64(delta)
					dst[n+i] = P(Point{t, math.Float64frombits(value)})
				}
				n += same - 1
				at += 2 * same
				continue
			}
		}
		if w>>63 == 0 {
			w <<= 1
			at++
		} else {
			if w>>62 == 0b10 {
				delta += signed(w<<2>>(64-14), 14)
				w <<= 2 + 14
				at += 2 + 14
			} else {
				change, after := readChange(src, at)
				delta, at = delta+change, after
				w = load(src, at)
			}
			if at > end {
				err = errCut
				break
			}
		}
		next := t + int64(delta)
		if int64(delta) < least || next < t && least >= 0 { // the latter: overflow
			err = errOrder
			break
		}
		if w>>63 == 0 {
			at++
		} else {
			at += 2
			l, size := leading, width
			if w>>62 == 3 {
				l, size = uint(w>>57&31), uint(w>>51&63)
				if size == 0 {
					size = 64 // 64 does not fit in 6 bits; 0 stands for it
				}
				at += 11
				if l+size > 64 {
					if err = errBits; at > end {
						err = errCut
					}
					break
				}
				leading, width = l, size
			}
			value ^= word(src, at) >> ((64 - size) & 63) << ((64 - l - size) & 63)
			at += int(size)
		}
		if at > end {
			err = errCut
			break
		}
		t = next
		dst[n] = P(Point{t, math.Float64frombits(value)})
	}
	s.at, s.t, s.delta, s.value, s.leading, s.width = at, t, delta, value, leading, width
	return n, err
}

// readChange decodes the change of the interval that begins at a bit. It returns the bit after it.
func readChange(src []byte, at int) (change uint64, after int) {
	w := load(src, at)
	ones := bits.LeadingZeros64(^w)
	if ones > 3 {
		return load(src, at+4)>>32<<32 | load(src, at+36)>>32, at + 4 + 64
	}
	size := uint(11 + 3*ones)
	return signed(w<<(ones+1)>>(64-size), size), at + ones + 1 + int(size)
}

// signed converts a number of size bits to 64 bits. Numbers up to 1<<(size-1) are positive, greater
// ones are negative, as in Prometheus' encoding.
func signed(v uint64, size uint) uint64 {
	return uint64(int64((v-1)<<(64-size))>>(64-size)) + 1
}

// load returns at least 57 bits from a bit offset, the first one highest.
func load(src []byte, at int) uint64 {
	return binary.BigEndian.Uint64(src[at>>3:]) << (at & 7)
}

// word returns the 64 bits from a bit offset. It reads nine bytes.
func word(src []byte, at int) uint64 {
	from := src[at>>3:][:9]
	return binary.BigEndian.Uint64(from)<<(at&7) | uint64(from[8])<<(at&7)>>8
}

func (r *Reader) first() error {
	t, n := binary.Varint(r.src[headerBytes:])
	at := headerBytes + n
	if n <= 0 || at+8 > len(r.src) {
		return errCut
	}
	r.t, r.value = t, binary.BigEndian.Uint64(r.src[at:])
	r.at = (at + 8) * 8
	return nil
}

// second decodes the second sample. Its interval is a varint; its value is encoded like the values
// of later samples. So second decodes the value by decode: it copies the bytes of the value, puts a
// bit 0 in front of them, which means an unchanged interval, and calls decode on the copy.
func (r *Reader) second(least int64) error {
	from := r.at / 8
	delta, n := binary.Uvarint(r.src[from:])
	if n <= 0 {
		return errCut
	}
	if r.delta = delta; int64(delta) < least {
		return errOrder
	}
	from += n - 1
	clear(r.tail[copy(r.tail[:tailBytes], r.src[from:]):])
	r.tail[0] = 0
	r.at = 7
	end := (len(r.src) - from) * 8
	var dst [1]Point
	_, err := decode(&r.state, r.tail[:], end, end, least, dst[:], 0)
	r.at += from * 8
	return err
}
