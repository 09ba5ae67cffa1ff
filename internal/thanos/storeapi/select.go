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
	"github.com/ferula-io/ferula/internal/thanos/storepb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

func (s *Server) series(in *pb.SeriesRequest, stream grpc.ServerStream) error {
	r, err := seriesRequestFrom(in)
	if err != nil {
		return err
	}
	ctx := stream.Context()
	if s.slots != nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	set, err := s.open(ctx, r)
	if err != nil || set == nil {
		return err
	}
	defer func() {
		if err := set.Close(); err != nil {
			s.opts.Logger.Error("Closing the querier of a Series request failed", "err", err)
		}
	}()
	out := newBatchWriter(stream, in)
	defer out.free()
	err = s.send(ctx, r, set, out)
	if errors.Is(err, series.ErrSortLimit) {
		err = fmt.Errorf("%w%s", err, s.opts.Flags.Of("SortBytesMax"))
	}
	return err
}

// selection is a set with its querier.
type selection struct {
	series.Set
	series.Querier
}

// open selects the requested series. It returns nil if the matchers exclude the
// external labels.
func (s *Server) open(ctx context.Context, r SeriesRequest) (Stream, error) {
	if err := checkRange(r.MinMS, r.MaxMS); err != nil {
		return nil, err
	}
	if whole, ok := s.src.(SeriesSource); ok {
		return whole.Series(ctx, r), nil
	}
	external := s.src.ExternalLabels()
	matchers, found := series.MatchExternal(external, r.Matchers)
	if !found {
		return nil, nil
	}
	if len(matchers) == 0 {
		return nil, fmt.Errorf("%w: no matchers except on external labels", ErrBadRequest)
	}
	q, err := s.src.RawQuerier(ctx, r.MinMS, r.MaxMS)
	if err != nil {
		return nil, err
	}
	set := series.SelectReplacingLabels(ctx, q, series.SelectOptions{LabelsOnly: r.SkipChunks}, external,
		r.WithoutReplicaLabels, s.opts.SortBytesMax, matchers...)
	return selection{set, q}, nil
}

// ctxEvery is the number of series between two checks whether the call was cancelled.
const ctxEvery = 256

// send writes the series of a set, within the limits, and then its warnings.
func (s *Server) send(ctx context.Context, r SeriesRequest, set Stream, out *batchWriter) error {
	downsampled, _ := set.(interface{ AggrChunks() []AggrChunk })
	sharded := NewShardFilter(r.Shard)
	tally := limitCounter{limits: s.opts}
	var spans []storepb.Chunk
	steps := s.stepsFilter(r)
	for n := 0; set.Next(); n++ {
		if n%ctxEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		lset, chunks := set.Labels(), set.Chunks()
		if sharded != nil && !sharded.Matches(lset) {
			continue
		}
		if spans = spans[:0]; downsampled != nil {
			for _, c := range downsampled.AggrChunks() {
				spans = append(spans, storepb.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Aggr: c.Aggr, Encoding: uint8(c.Encoding),
					Data: c.Data})
			}
		}
		if r.SkipChunks {
			chunks, spans = nil, spans[:0]
		} else if len(chunks)+len(spans) == 0 {
			continue
		}
		if reason, err := tally.add(lset, chunks, spans); err != nil {
			s.dropped.With(reason).Inc()
			return err
		}
		if steps != nil {
			chunks = steps.thin(chunks, len(spans) == 0)
		}
		if err := out.add(lset, chunks, spans); err != nil {
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

func (t *limitCounter) add(lset []byte, chunks []series.Chunk, spans []storepb.Chunk) (reason string, err error) {
	t.series++
	t.samples += chunkSamples * int64(len(chunks)+len(spans))
	t.bytes += int64(len(lset))
	for i := range chunks {
		t.bytes += int64(len(chunks[i].Data))
	}
	for i := range spans {
		t.bytes += int64(len(spans[i].Data))
	}
	switch {
	case t.limits.SeriesMax > 0 && t.series > t.limits.SeriesMax:
		return "series", fmt.Errorf("%w: more than %d series%s", ErrLimit, t.limits.SeriesMax, t.limits.Flags.Of("SeriesMax"))
	case t.limits.SamplesMax > 0 && t.samples > t.limits.SamplesMax:
		return "chunks", fmt.Errorf("%w: more than %d samples, each chunk counted for %d%s", ErrLimit, t.limits.SamplesMax,
			chunkSamples, t.limits.Flags.Of("SamplesMax"))
	case t.limits.BytesMax > 0 && t.bytes > t.limits.BytesMax:
		return "bytes", fmt.Errorf("%w: more than %d bytes of labels and chunks", ErrLimit, t.limits.BytesMax)
	}
	return "", nil
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
