package gzip

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

const (
	minMatch = 4
	maxMatch = 258

	hashBits   = 14
	hashSpread = 0x9E3779B185EBCA87

	// tailBytes is an upper bound of the bytes of a point: a timestamp of 20 characters, a value of 24, and the
	// characters around them.
	tailBytes = 64
	valueMax  = 32 // maximum bytes of a value that is treated as a number

	pointsMax = windowBytes / len(`1,"1"],[`) // maximum number of points in windowBytes

	// Among points, the literals of only one token in eight are counted, because the frequencies of digits hardly differ
	// between points. In data of less than sampledBytes, the literals of all tokens are counted.
	sampled      = 8
	sampledBytes = 16 << 10
)

// token is a number of literals followed by a match.
type token struct {
	literals uint32
	length   uint16 // of the match, 0 for none
	distance uint16 // of the match, less 1
}

// finder divides data into literals and matches. Positions that later blocks use are stored with base added, modulo
// 1<<32. A position that is too old or belongs to another stream does no harm: bytes are compared before a position is
// used.
type finder struct {
	base   uint32 // position of the buffer's first byte
	buf    []byte
	end    int    // of the data in buf
	limit  int    // no match extends beyond it
	next   int    // first byte that is in no token yet
	every  uint32 // the literals of one of this many tokens are counted
	tokens []token

	literals  [256]uint32 // counts
	lengths   [256]uint32 // counts by length, less 3
	high      bool        // there may be literals above 0x7f
	distances [30]uint32  // counts by symbol

	hashes  [1 << hashBits]uint32 // last position by hash of its bytes, in text
	repeats repeats

	textBefore uint32 // position of the text before the last points

	// The position of a point is the closing quote of the previous value.
	inPoints bool
	current  []uint32 // positions of the points of this series
	previous []uint32 // positions of the points of the previous series
	at       int      // index in previous of the point to compare next
}

func (f *finder) reset() {
	f.inPoints = false
	f.current, f.previous, f.at = f.current[:0], f.previous[:0], 0
	f.base += windowBytes + dataBytes
}

// run finds the tokens of buf[start:end]. It returns the index at which it stopped: end if all is true.
func (f *finder) run(buf []byte, start, end int, all bool) int {
	f.buf, f.end, f.next = buf, end, start
	f.tokens = f.tokens[:0]
	clear(f.literals[:])
	clear(f.lengths[:])
	clear(f.distances[:])
	f.every = sampled
	if end-start < sampledBytes {
		f.every = 1
	}
	f.high = hasHigh(buf[start:end])
	at := start
	for {
		if f.inPoints {
			at = f.points(at)
			if f.inPoints { // the data ends within a point
				if !all {
					break
				}
				f.inPoints = false
			}
		}
		to := f.untilPoints(at, all)
		at = f.text(at, to)
		if !f.inPoints {
			break
		}
	}
	f.count(f.next, at)
	f.tokens = append(f.tokens, token{literals: uint32(at - f.next)})
	f.next = at
	return at
}

// hasHigh reports whether there are bytes above 0x7f.
func hasHigh(data []byte) bool {
	var all uint64
	for ; len(data) >= 32; data = data[32:] {
		four := (*[32]byte)(data)
		all |= binary.LittleEndian.Uint64(four[0:]) | binary.LittleEndian.Uint64(four[8:]) |
			binary.LittleEndian.Uint64(four[16:]) | binary.LittleEndian.Uint64(four[24:])
	}
	for _, b := range data {
		all |= uint64(b)
	}
	return all&0x8080808080808080 != 0
}

// untilPoints returns the end of the text before the next points: the closing quote of the first value. It sets
// inPoints if there is such a value. Otherwise it returns the end of the data, less tailBytes unless all is true.
func (f *finder) untilPoints(at int, all bool) int {
	for from := at; ; {
		i := bytes.Index(f.buf[from:f.end], []byte("[["))
		if i < 0 {
			break
		}
		from += i + 2
		if from+tailBytes > f.end {
			if all {
				break
			}
			return min(from-2, max(at, f.end-tailBytes))
		}
		value := skipTime(f.buf[from:])
		if value == 0 {
			continue
		}
		if n := quote(f.buf[from+value:]); n >= 0 {
			f.inPoints = true
			f.current, f.previous, f.at = f.previous[:0], f.current, 0
			return from + value + n
		}
	}
	if all {
		return f.end
	}
	return max(at, f.end-tailBytes)
}

// skipTime returns the number of bytes of a timestamp, comma and opening quote; 0 if b does not begin with them.
func skipTime(b []byte) int {
	for i := range 20 {
		switch c := b[i]; {
		case c >= '0' && c <= '9' || c == '.' || c == '-':
		case c == ',' && b[i+1] == '"':
			return i + 2
		default:
			return 0
		}
	}
	return 0
}

// quote returns the offset of the first quote, -1 if there is none within valueMax. It reads valueMax bytes.
func quote(b []byte) int {
	for i := 0; i < valueMax; i += 8 {
		x := binary.LittleEndian.Uint64(b[i:]) ^ 0x2222222222222222
		if found := (x - 0x0101010101010101) &^ x & 0x8080808080808080; found != 0 {
			return i + bits.TrailingZeros64(found)>>3
		}
	}
	return -1
}

func (f *finder) load32(at int) uint32 { return binary.LittleEndian.Uint32(f.buf[at:]) }
func (f *finder) load(at int) uint64   { return binary.LittleEndian.Uint64(f.buf[at:]) }

// points finds the tokens of points, from the closing quote at index at. It returns the index at which it stopped. If
// inPoints is still true, fewer than tailBytes remain.
//
// Each step handles the bytes from the closing quote before a value to the closing quote after it:
//
//	"],[1700000015,"0.543"
//	^ at            ^ open
//
// The bytes before open are mostly one match with the previous series, the digits mostly literals.
func (f *finder) points(at int) int {
	const between = `"],[`
	pattern := binary.LittleEndian.Uint32([]byte(between))
	before := 0                 // closing quote of the previous value, 0 if there is none
	value := 0                  // start of the previous value
	head := 0                   // bytes from the closing quote before a value to the value
	f.limit = f.end - tailBytes // so that no match ends after the last quote that is found
	for at+tailBytes <= f.end {
		if binary.LittleEndian.Uint32(f.buf[at:]) != pattern {
			break
		}
		open := at + head
		if head < len(between) || f.buf[open-2] != ',' || f.buf[open-1] != '"' {
			n := skipTime(f.buf[at+len(between):])
			if n == 0 {
				break
			}
			open = at + len(between) + n
			head = open - at
		}
		n := quote(f.buf[open:])
		if n < 0 {
			break
		}
		if from := max(at, f.next); from < open {
			source, length := f.stepBefore(at, from, head)
			if from == at && (f.repeats.always || len(f.current)%repeatSample == 0) {
				source, length = f.sameValue(at, open, source, length)
			}
			if from+length < open && before > 0 {
				if l := f.common(before+from-at, from); l > length {
					source, length = before+from-at, l
				}
			}
			f.matches(from, length, from-source)
		} else {
			f.at++
		}
		// If the value begins a token, its start must match at least minMatch bytes. Comparing these first costs less.
		if value > 0 && (f.next < open || f.next == open && f.load32(open) == f.load32(value)) {
			f.valueBefore(open, value, n)
		}
		if len(f.current) < pointsMax {
			f.current = append(f.current, f.base+uint32(at))
		}
		before, value, at = at, open, open+n
	}
	if at+tailBytes <= f.end {
		f.inPoints = false
	}
	return max(at, f.next)
}

// valueBefore adds a match of the start of a value of n bytes, and of the bytes before it, with the previous value, if
// at least minMatch bytes are equal.
func (f *finder) valueBefore(open, value, n int) {
	length := min(f.common(value, open), n)
	back := 0
	for open-back > f.next && f.buf[open-back-1] == f.buf[value-back-1] {
		back++
	}
	if length+back >= minMatch {
		f.match(open-back, length+back, open-value)
	}
}

// stepBefore returns a match, in the same step of the previous series, for the bytes at index from. The point begins at
// the closing quote at index at; its value begins head bytes after that quote.
func (f *finder) stepBefore(at, from, head int) (source, length int) {
	for range 4 {
		if f.at >= len(f.previous) {
			return 0, 0
		}
		distance := f.base + uint32(at) - f.previous[f.at]
		if distance > windowBytes || distance > uint32(at) {
			f.at++
			return 0, 0
		}
		before := at - int(distance)
		length = f.common(before+from-at, from)
		if length >= head-(from-at) {
			f.at++
			return before + from - at, length
		}
		if bytes.Compare(f.buf[before:before+head], f.buf[at:at+head]) > 0 {
			break // that series has no such step
		}
		f.at++
	}
	return 0, 0
}

// common returns the number of equal bytes at two positions, up to maxMatch.
func (f *finder) common(from, at int) int {
	most := min(maxMatch, f.limit-at)
	a, b := f.buf[from:], f.buf[at:]
	for n := 0; n < most; n += 8 {
		if x := binary.LittleEndian.Uint64(a[n:]) ^ binary.LittleEndian.Uint64(b[n:]); x != 0 {
			return min(n+bits.TrailingZeros64(x)>>3, most)
		}
	}
	return most
}

// matches adds a match of the given length, if it is long enough, and the matches that continue it at the same
// distance.
func (f *finder) matches(at, length, distance int) {
	for length >= minMatch {
		f.match(at, length, distance)
		if length < maxMatch {
			return
		}
		at += length
		length = f.common(at-distance, at)
	}
}

// match adds a token: the literals since the last one, and a match.
func (f *finder) match(at, length, distance int) {
	if uint32(len(f.tokens))%f.every == 0 || !f.inPoints {
		f.count(f.next, at)
	}
	f.tokens = append(f.tokens, token{uint32(at - f.next), uint16(length), uint16(distance - 1)})
	f.lengths[uint8(length-3)]++
	f.distances[distanceSymbol(uint32(distance-1))]++
	f.next = at + length
}

// count counts the literals buf[from:to].
func (f *finder) count(from, to int) {
	weight := uint32(1)
	if f.inPoints {
		weight = f.every
	}
	for _, b := range f.buf[from:to] {
		f.literals[b] += weight
	}
}

// text finds the tokens of buf[at:to], which has no points, by a search with hashes. It returns to.
func (f *finder) text(at, to int) int {
	points := f.inPoints
	f.inPoints = false // for the counting of literals
	at = max(at, f.next)
	f.limit = to
	last := int(f.base + uint32(at) - f.textBefore) // distance of the last match
	if last > windowBytes || last > at {
		last = 0
	}
	f.textBefore = f.base + uint32(at)
	for at+8 <= to {
		word := f.load(at)
		slot := &f.hashes[word<<24*hashSpread>>(64-hashBits)]
		distance := f.base + uint32(at) - *slot
		*slot = f.base + uint32(at)
		length, from := 0, 0
		if distance-1 < windowBytes && distance <= uint32(at) {
			from = at - int(distance)
			length = f.common(from, at)
		}
		if last > 0 && length < 16 {
			if l := f.common(at-last, at); l >= minMatch && l >= length {
				from, length = at-last, l
			}
		}
		if length < minMatch {
			at += 1 + (at-f.next)>>5
			continue
		}
		// A literal followed by a match at the last distance takes fewer bits than a match of the same length at a
		// new distance.
		if last > 0 && at-from != last && length < 64 {
			for skip := 1; skip <= 2; skip++ {
				if l := f.common(at+skip-last, at+skip); l >= length-skip && l >= minMatch {
					at += skip
					from, length = at-last, l
					break
				}
			}
		}
		for at > f.next && from > 0 && f.buf[from-1] == f.buf[at-1] && length < maxMatch {
			at, from, length = at-1, from-1, length+1
		}
		last = at - from
		f.match(at, length, last)
		// Later matches are extended backwards, so that a few positions in a long match are enough to find it.
		for i, step := at+2, 3+length>>4; i < at+length; i += step {
			f.hashes[f.load(i)<<24*hashSpread>>(64-hashBits)] = f.base + uint32(i)
		}
		at += length
	}
	f.inPoints = points
	return to
}
