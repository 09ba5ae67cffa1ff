package series

import (
	"context"
	"sync/atomic"
)

// Reading counts what one query has read so far. It is safe for concurrent use; its methods accept nil.
type Reading struct{ series, samples, bytes atomic.Int64 }

type readingKey struct{}

// WithReading returns a context whose selections are counted.
func WithReading(ctx context.Context, r *Reading) context.Context {
	return context.WithValue(ctx, readingKey{}, r)
}

// ReadingOf returns the counts of a query; nil: the query is not counted.
func ReadingOf(ctx context.Context) *Reading {
	r, _ := ctx.Value(readingKey{}).(*Reading)
	return r
}

// Add counts one series with the samples and the bytes of its chunks.
func (r *Reading) Add(samples, bytes int) {
	if r == nil {
		return
	}
	r.series.Add(1)
	r.samples.Add(int64(samples))
	r.bytes.Add(int64(bytes))
}

// AddChunks counts one series with the samples and bytes of its chunks.
func (r *Reading) AddChunks(chunks []Chunk) {
	if r == nil {
		return
	}
	size := 0
	for _, c := range chunks {
		size += len(c.Data)
	}
	r.Add(SamplesOf(chunks), size)
}

// Counts returns the series, their samples, and the bytes of their chunks. A series of several selections counts in
// each of them.
func (r *Reading) Counts() (series, samples, bytes int64) {
	return r.series.Load(), r.samples.Load(), r.bytes.Load()
}
