package fanout

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	grpcmetadata "google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// describing is a store with metadata, and records the calls for it.
type describing struct {
	*fakeStore
	found map[string][]metadata.Metadata
	err   error
	calls *metadataCalls
}

// metadataCalls are recorded by stores that are called at the same time.
type metadataCalls struct {
	mu   sync.Mutex
	list []string
}

func (d describing) MetricMetadata(_ context.Context, r storeapi.MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	d.calls.mu.Lock()
	d.calls.list = append(d.calls.list, fmt.Sprint(r.Metric, " ", r.Limit))
	d.calls.mu.Unlock()
	return d.found, []string{"w"}, d.err
}

func describingWorld(t *testing.T, stores ...Client) *Fanout {
	t.Helper()
	eo := EndpointsOptions{Dial: func(a Address) (Client, error) {
		var i int
		_, err := fmt.Sscanf(a.Name, "s%d", &i)
		return stores[i], err
	}}
	for i := range stores {
		eo.Static = append(eo.Static, Address{Name: fmt.Sprint("s", i)})
	}
	e := NewEndpoints(eo)
	e.Update(context.Background())
	t.Cleanup(func() { e.replace(nil) })
	return New(e, Options{})
}

func TestMetricMetadata_UnitesStoresAndSorts(t *testing.T) {
	var calls metadataCalls
	offers := func() *fakeStore { return &fakeStore{info: storeapi.Info{MetricMetadata: true}} }
	counter, gauge, other := metadata.Metadata{Type: "counter", Help: "b"}, metadata.Metadata{Type: "gauge", Help: "a"}, metadata.Metadata{Type: "counter", Help: "a"}
	unit := metadata.Metadata{Type: "counter", Help: "a", Unit: "s"}
	stores := []Client{
		describing{fakeStore: offers(), calls: &calls, found: map[string][]metadata.Metadata{"m": {gauge, counter}, "n": {gauge}}},
		describing{fakeStore: offers(), calls: &calls, found: map[string][]metadata.Metadata{"m": {counter, unit, other}}},
		describing{fakeStore: &fakeStore{}, calls: &calls, found: map[string][]metadata.Metadata{"none": {gauge}}}, // offers none
		offers(), // has no such method
	}
	f := describingWorld(t, stores...)
	got, warnings, err := f.Queryable(Request{}).MetricMetadata(t.Context(), "m", 7)
	if err != nil || len(got) != 2 || !slices.Equal(got["m"], []metadata.Metadata{other, unit, counter, gauge}) || !slices.Equal(got["n"], []metadata.Metadata{gauge}) {
		t.Errorf("%+v, %v", got, err)
	}
	if list := texts(warnings); len(list) == 0 || !strings.Contains(list[0], "w") || !slices.Equal(calls.list, []string{"m 7", "m 7"}) {
		t.Errorf("%q, %q", list, calls.list)
	}
	again, texts, err := f.Source().MetricMetadata(t.Context(), storeapi.MetadataRequest{Metric: "m", Limit: 7})
	if err != nil || len(again["m"]) != 4 || len(texts) == 0 {
		t.Errorf("%+v, %q, %v", again, texts, err)
	}
	broken := describing{fakeStore: offers(), calls: &calls, err: errors.New("broken")}
	f = describingWorld(t, broken, stores[0])
	if got, warnings, err := f.Queryable(Request{}).MetricMetadata(t.Context(), "", -1); err != nil || len(got) != 2 || !strings.Contains(fmt.Sprint(warnings), "broken") {
		t.Errorf("%+v %v, %v", got, warnings, err)
	}
	if got, _, err := f.Queryable(Request{AbortOnPartial: true}).MetricMetadata(t.Context(), "", -1); err == nil || got != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func exemplarStore(component string, results ...exemplar.QueryResult) *fakeStore {
	return &fakeStore{info: storeapi.Info{Component: component, Exemplars: &anyTime, Rules: true, LabelSets: []labels.Labels{labels.FromStrings("cluster", component)}}, exemplars: results}
}

func result(set labels.Labels, times ...int64) exemplar.QueryResult {
	r := exemplar.QueryResult{SeriesLabels: set}
	for _, at := range times {
		r.Exemplars = append(r.Exemplars, exemplar.Exemplar{Labels: labels.FromStrings("id", fmt.Sprint(at)), Ts: at, Value: float64(at), HasTs: true})
	}
	return r
}

func TestSource_ExemplarsOfReplicasAreMerged(t *testing.T) {
	one, two := exemplarStore("eu", result(labels.FromStrings("a", "1", "r", "x"), 3, 1), result(labels.FromStrings("b", "1"), 5)), exemplarStore("us", result(labels.FromStrings("a", "1", "r", "y"), 1, 2))
	f, _ := newTestFanout(t, Options{}, one, two)
	selectors := [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "a", "1")}}
	got, warnings, err := f.Queryable(Request{ReplicaLabels: []string{"r"}}).Exemplars(t.Context(), 0, 9, selectors)
	var lines []string
	for _, r := range got {
		for _, e := range r.Exemplars {
			lines = append(lines, fmt.Sprint(r.SeriesLabels, e.Ts))
		}
	}
	if want := []string{`{a="1"} 1`, `{a="1"} 2`, `{a="1"} 3`, `{b="1"} 5`}; err != nil || len(warnings) != 0 || !slices.Equal(lines, want) {
		t.Errorf("%q, %v, %v", lines, warnings, err)
	}
	source := f.Source()
	if found, texts, err := source.Exemplars(t.Context(), storeapi.ExemplarsRequest{Query: `rate(m{cluster="eu"}[5m])`, MaxMS: 9}); err != nil || len(found) != 2 || len(texts) != 0 {
		t.Errorf("of one cluster: %v, %q, %v", found, texts, err)
	}
	if found, _, err := source.Exemplars(t.Context(), storeapi.ExemplarsRequest{Query: `m{cluster="none"}`}); err != nil || len(found) != 0 {
		t.Errorf("of no cluster: %v, %v", found, err)
	}
	for _, query := range []string{"m{", strings.Repeat("(", 100_000) + "m" + strings.Repeat(")", 100_000)} {
		if _, _, err := source.Exemplars(t.Context(), storeapi.ExemplarsRequest{Query: query}); !errors.Is(err, storeapi.ErrBadRequest) {
			t.Errorf("%.20s: %v", query, err)
		}
	}
	one.exemplars, one.openErr = nil, errors.New("broken")
	if found, texts, err := source.Exemplars(t.Context(), storeapi.ExemplarsRequest{Query: "m"}); err != nil || len(found) != 1 || len(texts) != 1 || !strings.Contains(texts[0], "broken") {
		t.Errorf("a failed store: %v, %q, %v", found, texts, err)
	}
	if _, warnings, err := f.Queryable(Request{}).Exemplars(t.Context(), 0, 9, selectors); err != nil || len(warnings) != 1 {
		t.Errorf("%v, %v", warnings, err)
	}
	if found, _, err := source.Exemplars(t.Context(), storeapi.ExemplarsRequest{Query: "m", AbortOnPartial: true}); err == nil || found != nil {
		t.Errorf("a failed store with abort: %v, %v", found, err)
	}
}

func TestExpression_HasTheMatchersThatAStoreKnows(t *testing.T) {
	cluster, job := labels.MustNewMatcher(labels.MatchEqual, "cluster", "eu"), labels.MustNewMatcher(labels.MatchEqual, "job", "a")
	info := func(component string) *storeapi.Info {
		return &storeapi.Info{Component: component, LabelSets: []labels.Labels{labels.FromStrings("cluster", "eu")}}
	}
	us := labels.MustNewMatcher(labels.MatchEqual, "cluster", "us")
	for want, tt := range map[string]struct {
		info      *storeapi.Info
		selectors [][]*labels.Matcher
		store     []*labels.Matcher
	}{
		`{__name__=~".+",job="a"}`:                                          {info("sidecar"), [][]*labels.Matcher{{cluster, job}}, nil},
		`{__name__=~".+",cluster="eu",job="a"}`:                             {info("query"), [][]*labels.Matcher{{cluster, job}}, nil},
		`{__name__=~".+",cluster="us"}`:                                     {nil, [][]*labels.Matcher{{us}}, nil},
		`{__name__=~".+"} or {__name__=~".+",job="a"}`:                      {info("sidecar"), [][]*labels.Matcher{{cluster}, {us}, {job}}, nil},
		`{__name__=~".+",cluster="eu",job="a"} or {__name__=~".+",job="a"}`: {info("query"), [][]*labels.Matcher{{cluster}, {}}, []*labels.Matcher{job}},
		"": {info("query"), [][]*labels.Matcher{{us}}, nil},
	} {
		if got := expression(tt.info, tt.selectors, tt.store); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestSource_InfoUnitesTheStores(t *testing.T) {
	info := func(minMS, maxMS int64, sets ...labels.Labels) storeapi.Info {
		return storeapi.Info{LabelSets: sets, Store: &storeapi.StoreInfo{TimeRange: storeapi.TimeRange{MinMS: minMS, MaxMS: maxMS}, Sharding: true, TSDBs: []storeapi.TSDBInfo{{}}}}
	}
	eu, us := labels.FromStrings("cluster", "eu"), labels.FromStrings("cluster", "us")
	get := func(stores ...*fakeStore) storeapi.Info {
		t.Helper()
		f, _ := newTestFanout(t, Options{}, stores...)
		all, err := f.Source().Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := get(); all.Store.MinMS != math.MinInt64 || all.Store.MaxMS != math.MaxInt64 || !all.Store.Sharding || !all.Store.WithoutReplicaLabels || all.Component != "query" || all.Exemplars != nil || all.Rules {
		t.Errorf("no store: %+v %+v", all, all.Store)
	}
	one, two := info(5, 10, us, eu), info(7, 20, eu)
	two.Rules, two.Store.Sharding, two.Exemplars = true, false, &storeapi.TimeRange{MinMS: 3, MaxMS: 4}
	one.Targets, one.Exemplars = true, &storeapi.TimeRange{MinMS: 1, MaxMS: 2}
	all := get(&fakeStore{info: one}, &fakeStore{info: two})
	if all.Store.MinMS != 5 || all.Store.MaxMS != 20 || all.Store.Sharding || fmt.Sprint(all.LabelSets) != `[{cluster="eu"} {cluster="us"}]` || !all.Rules || !all.Targets || all.MetricMetadata || all.Status ||
		*all.Exemplars != (storeapi.TimeRange{MinMS: 1, MaxMS: 4}) || len(all.Store.TSDBs) != 2 {
		t.Errorf("%+v %+v %+v", all, all.Store, all.Exemplars)
	}
	described, counted := info(1, 2, eu), info(1, 2, eu)
	described.MetricMetadata, counted.Status = true, true
	if all := get(&fakeStore{info: described}, &fakeStore{info: counted}); !all.MetricMetadata || !all.Status || all.Rules || all.Targets {
		t.Errorf("%+v", all)
	}
	if all := get(&fakeStore{info: one}, &fakeStore{info: info(1, 2)}); all.LabelSets != nil || all.Store.TSDBs != nil {
		t.Errorf("a store without labels: %v", all.LabelSets)
	}
	if all := get(&fakeStore{info: one}, &fakeStore{infoErr: errors.New("down")}); all.Store.MaxMS != 10 || len(all.LabelSets) != 2 {
		t.Errorf("a store that is down: %+v", all)
	}
}

func TestSource_ListsAndSeriesOfAllStores(t *testing.T) {
	chunk := encode(t, []sample{{1, 1, false}, {2, 2, false}})
	set := func(v string) labels.Labels { return labels.FromStrings("__name__", "m", "v", v) }
	first := &fakeStore{names: []string{"a", "c"}, series: []one{{labels: set("1"), chunks: []series.Chunk{chunk}}, {labels: set("3"), chunks: []series.Chunk{chunk}}}}
	second := &fakeStore{names: []string{"b"}, series: []one{{labels: set("2"), chunks: []series.Chunk{chunk}}}, warning: "slow"}
	f, _ := newTestFanout(t, Options{}, first, second)
	s := f.Source()
	if !s.ExternalLabels().IsEmpty() {
		t.Error("external labels")
	}
	ctx := grpcmetadata.NewIncomingContext(t.Context(), grpcmetadata.Pairs("thanos-tenant", "team"))
	for what, list := range map[string]func(context.Context, storeapi.LabelsRequest) ([]string, []string, error){"names": s.LabelNames, "values": s.LabelValues} {
		if got, _, err := list(ctx, storeapi.LabelsRequest{Label: "v", MaxMS: 9}); err != nil || !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("%s: %q, %v", what, got, err)
		}
	}
	if got, _, err := s.LabelValues(ctx, storeapi.LabelsRequest{Label: "v", WithoutReplicaLabels: []string{"v"}}); got != nil || err != nil {
		t.Errorf("values of a replica label: %q, %v", got, err)
	}
	selected := s.Series(ctx, storeapi.SeriesRequest{MaxMS: 9, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")}})
	var got []string
	for selected.Next() {
		got = append(got, string(labelenc.Value(selected.Labels(), "v")))
		if len(selected.Chunks()) != 1 {
			t.Errorf("%d chunks", len(selected.Chunks()))
		}
	}
	if selected.Err() != nil || !slices.Equal(got, []string{"1", "2", "3"}) || len(selected.Warnings()) != 1 {
		t.Errorf("%q, %v, %v", got, selected.Warnings(), selected.Err())
	}
	if err := selected.Close(); err != nil {
		t.Error(err)
	}
	none := s.Series(ctx, storeapi.SeriesRequest{})
	if none.Next() || !errors.Is(none.Err(), storeapi.ErrBadRequest) || none.Warnings() != nil || none.Close() != nil {
		t.Error(none.Err())
	}
	first.names, first.openErr = nil, errors.New("broken")
	if names, warnings, err := s.LabelNames(ctx, storeapi.LabelsRequest{MaxMS: 9}); err != nil || !slices.Equal(names, []string{"b"}) || len(warnings) != 1 {
		t.Errorf("%q, %q, %v", names, warnings, err)
	}
	for what, list := range map[string]func(context.Context, storeapi.LabelsRequest) ([]string, []string, error){"names": s.LabelNames, "values": s.LabelValues} {
		if _, _, err := list(ctx, storeapi.LabelsRequest{Label: "v", MaxMS: 9, AbortOnPartial: true}); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

func TestReasonOf_NamesEachFailure(t *testing.T) {
	for err, want := range map[error]string{
		ErrStalled: "stalled", context.DeadlineExceeded: "timeout", context.Canceled: "", errPanicked: "panic", ErrLimit: "limit", storeapi.ErrLimit: "limit",
		storeapi.ErrCorrupt: "corrupt", storeapi.ErrUnavailable: "unavailable", errors.New("x"): "other",
	} {
		if got := reasonOf(fmt.Errorf("store: %w", err)); got != want {
			t.Errorf("%v: %q", err, got)
		}
	}
}

func TestExternalText_IsCutAtItsLimit(t *testing.T) {
	long := labels.FromStrings("a", strings.Repeat("x", externalLabelsMax))
	for want, sets := range map[string][]labels.Labels{"": nil, `{a="1"}`: {labels.FromStrings("a", "1")}, `{a="1"},{b="2"}`: {labels.FromStrings("a", "1"), labels.FromStrings("b", "2")}} {
		if got := externalText(Status{LabelSets: sets}); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if got := externalText(Status{LabelSets: []labels.Labels{labels.FromStrings("a", "1"), long, long}}); len(got) != externalLabelsMax || !strings.HasPrefix(got, `{a="1"},{a="x`) {
		t.Errorf("%d bytes", len(got))
	}
	if got := appendGauge(nil, "n", "h", nil); got != nil {
		t.Errorf("%s", got)
	}
	if got := appendGauge([]byte("x\n"), "n", "h", map[string]int{`b="1"`: 2, `a="1"`: 3}); string(got) != "x\n# HELP n h\n# TYPE n gauge\nn{a=\"1\"} 3\nn{b=\"1\"} 2\n" {
		t.Errorf("%s", got)
	}
}
