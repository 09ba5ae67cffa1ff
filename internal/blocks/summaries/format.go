package summaries

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"

	"github.com/ferula-io/ferula/internal/series"
)

// ErrCorrupt is returned for a file that must not be used: it is damaged, or of another block or version.
var ErrCorrupt = errors.New("unusable summaries")

// ErrVersion is the ErrCorrupt of another version. After an upgrade all files are of one.
var ErrVersion = fmt.Errorf("%w: another version", ErrCorrupt)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	magic   = "FSUM"
	version = 3

	headerBytes = 68
	entryBytes  = 12      // of the table
	groupBytes  = 4 << 10 // a group ends after the series that brings it to this size
	// sectionMax is the limit of the summaries of one series, in bytes. A series that has more has none.
	sectionMax = 64 << 20
	// groupMax is the limit of a group, in bytes: less than groupBytes, then one more series.
	groupMax = groupBytes + 2*binary.MaxVarintLen64 + sectionMax + crc32.Size
)

// The flags of a summary.
const (
	present    = 1 << iota
	newCount   // the count and the gap follow
	newChanges // the changes follow
	falls
	floats   // the values are no integers
	extremes // minimum and maximum follow
	flat     // all values are equal
	same     // the first value is the last value of the summary before
)

const (
	times = 2 // bytes before the flags, which are always present
	cut   = 4

	partsMax = 4 // of a chunk
	hourMS   = 3600_000
)

// hour returns the first full hour that is not before a time.
func hour(ms int64) int64 { return ms + (hourMS-ms%hourMS)%hourMS }

// part is a part of a chunk.
type part struct {
	series.Summary
	end, start   int64 // of the cut behind it; start is 0 if it is the last one
	minMS, maxMS int64 // set by Series.at
}

// integersMax limits the integers: a float64 has each integer up to twice as much, so differences are exact.
const integersMax = 1 << 52

// Block is the identity of a block: a file of another block is not used.
type Block struct {
	ULID         [16]byte
	IndexBytes   uint64
	IndexEnd     uint32 // the last four bytes: the checksum of its table of contents
	Segments     uint32
	SegmentBytes uint64
}

// NewBlock returns the identity of a block by the end of its index, at least four bytes, and sizes.
func NewBlock(ulid [16]byte, indexBytes uint64, indexEnd []byte, segmentBytes ...uint64) Block {
	b := Block{ULID: ulid, IndexBytes: indexBytes, Segments: uint32(len(segmentBytes))}
	b.IndexEnd = binary.LittleEndian.Uint32(indexEnd[len(indexEnd)-4:])
	for _, n := range segmentBytes {
		b.SegmentBytes += n
	}
	return b
}

// header is the start of a file.
type header struct {
	Block
	TableAt        uint64
	Groups, Series uint32
}

func (h header) append(dst []byte) []byte {
	from := len(dst)
	dst = append(append(dst, magic...), version, 0, 0, 0)
	dst = append(dst, h.ULID[:]...)
	le := binary.LittleEndian
	dst = le.AppendUint32(le.AppendUint64(dst, h.IndexBytes), h.IndexEnd)
	dst = le.AppendUint64(le.AppendUint32(dst, h.Segments), h.SegmentBytes)
	dst = le.AppendUint32(le.AppendUint32(le.AppendUint64(dst, h.TableAt), h.Groups), h.Series)
	return appendChecksum(dst, from)
}

// readHeader reads the header at the start of src, a file of the block.
func readHeader(src []byte, block Block) (h header, err error) {
	if len(src) < headerBytes || string(src[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: no header", ErrCorrupt)
	}
	if src[len(magic)] != version {
		return h, fmt.Errorf("%w: %d, not %d", ErrVersion, src[len(magic)], version)
	}
	if _, err := checked(src[:headerBytes]); err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	le := binary.LittleEndian
	copy(h.ULID[:], src[8:])
	h.IndexBytes, h.IndexEnd = le.Uint64(src[24:]), le.Uint32(src[32:])
	h.Segments, h.SegmentBytes = le.Uint32(src[36:]), le.Uint64(src[40:])
	h.TableAt, h.Groups, h.Series = le.Uint64(src[48:]), le.Uint32(src[56:]), le.Uint32(src[60:])
	if h.Block != block {
		return h, fmt.Errorf("%w: they are of another block", ErrCorrupt)
	}
	if h.TableAt < headerBytes || h.TableAt > math.MaxInt64/2 {
		return h, fmt.Errorf("%w: table at %d", ErrCorrupt, h.TableAt)
	}
	return h, nil
}

// tableBytes returns the length of the table, with which the file ends.
func (h header) tableBytes() uint64 { return uint64(h.Groups)*entryBytes + crc32.Size }

func appendChecksum(dst []byte, from int) []byte {
	return binary.LittleEndian.AppendUint32(dst, crc32.Checksum(dst[from:], castagnoli))
}

// checked returns src without the checksum with which it ends.
func checked(src []byte) ([]byte, error) {
	if len(src) < crc32.Size {
		return nil, fmt.Errorf("%w: cut short", ErrCorrupt)
	}
	body, sum := src[:len(src)-crc32.Size], src[len(src)-crc32.Size:]
	if crc32.Checksum(body, castagnoli) != binary.LittleEndian.Uint32(sum) {
		return nil, fmt.Errorf("%w: checksum", ErrCorrupt)
	}
	return body, nil
}

// before is what a summary is encoded against.
type before struct {
	count, changes int
	times          [4]int64 // second, late, end, start
	gap            byte
	last           float64
	integer        int64
}

// append appends the summary of a part; one without samples is absent.
func (b *before) append(dst []byte, s part) []byte {
	if s.Count == 0 {
		return append(dst, 0)
	}
	now := [4]int64{s.Second, s.Late, b.times[2], b.times[3]}
	if s.start > 0 {
		now[2], now[3] = s.end, s.start
	}
	if now != b.times {
		b.times, dst = now, append(dst, times)
		for _, ms := range now {
			dst = binary.AppendUvarint(dst, uint64(ms))
		}
	}
	if s.start > 0 {
		dst = append(dst, cut)
	}
	at := len(dst)
	dst = append(dst, present)
	flag := func(set bool, f byte) bool {
		if set {
			dst[at] |= f
		}
		return set
	}
	if flag(s.Count != b.count || s.Gap != b.gap, newCount) {
		dst = append(binary.AppendUvarint(dst, uint64(s.Count)), s.Gap)
	}
	flag(s.Falls, falls)
	level := flag(s.Changes == 0, flat)
	if !level && flag(s.Changes != b.changes, newChanges) {
		dst = binary.AppendUvarint(dst, uint64(s.Changes))
	}
	low, high := min(s.First, s.Last), max(s.First, s.Last)
	wide := flag(s.Min != low || s.Max != high, extremes)
	known := flag(math.Float64bits(s.First) == math.Float64bits(b.last), same)
	if flag(!integers(s.Summary), floats) {
		first, last := math.Float64bits(s.First), math.Float64bits(s.Last)
		if !known || !level {
			dst = appendPair(dst, first^math.Float64bits(b.last), last^first)
		}
		if wide {
			dst = appendPair(dst, math.Float64bits(s.Min)^math.Float64bits(low),
				math.Float64bits(s.Max)^math.Float64bits(high))
		}
	} else {
		if !known {
			dst = binary.AppendVarint(dst, int64(s.First)-b.integer)
		}
		if !level {
			dst = binary.AppendVarint(dst, int64(s.Last)-int64(s.First))
		}
		if wide {
			dst = binary.AppendUvarint(dst, uint64(low-s.Min))
			dst = binary.AppendUvarint(dst, uint64(s.Max-high))
		}
		b.integer = int64(s.Last)
	}
	if !level {
		b.changes = s.Changes
	}
	b.count, b.gap, b.last = s.Count, s.Gap, s.Last
	return dst
}

func integers(s series.Summary) bool {
	for _, f := range [...]float64{s.First, s.Last, s.Min, s.Max} {
		if !(math.Abs(f) <= integersMax) || f != math.Trunc(f) {
			return false
		}
	}
	return true
}

// appendPair appends the lowest bytes of two numbers that are not 0, after a byte with how many there are of each.
func appendPair(dst []byte, x, y uint64) []byte {
	n, m := (bits.Len64(x)+7)/8, (bits.Len64(y)+7)/8
	dst = append(dst, byte(n<<4|m))
	dst = binary.LittleEndian.AppendUint64(dst, x)[:len(dst)+n]
	return binary.LittleEndian.AppendUint64(dst, y)[:len(dst)+m]
}

// pair reads what appendPair has appended.
func pair(src []byte) (x, y uint64, rest []byte, ok bool) {
	if len(src) == 0 {
		return 0, 0, nil, false
	}
	n, m := int(src[0]>>4), int(src[0]&15)
	src = src[1:]
	if n > 8 || m > 8 || len(src) < n+m {
		return 0, 0, nil, false
	}
	return lowest(src, n), lowest(src[n:], m), src[n+m:], true
}

func lowest(src []byte, n int) (v uint64) {
	if len(src) >= 8 {
		return binary.LittleEndian.Uint64(src) & (1<<(8*n) - 1)
	}
	for i := range n {
		v |= uint64(src[i]) << (8 * i)
	}
	return v
}
