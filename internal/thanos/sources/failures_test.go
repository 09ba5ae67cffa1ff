package sources

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// without is a client for which some paths of a server are unavailable.
func without(from *server, paths func(path string) bool) *http.Client {
	return &http.Client{Transport: failingTransport{from.Client().Transport, paths}}
}

type failingTransport struct {
	http.RoundTripper
	fails func(path string) bool
}

func (f failingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.fails(r.URL.Path) {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errors.New("cut off")
	}
	return f.RoundTripper.RoundTrip(r)
}

func TestOptions_OneReadIsNotReplaced(t *testing.T) {
	if o := (PrometheusOptions{SelectionsMax: 1, ReadsMax: 1}).withDefaults(); o.SelectionsMax != 1 || o.ReadsMax != 1 {
		t.Errorf("%+v", o)
	}
}

func TestPrometheus_RefreshFailsWithoutTheTimeRange(t *testing.T) {
	from := newServer(t, euA)
	failing := false
	s := newStore(t, from, func(o *PrometheusOptions) {
		o.HTTP = without(from, func(path string) bool { return failing && path == "/metrics" })
	})
	failing = true
	if err := s.Refresh(context.Background()); err == nil || s.up.Get() != 0 {
		t.Error(err, s.up.Get())
	}
}

func TestPrometheus_FailedListsAreUnavailable(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "us", "job", "b"), metric("job", "a"))
	s, ctx := newStore(t, from, nil), context.Background()
	from.set(euA, http.StatusServiceUnavailable)
	if _, _, err := s.LabelValues(ctx, storeapi.LabelsRequest{Label: "job"}); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(err)
	}
	q := open(t, s, startMS, startMS)
	if names, err := q.LabelNames(ctx, series.SelectOptions{}); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(names, err)
	}
	if names, err := (labelsOnly{q}).LabelNames(ctx, series.SelectOptions{}); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(names, err)
	}
	from.set(euA, 0)
	s = newStore(t, from, func(o *PrometheusOptions) {
		o.HTTP = without(from, func(path string) bool { return strings.HasSuffix(path, "/values") })
	})
	q = open(t, s, startMS, startMS)
	if names, err := q.LabelNames(ctx, series.SelectOptions{}); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(names, err)
	}
	if got, err := list(t, q, ofM); got != nil || !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(got, err)
	}
}

func TestPrometheus_ARefreshIsTriggeredOnce(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"))
	s := newStore(t, from, nil)
	from.set(labels.FromStrings("cluster", "eu"), 0)
	for range 3 {
		if _, err := list(t, open(t, s, startMS, startMS), ofM); !errors.Is(err, storeapi.ErrUnavailable) {
			t.Error(err)
		}
	}
	if n := len(s.Changed()); n != 1 {
		t.Errorf("%d triggers", n)
	}
}

// Names are listed before series are selected, and may be listed again.
func TestPrometheus_LabelsListedTwiceAreSelectedOnce(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "us", "job", "b"), metric("job", "a"))
	s := newStore(t, from, nil)
	q := open(t, s, startMS, startMS)
	for range 2 {
		if names, err := q.LabelNames(context.Background(), series.SelectOptions{}, ofM); err != nil || !slices.Equal(names, []string{"__name__", "job"}) {
			t.Error(names, err)
		}
	}
	from.takeReads()
	got, err := list(t, q, ofM)
	if n := from.takeReads(); err != nil || len(got) != 2 || n != 2 {
		t.Errorf("%v of %d reads, %v", got, n, err)
	}
}

// A series must not come from two selections: its samples would be sent twice.
func TestPrometheus_EachSeriesIsOfOneSelection(t *testing.T) {
	for _, tt := range []struct {
		all   []labels.Labels
		reads int
	}{
		{[]labels.Labels{metric("cluster", "eu", "job", "c"), metric("cluster", "us", "job", "b"), metric("job", "a")}, 3},
		{[]labels.Labels{metric("cluster", "us", "job", "b"), metric("job", "a")}, 2},
		{[]labels.Labels{metric("cluster", "eu", "job", "b"), metric("job", "a")}, 2},
	} {
		from := newServer(t, euA)
		from.add(t, tt.all...)
		s := newStore(t, from, func(o *PrometheusOptions) { o.ReadsMax = 3 })
		q := open(t, s, startMS, startMS)
		set, n := q.Select(context.Background(), series.SelectOptions{}, ofM), 0
		if s.reads.TryAcquire(int64(4 - tt.reads)) {
			t.Errorf("%v: fewer slots are taken than reads", tt.all)
		}
		for ; set.Next(); n++ {
			if len(set.Chunks()) != 1 {
				t.Errorf("%q has %d chunks", set.Labels(), len(set.Chunks()))
			}
		}
		if n != len(tt.all) || set.Err() != nil {
			t.Errorf("%d series, %v", n, set.Err())
		}
		if reads := from.takeReads(); reads != tt.reads {
			t.Errorf("%v: %d reads, want %d", tt.all, reads, tt.reads)
		}
		for range 2 {
			if err := q.Close(); err != nil {
				t.Error(err)
			}
		}
		if !s.reads.TryAcquire(3) {
			t.Error("a closed querier holds slots")
		}
	}
}

func TestPrometheus_ValuesOfSeveralExternalLabelsMultiply(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "us", "replica", "b"), metric("cluster", "za", "replica", "c"), metric("job", "a"))
	for most, want := range map[int]int{3: 1, 8: 1, 9: 9} {
		s := newStore(t, from, func(o *PrometheusOptions) { o.SelectionsMax, o.ReadsMax = most, most })
		got, err := list(t, open(t, s, startMS, startMS), ofM)
		if n := from.takeReads(); err != nil || len(got) != 3 && want == 1 || n != want {
			t.Errorf("at most %d selections: %v of %d reads, %v", most, got, n, err)
		}
	}
}

// A label of other series needs no selection, and the selected series have no such label.
func TestPrometheus_ExternalLabelsOfOtherSeriesAreRemoved(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "us", "job", "b"), metric("cluster", "uk", "job", "b"), metric("cluster", "fr", "job", "b"), labels.FromStrings("__name__", "n", "replica", "z"))
	s := newStore(t, from, nil)
	q := open(t, s, startMS, startMS)
	names, err := q.LabelNames(context.Background(), series.SelectOptions{}, ofM)
	if err != nil || !slices.Equal(names, []string{"__name__", "cluster", "job"}) {
		t.Error(names, err)
	}
	if got, err := list(t, q, ofM); err != nil || len(got) != 3 || strings.Contains(fmt.Sprint(got), "replica") {
		t.Error(got, err)
	}
}

// The product of the numbers of values would overflow.
func TestPrometheus_ManyExternalLabelsAreKept(t *testing.T) {
	builder := labels.NewBuilder(labels.EmptyLabels())
	for i := range 33 {
		builder.Set(fmt.Sprintf("external_%02d", i), "x")
	}
	external := builder.Labels()
	from := newServer(t, external)
	for _, value := range []string{"1", "2", "3"} {
		builder = labels.NewBuilder(metric("job", value))
		external.Range(func(l labels.Label) { builder.Set(l.Name, value) })
		from.add(t, builder.Labels())
	}
	q := open(t, newStore(t, from, nil), startMS, startMS).(*querier)
	if names, err := q.LabelNames(context.Background(), series.SelectOptions{}, ofM); err != nil || len(names) != 35 || len(q.keptLabels) != 33 || len(q.split) != 0 {
		t.Errorf("%d names, %d labels are kept and %d are selected, %v", len(names), len(q.keptLabels), len(q.split), err)
	}
}
