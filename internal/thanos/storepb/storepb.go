// Package storepb encodes and decodes the stream of series of StoreAPI.
//
//	response  0x0A len series | 0x12 len warning | 0x1A len hints | 0x22 len batch | delta batch (deltas.go)
//	batch     (0x0A len series)*
//	series    label set (as package labelenc encodes it)  (0x12 len chunk)*
//	chunk     [0x08 min] [0x10 max] (number<<3|2 len data)*    3 raw, 4 count, 5 sum, 6 min, 7 max, 8 counter
//	data      [0x08 encoding-1] [0x12 len bytes] [0x18 xxhash64 of bytes]
//
// Encoded label sets and chunks are appended to a response. A response is decoded from
// one piece of memory, which the label sets and chunks alias. Label sets are not
// validated here. Package thanospb has the messages of requests and small responses. This
// package has no gRPC and no I/O.
package storepb

import (
	"encoding/binary"
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrCorrupt is returned for invalid bytes.
var ErrCorrupt = errors.New("corrupt StoreAPI message")

// EncodingMax is the greatest chunk encoding (of package chunkenc) that the protocol
// defines.
const EncodingMax = 3

// Wire types and the tags of a response.
const (
	wireVarint = 0
	wireBytes  = 2

	tagSeries  = 1<<3 | wireBytes
	tagChunk   = 2<<3 | wireBytes // of a series
	tagWarning = 2<<3 | wireBytes
	tagHints   = 3<<3 | wireBytes
	tagBatch   = 4<<3 | wireBytes

	tagDeltaBatch = 90491<<3 | wireBytes

	fieldRaw     = 3
	fieldCounter = 8
)

// uvarint reads a varint. n is 0 if src does not begin with a valid varint.
func uvarint(src []byte) (v uint64, n int) {
	if len(src) > 0 && src[0] < 0x80 { // the usual case
		return uint64(src[0]), 1
	}
	v, n = binary.Uvarint(src)
	return v, max(n, 0)
}

// prefixed cuts a length and that many bytes off src.
func prefixed(src []byte) (field, rest []byte, ok bool) {
	size, n := uvarint(src)
	if n == 0 || size > uint64(len(src)-n) {
		return nil, nil, false
	}
	end := n + int(size)
	return src[n:end:end], src[end:], true
}

// nextTag cuts the tag of a field off src. It is small, to be inlined.
func nextTag(src []byte) (tag uint64, rest []byte, err error) {
	if len(src) > 0 && src[0] < 0x80 { // the usual case
		return uint64(src[0]), src[1:], nil
	}
	return longTag(src)
}

func longTag(src []byte) (tag uint64, rest []byte, err error) {
	tag, n := uvarint(src)
	if n == 0 {
		return 0, nil, fmt.Errorf("%w: truncated or invalid field tag", ErrCorrupt)
	}
	return tag, src[n:], nil
}

// nextBody cuts the value of a field of bytes off src.
func nextBody(tag uint64, src []byte) (body, rest []byte, err error) {
	size, n := uvarint(src)
	if n == 0 || size > uint64(len(src)-n) {
		return nil, nil, cutShort(tag)
	}
	end := n + int(size)
	return src[n:end:end], src[end:], nil
}

// skip cuts the value of an unknown field off src.
func skip(tag uint64, src []byte) (rest []byte, err error) {
	number, wire := protowire.DecodeTag(tag)
	switch {
	case !number.IsValid():
		return nil, fmt.Errorf("%w: bad field number", ErrCorrupt)
	case wire == protowire.StartGroupType || wire == protowire.EndGroupType || wire > protowire.Fixed32Type:
		return nil, fmt.Errorf("%w: field %d has wire type %d", ErrCorrupt, number, wire)
	}
	n := protowire.ConsumeFieldValue(number, wire, src)
	if n < 0 {
		return nil, cutShort(tag)
	}
	return src[n:], nil
}

func cutShort(tag uint64) error {
	return fmt.Errorf("%w: field %d is cut short", ErrCorrupt, tag>>3)
}

func varintFieldSize(v uint64) int {
	if v == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(v)
}

// appendVarint appends a varint field, or nothing for 0, as proto3 does.
func appendVarint(dst []byte, tag byte, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return binary.AppendUvarint(append(dst, tag), v)
}
