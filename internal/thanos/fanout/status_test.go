package fanout

import (
	"context"
	"errors"
	"math"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// countedStore is a store with statistics.
type countedStore struct {
	*fakeStore
	all []storeapi.TSDBStatistics
	err error

	mu  sync.Mutex
	got []storeapi.StatusRequest
}

func (c *countedStore) TSDBStatistics(_ context.Context, r storeapi.StatusRequest) ([]storeapi.TSDBStatistics, []string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got = append(c.got, r)
	return c.all, nil, c.err
}

func countedWorld(t *testing.T, stores ...*countedStore) *Fanout {
	var eo EndpointsOptions
	byName := map[string]*countedStore{}
	for i, s := range stores {
		name := string(rune('a' + i))
		eo.Static, byName[name] = append(eo.Static, Address{Name: name}), s
		s.fakeStore = &fakeStore{info: storeapi.Info{Status: true, LabelSets: []labels.Labels{cluster(name)}}}
	}
	eo.Dial = func(a Address) (Client, error) { return byName[a.Name], nil }
	e := NewEndpoints(eo)
	e.Update(t.Context())
	t.Cleanup(func() { e.replace(nil) })
	return New(e, Options{})
}

func TestTSDBStatistics_AddsThoseOfAllStores(t *testing.T) {
	type list = []storeapi.Statistic
	a := &countedStore{all: []storeapi.TSDBStatistics{{
		Series: 10, LabelPairs: 20, Chunks: 30, MinMS: 100, MaxMS: 200,
		SeriesByMetric: list{{Name: "x", Value: 6}, {Name: "y", Value: 4}}, ValuesByLabel: list{{Name: "job", Value: 3}},
		BytesByLabel: list{{Name: "job", Value: 30}}, SeriesByPair: list{{Name: "job=a", Value: 5}},
	}}}
	b := &countedStore{all: []storeapi.TSDBStatistics{
		{
			Series: 1, LabelPairs: 2, Chunks: 3, MinMS: -50, MaxMS: 150,
			SeriesByMetric: list{{Name: "y", Value: 3}, {Name: "z", Value: 6}}, ValuesByLabel: list{{Name: "job", Value: 2}, {Name: "room", Value: 4}},
			BytesByLabel: list{{Name: "job", Value: 20}}, SeriesByPair: list{{Name: "job=a", Value: 5}},
		},
		{Tenant: "t", Series: 1, MaxMS: 300},
	}}
	f := countedWorld(t, a, b)
	got, warnings, err := f.Queryable(Request{}).TSDBStatistics(t.Context(), nil, 2)
	want := storeapi.TSDBStatistics{
		Series: 12, LabelPairs: 22, Chunks: 33, MinMS: -50, MaxMS: 300,
		SeriesByMetric: list{{Name: "y", Value: 7}, {Name: "x", Value: 6}}, ValuesByLabel: list{{Name: "room", Value: 4}, {Name: "job", Value: 3}},
		BytesByLabel: list{{Name: "job", Value: 50}}, SeriesByPair: list{{Name: "job=a", Value: 10}},
	}
	if err != nil || len(warnings) != 0 || !reflect.DeepEqual(got, want) || a.got[0].Limit != 2 {
		t.Errorf("%v %v\n%+v, want\n%+v", err, warnings, got, want)
	}
	all, texts, err := f.Source().TSDBStatistics(t.Context(), storeapi.StatusRequest{Limit: 3})
	if err != nil || len(texts) != 0 || len(all) != 3 || a.got[1].Limit != 3 {
		t.Errorf("forwarded: %v %q %+v", err, texts, all)
	}
	if info, err := f.Source().Info(t.Context()); err != nil || !info.Status {
		t.Errorf("%+v %v", info, err)
	}
	// Matchers select stores by their external labels, and are sent to them.
	only := []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "cluster", "a")}
	if got, _, err = f.Queryable(Request{}).TSDBStatistics(t.Context(), only, 2); err != nil || got.Series != 10 || len(b.got) != 2 || len(a.got[2].Matchers) != 1 {
		t.Errorf("%+v %v", got, err)
	}
	// A tenant gets its own statistics, and those of matching stores without tenants.
	tenant := Request{Tenant: "u", Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "tenant_id", "u")}}
	if got, _, err = f.Queryable(tenant).TSDBStatistics(t.Context(), nil, 2); err != nil || got.Series != 11 || len(a.got[3].Matchers) != 1 {
		t.Errorf("a tenant's: %+v %v", got, err)
	}
	b.err = errors.New("broken")
	if got, warnings, err = f.Queryable(Request{}).TSDBStatistics(t.Context(), nil, 2); err != nil || got.Series != 10 || len(warnings) != 1 {
		t.Errorf("partial: %+v %v %v", got, warnings, err)
	}
	if _, _, err = f.Queryable(Request{AbortOnPartial: true}).TSDBStatistics(t.Context(), nil, 2); err == nil || !strings.Contains(err.Error(), "store b: broken") {
		t.Errorf("%v", err)
	}
}

// The head of a store that was just started has no time range. As in Thanos it counts as a range that ends at 0, so the
// greatest time of the other stores is returned.
func TestTSDBStatistics_OfEmptyHeads(t *testing.T) {
	empty := storeapi.TSDBStatistics{MinMS: math.MaxInt64, MaxMS: math.MinInt64}
	a, b := &countedStore{all: []storeapi.TSDBStatistics{empty}}, &countedStore{all: []storeapi.TSDBStatistics{empty}}
	f := countedWorld(t, a, b)
	got, _, err := f.Queryable(Request{}).TSDBStatistics(t.Context(), nil, 10)
	if err != nil || got.MinMS != math.MaxInt64 || got.MaxMS != 0 {
		t.Errorf("%+v %v", got, err)
	}
	b.all[0].MinMS, b.all[0].MaxMS = 5, 7
	if got, _, err = f.Queryable(Request{}).TSDBStatistics(t.Context(), nil, 10); err != nil || got.MinMS != 5 || got.MaxMS != 7 {
		t.Errorf("%+v %v", got, err)
	}
}

func TestTSDBStatistics_WithoutStores(t *testing.T) {
	got, warnings, err := countedWorld(t).Queryable(Request{}).TSDBStatistics(t.Context(), nil, 10)
	if err != nil || len(warnings) != 0 || got.Series != 0 || got.SeriesByMetric == nil {
		t.Errorf("%+v %v %v", got, warnings, err)
	}
}
