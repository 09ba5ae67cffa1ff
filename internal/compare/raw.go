package compare

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

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

// Err implements series.Set.
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
		if err := []*pacer{r.left, r.right}[i].wait(ctx); err != nil {
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
		switch {
		case right.current == nil:
			order = -1
		case left.current == nil:
			order = 1
		default:
			order = labels.Compare(left.current.Labels(), right.current.Labels())
		}
		switch {
		case order < 0:
			d.add(Difference{Kind: KindSeries, Series: left.current.Labels().String(), Left: "has it"})
			left.advance()
		case order > 0:
			d.add(Difference{Kind: KindSeries, Series: right.current.Labels().String(), Right: "has it"})
			right.advance()
		default:
			if err := d.samples(left.current, right.current, result.StartMS, result.EndMS); err != nil {
				return err
			}
			left.advance()
			right.advance()
		}
	}
	result.Left.add(left.bytes, left.took)
	result.Right.add(right.bytes, right.took)
	d.sameBytes = len(d.list) == 0 && left.bytes == right.bytes
	for _, s := range sides {
		if err := s.set.Err(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

// rawSample is one sample.
type rawSample struct {
	ms int64
	f  float64
	h  *histogram.FloatHistogram
}

func (s rawSample) text() string {
	if s.h != nil {
		return s.h.String()
	}
	return number(s.f)
}

// samples compares the samples of one series within a time range: servers may send more.
func (d *diff) samples(left, right storage.Series, minMS, maxMS int64) error {
	l, r := left.Iterator(nil), right.Iterator(nil)
	a, b := nextSample(l, minMS, maxMS), nextSample(r, minMS, maxMS)
	name := left.Labels().String()
	for a != nil || b != nil {
		switch {
		case b == nil || a != nil && a.ms < b.ms:
			d.add(Difference{Kind: KindSample, Series: name, TimeMS: a.ms, Left: a.text()})
			a = nextSample(l, minMS, maxMS)
			continue
		case a == nil || b.ms < a.ms:
			d.add(Difference{Kind: KindSample, Series: name, TimeMS: b.ms, Right: b.text()})
			b = nextSample(r, minMS, maxMS)
			continue
		case a.h != nil || b.h != nil:
			if a.h == nil || b.h == nil || !a.h.Equals(b.h) {
				d.add(Difference{Kind: KindHistogram, Series: name, TimeMS: a.ms, Left: a.text(), Right: b.text()})
			}
		case math.Float64bits(a.f) != math.Float64bits(b.f):
			d.add(Difference{Kind: KindValue, Series: name, TimeMS: a.ms, Left: a.text(), Right: b.text(),
				ULP: ulps(a.f, b.f)})
		}
		a, b = nextSample(l, minMS, maxMS), nextSample(r, minMS, maxMS)
	}
	return errors.Join(l.Err(), r.Err())
}

// nextSample returns the next sample within a time range, nil at the end.
func nextSample(it chunkenc.Iterator, minMS, maxMS int64) *rawSample {
	for {
		s := &rawSample{}
		switch it.Next() {
		case chunkenc.ValNone:
			return nil
		case chunkenc.ValFloat:
			s.ms, s.f = it.At()
		default:
			s.ms, s.h = it.AtFloatHistogram(nil)
		}
		if s.ms >= minMS && s.ms <= maxMS {
			return s
		}
	}
}
