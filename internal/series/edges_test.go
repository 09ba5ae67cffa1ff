package series

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var errBroken = errors.New("broken")

// warned is a set with a warning.
type warned struct {
	Set
	text string
}

func (w warned) Warnings() annotations.Annotations {
	return annotations.New().Add(errors.New(w.text))
}

func warningsOf(set interface {
	Warnings() annotations.Annotations
}) string {
	all := set.Warnings().AsErrors()
	texts := make([]string, 0, len(all))
	for _, err := range all {
		texts = append(texts, err.Error())
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}

// chunkSource is a chunk querier over the series of a set.
type chunkSource struct {
	storage.ChunkQuerier
	series   []one
	sorted   bool
	closed   int
	namesErr error
}

func (c *chunkSource) Select(_ context.Context, sorted bool, _ *storage.SelectHints, _ ...*labels.Matcher) storage.ChunkSeriesSet {
	c.sorted = sorted
	return ToChunkSeriesSet(warned{&list{series: c.series}, "w"})
}

func (c *chunkSource) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return []string{"a"}, nil, c.namesErr
}

func (c *chunkSource) Close() error { c.closed++; return errBroken }

type chunkSourceStorage struct{ q *chunkSource }

func (s chunkSourceStorage) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) { return s.q, nil }

func TestOpen_EncodesTheSeriesOfAChunkQuerier(t *testing.T) {
	source := &chunkSource{series: []one{{labels.FromStrings("a", "1"), []Chunk{chunk(1, 2, "\x00\x00")}}, {labels.FromStrings("a", "2"), nil}}}
	q, err := Open(context.Background(), chunkSourceStorage{source}, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	set := q.Select(context.Background(), SelectOptions{})
	if got := texts(t, set); !slices.Equal(got, []string{"{a=\"1\"} 1-2:\x00\x00", `{a="2"}`}) || set.Err() != nil || !source.sorted || warningsOf(set) != "w" {
		t.Errorf("%q %v %v", got, set.Err(), source.sorted)
	}
	source.sorted = false
	only := q.Select(context.Background(), SelectOptions{LabelsOnly: true})
	if got := texts(t, only); !slices.Equal(got, []string{`{a="1"}`, `{a="2"}`}) || only.Err() != nil || !source.sorted {
		t.Errorf("labels only: %q %v", got, only.Err())
	}
	if names, err := q.LabelNames(context.Background(), SelectOptions{}); !slices.Equal(names, []string{"a"}) || err != nil {
		t.Errorf("%q %v", names, err)
	}
	source.namesErr = errBroken
	if _, err := q.LabelNames(context.Background(), SelectOptions{}); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if err := q.Close(); !errors.Is(err, errBroken) || source.closed != 1 {
		t.Errorf("%v, closed %d times", err, source.closed)
	}
}

// brokenIterator ends with an error.
type brokenIterator struct{ chunks.Iterator }

func (brokenIterator) Next() bool { return false }
func (brokenIterator) Err() error { return errBroken }

func TestFromChunkSeriesSet_FailuresEndIt(t *testing.T) {
	entry := func(it chunks.Iterator) storage.ChunkSeriesSet {
		return &chunkSeries{all: []storage.ChunkSeries{&storage.ChunkSeriesEntry{Lset: labels.FromStrings("a", "1"), ChunkIteratorFn: func(chunks.Iterator) chunks.Iterator { return it }}}}
	}
	for name, tt := range map[string]struct {
		set  storage.ChunkSeriesSet
		want error
	}{
		"a chunk without data": {entry(storage.NewListChunkSeriesIterator(chunks.Meta{MinTime: 1})), ErrCorrupt},
		"a broken iterator":    {entry(brokenIterator{}), errBroken},
		"a broken set":         {&chunkSeries{err: errBroken}, errBroken},
	} {
		set := FromChunkSeriesSet(tt.set)
		if set.Next() || set.Next() || !errors.Is(set.Err(), tt.want) {
			t.Errorf("%s: %v", name, set.Err())
		}
		if name != "a broken set" && !strings.Contains(set.Err().Error(), `series {a="1"}`) {
			t.Errorf("%s: the series is not named: %v", name, set.Err())
		}
	}
}

type chunkSeries struct {
	all []storage.ChunkSeries
	err error
	i   int
}

func (c *chunkSeries) Next() bool                        { c.i++; return c.i <= len(c.all) }
func (c *chunkSeries) At() storage.ChunkSeries           { return c.all[c.i-1] }
func (c *chunkSeries) Err() error                        { return c.err }
func (c *chunkSeries) Warnings() annotations.Annotations { return nil }

// rawRows is a set of encoded label sets, which may be invalid. It knows its next series.
type rawRows struct {
	rows [][]byte
	i    int
	err  error
}

func (r *rawRows) Next() bool                        { r.i++; return r.i <= len(r.rows) }
func (r *rawRows) Labels() []byte                    { return r.rows[r.i-1] }
func (r *rawRows) Chunks() []Chunk                   { return nil }
func (r *rawRows) Err() error                        { return r.err }
func (r *rawRows) Warnings() annotations.Annotations { return nil }
func (r *rawRows) Ahead() []byte {
	if r.i >= len(r.rows) {
		return nil
	}
	return r.rows[r.i]
}

func TestToChunkSeriesSet_FailuresEndIt(t *testing.T) {
	unknown := &list{series: []one{{labels.FromStrings("a", "1"), []Chunk{{Encoding: 99, Data: []byte{0, 0}}}}}}
	for name, tt := range map[string]struct {
		set  Set
		want error
	}{
		"labels that are cut": {&rawRows{rows: [][]byte{{10, 9}}}, labelenc.ErrCorrupt},
		"an unknown encoding": {unknown, ErrCorrupt},
		"a failed set":        {Failed(errBroken), errBroken},
	} {
		set := ToChunkSeriesSet(warned{tt.set, "w"})
		if set.Next() || set.Next() || !errors.Is(set.Err(), tt.want) || warningsOf(set) != "w" {
			t.Errorf("%s: %v", name, set.Err())
		}
	}
}

func TestToSeriesSet_SeriesWithoutChunksHasNoSamples(t *testing.T) {
	set := ToSeriesSet(warned{&list{series: []one{{labels.FromStrings("a", "1"), nil}}}, "w"})
	if !set.Next() {
		t.Fatal(set.Err())
	}
	s := set.At()
	if s.Labels().String() != `{a="1"}` || s.Iterator(nil).Next() != chunkenc.ValNone || set.Next() || warningsOf(set) != "w" {
		t.Errorf("%v", s.Labels())
	}
}

func TestMerge_HasTheWarningsOfAllSets(t *testing.T) {
	for n := 2; n < 7; n++ {
		var sets []Set
		var want []string
		for i := range n {
			want = append(want, fmt.Sprint("w", i))
			sets = append(sets, warned{&list{}, want[i]})
		}
		if got := warningsOf(Merge(sets...)); got != strings.Join(want, " ") {
			t.Errorf("%d sets: %q", n, got)
		}
	}
	if set := Merge(); set.Next() || set.Err() != nil || set.Warnings() != nil || set.Labels() != nil || set.Chunks() != nil {
		t.Error("a merge of nothing has something")
	}
}

// A set may fail before its first series, in the middle, or at its end.
func TestMerge_FailsWhereverASetFails(t *testing.T) {
	row := func(v string) []byte { return labelenc.Append(nil, labels.FromStrings("a", v)) }
	for n := 2; n < 10; n++ {
		for failing := range n {
			for rows := range 3 {
				var sets []Set
				for i := range n {
					r := &rawRows{rows: [][]byte{row("1"), row("2")}}
					if i == failing {
						r = &rawRows{rows: r.rows[:rows], err: errBroken}
					}
					sets = append(sets, r)
				}
				set, got := Merge(sets...), 0
				for set.Next() {
					got++
				}
				if !errors.Is(set.Err(), errBroken) || got != rows || set.Next() {
					t.Errorf("%d sets, number %d fails after %d series: %d, %v", n, failing, rows, got, set.Err())
				}
			}
		}
	}
}

func TestTidy_OrdersByStartEndEncodingAndData(t *testing.T) {
	chunk := func(mint, maxt int64, encoding chunkenc.Encoding, data string) Chunk {
		return Chunk{MinMS: mint, MaxMS: maxt, Encoding: encoding, Data: []byte(data)}
	}
	sorted := []Chunk{
		chunk(1, 1, 1, "a"), chunk(1, 2, 1, "b"), chunk(1, 2, 1, "a"), chunk(1, 2, 2, "a"), chunk(1, 3, 1, "a"), chunk(2, 2, 1, "a"),
	}
	for i := range sorted {
		for j := range sorted {
			want := []Chunk{sorted[min(i, j)], sorted[max(i, j)]}
			if i == j {
				want = want[:1]
			}
			if got := Tidy([]Chunk{sorted[i], sorted[j]}); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%v and %v: %v", sorted[i], sorted[j], got)
			}
		}
	}
}

// external adds labels itself; names of labels cannot be listed.
type external struct{ fixedQuerier }

func (external) Capabilities() Capabilities { return Capabilities{External: true} }

func (external) Select(_ context.Context, opts SelectOptions, _ ...*labels.Matcher) Set {
	return &list{series: []one{{opts.External, nil}}}
}

type nameless struct{ fixedQuerier }

func (nameless) Capabilities() Capabilities { return Capabilities{} }
func (nameless) LabelNames(context.Context, SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, errBroken
}

type namesMatching struct {
	nameless
	matchers int
}

func (n *namesMatching) LabelNames(_ context.Context, _ SelectOptions, matchers ...*labels.Matcher) ([]string, error) {
	n.matchers = len(matchers)
	return []string{"a", "z"}, nil
}

func TestSelectWithExternalLabels_UsesTheQueriersOwnWay(t *testing.T) {
	set := SelectWithExternalLabels(context.Background(), external{}, labels.FromStrings("x", "y"))
	if got := texts(t, set); !slices.Equal(got, []string{`{x="y"}`}) {
		t.Errorf("%q", got)
	}
}

func TestSelect_FailsIfLabelNamesCannotBeListed(t *testing.T) {
	z := labels.FromStrings("z", "1")
	for name, set := range map[string]Set{
		"with external labels": SelectWithExternalLabels(context.Background(), nameless{}, z),
		"replacing labels":     SelectReplacingLabels(context.Background(), nameless{}, SelectOptions{}, z, nil, NewSortBudget(1<<20)),
	} {
		if set.Next() || !errors.Is(set.Err(), errBroken) {
			t.Errorf("%s: %v", name, set.Err())
		}
	}
	q := &namesMatching{nameless: nameless{fixedQuerier{series: []one{{labels.FromStrings("a", "1", "z", "0"), nil}, {labels.FromStrings("a", "2"), nil}}}}}
	set := SelectReplacingLabels(context.Background(), q, SelectOptions{}, z, nil, NewSortBudget(1<<20), labels.MustNewMatcher(labels.MatchNotEqual, "a", ""))
	if got := texts(t, set); !slices.Equal(got, []string{`{a="1", z="1"}`, `{a="2", z="1"}`}) || q.matchers != 1 {
		t.Errorf("%q, %d matchers", got, q.matchers)
	}
}

func TestSelectWithExternalLabels_UpToFourOwnLabels(t *testing.T) {
	four := labels.FromStrings("a", "1", "b", "1", "c", "1", "d", "1")
	set := SelectWithExternalLabels(context.Background(), memory{[]one{{labels: four}}}, labels.FromStrings("a", "0", "b", "0", "c", "0", "d", "0", "e", "0"))
	if got := texts(t, set); set.Err() != nil || !slices.Equal(got, []string{`{a="1", b="1", c="1", d="1", e="0"}`}) {
		t.Errorf("%q %v", got, set.Err())
	}
}

func TestExtendedSet_FailuresEndIt(t *testing.T) {
	add := labelenc.AppendLabel(nil, "m", "1")
	good := labelenc.Append(nil, labels.FromStrings("a", "1"))
	for name, tt := range map[string]struct {
		set  Set
		want error
		rows int
	}{
		"labels that are cut": {&rawRows{rows: [][]byte{{10, 9}, good}}, labelenc.ErrCorrupt, 0},
		"a failed set":        {&rawRows{rows: [][]byte{good}, err: errBroken}, errBroken, 1},
		"one that ends":       {&rawRows{rows: [][]byte{good}}, nil, 1},
	} {
		set := &extendedSet{set: warned{tt.set, "w"}, add: add, lastName: labelenc.LastName(add)}
		n := 0
		for set.Next() {
			n++
		}
		// Without Ahead the series is held until the end, and lost if that is a failure.
		if want := tt.rows; name != "a failed set" && n != want || set.Next() || !errors.Is(set.Err(), tt.want) || warningsOf(set) != "w" {
			t.Errorf("%s: %d series, %v", name, n, set.Err())
		}
	}
}

// {a} sorts before {a, b} without an added label c, and after it with one.
func TestExtendedSet_HoldsPrefixesOnly(t *testing.T) {
	add := labelenc.AppendLabel(nil, "c", "1")
	row := func(pairs ...string) []byte { return labelenc.Append(nil, labels.FromStrings(pairs...)) }
	rows := [][]byte{row("a", "1"), row("a", "1", "b", "1"), row("a", "1", "b", "1", "d", "1"), row("a", "2"), row("a", "3", "d", "1")}
	want := []string{`{a="1", b="1", c="1"}`, `{a="1", b="1", c="1", d="1"}`, `{a="1", c="1"}`, `{a="2", c="1"}`, `{a="3", c="1", d="1"}`}
	for _, knows := range []bool{false, true} {
		var below Set = &rawRows{rows: rows}
		if !knows {
			below = struct{ Set }{below}
		}
		set := &extendedSet{set: below, add: add, lastName: labelenc.LastName(add)}
		if got := texts(t, set); !slices.Equal(got, want) || set.Err() != nil {
			t.Errorf("with Ahead %v: %q", knows, got)
		}
		if held := len(set.free); knows && held > 2 {
			t.Errorf("%d series were held", held)
		}
	}
}

func TestSelectReplacingLabels_SortsUpToItsLimit(t *testing.T) {
	q := fixedQuerier{
		series: []one{{labels.FromStrings("a", "1", "z", "3"), []Chunk{chunk(5, 6, "later")}}, {labels.FromStrings("a", "2", "z", "1"), []Chunk{chunk(1, 2, "x")}}, {labels.FromStrings("a", "3", "z", "3"), []Chunk{chunk(1, 2, "early"), chunk(5, 6, "later")}}},
		names:  []string{"a", "z"},
	}
	without, text := []string{"a"}, []string{`{z="1"} 1-2:x`, `{z="3"} 1-2:early 5-6:later`}
	size := 0
	for _, s := range q.series {
		size += heldSeriesBytes + len(labelenc.Append(nil, labels.FromStrings("z", s.labels.Get("z"))))
		for _, c := range s.chunks {
			size += 64 + len(c.Data)
		}
	}
	for _, set := range []Set{
		SelectReplacingLabels(context.Background(), q, SelectOptions{}, labels.EmptyLabels(), without, NewSortBudget(size)),
		WithoutLabels(warned{&list{series: q.series}, "w"}, without, size),
	} {
		if got := texts(t, set); !slices.Equal(got, text) || set.Err() != nil || set.Next() {
			t.Errorf("%q %v", got, set.Err())
		}
	}
	set := WithoutLabels(warned{&list{series: q.series}, "w"}, without, size-1)
	if set.Next() || set.Next() || !errors.Is(set.Err(), ErrSortLimit) || warningsOf(set) != "w" {
		t.Errorf("a byte less: %v", set.Err())
	}
	for name, tt := range map[string]struct {
		set  Set
		want error
	}{
		"labels that are cut": {&rawRows{rows: [][]byte{{10, 9}}}, labelenc.ErrCorrupt}, "a failed set": {&rawRows{err: errBroken}, errBroken},
	} {
		if set := WithoutLabels(tt.set, without, size); set.Next() || !errors.Is(set.Err(), tt.want) {
			t.Errorf("%s: %v", name, set.Err())
		}
	}
	set = SelectReplacingLabels(context.Background(), q, SelectOptions{}, labels.FromStrings("z", "0"), []string{"z"}, NewSortBudget(1<<20))
	if got := texts(t, set); len(got) != 3 || got[0] != `{a="1"} 5-6:later` {
		t.Errorf("removal is stronger than an external label: %q", got)
	}
}
