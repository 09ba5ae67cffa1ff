// Package sim compares ferula with a model: `go test ./test/sim -sim.seconds=60`.
//
// A seed creates a scenario: processes with a random combination of flags and files,
// and a list of steps that write, push, query, kill, restart, reload and stall. A model
// in memory records every acknowledged sample and profile. After each step, every API must
// return the data of the model, or a partial response with warnings, or an error. Processes
// must start again, and their memory must stay within a limit.
//
// The input is the ferula binary and a seed. The result is nil, or an error with the seed
// that repeats it and the fewest steps that still cause it. Timing is real, so a failure
// that needs a race may take several runs of its seed.
package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kinds are the kinds of scenarios. Consecutive seeds run all of them.
var kinds = []struct {
	name string
	make func(e *environment, dir string, rng *rand.Rand) (scenario, error)
}{
	{"storage", newStorageScenario},
	{"profiles", newProfilesScenario},
	{"frontend", newFrontendScenario},
	{"federated", newFederatedScenario},
	{"replicas", newReplicasScenario},
	{"downsampled", newDownsampledScenario},
	{"shipping", newShippingScenario},
	{"liars", newLiarsScenario},
	{"fulldisk", newFullDiskScenario},
	{"rules", newRulesScenario},
	{"sending", newSendingScenario},
}

// kindOf returns the index of the kind of a seed. The kind that was added last has a part of the seeds of the kind before
// it, so that other seeds, as in the table of the tests, repeat their scenarios.
func kindOf(seed uint64) int {
	if seed%20 == 19 {
		return 10
	}
	return int(seed % 10)
}

// slowStep is the minimum duration of a step that is logged.
const slowStep = 3 * time.Second

// failure is an error of a scenario with the steps that caused it.
type failure struct {
	seed  uint64
	kind  string
	steps []string
	err   error
}

func (f *failure) Error() string {
	return fmt.Sprintf("seed %d (%s) after [%s]: %v", f.seed, f.kind, strings.Join(f.steps, "; "), f.err)
}

func (f *failure) Unwrap() error { return f.err }

// runSeed runs the scenario of a seed without the steps whose index is in skip. It
// returns how many steps it has run.
func runSeed(e *environment, dir string, seed uint64, skip []int) (ran int, err error) {
	kind := kinds[kindOf(seed)]
	rng := rand.New(rand.NewPCG(seed, 1))
	w, err := kind.make(e, dir, rng)
	if err != nil {
		return 0, err
	}
	f := &failure{seed: seed, kind: kind.name}
	proofs := e.proofs
	fail := func(err error) error { f.err = err; return f }
	defer func() {
		if stopErr := w.stop(); stopErr != nil && err == nil {
			err = fail(stopErr)
		}
	}()
	if err := w.start(); errors.Is(err, errCannot) {
		e.logf("seed %d (%s): %v", seed, kind.name, err)
		return 0, nil
	} else if err != nil {
		return 0, fail(err)
	}
	list := w.steps()
	if err := w.check(); err != nil {
		return 0, fail(err)
	}
	for i, s := range list {
		if slices.Contains(skip, i) {
			continue
		}
		f.steps = append(f.steps, s.name)
		begun := time.Now()
		if err := s.run(); err != nil {
			return i + 1, fail(err)
		}
		ran := time.Since(begun)
		if err := w.check(); err != nil {
			return i + 1, fail(err)
		}
		if took := time.Since(begun); took > slowStep {
			e.logf("seed %d: %s takes %s, and its check %s", seed, s.name, ran.Round(time.Millisecond), (took - ran).Round(time.Millisecond))
		}
	}
	if len(skip) == 0 && e.proofs == proofs {
		return len(list), fail(errors.New("no response had data to compare: the scenario proves nothing"))
	}
	return len(list), nil
}

// shrink removes steps as long as the scenario still fails, for at most budget. It
// returns the error of the shortest failing scenario.
func shrink(e *environment, dir string, seed uint64, ran int, first error, budget time.Duration) error {
	deadline := time.Now().Add(budget)
	var skip []int
	best := first
	for i := ran - 2; i >= 0 && time.Now().Before(deadline); i-- {
		sub := filepath.Join(dir, fmt.Sprint("shrink", i))
		if _, err := runSeed(e, sub, seed, append(slices.Clone(skip), i)); err != nil {
			skip, best = append(skip, i), err
		}
		_ = os.RemoveAll(sub)
	}
	return best
}
