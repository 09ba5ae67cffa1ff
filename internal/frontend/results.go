package frontend

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/splice"
	"github.com/ferula-io/ferula/internal/frontend/split"
)

// RangeCache stores responses by key and time range. cache.Cache implements it through
// an adapter of package role.
type RangeCache interface {
	// Lookup returns the cached extents of key that overlap [startMS, endMS], sorted and
	// without overlaps. A failure is a miss.
	Lookup(ctx context.Context, key string, startMS, endMS int64) []Extent
	// NewWriter returns a writer for the bytes of a response that covers at least
	// [startMS, endMS]. Every timestamp in it is startMS plus a multiple of stepMS.
	NewWriter(key string, startMS, endMS, stepMS int64) CacheWriter
}

// Extent is a cached response of a time range. Every Extent must be opened or released.
type Extent interface {
	Bounds() (startMS, endMS int64) // inclusive
	// Open returns the bytes of the response once all of them are available, so that a
	// later eviction does no harm. It returns an error if the cache has lost the extent or
	// times out.
	Open(ctx context.Context) (io.ReadCloser, error)
	// Release frees an extent that is not opened.
	Release()
}

// CacheWriter takes the bytes of a response while they are streamed. Commit adds them to
// the cache, Abort drops them. Exactly one of the two must be called.
type CacheWriter interface {
	io.Writer
	Commit()
	Abort()
}

const (
	// lookupsMax is the limit of cache lookups of one query. A query with more intervals
	// gets longer intervals first.
	lookupsMax = 100
	// lookupConcurrency is the limit of concurrent lookups of one query. With a remote
	// cache, a query then waits for a few round trips instead of one per interval.
	lookupConcurrency = 16
)

// plan splits a range query and looks its intervals up in the cache. It widens the
// interval until the parts to fetch are at most Options.Parallelism.
func (f *Frontend) plan(x *requestContext, q query, r split.Range, traits split.Traits, useCache bool) plan {
	since := f.opts.Now()
	cacheableMS := traits.LastImmutableStep(f.opts.Now().Add(-f.opts.MaxFreshness).UnixMilli(), q.lookback())
	interval := f.opts.Split.IntervalFor(r)
	intervals := split.Plan(r, interval)
	widen := func() {
		interval = split.Widen(r, interval, f.opts.Parallelism)
		intervals = split.Plan(r, interval)
	}
	if !useCache || cacheableMS == math.MinInt64 {
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
		// Many gaps between cached pieces: fetching whole intervals is cheaper, and they
		// replace the pieces in the cache.
		releaseAll(found)
		for i := range found {
			found[i] = cachedInterval{key: cacheKey(q.key(), intervals[i], interval), gaps: []split.Range{intervals[i].Range}}
		}
	}
	p, hits, fetches := f.assemble(q, found, cacheableMS)
	x.cache = cacheState(hits, fetches)
	x.stage("cache", since)
	return p
}

// cachedInterval is one interval of a query: its cached pieces and the gaps to fetch.
type cachedInterval struct {
	key     string
	pieces  []split.Range
	extents []Extent // one for each piece
	gaps    []split.Range
}

// releaseAll releases the extents of intervals that are not used.
func releaseAll(found []cachedInterval) {
	for _, k := range found {
		for _, e := range k.extents {
			e.Release()
		}
	}
}

// cacheKey returns the cache key of one interval of a query. It contains the step and
// the step offset, since only points of the same steps can be reused.
func cacheKey(key string, part split.Part, interval time.Duration) string {
	return fmt.Sprintf("%s|%d|%d|%d|%d", key, part.StepMS, part.StepOffset(), interval.Milliseconds(), part.Index)
}

// lookUp looks up all intervals, several at once. ok is false if there are more gaps
// than Options.Parallelism; it stops at the first gap beyond that.
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

// lookUpInterval looks up one interval.
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

// assemble returns the plan of cached pieces and gaps in order of time. A fetched gap is
// cached up to cacheableMS.
func (f *Frontend) assemble(q query, found []cachedInterval, cacheableMS int64) (p plan, hits, fetches int) {
	p.query = q
	for _, k := range found {
		from := len(p.parts)
		for i, piece := range k.pieces {
			p.parts = append(p.parts, planPart{Range: piece, cached: k.extents[i]})
		}
		for _, gap := range k.gaps {
			part := planPart{Range: gap}
			if old, ok := gap.Clip(math.MinInt64, cacheableMS); ok {
				part.writer = f.opts.Cache.NewWriter(k.key, old.StartMS, old.EndMS, gap.StepMS)
			}
			p.parts = append(p.parts, part)
		}
		slices.SortFunc(p.parts[from:], func(a, b planPart) int { return cmp.Compare(a.StartMS, b.StartMS) })
		hits, fetches = hits+len(k.pieces), fetches+len(k.gaps)
	}
	return p, hits, fetches
}

// cacheState returns the value of X-Ferula-Cache.
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

// cacheable reports whether a response with these annotations is complete. Warnings of
// the engine ("PromQL ...") depend on the query alone. Every other warning may mean a
// partial response, also "No StoreAPIs matched for this query".
func cacheable(annotations splice.Annotations) bool {
	return !annotations.Partial && !slices.ContainsFunc(annotations.Warnings, func(w string) bool { return !strings.HasPrefix(w, "PromQL ") })
}
