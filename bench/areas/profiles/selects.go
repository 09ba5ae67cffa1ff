package profiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/parquet-go/parquet-go"

	"github.com/ferula-io/ferula/bench/area"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// selectCase is one select of the bench's table.
type selectCase struct {
	what   string
	req    series.SeriesRequest
	counts bool // it is compared with the naive reader
}

func seriesRequest(minutes int64, groupBy ...string) series.SeriesRequest {
	// Unaligned: neither the start nor the end is a multiple of the step.
	start := int64(epochMS + hourMS - minutes*60_000 + 1_237)
	return series.SeriesRequest{
		Tenant: tenant, Type: cpuType, StartMS: start, EndMS: start + minutes*60_000, StepMS: max(1000, minutes*60_000/20), GroupBy: groupBy,
	}
}

func selectCases(rows, datasets int) []selectCase {
	name := fmt.Sprintf("%d rows, %d datasets", rows, datasets)
	all := []selectCase{{what: name + ", 60 min", req: seriesRequest(60), counts: true}}
	if rows <= 3000 {
		for _, minutes := range []int64{1, 5, 15} {
			all = append(all, selectCase{what: fmt.Sprintf("%s, %d min", name, minutes), req: seriesRequest(minutes)})
		}
	}
	all = append(all, selectCase{what: name + ", 60 min, by service", req: seriesRequest(60, series.LabelService)})
	return all
}

func selects(ctx context.Context, b *area.Bench) error {
	worst := 0.0
	for _, size := range [][2]int{{3000, 1}, {3000, 6}, {3000, 100}, {100_000, 1}, {100_000, 100}, {1_000_000, 1}, {1_000_000, 100}} {
		rows, datasets := size[0], size[1]
		if b.Short && rows > 100_000 {
			continue // it takes minutes to push
		}
		err := inStore("", store.Options{}, func(s *store.Store, dir string) error {
			pushed, err := pushFleet(ctx, s, setsOf(datasets, 1), rows, 1, 1)
			if err != nil {
				return err
			}
			files, err := blocksIn(dir, 1)
			if err != nil {
				return err
			}
			e := query.New(query.Options{}, s)
			for _, q := range selectCases(rows, datasets) {
				if err := measureSelect(ctx, b, e, files[0], q, pushed); err != nil {
					return fmt.Errorf("%s: %w", q.what, err)
				}
				if q.counts {
					worst = max(worst, b.Over(with, naive, "time: "+q.what))
				}
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("%d rows, %d datasets: %w", rows, datasets, err)
		}
	}
	b.Measure("profiles/select-vs-naive", worst)
	return nil
}

// slicesOfReading is the number of slices of which a reading is the median. A slice takes 4 ms or more, which another process or a
// collection of garbage can double.
const slicesOfReading = 45

// measureSides measures a request without and with exemplars, in turns: time and allocations.
func measureSides(ctx context.Context, b *area.Bench, e *query.Engine, req series.SeriesRequest, what string) error {
	run := func(exemplars bool) func() error {
		req := req
		req.Exemplars = exemplars
		return func() error {
			result, err := e.SelectSeries(ctx, &req)
			if err != nil {
				return err
			}
			result.Close()
			return nil
		}
	}
	sides := []struct {
		name string
		run  func() error
	}{{plain, run(false)}, {with, run(true)}}
	err := inTurns(b, what, slicesOfReading, func(b *area.Bench, round, turn int) error {
		for i := range sides {
			side := &sides[(i+turn)%len(sides)]
			t, err := times(side.run)
			if err != nil {
				return err
			}
			b.Add(round, side.name, "time: "+what, area.Seconds, t)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, side := range sides {
		allocs, bytes, err := memory(side.run)
		if err != nil {
			return err
		}
		b.Add(1, side.name, "allocations: "+what, area.Count, allocs)
		b.Add(1, side.name, "bytes allocated: "+what, area.Bytes, bytes)
	}
	return nil
}

func measureSelect(ctx context.Context, b *area.Bench, e *query.Engine, file string, q selectCase, pushed *fleet) error {
	if err := errors.Join(compareEngine(ctx, e, q.req, pushed), measureSides(ctx, b, e, q.req, q.what)); err != nil || !q.counts {
		return err
	}
	if err := compareNaive(file, &q.req, pushed); err != nil {
		return err
	}
	t, err := times(func() error { _, err := naiveSelect(file, &q.req); return err })
	b.Add(1, naive, "time: "+q.what, area.Seconds, t)
	b.Logf("%s: with exemplars %.3f of time", q.what, b.Over(with, plain, "time: "+q.what))
	return err
}

// naiveRow has the columns that the result needs.
type naiveRow struct {
	Series  uint32   `parquet:"series"`
	TimeNS  int64    `parquet:"time_ns"`
	Value   int64    `parquet:"value"`
	Profile uint32   `parquet:"profile"`
	ID      [16]byte `parquet:"id"`
}

type naiveCell struct {
	sum, best, time int64
	id              [16]byte
}

// naiveSelect computes the points and exemplars of one group by reading every row.
func naiveSelect(path string, req *series.SeriesRequest) (map[int64]*naiveCell, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	r := parquet.NewGenericReader[naiveRow](file)
	defer r.Close()
	cells := map[int64]*naiveCell{}
	rows := make([]naiveRow, 256)
	for {
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			from := (req.StartMS - req.StepMS) * 1e6
			step := req.StepMS * 1e6
			label := (row.TimeNS - from + step - 1) / step
			at := req.StartMS + (label-1)*req.StepMS
			if row.TimeNS <= from || at > req.EndMS {
				continue
			}
			c := cells[at]
			if c == nil {
				c = &naiveCell{best: -1}
				cells[at] = c
			}
			c.sum += row.Value
			if row.Value > c.best || (row.Value == c.best && (row.TimeNS < c.time || (row.TimeNS == c.time && string(row.ID[:]) < string(c.id[:])))) {
				c.best, c.time, c.id = row.Value, row.TimeNS, row.ID
			}
		}
		if err == io.EOF {
			return cells, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// compareNaive compares the result of the naive reader with the expected one.
func compareNaive(file string, req *series.SeriesRequest, pushed *fleet) error {
	got, err := naiveSelect(file, req)
	if err != nil {
		return err
	}
	want := pushed.expected(req)
	if len(got) == 0 || len(got) != len(want) {
		return fmt.Errorf("naive: %w: %d points of %d", area.ErrEmpty, len(got), len(want))
	}
	for key, c := range want {
		if n := got[key.timeMS]; n == nil || n.sum != c.sum || n.best != c.best || n.time != c.time || n.id != idOf(c.row) {
			return fmt.Errorf("naive: %w: at %d: %+v, want %+v", area.ErrUnequal, key.timeMS, n, c)
		}
	}
	return nil
}
