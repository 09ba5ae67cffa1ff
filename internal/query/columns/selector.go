package columns

import (
	"context"
	"errors"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
)

// selector selects series from the storage.
type selector struct {
	vs    *parser.VectorSelector
	hints *storage.SelectHints
}

// offset returns the distance of the selected samples from the steps, in ms.
func (s *selector) offset(ev *evaluation) int64 {
	offset := s.vs.OriginalOffset.Milliseconds()
	if s.vs.Timestamp != nil {
		offset += ev.start - *s.vs.Timestamp
	}
	return offset
}

// each calls do for each series of the selection, or histograms if the series has some. The
// points are valid until do returns.
func (s *selector) each(ev *evaluation, do func(r *row, points []promql.FPoint) error, histograms func(r *row, from storage.Series) error) error {
	set := ev.source.sel(ev.ctx, s)
	r := newRow(ev.steps)
	var points []promql.FPoint
	for set.next() {
		if err := contextError(ev.ctx); err != nil {
			return err
		}
		var err error
		if r.metric, err = set.labels(); err != nil {
			return err
		}
		r.clear()
		points, err = set.points(points[:0], s.hints.Start, s.hints.End)
		switch {
		case errors.Is(err, errHistograms):
			err = histograms(&r, set.series())
		case err == nil && len(points) > 0:
			err = do(&r, points)
		}
		if err != nil {
			return err
		}
	}
	if err := set.err(); err != nil {
		return err
	}
	ev.warnings.Merge(set.warnings())
	return nil
}

// contextError returns Prometheus' error for a query that ended before its result.
func contextError(ctx context.Context) error {
	switch err := ctx.Err(); err {
	case nil:
		return nil
	case context.Canceled:
		return promql.ErrQueryCanceled("expression evaluation")
	case context.DeadlineExceeded:
		return promql.ErrQueryTimeout("expression evaluation")
	default:
		return err
	}
}

// eval implements node: an instant selector.
func (s *selector) eval(ev *evaluation, sink func(*row) error) error {
	return s.instant(ev, false, func(r *row, n int) error {
		if err := ev.acct.add(n); err != nil {
			return err
		}
		return sink(r)
	})
}

// instant passes the rows of an instant selector to do, with the number of their samples.
// The values are those of the samples, or their timestamps in seconds.
func (s *selector) instant(ev *evaluation, timestamps bool, do func(r *row, n int) error) error {
	floats := func(r *row, points []promql.FPoint) error {
		n, next := 0, 0 // points[next] is the first one after the step
		at := ev.start - s.offset(ev)
		for i := range ev.steps {
			for next < len(points) && points[next].T <= at {
				next++
			}
			if next > 0 && points[next-1].T > at-ev.lookback && !value.IsStaleNaN(points[next-1].F) {
				r.values[i] = points[next-1].F
				if timestamps {
					r.values[i] = float64(points[next-1].T) / 1000
				}
				r.has.set(i)
				n++
			}
			at += ev.interval
		}
		if n == 0 {
			return nil
		}
		ev.countRead(r, n)
		return do(r, n)
	}
	return s.each(ev, floats, func(r *row, from storage.Series) error {
		if err := s.histograms(ev, r, from, timestamps); err != nil || r.has.empty() {
			return err
		}
		n := r.size()
		ev.countRead(r, n)
		return do(r, n)
	})
}

// countRead counts the samples of an instant selector, n in total.
func (ev *evaluation) countRead(r *row, n int) {
	if !ev.perStep {
		ev.samples.TotalSamples += int64(n)
		ev.samples.SamplesRead += int64(n)
		return
	}
	for i := range ev.steps {
		if r.has.get(i) {
			size := int64(1)
			if h := r.histogram(i); h != nil {
				size = int64(pointSize(h))
			}
			ev.samples.IncrementSamplesAtStep(i, size)
			ev.samples.IncrementSamplesReadAtStep(i, size)
		}
	}
}
