package profile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
)

// Locator says where a row lies.
type Locator struct {
	Source uint32 // of the scan's sources
	Row    uint32
}

// Cell is one group in one bucket. Where Rows is 0 nothing else means anything.
type Cell struct {
	Sum  int64
	Rows uint32
	has  bool    // the fields below mean something
	Best Locator // first row of the best profile
	// BestValue is of all rows of that profile in this cell.
	BestValue int64
	BestTime  int64
}

// Buckets are the steps of a scan: bucket i holds times in (FromNS+i*StepNS,
// FromNS+(i+1)*StepNS].
type Buckets struct {
	FromNS, StepNS int64
	N              int
}

// Scan adds rows to cells: of each group N of them, one after the other. Source by
// source it is told which group a series is in.
type Scan struct {
	Buckets   Buckets
	Exemplars bool
	CellsMax  int    // groups with rows times Buckets.N; 0: no limit
	Cells     []Cell // Buckets.N for each group that has a row; Group finds them

	base []int32 // of each group: where its cells begin; -1: it has no row yet
	full bool    // a group found no room for its cells

	sources []block.Source
	groups  [][]int32
	single  []bool // of each source: no profile has two rows of a type
	near    near
	run     []run // of each group: the profile whose rows are being summed
	late    map[lateKey]*late
	winners []*late // those that a cell points to
	shared  map[block.Key]bool
	sampled bool // rows without counted samples are left out, so that a profile's rows are those listed
}

// near is the columns that were looked into last: winners mostly follow each other.
type near struct {
	source uint32
	cols   block.Columns
	ids    []byte // of the same rows; nil: not looked at yet
}

// columns are those in which a row lies.
func (s *Scan) columns(at Locator) (*block.Columns, error) {
	n := &s.near
	if i := int(at.Row) - n.cols.First; n.source == at.Source && i >= 0 && i < n.cols.N {
		return &n.cols, nil
	}
	c, err := s.sources[at.Source].Columns(int(at.Row))
	if err != nil {
		return nil, In(s.sources[at.Source], err)
	}
	*n = near{source: at.Source, cols: c}
	return &n.cols, nil
}

// lateSource is the Source of a Locator that points to winners.
const lateSource = ^uint32(0)

// run is the rows of one profile that lie side by side.
type run struct {
	ord    uint32
	used   bool
	source uint32
	row    uint32
	value  int64
	cell   int
	time   int64
}

type lateKey struct {
	cell int
	key  block.Key
}

// late is a profile in a cell, whose rows do not all lie side by side.
type late struct {
	key   block.Key
	value int64
	rows  []Locator
}

// Share names the profiles that have rows in several places; they are summed by id.
func (s *Scan) Share(sources []block.Source) {
	for _, src := range sources {
		for _, key := range src.Shared() {
			if s.shared == nil {
				s.shared = map[block.Key]bool{}
			}
			s.shared[key] = true
		}
	}
}

// Reset makes a scan ready for another query and keeps its memory.
func (s *Scan) Reset() {
	clear(s.sources)
	clear(s.groups)
	s.Cells, s.sources, s.groups, s.run = s.Cells[:0], s.sources[:0], s.groups[:0], s.run[:0]
	s.single, s.near, s.base, s.full = s.single[:0], near{}, s.base[:0], false
	s.late, s.winners, s.shared, s.sampled = nil, nil, nil, false
}

// Source scans one source. groupOf is by series: the group's number, or -1; it is
// kept until Reset. wants says whether a span of rows can have any of them.
func (s *Scan) Source(ctx context.Context, src block.Source, groupOf []int32, groups int) error {
	number := s.begin(src, groupOf, groups)
	spans, err := src.Spans()
	if err != nil {
		return err
	}
	s.single = append(s.single, !slices.ContainsFunc(spans, func(span block.Span) bool { return span.Splits }))
	for i := range spans {
		span := &spans[i]
		if !wanted(span, groupOf) {
			continue
		}
		if err := s.span(ctx, src, number, span, groupOf, groups); err != nil {
			return err
		}
	}
	return nil
}

// begin adds a source whose series are in so many groups.
func (s *Scan) begin(src block.Source, groupOf []int32, groups int) uint32 {
	s.sources, s.groups = append(s.sources, src), append(s.groups, groupOf)
	for len(s.base) < groups {
		s.base = append(s.base, -1)
	}
	return uint32(len(s.sources) - 1)
}

// at is the index of a group's cell; the group gets its cells with its first row.
func (s *Scan) at(group int32, bucket int) int {
	if base := s.base[group]; base >= 0 {
		return int(base) + bucket
	}
	return s.room(group) + bucket
}

// room makes a group's cells. Beyond CellsMax all groups share the same ones, and
// the scan of the source ends with ErrLimit.
func (s *Scan) room(group int32) int {
	base, n := len(s.Cells), s.Buckets.N
	if s.full || s.CellsMax > 0 && base+n > s.CellsMax && base > 0 || base+n > math.MaxInt32 {
		s.full = true
		return int(s.base[slices.IndexFunc(s.base, func(b int32) bool { return b >= 0 })])
	}
	s.Cells = slices.Grow(s.Cells, n)[:base+n]
	clear(s.Cells[base:])
	s.base[group] = int32(base)
	return base
}

// crowded is ErrLimit once a group has found no room.
func (s *Scan) crowded() error {
	if !s.full {
		return nil
	}
	return fmt.Errorf("%w: series of %d steps have more than %d points: make the step longer, or group by fewer labels", profiles.ErrLimit, s.Buckets.N, s.CellsMax)
}

// Group is the cells of a group, one for each bucket; none without a row.
func (s *Scan) Group(group int) []Cell {
	if group >= len(s.base) || s.base[group] < 0 {
		return nil
	}
	base := int(s.base[group])
	return s.Cells[base : base+s.Buckets.N]
}

// SourceError says in which source something went wrong.
type SourceError struct {
	Source block.Source
	Err    error
}

// Error names the source unless the error itself does.
func (e *SourceError) Error() string {
	text, name := e.Err.Error(), e.Source.Name()
	if strings.HasPrefix(text, name) {
		return text
	}
	return name + ": " + text
}

// Unwrap is what went wrong.
func (e *SourceError) Unwrap() error { return e.Err }

// In says that an error is of a source, unless it says of which one already.
func In(src block.Source, err error) error {
	var known *SourceError
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &SourceError{src, err}
}

// wanted says whether a span has rows of a series that has a group.
func wanted(span *block.Span, groupOf []int32) bool {
	return span.Series == nil || slices.ContainsFunc(span.Series, func(ref uint32) bool { return groupOf[ref] >= 0 })
}

func noColumn(src block.Source, row int) error {
	return fmt.Errorf("%w: %s: row %d is in no column", profiles.ErrCorrupt, src.Name(), row)
}

func (s *Scan) span(ctx context.Context, src block.Source, number uint32, span *block.Span, groupOf []int32, groups int) error {
	slow := s.Exemplars && (span.Splits || s.shared != nil)
	if slow {
		s.beginRuns(groups)
	}
	for row := span.Lo; row < span.Hi; {
		if err := ctx.Err(); err != nil {
			return err
		}
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		lo, hi := row-c.First, min(span.Hi-c.First, c.N)
		if hi <= lo {
			return noColumn(src, row)
		}
		row = c.First + hi
		if span.Sorted {
			lo, hi = s.clip(&c, lo, hi)
		}
		k := kernel{Scan: s, c: &c, number: number, groupOf: groupOf}
		switch {
		case !s.Exemplars:
			k.sums(lo, hi)
		case slow:
			err = k.splits(src, lo, hi)
		default:
			err = k.best(lo, hi)
		}
		if err == nil {
			err = s.crowded()
		}
		if err != nil {
			return err
		}
	}
	if slow {
		return s.endRuns()
	}
	return nil
}

func (s *Scan) beginRuns(groups int) {
	if cap(s.run) < groups {
		s.run = make([]run, groups)
	}
	s.run = s.run[:groups]
	clear(s.run)
}

func (s *Scan) endRuns() error {
	for i := range s.run {
		if err := s.compete(&s.run[i]); err != nil {
			return err
		}
	}
	return nil
}

// clip narrows sorted rows to those in the buckets.
func (s *Scan) clip(c *block.Columns, lo, hi int) (int, int) {
	first := func(after int64) int { // the first row with a greater time
		a, b := lo, hi
		for a < b {
			if mid := (a + b) / 2; c.TimeAt(mid) > after {
				b = mid
			} else {
				a = mid + 1
			}
		}
		return a
	}
	return first(s.Buckets.FromNS), first(s.Buckets.FromNS + int64(s.Buckets.N)*s.Buckets.StepNS)
}

// kernel goes over rows whose columns are at hand.
type kernel struct {
	*Scan
	c       *block.Columns
	number  uint32
	groupOf []int32
}

// bucket finds the bucket of a time; -1: none.
func (b *Buckets) bucket(t int64) int {
	if t <= b.FromNS {
		return -1
	}
	i := (t - b.FromNS - 1) / b.StepNS
	if i >= int64(b.N) {
		return -1
	}
	return int(i)
}

// sums adds rows without looking for the best. Rows of one bucket mostly follow
// each other, so that a division is needed only when its end is passed.
func (k *kernel) sums(lo, hi int) {
	bucket, from, to := -1, int64(0), int64(0) // times in (from, to] are in bucket
	var cell *Cell                             // of the row before, mostly of this one, too
	last := int32(-1)                          // its group
	for i := lo; i < hi; i++ {
		group := k.groupOf[k.c.SeriesAt(i)]
		if group < 0 {
			continue
		}
		if t := k.c.TimeAt(i); t <= from || t > to {
			if bucket = k.Buckets.bucket(t); bucket < 0 {
				from, to = 0, 0
				continue
			}
			from = k.Buckets.FromNS + int64(bucket)*k.Buckets.StepNS
			to = from + k.Buckets.StepNS
			cell, last = &k.Cells[k.at(group, bucket)], group
		} else if group != last {
			cell, last = &k.Cells[k.at(group, bucket)], group
		}
		cell.Sum = block.AddValues(cell.Sum, k.c.ValueAt(i))
		cell.Rows++
	}
}

// best adds rows, each of a profile of its own, and keeps the best of each cell.
func (k *kernel) best(lo, hi int) error {
	bucket, from, to := -1, int64(0), int64(0)
	var cell *Cell    // of the row before, mostly of this one, too
	last := int32(-1) // its group
	for i := lo; i < hi; i++ {
		group := k.groupOf[k.c.SeriesAt(i)]
		if group < 0 {
			continue
		}
		t := k.c.TimeAt(i)
		if t <= from || t > to {
			if bucket = k.Buckets.bucket(t); bucket < 0 {
				from, to = 0, 0
				continue
			}
			from = k.Buckets.FromNS + int64(bucket)*k.Buckets.StepNS
			to = from + k.Buckets.StepNS
			cell, last = &k.Cells[k.at(group, bucket)], group
		} else if group != last {
			cell, last = &k.Cells[k.at(group, bucket)], group
		}
		v := k.c.ValueAt(i)
		cell.Sum = block.AddValues(cell.Sum, v)
		cell.Rows++
		if v < cell.BestValue { // mostly; without a best it is 0
			continue
		}
		if v == cell.BestValue && cell.has {
			if t > cell.BestTime {
				continue
			}
			if t == cell.BestTime {
				smaller, err := k.smaller(Locator{k.number, uint32(k.c.First + i)}, cell.Best)
				if err != nil {
					return err
				}
				if !smaller {
					continue
				}
			}
		}
		cell.Best, cell.BestValue, cell.BestTime, cell.has = Locator{k.number, uint32(k.c.First + i)}, v, t, true
	}
	return nil
}

// smaller says whether the id at a is smaller than the one at b.
func (s *Scan) smaller(a, b Locator) (bool, error) {
	idA, err := s.ID(a)
	if err != nil {
		return false, err
	}
	idB, err := s.ID(b)
	return bytes.Compare(idA[:], idB[:]) < 0, err
}

// splits is best where a profile may have several rows: those that lie side by side
// are summed before they compete, those that do not are summed by id at the end.
func (k *kernel) splits(src block.Source, lo, hi int) error {
	for i := lo; i < hi; i++ {
		group := k.groupOf[k.c.SeriesAt(i)]
		if group < 0 {
			continue
		}
		t := k.c.TimeAt(i)
		bucket := k.Buckets.bucket(t)
		if bucket < 0 {
			continue
		}
		r := run{ord: k.c.OrdAt(i), used: true, row: uint32(k.c.First + i), value: k.c.ValueAt(i), time: t,
			cell: k.at(group, bucket), source: k.number}
		if err := k.add(src, int(group), r); err != nil {
			return err
		}
	}
	return nil
}

// add adds a row, which is a run of one.
func (s *Scan) add(src block.Source, group int, r run) error {
	cell := &s.Cells[r.cell]
	cell.Sum = block.AddValues(cell.Sum, r.value)
	cell.Rows++
	if !s.Exemplars {
		return nil
	}
	if s.sampled || s.shared != nil {
		id, err := src.ID(int(r.row))
		if err != nil {
			return err
		}
		if key := (block.Key{ID: id, TimeNS: r.time}); s.sampled || s.shared[key] {
			s.addLate(lateKey{r.cell, key}, r.value, Locator{r.source, r.row})
			return nil
		}
	}
	last := &s.run[group]
	if last.used && last.ord == r.ord && last.source == r.source {
		last.value = block.AddValues(last.value, r.value)
		return nil
	}
	err := s.compete(last)
	*last = r
	return err
}

func (s *Scan) addLate(at lateKey, value int64, row Locator) {
	if s.late == nil {
		s.late = map[lateKey]*late{}
	}
	l := s.late[at]
	if l == nil {
		l = &late{key: at.key}
		s.late[at] = l
	}
	l.value = block.AddValues(l.value, value)
	l.rows = append(l.rows, row)
}

// compete lets a run's profile be the best of its cell.
func (s *Scan) compete(r *run) error {
	if !r.used {
		return nil
	}
	r.used = false
	cell, here := &s.Cells[r.cell], Locator{r.source, r.row}
	if cell.has && r.value <= cell.BestValue {
		if r.value < cell.BestValue || r.time > cell.BestTime {
			return nil
		}
		if r.time == cell.BestTime {
			if smaller, err := s.smaller(here, cell.Best); err != nil || !smaller {
				return err
			}
		}
	}
	cell.Best, cell.BestValue, cell.BestTime, cell.has = here, r.value, r.time, true
	return nil
}

// Finish lets the profiles compete whose rows came from several places.
func (s *Scan) Finish() error {
	for at, l := range s.late {
		s.winners = append(s.winners, l)
		r := run{used: true, source: lateSource, row: uint32(len(s.winners) - 1), value: l.value, time: l.key.TimeNS, cell: at.cell}
		if err := s.compete(&r); err != nil {
			return err
		}
	}
	return nil
}

// SourceAt is the source in which a row lies; nil for a profile with rows in several.
func (s *Scan) SourceAt(at Locator) block.Source {
	if at.Source == lateSource {
		return nil
	}
	return s.sources[at.Source]
}

// ID is the id of the profile at a place.
func (s *Scan) ID(at Locator) (profiles.ID, error) {
	if at.Source == lateSource {
		return s.winners[at.Row].key.ID, nil
	}
	c, err := s.columns(at)
	if err != nil {
		return profiles.ID{}, err
	}
	if s.near.ids == nil {
		if s.near.ids, err = s.sources[at.Source].IDs(int(at.Row)); err != nil {
			return profiles.ID{}, In(s.sources[at.Source], err)
		}
	}
	return profiles.ID(s.near.ids[16*(int(at.Row)-c.First):]), nil
}

// Winner looks up the best profile of a cell. only says that it has one row, of that
// source and series; else Rows tells which.
func (s *Scan) Winner(cell *Cell) (id profiles.ID, source int, series uint32, only bool, err error) {
	at := cell.Best
	if id, err = s.ID(at); err != nil || at.Source == lateSource || !s.single[at.Source] {
		return id, 0, 0, false, err
	}
	c := &s.near.cols // where the id lay
	return id, int(at.Source), c.SeriesAt(int(at.Row) - c.First), true, nil
}

// Rows calls f with the series of every row of the profile at a place, a cell's
// Best, that is in the group.
func (s *Scan) Rows(at Locator, group int, f func(source int, series uint32)) error {
	if at.Source == lateSource {
		for _, row := range s.winners[at.Row].rows {
			c, err := s.columns(row)
			if err != nil {
				return err
			}
			f(int(row.Source), c.SeriesAt(int(row.Row)-c.First))
		}
		return nil
	}
	c, err := s.columns(at)
	if err != nil {
		return err
	}
	groupOf, rows := s.groups[at.Source], s.sources[at.Source].Rows()
	ord := c.OrdAt(int(at.Row) - c.First)
	for row := at; int(row.Row) < rows; row.Row++ {
		if c, err = s.columns(row); err != nil {
			return err
		}
		i := int(row.Row) - c.First
		if c.OrdAt(i) != ord {
			break
		}
		if ref := c.SeriesAt(i); groupOf[ref] == int32(group) {
			f(int(at.Source), ref)
		}
	}
	return nil
}
