package fanout

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// ordered fails unless the elements are in ascending order of compare, and no two of them are equal.
func ordered[T any](t *testing.T, all []T, compare func(a, b *T) int) {
	t.Helper()
	for i := range all {
		for j := range all {
			if got, want := compare(&all[i], &all[j]), cmp.Compare(i, j); got != want {
				t.Errorf("elements %d and %d compare as %d", i, j, got)
			}
		}
	}
}

func TestCompareRules_KindNameLabelsQueryAndDuration(t *testing.T) {
	a, b := labels.FromStrings("l", "a"), labels.FromStrings("l", "b")
	ordered(t, []storeapi.Rule{
		{Alerting: true, Name: "z", Labels: b, Query: "z"}, {Name: "a", Labels: b, Query: "z", DurationSeconds: 9}, {Name: "b", Labels: a, Query: "z", DurationSeconds: 9},
		{Name: "b", Labels: b, Query: "y", DurationSeconds: 9}, {Name: "b", Labels: b, Query: "z", DurationSeconds: 1}, {Name: "b", Labels: b, Query: "z", DurationSeconds: 2},
	}, compareRules)
}

func TestPreferred_NearestToFiringThenLastEvaluated(t *testing.T) {
	rule := func(state string, seconds int64) *storeapi.Rule {
		return &storeapi.Rule{State: state, LastEvaluation: time.Unix(seconds, 0)}
	}
	best := []*storeapi.Rule{rule("firing", 2), rule("firing", 1), rule("pending", 9), rule("inactive", 9), rule("unknown", 9), rule("", 8)}
	for i, a := range best {
		for j, b := range best {
			if preferred(a, b) != (i < j) {
				t.Errorf("rule %d is preferred to rule %d: %v", i, j, i >= j)
			}
		}
	}
}

func TestMergeRules_EachRuleIsReturnedOnce(t *testing.T) {
	rule := func(name, replica string, second int64) storeapi.Rule {
		return storeapi.Rule{Name: name, Labels: labels.FromStrings("replica", replica), LastEvaluation: time.Unix(second, 0)}
	}
	names := func(rules []storeapi.Rule) (text string) {
		for _, r := range rules {
			text += fmt.Sprintf("%s%d%s ", r.Name, r.LastEvaluation.Unix(), r.Labels)
		}
		return text
	}
	all := func() []storeapi.Rule {
		return []storeapi.Rule{rule("b", "1", 1), rule("a", "1", 5), rule("b", "2", 3), rule("b", "3", 2), rule("a", "2", 4)}
	}
	if got := names(mergeRules(all(), []string{"replica"})); got != "b3{} a5{} " {
		t.Errorf("merged: %s", got)
	}
	if got := mergeRules(all(), nil); len(got) != 5 {
		t.Errorf("other labels: %d rules", len(got))
	}
	if got := mergeRules(nil, nil); len(got) != 0 {
		t.Errorf("%d rules of none", len(got))
	}
	groups := mergeGroups([]storeapi.RuleGroup{{File: "f", Name: "b"}, {File: "f", Name: "a", Rules: all()[:1]}, {File: "e", Name: "b"}, {File: "f", Name: "a", Rules: all()[1:]}}, []string{"replica"})
	var text []string
	for _, g := range groups {
		text = append(text, g.File+g.Name+" "+names(g.Rules))
	}
	if got := strings.Join(text, ";"); got != "eb ;fa b3{} a5{} ;fb " {
		t.Errorf("groups: %s", got)
	}
}

func TestSelectRules_TemplatesAndEverySet(t *testing.T) {
	is := func(name, value string) *labels.Matcher { return labels.MustNewMatcher(labels.MatchEqual, name, value) }
	set := labels.FromStrings("a", "1", "b", "x {{ $value }}", "c", "{")
	plain := withoutTemplates(set)
	if plain.String() != `{a="1", c="{"}` {
		t.Errorf("without templates: %s", plain)
	}
	for _, c := range []struct {
		matchers [][]*labels.Matcher
		want     bool
	}{
		{nil, true}, {[][]*labels.Matcher{{is("a", "1")}, {is("c", "{")}}, true}, {[][]*labels.Matcher{{is("a", "1")}, {is("c", "2")}}, false}, {[][]*labels.Matcher{{is("a", "2"), is("c", "{")}}, false}, {[][]*labels.Matcher{{is("b", "")}}, true},
	} {
		if got := labels.Selector(slices.Concat(c.matchers...)).Matches(plain); got != c.want {
			t.Errorf("%v: %v", c.matchers, got)
		}
	}
	rule := func(name string) storeapi.Rule { return storeapi.Rule{Name: name} }
	left := selectRules([]storeapi.RuleGroup{{Name: "1", Rules: []storeapi.Rule{rule("a"), rule("b")}}, {Name: "2", Rules: []storeapi.Rule{rule("b")}}, {Name: "3", Rules: []storeapi.Rule{rule("b"), rule("a")}}},
		func(r *storeapi.Rule) bool { return r.Name == "a" })
	if len(left) != 2 || left[0].Name != "1" || left[1].Name != "3" || len(left[0].Rules) != 1 || len(left[1].Rules) != 1 || left[1].Rules[0].Name != "a" {
		t.Errorf("left: %+v", left)
	}
}

func TestMergeActive_EveryDifferenceKeepsTargetsApart(t *testing.T) {
	a, b := labels.FromStrings("l", "a"), labels.FromStrings("l", "b")
	target := func(pool, url string, discovered, set labels.Labels, health string, second int64) storeapi.ActiveTarget {
		return storeapi.ActiveTarget{ScrapePool: pool, ScrapeURL: url, Discovered: discovered, Labels: set, Health: health, LastScrape: time.Unix(second, 0)}
	}
	want := []storeapi.ActiveTarget{
		target("a", "z", b, b, "up", 1), target("b", "a", b, b, "up", 1), target("b", "b", a, b, "up", 1), target("b", "b", b, a, "up", 1), target("b", "b", b, b, "down", 3),
	}
	all := slices.Concat(want, []storeapi.ActiveTarget{target("b", "b", b, b, "up", 9), target("b", "b", b, b, "down", 2), target("b", "b", b, b, "unknown", 10)})
	slices.Reverse(all)
	if got := mergeActive(all, nil); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for health, rank := range map[string]int{"down": 2, "up": 1, "unknown": 0, "": 0} {
		if got := healthRank(health); got != rank {
			t.Errorf("%q: %d", health, got)
		}
	}
	if got := mergeDropped([]labels.Labels{b, a, b}, nil); fmt.Sprint(got) != `[{l="a"} {l="b"}]` {
		t.Errorf("dropped: %v", got)
	}
}

func TestMergeExemplars_EqualOnesOfReplicasAreReturnedOnce(t *testing.T) {
	one := func(ts int64, trace string, value float64) exemplar.Exemplar {
		return exemplar.Exemplar{Ts: ts, Labels: labels.FromStrings("trace", trace), Value: value}
	}
	of := func(name, replica string, all ...exemplar.Exemplar) exemplar.QueryResult {
		return exemplar.QueryResult{SeriesLabels: labels.FromStrings("n", name, "replica", replica), Exemplars: all}
	}
	got := mergeExemplars([]exemplar.QueryResult{
		of("b", "1", one(2, "a", 1)), of("a", "2", one(2, "b", 2), one(1, "z", 9)), of("a", "1", one(2, "b", 1), one(2, "a", 9), one(2, "b", 2)),
	}, []string{"replica"})
	var text []string
	for _, r := range got {
		line := r.SeriesLabels.Get("n") + r.SeriesLabels.Get("replica")
		for _, e := range r.Exemplars {
			line += fmt.Sprint(" ", e.Ts, e.Labels.Get("trace"), e.Value)
		}
		text = append(text, line)
	}
	if got := strings.Join(text, "; "); got != "a 1z9 2a9 2b1 2b2; b 2a1" {
		t.Errorf("%s", got)
	}
	if got := mergeExemplars([]exemplar.QueryResult{of("a", "1"), of("a", "2")}, nil); len(got) != 2 {
		t.Errorf("without replica labels: %d series", len(got))
	}
}

func TestMergeLists_GreatestValuesThenNames(t *testing.T) {
	list := func(names string, value uint64) (all []storeapi.Statistic) {
		for _, name := range names {
			all = append(all, storeapi.Statistic{Name: string(name), Value: value})
		}
		return all
	}
	add := func(a, b uint64) uint64 { return a + b }
	for limit, want := range map[int]string{0: "[]", 1: "[{c 5}]", 3: "[{c 5} {a 3} {b 3}]", 4: "[{c 5} {a 3} {b 3} {d 2}]", 9: "[{c 5} {a 3} {b 3} {d 2}]"} {
		if got := fmt.Sprint(mergeLists([][]storeapi.Statistic{list("bac", 3), list("cd", 2)}, limit, add)); got != want {
			t.Errorf("at most %d: %s, want %s", limit, got, want)
		}
	}
	sum := mergeStatistics([]storeapi.TSDBStatistics{
		{MinMS: 10, MaxMS: 20, Series: 1, LabelPairs: 2, Chunks: 3, SeriesByMetric: list("a", 1), ValuesByLabel: list("a", 4), BytesByLabel: list("a", 5), SeriesByPair: list("a", 6)},
		{MinMS: 11, MaxMS: 19, Series: 10, LabelPairs: 20, Chunks: 30, SeriesByMetric: list("a", 10), ValuesByLabel: list("a", 3), BytesByLabel: list("a", 50), SeriesByPair: list("a", 60)},
	}, 1)
	if fmt.Sprint(sum.MinMS, sum.MaxMS, sum.Series, sum.LabelPairs, sum.Chunks, sum.SeriesByMetric, sum.ValuesByLabel, sum.BytesByLabel, sum.SeriesByPair) != "10 20 11 22 33 [{a 11}] [{a 4}] [{a 55}] [{a 66}]" {
		t.Errorf("%+v", sum)
	}
	if sum := mergeStatistics([]storeapi.TSDBStatistics{{MinMS: 11, MaxMS: 19}, {MinMS: 10, MaxMS: 20}}, 1); sum.MinMS != 10 || sum.MaxMS != 20 {
		t.Errorf("%+v", sum)
	}
}

func TestClientYAML_EveryFieldOverridesTheDefault(t *testing.T) {
	yes, no := true, false
	byDefault := ClientConfig{TLS: "false", SkipVerify: "true", Cert: "1", Key: "2", CA: "3", ServerName: "4", MinVersion: "5", Compression: "none"}
	for name, c := range map[string]struct {
		change func(c *clientYAML)
		want   func(c *ClientConfig)
	}{
		"nothing":     {func(*clientYAML) {}, func(*ClientConfig) {}},
		"enabled":     {func(c *clientYAML) { c.TLS.Enabled = &yes }, func(c *ClientConfig) { c.TLS = "true" }},
		"verify":      {func(c *clientYAML) { c.TLS.InsecureSkipVerify = &no }, func(c *ClientConfig) { c.TLS, c.SkipVerify = "true", "false" }},
		"cert":        {func(c *clientYAML) { c.TLS.Cert = "x" }, func(c *ClientConfig) { c.TLS, c.Cert = "true", "x" }},
		"key":         {func(c *clientYAML) { c.TLS.Key = "x" }, func(c *ClientConfig) { c.TLS, c.Key = "true", "x" }},
		"ca":          {func(c *clientYAML) { c.TLS.CA = "x" }, func(c *ClientConfig) { c.TLS, c.CA = "true", "x" }},
		"disabled":    {func(c *clientYAML) { c.TLS.Enabled, c.TLS.CA = &no, "x" }, func(c *ClientConfig) { c.CA = "x" }},
		"version":     {func(c *clientYAML) { c.TLS.MinVersion = "x" }, func(c *ClientConfig) { c.MinVersion = "x" }},
		"name":        {func(c *clientYAML) { c.ServerName = "x" }, func(c *ClientConfig) { c.ServerName = "x" }},
		"compression": {func(c *clientYAML) { c.Compression = "snappy" }, func(c *ClientConfig) { c.Compression = "snappy" }},
	} {
		var given clientYAML
		want := byDefault
		c.change(&given)
		c.want(&want)
		if got, err := given.over(byDefault); err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, want)
		}
	}
}

func TestFiles_ErrorsNameTheirPlace(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		files Files
		want  string
	}{
		"no file":         {Files{ConfigFile: filepath.Join(dir, "none")}, "no such file"},
		"variable":        {Files{ConfigFile: write("variable.yml", "endpoints: [{address: $(FERULA_NOT_SET)}]")}, "variable.yml: "},
		"syntax":          {Files{ConfigFile: write("syntax.yml", "endpoints: {")}, "syntax.yml: "},
		"default":         {Files{Config: []byte("default_client_config: {compression: lzma}")}, "default_client_config: unknown compression \"lzma\""},
		"no address":      {Files{Config: []byte("endpoints: [{address: a:1}, {strict: true}]")}, "endpoint 1 has no address"},
		"client":          {Files{Config: []byte("endpoints: [{address: a:1, client_config: {compression: lzma}}]")}, "endpoint a:1: client_config: "},
		"strict":          {Files{Config: []byte("endpoints: [{address: dns+a:1, strict: true}]")}, "strict endpoint dns+a:1"},
		"pattern":         {Files{Discovery: []string{"["}}, "[: "},
		"discovery":       {Files{Discovery: []string{write("sd.json", "{")}}, "sd.json: "},
		"not readable":    {Files{Discovery: []string{dir}}, dir + ": "},
		"nothing":         {Files{}, ""},
		"empty":           {Files{Config: []byte("# nothing")}, ""},
		"no discovery":    {Files{Discovery: []string{filepath.Join(dir, "none-*")}}, ""},
		"empty discovery": {Files{Discovery: []string{write("empty.yml", "")}}, ""},
	} {
		if got, err := c.files.Read(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || len(got) != 0 {
			t.Errorf("%s: %v, %v, want %s", name, got, err, c.want)
		}
	}
	for i, files := range []Files{{Config: []byte("x")}, {ConfigFile: "x"}, {Discovery: []string{"x"}}} {
		if !files.Any() {
			t.Errorf("source %d is not noticed", i)
		}
	}
	if (Files{}).Any() {
		t.Error("there are sources of nothing")
	}
}

// The slices of a page stay as they are while further series are added, and do not run into each other.
func TestPage_SlicesOfItsSeriesDoNotOverlap(t *testing.T) {
	p := &page{}
	for i := range byte(20) {
		data := []byte{i, i}
		p.add([]byte{i}, []series.Chunk{{MinMS: int64(i), Data: data}, {MinMS: int64(i) + 1, Data: data[:1]}})
		data[0] = 99 // borrowed
	}
	for i, s := range p.series {
		n := byte(i)
		if !slices.Equal(s.labels, []byte{n}) || len(s.chunks) != 2 || !slices.Equal(s.chunks[0].Data, []byte{n, n}) || !slices.Equal(s.chunks[1].Data, []byte{n}) || s.chunks[1].MinMS != int64(i)+1 {
			t.Errorf("series %d: %+v", i, s)
		}
		if cap(s.labels) != 1 || cap(s.chunks) != 2 || cap(s.chunks[0].Data) != 2 {
			t.Errorf("series %d: appending to it overwrites the next one", i)
		}
	}
}

// A page that grows is replaced by a pooled one. The series that were copied before still have their bytes.
func TestPage_LargePageTakesItsPlace(t *testing.T) {
	first := &page{granted: 7}
	p := first
	for i := range byte(200) {
		data := bytes.Repeat([]byte{i}, 50)
		p = p.add(data[:40], []series.Chunk{{MinMS: int64(i), Data: data}})
	}
	if p == first || !p.pooled || p.granted != 7 || len(p.bytes) != 200*90 || len(p.series) != 200 || len(p.chunks) != 200 {
		t.Fatalf("%d bytes, %d series, %d chunks, %d bytes granted, pooled: %t", len(p.bytes), len(p.series), len(p.chunks), p.granted, p.pooled)
	}
	for i, s := range p.series {
		data := bytes.Repeat([]byte{byte(i)}, 50)
		if !bytes.Equal(s.labels, data[:40]) || len(s.chunks) != 1 || !bytes.Equal(s.chunks[0].Data, data) || s.chunks[0].MinMS != int64(i) {
			t.Errorf("series %d: %+v", i, s)
		}
	}
	p.release()
	if len(p.bytes)+len(p.series)+len(p.chunks) > 0 || p.granted != 0 {
		t.Error("a released page is not empty")
	}
}
