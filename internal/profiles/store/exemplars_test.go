package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// oneRow is a row of a fakeSource.
type oneRow struct {
	series  uint32
	time    int64
	value   int64
	profile uint32
	id      byte
}

// fakeSource is a source of given rows, in column groups of a size, whose calls can fail.
type fakeSource struct {
	block.Source
	name      string
	rows      []oneRow
	groupRows int
	spans     []block.Span
	shared    []block.Key
	fails     map[string]error // by method
	reads     int              // calls of Columns
}

func (s *fakeSource) Name() string                 { return s.name }
func (s *fakeSource) Rows() int                    { return len(s.rows) }
func (s *fakeSource) Shared() []block.Key          { return s.shared }
func (s *fakeSource) Spans() ([]block.Span, error) { return s.spans, s.fails["Spans"] }
func (s *fakeSource) ID(row int) (profiles.ID, error) {
	return profiles.ID{s.rows[row].id}, s.fails["ID"]
}

func (s *fakeSource) group(row int) (first, end int) {
	first = row - row%s.groupRows
	return first, min(first+s.groupRows, len(s.rows))
}

func (s *fakeSource) Columns(row int) (block.Columns, error) {
	s.reads++
	if err := s.fails["Columns"]; err != nil {
		return block.Columns{}, err
	}
	first, end := s.group(row)
	c := block.Columns{First: first, N: end - first}
	for _, r := range s.rows[first:end] {
		c.Series = binary.LittleEndian.AppendUint32(c.Series, r.series)
		c.Time = binary.LittleEndian.AppendUint64(c.Time, uint64(r.time))
		c.Value = binary.LittleEndian.AppendUint64(c.Value, uint64(r.value))
		c.Profile = binary.LittleEndian.AppendUint32(c.Profile, r.profile)
	}
	return c, nil
}

func (s *fakeSource) IDs(row int) ([]byte, error) {
	first, end := s.group(row)
	var ids []byte
	for _, r := range s.rows[first:end] {
		id := profiles.ID{r.id}
		ids = append(ids, id[:]...)
	}
	return ids, s.fails["IDs"]
}

func fakeOf(multiRow bool, rows ...oneRow) *fakeSource {
	return &fakeSource{name: "fake", rows: rows, groupRows: 2, spans: []block.Span{{Hi: len(rows), MultiRow: multiRow}}, fails: map[string]error{}}
}

func TestSteps_IndexOfTimesAtTheirBounds(t *testing.T) {
	steps := Steps{FromNS: 100, StepNS: 10, Count: 3}
	for at, want := range map[int64]int{0: -1, 99: -1, 100: -1, 101: 0, 110: 0, 111: 1, 120: 1, 130: 2, 131: -1, 1000: -1} {
		if got := steps.Index(at); got != want {
			t.Errorf("%d is in step %d, want %d", at, got, want)
		}
	}
}

// Every row counts once in the accumulator of its group and step, in all three ways to scan.
func TestScan_RowsOfGroupsAndStepsAreSummed(t *testing.T) {
	rows := []oneRow{
		{0, 101, 1, 0, 1}, {1, 101, 2, 1, 2}, {2, 101, 4, 2, 3}, {0, 110, 8, 3, 4}, {1, 111, 16, 4, 5}, {0, 120, 32, 5, 6}, {0, 121, 64, 6, 7}, {0, 100, 128, 7, 8}, {1, 102, 256, 8, 9},
	}
	for name, c := range map[string]struct{ exemplars, multiRow bool }{"sums": {false, false}, "single rows": {true, false}, "several rows": {true, true}} {
		s := Scan{Steps: Steps{FromNS: 100, StepNS: 10, Count: 2}, Exemplars: c.exemplars}
		if err := errors.Join(s.Source(t.Context(), fakeOf(c.multiRow, rows...), []int32{0, 1, -1}, 3), s.Finish()); err != nil {
			t.Fatal(name, err)
		}
		type sum struct {
			sum  int64
			rows uint32
		}
		var got [][]sum
		for group := range 4 {
			var sums []sum
			for _, a := range s.Group(group) {
				sums = append(sums, sum{a.Sum, a.Rows})
			}
			got = append(got, sums)
		}
		if want := [][]sum{{{9, 2}, {32, 1}}, {{258, 2}, {16, 1}}, nil, nil}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
		if !c.exemplars {
			continue
		}
		for group, want := range map[int][]int64{0: {8, 32}, 1: {256, 16}} {
			for step, a := range s.Group(group) {
				if a.ExemplarValue != want[step] {
					t.Errorf("%s: the exemplar of group %d, step %d is %d, want %d", name, group, step, a.ExemplarValue, want[step])
				}
				if series, ok := a.Series(); ok == c.multiRow || ok && int(series) != group {
					t.Errorf("%s: series %d, %v", name, series, ok)
				}
			}
		}
	}
}

// Of equal values the earlier profile is the exemplar, and of equal times the lesser ID.
func TestScan_ExemplarOfEqualValues(t *testing.T) {
	for name, c := range map[string]struct {
		rows []oneRow
		want uint32
	}{
		"greater value later":   {[]oneRow{{0, 1, 5, 0, 1}, {0, 2, 6, 1, 2}}, 1},
		"greater value earlier": {[]oneRow{{0, 1, 6, 0, 1}, {0, 2, 5, 1, 2}}, 0},
		"earlier first":         {[]oneRow{{0, 1, 5, 0, 2}, {0, 2, 5, 1, 1}}, 0},
		"earlier last":          {[]oneRow{{0, 2, 5, 0, 1}, {0, 1, 5, 1, 2}}, 1},
		"lesser ID first":       {[]oneRow{{0, 1, 5, 0, 1}, {0, 1, 5, 1, 2}}, 0},
		"lesser ID last":        {[]oneRow{{0, 1, 5, 0, 2}, {0, 1, 5, 1, 1}}, 1},
		"values of 0":           {[]oneRow{{0, 2, 0, 0, 2}, {0, 1, 0, 1, 3}}, 1},
	} {
		for _, multiRow := range []bool{false, true} {
			s, src := Scan{Steps: Steps{StepNS: 10, Count: 1}, Exemplars: true}, fakeOf(multiRow, c.rows...)
			if err := errors.Join(s.Source(t.Context(), src, []int32{0}, 1), s.Finish()); err != nil {
				t.Fatal(err)
			}
			acc := &s.Group(0)[0]
			r := c.rows[c.want]
			if acc.Exemplar != (Locator{0, c.want}) || acc.ExemplarValue != r.value || acc.ExemplarTime != r.time {
				t.Errorf("%s, several rows %v: %+v", name, multiRow, acc)
			}
			id, source, series, only, err := s.LookupExemplar(acc)
			if err != nil || id != (profiles.ID{r.id}) || only == multiRow || source != 0 || series != 0 {
				t.Errorf("%s, several rows %v: %v, %d, %d, %v, %v", name, multiRow, id, source, series, only, err)
			}
			if s.SourceAt(acc.Exemplar) != block.Source(src) {
				t.Errorf("%s: another source", name)
			}
		}
	}
}

// Adjacent rows of a profile are summed as one exemplar. The rows of a shared profile are summed even if they are not adjacent.
func TestScan_ExemplarsOfSeveralRows(t *testing.T) {
	s := Scan{Steps: Steps{StepNS: 10, Count: 1}, Exemplars: true}
	src := fakeOf(true, oneRow{0, 1, 3, 0, 1}, oneRow{1, 1, 4, 0, 1}, oneRow{2, 1, 9, 0, 1}, oneRow{0, 2, 6, 1, 2}, oneRow{1, 3, 5, 2, 3})
	groups := []int32{0, 0, 1}
	if err := errors.Join(s.Source(t.Context(), src, groups, 2), s.Finish()); err != nil {
		t.Fatal(err)
	}
	rowsOf := func(group int) string {
		t.Helper()
		text := ""
		if err := s.Rows(s.Group(group)[0].Exemplar, group, func(source int, series uint32) { text += fmt.Sprint(source, "/", series, " ") }); err != nil {
			t.Error(err)
		}
		return text
	}
	if a := s.Group(0)[0]; a.ExemplarValue != 7 || a.Sum != 18 || a.Rows != 4 || a.Exemplar != (Locator{0, 0}) || rowsOf(0) != "0/0 0/1 " {
		t.Errorf("%+v, rows %s", a, rowsOf(0))
	}
	if a := s.Group(1)[0]; a.ExemplarValue != 9 || rowsOf(1) != "0/2 " {
		t.Errorf("%+v, rows %s", a, rowsOf(1))
	}

	s.Reset()
	if len(s.Accumulators) != 0 || s.Group(0) != nil || s.shared != nil || s.splits != nil {
		t.Errorf("after Reset: %+v", s)
	}
	first, second := fakeOf(false, oneRow{0, 1, 3, 0, 1}, oneRow{0, 2, 6, 1, 2}), fakeOf(false, oneRow{1, 1, 4, 0, 1}, oneRow{1, 5, 4, 1, 1})
	second.shared = []block.Key{{ID: profiles.ID{1}, TimeNS: 1}}
	sources := []block.Source{first, second}
	s.AddShared(sources)
	for _, src := range sources {
		if err := s.Source(t.Context(), src, groups, 2); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Finish(); err != nil {
		t.Fatal(err)
	}
	acc := &s.Group(0)[0]
	if acc.ExemplarValue != 7 || acc.Sum != 17 || acc.Rows != 4 || acc.ExemplarTime != 1 || rowsOf(0) != "0/0 1/1 " || s.SourceAt(acc.Exemplar) != nil {
		t.Errorf("%+v, rows %s", acc, rowsOf(0))
	}
	if id, _, _, only, err := s.LookupExemplar(acc); err != nil || only || id != (profiles.ID{1}) {
		t.Errorf("%v, %v, %v", id, only, err)
	}
}

func TestScan_LimitOfAccumulators(t *testing.T) {
	src := fakeOf(false, oneRow{0, 1, 3, 0, 1}, oneRow{1, 2, 6, 1, 2})
	for limit, ok := range map[int]bool{0: true, 4: true, 3: false, 1: false} {
		for _, exemplars := range []bool{false, true} {
			s := Scan{Steps: Steps{StepNS: 10, Count: 2}, AccumulatorsMax: limit, Exemplars: exemplars}
			err := s.Source(t.Context(), src, []int32{0, 1}, 2)
			if ok != (err == nil) || err != nil && (!errors.Is(err, profiles.ErrLimit) || len(s.Accumulators) != 2) {
				t.Errorf("limit %d: %v, %d accumulators", limit, err, len(s.Accumulators))
			}
			s.AccumulatorsMax = 0
			s.Reset()
			if err := s.Source(t.Context(), src, []int32{0, 1}, 2); err != nil {
				t.Errorf("limit %d, after Reset: %v", limit, err)
			}
		}
	}
}

func TestScan_SortedSpansAreReadWithinTheSteps(t *testing.T) {
	for from := range int64(7) {
		for count := range 7 {
			s := Scan{Steps: Steps{FromNS: from, StepNS: 1, Count: count}}
			src := fakeOf(false, oneRow{time: 1, value: 1}, oneRow{time: 2, value: 2}, oneRow{time: 2, value: 4}, oneRow{time: 3, value: 8}, oneRow{time: 5, value: 16})
			c, err := src.Columns(0)
			if err != nil {
				t.Fatal(err)
			}
			src.groupRows = len(src.rows)
			if c, err = src.Columns(0); err != nil {
				t.Fatal(err)
			}
			lo, hi := s.clip(&c, 0, c.N)
			var want []int
			for i, r := range src.rows {
				if r.time > from && r.time <= from+int64(count) {
					want = append(want, i)
				}
			}
			var got []int
			for i := lo; i < hi; i++ {
				got = append(got, i)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d steps after %d: rows %v, want %v", count, from, got, want)
			}
		}
	}
}

func TestScan_SpansWithoutAGroupedSeriesAreNotRead(t *testing.T) {
	src := fakeOf(false, oneRow{series: 0, time: 1}, oneRow{series: 0, time: 1}, oneRow{series: 1, time: 1})
	src.spans = []block.Span{{Lo: 0, Hi: 2, Series: []uint32{0}}, {Lo: 2, Hi: 3, Series: []uint32{0, 1}}}
	s := Scan{Steps: Steps{StepNS: 10, Count: 1}}
	if err := s.Source(t.Context(), src, []int32{-1, 0}, 1); err != nil || src.reads != 1 || s.Group(0)[0].Rows != 1 {
		t.Errorf("%v, %d reads", err, src.reads)
	}
}

func TestScan_ErrorsOfSourcesAreReturned(t *testing.T) {
	failure := errors.New("failed")
	rows := []oneRow{{0, 1, 5, 0, 1}, {0, 2, 6, 1, 1}, {0, 2, 6, 2, 2}}
	for method, c := range map[string]struct{ multiRow, shared bool }{"Spans": {}, "Columns": {}, "IDs": {}, "ID": {shared: true}, "IDs of several rows": {multiRow: true}} {
		name := method
		if method == "IDs of several rows" {
			name = "IDs"
		}
		src := fakeOf(c.multiRow, rows...)
		src.fails[name] = failure
		s := Scan{Steps: Steps{StepNS: 10, Count: 1}, Exemplars: true}
		if c.shared {
			s.shared = map[block.Key]bool{}
		}
		if err := s.Source(t.Context(), src, []int32{0}, 1); !errors.Is(err, failure) {
			t.Errorf("%s: %v", method, err)
		}
	}

	src := fakeOf(false, rows[:1]...)
	s := Scan{Steps: Steps{StepNS: 10, Count: 1}, Exemplars: true}
	if err := s.Source(t.Context(), src, []int32{0}, 1); err != nil {
		t.Fatal(err)
	}
	acc := &s.Group(0)[0]
	for _, name := range []string{"Columns", "IDs"} {
		src.fails = map[string]error{name: failure}
		var known *SourceError
		if _, _, _, _, err := s.LookupExemplar(acc); !errors.As(err, &known) || known.Source != block.Source(src) || !errors.Is(err, failure) || err.Error() != "fake: failed" {
			t.Errorf("%s: %v", name, err)
		}
		n, wantRows := 0, map[string]int{"IDs": 1}[name]
		if err := s.Rows(acc.Exemplar, 0, func(int, uint32) { n++ }); n != wantRows || (name == "Columns") != errors.Is(err, failure) {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
		src.fails = nil
		if name == "Columns" {
			if id, err := s.ID(acc.Exemplar); err != nil || id != (profiles.ID{1}) {
				t.Errorf("%v, %v", id, err)
			}
			s.caches[0].ids = nil
		}
	}
	_, _, _, _, err := s.LookupExemplar(acc)
	reads := src.reads
	if _, err2 := s.ID(acc.Exemplar); errors.Join(err, err2) != nil || src.reads != reads || s.CachedID(acc.Exemplar) == nil || s.CachedID(Locator{0, 1}) != nil {
		t.Errorf("%v, %v: an ID that was read is not cached", err, err2)
	}

	src.spans[0].Hi = 3
	if err := (&Scan{Steps: s.Steps}).Source(t.Context(), &beyond{src}, []int32{0}, 1); !errors.Is(err, profiles.ErrCorrupt) {
		t.Errorf("a span beyond the rows: %v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := (&Scan{Steps: s.Steps}).Source(ended, src, []int32{0}, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

// beyond is a source whose columns end before its span.
type beyond struct{ *fakeSource }

func (*beyond) Columns(int) (block.Columns, error) { return block.Columns{}, nil }

func TestSourceError_NamesItsSourceOnce(t *testing.T) {
	src := fakeOf(false)
	if err := InSource(src, nil); err != nil {
		t.Error(err)
	}
	err := InSource(src, errors.New("fake has ended"))
	if err.Error() != "fake has ended" {
		t.Error(err)
	}
	if again := InSource(fakeOf(true), err); !reflect.DeepEqual(again, err) {
		t.Errorf("wrapped twice: %v", again)
	}
	if err := InSource(src, errors.New("ended")); err.Error() != "fake: ended" {
		t.Error(err)
	}
}

func TestScan_SumsStayAtTheGreatestValue(t *testing.T) {
	for _, multiRow := range []bool{false, true} {
		s := Scan{Steps: Steps{StepNS: 10, Count: 1}, Exemplars: multiRow}
		src := fakeOf(multiRow, oneRow{0, 1, math.MaxInt64, 0, 1}, oneRow{0, 1, 1, 0, 1})
		if err := errors.Join(s.Source(t.Context(), src, []int32{0}, 1), s.Finish()); err != nil {
			t.Fatal(err)
		}
		if a := s.Group(0)[0]; a.Sum != math.MaxInt64 || multiRow && a.ExemplarValue != math.MaxInt64 {
			t.Errorf("%+v", a)
		}
	}
}

// The rows of a head are in the order of their pushes: rows outside all steps follow rows of later steps.
func TestScan_UnsortedRowsOutsideTheStepsAreNotSummed(t *testing.T) {
	var rows []oneRow
	for i, at := range []int64{121, 100, 95, 91, 90, 85, 81, 131, 111, 100, 95, 90, 131, 101, 100, 131} {
		rows = append(rows, oneRow{time: at, value: 1 << i, profile: uint32(i), id: byte(i + 1)})
	}
	for _, exemplars := range []bool{false, true} {
		s := Scan{Steps: Steps{FromNS: 100, StepNS: 10, Count: 3}, Exemplars: exemplars}
		src := fakeOf(false, rows...)
		src.groupRows = len(rows)
		if err := errors.Join(s.Source(t.Context(), src, []int32{0}, 1), s.Finish()); err != nil {
			t.Fatal(err)
		}
		var sums []int64
		for _, acc := range s.Group(0) {
			sums = append(sums, acc.Sum)
		}
		if want := []int64{1 << 13, 1 << 8, 1 << 0}; !slices.Equal(sums, want) {
			t.Errorf("exemplars %v: %v, want %v", exemplars, sums, want)
		}
	}
}
