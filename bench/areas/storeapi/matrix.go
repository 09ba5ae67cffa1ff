package storeapi

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/streams"
)

// The matrix is that of the benchmark in Thanos' change that introduced batches: these sizes, time, bytes and allocations of
// each, and their geometric means. The batch of 64, which Thanos' querier requests, is in addition to it.
var (
	sampleCounts = []int{100, 240}
	seriesCounts = []int{100, 1000, 10_000, 100_000}
	batches      = []int{1, 10, thanosBatch, 100, 1000, 10_000}
)

const matrixTotal = 100_000 // total series of one reading of the matrix, over several streams

// matrixCell is a size of stream and batch.
type matrixCell struct{ samples, series, batch int }

func (c matrixCell) String() string {
	return fmt.Sprintf("%d samples x %d series, batch %d", c.samples, c.series, c.batch)
}

// matrixCells returns the cells in their order. A batch larger than the response is the same as one of its size.
func matrixCells() (cells []matrixCell) {
	for _, samples := range sampleCounts {
		for _, series := range seriesCounts {
			for _, batch := range batches {
				if batch <= series {
					cells = append(cells, matrixCell{samples, series, batch})
				}
			}
		}
	}
	return cells
}

// matrixFigures are the rows of a cell, per series.
var matrixFigures = []struct {
	what, unit string
	of         func(streams.Figures) int64
}{
	{"CPU: ", nanosecondsASeries, func(f streams.Figures) int64 { return f.CPUNanoseconds }},
	{"time: ", nanosecondsASeries, func(f streams.Figures) int64 { return f.WallNanoseconds }},
	{"allocations: ", area.Count, func(f streams.Figures) int64 { return f.Mallocs }},
	{"allocated: ", area.Bytes, func(f streams.Figures) int64 { return f.AllocBytes }},
}

// matrix takes a reading of every stream and batch size in each round. Both sides get the request that Thanos sends, so that
// the batch size applies.
func (b *bench) matrix(ctx context.Context) error {
	for round := 1; round <= b.env.Rounds; round++ {
		begun := time.Now()
		for _, c := range matrixCells() {
			if err := b.cell(ctx, round, c, ""); err != nil {
				return err
			}
		}
		for _, n := range sampleCounts {
			if err := b.cell(ctx, round, matrixCell{n, seriesCount, thanosBatch}, "snappy"); err != nil {
				return err
			}
		}
		b.env.Logf("matrix, round %d of %d: %s", round, b.env.Rounds, time.Since(begun).Round(time.Second))
	}
	b.geometricMeans()
	return nil
}

// cell takes the readings of a cell of all sides.
func (b *bench) cell(ctx context.Context, round int, c matrixCell, compression string) error {
	what := c.String()
	if compression != "" {
		what += ", " + compression
	}
	for _, s := range b.sides {
		if s.task.Noop {
			continue
		}
		f, err := s.worker.do(ctx, streams.Task{
			File: b.files[c.samples], Series: c.series, Batch: c.batch, Repeats: max(1, matrixTotal/c.series), Compression: compression,
		})
		if err != nil {
			return err
		}
		for _, figure := range matrixFigures {
			b.out.Recorder.Add(round, s.name, figure.what+what, figure.unit, float64(figure.of(f))/float64(c.series))
		}
	}
	return nil
}

// meanWhat ends the names of the rows of geometric means.
const meanWhat = "geometric mean of the matrix"

// geometricMeans records the geometric means of the medians of all cells.
func (b *bench) geometricMeans() {
	rec := &b.out.Recorder
	for _, figure := range matrixFigures {
		for _, s := range b.sides {
			if s.task.Noop {
				continue
			}
			sum, n := 0.0, 0
			for _, c := range matrixCells() {
				sum, n = sum+math.Log(rec.Median(s.name, figure.what+c.String())), n+1
			}
			rec.Add(0, s.name, figure.what+meanWhat, figure.unit, math.Exp(sum/float64(n)))
		}
	}
}

// batchBytes measures the bytes of plain responses for every batch size.
func (b *bench) batchBytes(ctx context.Context) error {
	for _, n := range sampleCounts {
		for _, batch := range batches {
			for _, s := range b.sides {
				if s.task.Noop {
					continue
				}
				f, err := s.worker.do(ctx, streams.Task{File: b.files[n], Series: seriesCount, Batch: batch, Check: true})
				if err != nil {
					return err
				}
				b.out.Recorder.Add(1, s.name, fmt.Sprintf("bytes of a series: %d samples, batch %d", n, batch), area.Bytes, float64(f.WireBytes)/seriesCount)
			}
		}
	}
	return nil
}
