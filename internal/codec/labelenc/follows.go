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
	at := 0
	var last []byte
	for at < same {
		_, rest, ok := prefixed(labels[at+1:])
		if end := len(labels) - len(rest); !ok || end > same {
			break
		} else if end == same || !endsWithin(labels[end:], same-end) {
			// The last common label: names behind it must be greater than its own.
			last, _, _, _ = Next(labels[at:])
			at = end
			break
		} else {
			at = end
		}
	}
	after := false
	if at == len(previous) {
		after = true // previous is what labels begins with
	} else if at < len(labels) {
		name, value, _, err := Next(labels[at:])
		if err != nil {
			return 0, err
		}
		before, beforeValue, _, _ := Next(previous[at:])
		c := bytes.Compare(name, before)
		after = c > 0 || c == 0 && bytes.Compare(value, beforeValue) > 0
	}
	if err := validate(labels[at:], last); err != nil {
		return 0, err
	}
	if after {
		return 1, nil
	}
	return -1, nil
}

// endsWithin says whether the label at the start of set ends within n bytes.
func endsWithin(set []byte, n int) bool {
	_, rest, ok := prefixed(set[1:])
	return ok && len(set)-len(rest) <= n
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
