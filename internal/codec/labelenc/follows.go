package labelenc

import (
	"bytes"
	"fmt"
)

// Follows checks that labels is a label set, and compares it with the valid set
// that came before it: > 0 if it belongs after previous, 0 if it is the same.
// Labels that both begin with are not looked at again.
func Follows(previous, labels []byte) (int, error) {
	same := commonPrefix(previous, labels)
	if same == len(labels) && same == len(previous) {
		return 0, nil
	}
	at, before := 0, -1 // where the first label that is not common begins, and the one before it
	for at < same {
		_, rest, ok := prefixed(labels[at+1:])
		end := len(labels) - len(rest)
		if !ok || end > same {
			break
		}
		at, before = end, at
	}
	after := false
	if at == len(previous) {
		after = true // previous is what labels begins with
	} else if at < len(labels) {
		name, value, rest, err := Next(labels[at:])
		if err != nil {
			return 0, err
		}
		oldName, oldValue, oldRest, _ := Next(previous[at:])
		c := bytes.Compare(name, oldName)
		after = c > 0 || c == 0 && bytes.Compare(value, oldValue) > 0
		// Where only one value differs, what is behind it is as good as it was.
		if after && c == 0 && bytes.Equal(rest, oldRest) {
			return 1, nil
		}
	}
	var last []byte
	if before >= 0 {
		last, _, _, _ = Next(labels[before:])
	}
	if err := validate(labels[at:], last); err != nil {
		return 0, err
	}
	if after {
		return 1, nil
	}
	return -1, nil
}

// validate checks labels that come after one named last.
func validate(set, last []byte) error {
	for len(set) > 0 {
		name, _, rest, err := Next(set)
		if err != nil {
			return err
		}
		if len(name) == 0 {
			return fmt.Errorf("%w: a label has no name", ErrCorrupt)
		}
		if bytes.Compare(last, name) >= 0 {
			return fmt.Errorf("%w: %q does not belong after %q", ErrCorrupt, name, last)
		}
		last, set = name, rest
	}
	return nil
}
