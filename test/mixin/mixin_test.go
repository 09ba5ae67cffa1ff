// Package mixin tests the rules and dashboards of the directory mixin: every expression
// parses, and every metric and label in it is in docs/ops/metrics.md. A test of
// internal/app compares that file with running processes.
package mixin

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const folder = "../../mixin"

// family is a row of the reference of metrics.
type family struct {
	kind   string // "" if the reference does not say
	labels []string
}

var (
	row   = regexp.MustCompile("^\\| `([a-z_0-9]+)` \\|")
	name  = regexp.MustCompile("`([a-zA-Z_][a-zA-Z0-9_]*)`")
	prose = regexp.MustCompile("`((?:go|process)_[a-z_]+)`")
)

// reference reads docs/ops/metrics.md.
func reference(t *testing.T) map[string]family {
	t.Helper()
	file, err := os.Open("../../docs/ops/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	known := map[string]family{"up": {kind: "gauge"}}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		line := lines.Text()
		if m := row.FindStringSubmatch(line); m != nil {
			f := family{}
			cells := strings.Split(line, "|")
			if len(cells) > 5 { // with type and meaning
				f.kind, cells = strings.TrimSpace(cells[2]), cells[1:]
			}
			for _, l := range name.FindAllStringSubmatch(cells[2], -1) {
				f.labels = append(f.labels, l[1])
			}
			known[m[1]] = f
			continue
		}
		for _, m := range prose.FindAllStringSubmatch(line, -1) {
			known[m[1]] = family{kind: "gauge"}
		}
	}
	if lines.Err() != nil || len(known) < 200 {
		t.Fatalf("%d families, %v", len(known), lines.Err())
	}
	return known
}

// expression is one expression of the mixin.
type expression struct{ where, text string }

// ruleGroups reads a file of rules as Prometheus does.
func ruleGroups(t *testing.T, file string) *rulefmt.RuleGroups {
	t.Helper()
	groups, errs := rulefmt.ParseFile(filepath.Join(folder, file), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if groups == nil {
		t.Fatalf("%s has no groups", file)
	}
	return groups
}

// expressions returns all expressions, and the names of the recording rules.
func expressions(t *testing.T) (all []expression, recorded []string) {
	t.Helper()
	for _, file := range []string{"rules.yml", "alerts.yml"} {
		for _, g := range ruleGroups(t, file).Groups {
			for _, r := range g.Rules {
				all = append(all, expression{file + ": " + r.Record + r.Alert, r.Expr})
				if r.Record != "" {
					recorded = append(recorded, r.Record)
				}
			}
		}
	}
	variables := strings.NewReplacer("$job", "ferula", "$instance", "x", "$__rate_interval", "5m", "$__interval", "1m")
	for _, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all = append(all, expression{d.Title + ": " + p.Title, variables.Replace(target.Expr)})
			}
		}
		for _, v := range d.Templating.List {
			if m := regexp.MustCompile(`^label_values\((.*), \w+\)$`).FindStringSubmatch(v.Definition); m != nil {
				all = append(all, expression{d.Title + ": $" + v.Name, variables.Replace(m[1])})
			} else if v.Name != "datasource" {
				t.Errorf("%s: %s is %q", d.Title, v.Name, v.Definition)
			}
		}
	}
	return all, recorded
}

// dashboard has the fields of Grafana's format that the tests read.
type dashboard struct {
	UID, Title string
	Panels     []struct {
		ID          int
		Type, Title string
		GridPos     struct{ X, Y, W, H int }
		Targets     []struct{ RefID, Expr, LegendFormat string }
	}
	Templating struct {
		List []struct{ Name, Definition string }
	}
}

func dashboards(t *testing.T) []dashboard {
	t.Helper()
	files, err := filepath.Glob(folder + "/dashboards/*.json")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d dashboards, %v", len(files), err)
	}
	var all []dashboard
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, d)
	}
	return all
}

// lookUp returns the family of a series' name. For a name with _bucket, _sum or _count it
// returns the family of the histogram or summary.
func lookUp(known map[string]family, series string) (family, bool) {
	if f, ok := known[series]; ok {
		return f, f.kind != "histogram"
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok {
			if f, ok := known[base]; ok {
				return f, f.kind == "histogram" || f.kind == "summary" && suffix != "_bucket" || f.kind == ""
			}
		}
	}
	return family{}, false
}

func TestMixin_UsesOnlyMetricsAndLabelsThatExist(t *testing.T) {
	known := reference(t)
	all, recorded := expressions(t)
	if len(all) < 100 {
		t.Fatalf("only %d expressions", len(all))
	}
	for _, e := range all {
		expr, err := parser.NewParser(parser.Options{}).ParseExpr(e.text)
		if err != nil {
			t.Errorf("%s: %v", e.where, err)
			continue
		}
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			v, ok := n.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			if slices.Contains(recorded, v.Name) {
				return nil
			}
			f, ok := lookUp(known, v.Name)
			if !ok {
				t.Errorf("%s: no process exposes %s", e.where, v.Name)
			}
			for _, m := range v.LabelMatchers {
				if !slices.Contains(append(f.labels, labels.MetricName, "job", "instance", "quantile", "le"), m.Name) {
					t.Errorf("%s: %s has no label %s", e.where, v.Name, m.Name)
				}
			}
			return nil
		})
		parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
			if a, ok := n.(*parser.AggregateExpr); ok && !a.Without {
				checkGrouping(t, e, a, known, recorded)
			}
			return nil
		})
	}
}

// checkGrouping fails the test if an aggregation groups by a label that no metric below it has.
func checkGrouping(t *testing.T, e expression, a *parser.AggregateExpr, known map[string]family, recorded []string) {
	has := []string{"job", "instance", "le"}
	parser.Inspect(a.Expr, func(n parser.Node, _ []parser.Node) error {
		if v, ok := n.(*parser.VectorSelector); ok {
			f, _ := lookUp(known, v.Name)
			has = append(has, f.labels...)
			if slices.Contains(recorded, v.Name) {
				level, _, _ := strings.Cut(v.Name, ":")
				has = append(has, strings.Split(level, "_")...)
			}
		}
		return nil
	})
	for _, by := range a.Grouping {
		if !slices.Contains(has, by) {
			t.Errorf("%s: no metric of %s has the label %s", e.where, a, by)
		}
	}
}

// runbooks is the address below which the repository's files are.
const runbooks = "https://github.com/ferula-io/ferula/blob/main/"

// Every alert has a severity, texts, and a runbook: a heading of the README with what to do.
func TestMixin_EveryAlertSaysWhatAndHowBad(t *testing.T) {
	text, err := os.ReadFile(folder + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	alerts := 0
	for _, g := range ruleGroups(t, "alerts.yml").Groups {
		for _, r := range g.Rules {
			alerts++
			if s := r.Labels["severity"]; s != "warning" && s != "critical" {
				t.Errorf("%s: severity %q", r.Alert, s)
			}
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s has no summary or description", r.Alert)
			}
			if fault := brokenRunbook(r.Annotations["runbook_url"], r.Alert); fault != "" {
				t.Errorf("%s: runbook_url %q: %s", r.Alert, r.Annotations["runbook_url"], fault)
			}
		}
	}
	for _, m := range regexp.MustCompile("(?m)^### (Ferula[A-Za-z]+)$").FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(readFile(t, "alerts.yml"), "alert: "+m[1]+"\n") {
			t.Errorf("mixin/README.md names %s, which does not exist", m[1])
		}
	}
	if alerts < 30 {
		t.Errorf("only %d alerts", alerts)
	}
}

// brokenRunbook returns what is wrong with the runbook of an alert: the file, or a heading that is the alert's name and has a text.
func brokenRunbook(address, alert string) string {
	path, anchor, _ := strings.Cut(strings.TrimPrefix(address, runbooks), "#")
	text, err := os.ReadFile(filepath.Join(folder, "..", path))
	switch {
	case !strings.HasPrefix(address, runbooks) || err != nil:
		return "no file of this repository"
	case anchor != strings.ToLower(alert):
		return "the anchor is that of another alert"
	case !regexp.MustCompile(`(?m)^### ` + alert + `\n\n[A-Z\x60]`).Match(text):
		return "no heading with a text"
	}
	return ""
}

func TestMixin_BrokenRunbooksAreFound(t *testing.T) {
	for address, broken := range map[string]bool{
		runbooks + "mixin/README.md#feruladown":          false,
		runbooks + "mixin/README.md#ferulapanics":        true,
		runbooks + "mixin/absent.md#feruladown":          true,
		runbooks + "docs/README.md#feruladown":           true,
		"https://example.org/mixin/README.md#feruladown": true,
	} {
		if fault := brokenRunbook(address, "FerulaDown"); (fault != "") != broken {
			t.Errorf("%s: %q", address, fault)
		}
	}
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestMixin_PanelsHaveTheirOwnPlace(t *testing.T) {
	uids := map[string]bool{}
	for _, d := range dashboards(t) {
		if uids[d.UID] || d.UID == "" {
			t.Errorf("%s: uid %q", d.Title, d.UID)
		}
		uids[d.UID] = true
		ids, taken := map[int]bool{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] {
				t.Errorf("%s: two panels have the id %d", d.Title, p.ID)
			}
			ids[p.ID] = true
			if (p.Type == "row") != (len(p.Targets) == 0) {
				t.Errorf("%s: %s has %d targets", d.Title, p.Title, len(p.Targets))
			}
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: %s lies over %s", d.Title, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}

// promtool loads the rules, and the unit tests of alerts pass.
func TestPeerPromtool_ChecksAndTestsTheRules(t *testing.T) {
	arguments := []string{"-n", "promtool"}
	if os.Getenv("FERULA_TEST_PEERS") != "" {
		arguments = arguments[1:]
	}
	out, err := exec.Command("../peers/build.sh", arguments...).Output()
	promtool := strings.TrimSpace(string(out))
	if err != nil || promtool == "" {
		if os.Getenv("FERULA_TEST_PEERS") != "" {
			t.Fatalf("promtool cannot be built: %v", err)
		}
		t.Skip("needs promtool: make interop")
	}
	for _, args := range [][]string{{"check", "rules", "--lint=all", "--lint-fatal", "rules.yml", "alerts.yml"}, {"test", "rules", "tests/alerts_test.yml"}} {
		command := exec.Command(promtool, args...)
		command.Dir = folder
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}
