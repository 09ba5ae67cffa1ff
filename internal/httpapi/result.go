package httpapi

import (
	"context"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/stats"

	"github.com/ferula-io/ferula/promjson"
)

// evaluation holds the arguments of NewInstantQuery and NewRangeQuery.
type evaluation struct {
	ctx  context.Context
	from storage.Queryable
	opts promql.QueryOpts
}

// pointsPerPiece is the number of points that are appended between two checks of the
// buffer's size. A point has at most about 50 bytes.
const pointsPerPiece = 512

// result appends {"resultType":...,"result":...,"stats":...}.
func (s *stream) result(res *promql.Result, grid *promjson.Steps, qs stats.QueryStats, analysis func(*stream)) {
	s.field(`{"resultType":`, string(res.Value.Type()))
	s.raw(`,"result":`)
	switch v := res.Value.(type) {
	case promql.Matrix:
		each(s, v, func(series *promql.Series) { s.series(series, grid) })
	case promql.Vector:
		each(s, v, s.sample)
	case promql.Scalar:
		s.b = promjson.AppendScalarResult(s.b, v.T, v.V)
	case promql.String:
		s.b = promjson.AppendStringResult(s.b, v.T, v.V)
	}
	if qs != nil {
		s.raw(`,"stats":`)
		s.value(qs.Builtin())
	}
	if analysis != nil {
		analysis(s)
	}
	s.raw("}")
}

func (s *stream) series(series *promql.Series, grid *promjson.Steps) {
	s.raw(`{"metric":`)
	s.labels(series.Metric)
	if len(series.Floats) > 0 {
		s.raw(`,"values":[`)
		s.floats(series.Floats, grid)
		s.raw("]")
	}
	if len(series.Histograms) > 0 {
		s.raw(`,"histograms":`)
		each(s, series.Histograms, func(p *promql.HPoint) { s.histogramPoint(p.T, p.H) })
	}
	s.raw("}")
}

func (s *stream) floats(points []promql.FPoint, grid *promjson.Steps) {
	for done := 0; done < len(points); {
		s.comma(done)
		piece := points[done:min(done+pointsPerPiece, len(points))]
		s.b = promjson.AppendPoints(s.b, grid, piece)
		done += len(piece)
		if !s.flushIfFull() {
			return
		}
	}
}

// histogramPoint appends a timestamp and a histogram.
func (s *stream) histogramPoint(t int64, h *histogram.FloatHistogram) {
	s.raw("[")
	s.timestamp(t)
	s.raw(",")
	s.histogram(h)
	s.raw("]")
}

func (s *stream) sample(v *promql.Sample) {
	s.raw(`{"metric":`)
	s.labels(v.Metric)
	if v.H == nil {
		s.raw(`,"value":[`)
		s.timestamp(v.T)
		s.raw(",")
		s.quoted(v.F)
		s.raw("]}")
		return
	}
	s.raw(`,"histogram":`)
	s.histogramPoint(v.T, v.H)
	s.raw("}")
}
