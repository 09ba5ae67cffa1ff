package storepb

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// The kinds of edits in a delta.
const (
	editReplace = iota // of a label's value
	editInsert         // of a label
	editDrop           // of a label
	editPatch          // of bytes anywhere
)

// appendDelta appends the difference of an encoded label set to the valid set previous, which may be empty:
//
//	delta    (uvarint(labels of previous to copy << 3 | kind) edit)*   then the rest of previous is copied
//	replace  uvarint(prefix) uvarint(suffix) uvarint(len) bytes        kind 0: bytes kept at both ends of the value, and new ones between
//	insert   uvarint(len) name uvarint(len) value                      kind 1
//	drop                                                               kind 2: a label of previous is left out
//	patch    (uvarint(bytes to keep) uvarint(len) bytes)*              kind 3, up to the end of the delta: the rest of previous, overwritten
//
// In label order most series differ from the series before in a few values, anywhere in the set, and
// often only in a few bytes of these values. Most often both sets have the same length. Then appendDelta
// compares the sets as bytes, without looking for labels, which is cheaper (kind 3). For example, from
// {a="1", b="2"} to {a="1", b="3"} the delta keeps all bytes but the last, and overwrites that byte.
//
// exact is false if the reader may get other bytes for the same labels: the reader gets every empty value
// encoded, but set may omit empty values.
func appendDelta(dst, previous, set []byte) (_ []byte, exact bool, err error) {
	if len(previous) == len(set) && len(set) > 0 {
		return appendPatch(dst, previous, set), true, nil
	}
	exact = true
	for {
		copied, at := 0, 0
		for same := labelenc.CommonPrefix(previous, set); at < same; copied++ {
			_, rest, ok := prefixed(set[at+1:])
			end := len(set) - len(rest)
			if !ok || end > same {
				break
			}
			at = end
		}
		previous, set = previous[at:], set[at:]
		if len(previous)+len(set) == 0 {
			return dst, exact, nil
		}
		var oldName, oldValue, oldRest, name, value, rest []byte
		if len(previous) > 0 {
			if oldName, oldValue, oldRest, err = labelenc.Next(previous); err != nil {
				return dst, false, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
		}
		if len(set) > 0 {
			if name, value, rest, err = labelenc.Next(set); err != nil {
				return dst, false, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
		}
		head := uint64(copied) << 3
		switch order := bytes.Compare(oldName, name); {
		case len(set) == 0 || len(previous) > 0 && order < 0:
			dst = binary.AppendUvarint(dst, head+editDrop)
			previous = oldRest
		case len(previous) == 0 || order > 0:
			dst = binary.AppendUvarint(dst, head+editInsert)
			dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
			dst = append(binary.AppendUvarint(dst, uint64(len(value))), value...)
			exact = exact && labelSize(name, value) == len(set)-len(rest)
			set = rest
		default:
			exact = exact && labelSize(name, value) == len(set)-len(rest)
			prefix := labelenc.CommonPrefix(oldValue, value)
			suffix := commonSuffix(oldValue[prefix:], value[prefix:])
			dst = binary.AppendUvarint(dst, head+editReplace)
			dst = binary.AppendUvarint(dst, uint64(prefix))
			dst = binary.AppendUvarint(dst, uint64(suffix))
			value = value[prefix : len(value)-suffix]
			dst = append(binary.AppendUvarint(dst, uint64(len(value))), value...)
			previous, set = oldRest, rest
		}
	}
}

// patchGap is the number of equal bytes that end a run of different bytes. Fewer equal bytes are sent
// as part of the run, because each further run costs two bytes.
const patchGap = 4

func appendPatch(dst, previous, set []byte) []byte {
	dst = append(dst, editPatch)
	for at, from := 0, 0; ; {
		from += labelenc.CommonPrefix(previous[from:], set[from:])
		if from == len(set) {
			return dst
		}
		end, next := from+1, from+1
		for ; next < len(set) && next < end+patchGap; next++ {
			if previous[next] != set[next] {
				end = next + 1
			}
		}
		dst = binary.AppendUvarint(dst, uint64(from-at))
		dst = append(binary.AppendUvarint(dst, uint64(end-from)), set[from:end]...)
		at, from = end, next
	}
}

// applyPatch overwrites bytes of set. delta is a patch without its head.
func applyPatch(set, delta []byte) error {
	for len(delta) > 0 {
		keep, n := uvarint(delta)
		text, rest, ok := prefixed(delta[n:])
		if n == 0 || !ok {
			return errEditShort()
		}
		if keep > uint64(len(set)) || uint64(len(text)) > uint64(len(set))-keep {
			return fmt.Errorf("%w: an edit changes more bytes than there are", ErrCorrupt)
		}
		set = set[keep:]
		set, delta = set[copy(set, text):], rest
	}
	return nil
}

func commonSuffix(a, b []byte) int {
	n := 0
	for most := min(len(a), len(b)); n < most && a[len(a)-1-n] == b[len(b)-1-n]; {
		n++
	}
	return n
}

// applyDelta appends the set from which appendDelta made delta. The result is not longer than
// previous and delta together, apart from a few bytes for each edit. It is not validated.
func applyDelta(dst, previous, delta []byte) (_ []byte, err error) {
	for len(delta) > 0 {
		head, n := uvarint(delta)
		if n == 0 || head&7 > editPatch {
			return dst, fmt.Errorf("%w: an edit of unknown kind", ErrCorrupt)
		}
		rest := previous
		for range head >> 3 {
			var ok bool
			if len(rest) > 0 {
				_, rest, ok = prefixed(rest[1:])
			}
			if !ok {
				return dst, fmt.Errorf("%w: an edit copies more labels than there are", ErrCorrupt)
			}
		}
		dst = append(dst, previous[:len(previous)-len(rest)]...)
		if head&7 == editPatch {
			start := len(dst)
			dst = append(dst, rest...)
			return dst, applyPatch(dst[start:], delta[n:])
		}
		if dst, previous, delta, err = applyEdit(dst, rest, delta[n:], head&7); err != nil {
			return dst, err
		}
	}
	return append(dst, previous...), nil
}

// applyEdit applies the edit at the start of delta to the first label of previous, and appends the
// result to dst. It returns the rest of previous and the rest of delta.
func applyEdit(dst, previous, delta []byte, kind uint64) (_, previousRest, deltaRest []byte, err error) {
	if kind == editInsert {
		name, delta, ok := prefixed(delta)
		if !ok {
			return dst, nil, nil, errEditShort()
		}
		value, delta, ok := prefixed(delta)
		if !ok {
			return dst, nil, nil, errEditShort()
		}
		return appendParts(dst, name, value, nil, nil), previous, delta, nil
	}
	name, value, previous, err := labelenc.Next(previous)
	if err != nil {
		return dst, nil, nil, fmt.Errorf("%w: an edit of a label that does not exist", ErrCorrupt)
	}
	if kind == editDrop {
		return dst, previous, delta, nil
	}
	prefix, n := uvarint(delta)
	suffix, m := uvarint(delta[n:])
	if n == 0 || m == 0 {
		return dst, nil, nil, errEditShort()
	}
	text, delta, ok := prefixed(delta[n+m:])
	if !ok {
		return dst, nil, nil, errEditShort()
	}
	if size := uint64(len(value)); prefix > size || suffix > size-prefix {
		return dst, nil, nil, fmt.Errorf("%w: an edit keeps more bytes than the value has", ErrCorrupt)
	}
	return appendParts(dst, name, value[:prefix], text, value[uint64(len(value))-suffix:]), previous, delta, nil
}

func errEditShort() error { return fmt.Errorf("%w: an edit is cut short", ErrCorrupt) }

// appendParts appends a label whose value is the three parts.
func appendParts(dst, name, head, middle, tail []byte) []byte {
	size := len(head) + len(middle) + len(tail)
	dst = binary.AppendUvarint(append(dst, tagSeries),
		uint64(2+protowire.SizeVarint(uint64(len(name)))+len(name)+protowire.SizeVarint(uint64(size))+size))
	dst = append(binary.AppendUvarint(append(dst, 1<<3|wireBytes), uint64(len(name))), name...)
	dst = binary.AppendUvarint(append(dst, 2<<3|wireBytes), uint64(size))
	return append(append(append(dst, head...), middle...), tail...)
}

// labelSize returns the length of a label as appendParts encodes it.
func labelSize(name, value []byte) int {
	body := 2 + protowire.SizeVarint(uint64(len(name))) + len(name) + protowire.SizeVarint(uint64(len(value))) + len(value)
	return 1 + protowire.SizeVarint(uint64(body)) + body
}
