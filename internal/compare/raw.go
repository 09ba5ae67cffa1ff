package compare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"golang.org/x/time/rate"

	"github.com/ferula-io/ferula/internal/series"
)

// rawSide is the stream of series of one side.
type rawSide struct {
	series.Set
	name     string
	bytesMax int64
	bytes    int64
	took     time.Duration // waiting for the server
	limit    error
	set      storage.SeriesSet // decodes this
	current  storage.Series    // nil at the end
}

// Next implements series.Set.
func (s *rawSide) Next() bool {
	begin := time.Now()
	ok := s.limit == nil && s.Set.Next()
	s.took += time.Since(begin)
	if ok {
		s.bytes += int64(len(s.Labels()))
		for _, c := range s.Chunks() {
			s.bytes += int64(len(c.Data))
		}
		if s.bytes > s.bytesMax {
			s.limit = fmt.Errorf("%w of %d bytes: --max-response-bytes", ErrLimit, s.bytesMax)
			return false
		}
	}
	return ok
}

func (s *rawSide) Err() error { return errors.Join(s.limit, s.Set.Err()) }

func (s *rawSide) advance() {
	if s.current = nil; s.set.Next() {
		s.current = s.set.At()
	}
}

// compareRaw compares the samples that both sides send for a selector, series by series.
func (r *runner) compareRaw(ctx context.Context, result *Result, d *diff) (err error) {
	var sides [2]*rawSide
	for i, side := range []Side{r.Left, r.Right} {
		if err := []*rate.Limiter{r.left, r.right}[i].Wait(ctx); err != nil {
			return err
		}
		q, err := side.Raw.RawQuerier(ctx, result.StartMS, result.EndMS)
		if err != nil {
			return fmt.Errorf("%s: %w", side.Name, err)
		}
		defer func() { _ = q.Close() }() // its streams have ended, or their error is returned
		s := &rawSide{Set: q.Select(ctx, series.SelectOptions{}, result.matchers...), name: side.Name, bytesMax: r.BytesMax}
		s.set = storage.NewSeriesSetFromChunkSeriesSet(series.ToChunkSeriesSet(s))
		sides[i] = s
		s.advance()
	}
	left, right := sides[0], sides[1]
	for left.current != nil || right.current != nil {
		order := 0
		if left.current != nil && right.current != nil {
			order = labels.Compare(left.current.Labels(), right.current.Labels())
		}
		switch {
		case right.current == nil || order < 0:
			d.add(Difference{Kind: KindSeries, Series: left.current.Labels().String(), Left: "has it"})
			left.advance()
		case left.current == nil || order > 0:
			d.add(Difference{Kind: KindSeries, Series: right.current.Labels().String(), Right: "has it"})
			right.advance()
		default:
			a, err := samplesIn(left.current, result.StartMS, result.EndMS)
			b, rightErr := samplesIn(right.current, result.StartMS, result.EndMS)
			if err := errors.Join(err, rightErr); err != nil {
				return err
			}
			d.samples(left.current.Labels().String(), a, b)
			left.advance()
			right.advance()
		}
	}
	result.Left.add(left.bytes, left.took)
	result.Right.add(right.bytes, right.took)
	d.texts(KindWarning, warningsOf(left.set), warningsOf(right.set))
	d.sameBytes = len(d.list) == 0 && left.bytes == right.bytes
	for _, s := range sides {
		if err := s.set.Err(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func warningsOf(set storage.SeriesSet) (texts []string) {
	for _, err := range set.Warnings().AsErrors() {
		texts = append(texts, err.Error())
	}
	return texts
}

// samplesIn returns the samples of a series within a time range: servers may send more.
func samplesIn(from storage.Series, minMS, maxMS int64) (list []sample, err error) {
	it := from.Iterator(nil)
	for kind := it.Next(); kind != chunkenc.ValNone; kind = it.Next() {
		var s sample
		if kind == chunkenc.ValFloat {
			s.ms, s.f = it.At()
		} else {
			var h *histogram.FloatHistogram
			s.ms, h = it.AtFloatHistogram(nil)
			s.f, s.histogram = h.Sum, fmt.Sprintf("%s schema:%d zero_threshold:%g", h, h.Schema, h.ZeroThreshold)
		}
		if s.ms >= minMS && s.ms <= maxMS {
			list = append(list, s)
		}
	}
	return list, it.Err()
}
