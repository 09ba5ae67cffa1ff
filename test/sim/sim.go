// Package sim holds ferula against a model: `go test ./test/sim -sim.seconds=60`.
//
// A seed makes a world: processes with flags and files in combinations that users
// have, and a list of steps that write, push, query, kill, restart, reload and
// stall. A model in memory knows every acknowledged sample and profile. After each
// step every path of the world returns what the model has, or names what is
// missing, or fails; the processes start again; memory stays within its bounds.
//
// What comes in is the ferula binary and a seed; what goes out is nil, or an error
// with the seed that repeats it and the fewest steps that still show it. Timing is
// real, so a failure that needs a race may take several runs of its seed.
package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// kinds are the worlds. The seed modulo their number chooses one, so that
// consecutive seeds visit all of them.
var kinds = []struct {
	name string
	make func(e *env, dir string, rng *rand.Rand) (world, error)
}{
	{"storage", newStorageWorld},
	{"profiles", newProfilesWorld},
	{"frontend", newFrontendWorld},
	{"federated", newFederatedWorld},
	{"replicas", newReplicasWorld},
}

// failure is an error of a world with the steps that lead to it.
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

// runSeed runs the world of a seed without the steps whose index is in skip.
func runSeed(e *env, dir string, seed uint64, skip []int) (ran int, err error) {
	kind := kinds[seed%uint64(len(kinds))]
	rng := rand.New(rand.NewPCG(seed, 1))
	w, err := kind.make(e, dir, rng)
	if err != nil {
		return 0, err
	}
	f := &failure{seed: seed, kind: kind.name}
	fail := func(err error) error { f.err = err; return f }
	defer func() {
		if stopErr := w.stop(); stopErr != nil && err == nil {
			err = fail(stopErr)
		}
	}()
	if err := w.start(); err != nil {
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
		if err := s.run(); err != nil {
			return i + 1, fail(err)
		}
		if err := w.check(); err != nil {
			return i + 1, fail(err)
		}
	}
	return len(list), nil
}

// shrink leaves out steps as long as the world still fails, within budget.
func shrink(e *env, dir string, seed uint64, ran int, first error, budget time.Duration) error {
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
