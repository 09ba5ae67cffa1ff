package remotewrite

// What a remote write request costs is computed before it is decoded: two bytes on the wire can become a hundred in
// memory, and a symbol that is sent once can be in a million label sets.
//
// CostV1 and CostV2 read the tags of a decompressed WriteRequest (1.0) or Request (2.0) once, and return the number of
// series and an estimate of the decoded bytes. They do not decode, copy or retain anything.

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// ErrCorrupt is returned for an invalid request, and for a request with a label name or value longer than labelTextMax.
var ErrCorrupt = errors.New("corrupt remote write request")

// Cost is the size of a request after decoding.
type Cost struct {
	Series int
	// Bytes of structs, slices and, in 2.0, of the label sets that refer to symbols.
	Bytes int64
}

// Estimated sizes of the structs that a decoder allocates for messages and elements. The
// tests check that they are not less than the sizes in the decoder in use.
const (
	textBytes   = 16
	number64    = 8
	number32    = 4
	labelBytes  = 64
	sampleBytes = 56

	spanBytes      = 40
	exemplarBytes  = 72
	histogramBytes = 320
	metadataBytes  = 88
	seriesBytes    = 176
)

// labelTextMax is the maximum length of a label name or value in bytes. Prometheus' labels.Labels stores the length
// in 24 bits and panics at longer names and values.
const labelTextMax = 1<<24 - 1

// form is the encoding of a repeated field.
type form uint8

const (
	message form = iota
	varints
	doubles
	symbols // varints that refer to symbols
	symbol  // one symbol, or a name or value of a label
)

// field is a repeated field, or a message field with repeated fields.
type field struct {
	form form
	each int64      // decoded bytes of one element; 0: not counted
	of   *[17]field // fields of a message, by number; nil: none is repeated
}

var (
	histogramFields = [17]field{
		8: {message, spanBytes, nil}, 9: {varints, number64, nil}, 10: {doubles, number64, nil},
		11: {message, spanBytes, nil}, 12: {varints, number64, nil}, 13: {doubles, number64, nil},
		16: {doubles, number64, nil},
	}
	labelFields = [17]field{1: {symbol, textBytes, nil}, 2: {symbol, textBytes, nil}} // read only if it is long

	exemplarV1 = [17]field{1: {message, labelBytes, nil}}
	seriesV1   = [17]field{
		1: {message, labelBytes, nil}, 2: {message, sampleBytes, nil}, 3: {message, exemplarBytes, &exemplarV1},
		4: {message, histogramBytes, &histogramFields},
	}
	requestV1 = [17]field{1: {message, seriesBytes, &seriesV1}, 3: {message, metadataBytes, nil}}

	exemplarV2 = [17]field{1: {symbols, number32, nil}}
	seriesV2   = [17]field{
		1: {symbols, number32, nil}, 2: {message, sampleBytes, nil}, 3: {message, histogramBytes, &histogramFields},
		4: {message, exemplarBytes, &exemplarV2},
	}
	requestV2 = [17]field{4: {symbol, textBytes, nil}, 5: {message, seriesBytes, &seriesV2}}
)

// CostV1 returns the cost of a WriteRequest. Once Cost.Bytes exceeds bytesMax, CostV1 stops and
// returns the cost so far, without an error.
func CostV1(src []byte, bytesMax int64) (Cost, error) {
	w := costWalker{bytesMax: bytesMax}
	err := w.message(src, &requestV1)
	return Cost{w.series, w.bytes}, err
}

// CostV2 returns the cost of a Request of 2.0. It stops as CostV1 does.
func CostV2(src []byte, bytesMax int64) (Cost, error) {
	w := costWalker{bytesMax: bytesMax}
	// Symbols may come after the series that refer to them.
	err := w.symbols(src)
	if err == nil {
		err = w.message(src, &requestV2)
	}
	return Cost{w.series, w.bytes}, err
}

type costWalker struct {
	bytes, bytesMax int64
	texts           []uint32 // lengths of symbols
	series          int
}

func (w *costWalker) symbols(src []byte) error {
	for len(src) > 0 {
		number, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return corrupt(n)
		}
		src = src[n:]
		if n = protowire.ConsumeFieldValue(number, kind, src); n < 0 {
			return corrupt(n)
		}
		if number == 4 && kind == protowire.BytesType {
			if int64(len(w.texts))*textBytes > w.bytesMax {
				return nil // message counts these symbols, too, and also stops beyond bytesMax
			}
			value, _ := protowire.ConsumeBytes(src)
			w.texts = append(w.texts, uint32(len(value)))
		}
		src = src[n:]
	}
	return nil
}

// message counts the repeated fields of a message.
func (w *costWalker) message(src []byte, fields *[17]field) error {
	for len(src) > 0 && w.bytes <= w.bytesMax {
		number, kind, n := protowire.ConsumeTag(src)
		if n < 0 {
			return corrupt(n)
		}
		src = src[n:]
		if n = protowire.ConsumeFieldValue(number, kind, src); n < 0 {
			return corrupt(n)
		}
		if int(number) < len(fields) && fields[number].each > 0 {
			if err := w.field(&fields[number], kind, src[:n]); err != nil {
				return err
			}
		}
		src = src[n:]
	}
	return nil
}

// field counts one element of a repeated field.
func (w *costWalker) field(f *field, kind protowire.Type, value []byte) error {
	if kind != protowire.BytesType {
		w.bytes += f.each // one number, not packed
		if f.form == symbols {
			ref, n := protowire.ConsumeVarint(value)
			if n >= 0 {
				w.refer(ref)
			}
		}
		return nil
	}
	inner, _ := protowire.ConsumeBytes(value) // valid: it was consumed before
	switch f.form {
	case message:
		w.bytes += f.each
		if f.each == labelBytes && len(inner) > labelTextMax {
			return w.message(inner, &labelFields)
		}
		if f.of == &seriesV1 || f.of == &seriesV2 {
			w.series++
		}
		if f.of == nil {
			return nil
		}
		return w.message(inner, f.of)
	case varints:
		for _, c := range inner {
			if c < 0x80 {
				w.bytes += f.each
			}
		}
	case symbols:
		return w.references(inner, f.each)
	case doubles:
		w.bytes += int64(len(inner)/8) * f.each
	case symbol:
		w.bytes += f.each
		return checkText(inner)
	}
	return nil
}

func checkText(text []byte) error {
	if len(text) > labelTextMax {
		return fmt.Errorf("%w: a name or value of a label has %d bytes, at most %d", ErrCorrupt, len(text), labelTextMax)
	}
	return nil
}

// references counts the symbols that packed numbers refer to.
func (w *costWalker) references(packed []byte, each int64) error {
	for len(packed) > 0 && w.bytes <= w.bytesMax {
		ref, n := protowire.ConsumeVarint(packed)
		if n < 0 {
			return corrupt(n)
		}
		packed = packed[n:]
		w.bytes += each
		w.refer(ref)
	}
	return nil
}

// refer counts a symbol that becomes part of a label set.
func (w *costWalker) refer(ref uint64) {
	if i := uint32(ref); int64(i) < int64(len(w.texts)) { // decoders, too, truncate a reference to 32 bits
		w.bytes += int64(w.texts[i])
	}
}

func corrupt(n int) error { return fmt.Errorf("%w: %w", ErrCorrupt, protowire.ParseError(n)) }
