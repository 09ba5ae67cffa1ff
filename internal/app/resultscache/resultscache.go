// Package resultscache implements the query frontend's results cache on a cache backend. It
// joins the extents of a cached response by splicing them.
package resultscache

import (
	"context"
	"io"
	"log/slog"

	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/splice"
	"github.com/ferula-io/ferula/metrics"
)

// Cache implements frontend.RangeCache on a cache.
type Cache struct{ *cache.Cache }

var _ frontend.RangeCache = Cache{}

// New creates the cache called name from its YAML configuration. inert are the keys of the
// configuration that have no effect.
func New(yaml, name string, logger *slog.Logger, set *metrics.Set) (_ Cache, inert []string, err error) {
	c, inert, err := cache.FromConfig([]byte(yaml), cache.Options{Name: name, Merge: mergeExtents},
		logger.With("component", "cache", "cache", name), set)
	return Cache{c}, inert, err
}

// Lookup implements frontend.RangeCache.
func (c Cache) Lookup(ctx context.Context, key string, startMS, endMS int64) []frontend.Extent {
	found := c.Cache.Lookup(ctx, key, startMS, endMS)
	extents := make([]frontend.Extent, len(found))
	for i, e := range found {
		extents[i] = e
	}
	return extents
}

// NewWriter implements frontend.RangeCache.
func (c Cache) NewWriter(key string, startMS, endMS, stepMS int64) frontend.CacheWriter {
	return c.Cache.Writer(key, startMS, endMS, stepMS)
}

// mergeExtents joins adjacent cached extents into one response. The cache calls it when
// it compacts extents.
func mergeExtents(_ context.Context, dst io.Writer, sources []cache.Source) error {
	parts := make([]splice.Part, len(sources))
	for i, source := range sources {
		parts[i] = splice.Part{Body: source, Cut: true, StartMS: source.StartMS, EndMS: source.EndMS}
	}
	_, err := splice.New(splice.Options{}).Write(dst, parts)
	return err
}
