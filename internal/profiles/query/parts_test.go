package query

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

const partsMS = 1_700_000_000_000

// serviceProfile is a profile of a service, whose main calls the given number of its own functions.
func serviceProfile(service string, number byte, functions int, atMS int64) profiles.RawProfile {
	stacks, counts := map[string][]string{}, map[string]int64{}
	for i := range functions {
		name := fmt.Sprintf("%s.function%d", service, i)
		stacks[name], counts[name] = []string{name, "main"}, int64(i+1)
	}
	return profiles.RawProfile{Labels: cpuLabels(service), ID: profiles.ID{number, 1}, TimeNS: atMS * 1e6, Raw: cpu(stacks, counts)}
}

func mergeOf(t *testing.T, s *store.Store, service string) *profiles.FlameGraph {
	t.Helper()
	req := &profiles.MergeRequest{Tenant: "anonymous", Type: cpuType, StartMS: partsMS - 1000, EndMS: partsMS + 1000}
	if service != "" {
		req.Matchers = []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, profiles.LabelService, service)}
	}
	flame, err := New(Options{}, s).MergeFlame(context.Background(), req)
	if err != nil || len(flame.Warnings) > 0 {
		t.Fatal(err, flame)
	}
	return flame
}

func blocksIn(t *testing.T, dir string) int {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "profiles", "anonymous", "*", "index"))
	must(t, err)
	return len(found)
}

func symbolBytes(t *testing.T, set *metrics.Set) float64 {
	t.Helper()
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for line := range strings.Lines(page.String()) {
		if text, ok := strings.CutPrefix(line, `ferula_profiles_memory_bytes{kind="symbols"} `); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			must(t, err)
			return v
		}
	}
	t.Fatal("the metric is not on the page")
	return 0
}

func TestMergeFlame_OneServiceOfTenDecodesItsOwnSymbols(t *testing.T) {
	const services, functions = 10, 100
	dir, ctx := t.TempDir(), context.Background()
	s := openStore(t, dir, store.Options{Retention: -1})
	for round := range 4 { // four blocks, which are merged
		var pushed []profiles.RawProfile
		for i := range services {
			pushed = append(pushed, serviceProfile(fmt.Sprint("service", i), byte(round*services+i), functions, partsMS+int64(round)))
		}
		must(t, s.Append(ctx, "anonymous", pushed))
		must(t, s.Flush(ctx))
	}
	for _, compacted := range []bool{false, true} {
		if compacted {
			must(t, s.Compact(ctx))
			if n := blocksIn(t, dir); n != 1 {
				t.Fatalf("%d blocks", n)
			}
		}
		must(t, s.Close())
		set := metrics.NewSet()
		var err error
		if s, err = store.New(store.Options{Dir: dir, Retention: -1}, quiet, set); err != nil {
			t.Fatal(err)
		}
		must(t, s.Open())
		const total = 4 * functions * (functions + 1) / 2 * 1e7 // of a service
		if flame := mergeOf(t, s, "service3"); flame.Total != total || len(flame.Names) != functions+2 {
			t.Errorf("one service: %d in %d functions", flame.Total, len(flame.Names))
		}
		one := symbolBytes(t, set)
		if flame := mergeOf(t, s, ""); flame.Total != services*total || len(flame.Names) != services*functions+2 {
			t.Errorf("all services: %d in %d functions", flame.Total, len(flame.Names))
		}
		if all := symbolBytes(t, set); one <= 0 || one > 0.15*all {
			t.Errorf("one service decodes %v bytes of %v", one, all)
		}
	}
	must(t, s.Close())
}

// The block in testdata was written by the first version of the format. It has the services one and two with 3 functions
// each, and a span of one sample. Later versions must read it.
func TestMergeFlame_BlocksOfTheFirstVersionAreReadAndMerged(t *testing.T) {
	const name = "01M8G8ZBEQZPKQVMFT43BH883Q"
	dir, ctx := t.TempDir(), context.Background()
	to := filepath.Join(dir, "profiles", "anonymous", name)
	must(t, os.MkdirAll(filepath.Dir(to), 0o700))
	must(t, os.CopyFS(to, os.DirFS(filepath.Join("testdata", name))))
	s := openStore(t, dir, store.Options{Retention: -1})
	check := func(when string, rounds int64) {
		t.Helper()
		for service, want := range map[string]int64{"one": 6e7, "two": 6e7, "": 12e7} {
			if flame := mergeOf(t, s, service); flame.Total != rounds*want {
				t.Errorf("%s, service %q: %d, want %d", when, service, flame.Total, rounds*want)
			}
		}
		flame, err := New(Options{}, s).MergeFlame(ctx, &profiles.MergeRequest{Tenant: "anonymous", Type: cpuType, StartMS: partsMS - 1000, EndMS: partsMS + 1000, Spans: []uint64{0xAB}})
		if err != nil || flame.Total != 1e7 || len(flame.Levels) != 3 {
			t.Errorf("%s, span: %+v, %v", when, flame, err)
		}
	}
	check("alone", 1)
	for round := range 3 {
		must(t, s.Append(ctx, "anonymous", []profiles.RawProfile{serviceProfile("one", byte(10+round), 3, partsMS+int64(round)), serviceProfile("two", byte(20+round), 3, partsMS+int64(round))}))
		must(t, s.Flush(ctx))
	}
	check("next to blocks of this version", 4)
	must(t, s.Compact(ctx))
	if n := blocksIn(t, dir); n != 1 {
		t.Fatalf("%d blocks", n)
	}
	check("merged", 4)
}
