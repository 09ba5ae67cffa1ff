package frontend

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/split"
)

// RangeCache keeps answers by what was asked and for which times. cache.Cache is
// behind it.
type RangeCache interface {
	// Lookup finds what is kept of [startMS, endMS] under key, sorted and not
	// overlapping. A failure is a miss.
	Lookup(ctx context.Context, key string, startMS, endMS int64) []Extent
	// Keep takes the bytes of an answer that holds at least [startMS, endMS]; all
	// that it holds is on the grid of startMS and stepMS.
	Keep(key string, startMS, endMS, stepMS int64) Keeper
}

// Extent is a kept answer.
type Extent interface {
	Bounds() (startMS, endMS int64) // inclusive
	Open(ctx context.Context) (io.ReadCloser, error)
}

// Keeper takes the bytes of an answer while they pass; Commit makes them found,
// Abort drops them. One of the two ends it.
type Keeper interface {
	io.Writer
	Commit()
	Abort()
}

// plan cuts a range query and looks for what is known of it. There are never more
// parts to fetch than may be open at once: the interval is widened until it fits.
func (f *Frontend) plan(x *exchange, q query, r split.Range, shape split.Shape, useCache bool) plan {
	since := f.opts.Now()
	interval := f.opts.Split.IntervalFor(r)
	settledMS := f.opts.Now().Add(-f.opts.MaxFreshness).UnixMilli()
	useCache = useCache && shape.LatestMS <= settledMS
	p := plan{query: q}
	hits, fetches := f.planParts(x, &p, split.Plan(r, interval), interval, useCache, settledMS-shape.AheadMS)
	if fetches > f.opts.Parallelism {
		interval = split.Widen(r, interval, f.opts.Parallelism)
		hits, fetches = f.planParts(x, &p, split.Plan(r, interval), interval, useCache, settledMS-shape.AheadMS)
	}
	if fetches > f.opts.Parallelism {
		// Many gaps between kept pieces: fewer whole intervals are cheaper.
		useCache = false
		hits, fetches = f.planParts(x, &p, split.Plan(r, interval), interval, useCache, 0)
	}
	if useCache {
		x.cache = cacheState(hits, fetches)
		x.stage("cache", since)
	}
	return p
}

// planParts fills p from the intervals, and counts what is known and what is not.
func (f *Frontend) planParts(x *exchange, p *plan, intervals []split.Part, interval time.Duration, useCache bool, settledMS int64) (hits, fetches int) {
	p.giveUp()
	for _, part := range intervals {
		if !useCache {
			p.parts = append(p.parts, planPart{Range: part.Range})
			fetches++
			continue
		}
		h, m := f.planPart(x, p, part, interval, settledMS)
		hits, fetches = hits+h, fetches+m
	}
	return hits, fetches
}

func cacheState(hits, fetches int) string {
	switch {
	case fetches == 0:
		return "hit"
	case hits > 0:
		return "partial"
	default:
		return "miss"
	}
}

// giveUp lets go of what a plan holds that will not be carried out.
func (p *plan) giveUp() {
	for _, part := range p.parts {
		if part.keep != nil {
			part.keep.Abort()
		}
	}
	p.parts = p.parts[:0]
}

// planPart adds one interval of a query: kept extents, and fetches for the gaps,
// which are kept as far as their moments have settled.
func (f *Frontend) planPart(x *exchange, p *plan, part split.Part, interval time.Duration, settledMS int64) (hits, fetches int) {
	key := fmt.Sprintf("%s|%d|%d|%d|%d", p.query.key(), part.StepMS, part.Phase(), interval.Milliseconds(), part.Index)
	var known []split.Range
	var extents []Extent
	for _, e := range f.opts.Cache.Lookup(x.r.Context(), key, part.StartMS, part.EndMS) {
		from, to := e.Bounds()
		if piece, ok := part.Clip(from, to); ok {
			known, extents = append(known, piece), append(extents, e)
		}
	}
	add := func(pp planPart) { p.parts = append(p.parts, pp) }
	for i, piece := range known {
		add(planPart{Range: piece, cached: extents[i]})
	}
	for _, gap := range part.Without(known) {
		pp := planPart{Range: gap}
		if settled, ok := gap.Clip(math.MinInt64, settledMS); ok {
			pp.keep = f.opts.Cache.Keep(key, settled.StartMS, settled.EndMS, gap.StepMS)
		}
		add(pp)
		fetches++
	}
	slices.SortFunc(p.parts, func(a, b planPart) int {
		return int(max(-1, min(1, a.StartMS-b.StartMS)))
	})
	return len(known), fetches
}

func hasNoStore(h http.Header) bool {
	for _, value := range h.Values("Cache-Control") {
		if strings.Contains(strings.ToLower(value), "no-store") {
			return true
		}
	}
	return false
}

// keepable tells whether an answer with these warnings is whole. Warnings of the
// engine about the query itself will come again, and so will the word that no
// store has such series; anything else means that data was missing.
func keepable(warnings []string) bool {
	for _, w := range warnings {
		if !strings.HasPrefix(w, "PromQL ") && !strings.HasPrefix(w, "No StoreAPIs matched") {
			return false
		}
	}
	return true
}
