package series

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// list is a set of given series. Next overwrites the labels and chunks that it lent, so
// that a caller that retains them fails.
type list struct {
	series []one
	i      int
	labels []byte
	chunks []Chunk
	err    error
}

type one struct {
	labels labels.Labels
	chunks []Chunk
}

func (l *list) Next() bool {
	for i := range l.labels {
		l.labels[i] = 0xDB
	}
	for _, c := range l.chunks {
		for i := range c.Data {
			c.Data[i] = 0xDB
		}
	}
	if l.i == len(l.series) {
		return false
	}
	s := l.series[l.i]
	l.i++
	l.labels = labelenc.Append(l.labels[:0], s.labels)
	l.chunks = l.chunks[:0]
	for _, c := range s.chunks {
		c.Data = slices.Clone(c.Data)
		l.chunks = append(l.chunks, c)
	}
	return true
}

func (l *list) Labels() []byte  { return l.labels }
func (l *list) Chunks() []Chunk { return l.chunks }

func (l *list) Err() error {
	if l.i == len(l.series) {
		return l.err
	}
	return nil
}

func (l *list) Warnings() annotations.Annotations { return nil }

// texts formats the series of a set, one line each.
func texts(t *testing.T, set Set) []string {
	t.Helper()
	var got []string
	builder := labels.NewScratchBuilder(4)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		line := lset.String()
		for _, c := range set.Chunks() {
			line += fmt.Sprintf(" %d-%d:%s", c.MinMS, c.MaxMS, c.Data)
		}
		got = append(got, line)
	}
	return got
}

func chunk(minMS, maxMS int64, data string) Chunk {
	return Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: chunkenc.EncXOR, Data: []byte(data)}
}

func TestMerge_JoinsSeriesInLabelOrder(t *testing.T) {
	a, b, c := labels.FromStrings("a", "1"), labels.FromStrings("b", "1"), labels.FromStrings("c", "1")
	got := texts(t, Merge(
		&list{series: []one{{a, []Chunk{chunk(1, 2, "x")}}, {c, []Chunk{chunk(1, 2, "x")}}}},
		&list{},
		&list{series: []one{{a, []Chunk{chunk(3, 4, "y")}}, {b, []Chunk{chunk(1, 2, "z")}}, {c, []Chunk{chunk(0, 1, "w"), chunk(1, 2, "x"), chunk(2, 3, "v")}}}},
	))
	want := []string{`{a="1"} 1-2:x 3-4:y`, `{b="1"} 1-2:z`, `{c="1"} 0-1:w 1-2:x 2-3:v`}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Next after the end returns false, also of a merge of many sets.
func TestMerge_NextAfterTheEnd(t *testing.T) {
	for n := range 7 {
		var sets []Set
		for range n {
			sets = append(sets, &list{series: []one{{labels.FromStrings("a", "1"), nil}}})
		}
		set := Merge(sets...)
		if got := texts(t, set); len(got) != min(n, 1) || set.Next() || set.Next() || set.Err() != nil {
			t.Errorf("%d sets: %q, %v", n, got, set.Err())
		}
	}
}

// randomLabels returns sorted and distinct sets of labels a to e. Many are prefixes of others.
func randomLabels(rng *rand.Rand, n int) []labels.Labels {
	var all []labels.Labels
	for range n {
		var pairs []string
		for name := 'a'; name <= 'e'; name++ {
			if rng.IntN(2) == 0 {
				pairs = append(pairs, string(name), string(rune('0'+rng.IntN(2))))
			}
		}
		all = append(all, labels.FromStrings(pairs...))
	}
	slices.SortFunc(all, labels.Compare)
	return slices.CompactFunc(all, labels.Equal)
}

// memory is a querier over given series.
type memory struct{ series []one }

func (m memory) Select(_ context.Context, _ SelectOptions, matchers ...*labels.Matcher) Set {
	var l list
	for _, s := range m.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.labels.Get(m.Name)) }) {
			l.series = append(l.series, s)
		}
	}
	return &l
}

func (memory) Capabilities() Capabilities { return Capabilities{} }
func (m memory) LabelNames(context.Context, SelectOptions, ...*labels.Matcher) ([]string, error) {
	var names []string
	for _, s := range m.series {
		s.labels.Range(func(l labels.Label) { names = append(names, l.Name) })
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func (memory) Close() error { return nil }

func TestSelectWithExternalLabels_MatchesMergesAndKeepsOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	externals := []labels.Labels{
		labels.EmptyLabels(), labels.FromStrings("c", "0"), labels.FromStrings("c", "1"), labels.FromStrings("z", "1"),
		labels.FromStrings("A", "1"), labels.FromStrings("b", "1", "d", "0"), labels.FromStrings("bb", "x", "dd", "y"),
	}
	for round := range 500 {
		external := externals[round%len(externals)]
		var m memory
		for i, lset := range randomLabels(rng, rng.IntN(14)) {
			m.series = append(m.series, one{lset, []Chunk{chunk(int64(i), int64(i), fmt.Sprint("data", i))}})
		}
		matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchType(rng.IntN(4)), []string{"c", "z", "b", "bb"}[rng.IntN(4)], []string{"", "0", "1", "x"}[rng.IntN(4)])}
		type wanted struct {
			labels labels.Labels
			text   string
		}
		var want []wanted
		for _, s := range m.series {
			builder := labels.NewBuilder(s.labels)
			external.Range(func(l labels.Label) {
				if !s.labels.Has(l.Name) {
					builder.Set(l.Name, l.Value)
				}
			})
			lset := builder.Labels()
			if matchers[0].Matches(lset.Get(matchers[0].Name)) {
				want = append(want, wanted{lset, fmt.Sprintf("%s %d-%d:%s", lset, s.chunks[0].MinMS, s.chunks[0].MaxMS, s.chunks[0].Data)})
			}
		}
		slices.SortFunc(want, func(a, b wanted) int { return labels.Compare(a.labels, b.labels) })
		got := texts(t, SelectWithExternalLabels(context.Background(), m, external, matchers...))
		// Two series may be merged into one; their chunks are then sorted by time.
		distinct := slices.CompactFunc(slices.Clone(want), func(a, b wanted) bool { return labels.Equal(a.labels, b.labels) })
		if len(got) != len(distinct) {
			t.Fatalf("external %s, %s: got %q, want %v", external, matchers[0], got, want)
		}
		if len(distinct) == len(want) {
			for i := range got {
				if got[i] != want[i].text {
					t.Fatalf("external %s, %s: series %d is %q, want %q", external, matchers[0], i, got[i], want[i].text)
				}
			}
		}
	}
}

func TestSelectWithExternalLabels_TooManyOwnLabelsFail(t *testing.T) {
	lset := labels.FromStrings("a", "1", "b", "1", "c", "1", "d", "1", "e", "1")
	set := SelectWithExternalLabels(context.Background(), memory{[]one{{labels: lset}}}, lset)
	if set.Next() || set.Err() == nil {
		t.Error("no failure")
	}
}

func TestFromChunkSeriesSet_RoundTripsThroughToChunkSeriesSet(t *testing.T) {
	xor := chunkenc.NewXORChunk()
	app, err := xor.Appender()
	if err != nil {
		t.Fatal(err)
	}
	app.Append(0, 5, 1.5)
	series := []one{
		{labels.FromStrings("a", "1"), []Chunk{{MinMS: 5, MaxMS: 5, Encoding: chunkenc.EncXOR, Data: xor.Bytes()}}},
		{labels.FromStrings("b", "1"), nil},
	}
	want := texts(t, &list{series: series})
	if got := texts(t, FromChunkSeriesSet(ToChunkSeriesSet(&list{series: series}))); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	samples := ToSeriesSet(&list{series: series})
	if !samples.Next() {
		t.Fatal(samples.Err())
	}
	first := samples.At()
	if !samples.Next() || samples.Next() || samples.Err() != nil {
		t.Fatal("not two series", samples.Err())
	}
	it := first.Iterator(nil)
	if it.Next() != chunkenc.ValFloat {
		t.Fatal("no sample")
	}
	if ts, v := it.At(); ts != 5 || v != 1.5 {
		t.Errorf("%d, %g", ts, v)
	}
}

func TestMatchExternal_LeavesTheMatchersOfOtherLabels(t *testing.T) {
	external := labels.FromStrings("cluster", "a")
	match := func(kind labels.MatchType, name, value string) *labels.Matcher {
		return labels.MustNewMatcher(kind, name, value)
	}
	job := match(labels.MatchEqual, "job", "x")
	for _, tt := range []struct {
		matchers []*labels.Matcher
		rest     []*labels.Matcher
		ok       bool
	}{
		{nil, nil, true},
		{[]*labels.Matcher{job}, []*labels.Matcher{job}, true},
		{[]*labels.Matcher{match(labels.MatchEqual, "cluster", "a"), job}, []*labels.Matcher{job}, true},
		{[]*labels.Matcher{job, match(labels.MatchNotEqual, "cluster", "a")}, nil, false},
		{[]*labels.Matcher{match(labels.MatchEqual, "cluster", "")}, nil, false},
	} {
		if rest, ok := MatchExternal(external, tt.matchers); ok != tt.ok || !slices.Equal(rest, tt.rest) {
			t.Errorf("%v: %v %v, want %v %v", tt.matchers, rest, ok, tt.rest, tt.ok)
		}
	}
}

func TestSorted_TheLimitIsInclusiveAndAFailureReleasesTheSeries(t *testing.T) {
	one := labelenc.Append(nil, labels.FromStrings("job", "a"))
	each := len(one) + heldSeriesBytes
	for bytesMax, want := range map[int]error{2 * each: nil, 2*each - 1: ErrSortLimit} {
		set := Sorted(NewSortBudget(bytesMax), "it needs", func(keep func([]byte, []Chunk) error) (annotations.Annotations, error) {
			return nil, errors.Join(keep(labelenc.Append(nil, labels.FromStrings("job", "b")), nil), keep(one, nil))
		})
		n := 0
		for ; set.Next(); n++ {
		}
		if !errors.Is(set.Err(), want) || want == nil && (n != 2 || set.Err() != nil) || want != nil && (n != 0 || set.(*sorted).all != nil || !strings.Contains(set.Err().Error(), "it needs more than")) {
			t.Errorf("%d bytes: %d series, %v", bytesMax, n, set.Err())
		}
		if set.Next() {
			t.Error("a series after the end")
		}
	}
}
