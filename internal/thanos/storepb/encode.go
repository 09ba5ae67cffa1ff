package storepb

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
)

// HeadBytes is the length of a response's header: a tag, and a length as a varint padded
// to four bytes, so that the body need not move once its length is known.
const HeadBytes = 1 + paddedBytes

const paddedBytes = 4

// ResponseBytesMax is the greatest length that fits into the header.
const ResponseBytesMax = 1<<28 - 1

// AppendHead reserves the header of a response. SealBatch or another Seal function fills it in.
func AppendHead(dst []byte) []byte { return append(dst, 0, 0, 0, 0, 0) }

// SealBatch ends a response that begins at the start of buf and has series that were
// appended by AppendSeriesHead and AppendChunk.
func SealBatch(buf []byte) {
	buf[0] = tagBatch
	putPadded(buf[1:], len(buf)-HeadBytes)
}

func putPadded(dst []byte, v int) {
	dst[0] = byte(v) | 0x80
	dst[1] = byte(v>>7) | 0x80
	dst[2] = byte(v>>14) | 0x80
	dst[3] = byte(v>>21) & 0x7F
}

// AppendSeriesHead begins a series. labels is its encoded label set (package labelenc),
// chunksSize the sum of FieldSize over the chunks that the caller appends next. The
// series is an element of a batch and also a whole response: its field number is 1 in
// both.
func AppendSeriesHead(dst, labels []byte, chunksSize int) []byte {
	dst = append(dst, tagSeries)
	dst = binary.AppendUvarint(dst, uint64(len(labels)+chunksSize))
	return append(dst, labels...)
}

// SeriesSize returns the length of a series.
func SeriesSize(labelsLen, chunksSize int) int {
	return 1 + protowire.SizeVarint(uint64(labelsLen+chunksSize)) + labelsLen + chunksSize
}

// partSize returns the length of a part's message.
func partSize(p *series.Part) int {
	size := varintFieldSize(uint64(p.Encoding - 1))
	if len(p.Data) > 0 {
		size += FieldSize(len(p.Data))
	}
	return size
}

// ChunkSize returns the length of a chunk's message.
func ChunkSize(minMS, maxMS int64, parts []series.Part) int {
	size := varintFieldSize(uint64(minMS)) + varintFieldSize(uint64(maxMS))
	for i := range parts {
		size += FieldSize(partSize(&parts[i]))
	}
	return size
}

// FieldSize returns the number of bytes that a message of size bytes takes with its tag, if the tag is one byte.
func FieldSize(size int) int { return 1 + protowire.SizeBytes(size) }

// AppendChunk appends one chunk of the series that AppendSeriesHead began: raw samples, or the aggregates of a time
// range in ascending order. size is its ChunkSize. It appends FieldSize(size) bytes.
func AppendChunk(dst []byte, size int, minMS, maxMS int64, parts []series.Part) []byte {
	dst = binary.AppendUvarint(append(dst, tagChunk), uint64(size))
	dst = appendVarint(dst, 1<<3, uint64(minMS))
	dst = appendVarint(dst, 2<<3, uint64(maxMS))
	for i := range parts {
		p := &parts[i]
		dst = append(dst, byte(p.Aggr+fieldRaw)<<3|wireBytes)
		dst = binary.AppendUvarint(dst, uint64(partSize(p)))
		dst = appendVarint(dst, 1<<3, uint64(p.Encoding-1))
		if len(p.Data) > 0 {
			dst = binary.AppendUvarint(append(dst, 2<<3|wireBytes), uint64(len(p.Data)))
			dst = append(dst, p.Data...)
		}
	}
	return dst
}

// AppendWarning appends a response with a warning.
func AppendWarning(dst []byte, text string) []byte {
	dst = append(dst, tagWarning)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}
