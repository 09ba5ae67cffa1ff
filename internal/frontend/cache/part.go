package cache

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/s2"
)

// Codec is how the blocks of a response are compressed. A block that does not get
// smaller is stored uncompressed, whatever the codec.
type Codec uint8

// The codecs. Each reads the blocks of all others.
const (
	CodecPacked Codec = iota // numbers and timestamps as nibbles, the rest by s2; the default
	CodecS2
	CodecNone
)

const (
	blockBytes    = 128 << 10 // response bytes in one block; they fit into the CPU cache of a core
	blockBytesMax = 1 << 20   // limit of the response bytes that a block may declare

	partHeaderBytes  = 20
	blockHeaderBytes = 2*binary.MaxVarintLen32 + 1
)

// The method byte of a block.
const (
	methodNone byte = iota
	methodS2
	methodPacked
)

// beginPart returns an empty part with space for its header, in dst if it is large enough.
func beginPart(dst []byte) []byte { return append(dst[:0], make([]byte, partHeaderBytes)...) }

// sealPart writes the header of a part that has all its blocks.
func sealPart(part []byte, id uint64, number int) {
	binary.LittleEndian.PutUint64(part[8:], id)
	binary.LittleEndian.PutUint32(part[16:], uint32(number))
	binary.LittleEndian.PutUint64(part, xxhash.Sum64(part[8:]))
}

// openPart checks that part is complete, and that it has this number in the extent with this id.
// The blocks alias part.
func openPart(part []byte, id uint64, number, wantBytes int) (blocks []byte, err error) {
	switch {
	case len(part) != wantBytes || len(part) < partHeaderBytes:
		return nil, fmt.Errorf("part %d: %d bytes instead of %d: %w", number, len(part), wantBytes, errCorrupt)
	case binary.LittleEndian.Uint64(part) != xxhash.Sum64(part[8:]):
		return nil, fmt.Errorf("part %d: checksum: %w", number, errCorrupt)
	case binary.LittleEndian.Uint64(part[8:]) != id || binary.LittleEndian.Uint32(part[16:]) != uint32(number):
		return nil, fmt.Errorf("part %d: id of another part: %w", number, errCorrupt)
	}
	return part[partHeaderBytes:], nil
}

// block is one compressed piece of a response. Its data alias the part.
type block struct {
	rawBytes int
	method   byte
	data     []byte
}

// cutBlock splits the first block off the blocks of a part.
func cutBlock(src []byte) (b block, rest []byte, err error) {
	raw, n := binary.Uvarint(src)
	if n <= 0 || raw == 0 || raw > blockBytesMax || n >= len(src) {
		return b, nil, errCorrupt
	}
	b.rawBytes, b.method = int(raw), src[n]
	src = src[n+1:]
	stored, n := binary.Uvarint(src)
	if n <= 0 || stored > uint64(len(src)-n) {
		return b, nil, errCorrupt
	}
	b.data = src[n : n+int(stored)]
	return b, src[n+int(stored):], nil
}

// encoder compresses blocks; it reuses its buffers for the next one.
type encoder struct {
	packer packer
	data   []byte
}

// decoder decompresses blocks.
type decoder struct{ unpacker unpacker }

// An encoder or decoder holds some hundred kilobytes, mostly for one block and for the prepared timestamps.
var (
	encoders = sync.Pool{New: func() any { return new(encoder) }}
	decoders = sync.Pool{New: func() any { return new(decoder) }}
)

// appendBlock appends raw as one block. raw is borrowed and at most blockBytesMax long.
func (e *encoder) appendBlock(dst, raw []byte, codec Codec) []byte {
	method, data := methodNone, raw
	switch codec {
	case CodecPacked:
		method, e.data = methodPacked, e.packer.appendPacked(e.data[:0], raw)
		data = e.data
	case CodecS2:
		method, e.data = methodS2, appendS2(e.data[:0], raw)
		data = e.data
	}
	if len(data) >= len(raw) {
		method, data = methodNone, raw
	}
	dst = binary.AppendUvarint(dst, uint64(len(raw)))
	dst = append(dst, method)
	dst = binary.AppendUvarint(dst, uint64(len(data)))
	return append(dst, data...)
}

// decode fills dst, which is b.rawBytes long.
func (d *decoder) decode(dst []byte, b block) error {
	switch b.method {
	case methodNone:
		if len(b.data) != len(dst) {
			return errCorrupt
		}
		copy(dst, b.data)
		return nil
	case methodS2:
		if n, err := s2.DecodedLen(b.data); err != nil || n != len(dst) {
			return errCorrupt
		}
		if _, err := s2.Decode(dst[:len(dst):len(dst)], b.data); err != nil {
			return errCorrupt
		}
		return nil
	case methodPacked:
		return d.unpacker.join(dst, b.data)
	}
	return errCorrupt
}

// appendS2 appends src as one s2 block.
func appendS2(dst, src []byte) []byte {
	n, limit := len(dst), s2.MaxEncodedLen(len(src))
	if cap(dst)-n < limit {
		dst = append(make([]byte, 0, n+limit), dst...)
	}
	return dst[:n+len(s2.Encode(dst[n:n+limit], src))]
}
