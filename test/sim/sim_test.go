package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	secondsFlag = flag.Int("sim.seconds", 5, "start scenarios for this many seconds")
	seedFlag    = flag.Uint64("sim.seed", 0, "run only this seed; 0 runs new ones")
	fromFlag    = flag.Uint64("sim.from", 0, "first of consecutive seeds; 0 uses the clock")
	worldsFlag  = flag.Int("sim.worlds", 0, "number of scenarios to run; 0 runs until -sim.seconds")
	kindFlag    = flag.String("sim.kind", "", "run only scenarios of this kind")
	binaryFlag  = flag.String("sim.binary", "", "path of the ferula binary; empty builds it")
	keepFlag    = flag.Bool("sim.keep", false, "do not delete the folders of scenarios")
	shrinkFlag  = flag.Duration("sim.shrink", time.Minute, "maximum time to search for fewer steps after a failure")
)

// seeds are those of scenarios that failed once, each with its kind. go test runs them again, before new seeds, because
// these seldom find the same fault twice: a fix adds the seed that found the fault.
var seeds = []struct {
	seed uint64
	kind string
}{
	{1795457059020, "storage"},
	{1795460512500, "storage"},
	{139, "sending"}, // never failed: each run has some kills of a sender
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	binary := *binaryFlag
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "ferula")
		if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", binary, "../../cmd/ferula").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &environment{ctx: ctx, binary: binary, client: newClient(), logf: t.Logf}
}

func TestSim_EveryPathReturnsWhatWasAcknowledged(t *testing.T) {
	e := newEnvironment(t)
	if *seedFlag != 0 {
		runOne(t, e, *seedFlag)
		return
	}
	first := *fromFlag
	if first == 0 {
		if *kindFlag == "" {
			runSeeds(t, e)
		}
		first = uint64(time.Now().UnixNano()) / 1e6
	}
	deadline := time.Now().Add(time.Duration(*secondsFlag) * time.Second)
	scenarios, proofs, count := 0, map[string]int{}, map[string]int{}
	more := func() bool {
		if *worldsFlag > 0 {
			return scenarios < *worldsFlag
		}
		return time.Now().Before(deadline)
	}
	for seed := first; more() && !t.Failed(); seed++ {
		if *kindFlag != "" && kinds[kindOf(seed)].name != *kindFlag {
			continue
		}
		kind, before := kinds[kindOf(seed)].name, e.proofs
		runOne(t, e, seed)
		scenarios++
		count[kind]++
		proofs[kind] += e.proofs - before
	}
	t.Logf("%d scenarios from seed %d; at most %d more goroutines and %d MiB more heap at their ends", scenarios, first, e.largest.goroutines, e.largest.heapMiB)
	for _, kind := range sortedKeys(count) {
		t.Logf("%s: %d scenarios, %d data compared", kind, count[kind], proofs[kind])
	}
}

func runSeeds(t *testing.T, e *environment) {
	t.Helper()
	for _, s := range seeds {
		if kind := kinds[kindOf(s.seed)].name; kind != s.kind {
			t.Errorf("seed %d is of kind %s, not %s: since a change of the list of kinds it does not repeat its scenario", s.seed, kind, s.kind)
			continue
		}
		runOne(t, e, s.seed)
	}
}

func runOne(t *testing.T, e *environment, seed uint64) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ferula-sim-")
	if err != nil {
		t.Fatal(err)
	}
	if !*keepFlag {
		defer os.RemoveAll(dir)
	}
	began, kind := time.Now(), kinds[kindOf(seed)].name
	// A data race, a panic and a timeout end the process without the log of the test. go test prints this for failures only.
	fmt.Printf("running seed %d: %s\n", seed, kind)
	ran, err := runSeed(e, filepath.Join(dir, "scenario"), seed, nil)
	if err == nil {
		t.Logf("seed %d (%s): %d steps in %s", seed, kind, ran, time.Since(began).Round(time.Millisecond))
		return
	}
	t.Logf("seed %d (%s) fails: %v", seed, kind, err)
	if *shrinkFlag > 0 && ran > 0 {
		err = shrink(e, dir, seed, ran, err, *shrinkFlag)
	}
	t.Errorf("%v\nrepeat it with: go test ./test/sim -sim.seed=%d\nand add the seed to the table seeds of test/sim/sim_test.go", err, seed)
}

// Otherwise a patch of faults that no longer applies would only be noticed when prove.sh
// is run.
func TestFaults_ApplyToTheTree(t *testing.T) {
	patches, err := filepath.Glob("faults/*.patch")
	if err != nil || len(patches) == 0 {
		t.Fatalf("no faults: %v", err)
	}
	if err := exec.Command("git", "rev-parse").Run(); err != nil {
		t.Skipf("git apply needs a repository: %v", err)
	}
	for _, patch := range patches {
		path, err := filepath.Abs(patch)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("git", "apply", "--check", path)
		cmd.Dir = "../.."
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", patch, err, out)
		}
	}
}
