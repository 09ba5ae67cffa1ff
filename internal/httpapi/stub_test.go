package httpapi_test

import (
	"context"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/stats"
)

// stubEngine returns the same result for every query.
type stubEngine struct {
	result *promql.Result
	opened atomic.Int64 // queries created and not closed
	closed atomic.Int64 // calls of Close
	atEnd  func()       // called by Close
}

var _ promql.QueryEngine = (*stubEngine)(nil)

func (e *stubEngine) NewInstantQuery(_ context.Context, _ storage.Queryable, _ promql.QueryOpts, query string, _ time.Time) (promql.Query, error) {
	e.opened.Add(1)
	return &stubQuery{e, query}, nil
}

func (e *stubEngine) NewRangeQuery(_ context.Context, _ storage.Queryable, _ promql.QueryOpts, query string, _, _ time.Time, _ time.Duration) (promql.Query, error) {
	e.opened.Add(1)
	return &stubQuery{e, query}, nil
}

type stubQuery struct {
	engine *stubEngine
	text   string
}

func (q *stubQuery) Exec(context.Context) *promql.Result { return q.engine.result }
func (q *stubQuery) Statement() parser.Statement         { return nil }
func (q *stubQuery) Cancel()                             {}
func (q *stubQuery) String() string                      { return q.text }

func (q *stubQuery) Stats() *stats.Statistics {
	return &stats.Statistics{Timers: stats.NewQueryTimers(), Samples: stats.NewQuerySamples(false)}
}

func (q *stubQuery) Close() {
	q.engine.closed.Add(1)
	if q.engine.opened.Add(-1) == 0 && q.engine.atEnd != nil {
		q.engine.atEnd()
	}
}

// gridStart and gridStep in ms are start and step of the matrices, like those of a client
// that requests an hour in steps of 15 s.
const (
	gridStart = int64(1_700_000_000_000)
	gridStep  = int64(15_000)
)

// matrix returns series with values of many magnitudes.
func matrix(seriesCount, points int) promql.Matrix {
	m := make(promql.Matrix, seriesCount)
	for i := range m {
		m[i].Metric = labels.FromStrings("__name__", "made_up", "i", strconv.Itoa(i), "odd", "<\"\\\n\u2028>")
		m[i].Floats = make([]promql.FPoint, points)
		for j := range m[i].Floats {
			m[i].Floats[j] = promql.FPoint{T: gridStart + int64(j)*gridStep, F: float64(i) + math.Sqrt(float64(j))*math.Pow(10, float64(j%9-4))}
		}
	}
	return m
}

// vectorOf returns the first point of each series.
func vectorOf(m promql.Matrix) promql.Vector {
	v := make(promql.Vector, len(m))
	for i := range m {
		v[i] = promql.Sample{Metric: m[i].Metric, T: m[i].Floats[0].T, F: m[i].Floats[0].F}
	}
	return v
}

func rangeRequest(points int) request {
	return request{path: "/query_range", form: form("query", "made_up", "start", strconv.FormatInt(gridStart/1000, 10),
		"end", strconv.FormatInt((gridStart+int64(points-1)*gridStep)/1000, 10), "step", "15")}
}
