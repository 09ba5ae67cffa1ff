package profiles

import (
	"context"
	"errors"
	"fmt"

	"github.com/ferula-io/ferula/bench/area"
	series "github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
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
func grouped(ctx context.Context, b *area.Bench) error {
	var allocs []string
	overPlain := func(goal string, whats []string) {
		worst := 0.0
		for _, what := range whats {
			worst = max(worst, b.Over(with, plain, what))
		}
		b.Measure(goal, worst, whats...)
	}
	for _, g := range groupedGoals {
		if b.Short && g.rows > 100_000 {
			continue // it takes minutes to push
		}
		whats, err := groupedOf(ctx, b, g.rows)
		if err != nil {
			return fmt.Errorf("%d rows by service: %w", g.rows, err)
		}
		times := make([]string, len(whats))
		for i, what := range whats {
			times[i], allocs = "time: "+what, append(allocs, "allocations: "+what)
		}
		overPlain(g.goal, times)
	}
	overPlain("profiles/exemplars-allocs", allocs)
	b.Note(
		"TimeSeriesQuery_TimeRange has the names and the dimensions of the benchmark that the goals come from: selector {}, groups by service_name, step 60 s, 1, 5, 15 and 60 min, six blocks, without and with exemplars.",
		fmt.Sprintf("By service: %d services x %d pods, one row a profile over an hour, in %d blocks and a head; step 60 s, the start is not aligned. Sums and exemplars, their labels included, equal those computed from what was pushed.", fleetServices, fleetPods, fleetBlocks),
		"Time is that of the engine, whose exemplars refer to label sets by number.")
	return nil
}

func groupedRequest(minutes int64) series.SeriesRequest {
	req := seriesRequest(minutes, series.LabelService)
	req.StepMS = groupedStepMS
	return req
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

// groupedOf fills a store and measures the engine.
func groupedOf(ctx context.Context, b *area.Bench, rows int) (whats []string, err error) {
	err = inStore("", unmerged, func(s *store.Store, dir string) error {
		pushed, err := pushFleet(ctx, s, setsOf(fleetServices, fleetPods), rows, fleetBlocks, fleetBlocks+1)
		if err != nil {
			return err
		}
		if _, err := blocksIn(dir, fleetBlocks); err != nil {
			return err
		}
		e := query.New(query.Options{}, s)
		for _, minutes := range groupedMinutes {
			req, what := groupedRequest(minutes), groupedWhat(rows, minutes)
			if err := errors.Join(compareEngine(ctx, e, req, pushed), measureSides(ctx, b, e, req, what)); err != nil {
				return fmt.Errorf("%d min: %w", minutes, err)
			}
			whats = append(whats, what)
			b.Logf("%s: with exemplars %.3f of time", what, b.Over(with, plain, "time: "+what))
		}
		return nil
	})
	return whats, err
}
