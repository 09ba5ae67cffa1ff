package tsdb

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ErrCorrupt is returned for blocks with invalid bytes.
var ErrCorrupt = errors.New("corrupt block")

// errForeign is returned for an index version that this package does not know. Prometheus' own
// reader may know it.
var errForeign = errors.New("unknown index version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const (
	indexVersion2  = 2
	indexVersion3  = 3 // differs from 2 in postings, which are not read here
	seriesAlign    = 16
	chunkLengthMax = 5 // the most bytes that a chunk's length takes
)

// blockIndex decodes the series entries of a block's index.
//
//	symbols  len u32 | count u32 | (uvarint(len) text)* | crc32
//	series   uvarint(len) | labels, chunks | crc32, 16-byte aligned at ref*16
//	labels   uvarint(count) (uvarint(name) uvarint(value))*   numbers of symbols
//	chunks   uvarint(count) varint(min) uvarint(max-min) uvarint(ref)
//	         (uvarint(min-last max) uvarint(max-min) varint(ref-last ref))*
//
// A symbol in the table is a length and a string, as in protobuf. A label set is therefore
// encoded by copying symbols, and a blockIndex has only the offsets of the symbols. bytes is a
// mapped file: results that alias it are invalid once the mapping is closed.
type blockIndex struct {
	bytes   []byte
	symbols []byte   // the strings
	offsets []uint32 // start of each symbol, and the end of the last
}

func newBlockIndex(bytes []byte) (*blockIndex, error) {
	if len(bytes) < index.HeaderLen || binary.BigEndian.Uint32(bytes) != index.MagicIndex {
		return nil, fmt.Errorf("%w: not an index", ErrCorrupt)
	}
	if bytes[4] != indexVersion2 && bytes[4] != indexVersion3 {
		return nil, fmt.Errorf("%w %d", errForeign, bytes[4])
	}
	toc, err := index.NewTOCFromByteSlice(byteSlice(bytes))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if toc.Symbols > uint64(len(bytes)-8) {
		return nil, fmt.Errorf("%w: no symbols", ErrCorrupt)
	}
	table := bytes[toc.Symbols:]
	size := uint64(binary.BigEndian.Uint32(table))
	if size < 4 || size+8 > uint64(len(table)) {
		return nil, fmt.Errorf("%w: symbols are cut short", ErrCorrupt)
	}
	content := table[4 : 4+size]
	if crc32.Checksum(content, castagnoli) != binary.BigEndian.Uint32(table[4+size:]) {
		return nil, fmt.Errorf("%w: checksum of the symbols", ErrCorrupt)
	}
	ix := &blockIndex{bytes: bytes, symbols: content[4:]}
	return ix, ix.findSymbols(int(binary.BigEndian.Uint32(content)))
}

func (ix *blockIndex) findSymbols(count int) error {
	if count > len(ix.symbols) { // each has a byte at least
		return fmt.Errorf("%w: %d symbols in %d bytes", ErrCorrupt, count, len(ix.symbols))
	}
	ix.offsets = make([]uint32, 0, count+1)
	at := 0
	for range count {
		ix.offsets = append(ix.offsets, uint32(at))
		size, n := binary.Uvarint(ix.symbols[at:])
		if n <= 0 || size > uint64(len(ix.symbols)-at-n) {
			return fmt.Errorf("%w: symbol %d is cut short", ErrCorrupt, len(ix.offsets)-1)
		}
		at += n + int(size)
	}
	ix.offsets = append(ix.offsets, uint32(at))
	return nil
}

// symbol returns symbol n with its length prefix.
func (ix *blockIndex) symbol(n uint64) ([]byte, bool) {
	if n >= uint64(len(ix.offsets)-1) {
		return nil, false
	}
	return ix.symbols[ix.offsets[n]:ix.offsets[n+1]], true
}

// entry returns the verified body of the series entry at ref.
func (ix *blockIndex) entry(ref uint64) ([]byte, error) {
	if ref > uint64(len(ix.bytes))/seriesAlign {
		return nil, fmt.Errorf("%w: beyond the index", ErrCorrupt)
	}
	src := ix.bytes[min(ref*seriesAlign, uint64(len(ix.bytes))):]
	size, n := binary.Uvarint(src)
	if n <= 0 || size > uint64(len(src)-n) || uint64(len(src)-n)-size < crc32.Size {
		return nil, fmt.Errorf("%w: entry is cut short", ErrCorrupt)
	}
	body := src[n : n+int(size)]
	if crc32.Checksum(body, castagnoli) != binary.BigEndian.Uint32(src[n+int(size):]) {
		return nil, fmt.Errorf("%w: checksum of the entry", ErrCorrupt)
	}
	return body, nil
}

// entryParts has the decoded parts of a series entry.
type entryParts struct {
	labels  []byte // encoded
	metas   []blocks.Chunk
	skipped int // chunks before metas
}

// series decodes the labels of a series and the metas of its chunks that overlap mint to
// maxt, without data. It overwrites into.
func (ix *blockIndex) series(ref uint64, mint, maxt int64, into *entryParts) error {
	into.labels, into.metas = into.labels[:0], into.metas[:0]
	body, err := ix.entry(ref)
	if err != nil {
		return err
	}
	r := blocks.Varints{Src: body}
	for range r.LabelCount() {
		nameNumber, valueNumber := r.Label()
		name, okName := ix.symbol(nameNumber)
		value, okValue := ix.symbol(valueNumber)
		if r.Bad || !okName || !okValue {
			return fmt.Errorf("%w: unknown symbol", ErrCorrupt)
		}
		into.labels = labelenc.AppendSymbols(into.labels, name, value)
	}
	into.metas, into.skipped, err = chunkMetas(&r, mint, maxt, into.metas)
	return err
}

func chunkMetas(r *blocks.Varints, mint, maxt int64, metas []blocks.Chunk) (_ []blocks.Chunk, skipped int, err error) {
	list := blocks.NewChunks(*r)
	metas, skipped = list.AppendWithin(metas, mint, maxt)
	if err := list.Err(); err != nil {
		return metas, skipped, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return metas, skipped, nil
}

// byteSlice implements the interface that Prometheus' index package reads from.
type byteSlice []byte

func (b byteSlice) Len() int                           { return len(b) }
func (b byteSlice) Range(start, end int) []byte        { return b[start:end] }
func (b byteSlice) Sub(start, end int) index.ByteSlice { return b[start:end] }

// segments are the mapped chunk files of a block, in order.
//
//	chunk  uvarint(len) | encoding | data | crc32 of encoding and data
type segments [][]byte

// chunk returns the encoding and the data at a chunk reference.
func (s segments) chunk(ref uint64) (encoding byte, data []byte, err error) {
	file, at := chunks.BlockChunkRef(ref).Unpack()
	if file < 0 || file >= len(s) || at < chunks.SegmentHeaderSize || at > len(s[file]) {
		return 0, nil, fmt.Errorf("%w: offset %d is outside segment %d", ErrCorrupt, at, file)
	}
	src := s[file][at:]
	size, n := binary.Uvarint(src[:min(chunkLengthMax, len(src))])
	if n <= 0 || size > uint64(len(src)) || uint64(len(src)) < uint64(n)+1+size+crc32.Size {
		return 0, nil, fmt.Errorf("%w: chunk is cut short", ErrCorrupt)
	}
	checked := src[n : n+1+int(size)]
	if crc32.Checksum(checked, castagnoli) != binary.BigEndian.Uint32(src[n+1+int(size):]) {
		return 0, nil, fmt.Errorf("%w: checksum of the chunk", ErrCorrupt)
	}
	return checked[0], checked[1:], nil
}

// touch reads a byte at each reference. The processor waits for the memory of many chunks at once, not for each chunk
// when it is read. The result has no meaning.
func (s segments) touch(refs []uint64) (sum byte) {
	for _, ref := range refs {
		if file, at := chunks.BlockChunkRef(ref).Unpack(); file < len(s) && at < len(s[file]) {
			sum += s[file][at]
		}
	}
	return sum
}
