package frontend

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	instruments "github.com/ferula-io/ferula/metrics"
)

// NewCache creates the cache called name from its YAML configuration. inert are the keys of the configuration that
// have no effect.
func NewCache(yaml, name string, logger *slog.Logger,
	set *instruments.Set) (c *cache.Cache, inert []string, err error) {
	return cache.FromConfig([]byte(yaml), cache.Options{Name: name, Merge: joinResponses},
		logger.With("component", "cache", "cache", name), set)
}

// joinResponses writes the union of two responses of adjacent ranges.
func joinResponses(_ context.Context, dst io.Writer, sources []cache.Source) error {
	parts := make([]splicePart, len(sources))
	for i, source := range sources {
		parts[i] = splicePart{Body: source, Cut: true, StartMS: source.StartMS, EndMS: source.EndMS}
	}
	_, err := newSplicing().Write(dst, parts)
	return err
}

const (
	// lookupsMax is the limit of intervals of one query that are looked up. If a query has more,
	// the length of its intervals is doubled until it has no more than this.
	lookupsMax = 100
	// lookupConcurrency is the limit of concurrent lookups of one query. With a remote
	// cache, a query then waits for a few round trips instead of one per interval.
	lookupConcurrency = 16
	// longerMax is the maximum factor by which a cached interval may be longer than the missing interval that it serves.
	// Most points of a longer one would be read and discarded.
	longerMax = 8
)

// plan splits a range query and looks its intervals up in the cache. It doubles the interval until at most
// Options.Parallelism parts are to be fetched. Intervals begin at multiples of their length. So every interval lies
// within one of double length, and can use the cache entry of that longer interval.
func (f *Frontend) plan(x *requestContext, q query, r stepRange, traits exprTraits, useCache bool) plan {
	since := f.opts.Now()
	cacheableMS := traits.LastImmutableStep(f.opts.Now().Add(-f.opts.MaxFreshness).UnixMilli(), q.lookback())
	interval := f.opts.Split.IntervalFor(r)
	intervals := splitAt(r, interval)
	if !useCache || cacheableMS == math.MinInt64 {
		if len(intervals) > f.opts.Parallelism {
			intervals = splitAt(r, widen(r, interval, f.opts.Parallelism))
		}
		p := plan{query: q}
		for _, part := range intervals {
			p.parts = append(p.parts, planPart{stepRange: part.stepRange})
		}
		return p
	}
	double := func() {
		if interval > math.MaxInt64/2 || f.opts.Parallelism == 1 {
			// Interval 0 means no split. Doubling alone may never end with one interval: a range that
			// crosses the epoch overlaps two intervals of any length.
			interval = 0
		}
		interval *= 2
		intervals = splitAt(r, interval)
	}
	for len(intervals) > lookupsMax {
		double()
	}
	l := lookups{f: f, query: q, whole: r, cacheableMS: cacheableMS}
	for !l.find(x.r.Context(), intervals, interval) {
		// With so many gaps, fetching longer intervals is cheaper. They include the cached pieces
		// between the gaps.
		l.release()
		if len(intervals) <= f.opts.Parallelism {
			break
		}
		double()
	}
	p, hits, fetches := l.assemble(intervals, interval)
	x.cache = cacheState(hits, fetches)
	x.stage("cache", since)
	return p
}

// lookups are the cached pieces of one query.
type lookups struct {
	f     *Frontend
	query query
	whole stepRange
	// cacheableMS is the last timestamp whose points may be cached: later ones may still change.
	cacheableMS int64
	pieces      []cachedPiece // sorted, without overlaps
}

// cachedPiece is the part of a query that an extent serves.
type cachedPiece struct {
	stepRange
	extent *cache.Extent
}

func (l *lookups) release() {
	for _, p := range l.pieces {
		p.extent.Release()
	}
	l.pieces = nil
}

// cacheKey returns the cache key of one interval of a query. It contains the step and
// the step offset, since only points of the same steps can be reused.
func cacheKey(key string, part intervalPart, interval time.Duration) string {
	return fmt.Sprintf("%s|%d|%d|%d|%d", key, part.StepMS, part.StepOffset(), interval.Milliseconds(), part.Index)
}

// find looks up all intervals, and adds the extents it finds to l.pieces. If nothing is found for an
// interval, find looks up the longer intervals that contain it. It returns false if there are more
// gaps than Options.Parallelism; the remaining intervals are then not looked up.
func (l *lookups) find(ctx context.Context, intervals []intervalPart, interval time.Duration) bool {
	tooMany := int64(l.f.opts.Parallelism)
	key := l.query.key()
	found := make([]*cache.Extent, len(intervals))
	var gaps atomic.Int64
	concurrently(len(intervals), func(i int) bool {
		found[i] = l.f.opts.Cache.Lookup(ctx, cacheKey(key, intervals[i], interval), intervals[i].StartMS, intervals[i].EndMS)
		return gaps.Add(int64(missing(intervals[i], found[i]))) <= tooMany
	})
	for i, e := range found {
		l.add(intervals[i].stepRange, e)
	}
	if gaps.Load() > tooMany {
		return false
	}
	longer := l.longer(intervals, found, interval)
	inLonger := make([]*cache.Extent, len(longer))
	concurrently(len(longer), func(i int) bool {
		inLonger[i] = l.f.opts.Cache.Lookup(ctx, cacheKey(key, longer[i].intervalPart, longer[i].interval), longer[i].StartMS,
			longer[i].EndMS)
		return true
	})
	for _, e := range inLonger {
		l.add(l.whole, e)
	}
	left := 0
	for _, part := range intervals {
		left += len(l.gaps(part.stepRange))
	}
	return left <= l.f.opts.Parallelism
}

// concurrently calls do for 0 to n-1, several at once, until one returns false.
func concurrently(n int, do func(i int) bool) {
	var ended atomic.Bool
	var group errgroup.Group
	group.SetLimit(lookupConcurrency)
	for i := 0; i < n && !ended.Load(); i++ {
		group.Go(func() error {
			if ended.Load() || !do(i) {
				ended.Store(true)
			}
			return nil
		})
	}
	_ = group.Wait() // no function fails
}

// missing returns the number of gaps that an extent leaves in an interval.
func missing(part intervalPart, e *cache.Extent) int {
	if e == nil {
		return 1
	}
	piece, ok := part.Clip(e.StartMS, e.EndMS)
	if !ok {
		return 1
	}
	return len(part.Without([]stepRange{piece}))
}

// longerPart is an interval longer than the query's. Its Range is the part of it that the query needs and no
// extent serves.
type longerPart struct {
	intervalPart
	interval time.Duration
}

// longer returns the longer intervals that contain the intervals without any extent. It omits
// intervals later than cacheableMS, which are never cached. Without a fixed interval
// (Split.Interval) the result is empty, because the intervals then depend on the range of the
// query.
func (l *lookups) longer(intervals []intervalPart, found []*cache.Extent,
	interval time.Duration) (longer []longerPart) {
	if l.f.opts.Split.Interval == 0 || interval == 0 {
		return nil
	}
	for factor := time.Duration(2); factor <= longerMax && interval <= math.MaxInt64/factor; factor *= 2 {
		from := len(longer)
		for i, part := range intervals {
			if found[i] != nil || part.StartMS > l.cacheableMS {
				continue
			}
			part = splitAt(part.stepRange, factor*interval)[0]
			if last := len(longer) - 1; last >= from && longer[last].Index == part.Index {
				longer[last].EndMS = part.EndMS
			} else {
				longer = append(longer, longerPart{part, factor * interval})
			}
		}
	}
	return longer
}

// add uses an extent from the first to the last missing step of a range. It releases the pieces
// that serve steps in between. If no step is missing, add releases the extent.
//
// For example, with a step of 1 m, the pieces have 10:00–11:00 and 12:00–13:00, and the extent has
// 10:00–14:00. The first missing step is 11:01 and the last is 14:00. So the new piece is
// 11:01–14:00, and the piece 12:00–13:00 is released.
func (l *lookups) add(within stepRange, e *cache.Extent) {
	if e == nil {
		return
	}
	within, ok := within.Clip(e.StartMS, e.EndMS)
	var gaps []stepRange
	if ok {
		gaps = l.gaps(within)
	}
	if len(gaps) == 0 {
		e.Release()
		return
	}
	within.StartMS, within.EndMS = gaps[0].StartMS, gaps[len(gaps)-1].EndMS
	l.pieces = slices.DeleteFunc(l.pieces, func(p cachedPiece) bool {
		_, inside := within.Clip(p.StartMS, p.EndMS)
		if inside {
			p.extent.Release()
		}
		return inside
	})
	at, _ := slices.BinarySearchFunc(l.pieces, within.StartMS, func(p cachedPiece, startMS int64) int {
		return cmp.Compare(p.StartMS, startMS)
	})
	l.pieces = slices.Insert(l.pieces, at, cachedPiece{within, e})
}

// gaps returns the parts of a range that no piece covers.
func (l *lookups) gaps(part stepRange) []stepRange {
	var pieces []stepRange
	for _, p := range l.pieces {
		if p.EndMS < part.StartMS || p.StartMS > part.EndMS {
			continue
		}
		if piece, ok := part.Clip(p.StartMS, p.EndMS); ok {
			pieces = append(pieces, piece)
		}
	}
	return part.Without(pieces)
}

// assemble returns the plan of cached pieces and gaps in order of time. hits and fetches count the
// pieces and the gaps. A fetched gap is cached up to cacheableMS.
func (l *lookups) assemble(intervals []intervalPart, interval time.Duration) (p plan, hits, fetches int) {
	p.query = l.query
	for _, piece := range l.pieces {
		p.parts = append(p.parts, planPart{stepRange: piece.stepRange, cached: piece.extent})
	}
	key := l.query.key()
	for _, part := range intervals {
		for _, gap := range l.gaps(part.stepRange) {
			fetched := planPart{stepRange: gap}
			if old, ok := gap.Clip(math.MinInt64, l.cacheableMS); ok {
				fetched.writer = l.f.opts.Cache.Writer(cacheKey(key, part, interval), old.StartMS, old.EndMS, gap.StepMS)
			}
			p.parts = append(p.parts, fetched)
		}
	}
	slices.SortFunc(p.parts, func(a, b planPart) int { return cmp.Compare(a.StartMS, b.StartMS) })
	return p, len(l.pieces), len(p.parts) - len(l.pieces)
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

// cacheable reports whether a response with these annotations is complete. Warnings of the engine
// ("PromQL ...") do not mean a partial response. Every other warning may, "No StoreAPIs matched for
// this query" included.
func cacheable(annotations partAnnotations) bool {
	return !annotations.Partial && !slices.ContainsFunc(annotations.Warnings, func(w string) bool {
		return !strings.HasPrefix(w, "PromQL ")
	})
}
