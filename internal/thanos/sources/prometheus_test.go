package sources

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const startMS = 1_700_000_000_000

// server is a server with the HTTP API and the remote read endpoint of Prometheus.
type server struct {
	*httptest.Server
	store *tsdb.Store

	mu       sync.Mutex
	external labels.Labels
	status   int    // of every response; 0: those of the API
	far      bool   // the server has a remote_read
	reads    int    // requests to the remote read endpoint
	blocks   string // flag: the range of a block of the head
}

func newServer(t *testing.T, external labels.Labels) *server {
	t.Helper()
	return newServerOn(t, t.TempDir(), external)
}

// newServerOn returns a server with the blocks of a directory.
func newServerOn(t *testing.T, dir string, external labels.Labels) *server {
	t.Helper()
	quiet, reg := slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	store, err := tsdb.New(tsdb.Options{Dir: dir, Retention: -1}, quiet, reg, metrics.NewSet())
	if err == nil {
		err = store.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := &server{store: store, external: external, blocks: "1ms"}
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{
		Queryable: store, Exemplars: store, Parser: parser.NewParser(parser.Options{}), Logger: quiet,
		RemoteRead: remoteread.NewServer(remoteread.Options{ExternalLabels: s.externalLabels}, store, quiet, metrics.NewSet()),
		Config: func() config.Config {
			return config.Config{GlobalConfig: config.GlobalConfig{ExternalLabels: s.externalLabels()}, RemoteReadConfigs: s.readsFrom()}
		},
		Ready: func(h http.Handler) http.Handler { return h },
	}).Register(mux, "/api/v1")
	mux.HandleFunc("GET /api/v1/status/flags", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"status":"success","data":{"storage.tsdb.min-block-duration":%q}}`, s.blocks)
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, "# TYPE prometheus_tsdb_lowest_timestamp_seconds gauge\nprometheus_tsdb_lowest_timestamp_seconds %d\n", startMS/1000)
		families, _ := reg.Gather()
		for _, f := range families {
			if f.GetType() == dto.MetricType_GAUGE && len(f.GetMetric()) == 1 && len(f.GetMetric()[0].GetLabel()) == 0 {
				fmt.Fprintf(w, "%s %g\n", f.GetName(), f.GetMetric()[0].GetGauge().GetValue())
			}
		}
	})
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		status := s.status
		if r.URL.Path == "/api/v1/read" {
			s.reads++
		}
		s.mu.Unlock()
		if status != 0 {
			w.WriteHeader(status)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.Close(); _ = store.Close() })
	return s
}

func (s *server) externalLabels() labels.Labels {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.external
}

func (s *server) readsFrom() []*config.RemoteReadConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.far {
		return nil
	}
	return []*config.RemoteReadConfig{{URL: &commonconfig.URL{URL: &url.URL{Scheme: "http", Host: "far"}}}}
}

// set changes the external labels and the status of all responses.
func (s *server) set(external labels.Labels, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.external, s.status = external, status
}

// takeReads returns the number of remote reads since the last call.
func (s *server) takeReads() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.reads
	s.reads = 0
	return n
}

// add appends a sample to each series, addAt one of a time.
func (s *server) add(t *testing.T, all ...labels.Labels) {
	t.Helper()
	s.addAt(t, startMS, all...)
}

func (s *server) addAt(t *testing.T, ms int64, all ...labels.Labels) {
	t.Helper()
	app := s.store.Appender(context.Background())
	for _, lset := range all {
		ref, err := app.Append(0, lset, ms, 1)
		if err == nil {
			_, err = app.AppendExemplar(ref, lset, exemplar.Exemplar{Labels: labels.FromStrings("trace_id", "1"), Value: 1, Ts: ms, HasTs: true})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// newStore returns the store of the server after its first refresh.
func newStore(t *testing.T, from *server, change func(*PrometheusOptions)) *Prometheus {
	t.Helper()
	u, err := url.Parse(from.URL)
	if err != nil {
		t.Fatal(err)
	}
	o := PrometheusOptions{URL: u, HTTP: from.Client(), SortBytesMax: 1 << 20}
	if change != nil {
		change(&o)
	}
	s := NewPrometheus(o, telemetry.New())
	if err := s.Refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func metric(pairs ...string) labels.Labels {
	return labels.FromStrings(append([]string{"__name__", "m"}, pairs...)...)
}

var (
	euA = labels.FromStrings("cluster", "eu", "replica", "a")
	ofM = labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")
)

// list returns the label sets of a selection.
func list(t *testing.T, q series.Querier, matchers ...*labels.Matcher) (all []string, err error) {
	t.Helper()
	set := q.Select(context.Background(), series.SelectOptions{}, matchers...)
	var builder labels.ScratchBuilder
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, lset.String())
	}
	return all, errors.Join(set.Err(), q.Close())
}

func open(t *testing.T, s *Prometheus, mint, maxt int64) series.Querier {
	t.Helper()
	q, err := s.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func TestPrometheus_RefreshReadsLabelsAndTimeRange(t *testing.T) {
	from := newServer(t, euA)
	minTime := int64(math.MinInt64)
	s := newStore(t, from, func(o *PrometheusOptions) { o.MinTimeMS = func() int64 { return minTime } })
	info, err := s.Info(context.Background())
	if err != nil || len(info.LabelSets) != 1 || !labels.Equal(info.LabelSets[0], euA) || info.Store.TimeRange != (storeapi.TimeRange{MinMS: startMS, MaxMS: math.MaxInt64}) {
		t.Errorf("%+v, %v", info, err)
	}
	minTime = startMS + 5
	if info, err = s.Info(context.Background()); err != nil || info.Store.TimeRange.MinMS != startMS+5 {
		t.Errorf("%+v, %v", info.Store, err)
	}
	if s.up.Get() != 1 {
		t.Error("up", s.up.Get())
	}
}

func TestPrometheus_AfterAFailedRefreshInfoFailsAndTheLabelsStay(t *testing.T) {
	from := newServer(t, euA)
	s, ctx := newStore(t, from, nil), context.Background()
	for _, c := range []struct {
		external labels.Labels
		status   int
		want     string
	}{
		{euA, http.StatusServiceUnavailable, "503"},
		{labels.EmptyLabels(), 0, "external labels were removed"},
	} {
		from.set(c.external, c.status)
		err := s.Refresh(ctx)
		if err == nil || errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), c.want) {
			t.Error(err)
		}
		if _, err := s.Info(ctx); !errors.Is(err, storeapi.ErrUnavailable) {
			t.Error(err)
		}
		if !labels.Equal(s.ExternalLabels(), euA) || s.up.Get() != 0 {
			t.Error(s.ExternalLabels(), s.up.Get())
		}
	}
	other := labels.FromStrings("cluster", "us")
	from.set(other, 0)
	if err := s.Refresh(ctx); err != nil || !labels.Equal(s.ExternalLabels(), other) || s.up.Get() != 1 {
		t.Error(err, s.ExternalLabels())
	}
}

func TestPrometheus_PrometheusWithoutExternalLabelsIsUnsupported(t *testing.T) {
	from := newServer(t, labels.EmptyLabels())
	u, _ := url.Parse(from.URL)
	s := NewPrometheus(PrometheusOptions{URL: u, HTTP: from.Client()}, telemetry.New())
	if _, err := s.Info(context.Background()); !errors.Is(err, storeapi.ErrUnavailable) {
		t.Error(err)
	}
	if err := s.Refresh(context.Background()); !errors.Is(err, ErrUnsupported) {
		t.Error(err)
	}
}

func TestPrometheus_ListsLabelsAndExemplars(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"), metric("job", "b"))
	s, ctx := newStore(t, from, nil), context.Background()
	r := storeapi.LabelsRequest{MinMS: startMS, MaxMS: startMS}
	if names, _, err := s.LabelNames(ctx, r); err != nil || !slices.Equal(names, []string{"__name__", "job"}) {
		t.Error(names, err)
	}
	r.Label, r.Matchers = "job", []*labels.Matcher{labels.MustNewMatcher(labels.MatchNotEqual, "job", "a")}
	if values, _, err := s.LabelValues(ctx, r); err != nil || !slices.Equal(values, []string{"b"}) {
		t.Error(values, err)
	}
	if found, _, err := s.Exemplars(ctx, storeapi.ExemplarsRequest{Query: `m{job="a"}`, MinMS: startMS, MaxMS: startMS}); err != nil || len(found) != 1 {
		t.Error(found, err)
	}
	if _, _, err := s.Exemplars(ctx, storeapi.ExemplarsRequest{Query: `m{`, MinMS: startMS, MaxMS: startMS}); !errors.Is(err, storeapi.ErrBadRequest) {
		t.Error(err)
	}
	if s.api == nil {
		t.Error("no client")
	}
}

func TestPrometheus_SeriesHaveNoExternalLabels(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"), metric("job", "b"), labels.FromStrings("__name__", "n"))
	s := newStore(t, from, nil)
	want := []string{`{__name__="m", job="a"}`, `{__name__="m", job="b"}`}
	if got, err := list(t, open(t, s, startMS, startMS), ofM); err != nil || !slices.Equal(got, want) {
		t.Error(got, err)
	}
	q := open(t, s, startMS, startMS)
	names, err := q.LabelNames(context.Background(), series.SelectOptions{})
	if err != nil || !slices.Equal(names, []string{"__name__", "job"}) {
		t.Error(names, err)
	}
	from.takeReads()
	alone := labelsOnly{q}
	if names, err := alone.LabelNames(context.Background(), series.SelectOptions{}); err != nil || !slices.Equal(names, []string{"__name__", "job"}) {
		t.Error(names, err)
	}
	if got, err := list(t, alone, ofM); err != nil || !slices.Equal(got, want) || from.takeReads() != 0 {
		t.Error(got, err)
	}
}

// labelsOnly selects no chunks.
type labelsOnly struct{ series.Querier }

func (l labelsOnly) Select(ctx context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return l.Querier.Select(ctx, series.SelectOptions{LabelsOnly: true}, matchers...)
}

func (l labelsOnly) LabelNames(ctx context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) ([]string, error) {
	return l.Querier.LabelNames(ctx, series.SelectOptions{LabelsOnly: true}, matchers...)
}

// An external label replaces a series' own label of the same name. Within a selection it is constant, so that the merged
// series are in order.
func TestPrometheus_ValuesOfAnExternalLabelAreSelectedSeparately(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "eu", "job", "c"), metric("cluster", "us", "job", "b"), metric("job", "a"), metric("job", "d"))
	s := newStore(t, from, nil)
	got, err := list(t, open(t, s, startMS, startMS), ofM)
	want := []string{`{__name__="m", job="a"}`, `{__name__="m", job="b"}`, `{__name__="m", job="c"}`, `{__name__="m", job="d"}`}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if n := from.takeReads(); n != 3 {
		t.Errorf("%d reads", n)
	}
	if !s.reads.TryAcquire(defaultReadsMax) {
		t.Error("a closed querier holds slots")
	}
}

// If there are more values than selections, the label is kept. The StoreAPI server replaces it and sorts.
func TestPrometheus_ManyValuesOfAnExternalLabelAreOneSelection(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("cluster", "us", "job", "b"), metric("job", "a"))
	s := newStore(t, from, func(o *PrometheusOptions) { o.SelectionsMax = 1 })
	q := open(t, s, startMS, startMS)
	names, err := q.LabelNames(context.Background(), series.SelectOptions{}, ofM)
	if err != nil || !slices.Equal(names, []string{"__name__", "cluster", "job"}) {
		t.Error(names, err)
	}
	got, err := list(t, q, ofM)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []string{`{__name__="m", cluster="eu", job="a"}`, `{__name__="m", cluster="us", job="b"}`}) {
		t.Errorf("%v, %v", got, err)
	}
	if n := from.takeReads(); n != 1 {
		t.Errorf("%d reads", n)
	}
}

func TestPrometheus_SelectionsWaitForSlots(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"))
	s := newStore(t, from, func(o *PrometheusOptions) { o.SelectionsMax, o.ReadsMax = 1, 1 })
	first := open(t, s, startMS, startMS)
	first.Select(context.Background(), series.SelectOptions{}, ofM)
	ctx, cancel := context.WithCancel(context.Background())
	second := open(t, s, startMS, startMS)
	failed := make(chan error, 1)
	go func() { failed <- second.Select(ctx, series.SelectOptions{}, ofM).Err() }()
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := errors.Join(second.Close(), first.Close()); err != nil {
		t.Error(err)
	}
	if got, err := list(t, open(t, s, startMS, startMS), ofM); err != nil || len(got) != 1 {
		t.Error(got, err)
	}
}

func TestPrometheus_NothingBeforeTheMinimumTime(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"))
	s := newStore(t, from, func(o *PrometheusOptions) { o.MinTimeMS = func() int64 { return startMS + 1 } })
	q := open(t, s, startMS, startMS)
	if names, err := q.LabelNames(context.Background(), series.SelectOptions{}); names != nil || err != nil {
		t.Error(names, err)
	}
	if got, err := list(t, q, ofM); got != nil || err != nil || from.takeReads() != 0 {
		t.Error(got, err)
	}
}

// A response without an external label shows that the configuration has changed.
func TestPrometheus_AMissingExternalLabelTriggersARefresh(t *testing.T) {
	from := newServer(t, euA)
	from.add(t, metric("job", "a"))
	s := newStore(t, from, nil)
	from.set(labels.FromStrings("cluster", "eu"), 0)
	for range 2 { // the second finds a trigger that is set already
		if _, err := list(t, open(t, s, startMS, startMS), ofM); !errors.Is(err, storeapi.ErrUnavailable) {
			t.Error(err)
		}
	}
	select {
	case <-s.Changed():
	case <-time.After(time.Minute):
		t.Error("no refresh is triggered")
	}
}

func TestPrometheus_FailuresOfPrometheusHaveErrorsOfTheStoreAPI(t *testing.T) {
	from := newServer(t, euA)
	s, ctx := newStore(t, from, nil), context.Background()
	for status, want := range map[int]error{http.StatusServiceUnavailable: storeapi.ErrUnavailable, http.StatusUnprocessableEntity: storeapi.ErrBadRequest} {
		from.set(euA, status)
		_, _, namesErr := s.LabelNames(ctx, storeapi.LabelsRequest{})
		_, selectErr := list(t, open(t, s, startMS, startMS), ofM)
		q := labelsOnly{open(t, s, startMS, startMS)}
		_, listErr := list(t, q, ofM)
		for _, err := range []error{namesErr, selectErr, listErr} {
			if !errors.Is(err, want) {
				t.Errorf("status %d: %v", status, err)
			}
		}
	}
}

func TestToStore_MapsErrors(t *testing.T) {
	other := errors.New("other")
	for err, want := range map[error]error{
		remoteread.ErrUnavailable: storeapi.ErrUnavailable,
		errUnavailable:            storeapi.ErrUnavailable,
		remoteread.ErrLimit:       storeapi.ErrLimit,
		remoteread.ErrRefused:     storeapi.ErrBadRequest,
		errRefused:                storeapi.ErrBadRequest,
		other:                     other,
	} {
		if got := toStore(err); !errors.Is(got, want) || !errors.Is(got, err) {
			t.Error(err, got)
		}
	}
	if toStore(nil) != nil {
		t.Error("an error without one")
	}
}

func TestErrorMapper_SeriesOutOfOrderAreSortedFromThenOn(t *testing.T) {
	s := &Prometheus{}
	m := errorMapper{series.Failed(remoteread.ErrLimit), s}
	if err := m.Err(); !errors.Is(err, storeapi.ErrUnavailable) || !s.unsorted.Load() {
		t.Error(err)
	}
	if err := m.Err(); !errors.Is(err, storeapi.ErrLimit) {
		t.Error(err)
	}
	if m.Ahead() != nil {
		t.Error("a series ahead of none")
	}
}

func TestSortedLabels_SortsDropsDuplicatesAndHasALimit(t *testing.T) {
	newSet := func(bytesMax int) series.Set {
		return sortedLabels(bytesMax, func(f func(labels.Labels) error) ([]string, error) {
			for _, job := range []string{"b", "a", "b"} {
				if err := f(metric("job", job)); err != nil {
					return nil, err
				}
			}
			return []string{"cut short"}, nil
		})
	}
	set, n := newSet(1<<10), 0
	var last []byte
	for set.Next() {
		if n++; n > 1 && labelenc.Compare(last, set.Labels()) >= 0 || len(set.Chunks()) > 0 {
			t.Error("out of order")
		}
		last = set.Labels()
	}
	if n != 2 || set.Err() != nil || len(set.Warnings()) != 1 {
		t.Error(n, set.Err(), set.Warnings())
	}
	set = newSet(300)
	if set.Next() || !errors.Is(set.Err(), series.ErrSortLimit) {
		t.Error(set.Err())
	}
}
