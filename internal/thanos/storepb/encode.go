package storepb

import (
	"encoding/binary"

	"google.golang.org/protobuf/encoding/protowire"
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
// chunksSize the sum of ChunkSize over the chunks that the caller appends next. The
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

// dataBody returns the length of a chunk's field without tag and length.
func dataBody(encoding uint8, dataLen int) int {
	size := varintFieldSize(uint64(encoding - 1))
	if dataLen > 0 {
		size += 1 + protowire.SizeVarint(uint64(dataLen)) + dataLen
	}
	return size
}

func dataSize(encoding uint8, dataLen int) int {
	body := dataBody(encoding, dataLen)
	return 1 + protowire.SizeVarint(uint64(body)) + body
}

// SpanLen returns how many of the chunks, from the first on, go into one message:
// different aggregates of the same time range, or one raw chunk.
func SpanLen(chunks []Chunk) int {
	n := 1
	for n < len(chunks) && chunks[n].Aggr > chunks[n-1].Aggr && chunks[n-1].Aggr != Raw &&
		chunks[n].MinMS == chunks[0].MinMS && chunks[n].MaxMS == chunks[0].MaxMS {
		n++
	}
	return n
}

func spanBody(span []Chunk) int {
	size := varintFieldSize(uint64(span[0].MinMS)) + varintFieldSize(uint64(span[0].MaxMS))
	for i := range span {
		size += dataSize(span[i].Encoding, len(span[i].Data))
	}
	return size
}

// SpanSize returns the number of bytes that AppendSpan appends.
func SpanSize(span []Chunk) int {
	body := spanBody(span)
	return 1 + protowire.SizeVarint(uint64(body)) + body
}

// AppendSpan appends the chunks of one span, as found by SpanLen.
func AppendSpan(dst []byte, span []Chunk) []byte {
	dst = append(dst, 2<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(spanBody(span)))
	dst = appendVarint(dst, 1<<3, uint64(span[0].MinMS))
	dst = appendVarint(dst, 2<<3, uint64(span[0].MaxMS))
	for i := range span {
		c := &span[i]
		dst = append(dst, byte(c.Aggr+fieldRaw)<<3|wireBytes)
		dst = binary.AppendUvarint(dst, uint64(dataBody(c.Encoding, len(c.Data))))
		dst = appendVarint(dst, 1<<3, uint64(c.Encoding-1))
		if len(c.Data) > 0 {
			dst = append(dst, 2<<3|wireBytes)
			dst = binary.AppendUvarint(dst, uint64(len(c.Data)))
			dst = append(dst, c.Data...)
		}
	}
	return dst
}

// ChunkSize returns the number of bytes that AppendChunk appends for a raw chunk of dataLen bytes.
func ChunkSize(minMS, maxMS int64, encoding uint8, dataLen int) int {
	body := varintFieldSize(uint64(minMS)) + varintFieldSize(uint64(maxMS)) + dataSize(encoding, dataLen)
	return 1 + protowire.SizeVarint(uint64(body)) + body
}

// AppendChunk appends one raw chunk of the series that AppendSeriesHead began.
func AppendChunk(dst []byte, minMS, maxMS int64, encoding uint8, data []byte) []byte {
	inner := dataBody(encoding, len(data))
	body := varintFieldSize(uint64(minMS)) + varintFieldSize(uint64(maxMS)) + 1 + protowire.SizeVarint(uint64(inner)) +
		inner
	dst = append(dst, 2<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(body))
	dst = appendVarint(dst, 1<<3, uint64(minMS))
	dst = appendVarint(dst, 2<<3, uint64(maxMS))
	dst = append(dst, fieldRaw<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(inner))
	dst = appendVarint(dst, 1<<3, uint64(encoding-1))
	if len(data) == 0 {
		return dst
	}
	dst = append(dst, 2<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(len(data)))
	return append(dst, data...)
}

// AppendWarning appends a response with a warning.
func AppendWarning(dst []byte, text string) []byte {
	dst = append(dst, tagWarning)
	dst = binary.AppendUvarint(dst, uint64(len(text)))
	return append(dst, text...)
}
