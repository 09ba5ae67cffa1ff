package series

import (
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// numberedRows is a set of label sets whose labels have numbers.
type numberedRows struct {
	Set
	rows    []labels.Labels
	at      labels.Labels
	lset    []byte
	numbers map[string]uint64
}

func (n *numberedRows) Next() bool {
	if len(n.rows) == 0 {
		return false
	}
	n.at, n.rows = n.rows[0], n.rows[1:]
	n.lset = labelenc.Append(n.lset[:0], n.at)
	return true
}

func (n *numberedRows) Labels() []byte { return n.lset }

func (n *numberedRows) LabelRefs() (numbers []uint64) {
	n.at.Range(func(l labels.Label) {
		text := l.Name + "=" + l.Value
		if _, ok := n.numbers[text]; !ok {
			n.numbers[text] = uint64(len(n.numbers) + 1)
		}
		numbers = append(numbers, n.numbers[text])
	})
	return numbers
}

func TestSelectWithExternalLabels_KeepsLabelRefs(t *testing.T) {
	below := &numberedRows{Set: Failed(nil), numbers: map[string]uint64{}, rows: []labels.Labels{
		labels.FromStrings("__name__", "up"), labels.FromStrings("__name__", "up", "b", "1"), labels.FromStrings("__name__", "up", "b", "1", "z", "2"), labels.FromStrings("__name__", "up", "z", "1"),
	}}
	add := labelenc.Append(nil, labels.FromStrings("a", "x", "m", "y"))
	set := &extendedSet{set: below, add: add, lastName: labelenc.LastName(add)}
	byNumber, byLabel, seen := map[uint64]string{}, map[string]uint64{}, 0
	for set.Next() {
		numbers := set.LabelRefs()
		for lset := set.Labels(); len(lset) > 0; numbers = numbers[1:] {
			name, value, rest, err := labelenc.Next(lset)
			if err != nil || len(numbers) == 0 {
				t.Fatal(err, len(numbers))
			}
			text := fmt.Sprintf("%s=%s", name, value)
			if known, ok := byNumber[numbers[0]]; ok && known != text {
				t.Errorf("%d is %s and %s", numbers[0], known, text)
			}
			if known, ok := byLabel[text]; ok && known != numbers[0] {
				t.Errorf("%s is %d and %d", text, known, numbers[0])
			}
			byNumber[numbers[0]], byLabel[text], lset = text, numbers[0], rest
			seen++
		}
		if len(numbers) > 0 {
			t.Errorf("%d numbers are too many", len(numbers))
		}
	}
	if set.Err() != nil || seen != 16 || len(byNumber) != 6 {
		t.Errorf("%d labels, %d different, %v", seen, len(byNumber), set.Err())
	}
	if plain := (&extendedSet{set: Failed(nil), add: add}); plain.LabelRefs() != nil {
		t.Error("a set without numbers returned numbers")
	}
}
