package compare

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

// Query is one query.
type Query struct {
	Source  string `json:"source"` // file, and where in it
	Expr    string `json:"expr"`
	Range   bool   `json:"range"`
	StartMS int64  `json:"start_ms,omitempty"` // of a range
	EndMS   int64  `json:"end_ms"`             // or the time of an instant query
	StepMS  int64  `json:"step_ms,omitempty"`
	Times   int    `json:"times,omitempty"` // in a query log
	Logged  bool   `json:"logged,omitempty"`

	mode      Mode
	dashboard *dashboard        // whose variables are filled by Run
	matchers  []*labels.Matcher // of a selector
}

// fileBytesMax limits the files with queries.
const fileBytesMax = 256 << 20

// Load reads the queries of files. The kind of a file follows from its content. The error is about a file that cannot
// be read or has no query at all.
func Load(paths []string) (queries []Query, skipped []Skipped, err error) {
	var errs []error
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && info.Size() > fileBytesMax {
			err = fmt.Errorf("%s: longer than %d bytes", path, fileBytesMax)
		}
		var text []byte
		if err == nil {
			text, err = os.ReadFile(path)
		}
		var found []Query
		if err == nil {
			found, skipped, err = parse(path, text, skipped)
		}
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("%s: no queries found", path)
		}
		queries, errs = append(queries, found...), append(errs, err)
	}
	return queries, skipped, errors.Join(errs...)
}

func parse(path string, text []byte, skipped []Skipped) ([]Query, []Skipped, error) {
	text = bytes.TrimSpace(text)
	if len(text) > 0 && (text[0] == '{' || text[0] == '[') {
		line, _, _ := bytes.Cut(text, []byte("\n"))
		var first logLine
		if json.Unmarshal(line, &first) == nil && first.Params.Query != "" {
			return parseLog(path, text, skipped)
		}
		var content any
		if err := json.Unmarshal(text, &content); err == nil {
			queries, skipped := parseDashboard(path, content, skipped)
			return queries, skipped, nil
		} else if text[0] == '{' && text[len(text)-1] == '}' && bytes.Contains(line, []byte(`":`)) {
			return nil, skipped, fmt.Errorf("%s: %w", path, err)
		}
	}
	var rules ruleFile
	if err := yaml.Unmarshal(text, &rules); err == nil && len(rules.Groups)+len(rules.Spec.Groups) > 0 {
		queries, skipped := rules.queries(path, skipped)
		return queries, skipped, nil
	} else if err != nil && bytes.Contains(text, []byte("groups:\n")) {
		return nil, skipped, fmt.Errorf("%s: %w", path, err)
	}
	var list []Query
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			list = append(list, Query{Source: fmt.Sprintf("%s:%d", path, n), Expr: line, mode: Auto})
		}
	}
	return list, skipped, nil
}

// logLine is a line of Prometheus' query log.
type logLine struct {
	Params struct {
		Query      string    `json:"query"`
		Start, End time.Time `json:",omitempty"`
		Step       float64   `json:"step"` // in whole seconds, 0 for less
	} `json:"params"`
}

// parseLog reads a query log. A query that is logged several times with the same range and step is sent once, with its
// last time.
func parseLog(path string, text []byte, skipped []Skipped) ([]Query, []Skipped, error) {
	seen := map[string]int{} // index by expression, range and step
	var queries []Query
	n, bad := 0, 0
	for line := range bytes.Lines(text) {
		n++
		var l logLine
		if err := json.Unmarshal(line, &l); err != nil || l.Params.Query == "" || l.Params.End.IsZero() {
			if bad++; bad == 1 {
				skipped = append(skipped, Skipped{fmt.Sprintf("%s:%d", path, n), "not a line of a query log"})
			}
			continue
		}
		p := l.Params
		q := Query{Source: fmt.Sprintf("%s:%d", path, n), Expr: p.Query, StartMS: p.Start.UnixMilli(),
			EndMS: p.End.UnixMilli(), StepMS: int64(p.Step * 1000), Logged: true, Times: 1, mode: Instant}
		if q.Range = q.StartMS < q.EndMS; q.Range && q.StepMS == 0 {
			q.StepMS = 1000
		}
		k := fmt.Sprint(q.EndMS-q.StartMS, q.StepMS, q.Expr)
		if at, ok := seen[k]; ok {
			q.Source, q.Times = queries[at].Source, queries[at].Times+1
			queries[at] = q
			continue
		}
		seen[k] = len(queries)
		queries = append(queries, q)
	}
	if bad > 1 {
		skipped = append(skipped, Skipped{path, fmt.Sprintf("%d more lines are not lines of a query log", bad-1)})
	}
	return queries, skipped, nil
}

// ruleFile is a rule file, or a PrometheusRule of prometheus-operator.
type ruleFile struct {
	Groups []ruleGroup `yaml:"groups"`
	Spec   struct {
		Groups []ruleGroup `yaml:"groups"`
	} `yaml:"spec"`
}

type ruleGroup struct {
	Name  string `yaml:"name"`
	Rules []struct {
		Record, Alert, Expr string
	} `yaml:"rules"`
}

func (f ruleFile) queries(path string, skipped []Skipped) (list []Query, _ []Skipped) {
	for _, g := range append(f.Groups, f.Spec.Groups...) {
		for _, rule := range g.Rules {
			q := Query{Source: fmt.Sprintf("%s: %s / %s", path, g.Name, rule.Record+rule.Alert), Expr: rule.Expr, mode: Auto}
			if strings.TrimSpace(rule.Expr) == "" {
				skipped = append(skipped, Skipped{q.Source, "the rule has no expression"})
				continue
			}
			list = append(list, q)
		}
	}
	return list, skipped
}

// promQL parses whatever one of the servers may know.
var promQL = parser.NewParser(parser.Options{EnableExperimentalFunctions: true, ExperimentalDurationExpr: true,
	EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true})

// ordered reports whether the order of the series is a part of the result.
func (q *Query) ordered() bool {
	if q.Range {
		return false
	}
	expr, err := promQL.ParseExpr(q.Expr)
	for paren, ok := expr.(*parser.ParenExpr); ok; paren, ok = expr.(*parser.ParenExpr) {
		expr = paren.Expr
	}
	call, ok := expr.(*parser.Call)
	return err == nil && ok && strings.HasPrefix(call.Func.Name, "sort")
}

// schedule sets the times of a query that has none of its own.
func (r *runner) schedule(q *Query) {
	if q.Logged {
		return
	}
	mode := r.Mode
	if mode == Auto {
		mode = q.mode
	}
	if q.EndMS = r.End.UnixMilli(); mode == Range {
		q.Range, q.StartMS, q.StepMS = true, q.EndMS-r.Range.Milliseconds(), r.Step.Milliseconds()
	}
}

// lookback is how long before a time PromQL looks for samples.
const lookback = 5 * time.Minute

// selectors returns the selectors of queries, each once, over all the time that they read.
func (r *runner) selectors(queries []Query) (list []Query) {
	seen := map[string]int{}
	for _, q := range queries {
		expr, err := promQL.ParseExpr(q.Expr)
		if err != nil {
			r.skip(q.Source, err.Error())
			continue
		}
		if q.Logged {
			q.move(r.End)
		}
		start := q.StartMS
		if !q.Range {
			start = q.EndMS
		}
		minMS, maxMS := promql.FindMinMaxTime(&parser.EvalStmt{Expr: expr, Start: time.UnixMilli(start),
			End: time.UnixMilli(q.EndMS), Interval: r.Step, LookbackDelta: lookback})
		parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
			selector, ok := node.(*parser.VectorSelector)
			if !ok {
				return nil
			}
			plain := &parser.VectorSelector{Name: selector.Name, LabelMatchers: selector.LabelMatchers}
			name := plain.String()
			if at, ok := seen[name]; ok {
				list[at].StartMS, list[at].EndMS = min(list[at].StartMS, minMS), max(list[at].EndMS, maxMS)
				return nil
			}
			seen[name] = len(list)
			list = append(list, Query{Source: q.Source, Expr: name, Range: true, StartMS: minMS, EndMS: maxMS,
				matchers: slices.Clone(selector.LabelMatchers)})
			return nil
		})
	}
	return list
}

// skip leaves out a query that cannot be sent.
func (r *runner) skip(source, why string) {
	r.report.NotCompared++
	r.report.Skipped = append(r.report.Skipped, Skipped{source, why})
}
