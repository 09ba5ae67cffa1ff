package sim

import (
	"context"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

var (
	secondsFlag = flag.Int("sim.seconds", 5, "how long to run")
	seedFlag    = flag.Uint64("sim.seed", 0, "run this seed only; 0 runs fresh ones")
	fromFlag    = flag.Uint64("sim.from", 0, "first of consecutive seeds; 0 takes the clock")
	worldsFlag  = flag.Int("sim.worlds", 0, "how many worlds to run; 0 runs until -sim.seconds")
	kindFlag    = flag.String("sim.kind", "", "run this kind of world only")
	binaryFlag  = flag.String("sim.binary", "", "the ferula binary; empty builds it")
	keepFlag    = flag.Bool("sim.keep", false, "leave the folders of worlds")
	shrinkFlag  = flag.Duration("sim.shrink", time.Minute, "how long to look for fewer steps after a failure")
)

func newEnv(t *testing.T) *env {
	t.Helper()
	binary := *binaryFlag
	if binary == "" {
		binary = filepath.Join(t.TempDir(), "ferula")
		if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/ferula").CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return &env{ctx: ctx, binary: binary, client: newClient(), logf: t.Logf}
}

func TestSim_EveryPathReturnsWhatWasAcknowledged(t *testing.T) {
	e := newEnv(t)
	if *seedFlag != 0 {
		runOne(t, e, *seedFlag)
		return
	}
	first := *fromFlag
	if first == 0 {
		first = uint64(time.Now().UnixNano()) / 1e6
	}
	deadline := time.Now().Add(time.Duration(*secondsFlag) * time.Second)
	worlds := 0
	more := func() bool {
		if *worldsFlag > 0 {
			return worlds < *worldsFlag
		}
		return time.Now().Before(deadline)
	}
	for seed := first; more() && !t.Failed(); seed++ {
		if *kindFlag != "" && kinds[seed%uint64(len(kinds))].name != *kindFlag {
			continue
		}
		runOne(t, e, seed)
		worlds++
	}
	t.Logf("%d worlds from seed %d", worlds, first)
}

func runOne(t *testing.T, e *env, seed uint64) {
	t.Helper()
	dir, err := os.MkdirTemp("", "ferula-sim-")
	if err != nil {
		t.Fatal(err)
	}
	if !*keepFlag {
		defer os.RemoveAll(dir)
	}
	began := time.Now()
	ran, err := runSeed(e, filepath.Join(dir, "world"), seed, nil)
	kind := kinds[seed%uint64(len(kinds))].name
	if err == nil {
		t.Logf("seed %d (%s): %d steps in %s", seed, kind, ran, time.Since(began).Round(time.Millisecond))
		return
	}
	t.Logf("seed %d (%s) fails: %v", seed, kind, err)
	if *shrinkFlag > 0 && ran > 0 {
		err = shrink(e, dir, seed, ran, err, *shrinkFlag)
	}
	t.Errorf("%v\nrepeat it with: go test ./test/sim -sim.seed=%d", err, seed)
}
