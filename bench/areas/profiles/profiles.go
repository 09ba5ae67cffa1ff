// Package profiles measures the profile lane in the bench's own process: goals profiles/*.
//
// In come profiles made from a seed; they are pushed into a store on this disk and asked for. Selects without and with
// exemplars are two sides of one query; a reader of the same block row by row with parquet-go is the naive reference of
// selects, google/pprof's parse and merge that of merges and pushes. Every answer is compared with the reference's, or
// with a sum made by hand, before anything is timed.
package profiles

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
)

// Area is the table's entry.
var Area = area.Area{Name: "profiles", About: "the profile store: selects with and without exemplars, merges, pushes, bytes", Run: run}

const (
	plain  = "without"
	with   = "with exemplars"
	naive  = "naive"
	ferula = "ferula"
)

func run(ctx context.Context, env area.Env) (*area.Outcome, error) {
	out := &area.Outcome{Sides: []string{naive, plain, with, ferula}}
	if err := selects(ctx, env, out); err != nil {
		return nil, err
	}
	if err := whole(ctx, env, out); err != nil {
		return nil, err
	}
	out.Notes = append(out.Notes,
		"Selects: one sample a profile, in one block over an hour; the start is not on the step's grid; 21 steps, one group unless it says otherwise, as in the measurement that the goals come from (2,972 rows, 20 winners).",
		"naive (select): parquet-go's GenericReader over the same file, of the five columns that the answer needs, into maps.",
		fmt.Sprintf("Merges, pushes, bytes: %d services, %d functions, %d samples of depth %d to %d out of %d stacks a service, two sample types (objects, bytes).", services, functions, samples, depthMin, depthMax, stacks),
		"naive (merge): google/pprof's ParseData of every profile and Merge in groups of 50. naive (push): ParseData alone.",
		"A push is the whole of it: decoded, in the log, synced, in the head; 16 clients push at once. Times are process CPU.",
	)
	return out, nil
}

// windowSeconds is how long a reading takes at least; short ones fit between what else the machine does.
const windowSeconds = 0.004

// times runs f so often that it takes a while, and returns the seconds of CPU of one run. Nothing it runs starts
// goroutines or leaves garbage behind.
func times(f func() error) (float64, error) {
	for n := 1; ; n *= 2 {
		start := proc.SelfCPU()
		for range n {
			if err := f(); err != nil {
				return 0, err
			}
		}
		if took := (proc.SelfCPU() - start).Seconds(); took > windowSeconds || n >= 1<<20 {
			return took / float64(n), nil
		}
	}
}

// memory is the allocations and bytes of one run, once warm.
func memory(f func() error) (allocs, bytes float64, err error) {
	const runs = 20
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if err := f(); err != nil {
		return 0, 0, err
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range runs {
		if err := f(); err != nil {
			return 0, 0, err
		}
	}
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / runs, float64(after.TotalAlloc-before.TotalAlloc) / runs, nil
}

// used is the process' CPU for f, its garbage included.
func used(f func() error) (float64, error) {
	runtime.GC()
	before := proc.SelfCPU()
	if err := f(); err != nil {
		return 0, err
	}
	runtime.GC()
	return (proc.SelfCPU() - before).Seconds(), nil
}

func worse(a, b float64) float64 {
	if math.IsNaN(a) {
		return b
	}
	return max(a, b)
}
