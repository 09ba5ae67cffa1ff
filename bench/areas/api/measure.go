package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

// send sends a query. It returns an error if the response is not as long as the one that was compared.
func (b *bench) send(ctx context.Context, s *side, q query) (proc.Response, error) {
	a, err := s.server.Get(ctx, q.request(), io.Discard)
	if err != nil {
		return a, fmt.Errorf("%s: %s: %w", s.name, q.what, err)
	}
	if want := b.lengths[q.what]; a.Bytes == 0 || want > 0 && a.Bytes != want {
		return a, fmt.Errorf("%s: %s: %w: %d bytes, %d before", s.name, q.what, area.ErrUnequal, a.Bytes, want)
	}
	return a, nil
}

// measure measures CPU, times, write calls and allocations of a query once.
func (b *bench) measure(ctx context.Context, round int, s *side, q query) error {
	var first, elapsed time.Duration
	before, err := s.server.IO()
	if err != nil {
		return err
	}
	cpu, err := s.server.CPUDuring(ctx, func() error {
		for range q.repeats {
			a, err := b.send(ctx, s, q)
			if err != nil {
				return err
			}
			first, elapsed = first+a.FirstByte, elapsed+a.Elapsed
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := s.server.IO()
	if err != nil {
		return err
	}
	rec, n := &b.out.Recorder, float64(q.repeats)
	rec.Add(round, s.name, "CPU: "+q.what, area.Seconds, cpu.Seconds()/n)
	rec.Add(round, s.name, "first byte: "+q.what, area.Seconds, first.Seconds()/n)
	rec.Add(round, s.name, "last byte: "+q.what, area.Seconds, elapsed.Seconds()/n)
	if q.what != matrix.what {
		return nil
	}
	rec.Add(round, s.name, "write calls: "+q.what, area.Count, float64(after.Sub(before).Writes)/n)
	mallocs, err := s.server.MallocsDuring(ctx, func() error {
		_, err := b.send(ctx, s, q)
		return err
	})
	if err != nil {
		return err
	}
	rec.Add(round, s.name, "mallocs: "+q.what, area.Count, float64(mallocs))
	return nil
}

// memory starts a server, measures the growth of its memory during one query and during some more, and stops it.
func (b *bench) memory(ctx context.Context, round int, s *side) (err error) {
	if err := b.start(ctx, s); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	one, err := s.server.GrowthDuring(ctx, func() error {
		_, err := b.send(ctx, s, matrix)
		return err
	})
	if err != nil {
		return err
	}
	more, err := s.server.GrowthDuring(ctx, func() error {
		for range memoryQueries - 1 {
			if _, err := b.send(ctx, s, matrix); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	more.Idle, more.Peak = one.Idle, max(one.Peak, more.Peak)
	rec := &b.out.Recorder
	rec.Add(round, s.name, idleAnon, area.Bytes, float64(one.Idle))
	rec.Add(round, s.name, growth, area.Bytes, float64(one.Bytes()))
	rec.Add(round, s.name, growthMore, area.Bytes, float64(more.Bytes()))
	return nil
}

const (
	idleAnon   = "RssAnon, idle"
	growth     = "growth of RssAnon: " + "8 h, every point"
	growthMore = "growth of RssAnon: four times the same"
	jsonCPU    = "CPU of JSON: 8 h, every point less count()"
	gzipCPU    = "CPU of gzip: 8 h, every point with gzip less without"
	gzipBytes  = "bytes on the wire: 8 h, every point, gzip"
	jsonShort  = "CPU of JSON: 40 min, every point less count()"
)

// conclude computes the measures of the goals.
func (b *bench) conclude() {
	rec, out := &b.out.Recorder, b.out
	for _, s := range b.sides {
		for _, d := range []struct {
			what      string
			all, less query
		}{{jsonCPU, matrix, counted}, {jsonShort, shortMatrix, shortCount}, {gzipCPU, zipped, matrix}} {
			rec.Add(0, s.name, d.what, area.Seconds, rec.Median(s.name, "CPU: "+d.all.what)-rec.Median(s.name, "CPU: "+d.less.what))
		}
	}
	prometheus, ferula := b.sides[0].name, b.sides[1].name
	cpu := "CPU: " + matrix.what
	out.Measure("api/gzip-cpu", rec.Over(ferula, prometheus, gzipCPU), "CPU: "+zipped.what, cpu, gzipCPU, gzipBytes)
	out.Measure("api/query-range-anon", rec.Over(ferula, prometheus, growth), growth, idleAnon)
	out.Measure("api/query-range-cpu", rec.Over(ferula, prometheus, cpu), cpu)
	out.Notes = append(out.Notes,
		fmt.Sprintf("%d series x %d points of 15-digit floats; 8 h are read with a step of 3 min (every sample is decoded), 40 min with one of 15 s.", series, points),
		"CPU is that of the server process per query, over some queries in a row and the garbage collection that follows them.",
		"count() aggregates what it has evaluated, which both servers pay for with the same engine: what JSON costs is understated by as much on both sides, which flatters the smaller one.",
		"Growth is taken on a process that has just started: peak of RssAnon during its first query, less RssAnon after a collection before it.",
		fmt.Sprintf("The client drains the response. gzip is each server's own choice of level; the run fails if ferula sends more than 1.05 of Prometheus' bytes. \"Four times the same\" is the peak of %d queries in a row on the same process.", memoryQueries),
	)
}
