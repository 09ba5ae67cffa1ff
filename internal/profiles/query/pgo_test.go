package query

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	googlepprof "github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// Go's compiler takes the merged profile, with stacks cut and without.
func TestMergePprof_GoBuildsWithIt(t *testing.T) {
	at := time.UnixMilli(1_700_000_000_000)
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1e7)
	main := e.Location(e.Function("main.main", "main.main", "main.go", 5), 7)
	hot := e.Function("main.hot", "main.hot", "main.go", 10)
	for line := range int64(5) {
		e.Sample([]uint64{e.Location(hot, 11+line), main}, 1e7)
	}
	s := openStore(t, t.TempDir(), store.Options{Retention: -1})
	must(t, s.Append(context.Background(), "t", []profiles.RawProfile{{Labels: cpuLabels("a"), ID: profiles.ID{1}, TimeNS: at.UnixNano(), Raw: e.Append(nil)}}))
	engine, dir := New(Options{}, s), t.TempDir()
	write := func(name, text string) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	write("main.go", "package main\n\nfunc main() {\n\tfor i := range 10 {\n\t\tprintln(hot(i))\n\t}\n}\n\nfunc hot(i int) int {\n\treturn i * 2\n}\n")
	for _, tt := range []struct {
		pgo     *profiles.PGO
		samples int
		frames  []int
	}{
		{nil, 5, []int{2}}, {&profiles.PGO{KeepFrames: 1}, 5, []int{1}}, {&profiles.PGO{KeepFrames: 2, AggregateCallees: true}, 1, []int{2}}, {&profiles.PGO{}, 5, []int{2}},
	} {
		raw, _, err := engine.MergePprof(context.Background(), &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: at.UnixMilli(), EndMS: at.UnixMilli(), PGO: tt.pgo})
		must(t, err)
		p, err := googlepprof.ParseData(raw)
		if err != nil || p.CheckValid() != nil {
			t.Fatal(err, p.CheckValid())
		}
		var sum int64
		for _, sample := range p.Sample {
			if sum += sample.Value[0]; !slices.Contains(tt.frames, len(sample.Location)) {
				t.Errorf("%+v: a stack of %d frames", tt.pgo, len(sample.Location))
			}
		}
		if sum != 5e7 || len(p.Sample) != tt.samples {
			t.Errorf("%+v: %d samples of %d", tt.pgo, len(p.Sample), sum)
		}
		// As `go build -pgo` does, which compiles all of Go's library again.
		write("default.pgo", string(raw))
		for _, args := range [][]string{
			{"tool", "preprofile", "-i", "default.pgo", "-o", "pre"}, {"tool", "compile", "-p", "main", "-complete", "-pgoprofile=pre", "-o", "main.o", "main.go"},
		} {
			build := exec.Command("go", args...)
			build.Dir = dir
			build.Env = append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=local")
			if out, err := build.CombinedOutput(); err != nil {
				t.Errorf("%+v: %v: %v\n%s", tt.pgo, args, err, out)
			}
		}
		if pre, err := os.ReadFile(filepath.Join(dir, "pre")); err != nil || !bytes.Contains(pre, []byte("main.hot")) != (tt.pgo != nil && tt.pgo.KeepFrames == 1) {
			t.Errorf("%+v: the compiler sees %q, %v", tt.pgo, pre, err)
		}
	}
}

// Head, blocks and compacted blocks keep the file of each function and the line of each frame.
func TestMergePprof_KeepsFilesAndLines(t *testing.T) {
	ctx, at := context.Background(), time.UnixMilli(1_700_000_000_000)
	s := openStore(t, t.TempDir(), store.Options{Retention: -1})
	want := map[string]int64{}
	engine := New(Options{}, s)
	check := func(where string) {
		t.Helper()
		raw, _, err := engine.MergePprof(ctx, &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: at.UnixMilli(), EndMS: at.Add(time.Hour).UnixMilli()})
		must(t, err)
		p, err := googlepprof.ParseData(raw)
		must(t, err)
		got := map[string]int64{}
		for _, sample := range p.Sample {
			var frames []string
			for _, l := range sample.Location {
				f := l.Line[0].Function
				frames = append(frames, fmt.Sprintf("%s %s:%d+%d", f.Name, f.Filename, f.StartLine, l.Line[0].Line))
			}
			got[strings.Join(frames, " < ")] += sample.Value[0]
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: %v\nwant %v", where, got, want)
		}
	}
	for n := range int64(4) { // as many blocks as one compaction takes
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Period("cpu", "nanoseconds", 1e7)
		main := e.Location(e.Function("main", "main", "main.go", 5), 7)
		hot := e.Function("hot", "hot", "hot.go", 10)
		for line := range int64(3) {
			e.Sample([]uint64{e.Location(hot, 11+line), main}, n+line+1)
			want[fmt.Sprintf("hot hot.go:10+%d < main main.go:5+7", 11+line)] += n + line + 1
		}
		id, now := profiles.ID{1, byte(n)}, at.Add(time.Duration(n)*time.Minute)
		must(t, s.Append(ctx, "t", []profiles.RawProfile{{Labels: cpuLabels("a"), ID: id, TimeNS: now.UnixNano(), Raw: e.Append(nil)}}))
		check("head")
		must(t, s.Flush(ctx))
		check("blocks")
	}
	must(t, s.Compact(ctx))
	check("a compacted block")
}
