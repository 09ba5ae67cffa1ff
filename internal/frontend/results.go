package frontend

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/splice"
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
	Keep(key string, startMS, endMS, stepMS int64) CacheWriter
}

// Extent is a kept answer. It is opened or released.
type Extent interface {
	Bounds() (startMS, endMS int64) // inclusive
	// Open gives the bytes of the answer once all of them are at hand: what the cache
	// loses afterwards does not matter. One that it has lost is an error, also where
	// the bytes do not come in time.
	Open(ctx context.Context) (io.ReadCloser, error)
	// Release lets go of an extent that is not opened.
	Release()
}

// Keeper takes the bytes of an answer while they pass; Commit makes them found,
// Abort drops them. One of the two ends it.
type CacheWriter interface {
	io.Writer
	Commit()
	Abort()
}

const (
	// lookupsMax bounds the look-ups for one query. A query of more intervals than
	// that is cut in longer ones at once.
	lookupsMax = 100
	// lookupsAtOnce of them are under way together, so that a remote cache costs a
	// few round trips and not one for every interval.
	lookupConcurrency = 16
)

// plan cuts a range query and looks for what is known of it. There are never more
// parts to fetch than may be open at once: the interval is widened until it fits.
func (f *Frontend) plan(x *requestContext, q query, r split.Range, shape split.Traits, useCache bool) plan {
	since := f.opts.Now()
	settledMS := shape.LastImmutableStep(f.opts.Now().Add(-f.opts.MaxFreshness).UnixMilli(), q.lookback())
	interval := f.opts.Split.IntervalFor(r)
	intervals := split.Plan(r, interval)
	widen := func() {
		interval = split.Widen(r, interval, f.opts.Parallelism)
		intervals = split.Plan(r, interval)
	}
	if !useCache || settledMS == math.MinInt64 {
		if len(intervals) > f.opts.Parallelism {
			widen()
		}
		p := plan{query: q}
		for _, part := range intervals {
			p.parts = append(p.parts, planPart{Range: part.Range})
		}
		return p
	}
	if len(intervals) > lookupsMax {
		widen()
	}
	found, ok := f.lookUp(x.r.Context(), q, intervals, interval)
	if !ok && len(intervals) > f.opts.Parallelism {
		releaseAll(found)
		widen()
		found, ok = f.lookUp(x.r.Context(), q, intervals, interval)
	}
	if !ok {
		// Many gaps between cached pieces: whole intervals are cheaper, and cached in
		// place of the pieces.
		releaseAll(found)
		for i := range found {
			found[i] = cachedInterval{key: cacheKey(q.key(), intervals[i], interval), gaps: []split.Range{intervals[i].Range}}
		}
	}
	p, hits, fetches := f.assemble(q, found, settledMS)
	x.cache = cacheState(hits, fetches)
	x.stage("cache", since)
	return p
}

// known is what the cache has of one interval of a query, and what it has not.
type cachedInterval struct {
	key     string
	pieces  []split.Range
	extents []Extent // one for each piece
	gaps    []split.Range
}

// releaseAll lets go of what was found and is not used.
func releaseAll(found []cachedInterval) {
	for _, k := range found {
		for _, e := range k.extents {
			e.Release()
		}
	}
}

// cacheKey names an interval of a query on its grid.
func cacheKey(key string, part split.Part, interval time.Duration) string {
	return fmt.Sprintf("%s|%d|%d|%d|%d", key, part.StepMS, part.StepOffset(), interval.Milliseconds(), part.Index)
}

// lookUp looks for all intervals, several at once. ok is false if there are more
// gaps than may be fetched; it gives up as soon as that is clear.
func (f *Frontend) lookUp(ctx context.Context, q query, intervals []split.Part, interval time.Duration) (found []cachedInterval, ok bool) {
	found = make([]cachedInterval, len(intervals))
	key := q.key()
	var next, gaps atomic.Int64
	work := func() {
		for gaps.Load() <= int64(f.opts.Parallelism) {
			i := int(next.Add(1)) - 1
			if i >= len(intervals) {
				return
			}
			found[i] = f.lookUpInterval(ctx, cacheKey(key, intervals[i], interval), intervals[i])
			gaps.Add(int64(len(found[i].gaps)))
		}
	}
	var workers sync.WaitGroup
	for range min(lookupConcurrency, len(intervals)) - 1 {
		workers.Go(work)
	}
	work()
	workers.Wait()
	return found, gaps.Load() <= int64(f.opts.Parallelism)
}

// known looks for one interval.
func (f *Frontend) lookUpInterval(ctx context.Context, key string, part split.Part) cachedInterval {
	k := cachedInterval{key: key}
	for _, e := range f.opts.Cache.Lookup(ctx, key, part.StartMS, part.EndMS) {
		from, to := e.Bounds()
		if piece, ok := part.Clip(from, to); ok {
			k.pieces, k.extents = append(k.pieces, piece), append(k.extents, e)
		} else {
			e.Release()
		}
	}
	k.gaps = part.Without(k.pieces)
	return k
}

// assemble makes the parts of what is known and what is not, in the order of time.
// What is fetched is kept as far as it has settled.
func (f *Frontend) assemble(q query, found []cachedInterval, settledMS int64) (p plan, hits, fetches int) {
	p.query = q
	for _, k := range found {
		from := len(p.parts)
		for i, piece := range k.pieces {
			p.parts = append(p.parts, planPart{Range: piece, cached: k.extents[i]})
		}
		for _, gap := range k.gaps {
			part := planPart{Range: gap}
			if settled, ok := gap.Clip(math.MinInt64, settledMS); ok {
				part.writer = f.opts.Cache.Keep(k.key, settled.StartMS, settled.EndMS, gap.StepMS)
			}
			p.parts = append(p.parts, part)
		}
		slices.SortFunc(p.parts[from:], func(a, b planPart) int { return cmp.Compare(a.StartMS, b.StartMS) })
		hits, fetches = hits+len(k.pieces), fetches+len(k.gaps)
	}
	return p, hits, fetches
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

func hasNoStore(h http.Header) bool {
	for _, value := range h.Values("Cache-Control") {
		if strings.Contains(strings.ToLower(value), "no-store") {
			return true
		}
	}
	return false
}

// keepable tells whether a response with these notes is complete. Warnings of the
// engine about the query itself will come again; anything else means that data was
// missing, also that no store was there to ask.
func cacheable(notes splice.Annotations) bool {
	return !notes.Partial && !slices.ContainsFunc(notes.Warnings, func(w string) bool { return !strings.HasPrefix(w, "PromQL ") })
}
