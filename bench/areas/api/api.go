// Package api measures the cost of range queries over HTTP, for the server: goals api/*.
//
// Prometheus and ferula serve run as processes on copies of the same blocks, with the same flags, and get the same queries
// in turn. The responses are compared byte for byte before anything is measured. The cost of JSON is the CPU of a query
// that returns every point, less the CPU of the same evaluation that returns one series.
package api

import (
	"context"
	"fmt"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/peer"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "api", About: "query_range of Prometheus and ferula serve, as processes", Sides: []string{"Prometheus", "ferula"}, Run: run,
}

const (
	series        = 10_000
	memoryQueries = 4    // queries to one process, to measure the memory growth after the first one
	gzipBytesMax  = 1.05 // of Prometheus' bytes
)

func matrix() area.Query   { return area.EightHours("8 h, every point", "bench_metric", series) }
func counted() area.Query  { return area.EightHours("8 h, count()", "count(bench_metric)", 1) }
func reported() area.Query { return area.EightHours("8 h, rate[5m]", "rate(bench_metric[5m])", series) }

func shortMatrix() area.Query { return short("40 min, every point", matrix()) }
func shortCount() area.Query  { return short("40 min, count()", counted()) }

func zipped() area.Query {
	q := matrix()
	q.What, q.Encoding = q.What+", gzip", "gzip"
	return q
}

var queries = []area.Query{matrix(), counted(), shortMatrix(), shortCount(), reported(), zipped()}

// short is a query of 40 min at the interval of the samples.
func short(what string, q area.Query) area.Query {
	q.What, q.StartMS, q.StepMS = what, q.StartMS+5*3600_000, 15_000
	return q
}

func run(ctx context.Context, b *area.Bench) error {
	sides, err := b.Pair(ctx, peer.Prometheus)
	if err != nil {
		return err
	}
	launch := b.TSDB(ctx, area.TSDB{Data: area.Floats(8)})
	if err := b.With(ctx, launch, func() error { return alive(ctx, b, sides) }, sides...); err != nil {
		return err
	}
	if err := b.InTurn("memory", sides, func(round int, s *area.Side) error { return memory(ctx, b, round, s, launch) }); err != nil {
		return err
	}
	conclude(b)
	return nil
}

// alive compares the responses, and takes the readings that do not require a new process.
func alive(ctx context.Context, b *area.Bench, sides []*area.Side) error {
	for _, q := range queries {
		if err := compare(ctx, b, q, sides); err != nil {
			return err
		}
	}
	return b.InTurn("CPU", sides, func(round int, s *area.Side) error {
		for _, q := range queries {
			w := area.Work{What: q.What, Repeats: 4, Mallocs: q.What == matrix().What, Send: func() (proc.Response, error) { return send(ctx, b, s, q) }}
			if err := b.Costs(ctx, round, s.Name, s.Server, w); err != nil {
				return err
			}
		}
		return nil
	})
}

// compare returns an error unless all sides return the same complete response.
func compare(ctx context.Context, b *area.Bench, q area.Query, sides []*area.Side) error {
	body, err := b.SameResponses(ctx, q.What, q.Request(), sides...)
	if err == nil {
		err = q.Check(body)
	}
	if over := b.Over(sides[1].Name, sides[0].Name, "bytes on the wire: "+q.What); err == nil && q.Encoding != "" && over > gzipBytesMax {
		err = fmt.Errorf("%s: ferula sends %.3f of Prometheus' bytes", q.What, over)
	}
	return err
}

// send sends a query. The response must be as long as the one that was compared.
func send(ctx context.Context, b *area.Bench, s *area.Side, q area.Query) (proc.Response, error) {
	return b.Drain(ctx, s, q.What, q.Request())
}

// memory measures the growth of a new process' memory during one query and during some more.
func memory(ctx context.Context, b *area.Bench, round int, s *area.Side, launch area.Launch) error {
	return b.With(ctx, launch, func() error {
		one, err := s.GrowthDuring(ctx, func() error { _, err := send(ctx, b, s, matrix()); return err })
		if err != nil {
			return err
		}
		more, err := s.GrowthDuring(ctx, func() error {
			for range memoryQueries - 1 {
				if _, err := send(ctx, b, s, matrix()); err != nil {
					return err
				}
			}
			return nil
		})
		b.Add(round, s.Name, area.Idle, area.Bytes, float64(one.Idle))
		b.Add(round, s.Name, growth, area.Bytes, float64(one.Bytes()))
		b.Add(round, s.Name, growthMore, area.Bytes, float64(max(one.Peak, more.Peak)-one.Idle))
		return err
	}, s)
}

const (
	growth     = area.GrowthOf + "8 h, every point"
	growthMore = area.GrowthOf + "four times the same"
	jsonCPU    = "CPU of JSON: 8 h, every point less count()"
	gzipCPU    = "CPU of gzip: 8 h, every point with gzip less without"
	gzipBytes  = "bytes on the wire: 8 h, every point, gzip"
	jsonShort  = "CPU of JSON: 40 min, every point less count()"
)

// conclude computes the measures of the goals.
func conclude(b *area.Bench) {
	for _, side := range b.Sides {
		for _, d := range []struct {
			what      string
			all, less area.Query
		}{{jsonCPU, matrix(), counted()}, {jsonShort, shortMatrix(), shortCount()}, {gzipCPU, zipped(), matrix()}} {
			b.Add(0, side, d.what, area.Seconds, b.Median(side, "CPU: "+d.all.What)-b.Median(side, "CPU: "+d.less.What))
		}
	}
	cpu := "CPU: " + matrix().What
	b.Measure("api/gzip-cpu", b.Over(b.Sides[1], b.Sides[0], gzipCPU), "CPU: "+zipped().What, cpu, gzipCPU, gzipBytes)
	b.Measure("api/query-range-anon", b.Over(b.Sides[1], b.Sides[0], growth), growth, area.Idle)
	b.Ratio("api/query-range-cpu", cpu)
	b.Note(
		fmt.Sprintf("%d series x %d points of 15-digit floats; 8 h are read with a step of 3 min (every sample is decoded), 40 min with one of 15 s.", series, matrix().Points),
		"CPU is that of the server process per query, over some queries in a row and the garbage collection that follows them.",
		"What JSON costs is not measured alike: Prometheus' count() evaluates what it aggregates, so that the difference is JSON alone. ferula's reads no values of chunks that have summaries, which it makes in the background: the difference has their decoding, too.",
		"Growth is taken on a process that has just started: peak of RssAnon during its first query, less RssAnon after a collection before it.",
		fmt.Sprintf("The client drains the response. gzip is each server's own choice of level; the run fails if ferula sends more than 1.05 of Prometheus' bytes. \"Four times the same\" is the peak of %d queries in a row on the same process.", memoryQueries),
	)
}
