package query

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"

	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// heatmapBuckets is the number of intervals of equal width between the smallest and the
// greatest value of a heat map.
const heatmapBuckets = 20

type heatmap struct {
	req    *profiles.HeatmapRequest
	steps  store.Steps
	view   *store.View
	sel    *selection // assigns series to groups
	points []pointOf
	held   int64                       // leased bytes of points
	labels [][]block.Series            // by source
	from   []block.Source              // sources, by pointOf.source
	spans  []*block.TraceSpans         // by source; unused for a heat map of profiles
	shared map[block.Key]map[int32]int // for profiles with rows in several sources, by group: the index in points
}

// Heatmap counts profiles, or spans, by time and value.
func (e *Engine) Heatmap(ctx context.Context, req *profiles.HeatmapRequest) (*profiles.Heatmap, error) {
	startMS, steps, err := e.steps(&req.SeriesRequest)
	if err != nil || steps.Count == 0 {
		return &profiles.Heatmap{}, err
	}
	minNS, maxNS := steps.Range()
	ctx, view, done, err := e.view(ctx, req.Tenant, req.StartMS, req.EndMS, minNS, maxNS)
	if err != nil {
		return nil, err
	}
	defer done()
	h := &heatmap{req: req, steps: steps, view: view, sel: e.selection(req.GroupBy)}
	defer h.sel.release()
	var result *profiles.Heatmap
	warnings, err := e.without(ctx, req.Tenant, view, func(p *pass) error {
		h.sel.reset()
		h.points, h.from, h.spans, h.labels = h.points[:0], nil, nil, nil
		h.addShared(p.sources)
		if err := p.each(ctx, func(src block.Source) error { return h.source(ctx, src, len(p.sources)) }); err != nil {
			return err
		}
		var err error
		if result, err = h.result(ctx, startMS); err != nil && !p.fault(err) {
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	result.Warnings = warnings
	return result, nil
}

func (h *heatmap) addShared(sources []block.Source) {
	h.shared = map[block.Key]map[int32]int{}
	for _, src := range sources {
		for _, key := range src.Shared() {
			h.shared[key] = map[int32]int{}
		}
	}
}

// source adds the points of a source. If it returns an error, some points may have been added: another pass without
// this source starts with no points.
func (h *heatmap) source(ctx context.Context, src block.Source, sources int) error {
	series, t, err := seriesOf(src, h.req.Type)
	if err != nil {
		return err
	}
	groupOf, any := h.sel.assign(series, t, &h.req.SeriesRequest, sources)
	if !any {
		return nil
	}
	minNS, maxNS := h.steps.Range()
	number := uint32(len(h.from))
	h.from, h.labels, h.spans = append(h.from, src), append(h.labels, series), append(h.spans, nil)
	if h.req.Spans {
		spans, err := traceSpans(h.view, src)
		if err != nil || spans == nil {
			return err
		}
		h.spans[number] = spans
		return spanPoints(ctx, src, spans, groupOf, minNS, maxNS, func(p pointOf) error {
			p.source = number
			return h.add(p)
		})
	}
	rows, err := store.RowsOf(ctx, src, groupOf, minNS, maxNS)
	if err != nil {
		return err
	}
	return h.rows(src, number, groupOf, rows)
}

// rows adds the profiles of rows. All rows of a profile in one group make one point. These rows are adjacent, unless
// the profile has rows in several sources.
func (h *heatmap) rows(src block.Source, number uint32, groupOf []int32, rows []int) error {
	latest := make([]latestPoint, len(h.sel.groups))
	for _, row := range rows {
		c, err := src.Columns(row)
		if err != nil {
			return err
		}
		at := row - c.First
		p := pointOf{group: groupOf[c.SeriesAt(at)], source: number, row: uint32(row), timeNS: c.TimeAt(at),
			value: c.ValueAt(at)}
		known := &latest[p.group]
		if !known.used || known.profile != c.ProfileAt(at) {
			*known = latestPoint{used: true, profile: c.ProfileAt(at), point: len(h.points)}
			if len(h.shared) > 0 {
				if err := h.find(src, row, &p, known); err != nil {
					return err
				}
			}
		}
		if known.point < len(h.points) {
			h.points[known.point].value = block.AddValues(h.points[known.point].value, p.value)
		} else if err := h.add(p); err != nil {
			return err
		}
	}
	return nil
}

// latestPoint is the point of the last profile in a group.
type latestPoint struct {
	used    bool
	profile uint32 // number in the source
	point   int    // index in heatmap.points
}

// find is called for the first row of a profile in a source and a group. If a previous source has rows of the same
// profile in the group, find sets known.point to their point. If not, and the profile has rows in several sources,
// it records known.point, the index of the point that is added next, for the following sources.
func (h *heatmap) find(src block.Source, row int, p *pointOf, known *latestPoint) error {
	id, err := src.ID(row)
	if err != nil {
		return err
	}
	groups, ok := h.shared[block.Key{ID: id, TimeNS: p.timeNS}]
	if point, again := groups[p.group]; again {
		known.point = point
	} else if ok {
		groups[p.group] = known.point
	}
	return nil
}

// add adds a point. Before the slice of points grows, it leases memory for the old slice and the new one, which is at
// most twice as large.
func (h *heatmap) add(p pointOf) error {
	if len(h.points) == cap(h.points) {
		var err error
		if h.held, err = h.view.Lease.Grow(h.held, 3*pointBytes*int64(max(1024, cap(h.points)))); err != nil {
			return err
		}
	}
	h.points = append(h.points, p)
	return nil
}

// result counts the points by group, step and bucket. A bucket is one of heatmapBuckets intervals of values. The points
// are sorted so that the points of a bucket are adjacent, and the first of them is the exemplar.
func (h *heatmap) result(ctx context.Context, startMS int64) (*profiles.Heatmap, error) {
	result := &profiles.Heatmap{}
	if len(h.points) == 0 {
		return result, nil
	}
	low, high := h.points[0].value, h.points[0].value
	totals := make([]int64, len(h.sel.groups))
	for i := range h.points {
		p := &h.points[i]
		low, high = min(low, p.value), max(high, p.value)
		totals[p.group] = block.AddValues(totals[p.group], p.value)
	}
	groups, kept := make([]int32, len(totals)), make([]int32, len(totals)) // kept: by group, its place by labels; -1: none
	for i := range groups {
		groups[i], kept[i] = int32(i), -1
	}
	for i, g := range h.sel.greatest(groups, h.req.Limit, func(g int32) int64 { return totals[g] }) {
		kept[g] = int32(i)
	}
	width := float64(high-low) / heatmapBuckets
	bucketOf := func(v int64) int {
		if width == 0 {
			return 0
		}
		return min(int(float64(v-low)/width), heatmapBuckets-1)
	}
	slices.SortFunc(h.points, func(a, b pointOf) int {
		if c := int(kept[a.group]) - int(kept[b.group]); c != 0 {
			return c
		}
		if c := h.steps.Index(a.timeNS) - h.steps.Index(b.timeNS); c != 0 {
			return c
		}
		if c := bucketOf(a.value) - bucketOf(b.value); c != 0 {
			return c
		}
		if a.less(&b) {
			return -1
		}
		return 1
	})
	var group int32 = -1
	step, bucket := -1, -1
	for i := range h.points {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p := &h.points[i]
		if kept[p.group] < 0 {
			continue
		}
		if p.group != group {
			group, step = p.group, -1
			result.Series = append(result.Series, profiles.HeatmapSeries{Labels: bytes.Clone(h.sel.labels(group))})
		}
		series := &result.Series[len(result.Series)-1]
		if at := h.steps.Index(p.timeNS); at != step {
			step, bucket = at, -1
			series.Slots = append(series.Slots, profiles.HeatmapSlot{TimeMS: startMS + int64(at)*h.req.StepMS})
		}
		slot := &series.Slots[len(series.Slots)-1]
		if at := bucketOf(p.value); at != bucket {
			bucket = at
			slot.YMin, slot.Counts = append(slot.YMin, float64(low)+float64(at)*width), append(slot.Counts, 0)
			if h.req.Exemplars {
				x, err := h.exemplar(p)
				if err != nil {
					return nil, err
				}
				slot.Exemplars = append(slot.Exemplars, x)
			}
		}
		slot.Counts[len(slot.Counts)-1]++
	}
	return result, nil
}

// exemplar returns the exemplar of a point, with profile ID, labels and span.
func (h *heatmap) exemplar(p *pointOf) (x profiles.HeatmapExemplar, err error) {
	src := h.from[p.source]
	c, err := src.Columns(int(p.row))
	if err == nil {
		x.ID, err = src.ID(int(p.row))
	}
	if err != nil {
		return x, store.InSource(src, fmt.Errorf("exemplar: %w", err))
	}
	x.TimeNS, x.Value, x.Span.ID = p.timeNS, p.value, p.span
	if p.span != 0 {
		x.Span.Trace = h.spans[p.source].TraceID(block.TraceSpan{Trace: p.trace})
	}
	plain := h.labels[p.source][c.SeriesAt(int(p.row)-c.First)].Plain
	x.Labels, err = labelenc.AppendWithout(nil, plain, h.sel.groupBy)
	return x, err
}
