// Package labelenc encodes a label set as the protobuf list that remote read, StoreAPI
// and profiles have in common.
//
//	label set  (0x0A uvarint(len) label)*
//	label       0x0A uvarint(len) name  0x12 uvarint(len) value
//
// It appends names and values to a buffer, and compares, merges and iterates encoded
// sets without decoding them into objects. A set is sorted by name and has no name
// twice, as in the storage. Validate checks this for bytes from a wire. Protobuf allows
// several encodings of a label. This package accepts one of them: lengths in as few bytes as
// possible, the name before the value, each once. Only an empty name or value may be omitted:
// some peers omit empty values. Within ferula a series carries its encoded set. Labels decodes a
// set where PromQL needs labels.Labels.
package labelenc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/protobuf/encoding/protowire"
)

// ErrCorrupt is returned for bytes that are not a valid label set.
var ErrCorrupt = errors.New("corrupt label set")

const (
	tagLabel = 1<<3 | 2 // of the list
	tagName  = 1<<3 | 2
	tagValue = 2<<3 | 2
)

// AppendLabel appends one label. The caller appends labels sorted by name.
func AppendLabel(dst []byte, name, value string) []byte {
	dst = append(dst, tagLabel)
	dst = binary.AppendUvarint(dst, uint64(2+protowire.SizeVarint(uint64(len(name)))+len(name)+
		protowire.SizeVarint(uint64(len(value)))+len(value)))
	dst = append(dst, tagName)
	dst = binary.AppendUvarint(dst, uint64(len(name)))
	dst = append(dst, name...)
	dst = append(dst, tagValue)
	dst = binary.AppendUvarint(dst, uint64(len(value)))
	return append(dst, value...)
}

// AppendSymbols appends one label. name and value are symbols as a block's index has them:
// uvarint(len) and the bytes.
func AppendSymbols(dst, name, value []byte) []byte {
	dst = append(dst, tagLabel)
	dst = binary.AppendUvarint(dst, uint64(2+len(name)+len(value)))
	dst = append(dst, tagName)
	dst = append(dst, name...)
	dst = append(dst, tagValue)
	return append(dst, value...)
}

// Append appends a whole label set.
func Append(dst []byte, lset labels.Labels) []byte {
	lset.Range(func(l labels.Label) { dst = AppendLabel(dst, l.Name, l.Value) })
	return dst
}

// Prefixed cuts a field off src: a length, and as many bytes. ok is false if the length is not
// encoded in as few bytes as possible, or if src is too short.
func Prefixed(src []byte) (field, rest []byte, ok bool) {
	if len(src) > 0 && src[0] < 0x80 { // the usual case
		end := 1 + int(src[0])
		if end > len(src) {
			return nil, nil, false
		}
		return src[1:end], src[end:], true
	}
	size, n := binary.Uvarint(src)
	if n <= 0 || src[n-1] == 0 || size > uint64(len(src)-n) {
		return nil, nil, false
	}
	end := n + int(size)
	return src[n:end], src[end:], true
}

// Next cuts the first label off src. Name and value alias src. Unknown fields are an
// error: no peer sends any.
func Next(src []byte) (name, value, rest []byte, err error) {
	// The usual case: three lengths of one byte, and no other field.
	if len(src) > 3 && src[0] == tagLabel && src[2] == tagName && src[1]|src[3] < 0x80 {
		end, at := 2+int(src[1]), 4+int(src[3])
		if end <= len(src) && at+2 <= end && src[at] == tagValue && at+2+int(src[at+1]) == end && src[at+1] < 0x80 {
			return src[4:at:at], src[at+2 : end : end], src[end:], nil
		}
	}
	return nextSlow(src)
}

func nextSlow(src []byte) (name, value, rest []byte, err error) {
	if len(src) == 0 || src[0] != tagLabel {
		return nil, nil, nil, ErrCorrupt
	}
	label, rest, ok := Prefixed(src[1:])
	if !ok {
		return nil, nil, nil, ErrCorrupt
	}
	name, value, ok = pair(label)
	if !ok {
		return nil, nil, nil, ErrCorrupt
	}
	return name, value, rest, nil
}

func pair(label []byte) (name, value []byte, ok bool) {
	if len(label) > 0 && label[0] == tagName {
		if name, label, ok = Prefixed(label[1:]); !ok {
			return nil, nil, false
		}
	}
	if len(label) > 0 && label[0] == tagValue {
		if value, label, ok = Prefixed(label[1:]); !ok {
			return nil, nil, false
		}
	}
	return name, value, len(label) == 0
}

// Compare orders two valid sets as labels.Compare does: by the name, then the value, of the
// first label that differs. A set sorts before a longer set that begins with it. bytes.Compare
// would order them differently, since lengths precede the texts. For invalid sets the result
// is arbitrary, but Compare does not panic.
func Compare(a, b []byte) int {
	for {
		same := CommonPrefix(a, b)
		if same == len(a) && same == len(b) {
			return 0
		}
		at, _ := wholeLabels(a, same)
		nameA, valueA, restA, err := Next(a[at:])
		if err != nil {
			return len(a) - len(b) // a ends here, or is invalid
		}
		nameB, valueB, restB, err := Next(b[at:])
		if err != nil {
			return len(a) - len(b)
		}
		if c := bytes.Compare(nameA, nameB); c != 0 {
			return c
		}
		if c := bytes.Compare(valueA, valueB); c != 0 {
			return c
		}
		a, b = restA, restB // the labels are equal: one encoding omits an empty value
	}
}

// wholeLabels returns the offset of the first label that does not end within the first n bytes of a set, and the offset
// of the label before it; -1: there is none. It reads the lengths of labels, not their texts.
func wholeLabels(set []byte, n int) (at, before int) {
	before = -1
	for at+1 < n {
		end := at + 2 + int(set[at+1])
		if set[at+1] >= 0x80 { // not the usual case: a length of several bytes
			_, rest, ok := Prefixed(set[at+1:])
			if !ok {
				break
			}
			end = len(set) - len(rest)
		}
		if end > n {
			break
		}
		at, before = end, at
	}
	return at, before
}

// CommonPrefix returns the number of equal bytes at the start of a and b.
func CommonPrefix(a, b []byte) int {
	n, i := min(len(a), len(b)), 0
	a, b = a[:n], b[:n]
	for ; i <= n-16; i += 16 { // two words at a time: most sets have a long prefix in common
		p, q := a[i:i+16], b[i:i+16]
		x := binary.LittleEndian.Uint64(p) ^ binary.LittleEndian.Uint64(q)
		if x|(binary.LittleEndian.Uint64(p[8:])^binary.LittleEndian.Uint64(q[8:])) != 0 {
			break
		}
	}
	for ; i <= n-8; i += 8 {
		if x := binary.LittleEndian.Uint64(a[i:i+8]) ^ binary.LittleEndian.Uint64(b[i:i+8]); x != 0 {
			return i + bits.TrailingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// AppendMerged appends the union of two valid sets. If both have a name, the label of
// primary wins.
func AppendMerged(dst, primary, secondary []byte) ([]byte, error) {
	for len(primary) > 0 && len(secondary) > 0 {
		nameP, _, restP, err := Next(primary)
		if err != nil {
			return dst, err
		}
		nameS, _, restS, err := Next(secondary)
		if err != nil {
			return dst, err
		}
		switch c := bytes.Compare(nameP, nameS); {
		case c > 0:
			dst = append(dst, secondary[:len(secondary)-len(restS)]...)
			secondary = restS
		case c == 0:
			secondary = restS
			fallthrough
		default:
			dst = append(dst, primary[:len(primary)-len(restP)]...)
			primary = restP
		}
	}
	return append(append(dst, primary...), secondary...), nil
}

// AppendWithout appends a valid set without the labels with these names.
func AppendWithout(dst, set []byte, names []string) ([]byte, error) {
	for len(set) > 0 {
		name, _, rest, err := Next(set)
		if err != nil {
			return dst, err
		}
		if !slices.ContainsFunc(names, func(n string) bool { return n == string(name) }) {
			dst = append(dst, set[:len(set)-len(rest)]...)
		}
		set = rest
	}
	return dst, nil
}

// All returns the labels of a set, up to the first one that is not valid. Names and values alias the set.
func All(set []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for left := set; len(left) > 0; {
			name, value, rest, err := Next(left)
			if err != nil || !yield(name, value) {
				return
			}
			left = rest
		}
	}
}

// Value returns the value of a label in an encoded set, aliasing the set; nil if the set does not
// have the label, or is corrupt in front of it.
func Value(set []byte, name string) []byte {
	for len(set) > 0 {
		n, value, rest, err := Next(set)
		if err != nil {
			return nil
		}
		if string(n) == name {
			return value
		}
		set = rest
	}
	return nil
}

// LastName returns the greatest name of a valid set, aliasing set; nil if set is empty.
func LastName(set []byte) []byte {
	var last []byte
	for len(set) > 0 {
		name, _, rest, err := Next(set)
		if err != nil {
			return last
		}
		last, set = name, rest
	}
	return last
}

// Validate returns an error that names the fault unless set is a valid label set.
func Validate(set []byte) error {
	var last []byte
	for first := true; len(set) > 0; first = false {
		name, _, rest, err := Next(set)
		if err != nil {
			return err
		}
		if len(name) == 0 {
			return fmt.Errorf("%w: a label has no name", ErrCorrupt)
		}
		if !first && bytes.Compare(last, name) >= 0 {
			return fmt.Errorf("%w: label name %q follows %q", ErrCorrupt, name, last)
		}
		last, set = name, rest
	}
	return nil
}

// Labels decodes a set into labels that do not alias it. The strings in the builder alias set.
// The builder's Labels method copies all of them into one string: one allocation, instead of
// about twenty for a string per name and value. Before any other use of the builder the caller
// must call its Reset. With the build tag slicelabels the builder would not copy; a test
// checks that the builder copies.
func Labels(set []byte, builder *labels.ScratchBuilder) (labels.Labels, error) {
	if err := build(set, builder); err != nil {
		return labels.EmptyLabels(), err
	}
	return builder.Labels(), nil
}

// Overwrite decodes a set into to, without an allocation. The labels are in the builder's memory, and are
// valid until the next call of Overwrite with this builder. After an error to is empty.
func Overwrite(to *labels.Labels, set []byte, builder *labels.ScratchBuilder) error {
	*to = labels.EmptyLabels()
	err := build(set, builder)
	if err == nil {
		builder.Overwrite(to)
	}
	return err
}

func build(set []byte, builder *labels.ScratchBuilder) error {
	builder.Reset()
	for len(set) > 0 {
		name, value, rest, err := Next(set)
		if err != nil {
			return err
		}
		builder.Add(alias(name), alias(value))
		set = rest
	}
	return nil
}

// textMax limits the bytes of a label set in an error. Errors are sent to clients and logged, and the labels may come
// from another process.
const textMax = 1 << 10

// Text formats an encoded label set for errors.
func Text(set []byte) string {
	builder := labels.NewScratchBuilder(16)
	if len(set) <= textMax {
		if l, err := Labels(set, &builder); err == nil {
			return l.String()
		}
	}
	return fmt.Sprintf("%.*q", textMax, set)
}

//lint:ignore gosec the callers document what the bytes may be used for
func alias(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
