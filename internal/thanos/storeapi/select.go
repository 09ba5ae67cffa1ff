package storeapi

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func (s *Server) series(in *pb.SeriesRequest, stream grpc.ServerStream) error {
	r, err := seriesRequestFrom(in)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if err := checkRange(r.MinMS, r.MaxMS); err != nil {
		return err
	}
	r.SortBytesMax = s.opts.SortBytesMax
	steps := s.stepsFilter(r)
	if steps != nil && r.Steps.StepMS >= stepLeastMS {
		r.Summaries = stepsSummaries(r)
	}
	set := s.src.Series(ctx, r)
	defer func() {
		if err := set.Close(); err != nil {
			s.opts.Logger.Error("Closing the querier of a Series request failed", "err", err)
		}
	}()
	out := newBatchWriter(stream, in)
	defer out.free()
	err = s.send(ctx, r, steps, set, out)
	if errors.Is(err, series.ErrSortLimit) {
		err = fmt.Errorf("%w%s", err, s.opts.Flags.Of("SortBytesMax"))
	}
	return err
}

// ctxEvery is the number of series between two checks whether the call was cancelled.
const ctxEvery = 256

// send writes the series of a set, within the limits, and then its warnings.
func (s *Server) send(ctx context.Context, r SeriesRequest, steps *stepsFilter, set Stream, out *batchWriter) error {
	sharded := NewShardFilter(r.Shard)
	tally := limitCounter{limits: s.opts}
	for n := 0; set.Next(); n++ {
		if n%ctxEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		lset, chunks := set.Labels(), set.Chunks()
		if sharded != nil && !sharded.Matches(lset) {
			continue
		}
		if steps != nil {
			chunks = steps.cut(chunks)
		}
		if r.SkipChunks {
			chunks = nil
		} else if len(chunks) == 0 {
			continue
		}
		sent, reason, err := tally.add(lset, chunks, out)
		if sent == 0 && len(chunks) > 0 {
			continue
		}
		if err != nil {
			s.dropped.With(reason).Inc()
			return err
		}
		if steps != nil {
			chunks = steps.thin(chunks)
		}
		if err := out.add(lset, chunks); err != nil {
			return err
		}
		if r.Limit > 0 && tally.series >= r.Limit {
			break
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	if err := out.flush(); err != nil {
		return err
	}
	for _, warning := range set.Warnings() {
		if err := out.warn(warning.Error()); err != nil {
			return err
		}
	}
	return nil
}

// limitCounter counts the series, samples and bytes of one request.
type limitCounter struct {
	limits                 ServerOptions
	series, samples, bytes int64
}

// chunkSamples is the number of samples that each chunk counts for.
const chunkSamples = 120

// add counts a series, unless nothing of its chunks is sent. sent is the number of raw chunks and aggregates.
func (t *limitCounter) add(lset []byte, chunks []series.Chunk, out *batchWriter) (sent int64, reason string, err error) {
	bytes := int64(len(lset))
	for i := range chunks {
		out.parts = out.parts[:0]
		parts, err := out.partsOf(&chunks[i])
		if err != nil {
			return 1, "chunks", fmt.Errorf("series %s: %w", labelenc.Text(lset), err)
		}
		sent += int64(len(parts))
		for _, p := range parts {
			bytes += int64(len(p.Data))
		}
	}
	if sent == 0 && len(chunks) > 0 {
		return 0, "", nil
	}
	t.series++
	t.samples += chunkSamples * sent
	t.bytes += bytes
	switch {
	case t.limits.SeriesMax > 0 && t.series > t.limits.SeriesMax:
		return sent, "series", fmt.Errorf("%w: more than %d series%s", ErrLimit, t.limits.SeriesMax, t.limits.Flags.Of("SeriesMax"))
	case t.limits.SamplesMax > 0 && t.samples > t.limits.SamplesMax:
		return sent, "chunks", fmt.Errorf("%w: more than %d samples, each chunk counted for %d%s", ErrLimit, t.limits.SamplesMax,
			chunkSamples, t.limits.Flags.Of("SamplesMax"))
	case t.limits.BytesMax > 0 && t.bytes > t.limits.BytesMax:
		return sent, "bytes", fmt.Errorf("%w: more than %d bytes of labels and chunks", ErrLimit, t.limits.BytesMax)
	}
	return sent, "", nil
}

// ShardFilter matches the series of a shard by their hash. All implementations of StoreAPI
// use the same hash: xxhash64 of (name 0xFF value 0xFF)* over the chosen labels in order.
type ShardFilter struct {
	Shard
	buf []byte
}

// NewShardFilter returns a filter for one goroutine; nil for no shard.
func NewShardFilter(s *Shard) *ShardFilter {
	if s == nil {
		return nil
	}
	return &ShardFilter{Shard: *s}
}

// Matches reports whether a series with the encoded labels belongs to the shard.
func (s *ShardFilter) Matches(lset []byte) bool {
	s.buf = s.buf[:0]
	for len(lset) > 0 {
		name, value, rest, err := labelenc.Next(lset)
		if err != nil {
			return true // the sender or reader of the series returns the error
		}
		if slices.Contains(s.Labels, string(name)) == s.By {
			s.buf = append(append(s.buf, name...), 0xFF)
			s.buf = append(append(s.buf, value...), 0xFF)
		}
		lset = rest
	}
	return xxhash.Sum64(s.buf)%uint64(s.Total) == uint64(s.Index)
}
