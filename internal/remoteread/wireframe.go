package remoteread

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const checksumBytes = 4

// encodingMax is the greatest chunk encoding that the protocol defines.
const encodingMax = 6

func varintFieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

func chunkBody(minMS, maxMS int64, encoding uint8, dataLen int) int {
	size := varintFieldSize(uint64(minMS)) + varintFieldSize(uint64(maxMS)) + varintFieldSize(uint64(encoding))
	if dataLen > 0 {
		size += 1 + protowire.SizeVarint(uint64(dataLen)) + dataLen
	}
	return size
}

// chunkSize returns the number of bytes that appendChunk appends for a chunk of dataLen bytes.
func chunkSize(minMS, maxMS int64, encoding uint8, dataLen int) int {
	body := chunkBody(minMS, maxMS, encoding, dataLen)
	return 1 + protowire.SizeVarint(uint64(body)) + body
}

// frameSize returns the length of a whole frame.
func frameSize(queryIndex, labelsLen, chunksSize int) int {
	payload := payloadSize(queryIndex, labelsLen+chunksSize)
	return protowire.SizeVarint(uint64(payload)) + checksumBytes + payload
}

func payloadSize(queryIndex, seriesLen int) int {
	return 1 + protowire.SizeVarint(uint64(seriesLen)) + seriesLen + varintFieldSize(uint64(queryIndex))
}

// appendFrameHead begins a frame of one series. labels is its encoded label set (package
// labelenc), chunksSize the sum of chunkSize over the chunks that the caller appends
// next. sealFrame must end the frame.
func appendFrameHead(dst []byte, queryIndex int, labels []byte, chunksSize int) []byte {
	seriesLen := len(labels) + chunksSize
	dst = binary.AppendUvarint(dst, uint64(payloadSize(queryIndex, seriesLen)))
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, 1<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(seriesLen))
	return append(dst, labels...)
}

// appendChunk appends one chunk of the series that appendFrameHead began.
func appendChunk(dst []byte, minMS, maxMS int64, encoding uint8, data []byte) []byte {
	dst = append(dst, 2<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(chunkBody(minMS, maxMS, encoding, len(data))))
	dst = appendVarint(dst, 1, uint64(minMS))
	dst = appendVarint(dst, 2, uint64(maxMS))
	dst = appendVarint(dst, 3, uint64(encoding))
	if len(data) == 0 {
		return dst
	}
	dst = append(dst, 4<<3|wireBytes)
	dst = binary.AppendUvarint(dst, uint64(len(data)))
	return append(dst, data...)
}

// sealFrame ends the frame that begins at dst[start]: it appends the query's index and
// sets the checksum.
func sealFrame(dst []byte, start, queryIndex int) []byte {
	dst = appendVarint(dst, 2, uint64(queryIndex))
	_, n := binary.Uvarint(dst[start:])
	payload := dst[start+n+checksumBytes:]
	binary.BigEndian.PutUint32(dst[start+n:], crc32.Checksum(payload, castagnoli))
	return dst
}

// checkFrame compares a payload with the checksum in front of it.
func checkFrame(payload []byte, checksum uint32) error {
	if got := crc32.Checksum(payload, castagnoli); got != checksum {
		return fmt.Errorf("%w: checksum %08x, want %08x", ErrCorrupt, got, checksum)
	}
	return nil
}

// decodeFrame decodes a payload. It appends the chunks of the series to chunks; the data of these
// chunks aliases payload. It appends copies of the label fields to labels. It cannot alias them,
// because chunk fields may be between label fields. A frame with several series is an error: no
// server sends one.
func decodeFrame(payload, labels []byte, chunks []series.Chunk) (queryIndex int64, _ []byte, _ []series.Chunk, err error) {
	seriesSeen := 0
	for len(payload) > 0 {
		f, rest, err := nextField(payload)
		if err != nil {
			return 0, labels, chunks, err
		}
		payload = rest
		switch f.number {
		case 1:
			if err := f.is(wireBytes); err != nil {
				return 0, labels, chunks, err
			}
			if seriesSeen++; seriesSeen > 1 {
				return 0, labels, chunks, fmt.Errorf("%w: more than one series in a frame", ErrCorrupt)
			}
			if labels, chunks, err = decodeSeries(f.bytes, labels, chunks); err != nil {
				return 0, labels, chunks, err
			}
		case 2:
			if err := f.is(wireVarint); err != nil {
				return 0, labels, chunks, err
			}
			queryIndex = int64(f.value)
		}
	}
	if seriesSeen == 0 {
		return 0, labels, chunks, fmt.Errorf("%w: a frame without a series", ErrCorrupt)
	}
	return queryIndex, labels, chunks, nil
}

func decodeSeries(src, labels []byte, chunks []series.Chunk) ([]byte, []series.Chunk, error) {
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return labels, chunks, err
		}
		whole := src[:len(src)-len(rest)]
		src = rest
		switch f.number {
		case 1:
			if err := f.is(wireBytes); err != nil {
				return labels, chunks, err
			}
			labels = append(labels, whole...)
		case 2:
			if err := f.is(wireBytes); err != nil {
				return labels, chunks, err
			}
			chunk, err := decodeChunk(f.bytes)
			if err != nil {
				return labels, chunks, err
			}
			chunks = append(chunks, chunk)
		}
	}
	return labels, chunks, nil
}

func decodeChunk(src []byte) (series.Chunk, error) {
	var c series.Chunk
	for len(src) > 0 {
		f, rest, err := nextField(src)
		if err != nil {
			return c, err
		}
		src = rest
		want := wireVarint
		if f.number == 4 {
			want = wireBytes
		}
		if f.number >= 1 && f.number <= 4 {
			if err := f.is(want); err != nil {
				return c, err
			}
		}
		switch f.number {
		case 1:
			c.MinMS = int64(f.value)
		case 2:
			c.MaxMS = int64(f.value)
		case 3:
			if f.value > encodingMax {
				return c, fmt.Errorf("%w: unknown chunk encoding %d", ErrCorrupt, f.value)
			}
			c.Encoding = chunkenc.Encoding(f.value)
		case 4:
			c.Data = f.bytes
		}
	}
	return c, nil
}
