package fanout

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// onlyClusters keeps the label sets whose cluster matches a regular expression.
func onlyClusters(regex string) []*relabel.Config {
	c := relabel.DefaultRelabelConfig
	c.Action, c.SourceLabels, c.Regex = relabel.Keep, model.LabelNames{"cluster"}, relabel.MustNewRegexp(regex)
	return []*relabel.Config{&c}
}

func cluster(name string) labels.Labels { return labels.FromStrings("cluster", name) }

// clusters returns a store with a series of each of the clusters.
func clusters(t *testing.T, names ...string) *fakeStore {
	s := &fakeStore{}
	for _, name := range names {
		s.info.LabelSets = append(s.info.LabelSets, cluster(name))
		one := holding(t, "m").series[0]
		one.labels = labels.FromStrings("__name__", "m", "cluster", name)
		s.series = append(s.series, one)
	}
	return s
}

// selecting returns a Fanout with a selector over stores named s0, s1, …
func selecting(t *testing.T, selector Selector, stores ...*fakeStore) (*Fanout, *Endpoints) {
	t.Helper()
	f, e := newTestFanout(t, Options{}, stores...)
	e.opts.Selector = selector
	e.Update(t.Context())
	return f, e
}

func TestSelector_DroppedDataAreNotQueried(t *testing.T) {
	whole, part, none := clusters(t, "eu-1"), clusters(t, "eu-2", "eu.3", "us-1"), clusters(t, "us-2")
	part.info.Store = &storeapi.StoreInfo{TimeRange: anyTime}
	for _, name := range []string{"eu-2", "eu.3", "us-1"} {
		part.info.Store.TSDBs = append(part.info.Store.TSDBs, storeapi.TSDBInfo{Labels: cluster(name)})
	}
	f, e := selecting(t, Selector{Relabel: onlyClusters("eu.*")}, whole, part, none)
	_, order, warnings, err := read(t, f.Queryable(Request{}), 0, 10, nil)
	want := []string{`{__name__="m", cluster="eu-1"}`, `{__name__="m", cluster="eu-2"}`, `{__name__="m", cluster="eu.3"}`}
	if err != nil || len(warnings) != 0 || !slices.Equal(order, want) {
		t.Errorf("%v %q: %q, want %q", err, warnings, order, want)
	}
	if len(whole.requests) != 1 || len(whole.requests[0].Matchers) != 1 || len(none.requests) != 0 {
		t.Errorf("requests: %v %v", whole.requests, none.requests)
	}
	if len(part.requests) != 1 || fmt.Sprint(part.requests[0].Matchers) != `[__name__=~".*" cluster=~"eu-2|eu\\.3"]` {
		t.Errorf("requests: %v", part.requests)
	}
	info, err := f.Source().Info(t.Context())
	if err != nil || fmt.Sprint(info.LabelSets) != `[{cluster="eu-1"} {cluster="eu-2"} {cluster="eu.3"}]` || len(info.Store.TSDBs) != 2 {
		t.Errorf("%v: %v %v", err, info.LabelSets, info.Store.TSDBs)
	}
	// So does the page of stores, as that of Thanos.
	if all := e.Statuses(); len(all) != 2 || len(all[0].LabelSets) != 1 || fmt.Sprint(all[1].LabelSets) != `[{cluster="eu-2"} {cluster="eu.3"}]` {
		t.Errorf("%+v", all)
	}
	// A store without data of this querier is not missing while it is down.
	none.infoErr = errBroken
	e.Update(t.Context())
	if _, order, warnings, err = read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil); err != nil || len(order) != 3 || len(warnings) != 0 {
		t.Errorf("a dropped store is down: %v %q %q", err, order, warnings)
	}
	part.infoErr = errBroken
	e.Update(t.Context())
	if _, _, warnings, err = read(t, f.Queryable(Request{}), 0, 10, nil); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "s1") {
		t.Errorf("a store is down: %v %q", err, warnings)
	}
}

func TestSelector_RestrictsListsAndExemplarsAndNotRules(t *testing.T) {
	eu, us := clusters(t, "eu"), clusters(t, "us")
	for _, s := range []*fakeStore{eu, us} {
		s.info.Exemplars, s.info.Rules = &storeapi.TimeRange{}, true
		s.names = []string{s.info.LabelSets[0].Get("cluster")}
		s.exemplars = []exemplar.QueryResult{{SeriesLabels: s.series[0].labels, Exemplars: []exemplar.Exemplar{{Value: 1}}}}
	}
	rules := func(name string) []storeapi.RuleGroup {
		return []storeapi.RuleGroup{{Name: name, Rules: []storeapi.Rule{{Name: name}}}}
	}
	f := rulingWorld(t, ruling{fakeStore: eu, requests: new(int), groups: rules("eu")}, ruling{fakeStore: us, requests: new(int), groups: rules("us")})
	f.endpoints.opts.Selector = Selector{Relabel: onlyClusters("eu")}
	f.endpoints.Update(t.Context())
	q, err := f.Queryable(Request{}).Querier(0, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if values, _, err := q.LabelValues(t.Context(), "cluster", nil); err != nil || !slices.Equal(values, []string{"eu"}) {
		t.Errorf("values: %q, %v", values, err)
	}
	if names, _, err := q.LabelNames(t.Context(), nil); err != nil || !slices.Equal(names, []string{"eu"}) {
		t.Errorf("names: %q, %v", names, err)
	}
	found, _, err := f.Queryable(Request{}).Exemplars(t.Context(), 0, 10, [][]*labels.Matcher{{everything}})
	if err != nil || len(found) != 1 || found[0].SeriesLabels.Get("cluster") != "eu" {
		t.Errorf("exemplars: %v, %v", found, err)
	}
	groups, _, err := f.Queryable(Request{}).Rules(t.Context(), "all", nil)
	if err != nil || len(groups) != 2 {
		t.Errorf("rules: %v, %v", groups, err)
	}
}

func TestSelector_OwnLabels(t *testing.T) {
	eu := clusters(t, "eu")
	f, e := selecting(t, Selector{Labels: labels.FromStrings("part", "blue")}, eu)
	with := func(value string) *labels.Matcher { return labels.MustNewMatcher(labels.MatchEqual, "part", value) }
	if _, order, _, err := read(t, f.Queryable(Request{}), 0, 10, nil, everything, with("blue")); err != nil || !slices.Equal(order, []string{`{__name__="m", cluster="eu"}`}) {
		t.Errorf("%v %q", err, order)
	}
	if _, order, warnings, err := read(t, f.Queryable(Request{AbortOnPartial: true}), 0, 10, nil, everything, with("green")); err != nil || len(order)+len(warnings) != 0 {
		t.Errorf("another part: %v %q %q", err, order, warnings)
	}
	if len(eu.requests) != 1 || len(eu.requests[0].Matchers) != 1 {
		t.Errorf("requests: %v", eu.requests)
	}
	if _, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil, with("blue")); err == nil || !strings.Contains(err.Error(), "no matchers") {
		t.Errorf("no other matchers: %v", err)
	}
	if info, err := f.Source().Info(t.Context()); err != nil || fmt.Sprint(info.LabelSets) != `[{cluster="eu", part="blue"}]` {
		t.Errorf("%v %v", err, info.LabelSets)
	}
	eu.info.LabelSets = nil // it may have any series
	e.Update(t.Context())
	if info, err := f.Source().Info(t.Context()); err != nil || fmt.Sprint(info.LabelSets) != `[{part="blue"}]` {
		t.Errorf("%v %v", err, info.LabelSets)
	}
}

func TestMatchersOf_SelectTheSets(t *testing.T) {
	for _, c := range []struct {
		sets []labels.Labels
		want string
	}{
		{[]labels.Labels{cluster("a")}, `[cluster="a"]`},
		{[]labels.Labels{cluster("a"), cluster("a")}, `[cluster="a"]`},
		{[]labels.Labels{cluster("b"), cluster("a|c")}, `[cluster=~"a\\|c|b"]`},
		{[]labels.Labels{cluster("a"), labels.FromStrings("zone", "z")}, `[cluster=~"|a" zone=~"|z"]`},
		{[]labels.Labels{labels.EmptyLabels()}, `[]`},
	} {
		got, err := matchersOf(c.sets)
		if err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%v: %v %v, want %s", c.sets, err, got, c.want)
		}
		for _, set := range c.sets {
			for _, m := range got {
				if !m.Matches(set.Get(m.Name)) {
					t.Errorf("%v does not match %v", m, set)
				}
			}
		}
	}
}

// If Info has no label sets, another querier queries this querier for all series.
func TestSource_NamesAThousandLabelSetsAtMost(t *testing.T) {
	for _, n := range []int{labelSetsMax, labelSetsMax + 1} {
		many := &fakeStore{}
		for i := range n {
			many.info.LabelSets = append(many.info.LabelSets, cluster(fmt.Sprint(i)))
		}
		f, _ := selecting(t, Selector{}, many)
		info, err := f.Source().Info(t.Context())
		want := n
		if n > labelSetsMax {
			want = 0
		}
		if err != nil || len(info.LabelSets) != want {
			t.Errorf("%d label sets of %d, %v", len(info.LabelSets), n, err)
		}
	}
}
