package fanout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc/metadata"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// tenantsOf returns the tenants that a call names to its store.
func tenantsOf(ctx context.Context) []string {
	sent, _ := metadata.FromOutgoingContext(ctx)
	return sent.Get("thanos-tenant")
}

func TestRequest_MatchersReplaceThoseOfTheSelection(t *testing.T) {
	match := func(text string) *labels.Matcher {
		name, value, _ := strings.Cut(text, "=")
		return labels.MustNewMatcher(labels.MatchEqual, name, value)
	}
	own := []*labels.Matcher{match("__name__=m"), match("tenant_id=b"), match("job=j")}
	got := Request{Matchers: []*labels.Matcher{match("tenant_id=a")}}.enforced(own)
	var texts []string
	for _, m := range got {
		texts = append(texts, m.String())
	}
	if want := []string{`__name__="m"`, `job="j"`, `tenant_id="a"`}; !slices.Equal(texts, want) || len(own) != 3 || own[1].Value != "b" {
		t.Errorf("%q, want %q; given %v", texts, want, own)
	}
}

func TestQuery_ReadsItsTenantOnly(t *testing.T) {
	s := &fakeStore{info: storeapi.Info{Rules: true, Targets: true, Exemplars: &anyTime, Component: "receive"}}
	for _, tenant := range []string{"a", "b"} {
		one := holding(t, "m").series[0]
		one.labels = labels.FromStrings("__name__", "m", "tenant_id", tenant)
		s.series = append(s.series, one)
		s.info.LabelSets = append(s.info.LabelSets, labels.FromStrings("tenant_id", tenant))
		s.exemplars = append(s.exemplars, result(one.labels, 1))
	}
	var mu sync.Mutex
	var named []string
	s.onOpen = func(ctx context.Context) {
		mu.Lock()
		defer mu.Unlock()
		named = append(named, strings.Join(tenantsOf(ctx), ","))
	}
	rule := func(tenant string) storeapi.Rule {
		return storeapi.Rule{Name: tenant, Labels: labels.FromStrings("tenant_id", tenant)}
	}
	target := func(tenant string) labels.Labels { return labels.FromStrings("tenant_id", tenant) }
	f := rulingWorld(t, ruling{
		fakeStore: s, requests: new(int),
		groups:  []storeapi.RuleGroup{{Name: "both", Rules: []storeapi.Rule{rule("a"), rule("b")}}, {Name: "other", Rules: []storeapi.Rule{rule("b")}}},
		targets: storeapi.Targets{Active: []storeapi.ActiveTarget{{Labels: target("a")}, {Labels: target("b")}}, Dropped: []labels.Labels{target("b")}},
	})
	r := Request{Tenant: "a", Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "tenant_id", "a")}}
	got, order, _, err := read(t, f.Queryable(r), 0, 10, nil, everything, labels.MustNewMatcher(labels.MatchEqual, "tenant_id", "b"))
	if err != nil || len(got) != 1 || !strings.Contains(order[0], `tenant_id="a"`) {
		t.Errorf("%v: %q", err, order)
	}
	if !slices.Equal(named, []string{"a"}) {
		t.Errorf("tenants named to the store: %q", named)
	}
	groups, _, err := f.Queryable(r).Rules(t.Context(), "all", nil)
	if err != nil || len(groups) != 1 || len(groups[0].Rules) != 1 || groups[0].Rules[0].Name != "a" {
		t.Errorf("rules: %v %+v", err, groups)
	}
	targets, _, err := f.Queryable(r).Targets(t.Context(), "any")
	if err != nil || len(targets.Active) != 1 || len(targets.Dropped) != 0 {
		t.Errorf("targets: %v %+v", err, targets)
	}
	// A store may ignore the tenant's matcher, so the result is filtered, too.
	of := [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")}}
	found, _, err := f.Queryable(r).Exemplars(t.Context(), 0, 10, of)
	if err != nil || len(found) != 1 || found[0].SeriesLabels.Get("tenant_id") != "a" {
		t.Errorf("exemplars: %v %+v", err, found)
	}
	for component, want := range map[string]bool{"receive": true, "query": true, "sidecar": false} {
		info := &storeapi.Info{Component: component, LabelSets: s.info.LabelSets}
		if query := expression(info, [][]*labels.Matcher{r.enforced(of[0])}, nil); strings.Contains(query, `tenant_id="a"`) != want {
			t.Errorf("%s gets %s", component, query)
		}
	}
	// A querier that queries this one names the tenant in its call. The tenant is passed on to the stores.
	named = nil
	ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("thanos-tenant", "c"))
	set := f.Source().Series(ctx, storeapi.SeriesRequest{MaxMS: 10, Matchers: []*labels.Matcher{everything}})
	for set.Next() {
	}
	if err := set.Close(); err != nil || !slices.Equal(named, []string{"c"}) {
		t.Errorf("forwarded: %v, %q", err, named)
	}
}

// The shards of a query have every series once, whether or not a store can shard, and replicas
// of a series are in one shard.
func TestQuery_ShardsAreDisjointAndComplete(t *testing.T) {
	replica := func(name string, strips bool) *fakeStore {
		s := &fakeStore{strips: strips}
		for i := range 50 {
			one := holding(t, "m").series[0]
			one.labels = labels.FromStrings("__name__", "m", "i", fmt.Sprintf("%02d", i), "replica", name)
			s.series = append(s.series, one)
		}
		return s
	}
	f, _ := newTestFanout(t, Options{}, replica("a", true), replica("b", false))
	all := map[string]int{}
	for i := range int64(3) {
		r := Request{ReplicaLabels: []string{"replica"}, Shard: &storeapi.Shard{Index: i, Total: 3, Labels: []string{"__name__"}}}
		_, order, _, err := read(t, f.Queryable(r), 0, 10, nil)
		if err != nil || len(order) == 0 || len(order) == 50 {
			t.Errorf("shard %d: %d series, %v", i, len(order), err)
		}
		for _, name := range order {
			all[name]++
		}
		set := f.Source().Series(t.Context(), storeapi.SeriesRequest{MaxMS: 10, Matchers: []*labels.Matcher{everything}, Shard: r.Shard, WithoutReplicaLabels: r.ReplicaLabels})
		filter, n := storeapi.NewShardFilter(r.Shard), 0
		for set.Next() {
			if filter.Matches(set.Labels()) { // as the server does
				n++
			}
		}
		if err := set.Close(); err != nil || n != len(order) {
			t.Errorf("shard %d: %d series are forwarded, want %d, %v", i, n, len(order), err)
		}
	}
	if len(all) != 50 {
		t.Errorf("%d series in all shards", len(all))
	}
	for name, n := range all {
		if n != 1 {
			t.Errorf("%s is in %d shards", name, n)
		}
	}
}
