package backtest_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promrules "github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/util/teststorage"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/promql/backtest"
	"github.com/ferula-io/ferula/internal/promql/columns"
)

var (
	quiet = slog.New(slog.DiscardHandler)
	begin = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
)

// world is a storage with series that change.
type world struct {
	*teststorage.TestStorage
	engine *promql.Engine
	parser parser.Parser
}

func newWorld(t testing.TB, maxSamples int) *world {
	t.Helper()
	db := teststorage.New(t)
	t.Cleanup(func() { _ = db.Close() })
	p := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{Logger: quiet, MaxSamples: maxSamples, Timeout: time.Minute, Parser: p,
		EnableAtModifier: true, EnableNegativeOffset: true})
	t.Cleanup(func() { _ = engine.Close() })
	return &world{db, engine, p}
}

func (w *world) append(t testing.TB, lset labels.Labels, at func(i int) (float64, bool), n int) {
	t.Helper()
	app := w.Appender(context.Background())
	for i := range n {
		if v, ok := at(i); ok {
			if _, err := app.Append(0, lset, begin.UnixMilli()+int64(i)*15_000, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// incidents adds series whose values are small integers for random times, with gaps and staleness markers.
func (w *world) incidents(t testing.TB, rnd *rand.Rand, n int) {
	for _, name := range []string{"up", "load"} {
		for i := range 6 {
			v, left, gap, was := 0.0, 0, false, false
			lset := labels.FromStrings(labels.MetricName, name, "instance", fmt.Sprint("i", i), "zone", fmt.Sprint("z", i%2))
			w.append(t, lset, func(int) (float64, bool) {
				if left--; left < 0 {
					v, left, gap = float64(rnd.IntN(4)), rnd.IntN(60), rnd.IntN(6) == 0
				}
				if gap && was && rnd.IntN(2) == 0 {
					was = false
					return math.Float64frombits(value.StaleNaN), true
				}
				was = !gap
				return v, !gap
			}, n)
		}
	}
}

func (w *world) options(samples time.Duration) backtest.Options {
	return backtest.Options{Engine: w.engine, Parser: w.parser, Queryable: w, File: "a.yml",
		ExternalLabels: labels.FromStrings("region", "north"), ExternalURL: &url.URL{Scheme: "http", Host: "prom.example"},
		Interval: 30 * time.Second, Start: begin.Add(time.Minute), End: begin.Add(samples), Resends: true}
}

// transcript is what a rule has done, as lines.
type transcript []string

// wanted runs Prometheus' own groups, step by step, over a copy of the storage.
func (w *world) wanted(t *testing.T, content string, o backtest.Options) map[string]transcript {
	t.Helper()
	lines := map[string]transcript{}
	var now time.Time
	file := filepath.Join(t.TempDir(), "a.yml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	key := ""
	manager := promrules.NewManager(&promrules.ManagerOptions{
		QueryFunc: promrules.EngineQueryFunc(w.engine, w), Appendable: w, Queryable: w, Logger: quiet, Parser: w.parser,
		ExternalURL: o.ExternalURL, ResendDelay: time.Minute, Context: context.Background(),
		DefaultRuleQueryOffset: func() time.Duration { return o.QueryOffset },
		NotifyFunc: func(_ context.Context, _ string, alerts ...*promrules.Alert) {
			for _, a := range alerts {
				ends := a.ValidUntil
				if !a.ResolvedAt.IsZero() {
					ends = a.ResolvedAt
				}
				// the rule is known by the label that the test adds to each
				key = a.Labels.Get("rule")
				lines[key] = append(lines[key], notified(now, a.Labels, a.Annotations, a.FiredAt, ends, !a.ResolvedAt.IsZero()))
			}
		},
		GroupLoader: named{w.parser, file},
	})
	groups, errs := manager.LoadGroups(o.Interval, o.ExternalLabels, o.ExternalURL.String(), nil, false, o.File)
	if errs != nil {
		t.Fatal(errs)
	}
	var all []*promrules.Group
	next := map[*promrules.Group]time.Time{}
	parsed, _ := rulefmt.Parse([]byte(content), false, model.UTF8Validation, w.parser, quiet)
	for _, g := range parsed.Groups {
		group := groups[promrules.GroupKey(o.File, g.Name)]
		all = append(all, group)
		next[group] = group.EvalTimestamp(o.Start.UnixNano())
		if next[group].Before(o.Start) {
			next[group] = next[group].Add(group.Interval())
		}
		for _, rule := range group.Rules() {
			if a, ok := rule.(*promrules.AlertingRule); ok {
				a.SetRestored(true)
			}
		}
	}
	open := map[string]string{} // of an alert: its interval
	for {
		g := slices.MinFunc(all, func(a, b *promrules.Group) int { return next[a].Compare(next[b]) })
		if now = next[g]; now.After(o.End) {
			break
		}
		g.Eval(context.Background(), now)
		for _, rule := range g.Rules() {
			a, ok := rule.(*promrules.AlertingRule)
			if !ok {
				continue
			}
			is := map[string]string{}
			for _, al := range a.ActiveAlerts() {
				is[al.Labels.String()] = al.State.String()
				if !strings.HasPrefix(open[al.Labels.String()], al.State.String()) {
					key := al.Labels.Get("rule")
					lines[key] = append(lines[key], fmt.Sprintf("%s %s begins at %s with %v", al.Labels, al.State, stamp(now), al.Value))
				}
			}
			for set, was := range open {
				if strings.Contains(set, `rule="`+a.Labels().Get("rule")+`"`) && is[set] != was {
					key := a.Labels().Get("rule")
					lines[key] = append(lines[key], fmt.Sprintf("%s %s ends at %s", set, was, stamp(now)))
					delete(open, set)
				}
			}
			for set, state := range is {
				open[set] = state
			}
		}
		next[g] = now.Add(g.Interval())
	}
	for set, state := range open {
		_, rest, _ := strings.Cut(set, `rule="`)
		key, _, _ := strings.Cut(rest, `"`)
		lines[key] = append(lines[key], fmt.Sprintf("%s %s ends at %s, open", set, state, stamp(o.End)))
	}
	for _, l := range lines {
		slices.Sort(l)
	}
	return lines
}

// named loads one file under any name.
type named struct {
	parser parser.Parser
	file   string
}

func (n named) Load(string, bool, model.ValidationScheme) (*rulefmt.RuleGroups, []error) {
	return rulefmt.ParseFile(n.file, false, model.UTF8Validation, n.parser, quiet)
}

func (n named) Parse(expr string) (parser.Expr, error) { return n.parser.ParseExpr(expr) }

func stamp(t time.Time) string { return t.UTC().Format("15:04:05.000000000") }

func notified(at time.Time, lset, notes labels.Labels, starts, ends time.Time, resolved bool) string {
	return fmt.Sprintf("%s notified at %s: %s %s to %s, resolved %t", lset, stamp(at), notes, stamp(starts), stamp(ends), resolved)
}

func run(t *testing.T, content string, o backtest.Options) *backtest.Result {
	t.Helper()
	rules, err := backtest.Load([]byte(content), o)
	if err != nil {
		t.Fatal(err)
	}
	res, err := backtest.Run(context.Background(), rules, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func transcribed(res *backtest.Result) map[string]transcript {
	lines := map[string]transcript{}
	for _, g := range res.Groups {
		for _, r := range g.Rules {
			for _, a := range r.Alerts {
				key := a.Labels.Get("rule")
				for _, v := range a.Intervals {
					open := ""
					if v.Open {
						open = ", open"
					}
					lines[key] = append(lines[key],
						fmt.Sprintf("%s %s begins at %s with %v", a.Labels, v.State, stamp(v.Start), v.Value),
						fmt.Sprintf("%s %s ends at %s%s", a.Labels, v.State, stamp(v.End), open))
				}
			}
			for _, n := range r.Notifications {
				key := n.Labels.Get("rule")
				lines[key] = append(lines[key], notified(n.At, n.Labels, n.Annotations, n.StartsAt, n.EndsAt, n.Resolved))
			}
		}
	}
	for _, l := range lines {
		slices.Sort(l)
	}
	return lines
}

// sameResends fails the test unless the notifications that a result counts are those that another one lists.
func sameResends(t *testing.T, content string, listed, counted *backtest.Result) {
	t.Helper()
	for i, g := range listed.Groups {
		for k, r := range g.Rules {
			other := counted.Groups[i].Rules[k]
			if r.Truncated {
				continue
			}
			if r.Counts != other.Counts {
				t.Errorf("rule %s: listed %+v, counted %+v\n%s", r.Rule.Name(), r.Counts, other.Counts, content)
			}
			more := map[string]int{}
			for _, n := range r.Notifications {
				more[n.Labels.String()]++
			}
			for _, n := range other.Notifications {
				more[n.Labels.String()] -= 1 + n.Resends
			}
			for set, n := range more {
				if n != 0 {
					t.Errorf("%s: %d more notifications are listed than counted\n%s", set, n, content)
				}
			}
		}
	}
}

// randomRules returns a file with two or three groups. Every alert has a label "rule" of its own. Alone means that no
// template queries: alerts are then looked at only when they change.
func randomRules(rnd *rand.Rand, dependent, alone bool) string {
	pick := func(of ...string) string { return of[rnd.IntN(len(of))] }
	var b strings.Builder
	b.WriteString("groups:\n")
	n := 0
	for g := range 2 + rnd.IntN(2) {
		fmt.Fprintf(&b, "- name: g%d\n  interval: %s\n", g, pick("15s", "30s", "45s", "1m"))
		if rnd.IntN(3) == 0 {
			fmt.Fprintf(&b, "  limit: %d\n", 1+rnd.IntN(5))
		}
		if rnd.IntN(3) == 0 {
			fmt.Fprintf(&b, "  query_offset: %s\n", pick("10s", "1m"))
		}
		fmt.Fprintf(&b, "  labels: {team: t%d}\n  rules:\n", g)
		if dependent {
			fmt.Fprintf(&b, "  - {record: zone:load:sum%d, expr: 'sum by (zone) (load)', labels: {by: rule}}\n", g)
		}
		for range 1 + rnd.IntN(3) {
			n++
			exprs := []string{"load > 1", "up == 0", "load == 3 or up == 2", "absent(up{instance=\"i0\"})", "vector(1) > 0",
				"sum by (zone) (load) > 4", "rate(load[1m]) > 0", "load > on (instance) up", "load * on (zone) group_left up > 2",
				"max_over_time(load[2m]) - 2 > 0", "time() % 600 < bool 300", "scalar(up{instance=\"i1\"}) > bool 1",
				"load @ end() > 1", "{__name__=~\"up|load\"} > 2", "topk(2, load)", "load * time() > 1",
				"-{__name__=~\"up|load\"} < -1"}
			if dependent {
				exprs = append(exprs, "zone:load:sum0 > 4", "zone:load:sum1 > 3", "sum_over_time(zone:load:sum0[2m]) > 20",
					"ALERTS{alertname=\"A1\"} == 1", "count by (alertstate) (ALERTS) > 2", "time() - ALERTS_FOR_STATE > 90",
					"{__name__=~\"zone:.*\"} > 5", "absent(zone:load:sum0)", "zone:load:sum1 offset 1m > 2")
			}
			fmt.Fprintf(&b, "  - alert: A%d\n    expr: '%s'\n    for: %s\n    keep_firing_for: %s\n", n, exprs[rnd.IntN(len(exprs))],
				pick("0s", "0s", "30s", "1m", "5m"), pick("0s", "0s", "1m", "4m"))
			fmt.Fprintf(&b, "    labels: {rule: r%d, %s}\n", n, pick("severity: page", "level: '{{ $value }}'",
				"instance: ''", "place: '{{ $labels.zone }}/{{ .Labels.instance }}'", "zone: all", "q: '{{ $value | humanize }}x'"))
			texts := []string{"summary: plain", "summary: '{{ $labels.instance }} has {{ $value }} in " +
				"{{ $externalLabels.region }}', link: '{{ $externalURL }}'"}
			if !alone {
				texts = append(texts, "summary: '{{ with query \"sum(load)\" }}{{ . | first | value }}{{ end }}'",
					"summary: '{{ query \"broken(\" }}'", "summary: '{{ query \"ALERTS\" | len }}'", "summary: '{{ 1 | query }}'")
			}
			fmt.Fprintf(&b, "    annotations: {%s}\n", pick(texts...))
		}
	}
	return b.String()
}

// The oracle is Prometheus' rules.Group.Eval over the same data: every interval and every notification is the same.
func TestRun_EqualsTheRuleManager(t *testing.T) {
	const samples = 400
	seeds := 4 // more with the variable: a minute for 60
	if n, err := strconv.Atoi(os.Getenv("FERULA_BACKTEST_SEEDS")); err == nil {
		seeds = n
	}
	notifications, intervals := 0, 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(seed), 34))
			maxSamples := 1_000_000
			if seed%5 == 4 {
				maxSamples = 60 // range queries exceed it, instant queries mostly do not
			}
			w := newWorld(t, maxSamples)
			w.incidents(t, rnd, samples)
			content := randomRules(rnd, seed%2 == 1, seed%4 == 0)
			o := w.options(samples * 15 * time.Second)
			o.QueryOffset = time.Duration(rnd.IntN(2)) * 5 * time.Second
			listed := run(t, content, o) // before the rule manager writes into the storage
			counted := o
			counted.Resends = false
			all := run(t, content, counted)
			sameResends(t, content, listed, all)
			for i := range 4 {
				counted.Engine = forgetful{w.engine, rnd, i > 0, []int{0, 0, 64, 1 + rnd.IntN(20)}[i]}
				forgot := run(t, content, counted)
				if got, want := transcribed(forgot), transcribed(all); !reflect.DeepEqual(got, want) {
					t.Errorf("%d, with values that are not read: %s\n%s", i, differences(got, want), content)
				}
				sameResends(t, content, listed, forgot)
			}
			got := transcribed(listed)
			want := w.wanted(t, content, o)
			for rule := range got {
				want[rule] = append(want[rule], "")[:len(want[rule])]
			}
			for rule, lines := range want {
				slices.Sort(lines)
				for i := range max(len(lines), len(got[rule])) {
					var a, b string
					if i < len(lines) {
						a = lines[i]
					}
					if i < len(got[rule]) {
						b = got[rule][i]
					}
					if a != b {
						t.Fatalf("rule %s, line %d:\nwant %s\ngot  %s\n%s", rule, i, a, b, content)
					}
					if strings.Contains(a, "notified") {
						notifications++
					} else {
						intervals++
					}
				}
			}
		})
	}
	if notifications < 20*seeds || intervals < 20*seeds {
		t.Errorf("only %d notifications and %d intervals were compared", notifications, intervals)
	}
	t.Logf("%d notifications and %d intervals", notifications, intervals)
}

// The alerts of ferula's own mixin, over random incidents in every series that their expressions select.
func TestRun_OfTheMixinEqualsTheRuleManager(t *testing.T) { ofMixin(t, "../../../mixin/alerts.yml") }

// A public mixin.
func TestPeerThanos_ItsMixinEqualsTheRuleManager(t *testing.T) {
	if os.Getenv("FERULA_TEST_PEERS") == "" {
		t.Skip("needs the module of Thanos: run `make interop`")
	}
	download := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "github.com/thanos-io/thanos")
	download.Dir, download.Env = "../../../test/peers/thanos", append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	out, err := download.Output()
	var module struct{ Dir string }
	if err = errors.Join(err, json.Unmarshal(out, &module)); err != nil {
		t.Fatal(err)
	}
	ofMixin(t, filepath.Join(module.Dir, "examples", "alerts", "alerts.yaml"))
}

// ofMixin compares a mixin over incidents of two instances: each series that its rules select rises, or stays, for some
// minutes at a time.
func ofMixin(t *testing.T, path string) {
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	parsed, errs := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}), quiet)
	if errs != nil {
		t.Fatal(errs)
	}
	w, rnd := newWorld(t, 1_000_000), rand.New(rand.NewPCG(3, 4))
	const samples = 160
	known := map[string]bool{}
	for g := range parsed.Groups {
		for r := range parsed.Groups[g].Rules {
			rule := &parsed.Groups[g].Rules[r]
			if rule.Alert != "" {
				if rule.Labels == nil {
					rule.Labels = map[string]string{}
				}
				rule.Labels["rule"] = fmt.Sprintf("r%d-%d", g, r)
				rule.For = min(rule.For, model.Duration(10*time.Minute))
			}
			expr, err := w.parser.ParseExpr(rule.Expr)
			if err != nil {
				t.Fatal(err)
			}
			parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
				s, ok := node.(*parser.VectorSelector)
				if !ok {
					return nil
				}
				bounds := []string{""}
				if strings.HasSuffix(s.Name, "_bucket") {
					bounds = []string{"0.1", "5", "+Inf"}
				}
				for i := range 2 * len(bounds) {
					instance := "i" + strconv.Itoa(i%2+1)
					b := labels.NewBuilder(labels.FromStrings("job", "ferula", "instance", instance, "le", bounds[i/2]))
					for _, m := range s.LabelMatchers {
						switch m.Type {
						case labels.MatchEqual:
							b.Set(m.Name, m.Value)
						case labels.MatchRegexp:
							b.Set(m.Name, strings.NewReplacer(".*", "", ".", "0").Replace(m.Value))
						}
					}
					lset := b.Labels()
					if known[lset.String()] {
						continue
					}
					known[lset.String()] = true
					v, left, rises := 0.0, 0, 0.0
					w.append(t, lset, func(i int) (float64, bool) {
						if left--; left < 0 {
							left, rises = 40+rnd.IntN(40), float64(rnd.IntN(3)*rnd.IntN(1000))
							v = float64(rnd.IntN(2))
						}
						v += rises
						return v, true
					}, samples)
				}
				return nil
			})
		}
	}
	content, err = yaml.Marshal(parsed)
	if err != nil {
		t.Fatal(err)
	}
	o := w.options(samples * 15 * time.Second)
	got := transcribed(run(t, string(content), o))
	want := w.wanted(t, string(content), o)
	n := 0
	for rule := range want {
		if !slices.Equal(got[rule], want[rule]) {
			t.Errorf("rule %s:\ngot  %s\nwant %s", rule, strings.Join(got[rule], "\n"), strings.Join(want[rule], "\n"))
		}
		n += len(want[rule])
	}
	if len(got) != len(want) || n < 50 {
		t.Errorf("%d rules, want %d; %d events", len(got), len(want), n)
	}
	t.Logf("%d rules, %d events", len(want), n)
}

// While an evaluation fails because two alerts have the same labels, the others keep what they had before.
func TestRun_SameLabelsBeginWhileAnotherAlertFires(t *testing.T) {
	for _, times := range []int{1, 8} { // alerts of long runs are not looked at
		sameLabels(t, times)
	}
}

func sameLabels(t *testing.T, times int) {
	w := newWorld(t, 1_000_000)
	during := func(from, to int) func(int) (float64, bool) {
		return func(i int) (float64, bool) {
			if i < from*times || i >= to*times {
				return 0, true
			}
			return float64(i), true
		}
	}
	w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", "a"), during(4, 20), 40*times)
	w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", "b"), during(4, 40), 40*times)
	w.append(t, labels.FromStrings(labels.MetricName, "up", "instance", "b"), during(12, 26), 40*times)
	const content = "groups:\n- name: g\n  interval: 15s\n  rules:\n  - alert: A\n    expr: '{__name__=~\"up|load\"} > 0'\n" +
		"    labels: {rule: r}\n    annotations: {text: 'it is {{ $value }}'}\n"
	o := w.options(time.Duration(40*times) * 15 * time.Second)
	listed := run(t, content, o)
	got := transcribed(listed)["r"]
	o.Resends = false
	all := transcribed(run(t, content, o))
	for i := range 100 {
		o.Engine = forgetful{w.engine, rand.New(rand.NewPCG(uint64(i), 1)), i > 0, 0}
		forgot := run(t, content, o)
		if got := transcribed(forgot); !reflect.DeepEqual(got, all) {
			t.Errorf("%d, with values that are not read: %s\nwant %s", i, got, all)
		}
		sameResends(t, content, listed, forgot)
	}
	want := w.wanted(t, content, o)["r"]
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// A client can push a NaN with the bits of a value that was not read.
func TestRun_SampleWithTheBitsOfAnUnreadValue(t *testing.T) {
	w := newWorld(t, 1_000_000)
	w.append(t, labels.FromStrings(labels.MetricName, "load"), func(int) (float64, bool) { return columns.UnreadValue, true }, 20)
	const content = "groups:\n- name: g\n  rules:\n  - {alert: A, expr: load != 1, labels: {rule: r}}\n"
	o := w.options(5 * time.Minute)
	o.Resends = false
	if all := run(t, content, o).Groups[0].Rules[0].Alerts; len(all) != 1 || !columns.Unread(all[0].Intervals[0].Value) {
		t.Errorf("%+v", all)
	}
}
