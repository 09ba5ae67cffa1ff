package query

import (
	"cmp"
	"context"
	"fmt"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// traceSpans returns the spans of a source, nil if it has none. The spans of a block in a bucket are
// read whole, and their memory is leased for the query.
func traceSpans(view *store.View, src block.Source) (*block.TraceSpans, error) {
	if b, ok := src.(interface{ SpansBytes() int64 }); ok && isRemote(src) {
		if err := view.Lease.Take(b.SpansBytes()); err != nil {
			return nil, err
		}
	}
	return src.TraceSpans()
}

// spanSums adds the samples of the requested spans to sums, by stack. It counts only rows of the wanted series in
// the range and, unless rows is nil, only the rows in rows. any reports whether there were such samples.
func spanSums(ctx context.Context, src block.Source, spans *block.TraceSpans, req *profiles.MergeRequest,
	wanted []int32, rows map[int]bool, minNS, maxNS int64, sums []int64) (any bool, err error) {
	var stacks []uint32
	var values []int64
	n := 0
	err = spans.Find(req.Spans, req.Traces, func(span block.TraceSpan) error {
		if n++; n%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		row := int(span.Row)
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		if t := c.TimeAt(row - c.First); t < minNS || t > maxNS || wanted[c.SeriesAt(row-c.First)] < 0 || rows != nil &&
			!rows[row] {
			return nil
		}
		if stacks, values, err = spans.Samples(span, stacks[:0], values[:0]); err != nil {
			return err
		}
		for i, stack := range stacks {
			if int(stack) >= len(sums) {
				return fmt.Errorf("%w: span %016x has stack %d of %d", profiles.ErrCorrupt, span.ID, stack, len(sums))
			}
			sums[stack], any = block.AddValues(sums[stack], values[i]), true
		}
		return nil
	})
	return any, err
}

// mergeSpans does the work of mergeSource for a request of spans or traces: it sums the samples of the spans, not
// of whole rows.
func mergeSpans(ctx context.Context, view *store.View, src block.Source, req *profiles.MergeRequest, wanted []int32,
	minNS, maxNS int64, add func(s *block.Symbols, sums []int64) error) error {
	spans, err := traceSpans(view, src)
	if err != nil || spans == nil {
		return err
	}
	var rows map[int]bool
	if len(req.IDs) > 0 {
		list, err := rowsOf(ctx, src, req, wanted, minNS, maxNS)
		if err != nil {
			return err
		}
		rows = make(map[int]bool, len(list))
		for _, row := range list {
			rows[row] = true
		}
	}
	var parts []*block.Symbols
	stacks := 1
	for i := range src.Parts() {
		symbols, done, err := view.PartSymbols(src, i)
		if err != nil {
			return err
		}
		defer done()
		parts, stacks = append(parts, symbols), stacks+len(symbols.Parents)-1
	}
	sums := make([]int64, stacks)
	any, err := spanSums(ctx, src, spans, req, wanted, rows, minNS, maxNS, sums)
	if err != nil || !any {
		return err
	}
	for _, symbols := range parts {
		cutCallSite(symbols, req.CallSite, sums[:len(symbols.Parents)])
		if err := add(symbols, sums[:len(symbols.Parents)]); err != nil {
			return err
		}
		sums = sums[len(symbols.Parents)-1:]
		sums[0] = 0 // the root belongs to every part: its sum was added with the first part
	}
	return nil
}

// pointOf is one profile or span of a heat map.
type pointOf struct {
	group  int32  // in selection.groups
	source uint32 // in heatmap.from
	row    uint32 // in the source
	trace  uint32 // index of the trace in the source's spans
	timeNS int64
	value  int64  // sum of the profile's or the span's samples
	span   uint64 // 0: a profile
}

const pointBytes = 40

// less orders the points of the same group, step and bucket: the greatest value first, and of equal values the
// earliest. The first point is the exemplar of the bucket.
func (p *pointOf) less(q *pointOf) bool {
	return cmp.Or(cmp.Compare(q.value, p.value), cmp.Compare(p.timeNS, q.timeNS), cmp.Compare(p.span, q.span),
		cmp.Compare(p.source, q.source), cmp.Compare(p.row, q.row)) < 0
}

// pointKey is a point of a selection.
type pointKey struct{ group, step int32 }

// addSpans finds the exemplars of points among the spans of the source that was added last.
func (s *selection) addSpans(ctx context.Context, view *store.View, src block.Source, groupOf []int32) error {
	spans, err := traceSpans(view, src)
	s.spans = append(s.spans, spans)
	if err != nil || spans == nil {
		return err
	}
	if s.best == nil {
		s.best = map[pointKey]pointOf{}
	}
	minNS, maxNS := s.scan.Steps.Range()
	return spanPoints(ctx, src, spans, groupOf, minNS, maxNS, func(p pointOf) error {
		p.source = uint32(len(s.spans) - 1)
		at := pointKey{p.group, int32(s.scan.Steps.Index(p.timeNS))}
		if best, ok := s.best[at]; !ok || p.less(&best) {
			s.best[at] = p
		}
		return nil
	})
}

// spanExemplar returns the exemplar of a point. The point may have none.
func (s *selection) spanExemplar(at pointKey) (x profiles.Exemplar, err error) {
	p, ok := s.best[at]
	if !ok {
		return x, nil
	}
	row := store.Locator{Source: p.source, Row: p.row}
	if x.ID, err = s.scan.ID(row); err != nil {
		return x, err
	}
	src := s.scan.SourceAt(row)
	c, err := src.Columns(int(p.row))
	if err != nil {
		return x, store.InSource(src, err)
	}
	x.TimeNS, x.Value, x.Span = p.timeNS, p.value, uint32(len(s.found))
	x.Set = s.bases[p.source] + c.SeriesAt(int(p.row)-c.First)
	trace := s.spans[p.source].TraceID(block.TraceSpan{Trace: p.trace})
	s.found = append(s.found, profiles.Span{ID: p.span, Trace: trace})
	return x, nil
}

// spanPoints calls f with a point for each span of a source whose row is in the range and belongs to a series with a
// group.
func spanPoints(ctx context.Context, src block.Source, spans *block.TraceSpans, groupOf []int32, minNS, maxNS int64,
	f func(p pointOf) error) error {
	for i := range spans.Len() {
		if i%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		span := spans.Span(i)
		row := int(span.Row)
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		group, t := groupOf[c.SeriesAt(row-c.First)], c.TimeAt(row-c.First)
		if group < 0 || t < minNS || t > maxNS {
			continue
		}
		if err := f(pointOf{group: group, row: span.Row, trace: span.Trace, timeNS: t, value: span.Total,
			span: span.ID}); err != nil {
			return err
		}
	}
	return nil
}
