package ingest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// recorded returns a recording of OpenJDK 17: a program that spins, allocates, waits for a
// monitor and parks.
func recorded(t testing.TB) []byte {
	t.Helper()
	f, err := os.Open("testdata/openjdk17.jfr.gz")
	must(t, err)
	defer f.Close()
	r, err := gzip.NewReader(f)
	must(t, err)
	b, err := io.ReadAll(r)
	must(t, err)
	return b
}

func TestDecodeJFR_ReadsTheEventsOfAJVM(t *testing.T) {
	count, amount, in := map[*measured]int{}, map[*measured]int64{}, map[*measured]map[string]int{}
	_, err := decodeJFR(recorded(t), func(e *jfrEvent) error {
		count[e.kind]++
		amount[e.kind] += e.amount
		if in[e.kind] == nil {
			in[e.kind] = map[string]int{}
		}
		for _, f := range e.stack {
			in[e.kind][f.method]++
		}
		if e.kind == javaCPU && e.state != "STATE_RUNNABLE" {
			t.Errorf("an execution has the state %q", e.state)
		}
		return nil
	})
	must(t, err)
	for kind, frame := range map[*measured]string{javaCPU: "Busy.spin", javaAllocation: "Busy.main", javaLock: "Busy.main", javaPark: "java/util/concurrent/locks/LockSupport.parkNanos"} {
		if count[kind] == 0 || in[kind][frame] == 0 {
			t.Errorf("%s: %d events, %v", kind.name, count[kind], in[kind])
		}
	}
	if ms := amount[javaPark] / 1e6; ms < 500 || ms > 10_000 {
		t.Errorf("parked for %d ms", ms)
	}
	if ms := amount[javaLock] / 1e6; ms < 10 || ms > 10_000 {
		t.Errorf("waited for %d ms", ms)
	}
	if n := amount[javaAllocation]; n < 1<<20 {
		t.Errorf("%d bytes were allocated", n)
	}
}

func TestDecodeJFR_TwoChunksAreOneRecording(t *testing.T) {
	b, n := recorded(t), 0
	count := func(*jfrEvent) error { n++; return nil }
	if _, err := decodeJFR(b, count); err != nil {
		t.Fatal(err)
	}
	once := n
	if _, err := decodeJFR(slices.Concat(b, b), count); err != nil || n != 3*once || once == 0 {
		t.Errorf("%d events, then %d in all, %v", once, n, err)
	}
}

func TestDecodeJFR_BrokenInputIsAnError(t *testing.T) {
	b := recorded(t)
	check := func(b []byte) bool {
		t.Helper()
		_, err := decodeJFR(b, func(*jfrEvent) error { return nil })
		if err != nil && !errors.Is(err, errJFR) {
			t.Fatal(err)
		}
		return err != nil
	}
	for _, n := range []int{0, 3, 67, 68, 1000, len(b) - 1} {
		if !check(b[:n]) {
			t.Errorf("%d bytes are taken for a recording", n)
		}
	}
	r, broken := rand.New(rand.NewPCG(1, 2)), 0
	for range 300 {
		bad := bytes.Clone(b)
		for range 1 + r.IntN(20) {
			bad[r.IntN(len(bad))] = byte(r.Uint32())
		}
		for i := range 8 {
			bad[r.IntN(68)] ^= byte(i) // of the header
		}
		if check(bad) {
			broken++
		}
	}
	if broken == 0 {
		t.Error("nothing was noticed")
	}
	stopped := errors.New("stop")
	if _, err := decodeJFR(b, func(*jfrEvent) error { return stopped }); !errors.Is(err, stopped) {
		t.Error(err)
	}
}

func FuzzRecording(f *testing.F) {
	b := recorded(f)
	f.Add(b[:4096])
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if _, err := decodeJFR(b, func(*jfrEvent) error { return nil }); err != nil && !errors.Is(err, errJFR) {
			t.Fatal(err)
		}
	})
}
