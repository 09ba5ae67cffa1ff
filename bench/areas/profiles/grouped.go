package profiles

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/codec/labelenc"
	query "github.com/ferula-io/ferula/internal/query/profile"
	series "github.com/ferula-io/ferula/internal/series/profiles"

	store "github.com/ferula-io/ferula/internal/store/profile"
)

// What groups are measured over: a fleet whose profiles of an hour are in blocks and, the latest, in the head.
const (
	fleetServices = 100
	fleetPods     = 20 // a service
	fleetBlocks   = 6
	groupedStepMS = 60_000
)

var groupedGoals = []struct {
	rows int
	goal string
}{{3000, "profiles/grouped-3k"}, {100_000, "profiles/grouped-100k"}, {1_000_000, "profiles/grouped-1m"}}

// fleetRow is a pushed profile as the expected result is computed from it.
type fleetRow struct {
	service int
	timeNS  int64
	value   int64
}

// grouped measures selects by service, without exemplars and with them.
func grouped(ctx context.Context, env area.Env, out *area.Outcome) error {
	allocs, from := math.NaN(), []string{}
	for _, g := range groupedGoals {
		worst, whats, err := groupedOf(ctx, env, out, g.rows)
		if err != nil {
			return fmt.Errorf("%d rows by service: %w", g.rows, err)
		}
		times := make([]string, len(whats))
		for i, what := range whats {
			times[i] = "time: " + what
			allocs, from = worse(allocs, out.Recorder.Over(with, plain, "allocations: "+what)), append(from, "allocations: "+what)
		}
		out.Measure(g.goal, worst, times...)
	}
	out.Measure("profiles/exemplars-allocs", allocs, from...)
	out.Notes = append(out.Notes, fmt.Sprintf("By service: %d services x %d pods, one row a profile over an hour, in %d blocks and a head; step 60 s, the start is not aligned. Sums and exemplars equal those computed from what was pushed.", fleetServices, fleetPods, fleetBlocks))
	return nil
}

func groupedOf(ctx context.Context, env area.Env, out *area.Outcome, rows int) (worst float64, whats []string, err error) {
	dir, remove, err := folder()
	if err != nil {
		return 0, nil, err
	}
	defer remove()
	s, err := openStore(dir, 1) // blocks are not merged
	if err != nil {
		return 0, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	pushed, err := pushFleet(ctx, s, rows)
	if err != nil {
		return 0, nil, err
	}
	if files, err := filepath.Glob(filepath.Join(dir, "profiles", tenant, "*", "profiles.parquet")); err != nil || len(files) != fleetBlocks {
		return 0, nil, fmt.Errorf("%d blocks: %w", len(files), errors.Join(err, area.ErrUnequal))
	}
	e := query.New(query.Options{}, s)
	worst = math.NaN()
	for _, minutes := range []int64{1, 5, 15, 60} {
		req := seriesRequest(minutes, series.LabelService)
		req.StepMS = groupedStepMS
		what := fmt.Sprintf("%d rows by service, step 60 s, %d min", rows, minutes)
		if err := compareGrouped(ctx, e, req, pushed); err != nil {
			return 0, nil, fmt.Errorf("%d min: %w", minutes, err)
		}
		if err := measureSides(ctx, env, out, e, req, what); err != nil {
			return 0, nil, err
		}
		ratio := out.Recorder.Over(with, plain, "time: "+what)
		worst, whats = worse(worst, ratio), append(whats, what)
		env.Logf("%s: with exemplars %.3f of time", what, ratio)
	}
	return worst, whats, nil
}

// pushFleet pushes the rows in order of time and writes a block after each seventh of them but the last, which stays in the head.
func pushFleet(ctx context.Context, s *store.Store, rows int) ([]fleetRow, error) {
	r := rand.New(rand.NewPCG(1, 2))
	sets := make([][]byte, fleetServices*fleetPods)
	for i := range sets {
		sets[i] = labelsOf("process_cpu", serviceName(i%fleetServices), i/fleetServices)
	}
	pushed, batch := make([]fleetRow, rows), []series.RawProfile(nil)
	blocks := 0
	for i := range rows {
		at, value := epochMS*1e6+int64(i)*(hourMS*1e6/int64(rows)), (1+r.Int64N(100_000))*1e7
		pushed[i] = fleetRow{i % fleetServices, at, value}
		batch = append(batch, series.RawProfile{Labels: sets[i%len(sets)], ID: idOf(i), TimeNS: at, Raw: small(value)})
		full := blocks < fleetBlocks && i+1 == (blocks+1)*rows/(fleetBlocks+1)
		if len(batch) == 1000 || full || i == rows-1 {
			if err := s.Append(ctx, tenant, batch); err != nil {
				return nil, err
			}
			batch = batch[:0]
		}
		if full {
			blocks++
			if err := s.Flush(ctx); err != nil {
				return nil, err
			}
		}
	}
	return pushed, nil
}

func serviceName(i int) string { return fmt.Sprintf("service-%03d", i) }

// cellKey is a point of a group.
type cellKey struct {
	service string
	timeMS  int64
}

// expectedCells computes the points of a request, with the greatest value of each.
func expectedCells(req series.SeriesRequest, pushed []fleetRow) map[cellKey]naiveCell {
	cells := map[cellKey]naiveCell{}
	from, step := (req.StartMS-req.StepMS)*1e6, req.StepMS*1e6
	for _, row := range pushed {
		if row.timeNS <= from {
			continue
		}
		at := req.StartMS + ((row.timeNS-from+step-1)/step-1)*req.StepMS
		if at > req.EndMS {
			continue
		}
		key := cellKey{serviceName(row.service), at}
		c := cells[key]
		c.sum, c.best = c.sum+row.value, max(c.best, row.value)
		cells[key] = c
	}
	return cells
}

// compareGrouped compares the points of a result, and their exemplars, with what was pushed.
func compareGrouped(ctx context.Context, e *query.Engine, req series.SeriesRequest, pushed []fleetRow) error {
	want := expectedCells(req, pushed)
	if len(want) == 0 {
		return area.ErrEmpty
	}
	for _, exemplars := range []bool{false, true} {
		req.Exemplars = exemplars
		if err := compareCells(ctx, e, req, want); err != nil {
			return err
		}
	}
	return nil
}

func compareCells(ctx context.Context, e *query.Engine, req series.SeriesRequest, want map[cellKey]naiveCell) error {
	result, err := e.SelectSeries(ctx, &req)
	if err != nil {
		return err
	}
	defer result.Close()
	if err := errors.Join(result.Warnings...); err != nil {
		return err
	}
	points := 0
	for _, s := range result.Series {
		service := string(labelenc.Value(s.Labels, series.LabelService))
		for _, p := range s.Points {
			points++
			c, ok := want[cellKey{service, p.TimeMS}]
			if !ok || math.Abs(p.Value-float64(c.sum)) > 1e-9*float64(c.sum) {
				return fmt.Errorf("%w: %s at %d: %v, want %d", area.ErrUnequal, service, p.TimeMS, p.Value, c.sum)
			}
			if req.Exemplars && (len(p.Exemplars) != 1 || p.Exemplars[0].Value != c.best) {
				return fmt.Errorf("%w: exemplars of %s at %d: %+v, want %d", area.ErrUnequal, service, p.TimeMS, p.Exemplars, c.best)
			}
		}
	}
	if points != len(want) {
		return fmt.Errorf("%w: %d points of %d", area.ErrUnequal, points, len(want))
	}
	return nil
}
