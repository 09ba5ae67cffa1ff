package tsdb

import (
	"context"
	"testing"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestRawQuerier_LabelsHaveSymbolRefs(t *testing.T) {
	s, _ := oneBlock(t)
	q, err := s.RawQuerier(context.Background(), startMS, startMS+hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), everything)
	numbered, ok := set.(series.SymbolRefs)
	if !ok {
		t.Fatalf("%T of one block has no numbers", set)
	}
	byNumber, byLabel := map[uint64]string{}, map[string]uint64{}
	seen := 0
	for set.Next() {
		numbers := numbered.LabelRefs()
		for lset := set.Labels(); len(lset) > 0; numbers = numbers[1:] {
			name, value, rest, err := labelenc.Next(lset)
			if err != nil || len(numbers) == 0 {
				t.Fatal(err, len(numbers))
			}
			text := string(name) + "=" + string(value)
			if known, ok := byNumber[numbers[0]]; ok && known != text {
				t.Fatalf("%d is %s and %s", numbers[0], known, text)
			}
			if known, ok := byLabel[text]; ok && known != numbers[0] {
				t.Fatalf("%s is %d and %d", text, known, numbers[0])
			}
			byNumber[numbers[0]], byLabel[text], lset = text, numbers[0], rest
			seen++
		}
		if len(numbers) > 0 {
			t.Fatal("more numbers than labels")
		}
	}
	if set.Err() != nil || seen < 20 || len(byNumber) == seen {
		t.Fatalf("%d labels, %d of them different, %v", seen, len(byNumber), set.Err())
	}
}
