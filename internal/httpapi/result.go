package httpapi

import (
	"context"

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
		s.matrix(v, grid)
	case promql.Vector:
		s.vector(v)
	case promql.Scalar:
		s.b = promjson.AppendScalarResult(s.b, v.T, v.V)
	case promql.String:
		s.b = promjson.AppendStringResult(s.b, v.T, v.V)
	}
	if qs != nil {
		s.raw(`,"stats":`)
		s.stats(qs.Builtin())
	}
	if analysis != nil {
		analysis(s)
	}
	s.raw("}")
}

func (s *stream) matrix(m promql.Matrix, grid *promjson.Steps) {
	s.raw("[")
	for i := range m {
		s.comma(i)
		s.series(&m[i], grid)
		if !s.flushIfFull() {
			return
		}
	}
	s.raw("]")
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
		s.raw(`,"histograms":[`)
		s.histograms(series.Histograms)
		s.raw("]")
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

func (s *stream) histograms(points []promql.HPoint) {
	for i, p := range points {
		s.comma(i)
		s.raw("[")
		s.timestamp(p.T)
		s.raw(",")
		s.histogram(p.H)
		s.raw("]")
		if !s.flushIfFull() {
			return
		}
	}
}

func (s *stream) vector(v promql.Vector) {
	s.raw("[")
	for i := range v {
		s.comma(i)
		s.raw(`{"metric":`)
		s.labels(v[i].Metric)
		if v[i].H == nil {
			s.raw(`,"value":[`)
			s.timestamp(v[i].T)
			s.raw(",")
			s.quoted(v[i].F)
		} else {
			s.raw(`,"histogram":[`)
			s.timestamp(v[i].T)
			s.raw(",")
			s.histogram(v[i].H)
		}
		s.raw("]}")
		if !s.flushIfFull() {
			return
		}
	}
	s.raw("]")
}

// stats appends the timings of a query in seconds and its sample counts.
func (s *stream) stats(b stats.BuiltinStats) {
	stage := func(key string, seconds float64) { s.raw(key); s.number(seconds) }
	stage(`{"timings":{"evalTotalTime":`, b.Timings.EvalTotalTime)
	stage(`,"resultSortTime":`, b.Timings.ResultSortTime)
	stage(`,"queryPreparationTime":`, b.Timings.QueryPreparationTime)
	stage(`,"innerEvalTime":`, b.Timings.InnerEvalTime)
	stage(`,"execQueueTime":`, b.Timings.ExecQueueTime)
	stage(`,"execTotalTime":`, b.Timings.ExecTotalTime)
	s.raw("}")
	if b.Samples != nil {
		s.raw(`,"samples":{`)
		if steps := b.Samples.TotalQueryableSamplesPerStep; len(steps) > 0 {
			s.raw(`"totalQueryableSamplesPerStep":[`)
			for i, step := range steps {
				s.perStep(i, step.T, step.V)
			}
			s.raw("],")
		}
		s.raw(`"totalQueryableSamples":`)
		s.integer(b.Samples.TotalQueryableSamples)
		if steps := b.Samples.SamplesReadPerStep; len(steps) > 0 {
			s.raw(`,"samplesReadPerStep":[`)
			for i, step := range steps {
				s.perStep(i, step.T, step.V)
			}
			s.raw("]")
		}
		s.raw(`,"samplesRead":`)
		s.integer(b.Samples.SamplesRead)
		s.raw(`,"peakSamples":`)
		s.integer(int64(b.Samples.PeakSamples))
		s.raw("}")
	}
	s.raw("}")
}

func (s *stream) perStep(i int, ms, samples int64) {
	s.comma(i)
	s.raw("[")
	s.number(float64(ms) / 1000)
	s.raw(",")
	s.integer(samples)
	s.raw("]")
	s.flushIfFull()
}
