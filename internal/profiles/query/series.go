package query

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"unsafe"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// stepMaxMS is ten years.
const stepMaxMS = 10 * 366 * 24 * 3600 * 1000

// selection is the memory of one SelectSeries or Heatmap. It is taken from the engine's pool, and returns to the
// pool when the result is closed.
type selection struct {
	engine  *Engine
	lease   *store.Lease // of the view's memory, held until the result is closed; nil while the view has it
	scan    store.Scan
	byKey   map[string]int32 // number of a group, by its labels
	bySet   map[*byte]int32  // number of the group of a label set, or -1, by its address, which sources share
	groups  []group
	order   []int32          // groups with points, in the order of the result
	groupBy []string         // sorted label names
	key     []byte           // labels of the current series' group
	keys    []byte           // labels of all groups, concatenated
	groupOf [][]int32        // by source and series: number of the group; -1: not selected
	series  [][]block.Series // of the scanned sources
	bases   []uint32         // by source: the number of the label set of its first series
	common  []byte           // buffer of commonSet

	results   []profiles.Series
	points    []profiles.Point
	exemplars []profiles.Exemplar
	sets      [][]byte // label sets of exemplars: those of series, and those made by commonSet

	spans []*block.TraceSpans  // of the scanned sources, if exemplars are spans
	best  map[pointKey]pointOf // the greatest spans
	found []profiles.Span      // the spans of exemplars
}

type group struct {
	from, to int   // the group's labels are keys[from:to]
	total    int64 // sum of the points, to apply the limit
	points   int   // number of points
}

// pooledBytes is the limit of the estimated memory of a selection in the pool.
const pooledBytes = 64 << 20

func (e *Engine) selection(groupBy []string) *selection {
	s, ok := e.pool.Get().(*selection)
	if !ok {
		s = &selection{engine: e, byKey: map[string]int32{}, bySet: map[*byte]int32{}}
	}
	s.groupBy = append(s.groupBy[:0], groupBy...)
	slices.Sort(s.groupBy)
	s.groupBy = slices.Compact(s.groupBy)
	return s
}

// release returns the selection to the engine's pool, unless it has more than pooledBytes.
func (s *selection) release() {
	if s.lease != nil {
		s.lease.Release()
		s.lease = nil
	}
	held := accumulatorBytes*cap(s.scan.Accumulators) + sumBytes*cap(s.points) + exemplarBytes*cap(s.exemplars) +
		setBytes*(len(s.bySet)+cap(s.sets)) // a cleared map keeps its memory
	clear(s.results)
	clear(s.sets)
	clear(s.series)
	s.reset()
	if held <= pooledBytes {
		s.engine.pool.Put(s)
	}
}

// reset clears the results of a scan and retains the memory.
func (s *selection) reset() {
	s.scan.Reset()
	clear(s.byKey)
	clear(s.bySet)
	s.groups, s.order, s.keys = s.groups[:0], s.order[:0], s.keys[:0]
	s.groupOf, s.series = s.groupOf[:0], s.series[:0]
	s.results, s.points, s.exemplars, s.sets = s.results[:0], s.points[:0], s.exemplars[:0], s.sets[:0]
	s.spans, s.best, s.found = nil, nil, nil
}

// steps checks a request's range and converts it to steps. It skips the steps before 1970, which
// have no data.
func (e *Engine) steps(req *profiles.SeriesRequest) (startMS int64, b store.Steps, err error) {
	switch {
	case req.StepMS < 1 || req.StepMS > stepMaxMS:
		return 0, b, fmt.Errorf("%w: step of %d ms is not between 1 ms and ten years", profiles.ErrBadRequest, req.StepMS)
	case req.StartMS > req.EndMS:
		return 0, b, fmt.Errorf("%w: start %d is after end %d", profiles.ErrBadRequest, req.StartMS, req.EndMS)
	case req.Limit < 0:
		return 0, b, fmt.Errorf("%w: limit %d is negative", profiles.ErrBadRequest, req.Limit)
	}
	start, end := req.StartMS, min(req.EndMS, farthestMS)
	if start < 0 {
		start = (start%req.StepMS + req.StepMS) % req.StepMS
	}
	if start > end {
		return start, b, nil
	}
	n := (end-start)/req.StepMS + 1
	if n > int64(e.pointsMax) {
		return 0, b, fmt.Errorf("%w: %d steps exceed the limit of %d: use a longer step", profiles.ErrLimit, n,
			e.pointsMax)
	}
	// Timestamps are whole milliseconds: a millisecond includes its last nanosecond.
	return start, store.Steps{FromNS: (start-req.StepMS)*1e6 + 999_999, StepNS: req.StepMS * 1e6, Count: int(n)}, nil
}

// SelectSeries returns values over time. The caller must close the result.
func (e *Engine) SelectSeries(ctx context.Context, req *profiles.SeriesRequest) (*profiles.SeriesResult, error) {
	startMS, steps, err := e.steps(req)
	if err != nil {
		return nil, err
	}
	if steps.Count == 0 {
		return profiles.NewSeriesResult(nil), nil
	}
	if req.Spans && len(req.CallSite) > 0 {
		return nil, fmt.Errorf("%w: exemplars that are spans cannot be limited to a call site", profiles.ErrBadRequest)
	}
	minNS, maxNS := steps.Range()
	ctx, view, done, err := e.view(ctx, req.Tenant, req.StartMS, req.EndMS, minNS, maxNS)
	if err != nil {
		return nil, err
	}
	defer done()
	s := e.selection(req.GroupBy)
	var held int64
	warnings, err := e.without(ctx, req.Tenant, view, func(p *pass) error {
		s.reset()
		s.scan.Steps, s.scan.Exemplars, s.scan.AccumulatorsMax = steps, req.Exemplars && !req.Spans, e.pointsMax
		err := p.each(ctx, func(src block.Source) (err error) {
			if err = s.source(ctx, view, src, req, p.sources); err == nil {
				held, err = view.Lease.Grow(held, s.bytes(req))
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := s.scan.Finish(); err != nil && !p.fault(err) {
			return err
		}
		return s.result(ctx, p, startMS, req)
	})
	if err != nil {
		s.release()
		return nil, err
	}
	s.lease = view.Detach()
	result := profiles.NewSeriesResult(s.release)
	result.Series, result.Warnings, result.GroupBy = s.results, warnings, s.groupBy
	if req.Exemplars {
		result.Sets, result.Spans = s.sets, s.found
	}
	return result, nil
}

// Memory in bytes of an accumulator, of a point, and of an exemplar with its label set.
const (
	accumulatorBytes = 40
	sumBytes         = 16
	exemplarBytes    = 40 + 24
	spanBytes        = 24 + 2*(pointBytes+8) // a map grows to twice its entries
	setBytes         = 2 * 16                // an entry of bySet, or of sets
)

// bytes estimates the memory of the accumulators, and of the points that will be built from them.
func (s *selection) bytes(req *profiles.SeriesRequest) int64 {
	each := int64(accumulatorBytes + sumBytes)
	if req.Exemplars {
		each += exemplarBytes
	}
	if req.Spans {
		each += spanBytes
	}
	return each*int64(len(s.scan.Accumulators)) + 64*int64(len(s.groups))
}

// source groups the series of a source and scans its rows.
func (s *selection) source(ctx context.Context, view *store.View, src block.Source, req *profiles.SeriesRequest,
	all []block.Source) error {
	if len(s.groupOf) == 0 {
		s.scan.AddShared(all)
	}
	series, t, err := seriesOf(src, req.Type)
	if err != nil {
		return err
	}
	groupOf, any := s.assign(series, t, req, len(all))
	if !any {
		return nil
	}
	if len(req.CallSite) == 0 {
		s.series = append(s.series, series)
		err := s.scan.Source(ctx, src, groupOf, len(s.groups))
		if err == nil && req.Exemplars && req.Spans {
			err = s.addSpans(ctx, view, src, groupOf)
		}
		return err
	}
	counted := []bool{false} // the root
	for i := range src.Parts() {
		symbols, done, err := view.PartSymbols(src, i)
		if err != nil {
			return err
		}
		counted = append(counted, countedStacks(symbols, req.CallSite)[1:]...)
		done()
	}
	s.series = append(s.series, series) // in the order in which the scan adds sources
	return s.scan.SourceSamples(ctx, src, groupOf, len(s.groups), counted)
}

// assign assigns groups to the matching series of a source. It reads the labels of a set once, however many sources
// have the set.
func (s *selection) assign(series []block.Series, t uint32, req *profiles.SeriesRequest, sources int) (groupOf []int32,
	any bool) {
	n := len(s.groupOf)
	if n < cap(s.groupOf) {
		s.groupOf = s.groupOf[:n+1]
		groupOf = s.groupOf[n][:0]
	} else {
		s.groupOf = append(s.groupOf, nil)
	}
	groupOf = slices.Grow(groupOf, len(series))[:len(series)]
	s.groupOf[n] = groupOf
	for i := range series {
		groupOf[i] = -1
		if series[i].Type != t {
			continue
		}
		set := unsafe.SliceData(series[i].Plain) //lint:ignore gosec the address is only compared
		g, known := s.bySet[set]
		if !known {
			if g = -1; matches(series[i].Labels, req.Matchers) {
				g = s.groupFor(series[i].Labels)
			}
			if sources > 1 {
				s.bySet[set] = g
			}
		}
		groupOf[i], any = g, any || g >= 0
	}
	if !any {
		s.groupOf = s.groupOf[:n]
	}
	return groupOf, any
}

// groupFor returns the number of the group of a label set, and adds the group if it is new.
func (s *selection) groupFor(set []byte) int32 {
	s.key = s.key[:0]
	for _, name := range s.groupBy {
		if v := labelenc.Value(set, name); len(v) > 0 {
			s.key = labelenc.AppendLabel(s.key, name, string(v))
		}
	}
	g, ok := s.byKey[string(s.key)]
	if !ok {
		g = int32(len(s.groups))
		s.byKey[string(s.key)] = g
		from := len(s.keys)
		s.keys = append(s.keys, s.key...)
		s.groups = append(s.groups, group{from: from, to: len(s.keys)})
	}
	return g
}

func (s *selection) labels(g int32) []byte {
	return s.keys[s.groups[g].from:s.groups[g].to:s.groups[g].to]
}

func (s *selection) result(ctx context.Context, p *pass, startMS int64, req *profiles.SeriesRequest) error {
	points := 0
	for g := range s.groups {
		for i := range s.scan.Group(g) {
			if c := &s.scan.Group(g)[i]; c.Rows > 0 {
				s.groups[g].points++
				s.groups[g].total = block.AddValues(s.groups[g].total, c.Sum)
			}
		}
		if s.groups[g].points > 0 {
			s.order = append(s.order, int32(g))
		}
	}
	s.order = s.greatest(s.order, req.Limit, func(g int32) int64 { return s.groups[g].total })
	for _, g := range s.order {
		points += s.groups[g].points
	}
	s.points = slices.Grow(s.points[:0], points)
	if req.Exemplars {
		s.exemplars = slices.Grow(s.exemplars[:0], points)
		s.numberSets()
		if req.Spans {
			s.found = append(s.found, profiles.Span{}) // number 0: none
		}
	}
	for _, g := range s.order {
		from, fromExemplar := len(s.points), len(s.exemplars)
		if req.Exemplars {
			if err := s.exemplarsOf(ctx, p, int(g), req.Spans); err != nil {
				return err
			}
		}
		s.pointsOf(int(g), startMS, req)
		s.results = append(s.results, profiles.Series{
			Labels: s.labels(g), Points: s.points[from:len(s.points):len(s.points)],
			Exemplars: s.exemplars[fromExemplar:len(s.exemplars):len(s.exemplars)],
		})
	}
	return nil
}

// greatest sorts groups by labels. If there is a limit, it keeps the groups with the greatest totals.
func (s *selection) greatest(groups []int32, limit int, total func(g int32) int64) []int32 {
	byLabels := func(a, b int32) int { return labelenc.Compare(s.labels(a), s.labels(b)) }
	if limit > 0 && len(groups) > limit {
		slices.SortFunc(groups, func(a, b int32) int {
			if c := cmp.Compare(total(b), total(a)); c != 0 {
				return c
			}
			return byLabels(a, b)
		})
		groups = groups[:limit]
	}
	slices.SortFunc(groups, byLabels)
	return groups
}

func (s *selection) pointsOf(g int, startMS int64, req *profiles.SeriesRequest) {
	accumulators := s.scan.Group(g)
	for i := range accumulators {
		c := &accumulators[i]
		if c.Rows == 0 {
			continue
		}
		point := profiles.Point{TimeMS: startMS + int64(i)*req.StepMS, Value: float64(c.Sum)}
		if req.Average {
			point.Value /= float64(c.Rows)
		}
		s.points = append(s.points, point)
	}
}

// exemplarsOf appends the exemplars of a group's points. If a source fails, some exemplars are missing. They are not
// returned, because another pass without that source follows.
func (s *selection) exemplarsOf(ctx context.Context, p *pass, g int, spans bool) error {
	accumulators := s.scan.Group(g)
	for i := range accumulators {
		c := &accumulators[i]
		if c.Rows == 0 {
			continue
		}
		if spans {
			x, err := s.spanExemplar(pointKey{int32(g), int32(i)})
			if err != nil && (ctx.Err() != nil || !p.fault(err)) {
				return err
			}
			s.exemplars = append(s.exemplars, x)
			continue
		}
		if ref, ok := c.Series(); ok {
			if id := s.scan.CachedID(c.Exemplar); id != nil {
				n := len(s.exemplars)
				s.exemplars = s.exemplars[:n+1]
				x := &s.exemplars[n]
				x.ID, x.TimeNS, x.Value, x.Set = profiles.ID(id), c.ExemplarTime, c.ExemplarValue, s.bases[c.Exemplar.Source]+ref
				continue
			}
		}
		if len(p.faults) > 0 && p.faulty(s.scan.SourceAt(c.Exemplar)) {
			continue
		}
		if err := s.exemplar(c, g); err != nil && (ctx.Err() != nil || !p.fault(err)) {
			return err
		}
	}
	return nil
}

func (s *selection) exemplar(c *store.Accumulator, g int) error {
	id, source, ref, only, err := s.scan.LookupExemplar(c)
	if err != nil {
		return err
	}
	var set uint32
	if only {
		set = s.bases[source] + ref
	} else if set, err = s.commonSet(c.Exemplar, g); err != nil {
		return err
	}
	s.exemplars = append(s.exemplars, profiles.Exemplar{ID: id, TimeNS: c.ExemplarTime, Value: c.ExemplarValue, Set: set})
	return nil
}

// commonSet returns the number of the label set of an exemplar whose profile has several rows in the group: the
// labels that all these rows have in common. If all rows have the same labels, this is the set of the first row.
// Otherwise commonSet adds a set to s.sets.
func (s *selection) commonSet(best store.Locator, g int) (number uint32, err error) {
	var set []byte
	rows, equal := 0, true
	err = s.scan.Rows(best, g, func(source int, ref uint32) {
		own := s.series[source][ref].Plain
		if rows == 0 {
			set, number = own, s.bases[source]+ref
		} else if !bytes.Equal(set, own) {
			s.common = appendCommon(s.common[:0], set, own)
			set, equal = bytes.Clone(s.common), false
		}
		rows++
	})
	if err == nil && !equal {
		number = uint32(len(s.sets))
		s.sets = append(s.sets, set)
	}
	return number, err
}

// numberSets sets s.sets and s.bases. The label set of series i of source n has the number s.bases[n]+i.
func (s *selection) numberSets() {
	s.bases = s.bases[:0]
	for _, series := range s.series {
		s.bases = append(s.bases, uint32(len(s.sets)))
		for i := range series {
			s.sets = append(s.sets, series[i].Plain)
		}
	}
}

func appendCommon(dst, a, b []byte) []byte {
	for len(a) > 0 {
		name, value, rest, err := labelenc.Next(a)
		if err != nil {
			return dst
		}
		if other := labelenc.Value(b, string(name)); other != nil && bytes.Equal(other, value) {
			dst = append(dst, a[:len(a)-len(rest)]...)
		}
		a = rest
	}
	return dst
}
