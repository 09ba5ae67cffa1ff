package report

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
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
		if _, err := r.WriteResults(name); err != nil {
			t.Fatal(err)
		}
	}
	other := r
	other.Area.Name = "y"
	if _, err := other.WriteResults(name); err != nil {
		t.Fatal(err)
	}
	r.Commit = "def"
	if _, err := r.WriteResults(name); err != nil {
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

// recorded writes the runs to a new file, one after the other, and returns its text and which of them were the first of their area.
func recorded(t *testing.T, runs ...Run) (text string, first []bool) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "RESULTS.md")
	for _, r := range runs {
		is, err := r.WriteResults(name)
		if err != nil {
			t.Fatal(err)
		}
		first = append(first, is)
	}
	all, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(all), first
}

func runOf(areaName, cpu, commit string) Run {
	r := runForTest()
	r.Area.Name, r.Machine.CPU, r.Commit = areaName, cpu, commit
	return r
}

func TestWriteResults_KeepsASectionAMachine(t *testing.T) {
	text, first := recorded(t, runOf("x", "A", "a1"), runOf("y", "A", "a2"), runOf("x", "B", "b1"), runOf("x", "C", "c1"), runOf("x", "B", "b2"), runOf("x", "A", "a3"))
	if want := []bool{true, true, false, false, false, true}; !slices.Equal(first, want) {
		t.Errorf("first sections: %v, want %v", first, want)
	}
	var order []string
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "<!-- ") || strings.HasPrefix(line, "## ") || strings.Contains(line, "commit") && strings.HasPrefix(line, "- ") {
			order = append(order, strings.TrimSpace(line))
		}
	}
	var want []string
	for _, s := range [][2]string{{"x", "a3"}, {"x on B, 2 cores", "b2"}, {"x on C, 2 cores", "c1"}, {"y", "a2"}} {
		want = append(want, "<!-- begin "+s[0]+" -->", "## "+s[0], "- 1970-01-01, commit "+s[1]+", median of 2", "<!-- end "+s[0]+" -->")
	}
	if !slices.Equal(order, want) {
		t.Errorf("sections:\n%s\nwant:\n%s", strings.Join(order, "\n"), strings.Join(want, "\n"))
	}
	if strings.Contains(text, "\n\n\n") {
		t.Errorf("several empty lines in %q", text)
	}
	r := Parse(text)
	if len(r) != 4 || r["x"].Machine != "A, 2 cores, Linux 6.1, go1" || r["x on B, 2 cores"].Machine != "B, 2 cores, Linux 6.1, go1" {
		t.Errorf("%+v", r)
	}
	if _, err := r.Goal("x on B, 2 cores", "x/cpu"); err != nil {
		t.Error(err)
	}
}

// Sections of earlier versions name the CPU without family and model.
func TestWriteResults_ReplacesASectionThatHasOnlyTheNameOfTheCPU(t *testing.T) {
	const older, now, newer = "EPYC", "EPYC (family 26, model 2, L2 1024 KiB)", "EPYC (family 27, model 1, L2 1024 KiB)"
	text, first := recorded(t, runOf("x", older, "a1"), runOf("x", now, "a2"), runOf("x", newer, "a3"))
	if want := []bool{true, true, false}; !slices.Equal(first, want) || strings.Contains(text, "a1") || !strings.Contains(text, "## x on "+newer+", 2 cores\n") {
		t.Errorf("first sections: %v, want %v: %s", first, want, text)
	}
	if got := Parse(text)["x"].ShortMachine(); got != older+", 2 cores" {
		t.Errorf("the short machine: %q", got)
	}
	other := runOf("x", now, "a4")
	other.Machine.Cores = 64
	if _, first := recorded(t, runOf("x", now, "a1"), other); first[1] {
		t.Error("64 cores replace 2")
	}
}

func TestWriteResults_SaysThatThereWasOneRound(t *testing.T) {
	r := runForTest()
	const note = "**one round**"
	if text, _ := recorded(t, r); strings.Contains(text, note) {
		t.Errorf("two rounds: %s", text)
	}
	r.Rounds = 1
	if text, _ := recorded(t, r); !strings.Contains(text, note) {
		t.Errorf("one round: %s", text)
	}
}

func TestWriteResults_NamesEachVersionOnce(t *testing.T) {
	r := runForTest()
	r.Outcome.Versions = []string{"peer 1.0", "ferula", "peer 1.0", "ferula"}
	if text, _ := recorded(t, r); strings.Count(text, "- peer 1.0\n") != 1 || strings.Count(text, "- ferula\n") != 1 {
		t.Errorf("got %s", text)
	}
}

func TestTable_NamesTheCPUAndTheSpread(t *testing.T) {
	var b strings.Builder
	if err := runForTest().Table(&b); err != nil {
		t.Fatal(err)
	}
	first, rest, _ := strings.Cut(b.String(), "\n")
	if first != "x: 1970-01-01, commit abc, median of 2; cpu, 2 cores, Linux 6.1, go1" {
		t.Errorf("got %q", first)
	}
	if lines := strings.Fields(rest); !slices.Contains(lines, "spread") || !slices.Contains(lines, "11") {
		t.Errorf("got %q", rest)
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
	for _, c := range []struct{ cpuinfo, l2, want string }{
		{"processor\t: 0\nmodel name\t: Some CPU @ 2:1\n", "1024K\n", "Some CPU @ 2:1"},
		{"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n\nmodel\t\t: 3\n", "1024K\n", "AMD EPYC (family 26, model 2, L2 1024 KiB)"},
		{"cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\n", "", "AMD EPYC (family 26, model 2)"},
		{"", "", "unknown"},
	} {
		if got := cpuModel([]byte(c.cpuinfo), c.l2); got != c.want {
			t.Errorf("CPU: got %q, want %q", got, c.want)
		}
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
	for _, unit := range []string{"ns", "ns/series"} {
		what := "in " + unit
		for i, v := range []float64{1, 1.1, 1.5} {
			out.Recorder.Add(i+1, "peer", what, unit, v)
		}
		out.Measured = nil
		out.Measure("x/d", 1, what)
		if got := r.Noisy(); len(got) != 1 || got[0] != what+" of peer: 36 %" {
			t.Errorf("readings in %s: got %q", unit, got)
		}
	}
}
