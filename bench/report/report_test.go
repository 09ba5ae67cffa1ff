package report

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/goal"
)

func runForTest() Run {
	out := &area.Outcome{Sides: []string{"peer", "ferula"}, Versions: []string{"peer 1.0"}, Notes: []string{"a note"}}
	for round, v := range []float64{0.5, 0.4} {
		out.Recorder.Add(round+1, "peer", "cpu", area.Seconds, 4*v)
		out.Recorder.Add(round+1, "ferula", "cpu", area.Seconds, v)
		out.Recorder.Add(round+1, "ferula", "writes", area.Count, 7)
	}
	out.Measure("x/cpu", out.Recorder.Over("ferula", "peer", "cpu"), "cpu")
	goals := []goal.Goal{{Name: "x/cpu", Op: "<=", Limit: 0.3, Unit: "ratio"}, {Name: "x/other", Op: "<=", Limit: 1, Unit: "ratio"}}
	return Run{
		Area: area.Area{Name: "x", About: "a test"}, Goals: goals, Outcome: out, Rounds: 2, Commit: "abc",
		Machine: Machine{"cpu", 2, "6.1", "go1"}, When: time.Unix(0, 0),
	}
}

func TestLines_MissingGoalFallsShort(t *testing.T) {
	var b strings.Builder
	if short := runForTest().Lines(&b); short != 1 {
		t.Errorf("%d fell short, want 1", short)
	}
	if want := "goal x/cpu 0.25 <= 0.3 ok\ngoal x/other missing <= 1 SHORT\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}

func TestWriteRaw_WritesReadingsOfEachGoal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	if err := runForTest().WriteRaw(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"x-cpu.json": 4, "x-other.json": 0} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		var got raw
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Readings) != want || (got.Measured == nil) != (want == 0) {
			t.Errorf("%s: %d readings, measured %v", name, len(got.Readings), got.Measured)
		}
	}
}

func TestWriteResults_ReplacesASectionBetweenItsMarkers(t *testing.T) {
	name := filepath.Join(t.TempDir(), "RESULTS.md")
	r := runForTest()
	for range 2 {
		if err := r.WriteResults(name); err != nil {
			t.Fatal(err)
		}
	}
	other := r
	other.Area.Name = "y"
	if err := other.WriteResults(name); err != nil {
		t.Fatal(err)
	}
	r.Commit = "def"
	if err := r.WriteResults(name); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"# Results": 1, "## x\n": 1, "## y\n": 1, "<!-- begin x -->": 1, "<!-- end x -->": 1, "commit def": 1, "commit abc": 1,
		"| x/cpu | 0.25 | <= | 0.3 | ok |": 2, "| cpu | 1.8 s | 450 ms | 0.25 | 11 % |": 2, "| writes |  | 7 |  |  |": 2, "- a note": 2,
	} {
		if got := strings.Count("\n"+string(text), part); got != want {
			t.Errorf("%q occurs %d times, want %d", part, got, want)
		}
	}
	if got := Replace("a\n<!-- begin z -->\nold", "z", "new\n"); got != "a\n<!-- begin z -->\nnew\n<!-- end z -->\n" {
		t.Errorf("a section without an end: %q", got)
	}
}

func TestWriteFiles_WritesBelowTheRoot(t *testing.T) {
	root := t.TempDir()
	r := runForTest()
	r.Outcome.Files = []area.File{{Path: "docs/perf/x.svg", Text: "a plot"}}
	if err := r.WriteFiles(root); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(root, "docs", "perf", "x.svg")); err != nil || string(got) != "a plot" {
		t.Errorf("%q, %v", got, err)
	}
}

// Results that an earlier area of the same run has written do not mark the commit as changed.
func TestCommit_IgnoresReportsAndPlots(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"bench/RESULTS.md", "docs/perf/a.svg", "code.go"}
	for _, name := range names {
		write(name, "before")
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "a"}} {
		if out, err := git(root, args...); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	for i, name := range names {
		write(name, "after")
		if got := Commit(root); len(got) < 7 || strings.HasSuffix(got, "+") != (i == len(names)-1) {
			t.Errorf("after a change of %s: %q", name, got)
		}
	}
}

func TestAmount_UsesFittingMultiples(t *testing.T) {
	for _, c := range []struct {
		v    float64
		unit string
		want string
	}{
		{0.0123, area.Seconds, "12.3 ms"}, {1.5, area.Seconds, "1.5 s"}, {-0.002, area.Seconds, "-2 ms"}, {3 << 20, area.Bytes, "3 MiB"},
		{2048, area.Bytes, "2 KiB"}, {10, area.Bytes, "10 bytes"}, {985000, area.Count, "985000"}, {math.NaN(), area.Count, ""}, {20.345, "ns/sample", "20.34 ns/sample"},
	} {
		if got := Amount(c.v, c.unit); got != c.want {
			t.Errorf("%v %s: got %q, want %q", c.v, c.unit, got, c.want)
		}
	}
}

func TestMachine_ParsesCPUAndKernel(t *testing.T) {
	if got := cpuModel([]byte("processor\t: 0\nmodel name\t: Some CPU @ 2:1\n")); got != "Some CPU @ 2:1" {
		t.Errorf("CPU: %q", got)
	}
	if got := cpuModel(nil); got != "unknown" {
		t.Errorf("no CPU: %q", got)
	}
	if got := kernel("6.1.2-13-amd64\n"); got != "6.1.2" {
		t.Errorf("kernel: %q", got)
	}
}

func TestNoisy_NamesPeersReadingsFarFromTheirMedian(t *testing.T) {
	out := &area.Outcome{Sides: []string{"peer", "ferula"}}
	for i, v := range []float64{1, 1.1, 1.21} {
		out.Recorder.Add(i+1, "peer", "steady", area.Seconds, v)
		out.Recorder.Add(i+1, "peer", "unsteady", area.Seconds, v*v*v)
		out.Recorder.Add(i+1, "peer", "unused", area.Seconds, v*v*v)
		out.Recorder.Add(i+1, "peer", "memory", area.Bytes, v*v*v)
		out.Recorder.Add(i+1, "ferula", "steady", area.Seconds, v*v*v)
	}
	out.Measure("x/a", 1, "steady", "memory")
	r := Run{Outcome: out}
	if got := r.Noisy(); len(got) != 0 {
		t.Errorf("a peer within a fifth of its median: got %q", got)
	}
	out.Measure("x/b", 1, "unsteady")
	out.Measure("x/c", 1, "unsteady")
	if got := r.Noisy(); len(got) != 1 || got[0] != "unsteady of peer: 33 %" {
		t.Errorf("got %q", got)
	}
}
