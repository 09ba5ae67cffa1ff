package columns

import (
	"context"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/series/xor"
)

// openRaw opens the raw interface of a storage. It returns nil if the storage has no raw interface, or
// if the storage.Querier of the storage could return other samples, or series in another order.
func openRaw(ctx context.Context, from storage.Queryable, mint, maxt int64) (source, error) {
	s, ok := from.(series.Source)
	if !ok {
		return nil, nil
	}
	q, err := s.RawQuerier(ctx, mint, maxt)
	if err != nil {
		return nil, err
	}
	can := q.Capabilities()
	if !can.OwnOrder || can.Merging {
		return nil, q.Close()
	}
	return rawSource{q, can.Concurrent}, nil
}

// rawSource reads encoded chunks.
type rawSource struct {
	querier    series.Querier
	concurrent bool // several goroutines may select and read
}

func (s rawSource) close() error { return s.querier.Close() }

func (s rawSource) sel(ctx context.Context, of *selector, cover *cover) pointsSet {
	// Chunks need not be cut, because series.Within removes the samples outside the range.
	opts := series.SelectOptions{OwnOrder: true, Uncut: true, Summaries: cover.summaries()}
	return &rawSet{set: s.querier.Select(ctx, opts, of.vs.LabelMatchers...), builder: labels.NewScratchBuilder(16),
		lent: of.lent, cover: cover, read: series.ReadingOf(ctx)}
}

type rawSet struct {
	set     series.Set
	builder labels.ScratchBuilder
	ended   bool
	lent    bool // labels are valid until next
	cover   *cover
	read    *series.Reading
}

func (s *rawSet) next() bool {
	if s.ended = s.ended || !s.set.Next(); !s.ended {
		s.read.AddChunks(s.set.Chunks())
	}
	return !s.ended
}

func (s *rawSet) labels() (labels.Labels, error) {
	if metric, ok := s.decoded(); ok {
		return metric, nil
	}
	return metricOf(s.set.Labels(), &s.builder, s.lent)
}

// decoded returns the labels of the current series if the storage has them decoded.
func (s *rawSet) decoded() (_ labels.Labels, ok bool) {
	from, ok := s.set.(series.Decoded)
	if !ok {
		return labels.EmptyLabels(), false
	}
	return from.Metric()
}

// metricOf decodes labels. Lent labels belong to the builder and are valid until it is used again.
func metricOf(encoded []byte, builder *labels.ScratchBuilder, lent bool) (metric labels.Labels, err error) {
	if lent {
		err = labelenc.Overwrite(&metric, encoded, builder)
		return metric, err
	}
	return labelenc.Labels(encoded, builder)
}

func (s *rawSet) points(to *decoded, mint, maxt int64) error {
	return s.cover.decode(to, s.set.Chunks(), mint, maxt)
}

// decode appends the chunks that overlap mint to maxt, except those that no window touches. c may be nil.
func (c *cover) decode(to *decoded, chunks []series.Chunk, mint, maxt int64) error {
	for i := range chunks {
		chunk := &chunks[i]
		if chunk.MaxMS < mint || chunk.MinMS > maxt {
			continue
		}
		from := len(to.points)
		if from > pointsMax {
			return errNeedSamples
		}
		if done, err := c.add(to, chunk); err != nil {
			return err
		} else if done {
			continue
		}
		if chunk.Encoding != chunkenc.EncXOR || from > 0 && to.points[from-1].T >= chunk.MinMS {
			return errNeedSamples
		}
		until := int64(math.MaxInt64)
		if chunk.MaxMS > maxt {
			until = maxt
		}
		var err error
		if to.points, err = xor.AppendPointsUntil(to.points, chunk.Data, xor.Ascending, until); err != nil {
			return fmt.Errorf("%w: chunk from %d to %d: %w", series.ErrCorrupt, chunk.MinMS, chunk.MaxMS, err)
		}
		if from > 0 && len(to.points) > from && to.points[from].T <= to.points[from-1].T {
			return errNeedSamples
		}
	}
	return nil
}

func (*rawSet) series() storage.Series { return nil } // points never returns errHistograms

func (s *rawSet) err() error { return expanding(s.set.Err()) }

func (s *rawSet) warnings() annotations.Annotations { return s.set.Warnings() }
