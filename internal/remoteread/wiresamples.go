package remoteread

import (
	"encoding/binary"
	"fmt"
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// A response of samples, before compression:
//
//	response  (0x0A uvarint(len) result)*          one per query
//	result    (0x0A uvarint(len) series)*
//	series    label set  (0x12 uvarint(len) float | 0x22 uvarint(len) histogram)*
//	float     0x09 value, 8 bytes little endian  0x10 uvarint(time)
//
// Values of 0 are encoded although proto3 would omit them. Prometheus does the same: an
// omitted -0 would be read as 0, and the size of a series would depend on its values.

// A float whose timestamp is from floatFromMS to floatToMS, inclusive, takes floatBytes. The
// range is from 1971 to 2109.
const (
	floatFromMS = 1 << 35
	floatToMS   = 1<<42 - 1
	floatBytes  = 2 + 9 + 1 + 6
)

// floatSize returns the number of bytes that appendFloat appends for a timestamp.
func floatSize(timeMS int64) int { return 2 + 9 + 1 + protowire.SizeVarint(uint64(timeMS)) }

// appendFloat appends one float sample of a series, including its tag.
func appendFloat(dst []byte, timeMS int64, v float64) []byte {
	dst = append(dst, 2<<3|wireBytes, byte(9+1+protowire.SizeVarint(uint64(timeMS))), 1<<3|wireFixed64)
	dst = binary.LittleEndian.AppendUint64(dst, math.Float64bits(v))
	return binary.AppendUvarint(append(dst, 2<<3|wireVarint), uint64(timeMS))
}

// appendHistogramHead appends tag and length of a histogram of size bytes, which the
// caller appends next.
func appendHistogramHead(dst []byte, size int) []byte {
	return binary.AppendUvarint(append(dst, 4<<3|wireBytes), uint64(size))
}

// histogramSize returns the size of a histogram field with a message of size bytes.
func histogramSize(size int) int { return 1 + protowire.SizeVarint(uint64(size)) + size }

// appendMessageHead appends tag and length of a result within a response, or of a series
// within a result: both have field number 1.
func appendMessageHead(dst []byte, size uint64) []byte {
	return binary.AppendUvarint(append(dst, 1<<3|wireBytes), size)
}

// messageSize returns the size of a message field with a message of size bytes.
func messageSize(size uint64) uint64 { return 1 + uint64(protowire.SizeVarint(size)) + size }

// onlyResult returns the encoded result of a response to one query, nil if the response is empty.
func onlyResult(src []byte) (result []byte, err error) {
	for found := false; len(src) > 0; {
		f, rest, err := nextField(src)
		if err != nil {
			return nil, err
		}
		src = rest
		if f.number != 1 {
			continue
		}
		if err := f.is(wireBytes); err != nil {
			return nil, err
		}
		if found {
			return nil, fmt.Errorf("%w: more than one result for one query", ErrCorrupt)
		}
		result, found = f.bytes, true
	}
	return result, nil
}
