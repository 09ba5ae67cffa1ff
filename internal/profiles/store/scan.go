package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// Locator is the position of a row.
type Locator struct {
	Source uint32 // index into the scan's sources
	Row    uint32
}

// Accumulator sums the rows of one group in one step. If Rows is 0 the other fields are invalid.
type Accumulator struct {
	Sum      int64
	Rows     uint32
	exemplar uint32  // 0: none, and the fields below are invalid; otherwise ofRows, or ofOneRow + series
	Exemplar Locator // first row of the exemplar's profile
	// ExemplarValue is the sum of all rows of that profile in this accumulator.
	ExemplarValue int64
	ExemplarTime  int64
}

// Values of Accumulator.exemplar. A value v >= ofOneRow means that the exemplar's profile has
// one row, whose series is v-ofOneRow.
const (
	ofRows   = 1 // the profile may have several rows
	ofOneRow = 2
)

// Series returns the series of the exemplar's row. ok is false if there is no exemplar, or if the
// exemplar's profile may have several rows.
func (a *Accumulator) Series() (series uint32, ok bool) {
	return a.exemplar - ofOneRow, a.exemplar >= ofOneRow
}

// Steps are the steps of a scan: step i has the timestamps in (FromNS+i*StepNS,
// FromNS+(i+1)*StepNS].
type Steps struct {
	FromNS, StepNS int64
	Count          int
}

// Range returns the range of all steps, inclusive.
func (b *Steps) Range() (minNS, maxNS int64) { return b.FromNS + 1, b.FromNS + int64(b.Count)*b.StepNS }

// Scan sums rows by group and step. If Exemplars is set, it finds for each sum the profile
// with the greatest value. Sources are added one by one, each with the groups of its series.
type Scan struct {
	Steps           Steps
	Exemplars       bool
	AccumulatorsMax int           // limit of len(Accumulators) if there are several groups; 0: none
	Accumulators    []Accumulator // Steps.Count for each group that has a row; see Group

	offsets   []int32 // by group: index of its first accumulator; -1: no row yet
	overLimit bool    // AccumulatorsMax was exceeded

	sources        []block.Source
	groups         [][]int32                  // by source: the group of each series; -1: none
	singleRow      []bool                     // by source: no profile has two rows of a type
	caches         []columnCache              // by source
	pending        []pendingProfile           // by group: the profile whose rows are being summed
	splits         map[splitKey]*splitProfile // profiles whose rows are summed by ID; see splitProfile
	exemplarSplits []*splitProfile            // the values of splits as a list, set by Finish
	shared         map[block.Key]bool         // profiles with rows in several sources, set by AddShared
	// SourceSamples was called: all profiles are in splits, without the rows that SourceSamples skipped
	sampled bool
}

// columnCache caches the columns of a source that were read last. Exemplars of one source are
// mostly looked up in the order of their rows.
type columnCache struct {
	cols block.Columns
	ids  []byte // IDs of the same rows; nil: not read yet
}

// columns returns the columns that include a row.
func (s *Scan) columns(at Locator) (*block.Columns, error) {
	n := &s.caches[at.Source]
	if i := int(at.Row) - n.cols.First; i >= 0 && i < n.cols.N {
		return &n.cols, nil
	}
	c, err := s.sources[at.Source].Columns(int(at.Row))
	if err != nil {
		return nil, InSource(s.sources[at.Source], err)
	}
	*n = columnCache{cols: c}
	return &n.cols, nil
}

// CachedID returns the ID of the profile at a row. It returns nil unless the row is in the group
// whose IDs were last read from the source. CachedID is small enough to be inlined.
func (s *Scan) CachedID(at Locator) []byte {
	n := &s.caches[at.Source]
	if i := 16 * (int(at.Row) - n.cols.First); uint(i) < uint(len(n.ids)) {
		return n.ids[i : i+16]
	}
	return nil
}

// splitSource is the Source of a Locator into exemplarSplits.
const splitSource = ^uint32(0)

// pendingProfile is a profile whose adjacent rows are being summed.
type pendingProfile struct {
	profile     uint32
	used        bool // false: no profile is pending
	source      uint32
	row         uint32
	value       int64
	accumulator int
	time        int64
}

type splitKey struct {
	accumulator int
	key         block.Key
}

// splitProfile is the sum of a profile's rows in one accumulator. It is used for profiles whose rows
// may not be adjacent (AddShared), and for all profiles of SourceSamples. Adjacent rows of other
// profiles are summed in a pendingProfile.
type splitProfile struct {
	key   block.Key
	value int64
	rows  []Locator
}

// AddShared adds the profiles that may have rows in several sources. Their rows are summed by ID.
func (s *Scan) AddShared(sources []block.Source) {
	for _, src := range sources {
		for _, key := range src.Shared() {
			if s.shared == nil {
				s.shared = map[block.Key]bool{}
			}
			s.shared[key] = true
		}
	}
}

// Reset prepares a scan for another query. It reuses the memory.
func (s *Scan) Reset() {
	clear(s.sources)
	clear(s.groups)
	clear(s.caches)
	s.Accumulators, s.sources, s.groups, s.pending = s.Accumulators[:0], s.sources[:0], s.groups[:0], s.pending[:0]
	s.singleRow, s.caches, s.offsets, s.overLimit = s.singleRow[:0], s.caches[:0], s.offsets[:0], false
	s.splits, s.exemplarSplits, s.shared, s.sampled = nil, nil, nil, false
}

// Source scans one source. groupOf has the group of each series, or -1, and must not change until
// Reset. groups is the number of groups.
func (s *Scan) Source(ctx context.Context, src block.Source, groupOf []int32, groups int) error {
	number := s.begin(src, groupOf, groups)
	spans, err := src.Spans()
	if err != nil {
		return err
	}
	multiRow := slices.ContainsFunc(spans, func(span block.Span) bool { return span.MultiRow })
	s.singleRow = append(s.singleRow, !multiRow)
	s.pending = block.Zeros(s.pending, groups)
	err = walk(ctx, src, groupOf, func(span *block.Span, c block.Columns, lo, hi int) (err error) {
		if span.Sorted {
			lo, hi = s.clip(&c, lo, hi)
		}
		k := kernel{Scan: s, c: &c, number: number, groupOf: groupOf}
		if s.Exemplars && (span.MultiRow || s.shared != nil) {
			err = k.multiRow(src, lo, hi)
		} else {
			err = k.singleRow(lo, hi)
		}
		return cmp.Or(err, s.limitError())
	})
	if err != nil {
		return err
	}
	return s.offerPending()
}

// walk calls f with the rows of each span that may be in a group. These are rows lo to hi-1 of c.
func walk(ctx context.Context, src block.Source, groupOf []int32,
	f func(span *block.Span, c block.Columns, lo, hi int) error) error {
	spans, err := src.Spans()
	if err != nil {
		return err
	}
	for i := range spans {
		span := &spans[i]
		if !hasGroupedSeries(span, groupOf) {
			continue
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
				return fmt.Errorf("%w: %s: row %d is not in any column", profiles.ErrCorrupt, src.Name(), row)
			}
			if err := f(span, c, lo, hi); err != nil {
				return err
			}
			row = c.First + hi
		}
	}
	return nil
}

// begin adds a source whose series are in the given number of groups.
func (s *Scan) begin(src block.Source, groupOf []int32, groups int) uint32 {
	s.sources, s.groups, s.caches = append(s.sources, src), append(s.groups, groupOf), append(s.caches, columnCache{})
	for len(s.offsets) < groups {
		s.offsets = append(s.offsets, -1)
	}
	return uint32(len(s.sources) - 1)
}

// accumulator returns the index of a group's accumulator. The first row of a group
// allocates its accumulators.
func (s *Scan) accumulator(group int32, step int) int {
	if base := s.offsets[group]; base >= 0 {
		return int(base) + step
	}
	return s.allocate(group) + step
}

// allocate allocates a group's accumulators. Beyond AccumulatorsMax all groups share the
// accumulators of one group, and the scan of the source ends with ErrLimit.
func (s *Scan) allocate(group int32) int {
	base, n := len(s.Accumulators), s.Steps.Count
	if s.overLimit || s.AccumulatorsMax > 0 && base+n > s.AccumulatorsMax && base > 0 || base+n > math.MaxInt32 {
		s.overLimit = true
		return int(s.offsets[slices.IndexFunc(s.offsets, func(b int32) bool { return b >= 0 })])
	}
	s.Accumulators = slices.Grow(s.Accumulators, n)[:base+n]
	clear(s.Accumulators[base:])
	s.offsets[group] = int32(base)
	return base
}

// limitError returns ErrLimit after AccumulatorsMax was exceeded.
func (s *Scan) limitError() error {
	if !s.overLimit {
		return nil
	}
	return fmt.Errorf("%w: series of %d steps have more than %d points: make the step longer, or group by fewer labels",
		profiles.ErrLimit, s.Steps.Count, s.AccumulatorsMax)
}

// Group returns the accumulators of a group, one for each step; nil if it has no row.
func (s *Scan) Group(group int) []Accumulator {
	if group >= len(s.offsets) || s.offsets[group] < 0 {
		return nil
	}
	base := int(s.offsets[group])
	return s.Accumulators[base : base+s.Steps.Count]
}

// SourceError is an error of one source.
type SourceError struct {
	Source block.Source
	Err    error
}

// Error prefixes the source's name unless the error starts with it.
func (e *SourceError) Error() string {
	text, name := e.Err.Error(), e.Source.Name()
	if strings.HasPrefix(text, name) {
		return text
	}
	return name + ": " + text
}

// Unwrap returns the error without the source.
func (e *SourceError) Unwrap() error { return e.Err }

// InSource wraps an error with its source, unless it is a SourceError already.
func InSource(src block.Source, err error) error {
	var known *SourceError
	if err == nil || errors.As(err, &known) {
		return err
	}
	return &SourceError{src, err}
}

// hasGroupedSeries reports whether a span may have rows of a series that is in a group.
func hasGroupedSeries(span *block.Span, groupOf []int32) bool {
	return span.Series == nil || slices.ContainsFunc(span.Series, func(ref uint32) bool { return groupOf[ref] >= 0 })
}

func (s *Scan) offerPending() error {
	for i := range s.pending {
		if err := s.offer(&s.pending[i]); err != nil {
			return err
		}
	}
	return nil
}

// clip narrows a range of sorted rows to the rows within the steps.
func (s *Scan) clip(c *block.Columns, lo, hi int) (int, int) {
	first := func(after int64) int { // the first row with a greater time
		return lo + sort.Search(hi-lo, func(i int) bool { return c.TimeAt(lo+i) > after })
	}
	return first(s.Steps.FromNS), first(s.Steps.FromNS + int64(s.Steps.Count)*s.Steps.StepNS)
}

// kernel processes rows [lo, hi) of columns.
type kernel struct {
	*Scan
	c       *block.Columns
	number  uint32
	groupOf []int32
}

// Index returns the step of a timestamp; -1 if it is in none.
func (b *Steps) Index(t int64) int {
	if t <= b.FromNS {
		return -1
	}
	i := (t - b.FromNS - 1) / b.StepNS
	if i >= int64(b.Count) {
		return -1
	}
	return int(i)
}

// singleRow adds rows, each of a different profile, and updates the exemplars. Rows of one step mostly follow each other.
// singleRow divides by the length of a step only when a row is outside the step of the row before.
func (k *kernel) singleRow(lo, hi int) error {
	step, from, to := -1, int64(0), int64(0) // timestamps in (from, to] are in step
	var acc *Accumulator                     // of the row before, mostly also of this one
	last := int32(-1)                        // the group of acc
	exemplars := k.Exemplars
	for i := lo; i < hi; i++ {
		series := k.c.SeriesAt(i)
		group := k.groupOf[series]
		if group < 0 {
			continue
		}
		t := k.c.TimeAt(i)
		if t <= from || t > to {
			if step = k.Steps.Index(t); step < 0 {
				from, to = 0, 0
				continue
			}
			from = k.Steps.FromNS + int64(step)*k.Steps.StepNS
			to = from + k.Steps.StepNS
			acc, last = &k.Accumulators[k.accumulator(group, step)], group
		} else if group != last {
			acc, last = &k.Accumulators[k.accumulator(group, step)], group
		}
		v := k.c.ValueAt(i)
		acc.Sum = block.AddValues(acc.Sum, v)
		acc.Rows++
		if !exemplars || v < acc.ExemplarValue { // the usual case; without an exemplar the value is 0
			continue
		}
		if v == acc.ExemplarValue && acc.exemplar != 0 {
			if t > acc.ExemplarTime {
				continue
			}
			if t == acc.ExemplarTime {
				less, err := k.lessID(Locator{k.number, uint32(k.c.First + i)}, acc.Exemplar)
				if err != nil {
					return err
				}
				if !less {
					continue
				}
			}
		}
		acc.Exemplar, acc.ExemplarValue, acc.ExemplarTime, acc.exemplar = Locator{k.number, uint32(k.c.First + i)}, v, t,
			series+ofOneRow
	}
	return nil
}

// lessID reports whether the ID at a is less than the ID at b.
func (s *Scan) lessID(a, b Locator) (bool, error) {
	idA, err := s.ID(a)
	if err != nil {
		return false, err
	}
	idB, err := s.ID(b)
	return bytes.Compare(idA[:], idB[:]) < 0, err
}

// multiRow adds rows of profiles that may have several rows. Adjacent rows of a profile are
// summed before the profile is offered as exemplar. Rows of profiles in s.shared may not be adjacent:
// they are summed by ID, and Finish offers these profiles.
func (k *kernel) multiRow(src block.Source, lo, hi int) error {
	for i := lo; i < hi; i++ {
		group := k.groupOf[k.c.SeriesAt(i)]
		if group < 0 {
			continue
		}
		t := k.c.TimeAt(i)
		step := k.Steps.Index(t)
		if step < 0 {
			continue
		}
		r := pendingProfile{profile: k.c.ProfileAt(i), used: true, row: uint32(k.c.First + i), value: k.c.ValueAt(i), time: t,
			accumulator: k.accumulator(group, step), source: k.number}
		if err := k.add(src, int(group), r); err != nil {
			return err
		}
	}
	return nil
}

// add adds a row to its accumulator. With Exemplars it also adds the row to the value of its profile.
func (s *Scan) add(src block.Source, group int, r pendingProfile) error {
	acc := &s.Accumulators[r.accumulator]
	acc.Sum = block.AddValues(acc.Sum, r.value)
	acc.Rows++
	if !s.Exemplars {
		return nil
	}
	if s.sampled || s.shared != nil {
		id, err := src.ID(int(r.row))
		if err != nil {
			return err
		}
		if key := (block.Key{ID: id, TimeNS: r.time}); s.sampled || s.shared[key] {
			s.addSplit(splitKey{r.accumulator, key}, r.value, Locator{r.source, r.row})
			return nil
		}
	}
	last := &s.pending[group]
	if last.used && last.profile == r.profile && last.source == r.source {
		last.value = block.AddValues(last.value, r.value)
		return nil
	}
	err := s.offer(last)
	*last = r
	return err
}

func (s *Scan) addSplit(at splitKey, value int64, row Locator) {
	if s.splits == nil {
		s.splits = map[splitKey]*splitProfile{}
	}
	l := s.splits[at]
	if l == nil {
		l = &splitProfile{key: at.key}
		s.splits[at] = l
	}
	l.value = block.AddValues(l.value, value)
	l.rows = append(l.rows, row)
}

// offer makes the profile the exemplar of its accumulator if its value is greater than that
// of the present exemplar. Of equal values the earlier time wins, then the lesser ID.
func (s *Scan) offer(r *pendingProfile) error {
	if !r.used {
		return nil
	}
	r.used = false
	acc, here := &s.Accumulators[r.accumulator], Locator{r.source, r.row}
	if acc.exemplar != 0 && r.value <= acc.ExemplarValue {
		if r.value < acc.ExemplarValue || r.time > acc.ExemplarTime {
			return nil
		}
		if r.time == acc.ExemplarTime {
			if less, err := s.lessID(here, acc.Exemplar); err != nil || !less {
				return err
			}
		}
	}
	acc.Exemplar, acc.ExemplarValue, acc.ExemplarTime, acc.exemplar = here, r.value, r.time, ofRows
	return nil
}

// Finish offers the profiles whose rows were summed by ID as exemplars. It is called after all sources.
func (s *Scan) Finish() error {
	for at, l := range s.splits {
		s.exemplarSplits = append(s.exemplarSplits, l)
		r := pendingProfile{used: true, source: splitSource, row: uint32(len(s.exemplarSplits) - 1), value: l.value,
			time: l.key.TimeNS, accumulator: at.accumulator}
		if err := s.offer(&r); err != nil {
			return err
		}
	}
	return nil
}

// SourceAt returns the source of a row. For a profile whose rows were summed by ID it returns nil,
// because these rows may be in several sources.
func (s *Scan) SourceAt(at Locator) block.Source {
	if at.Source == splitSource {
		return nil
	}
	return s.sources[at.Source]
}

// ID returns the ID of the profile at a row.
func (s *Scan) ID(at Locator) (profiles.ID, error) {
	if at.Source == splitSource {
		return s.exemplarSplits[at.Row].key.ID, nil
	}
	if id := s.CachedID(at); id != nil {
		return profiles.ID(id), nil
	}
	c, err := s.columns(at)
	if err != nil {
		return profiles.ID{}, err
	}
	ids, err := s.sources[at.Source].IDs(int(at.Row))
	if err != nil {
		return profiles.ID{}, InSource(s.sources[at.Source], err)
	}
	s.caches[at.Source].ids = ids
	return profiles.ID(ids[16*(int(at.Row)-c.First):]), nil
}

// LookupExemplar looks up the exemplar of an accumulator. id is the ID of the exemplar's profile. If
// only is set, the profile has a single row of the type, and source and series belong to the row.
// Otherwise source and series are invalid, and Rows finds the rows of the profile.
func (s *Scan) LookupExemplar(acc *Accumulator) (id profiles.ID, source int, series uint32, only bool, err error) {
	at := acc.Exemplar
	if id, err = s.ID(at); err != nil || at.Source == splitSource || !s.singleRow[at.Source] {
		return id, 0, 0, false, err
	}
	c := &s.caches[at.Source].cols // the columns that have the ID
	return id, int(at.Source), c.SeriesAt(int(at.Row) - c.First), true, nil
}

// Rows calls f with the source and the series of every row of a profile in the group. at is
// the exemplar of an accumulator, which identifies the profile.
func (s *Scan) Rows(at Locator, group int, f func(source int, series uint32)) error {
	if at.Source == splitSource {
		for _, row := range s.exemplarSplits[at.Row].rows {
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
	profile := c.ProfileAt(int(at.Row) - c.First)
	for row := at; int(row.Row) < rows; row.Row++ {
		if c, err = s.columns(row); err != nil {
			return err
		}
		i := int(row.Row) - c.First
		if c.ProfileAt(i) != profile {
			break
		}
		if ref := c.SeriesAt(i); groupOf[ref] == int32(group) {
			f(int(at.Source), ref)
		}
	}
	return nil
}

// SourceSamples scans a source by its samples. counted reports for each stack whether its samples
// count. The value of a row is the sum of its samples that count. Rows without such samples are
// skipped.
func (s *Scan) SourceSamples(ctx context.Context, src block.Source, groupOf []int32, groups int, counted []bool) error {
	s.sampled, s.singleRow = true, append(s.singleRow, false)
	number := s.begin(src, groupOf, groups)
	minNS, maxNS := s.Steps.Range()
	rows, err := RowsOf(ctx, src, groupOf, minNS, maxNS)
	if err != nil {
		return err
	}
	s.pending = block.Zeros(s.pending, groups)
	err = src.Samples(ctx, rows, func(row int, stacks []uint32, values []int64) error {
		var value int64
		any := false
		for i, stack := range stacks {
			if counted[stack] {
				value, any = block.AddValues(value, values[i]), true
			}
		}
		if !any {
			return nil
		}
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		i := row - c.First
		group, t := groupOf[c.SeriesAt(i)], c.TimeAt(i)
		acc := s.accumulator(group, s.Steps.Index(t))
		if err := s.limitError(); err != nil {
			return err
		}
		return s.add(src, int(group), pendingProfile{profile: c.ProfileAt(i), used: true, source: number, row: uint32(row),
			value: value, time: t, accumulator: acc})
	})
	if err != nil {
		return err
	}
	return s.offerPending()
}

// RowsOf returns the rows from minNS to maxNS, inclusive, whose series is in a group, in
// ascending order.
func RowsOf(ctx context.Context, src block.Source, groupOf []int32, minNS, maxNS int64) (rows []int, err error) {
	err = walk(ctx, src, groupOf, func(_ *block.Span, c block.Columns, lo, hi int) error {
		for i := lo; i < hi; i++ {
			if t := c.TimeAt(i); t >= minNS && t <= maxNS && groupOf[c.SeriesAt(i)] >= 0 {
				rows = append(rows, c.First+i)
			}
		}
		return nil
	})
	return rows, err
}
