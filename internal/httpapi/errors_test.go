package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/annotations"
)

// failing is a storage that fails in one operation. It has count series and returns
// selected after them. The zero value does not fail.
type failing struct {
	open, names, values, selected, exemplars error
	count                                    int
	warning                                  error
	list                                     []string // of label names and values
	closed                                   func()
}

func (f failing) Querier(int64, int64) (storage.Querier, error) { return failingQuerier{f: f}, f.open }
func (f failing) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return nil, errors.New("not used")
}
func (f failing) ExemplarQuerier(context.Context) (storage.ExemplarQuerier, error) {
	return nil, f.exemplars
}

// switchableStorage is a failing storage that a test replaces.
type switchableStorage struct{ failing }

var failingAPIs = sync.OnceValues(func() (pair, *switchableStorage) {
	now := &switchableStorage{}
	p := sharedEnv.pairs["default"].parts
	p.queryable, p.exemplars = now, now
	return p.pair(), now
})

// failingPair returns a pair of APIs and their storage, which the test changes.
func failingPair(t *testing.T) (pair, *switchableStorage) {
	t.Helper()
	shared(t)
	p, now := failingAPIs()
	t.Cleanup(func() { now.failing = failing{} })
	return p, now
}

type failingQuerier struct {
	storage.LabelQuerier
	f failing
}

func (q failingQuerier) Close() error {
	if q.f.closed != nil {
		q.f.closed()
	}
	return nil
}

func (q failingQuerier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return q.f.list, q.warnings(), q.f.names
}

func (q failingQuerier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return q.f.list, q.warnings(), q.f.values
}

func (q failingQuerier) warnings() annotations.Annotations {
	if q.f.warning == nil {
		return nil
	}
	return annotations.New().Add(q.f.warning)
}

func (q failingQuerier) Select(context.Context, bool, *storage.SelectHints, ...*labels.Matcher) storage.SeriesSet {
	return &failingSet{q: q, i: -1}
}

type failingSet struct {
	q failingQuerier
	i int
}

func (s *failingSet) Next() bool {
	s.i++
	return s.i < s.q.f.count
}

func (s *failingSet) At() storage.Series {
	return storage.NewListSeries(labels.FromStrings("__name__", "made_up", "i", fmt.Sprintf("%08d", s.i)), nil)
}
func (s *failingSet) Err() error {
	if s.i < s.q.f.count {
		return nil
	}
	return s.q.f.selected
}
func (s *failingSet) Warnings() annotations.Annotations { return s.q.warnings() }

// storageErrors are errors that a storage may return.
var storageErrors = []error{
	errors.New("disk <broken> & \"quoted\"\n"), tsdb.ErrNotReady, fmt.Errorf("block: %w", tsdb.ErrNotReady), context.Canceled, context.DeadlineExceeded,
	promql.ErrStorage{Err: errors.New("remote is away")}, promql.ErrQueryTimeout("here"), promql.ErrQueryCanceled("there"), promql.ErrTooManySamples("everywhere"),
	fmt.Errorf("wrapped: %w", promql.ErrStorage{Err: context.Canceled}), storage.ErrExemplarsDisabled,
}

// failures returns the failing storages for one error and the requests that meet it.
func failures(err error) map[string]struct {
	storage  failing
	requests []request
} {
	type failure = struct {
		storage  failing
		requests []request
	}
	queries := []request{{path: "/query", form: form("query", "up", "time", "5")}, {path: "/query_range", form: form("query", "sum(up)", "start", "0", "end", "9", "step", "3")}}
	series := []request{{path: "/series", form: form("match[]", "up")}, {path: "/series", form: form("match[]", "up", "match[]", "down")}, {path: "/series", form: form("match[]", "up", "limit", "2")}}
	names := []request{{path: "/labels"}, {path: "/labels", form: form("match[]", "up")}, {path: "/labels", form: form("match[]", "up", "match[]", "down")}}
	values := []request{{path: "/label/job/values"}, {path: "/label/job/values", form: form("match[]", "up")}, {path: "/label/job/values", form: form("match[]", "up", "match[]", "down")}}
	exemplars := []request{{path: "/query_exemplars", form: form("query", "up")}}
	all := append(append(append(append([]request{}, queries...), series...), names...), values...)
	return map[string]failure{
		"opening a querier":             {failing{open: err}, all},
		"selecting, before any series":  {failing{selected: err}, append(queries, series...)},
		"selecting, after a few series": {failing{selected: err, count: 3}, append(queries, series...)},
		"reading label names":           {failing{names: err}, names},
		"reading label values":          {failing{values: err}, values},
		"opening exemplars":             {failing{exemplars: err}, exemplars},
	}
}

func TestAPI_StorageErrorsEqualPrometheus(t *testing.T) {
	both, now := failingPair(t)
	for _, err := range storageErrors {
		for place, f := range failures(err) {
			now.failing = f.storage
			for _, a := range f.requests {
				want, got := send(both.oracle, a.request(t)), send(both.ours, a.request(t))
				elsewhere := strings.HasPrefix(a.path, "/label") && classifiedElsewhere(err) && want.status == 422 && got.status != 422
				queued := strings.HasPrefix(a.path, "/query") && place == "opening a querier" && endedBare(err)
				if elsewhere || queued {
					continue // see the table of differences
				}
				check(t, a, got, want, nil)
				if t.Failed() {
					t.Fatalf("%s: %v", place, err)
				}
			}
		}
	}
}

// endedBare reports whether err is the bare error of a context.
func endedBare(err error) bool { return err == context.Canceled || err == context.DeadlineExceeded }

// classifiedElsewhere reports whether Prometheus maps err to its kind for queries and
// series, but not always for label names and values.
func classifiedElsewhere(err error) bool {
	var (
		inStorage promql.ErrStorage
		timeout   promql.ErrQueryTimeout
		canceled  promql.ErrQueryCanceled
	)
	return errors.Is(err, context.Canceled) || errors.As(err, &inStorage) || errors.As(err, &timeout) || errors.As(err, &canceled)
}

func TestAPI_StorageWarningsEqualPrometheus(t *testing.T) {
	both, now := failingPair(t)
	now.failing = failing{warning: errors.New("a store is <away> & \"silent\""), count: 2}
	for _, a := range []request{
		{path: "/query", form: form("query", "up", "time", "5")}, {path: "/query_range", form: form("query", "up", "start", "0", "end", "5", "step", "1")}, {path: "/series", form: form("match[]", "up")}, {path: "/series", form: form("match[]", "up", "limit", "1")},
		{path: "/series", form: form("match[]", "up", "match[]", "down")}, {path: "/labels"}, {path: "/labels", form: form("match[]", "up", "match[]", "down")}, {path: "/label/x/values"}, {path: "/label/x/values", form: form("match[]", "up", "match[]", "down")},
	} {
		both.compare(t, a, nil)
	}
}

func TestAPI_ExpiredAndCanceledRequestsEqualPrometheus(t *testing.T) {
	w := shared(t)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	expired, cancelExpired := context.WithTimeout(context.Background(), -1)
	defer cancelExpired()
	requests := []request{
		{path: "/query", form: form("query", "sum(many)", "time", "600")}, {path: "/query_range", form: form("query", "sum(many)", "start", "0", "end", "900", "step", "15")}, {path: "/series", form: form("match[]", "many")},
		{path: "/labels"}, {path: "/labels", form: form("match[]", "many")}, {path: "/label/i/values"}, {path: "/label/i/values", form: form("match[]", "many")}, {path: "/query_exemplars", form: form("query", "demo_requests_total")}, {path: "/parse_query", form: form("query", "1")},
	}
	for _, a := range requests {
		for _, ctx := range []context.Context{canceled, expired} {
			a.context = ctx
			want, got := send(w.pairs["default"].oracle, a.request(t)), send(w.pairs["default"].ours, a.request(t))
			if strings.HasPrefix(a.path, "/label") && want.status == 422 && got.status == 499 {
				continue // see the table of differences
			}
			check(t, a, got, want, nil)
		}
	}
	both, now := failingPair(t)
	for _, count := range []int{1, 127, 128, 129, 1000} { // the context is checked only every 128 series
		now.failing = failing{count: count}
		both.compare(t, request{path: "/series", form: form("match[]", "x"), context: canceled}, nil)
		both.compare(t, request{path: "/series", form: form("match[]", "x"), context: expired}, nil)
	}
	for _, timeout := range []string{"0", "-1", "1e-9", "0s", "-0.001", "NaN"} {
		for _, a := range requests[:2] {
			a.form.Set("timeout", timeout)
			w.compare(t, a, nil)
			a.form.Del("timeout")
		}
	}
}

func TestAPI_QueriesOverMaxSamplesEqualPrometheus(t *testing.T) {
	w := shared(t)
	for _, expr := range []string{`many`, `sum(many)`, `demo_gauge`, `demo_requests_total[1h]`, `rate(demo_requests_total[1h])`, `native_integer`, `many * 2`, `max_over_time(demo_gauge[1h:1s])`, `1`, `label_replace(many, "a", "b", "", "")`} {
		w.compare(t, instant("small", expr, "600"), nil)
		w.compare(t, ranged("small", expr, spans[0]), nil)
	}
}
