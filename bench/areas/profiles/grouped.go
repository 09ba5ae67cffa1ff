package profiles

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/area"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/query"
)

// The size of the fleet whose groups are measured.
const (
	fleetServices = 100
	fleetPods     = 20 // pods of a service
	groupedStepMS = 60_000
)

var groupedGoals = []struct {
	rows int
	goal string
}{{3000, "profiles/grouped-3k"}, {100_000, "profiles/grouped-100k"}, {1_000_000, "profiles/grouped-1m"}}

// grouped measures selects by service, without exemplars and with them.
func grouped(ctx context.Context, env area.Env, out *area.Outcome) error {
	allocs, from := math.NaN(), []string{}
	for _, g := range groupedGoals {
		if env.Short && g.rows > 100_000 {
			continue // it takes minutes to push
		}
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
	out.Notes = append(out.Notes,
		"TimeSeriesQuery_TimeRange has the names and the dimensions of the benchmark that the goals come from: selector {}, groups by service_name, step 60 s, 1, 5, 15 and 60 min, six blocks, without and with exemplars.",
		fmt.Sprintf("By service: %d services x %d pods, one row a profile over an hour, in %d blocks and a head; step 60 s, the start is not aligned. Sums and exemplars, their labels included, equal those computed from what was pushed.", fleetServices, fleetPods, fleetBlocks),
		"Time is that of the engine, whose exemplars refer to label sets by number; server CPU is that of a ferula serve over the same folder from the request to the last byte of the response, where labels are written.")
	return nil
}

// groupedSets are the label sets of the fleet.
func groupedSets() [][]byte {
	sets := make([][]byte, fleetServices*fleetPods)
	for i := range sets {
		sets[i] = labelsOf("process_cpu", serviceName(i%fleetServices), i/fleetServices)
	}
	return sets
}

func serviceName(i int) string { return fmt.Sprintf("service-%03d", i) }

func groupedRequest(minutes int64) series.SeriesRequest {
	req := seriesRequest(minutes, series.LabelService)
	req.StepMS = groupedStepMS
	return req
}

func groupedOf(ctx context.Context, env area.Env, out *area.Outcome, rows int) (worst float64, whats []string, err error) {
	dir, remove, err := tempDir()
	if err != nil {
		return 0, nil, err
	}
	defer remove()
	pushed, worst, whats, err := groupedEngine(ctx, env, out, dir, rows)
	if err != nil {
		return 0, nil, err
	}
	return worst, whats, groupedServer(ctx, env, out, dir, pushed)
}

var groupedMinutes = []int64{1, 5, 15, 60}

// groupedWhat names a row as the benchmark of the change that brought exemplars to Pyroscope names its parts, whose NoExemplars
// and WithExemplars are two columns here.
func groupedWhat(rows int, minutes int64) string {
	part := fmt.Sprintf("%dMinutes", minutes)
	switch minutes {
	case 1:
		part = "1Minute"
	case 60:
		part = "1Hour"
	}
	return fmt.Sprintf("TimeSeriesQuery_TimeRange/%s, %d rows by service, step 60 s", part, rows)
}

// groupedEngine fills a directory and measures the engine.
func groupedEngine(ctx context.Context, env area.Env, out *area.Outcome, dir string, rows int) (pushed *fleet, worst float64, whats []string, err error) {
	s, err := openStore(dir, 1) // blocks are not compacted
	if err != nil {
		return nil, 0, nil, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	if pushed, err = pushFleet(ctx, s, groupedSets(), rows); err != nil {
		return nil, 0, nil, err
	}
	if files, err := filepath.Glob(filepath.Join(dir, "profiles", tenant, "*", "profiles.parquet")); err != nil || len(files) != fleetBlocks {
		return nil, 0, nil, fmt.Errorf("%d blocks: %w", len(files), errors.Join(err, area.ErrUnequal))
	}
	e := query.New(query.Options{}, s)
	worst = math.NaN()
	for _, minutes := range groupedMinutes {
		req := groupedRequest(minutes)
		what := groupedWhat(rows, minutes)
		if err := compareEngine(ctx, e, req, pushed); err != nil {
			return nil, 0, nil, fmt.Errorf("%d min: %w", minutes, err)
		}
		if err := measureSides(ctx, env, out, e, req, what); err != nil {
			return nil, 0, nil, err
		}
		ratio := out.Recorder.Over(with, plain, "time: "+what)
		worst, whats = worse(worst, ratio), append(whats, what)
		env.Logf("%s: with exemplars %.3f of time", what, ratio)
	}
	return pushed, worst, whats, nil
}

// groupedServer measures the same requests from the client's side, in a server over the
// same directory.
func groupedServer(ctx context.Context, env area.Env, out *area.Outcome, dir string, pushed *fleet) (err error) {
	s, err := serve(ctx, env, out, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	for _, minutes := range groupedMinutes {
		req := groupedRequest(minutes)
		what := "server CPU: " + groupedWhat(len(pushed.rows), minutes)
		if _, err := s.measureSeries(ctx, env, out, &req, pushed, what); err != nil {
			return fmt.Errorf("%d min: %w", minutes, err)
		}
		env.Logf("%s: with exemplars %.3f", what, out.Recorder.Over(with, plain, what))
	}
	return nil
}
