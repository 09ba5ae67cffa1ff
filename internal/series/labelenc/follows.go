package labelenc

import (
	"bytes"
	"fmt"
)

// Follows validates labels and compares it with previous, which must be valid: the
// result is > 0 if labels sorts after previous, 0 if they are equal, and < 0 otherwise.
func Follows(previous, labels []byte) (int, error) {
	size, order, err := CutAfter(previous, labels)
	if err == nil && size < len(labels) {
		err = ErrCorrupt
	}
	return order, err
}

// CutAfter finds the end of the label set at the start of src, validates the set, and
// compares it with previous, which must be valid. size is the number of bytes of the set. order
// is > 0 if the set sorts after previous, 0 if they are equal, and < 0 otherwise.
//
// Labels that both sets have are not validated again. For example, {a="1", b="2", c="1"} differs
// from the previous set {a="1", b="1", c="1"} in one value: only b is validated.
func CutAfter(previous, src []byte) (size, order int, err error) {
	at, before := wholeLabels(src, CommonPrefix(previous, src))
	if at == len(src) || src[at] != tagLabel {
		if at == len(previous) {
			return at, 0, nil
		}
		return at, -1, nil // the set is a prefix of previous
	}
	name, value, rest, err := Next(src[at:])
	if err != nil {
		return 0, 0, err
	}
	order = 1
	if at < len(previous) {
		oldName, oldValue, oldRest, _ := Next(previous[at:])
		c := bytes.Compare(name, oldName)
		if c < 0 || c == 0 && bytes.Compare(value, oldValue) <= 0 {
			order = -1
		} else if c == 0 && bytes.HasPrefix(rest, oldRest) && (len(rest) == len(oldRest) || rest[len(oldRest)] != tagLabel) {
			return len(src) - len(rest) + len(oldRest), 1, nil
		}
	}
	var last []byte
	if before >= 0 {
		last, _, _, _ = Next(src[before:])
	}
	for {
		if len(name) == 0 {
			return 0, 0, fmt.Errorf("%w: a label has no name", ErrCorrupt)
		}
		if bytes.Compare(last, name) >= 0 {
			return 0, 0, fmt.Errorf("%w: label name %q follows %q", ErrCorrupt, name, last)
		}
		if len(rest) == 0 || rest[0] != tagLabel {
			return len(src) - len(rest), order, nil
		}
		last = name
		if name, _, rest, err = Next(rest); err != nil {
			return 0, 0, err
		}
	}
}
