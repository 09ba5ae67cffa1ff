package fanout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

func named(name string) labels.Labels { return labels.FromStrings("__name__", name) }

// holding returns a store with one series of one sample.
func holding(t testing.TB, name string) *fakeStore {
	return &fakeStore{series: []one{{labels: named(name), chunks: []series.Chunk{encode(t, []sample{{1, 1, false}})}}}}
}

var errBroken = errors.New("it is broken")

// Each of these stores is queried together with a store that works. With warnings the querier returns the data of the
// working store and names the other. With abort it fails.
func TestQuerier_FailedStoreIsAWarningOrAnError(t *testing.T) {
	corrupt := series.Chunk{MinMS: 1, MaxMS: 1, Encoding: chunkenc.EncXOR, Data: []byte{0}}
	backwards := encode(t, []sample{{1, 1, false}})
	backwards.MinMS = 2
	for name, bad := range map[string]*fakeStore{
		"breaks at once":        {err: errBroken},
		"breaks after a series": {series: holding(t, "y").series, err: errBroken},
		"stalls":                {stall: true},
		"stalls after a series": {series: holding(t, "y").series, stall: true},
		"is down":               {infoErr: errBroken},
		"ends before it begins": {series: []one{{labels: named("y"), chunks: []series.Chunk{backwards}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := newTestFanout(t, Options{ResponseTimeout: time.Second}, holding(t, "x"), bad)
			got, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil)
			if err != nil || len(got[named("x").String()]) != 1 || len(warnings) != 1 || !strings.Contains(warnings[0], "store s1") {
				t.Errorf("warned: %v %v %q", err, got, warnings)
			}
			_, _, _, err = read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil)
			if err == nil || !strings.Contains(err.Error(), "store s1") {
				t.Errorf("aborted: %v", err)
			}
		})
	}
	f, _ := newTestFanout(t, Options{}, &fakeStore{series: []one{{labels: named("y"), chunks: []series.Chunk{corrupt}}}})
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, series.ErrCorrupt) {
		t.Errorf("a chunk that cannot be read: %v", err)
	}
	f, _ = newTestFanout(t, Options{}, &fakeStore{series: []one{{labels: named("y"), chunks: []series.Chunk{{MinMS: 1, MaxMS: 2, Encoding: 29, Data: []byte{0, 1, 2}}}}}})
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, series.ErrCorrupt) {
		t.Errorf("a chunk of an unknown encoding: %v", err)
	}
}

func TestQuerier_ForwardsStoreWarnings(t *testing.T) {
	s := holding(t, "x")
	s.warning = "a part of me is missing"
	f, _ := newTestFanout(t, Options{}, s)
	if _, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], s.warning) {
		t.Errorf("%v %q", err, warnings)
	}
}

func TestQuerier_NamesStoresThatAreDown(t *testing.T) {
	var stores []*fakeStore
	for i := range 200 {
		s := holding(t, fmt.Sprintf("m%03d", i))
		if i%10 == 3 {
			s.infoErr = errBroken
		}
		if i%10 == 7 && i < 100 {
			s.err = errBroken
		}
		stores = append(stores, s)
	}
	f, _ := newTestFanout(t, Options{}, stores...)
	got, order, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil)
	if err != nil || len(got) != 180 || len(warnings) != 30 || !slices.IsSorted(order) {
		t.Errorf("%v: %d series, %d warnings", err, len(got), len(warnings))
	}
}

func TestQuery_LimitsApplyToAllSelections(t *testing.T) {
	for name, opts := range map[string]Options{"bytes": {BytesMax: 200}, "series": {SeriesMax: 3}} {
		f, _ := newTestFanout(t, opts, holding(t, "x"), holding(t, "y"))
		q := f.Queryable(Request{})
		querier, err := q.Querier(0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []error{nil, ErrLimit} {
			set := querier.Select(t.Context(), true, nil, labels.MustNewMatcher(labels.MatchRegexp, "__name__", strings.Repeat(".*", i+1))) // equal ones are requested once
			for set.Next() {
				_ = set.At()
			}
			if err := set.Err(); !errors.Is(err, want) || want != nil && !strings.Contains(err.Error(), name) {
				t.Errorf("%s: selection %d: %v", name, i, err)
			}
		}
		// Another querier of the same query counts towards its limits, until this one is closed.
		if _, _, _, err := read(t, q, 0, 10, nil); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: with another querier: %v", name, err)
		}
		if err := querier.Close(); err != nil {
			t.Error(err)
		}
		for range 3 {
			if _, _, _, err := read(t, q, 0, 10, nil); err != nil {
				t.Errorf("%s: after the querier was closed: %v", name, err)
			}
		}
	}
}

func TestQuerier_CancelledQueryEnds(t *testing.T) {
	f, _ := newTestFanout(t, Options{SelectsMax: 1}, holding(t, "x"), &fakeStore{stall: true})
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	first := q.Select(ctx, true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "x"))
	waiting := q.Select(ctx, true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "x"))
	cancel()
	if first.Next() || waiting.Next() || !errors.Is(first.Err(), context.Canceled) || !errors.Is(waiting.Err(), context.Canceled) {
		t.Error(first.Err(), waiting.Err())
	}
	if err := q.Close(); err != nil {
		t.Fatal(err)
	}
	// A querier that is closed without being read cancels its selections.
	q, _ = f.Queryable(Request{}).Querier(0, 10)
	set := q.Select(context.Background(), true, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "x"))
	if err := q.Close(); err != nil || set.Next() || set.Err() == nil {
		t.Error(err, set.Err())
	}
}

func TestQuerier_QueriesOnlyStoresThatMayHaveData(t *testing.T) {
	eu, us, old, rules := holding(t, "x"), holding(t, "x"), holding(t, "x"), holding(t, "x")
	store := func(minMS, maxMS int64) *storeapi.StoreInfo {
		return &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: minMS, MaxMS: maxMS}}
	}
	eu.info = storeapi.Info{LabelSets: []labels.Labels{labels.FromStrings("region", "eu"), labels.FromStrings("region", "ch")}, Store: store(100, 200)}
	us.info = storeapi.Info{LabelSets: []labels.Labels{labels.FromStrings("region", "us")}, Store: store(100, 200)}
	old.info = storeapi.Info{Store: store(0, 99)}
	f, _ := newTestFanout(t, Options{}, eu, us, old, rules)
	region := func(kind labels.MatchType, value string) *labels.Matcher {
		return labels.MustNewMatcher(kind, "region", value)
	}
	address := labels.MustNewMatcher(labels.MatchRegexp, "__address__", "s[01]")
	for _, c := range []struct {
		minMS, maxMS int64
		matcher      *labels.Matcher
		r            Request
		requests     [4]int
	}{
		{100, 200, region(labels.MatchEqual, "eu"), Request{}, [4]int{1, 0, 0, 1}},
		{100, 200, region(labels.MatchNotEqual, "eu"), Request{}, [4]int{1, 1, 0, 1}},
		{99, 100, region(labels.MatchRegexp, "u.*"), Request{}, [4]int{0, 1, 1, 1}},
		{0, 98, region(labels.MatchEqual, ""), Request{}, [4]int{0, 0, 1, 1}},
		{201, 300, region(labels.MatchRegexp, ".*"), Request{}, [4]int{0, 0, 0, 1}},
		{0, 300, region(labels.MatchRegexp, ".*"), Request{Stores: [][]*labels.Matcher{{address}}}, [4]int{1, 1, 0, 0}},
	} {
		for _, s := range []*fakeStore{eu, us, old, rules} {
			s.requests = nil
		}
		if _, _, _, err := read(t, f.Queryable(c.r), c.minMS, c.maxMS, nil, c.matcher); err != nil {
			t.Error(err)
		}
		if got := [4]int{len(eu.requests), len(us.requests), len(old.requests), len(rules.requests)}; got != c.requests {
			t.Errorf("%d to %d, %s: queried %v, want %v", c.minMS, c.maxMS, c.matcher, got, c.requests)
		}
	}
}

func TestQuerier_NoStoresIsAnErrorWithAbortOnPartial(t *testing.T) {
	f, _ := newTestFanout(t, Options{})
	if got, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); err != nil || len(got) != 0 {
		t.Error(err, got)
	}
	if _, _, _, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil); !errors.Is(err, ErrNoStores) {
		t.Error(err)
	}
}

func TestQuerier_MergesLabelNamesAndValues(t *testing.T) {
	a, b, broken := &fakeStore{names: []string{"a", "c", "r"}}, &fakeStore{names: []string{"b", "c"}}, &fakeStore{openErr: errBroken}
	f, _ := newTestFanout(t, Options{}, a, b, broken)
	q, _ := f.Queryable(Request{ReplicaLabels: []string{"r"}}).Querier(0, 10)
	defer q.Close()
	names, warnings, err := q.LabelNames(context.Background(), nil)
	if err != nil || !slices.Equal(names, []string{"a", "b", "c"}) || len(warnings) != 1 {
		t.Error(names, warnings, err)
	}
	values, _, err := q.LabelValues(context.Background(), "x", &storage.LabelHints{Limit: 2})
	if err != nil || !slices.Equal(values, []string{"a", "b"}) {
		t.Error(values, err)
	}
	strict, _ := f.Queryable(Request{AbortOnPartial: true}).Querier(0, 10)
	defer strict.Close()
	if _, _, err := strict.LabelNames(context.Background(), nil); !errors.Is(err, errBroken) {
		t.Error(err)
	}
}

func TestChunkIterator_SeekEqualsNext(t *testing.T) {
	chunks := []series.Chunk{encode(t, []sample{{1, 1, false}, {5, 5, false}}), encode(t, []sample{{6, 6, true}, {9, 9, true}}), encode(t, []sample{{12, 12, false}})}
	all := decode(t, chunks, 2, 11)
	for first := int64(0); first < 14; first++ {
		for second := first; second < 14; second++ {
			for _, next := range []bool{false, true} {
				v := &view{minMS: 2, maxMS: 11}
				it := v.track(chunks, false, false, nil)
				want := func(from int64) int64 {
					for _, s := range all {
						if s.t >= from {
							return s.t
						}
					}
					return -1
				}
				at := func(vt chunkenc.ValueType) int64 {
					if vt == chunkenc.ValNone {
						return -1
					}
					return it.AtT()
				}
				got := at(it.Seek(first))
				if got != want(first) {
					t.Fatalf("sought %d: %d, want %d", first, got, want(first))
				}
				to := second
				if next && got >= 0 {
					if n := at(it.Next()); n != want(got+1) {
						t.Fatalf("after %d: %d, want %d", got, n, want(got+1))
					}
					to = max(second, got+1)
				}
				if got < 0 {
					continue
				}
				if got := at(it.Seek(to)); got != want(max(to, got)) {
					t.Fatalf("sought %d, %v, then %d: %d, want %d", first, next, to, got, want(max(to, first)))
				}
			}
		}
	}
}

// A limit counts series after deduplication. If this querier removes the replica labels of a
// store's series, several series of the store become one, so the store must not apply the limit.
func TestSource_LimitIsNotForwardedIfReplicaLabelsAreRemovedHere(t *testing.T) {
	for _, strips := range []bool{true, false} {
		s := &fakeStore{strips: strips}
		for _, name := range []string{"x", "y"} {
			for _, r := range []string{"1", "2", "3"} {
				s.series = append(s.series, one{labels: labels.FromStrings("__name__", name, "r", r), chunks: holding(t, name).series[0].chunks})
			}
		}
		f, _ := newTestFanout(t, Options{}, s)
		hints := &storage.SelectHints{Start: 0, End: 10, Limit: 2}
		if got, _, _, err := read(t, f.Queryable(Request{ReplicaLabels: []string{"r"}}), 0, 10, hints); err != nil || len(got) != 2 {
			t.Errorf("the store strips %v: %v %v", strips, err, got)
		}
		if got := s.requests[0].Limit; strips && got != 2 || !strips && got != 0 {
			t.Errorf("the store strips %v: requested %d series", strips, got)
		}
		if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, hints); err != nil || s.requests[1].Limit != 2 {
			t.Errorf("the store strips %v, no replica labels: requested %d series, %v", strips, s.requests[1].Limit, err)
		}
	}
}

// A message that is larger than the query's remaining bytes fails the query with ErrLimit. It is
// no warning about a missing store.
func TestQuerier_MessageBeyondTheLimitFails(t *testing.T) {
	s := &fakeStore{err: fmt.Errorf("%w: received message larger than max", storeapi.ErrBytesMax)}
	f, _ := newTestFanout(t, Options{BytesMax: 1000}, s, holding(t, "x"))
	if _, _, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "store s0") {
		t.Errorf("%v %q", err, warnings)
	}
	if got := s.requests[0].BytesMax; got != 1000 {
		t.Errorf("requested with %d bytes", got)
	}
}

// A selection with more series than the limit must fail before it has read all series. If this
// querier removes replica labels, the limit counts the series after their removal.
func TestQuerier_ReadsNoSeriesBeyondTheLimit(t *testing.T) {
	many := &fakeStore{}
	for i := range 1000 {
		many.series = append(many.series, one{labels: named(fmt.Sprintf("m%04d", i)), chunks: holding(t, "m").series[0].chunks})
	}
	var left atomic.Int64
	many.onNext = func(_ context.Context, _ storeapi.SeriesRequest, n int) { left.Store(int64(n)) }
	f, _ := newTestFanout(t, Options{SeriesMax: 3}, many)
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, ErrLimit) || left.Load() < 500 {
		t.Errorf("%v; %d series are left", err, left.Load())
	}
	replicas := &fakeStore{}
	for _, name := range []string{"x", "y", "z"} {
		for _, replica := range []string{"a", "b"} {
			replicas.series = append(replicas.series, one{labels: labels.FromStrings("__name__", name, "r", replica), chunks: holding(t, name).series[0].chunks})
		}
	}
	f, _ = newTestFanout(t, Options{SeriesMax: 3}, replicas)
	if got, _, _, err := read(t, f.Queryable(Request{ReplicaLabels: []string{"r"}}), 0, 10, nil); err != nil || len(got) != 3 {
		t.Errorf("%v: %v", err, got)
	}
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil); !errors.Is(err, ErrLimit) {
		t.Errorf("with replicas as series: %v", err)
	}
}
