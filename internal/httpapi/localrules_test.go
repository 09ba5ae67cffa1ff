package httpapi_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/teststorage"
)

// The rules are three groups in two files, evaluated once: rules that succeed, fail and were
// never evaluated, and alerts that are pending, firing and kept firing.
const (
	firstRules = `groups:
- name: "alpha <&>"
  interval: 7s
  limit: 3
  rules:
  - {record: "job:one", expr: "vector(1)", labels: {team: a, "odd": "<\"&\u2028>"}}
  - {record: two, expr: "sum(label_replace(vector(1), \"a\", \"b\", \"c\", \"(\"))"}
  - {alert: Pending, expr: "vector(1.5e-7) > 0", for: 1h, labels: {team: b}, annotations: {summary: "{{ $value }} <&>", link: "{{ externalURL }}"}}
  - {alert: Firing, expr: "vector(NaN)", labels: {team: a, severity: page}, annotations: {}}
- name: beta
  rules:
  - {alert: Kept, expr: "vector(time() < bool 1700000005) == 1", keep_firing_for: 90s}
  - {alert: Quiet, expr: "vector(1) > 2", for: 1m30s}
`
	secondRules = `groups:
- name: beta
  rules:
  - {record: never, expr: "vector(1)"}
`
)

// ruled implements Rules with groups that were evaluated by hand.
type ruled struct {
	*rules.Manager
	urls []*url.URL
}

func (r ruled) Alertmanagers() []*url.URL        { return r.urls }
func (r ruled) DroppedAlertmanagers() []*url.URL { return r.urls[:1] }

func fakeRules(t *testing.T, engine promql.QueryEngine) ruled {
	t.Helper()
	dir := t.TempDir()
	var files []string
	for name, text := range map[string]string{"one.yml": firstRules, "two <2>.yml": secondRules} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	db := teststorage.New(t)
	t.Cleanup(func() { _ = db.Close() })
	m := rules.NewManager(&rules.ManagerOptions{
		ExternalURL: external, QueryFunc: rules.EngineQueryFunc(engine, storage.QueryableFunc(func(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil })),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {},
		Appendable: db, Queryable: db, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err := m.Update(time.Minute, files, labels.FromStrings("cluster", "north"), external.String(), nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		go m.Run()
		m.Stop()
	})
	for _, g := range m.RuleGroups() {
		if strings.Contains(g.File(), "one.yml") {
			for _, at := range []int64{1700000000, 1700000010} {
				g.Eval(t.Context(), time.Unix(at, 0).UTC())
			}
		}
	}
	var urls []*url.URL
	for _, text := range []string{"http://10.0.0.1:9093/api/v2/alerts", "https://h/<x>?a=1&b=2"} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		urls = append(urls, u)
	}
	return ruled{m, urls}
}

func TestAPI_RulesAlertsAndAlertmanagersEqualPrometheus(t *testing.T) {
	w := shared(t)
	p := w.parts(t)
	p.rules = fakeRules(t, p.reference)
	both := p.pair()
	forms := []url.Values{
		nil, form("type", "alert"), form("type", "record"), form("type", "RECORD"), form("type", "x"), form("type", ""),
		form("exclude_alerts", "true"), form("exclude_alerts", "1", "type", "alert"), form("exclude_alerts", "F"), form("exclude_alerts", "x"),
		form("rule_name[]", "two"), form("rule_name[]", "two", "rule_name[]", "Kept", "rule_name[]", "nothing"), form("rule_name[]", ""), form("rule_name[]", "nothing"),
		form("rule_group[]", "beta"), form("rule_group[]", "beta", "type", "record"), form("file[]", p.rules.RuleGroups()[0].File()), form("file[]", "x"),
		form("match[]", `{team="a"}`), form("match[]", `{team="a"}`, "match[]", `{severity="page"}`), form("match[]", `{team=~"a|b",severity=""}`), form("match[]", `{team=""}`), form("match[]", `{`),
		form("group_limit", "1"), form("group_limit", "2"), form("group_limit", "3"), form("group_limit", "0"), form("group_limit", "-1"), form("group_limit", "x"), form("group_limit", "99999999999"),
		form("group_limit", "1", "rule_group[]", "beta"), form("group_next_token", "x"), form("group_next_token", "x", "group_limit", "1"), form("group_next_token", "", "group_limit", "1"),
	}
	for _, g := range p.rules.RuleGroups() {
		forms = append(forms, form("group_limit", "1", "group_next_token", token(g.File(), g.Name())), form("group_limit", "5", "type", "record", "group_next_token", token(g.File(), g.Name())))
	}
	for _, f := range forms {
		both.compare(t, request{path: "/rules", form: f}, nil)
	}
	both.compare(t, request{path: "/alertmanagers"}, nil)
	// Prometheus' order of groups is random here.
	alerts := request{path: "/alerts"}
	ours, theirs := send(both.ours, alerts.request(t)).body, send(both.oracle, alerts.request(t)).body
	if a, b := sortedAlerts(ours), sortedAlerts(theirs); !slices.Equal(a, b) || len(a) != 4 {
		t.Errorf("alerts are\n%s\nwant\n%s", ours, theirs)
	}
}

// token is group_next_token of a group.
func token(file, group string) string {
	sum := sha256.Sum256([]byte(file + ";" + group))
	return hex.EncodeToString(sum[:])
}

// sortedAlerts splits the alerts of a response, of which each begins with its labels.
func sortedAlerts(body string) []string {
	list := strings.Split(strings.TrimSuffix(body, "]}}"), `{"labels":`)
	for i := range list {
		list[i] = strings.TrimSuffix(list[i], ",")
	}
	slices.Sort(list)
	return list
}
