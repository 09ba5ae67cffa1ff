package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// ruling is a store with rules and targets.
type ruling struct {
	*fakeStore
	targets  storeapi.Targets
	groups   []storeapi.RuleGroup
	err      error
	requests *int
}

func (r ruling) Targets(context.Context, storeapi.TargetsRequest) (storeapi.Targets, []string, error) {
	*r.requests++
	return r.targets, nil, r.err
}

func (r ruling) Rules(context.Context, storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	*r.requests++
	return r.groups, nil, r.err
}

func rulingWorld(t *testing.T, stores ...ruling) *Fanout {
	eo := EndpointsOptions{}
	for i := range stores {
		eo.Static = append(eo.Static, Address{Name: fmt.Sprint("s", i)})
	}
	eo.Dial = func(a Address) (Client, error) {
		address := a.Name
		var i int
		_, err := fmt.Sscanf(address, "s%d", &i)
		return stores[i], err
	}
	e := NewEndpoints(eo)
	e.Update(context.Background())
	t.Cleanup(func() { e.replace(nil) })
	return New(e, Options{})
}

func offering() *fakeStore { return &fakeStore{info: storeapi.Info{Rules: true, Targets: true}} }

type panicking struct{ ruling }

func (panicking) Rules(context.Context, storeapi.RulesRequest) ([]storeapi.RuleGroup, []string, error) {
	panic("index out of range")
}

func TestRules_PanicFailsItsStoreOnly(t *testing.T) {
	s := panicking{ruling{fakeStore: offering()}}
	e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "s"}}, Dial: func(Address) (Client, error) { return s, nil }})
	e.Update(t.Context())
	t.Cleanup(func() { e.replace(nil) })
	_, warnings, err := New(e, Options{}).Queryable(Request{}).Rules(t.Context(), "all", nil)
	if err != nil || len(warnings) != 1 || !errors.Is(slices.Collect(maps.Values(warnings))[0], errPanicked) {
		t.Errorf("%v, %v", warnings, err)
	}
	if n := e.metrics.panics.Get(); n != 1 {
		t.Errorf("%d panics are counted, want 1", n)
	}
}

func TestTargets_MergesReplicasByHealthAndLastScrape(t *testing.T) {
	at := time.Unix(1000, 0)
	target := func(replica, url, health string, last time.Time) storeapi.ActiveTarget {
		set := labels.FromStrings("job", "j", "replica", replica)
		return storeapi.ActiveTarget{Discovered: set, Labels: set, ScrapePool: "j", ScrapeURL: url, Health: health, LastScrape: last}
	}
	dropped := []labels.Labels{labels.FromStrings("a", "1", "replica", "x"), labels.FromStrings("a", "1", "replica", "y"), labels.FromStrings("a", "0")}
	requests := make([]int, 3)
	f := rulingWorld(t,
		ruling{fakeStore: offering(), requests: &requests[0], targets: storeapi.Targets{Active: []storeapi.ActiveTarget{
			target("x", "u1", "up", at), target("x", "u2", "up", at), target("x", "u3", "unknown", at.Add(time.Hour)),
		}, Dropped: dropped[:1]}},
		ruling{fakeStore: offering(), requests: &requests[1], targets: storeapi.Targets{Active: []storeapi.ActiveTarget{
			target("y", "u1", "up", at.Add(time.Second)), target("y", "u2", "down", at.Add(-time.Hour)), target("y", "u3", "up", at),
		}, Dropped: dropped[1:]}},
		ruling{fakeStore: &fakeStore{}, requests: &requests[2]})
	got, warnings, err := f.Queryable(Request{ReplicaLabels: []string{"replica"}}).Targets(t.Context(), "any")
	var lines []string
	for _, a := range got.Active {
		lines = append(lines, fmt.Sprintf("%s %s %d %s%s", a.ScrapeURL, a.Health, a.LastScrape.Unix(), a.Labels, a.Discovered))
	}
	want := `u1 up 1001 {job="j"}{job="j"}, u2 down -2600 {job="j"}{job="j"}, u3 up 1000 {job="j"}{job="j"}`
	if err != nil || len(warnings) > 0 || strings.Join(lines, ", ") != want || fmt.Sprint(got.Dropped) != `[{a="0"} {a="1"}]` {
		t.Errorf("%v %v %s %s", err, warnings, lines, got.Dropped)
	}
	if requests[0] != 1 || requests[1] != 1 || requests[2] != 0 {
		t.Errorf("queried %v, of which the last offers nothing", requests)
	}
	apart, _, err := f.Queryable(Request{}).Targets(t.Context(), "any")
	if err != nil || len(apart.Active) != 6 || len(apart.Dropped) != 3 {
		t.Errorf("not merged: %v %v", err, apart)
	}
	for state, n := range map[string][2]int{"active": {6, 0}, "dropped": {0, 3}} {
		if some, _, err := f.Queryable(Request{}).Targets(t.Context(), state); err != nil || [2]int{len(some.Active), len(some.Dropped)} != n {
			t.Errorf("%s: %v %v", state, err, some)
		}
	}
}

func TestRules_MergesReplicasInEvaluationOrder(t *testing.T) {
	at := time.Unix(1000, 0)
	rule := func(replica, name, state string, seconds int) storeapi.Rule {
		return storeapi.Rule{Name: name, Alerting: state != "", State: state, Labels: labels.FromStrings("replica", replica), LastEvaluation: at.Add(time.Duration(seconds) * time.Second)}
	}
	f := rulingWorld(t,
		ruling{fakeStore: offering(), requests: new(int), groups: []storeapi.RuleGroup{
			{File: "f", Name: "z", Rules: []storeapi.Rule{rule("x", "b", "", 0), rule("x", "a", "", 9), rule("x", "c", "pending", 9), rule("x", "b", "inactive", 0)}},
			{File: "f", Name: "y", Rules: []storeapi.Rule{rule("x", "b", "", 3)}},
		}},
		ruling{fakeStore: offering(), requests: new(int), groups: []storeapi.RuleGroup{
			{File: "e", Name: "z"},
			{File: "f", Name: "z", Rules: []storeapi.Rule{rule("y", "b", "", 1), rule("y", "a", "", 1), rule("y", "c", "firing", 1), rule("y", "d", "", 1)}},
		}})
	got, _, err := f.Queryable(Request{ReplicaLabels: []string{"replica"}}).Rules(t.Context(), "all", nil)
	var lines []string
	for _, g := range got {
		line := g.File + g.Name
		for _, r := range g.Rules {
			line += fmt.Sprintf(" %s%s%d%s", r.Name, r.State, r.LastEvaluation.Unix(), r.Labels)
		}
		lines = append(lines, line)
	}
	if want := "ez, fy b1003{}, fz b1001{} a1009{} cfiring1001{} binactive1000{} d1001{}"; err != nil || strings.Join(lines, ", ") != want {
		t.Errorf("%v %q, want %q", err, lines, want)
	}
}

func TestTargets_FailedStoreIsAWarningOrAnError(t *testing.T) {
	f := rulingWorld(t, ruling{fakeStore: offering(), requests: new(int), targets: storeapi.Targets{Dropped: []labels.Labels{named("x")}}, groups: []storeapi.RuleGroup{{Name: "g"}}},
		ruling{fakeStore: offering(), requests: new(int), err: errBroken}, ruling{fakeStore: &fakeStore{infoErr: errBroken}, requests: new(int)})
	targets, warned, err := f.Queryable(Request{}).Targets(t.Context(), "any")
	if err != nil || len(targets.Dropped) != 1 || len(warned) != 2 {
		t.Errorf("targets: %v %v %v", err, targets, warned)
	}
	groups, warned, err := f.Queryable(Request{}).Rules(t.Context(), "all", nil)
	if err != nil || len(groups) != 1 || len(warned) != 2 {
		t.Errorf("rules: %v %v %v", err, groups, warned)
	}
	if _, _, err := f.Queryable(Request{AbortOnPartial: true}).Targets(t.Context(), "any"); err == nil || !strings.Contains(err.Error(), "store s") {
		t.Errorf("targets: %v", err)
	}
	if _, _, err := f.Queryable(Request{AbortOnPartial: true}).Rules(t.Context(), "all", nil); err == nil || !strings.Contains(err.Error(), "store s") {
		t.Errorf("rules: %v", err)
	}
}

// The querier that sends the request knows the replica labels, and gets the lists unmerged.
func TestSource_ForwardsRulesAndTargetsUnmerged(t *testing.T) {
	groups := []storeapi.RuleGroup{{File: "f", Name: "g", Rules: []storeapi.Rule{{Name: "r"}}}}
	targets := storeapi.Targets{Active: []storeapi.ActiveTarget{{ScrapeURL: "u"}}, Dropped: []labels.Labels{named("d")}}
	f := rulingWorld(t, ruling{fakeStore: offering(), requests: new(int), targets: targets, groups: groups},
		ruling{fakeStore: offering(), requests: new(int), targets: targets, groups: groups}, ruling{fakeStore: offering(), requests: new(int), err: errBroken})
	source := f.Source()
	if info, err := source.Info(t.Context()); err != nil || !info.Rules || !info.Targets || info.MetricMetadata {
		t.Errorf("%+v %v", info, err)
	}
	if got, warnings, err := source.Rules(t.Context(), storeapi.RulesRequest{}); err != nil || len(got) != 2 || len(warnings) != 1 || !strings.Contains(warnings[0], "store s2") {
		t.Errorf("rules: %v %v %q", err, got, warnings)
	}
	for state, want := range map[string][2]int{"any": {2, 2}, "active": {2, 0}, "dropped": {0, 2}} {
		got, warnings, err := source.Targets(t.Context(), storeapi.TargetsRequest{State: state})
		if err != nil || len(got.Active) != want[0] || len(got.Dropped) != want[1] || len(warnings) != 1 {
			t.Errorf("%s targets: %v %v %q", state, err, got, warnings)
		}
	}
	if _, _, err := source.Rules(t.Context(), storeapi.RulesRequest{AbortOnPartial: true}); err == nil {
		t.Error("rules: a failed store is no error")
	}
	if _, _, err := source.MetricMetadata(t.Context(), storeapi.MetadataRequest{Limit: -1, AbortOnPartial: true}); err != nil {
		t.Errorf("metadata of stores without any: %v", err)
	}
}

func TestRules_AllMatchersSelectBeforeReplicasAreMerged(t *testing.T) {
	rule := func(name string, set ...string) storeapi.Rule {
		return storeapi.Rule{Name: name, Labels: labels.FromStrings(set...)}
	}
	matcher := func(kind labels.MatchType, name, value string) []*labels.Matcher {
		return []*labels.Matcher{labels.MustNewMatcher(kind, name, value)}
	}
	for _, c := range []struct {
		matchers [][]*labels.Matcher
		want     string
	}{
		{nil, "f a b c, g d"},
		{[][]*labels.Matcher{matcher(labels.MatchEqual, "team", "x")}, "f a b"},
		{[][]*labels.Matcher{matcher(labels.MatchEqual, "team", "x"), matcher(labels.MatchRegexp, "level", "warn|page")}, "f b"},
		{[][]*labels.Matcher{matcher(labels.MatchEqual, "replica", "2")}, "g d"},
		{[][]*labels.Matcher{matcher(labels.MatchEqual, "level", "")}, "f a c, g d"}, // a template counts as absent
		{[][]*labels.Matcher{matcher(labels.MatchEqual, "team", "none")}, ""},
	} {
		f := rulingWorld(t, ruling{fakeStore: offering(), requests: new(int), groups: []storeapi.RuleGroup{
			{File: "f", Name: "f", Rules: []storeapi.Rule{rule("a", "team", "x", "replica", "1"), rule("b", "team", "x", "level", "page", "replica", "1"), rule("c", "team", "y", "level", "{{ $labels.level }}", "replica", "1")}},
			{File: "g", Name: "g", Rules: []storeapi.Rule{rule("d", "team", "z", "replica", "2")}},
		}})
		got, _, err := f.Queryable(Request{ReplicaLabels: []string{"replica"}}).Rules(t.Context(), "all", c.matchers)
		var lines []string
		for _, g := range got {
			line := g.Name
			for _, r := range g.Rules {
				line += " " + r.Name
			}
			lines = append(lines, line)
		}
		if err != nil || strings.Join(lines, ", ") != c.want {
			t.Errorf("%v: %v %q, want %q", c.matchers, err, lines, c.want)
		}
	}
}
