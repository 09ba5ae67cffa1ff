// Package profiles measures profile storage and queries in the bench's own process: goals profiles/*.
//
// It generates profiles from a seed, pushes them to a store on disk and queries them. Selects are compared without and with
// exemplars, and with a reference that reads the same block row by row with parquet-go. The reference of merges and pushes
// is google/pprof's parse and merge. Before the measurement every result is compared with its reference, or with a sum that
// is computed independently.
package profiles

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/proc"
	"github.com/ferula-io/ferula/internal/profiles/store"
)

// Area is the entry of this area in the list of cmd/bench.
var Area = area.Area{
	Name: "profiles", About: "the profile store: selects with and without exemplars, merges, pushes, bytes",
	Sides: []string{naive, floor, plain, with, ferula}, Run: run,
}

const (
	plain  = "without"
	with   = "with exemplars"
	naive  = "naive"
	floor  = "floor"
	ferula = "ferula"
)

func run(ctx context.Context, b *area.Bench) error {
	for _, part := range []func(context.Context, *area.Bench) error{selects, grouped, wire, whole, oneService, anonymous} {
		if err := part(ctx, b); err != nil {
			return err
		}
	}
	b.Note(
		"Selects: one sample per profile, in one block over an hour; the start is not aligned to the step; 21 steps, one group unless stated otherwise, as in the measurement that the goals come from (2,972 rows, 20 exemplars).",
		"naive (select): parquet-go's GenericReader over the same file, of the five columns that the result needs, into maps.",
		fmt.Sprintf("Merges, pushes, bytes: %d services, %d functions, %d samples of depth %d to %d out of %d stacks a service, two sample types (objects, bytes).", services, functions, samples, depthMin, depthMax, stacks),
		"naive (merge): google/pprof's ParseData of every profile and Merge in groups of 50. naive (push): ParseData alone.",
		"Recorded profiles are of the bench itself: the runtime's profiles of CPU and heap, four of each, recorded at the run while profiles were merged, and pushed again and again with other times and ids. Pyroscope's server is not measured.",
		"A push includes decoding, the write-ahead log, its sync and the head; 16 clients push concurrently. Times are process CPU. Over HTTP it is that of a ferula serve, whose push.v1 gets one profile a request. The goal adds the parts of a flush and of one merge of four blocks.",
	)
	return nil
}

// windowSeconds is the minimum duration of a reading. Short readings are disturbed less by other processes.
const windowSeconds = 0.004

// times runs f for at least windowSeconds and returns the CPU seconds of one run. f must not start goroutines or leave
// garbage behind.
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

// inTurns lets the sides take turns: take adds a reading of each side, whose medians are the readings of a round. While a machine is
// slower, it is so for all sides. Take begins with another side in each turn, because a side leaves the machine's caches to the next.
func inTurns(b *area.Bench, what string, turns int, take func(b *area.Bench, round, turn int) error) error {
	return b.EachRound(what, func(round int) error {
		all := *b
		all.Outcome = area.Outcome{}
		for turn := range turns {
			if err := take(&all, round, turn); err != nil {
				return err
			}
		}
		for _, r := range all.Readings[:len(all.Readings)/turns] {
			b.Add(round, r.Side, r.What, r.Unit, all.Median(r.Side, r.What))
		}
		return nil
	})
}

// memory returns the allocations and allocated bytes of one run, after a first run.
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

// used returns the CPU seconds of the process for f, garbage collection included.
func used(f func() error) (float64, error) {
	cpu, err := area.CPUOf(1, f)
	return cpu.Seconds(), err
}

// inStore calls work with an open store in a directory: of its own, if dir is "".
func inStore(dir string, o store.Options, work func(s *store.Store, dir string) error) error {
	return inDir(dir, func(dir string) (err error) {
		o.Dir = dir
		s, err := openWith(o, nil)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.Close()) }()
		return work(s, dir)
	})
}

// inDir calls work with a directory that is removed afterwards, or with dir.
func inDir(dir string, work func(dir string) error) error {
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "ferula-bench-profiles-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	return work(dir)
}
