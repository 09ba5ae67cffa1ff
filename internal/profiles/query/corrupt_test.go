package query

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

// After any byte of a block was changed, a query either returns the right result, or skips the
// block and names it in a warning.
func TestEngine_CorruptBlockIsAWarning(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	r := rand.New(rand.NewPCG(3, 4))
	var pushes [2][]profiles.RawProfile
	s := openStore(t, dir, store.Options{Retention: -1})
	for i := range pushes {
		for range 15 {
			pushes[i] = append(pushes[i], randomPush(r, nil)...)
		}
		must(t, s.Append(ctx, "t", pushes[i]))
		if i == 0 {
			must(t, s.Flush(ctx))
		}
	}
	must(t, s.Close())
	all, rest := naiveRows(t, append(append([]profiles.RawProfile{}, pushes[0]...), pushes[1]...)), naiveRows(t, pushes[1])
	req := &profiles.SeriesRequest{
		Tenant: "t", Type: cpuType, StartMS: epochMS - 1000, EndMS: epochMS + 40_000, StepMS: 5000, Exemplars: true, GroupBy: []string{"service_name"},
	}
	merge := &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: epochMS - 1000, EndMS: epochMS + 40_000}
	named := 0
	files, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "*", "*"))
	must(t, err)
	for _, path := range files {
		if strings.Contains(path, "wal") {
			continue
		}
		whole, err := os.ReadFile(path)
		must(t, err)
		for range 60 {
			at := r.IntN(len(whole))
			broken := append([]byte{}, whole...)
			if broken[at] ^= byte(1 + r.IntN(255)); r.IntN(6) == 0 {
				broken = broken[:at]
			}
			must(t, os.WriteFile(path, broken, 0o644))
			named += checkBroken(t, dir, req, merge, all, rest)
		}
		must(t, os.WriteFile(path, whole, 0o644))
	}
	if named < 60 {
		t.Errorf("only %d blocks were found corrupt", named)
	}
}

func checkBroken(t *testing.T, dir string, req *profiles.SeriesRequest, merge *profiles.MergeRequest, all, rest []*naiveRow) (named int) {
	t.Helper()
	s, err := store.New(store.Options{Dir: dir, Retention: -1}, quiet, nil)
	must(t, err)
	must(t, s.Open())
	defer s.Close()
	e := New(Options{}, s)
	want := func(warnings []error) []*naiveRow {
		if len(warnings) == 0 {
			return all
		}
		named++
		if !errors.Is(warnings[0], profiles.ErrCorrupt) || !strings.Contains(warnings[0].Error(), "block 0") {
			t.Errorf("warning %v", warnings[0])
		}
		return rest
	}
	result, err := e.SelectSeries(context.Background(), req)
	must(t, err)
	defer result.Close()
	if got, want := spell(result), naiveSelect(want(result.Warnings), req); got != want {
		t.Fatalf("warnings %v:\n%s\nwant\n%s", result.Warnings, got, want)
	}
	flame, err := e.MergeFlame(context.Background(), merge)
	must(t, err)
	got, sums := stacksOf(t, flame), naiveMerge(want(flame.Warnings), merge)
	for stack, v := range sums {
		if got[stack] != v {
			t.Fatalf("warnings %v: %s is %d, want %d", flame.Warnings, stack, got[stack], v)
		}
	}
	return min(named, 1)
}

func TestEngine_RefusesBadRequests(t *testing.T) {
	s := openStore(t, t.TempDir(), store.Options{Retention: -1})
	ctx, e := context.Background(), New(Options{}, s)
	e.pointsMax = 1000
	must(t, s.Append(ctx, "t", randomPush(rand.New(rand.NewPCG(1, 1)), nil)))
	good := profiles.SeriesRequest{Tenant: "t", Type: cpuType, StartMS: 1000, EndMS: 2000, StepMS: 100}
	for name, tt := range map[string]struct {
		change func(r *profiles.SeriesRequest)
		want   error
	}{
		"step 0":            {func(r *profiles.SeriesRequest) { r.StepMS = 0 }, profiles.ErrBadRequest},
		"step below 0":      {func(r *profiles.SeriesRequest) { r.StepMS = -1 }, profiles.ErrBadRequest},
		"an endless step":   {func(r *profiles.SeriesRequest) { r.StepMS = 1 << 62 }, profiles.ErrBadRequest},
		"start after end":   {func(r *profiles.SeriesRequest) { r.StartMS = 3000 }, profiles.ErrBadRequest},
		"too many steps":    {func(r *profiles.SeriesRequest) { r.StepMS = 1; r.EndMS = 1_000_000 }, profiles.ErrLimit},
		"limit below 0":     {func(r *profiles.SeriesRequest) { r.Limit = -1 }, profiles.ErrBadRequest},
		"a strange tenant":  {func(r *profiles.SeriesRequest) { r.Tenant = "../x" }, profiles.ErrBadRequest},
		"all of time":       {func(r *profiles.SeriesRequest) { r.StartMS, r.EndMS = -1<<63, 1<<63-1 }, profiles.ErrLimit},
		"before 1970":       {func(r *profiles.SeriesRequest) { r.StartMS, r.EndMS = -1<<63, -5 }, nil},
		"an unknown tenant": {func(r *profiles.SeriesRequest) { r.Tenant = "unknown" }, nil},
		"an unknown type":   {func(r *profiles.SeriesRequest) { r.Type.Name = "nothing" }, nil},
		"one step, far off": {func(r *profiles.SeriesRequest) { r.StartMS, r.EndMS = 1<<62, 1<<63-1 }, nil},
	} {
		req := good
		tt.change(&req)
		result, err := e.SelectSeries(ctx, &req)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if err == nil && len(result.Series) != 0 {
			t.Errorf("%s: %d series", name, len(result.Series))
		}
		result.Close()
	}
	if _, err := e.MergeFlame(ctx, &profiles.MergeRequest{Tenant: "t", Type: cpuType, StartMS: 2, EndMS: 1}); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("a merge with start after end: %v", err)
	}
	if _, err := e.MergeFlame(ctx, &profiles.MergeRequest{Tenant: "t", Type: cpuType, EndMS: 1, MaxNodes: -1}); !errors.Is(err, profiles.ErrBadRequest) {
		t.Errorf("less than no nodes: %v", err)
	}
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := e.MergeFlame(gone, &profiles.MergeRequest{Tenant: "t", Type: cpuType, EndMS: 1 << 62}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A truncated flame graph has at most MaxNodes nodes. The children of a node that are left out are summed in a node "other".
func TestMergeFlame_MaxNodesKeepsTheGreatest(t *testing.T) {
	s := openStore(t, t.TempDir(), store.Options{Retention: -1})
	ctx, e := context.Background(), New(Options{}, s)
	raw := cpu(map[string][]string{"a": {"a", "main"}, "b": {"b", "main"}, "c": {"c", "b", "main"}, "d": {"d", "main"}}, map[string]int64{"a": 5, "b": 3, "c": 2, "d": 1})
	must(t, s.Append(ctx, "t", []profiles.RawProfile{{Labels: cpuLabels("a"), TimeNS: 1, Raw: raw}}))
	flame, err := e.MergeFlame(ctx, &profiles.MergeRequest{Tenant: "t", Type: cpuType, EndMS: 1000, MaxNodes: 4})
	must(t, err)
	got := stacksOf(t, flame)
	want := map[string]int64{"main;a": 5e7, "main;b": 3e7, "main;b;other": 2e7, "main;other": 1e7}
	if len(got) != len(want) || flame.MaxSelf != 5e7 {
		t.Fatalf("%v, at most %d, want %v", got, flame.MaxSelf, want)
	}
	for stack, v := range want {
		if got[stack] != v {
			t.Errorf("%s is %d, want %d", stack, got[stack], v)
		}
	}
}
