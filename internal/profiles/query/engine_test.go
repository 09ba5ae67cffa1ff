package query

import (
	"context"
	"io"
	"log/slog"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func openStore(t testing.TB, dir string, o store.Options) *store.Store {
	t.Helper()
	o.Dir = dir
	s, err := store.New(o, quiet, nil)
	must(t, err)
	must(t, s.Open())
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// cpu returns a profile of samples and cpu time: each stack, leaf first, with a count.
func cpu(stacks map[string][]string, counts map[string]int64) []byte {
	e := pprof.NewEncoder()
	e.SampleType("samples", "count")
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1e7)
	ids := map[string]uint64{}
	for name, stack := range stacks {
		var locs []uint64
		for _, f := range stack {
			if ids[f] == 0 {
				ids[f] = e.Location(e.Function(f, f, f+".go", 1), 2)
			}
			locs = append(locs, ids[f])
		}
		e.Sample(locs, counts[name], counts[name]*1e7)
	}
	return e.Append(nil)
}

var cpuType = profiles.Type{Name: "process_cpu", SampleType: "cpu", SampleUnit: "nanoseconds", PeriodType: "cpu", PeriodUnit: "nanoseconds"}

func cpuLabels(service string) []byte {
	return labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", service)
}

// viewing keeps the views that a store returned.
type viewing struct {
	Viewer
	views []*store.View
}

func (v *viewing) View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error) {
	view, err := v.Viewer.View(ctx, tenant, minNS, maxNS)
	if view != nil {
		v.views = append(v.views, view)
	}
	return view, err
}

// The engine closes its views: an open view holds the files of its blocks.
func TestEngine_ClosesItsViews(t *testing.T) {
	ctx, at := context.Background(), time.UnixMilli(1_700_000_000_000)
	s := openStore(t, t.TempDir(), store.Options{Retention: -1})
	must(t, s.Append(ctx, "a", []profiles.RawProfile{{Labels: cpuLabels("a"), ID: profiles.ID{1}, TimeNS: at.UnixNano(), Raw: cpu(map[string][]string{"x": {"leaf", "main"}}, map[string]int64{"x": 3})}}))
	v := &viewing{Viewer: s}
	e := New(Options{}, v)
	result, err := e.SelectSeries(ctx, &profiles.SeriesRequest{Tenant: "a", Type: cpuType, StartMS: at.UnixMilli() - 30_000, EndMS: at.UnixMilli() + 15_000, StepMS: 15_000})
	must(t, err)
	result.Close()
	if _, err := e.MergeFlame(ctx, &profiles.MergeRequest{Tenant: "a", Type: cpuType, StartMS: 0, EndMS: at.UnixMilli()}); err != nil {
		t.Fatal(err)
	}
	if len(v.views) < 2 {
		t.Fatalf("%d views", len(v.views))
	}
	for i, view := range v.views {
		if view.Sources != nil {
			t.Errorf("view %d is open", i)
		}
	}
}

// exemplarLabels returns the labels of an exemplar.
func exemplarLabels(r *profiles.SeriesResult, x *profiles.Exemplar) []byte {
	set, _ := labelenc.AppendWithout(nil, r.Sets[x.Set], r.GroupBy) // stored sets are valid
	return set
}

// must ends a test that cannot go on after an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
