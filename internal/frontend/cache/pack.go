package cache

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strconv"
)

// The packed codec is for text that is mostly runs of `[time,"number"]` at regular
// steps, as in the response of a range query. It is lossless on any bytes: all other
// text is stored as literals, and the literals of a block are compressed by s2.
//
//	block     uvarint len(headers) | uvarint len(values) | headers | values | s2(literals)
//	headers   { uvarint literal bytes | uvarint samples | varint first time | uvarint step } …
//	          first time: milliseconds, minus the first time of the previous run
//	          step: milliseconds, 0: as in the previous run
//	values    per sample: 0                   equals the previous value
//	                      n in 1..32          n characters of "*+,-./0123456789" in m = (n+1)/2 bytes:
//	                                          character i is the low nibble of byte i, character m+i its high nibble
//	                      0x80+n, n in 1..32  n bytes unchanged
//
// A general compressor finds the same timestamps again in every series and pays for each with a
// search, a copy and a literal. Here a run stores only its first timestamp and its step. The sixteen
// characters of a nibble are consecutive in ASCII. Character i and character m+i share byte i. So
// sixteen characters are unpacked from a word of eight bytes with a shift, two masks and two
// additions. If neighbouring characters shared a byte, eight of them would take three rounds of
// shifts.
const (
	valueMax     = 32      // longest number in a run
	timeMax      = 24      // longest `[time,"`
	timeLimitMS  = 1e15    // times of a run are below it
	stepTimesMax = 1 << 14 // times prepared at once
	packSlack    = 80      // bytes that reading or writing one sample in whole words may touch

	nibbleBase = 0x2A2A2A2A2A2A2A2A // '*' in every byte
	lowNibbles = 0x0F0F0F0F0F0F0F0F
	quotes     = 0x2222222222222222 // '"' in every byte
	lowBits    = 0x0101010101010101
	highBits   = 0x8080808080808080
)

// stepTime is the prepared text of one timestamp: `[1700000015,"` in three words.
type stepTime struct {
	w0, w1, w2 uint64 // the text, padded with zeros
	n          int    // length of the text, at least 4
	m0, m1, m2 uint64 // masks of the words' bits that belong to the text
}

// stepTimes prepares the timestamps first, first+step, … of runs and keeps them for the
// next run, which usually has the same ones.
type stepTimes struct {
	firstMS, stepMS int64
	times           []stepTime // of firstMS, firstMS+stepMS, …
}

// seek returns the index of time t in the list of times. If the list has another step, or t is
// neither in the list nor its next time, seek empties the list and lets it begin at t. So the index
// depends on the runs before, but the text of a time does not: the packed bytes are always the same.
func (g *stepTimes) seek(t, step int64) int {
	if t >= g.firstMS && step == g.stepMS && step > 0 {
		if ahead := t - g.firstMS; ahead%step == 0 && ahead/step <= int64(len(g.times)) {
			return int(ahead / step)
		}
	}
	g.times = g.times[:0]
	g.firstMS, g.stepMS = t, step
	return 0
}

// extend prepares the time after the last prepared one. k is the number of prepared times. extend
// returns the index of the new time: k, or 0 if the list was full and restarts with the new time. It
// returns false if a run cannot have that time.
func (g *stepTimes) extend(k int) (int, bool) {
	t := g.firstMS + int64(k)*g.stepMS
	if t < 0 || t >= timeLimitMS {
		return 0, false
	}
	if k >= stepTimesMax {
		g.times = g.times[:0]
		g.firstMS, k = t, 0
	}
	g.times = append(g.times, prepareTime(t))
	return k, true
}

func prepareTime(t int64) stepTime {
	var b [timeMax]byte
	text := append(b[:0], '[')
	text = strconv.AppendInt(text, t/1000, 10)
	if ms := t % 1000; ms != 0 {
		text = append(text, '.', byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10))
	}
	text = append(text, `,"`...)
	mask := func(from int) uint64 { return lowBytes(min(max(len(text)-from, 0), 8)) }
	return stepTime{
		w0: binary.LittleEndian.Uint64(b[:8]), w1: binary.LittleEndian.Uint64(b[8:16]),
		w2: binary.LittleEndian.Uint64(b[16:]),
		n:  len(text), m0: mask(0), m1: mask(8), m2: mask(16),
	}
}

// lowBytes is a mask of the n lowest bytes; of all if n >= 8.
func lowBytes(n int) uint64 { return uint64(1)<<(8*uint(n)) - 1 }

// parseTime parses `[time,"` to milliseconds. It accepts only the form that prepareTime writes.
func parseTime(src []byte) (t int64, ok bool) {
	if len(src) < timeMax || src[0] != '[' {
		return 0, false
	}
	i := 1
	for ; i < 13 && src[i]-'0' <= 9; i++ {
		t = t*10 + int64(src[i]-'0')
	}
	if i == 1 || (src[1] == '0' && i > 2) {
		return 0, false
	}
	t *= 1000
	if src[i] == '.' {
		a, b, c := src[i+1]-'0', src[i+2]-'0', src[i+3]-'0'
		ms := int64(a)*100 + int64(b)*10 + int64(c)
		if a > 9 || b > 9 || c > 9 || ms == 0 {
			return 0, false
		}
		t += ms
		i += 4
	}
	return t, src[i] == ',' && src[i+1] == '"' && t < timeLimitMS
}

// lastValue is the previous value, to detect repeated ones.
type lastValue struct {
	words [valueMax / 8]uint64 // its text, padded with zeros
	n     int                  // its length; 0: none yet
}

// packer packs blocks. It reuses its buffers for the next block.
type packer struct {
	stepTimes stepTimes
	headers   []byte
	values    []byte
	literals  []byte
	previous  lastValue
}

// appendPacked appends src as one packed block. src is borrowed.
func (p *packer) appendPacked(dst, src []byte) []byte {
	p.split(src)
	dst = binary.AppendUvarint(dst, uint64(len(p.headers)))
	dst = binary.AppendUvarint(dst, uint64(len(p.values)))
	dst = append(dst, p.headers...)
	dst = append(dst, p.values...)
	return appendS2(dst, p.literals)
}

// split splits src into headers, values and literals.
func (p *packer) split(src []byte) {
	p.headers, p.literals = p.headers[:0], p.literals[:0]
	if cap(p.values) < len(src)+packSlack {
		p.values = make([]byte, 0, len(src)+packSlack)
	}
	p.values = p.values[:0]
	p.previous = lastValue{}
	literal, beforeMS, stepMS := 0, int64(0), int64(0) // src[literal:i] are the literals after the previous run
	for i := 0; ; {
		next := bytes.IndexByte(src[i:], '[')
		if next < 0 {
			break
		}
		i += next
		t, ok := parseTime(src[i:])
		if !ok {
			i++
			continue
		}
		step := stepAfter(src[i:], t)
		if step == 0 {
			step = max(stepMS, 1)
		}
		end, samples := p.run(src, i, p.stepTimes.seek(t, step))
		if samples == 0 {
			i++
			continue
		}
		p.literals = append(p.literals, src[literal:i]...)
		p.headers = binary.AppendUvarint(p.headers, uint64(i-literal))
		p.headers = binary.AppendUvarint(p.headers, uint64(samples))
		p.headers = binary.AppendVarint(p.headers, t-beforeMS)
		if step == stepMS {
			p.headers = append(p.headers, 0)
		} else {
			p.headers = binary.AppendUvarint(p.headers, uint64(step))
		}
		literal, i, beforeMS, stepMS = end, end, t, step
	}
	p.literals = append(p.literals, src[literal:]...)
}

// stepAfter returns the milliseconds from the sample at the start of src, whose time is t, to the
// sample that follows it; 0 if no sample follows.
func stepAfter(src []byte, t int64) int64 {
	src = src[:min(len(src), packSlack+timeMax)]
	if i := bytes.IndexByte(src, ']'); i > 0 && i+2 < len(src) {
		if next, ok := parseTime(src[i+2:]); ok && next > t {
			return next - t
		}
	}
	return 0
}

// run packs the samples from src[i:] on, while their timestamps are those of stepTimes
// from index k on. end is the offset after the `]` of the last one.
func (p *packer) run(src []byte, i, k int) (end, samples int) {
	end = i
	out := p.values[len(p.values):cap(p.values)]
	used := 0
	prev := &p.previous
	for ; i+packSlack <= len(src); k++ {
		if k >= len(p.stepTimes.times) {
			var ok bool
			if k, ok = p.stepTimes.extend(k); !ok {
				break
			}
		}
		at := &p.stepTimes.times[k]
		in := (*[packSlack]byte)(src[i:])
		differs := (binary.LittleEndian.Uint64(in[0:])^at.w0)&at.m0 |
			(binary.LittleEndian.Uint64(in[8:])^at.w1)&at.m1 |
			(binary.LittleEndian.Uint64(in[16:])^at.w2)&at.m2
		if differs != 0 {
			break
		}
		text := (*[valueMax + 8]byte)(in[at.n:])
		n := packValue((*[valueMax + 9]byte)(out[used:]), text, prev)
		if n == 0 {
			break
		}
		used += n
		samples++
		end = i + at.n + prev.n + 2
		if src[end] != ',' {
			break
		}
		i = end + 1
	}
	p.values = p.values[:len(p.values)+used]
	return end, samples
}

// packValue packs the number at the start of text, which `"]` must end, and stores it in
// prev. It returns the number of bytes written, 0 if there is no such number.
func packValue(out *[valueMax + 9]byte, text *[valueMax + 8]byte, prev *lastValue) int {
	var w [valueMax / 8]uint64
	n := 0
	for i := range w {
		word := binary.LittleEndian.Uint64(text[8*i:])
		x := word ^ quotes
		if found := (x - lowBits) &^ x & highBits; found != 0 {
			tail := bits.TrailingZeros64(found) / 8
			w[i] = word & lowBytes(tail)
			n += tail
			goto ended
		}
		w[i] = word
		n += 8
	}
	if text[valueMax] != '"' {
		return 0
	}
ended:
	if n == 0 || text[n+1] != ']' {
		return 0
	}
	if w[0] == prev.words[0] && n == prev.n && w == prev.words {
		out[0] = 0
		return 1
	}
	prev.words, prev.n = w, n
	m := (n + 1) / 2
	low, high := nibbles(w[0], m), nibbles(binary.LittleEndian.Uint64(text[m&31:]), n-m)
	binary.LittleEndian.PutUint64(out[1:], low|high<<4)
	strange := low | high
	if n > 16 {
		low, high = nibbles(w[1], m-8), nibbles(binary.LittleEndian.Uint64(text[(m+8)&31:]), max(n-m-8, 0))
		binary.LittleEndian.PutUint64(out[9:], low|high<<4)
		strange |= low | high
	}
	if strange&^lowNibbles != 0 {
		out[0] = byte(0x80 + n)
		copy(out[1:], text[:n])
		return 1 + n
	}
	out[0] = byte(n)
	return 1 + m
}

// nibbles subtracts '*' from the first n characters of word, from all if n > 8, and
// zeroes the others. A character that is none of the sixteen sets a bit in the upper half
// of its byte; its borrow affects only later bytes.
func nibbles(word uint64, n int) uint64 { return (word - nibbleBase) & lowBytes(n) }
