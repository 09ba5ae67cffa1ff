package backtest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/promql/backtest"
)

// oneAlert returns a file with an alert that has one annotation.
func oneAlert(annotation string) string {
	return fmt.Sprintf("groups:\n- name: g\n  interval: 1m\n  rules:\n  - alert: A\n    expr: load > 1\n"+
		"    labels: {rule: r}\n    annotations: {text: %q}\n", annotation)
}

// Any client may send a template: one that would write without end ends with an error.
func TestRun_TemplatesHaveLimits(t *testing.T) {
	w := newWorld(t, 1_000_000)
	w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", "i"),
		func(int) (float64, bool) { return 2, true }, 8)
	twice := "{{ $x := `aaaaaaaa` }}" + strings.Repeat("{{ $x = %s }}", 60) + "{{ $x }}"
	for name, text := range map[string]string{
		"a range over a number":        "{{ range 1000000000000 }}{{ . }} of a number{{ end }}",
		"a range that writes nothing":  "{{ range 1000000000000 }}{{ end }}",
		"ranges in a range":            strings.Repeat("{{ range 1000 }}", 8) + strings.Repeat("{{ end }}", 8),
		"templates that call twice":    doubling(60),
		"a printf that fills":          "{{ printf `%1000000s` `` }}",
		"a printf that takes a number": "{{ printf `%*d` 1000000 1 }}",
		"a printf that doubles":        strings.ReplaceAll(twice, "%s", "printf `%s%s` $x $x"),
		"a print that doubles":         strings.ReplaceAll(twice, "%s", "print $x $x"),
		"a js that doubles":            strings.ReplaceAll(twice, "%s", "js (print `\\\\` $x $x)"),
		"a replacement that doubles":   strings.ReplaceAll(twice, "%s", "reReplaceAll `a` `aa` $x"),
	} {
		t.Run(name, func(t *testing.T) {
			res := run(t, oneAlert(text), w.options(2*time.Minute))
			got := res.Groups[0].Rules[0].Notifications[0].Annotations.Get("text")
			if !strings.HasPrefix(got, "<error expanding template:") || !strings.Contains(got, "for a backtest") {
				t.Errorf("got %.200s", got)
			}
		})
	}
	o := w.options(2 * time.Minute)
	rules, err := backtest.Load([]byte(oneAlert("{{ $value }}"+strings.Repeat("x", 1<<15))), o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = backtest.Run(context.Background(), rules, o)
	if !errors.Is(err, backtest.ErrLimit) || !strings.Contains(err.Error(), `group "g", rule "A": the template "text"`) {
		t.Errorf("a long template: %v", err)
	}
}

func doubling(n int) string {
	text := "{{ define `t0` }}x{{ end }}"
	for i := range n {
		text += fmt.Sprintf("{{ define `t%d` }}{{ template `t%d` }}{{ template `t%d` }}{{ end }}", i+1, i, i)
	}
	return text + fmt.Sprintf("{{ template `t%d` }}", n)
}

// Templates with loops are rewritten; what they write stays the same as Prometheus' rule manager's.
func TestRun_TemplatesWithLoopsEqualTheRuleManager(t *testing.T) {
	w := newWorld(t, 1_000_000)
	for i := range 3 {
		w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", fmt.Sprint("i", i)),
			func(n int) (float64, bool) { return float64(i + n%3), true }, 40)
	}
	for _, text := range []string{
		"{ {{- range query `load` | sortByLabel `instance` }}{{ .Labels.instance }}={{ .Value }} {{ else }}none{{ end -}} }",
		"{{ range $i, $e := query `load > 100` }}{{ $i }}{{ else }}none { {{- $value }}{{ end }}",
		"{{ define `x` }}[{{ . }}]{{ end }}{{ range 5 }}{{ if eq . 3 }}{{ break }}{{ else if eq . 1 }}{{ continue }}" +
			"{{ end }}{{ template `x` . }}{{ end }}{{/* a comment */}}",
		"{{ range $k, $v := $labels }}{{ printf `%-10s|%q` $k $v }} 100%% 2026 {{ html $v `<` }}{{ end }}",
		"{{ with $x := `a.b` }}{{ range 2 }}{{ $x = reReplaceAll `(.)[.]` `$1$1.` $x }}{{ end }}{{ $x }}{{ end }}",
		"{{ range 3 }}{{ template `missing` }}{{ end }}",
		"{{ block `b` 1 }}{{ `{{` }}{{ . }}{{ end }}{{ println $externalURL $value }}",
	} {
		o := w.options(10 * time.Minute)
		content := oneAlert(text)
		got := transcribed(run(t, content, o))
		want := w.wanted(t, content, o)
		if g, w := strings.Join(got["r"], "\n"), strings.Join(want["r"], "\n"); g != w || g == "" {
			t.Errorf("%s:\ngot\n%s\nwant\n%s", text, g, w)
		}
	}
}

// The text of alerts and notifications is bounded, not only their number.
func TestRun_TextsHaveLimits(t *testing.T) {
	w := newWorld(t, 1_000_000)
	for i := range 150 {
		w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", fmt.Sprint("i", i)),
			func(int) (float64, bool) { return 2, true }, 8)
	}
	o := w.options(2 * time.Minute)
	res := run(t, oneAlert(strings.Repeat("x", 1<<19)), o)
	r := res.Groups[0].Rules[0]
	if n := len(r.Notifications); !r.Truncated || n < 100 || n > 130 || r.Counts.Notifications != 150 {
		t.Errorf("%d notifications, truncated %t, %+v", n, r.Truncated, r.Counts)
	}
	content := strings.Replace(oneAlert("x"), "rule: r", "rule: "+strings.Repeat("x", 1<<19), 1)
	rules, err := backtest.Load([]byte(content), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = backtest.Run(context.Background(), rules, o); !errors.Is(err, backtest.ErrLimit) {
		t.Errorf("long labels: %v", err)
	}
}

// Intervals of months, and times before and after what an int64 of ns holds, end.
func TestRun_LongIntervalsAndFarTimes(t *testing.T) {
	w := newWorld(t, 1_000_000)
	for interval, want := range map[string]int{"60d": 12, "100y": 1} {
		o := w.options(time.Hour)
		o.Start, o.End = begin, begin.Add(2*365*24*time.Hour)
		content := strings.Replace(oneAlert("x"), "interval: 1m", "interval: "+interval, 1)
		content = strings.Replace(content, "load > 1", "vector(1)", 1)
		res := run(t, content, o)
		if c := res.Groups[0].Rules[0].Counts; c.Notifications+c.Resends > want+1 {
			t.Errorf("interval %s: %+v", interval, c)
		}
	}
	for _, at := range []int64{-1 << 62, -1, 5_000_000_000, 253_402_300_000, 1 << 62} {
		o := w.options(time.Hour)
		o.Start, o.End = time.Unix(at, 0), time.Unix(at, 0).Add(time.Hour)
		rules, err := backtest.Load([]byte(oneAlert("x")), o)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = backtest.Run(context.Background(), rules, o); !errors.Is(err, backtest.ErrLimit) {
			t.Errorf("start %d: %v", at, err)
		}
	}
}

// Alerts that a limit of the group forgets in the evaluation in which they begin have neither existed nor fired.
func TestRun_CountsNothingThatALimitForgets(t *testing.T) {
	w := newWorld(t, 1_000_000)
	for i := range 3 {
		w.append(t, labels.FromStrings(labels.MetricName, "load", "instance", fmt.Sprint("i", i)),
			func(int) (float64, bool) { return 2, true }, 40)
	}
	content := strings.Replace(oneAlert("x"), "interval: 1m", "interval: 1m\n  limit: 2", 1)
	r := run(t, content, w.options(10*time.Minute)).Groups[0].Rules[0]
	if r.Errors == 0 || len(r.Alerts) != 0 || r.Counts != (backtest.Counts{}) {
		t.Errorf("%d errors, %d alerts, %+v", r.Errors, len(r.Alerts), r.Counts)
	}
}
