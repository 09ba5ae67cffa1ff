package series

import (
	"context"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
)

// fixedQuerier returns the same set for every selection.
type fixedQuerier struct {
	series []one
	names  []string
}

func (q fixedQuerier) Select(context.Context, SelectOptions, ...*labels.Matcher) Set {
	return &list{series: q.series}
}
func (fixedQuerier) Capabilities() Capabilities { return Capabilities{} }
func (q fixedQuerier) LabelNames(context.Context, SelectOptions, ...*labels.Matcher) ([]string, error) {
	return q.names, nil
}
func (fixedQuerier) Close() error { return nil }

// A querier may return chunks although only labels are selected. Series that are sorted are held without them.
func TestSelectReplacingLabels_HoldsNoChunksOfLabels(t *testing.T) {
	q := fixedQuerier{[]one{{labels.FromStrings("a", "1"), []Chunk{chunk(1, 2, "x")}}, {labels.FromStrings("a", "2"), nil}}, []string{"a"}}
	set := SelectReplacingLabels(context.Background(), q, SelectOptions{LabelsOnly: true}, labels.FromStrings("z", "9"), nil, NewSortBudget(1<<20))
	if got := texts(t, set); !slices.Equal(got, []string{`{a="1", z="9"} 1-2:x`, `{a="2", z="9"}`}) || set.Err() != nil {
		t.Errorf("%q %v", got, set.Err())
	}
	set = SelectReplacingLabels(context.Background(), q, SelectOptions{LabelsOnly: true}, labels.FromStrings("a", "9"), nil, NewSortBudget(1<<20))
	if got := texts(t, set); !slices.Equal(got, []string{`{a="9"}`}) || set.Err() != nil {
		t.Errorf("with a label replaced: %q %v", got, set.Err())
	}
}

func TestSelectReplacingLabels_OnlyRemovesLabels(t *testing.T) {
	q := fixedQuerier{[]one{{labels.FromStrings("a", "1", "b", "1"), []Chunk{chunk(1, 2, "x")}}, {labels.FromStrings("a", "1", "b", "2"), []Chunk{chunk(3, 4, "y")}}}, []string{"a", "b"}}
	for _, tt := range []struct {
		without, want []string
	}{
		{nil, []string{`{a="1", b="1"} 1-2:x`, `{a="1", b="2"} 3-4:y`}},
		{[]string{"b"}, []string{`{a="1"}`}},
		{[]string{"c"}, []string{`{a="1", b="1"} 1-2:x`, `{a="1", b="2"} 3-4:y`}},
	} {
		set := SelectReplacingLabels(context.Background(), q, SelectOptions{LabelsOnly: true}, labels.EmptyLabels(), tt.without, NewSortBudget(1<<20))
		if got := texts(t, set); !slices.Equal(got, tt.want) || set.Err() != nil {
			t.Errorf("without %q: %q %v", tt.without, got, set.Err())
		}
	}
}
