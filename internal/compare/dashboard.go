package compare

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// dashboard is a dashboard of Grafana: a file has its variables and, at any depth, queries with "expr".
type dashboard struct {
	path      string
	variables map[string]*variable
}

// variable is an element of templating.list.
type variable struct {
	Name       string
	Type       string
	Query      any    // a text, or an object with a member query
	Definition string // of the query in older dashboards
	Regex      string
	AllValue   string
	Multi      bool
	IncludeAll bool
	Current    struct{ Value any }

	values []string
	err    error
	filled bool
}

// valuesMax limits the values of a variable that stands for all of them.
const valuesMax = 100

// parseDashboard returns the queries of a dashboard. content is decoded JSON.
func parseDashboard(path string, content any, skipped []Skipped) ([]Query, []Skipped) {
	d := &dashboard{path: path, variables: map[string]*variable{}}
	root, _ := content.(map[string]any)
	if inner, ok := root["dashboard"].(map[string]any); ok { // as the API of Grafana returns it
		root = inner
	}
	var list []*variable
	if templating, ok := root["templating"].(map[string]any); ok {
		text, _ := json.Marshal(templating["list"])
		if err := json.Unmarshal(text, &list); err != nil {
			skipped = append(skipped, Skipped{path, "its variables: " + err.Error()})
		}
	}
	for _, v := range slices.DeleteFunc(list, func(v *variable) bool { return v == nil }) {
		d.variables[v.Name] = v
	}
	var queries []Query
	title, _ := root["title"].(string)
	d.walk(content, path+": "+title, "", func(q Query, why string) {
		if why != "" {
			skipped = append(skipped, Skipped{q.Source, why})
			return
		}
		queries = append(queries, q)
	})
	return queries, skipped
}

// promQLSource matches the types of data sources that speak PromQL. A type can be a variable.
var promQLSource = regexp.MustCompile(`prometheus|victoriametrics-metrics|^\$`)

// walk calls found for every query below a value. source and datasource are what the objects around it say.
func (d *dashboard) walk(v any, source, datasource string, found func(q Query, why string)) {
	switch v := v.(type) {
	case []any:
		for _, element := range v {
			d.walk(element, source, datasource, found)
		}
	case map[string]any:
		if from, ok := v["datasource"].(map[string]any); ok {
			datasource, _ = from["type"].(string)
		}
		if title, ok := v["title"].(string); ok && !strings.HasSuffix(source, ": "+title) {
			source += " / " + title
		}
		if expr, ok := v["expr"].(string); ok && strings.TrimSpace(expr) != "" {
			q := Query{Source: source, Expr: expr, mode: Range, dashboard: d}
			if id, ok := v["refId"].(string); ok {
				q.Source += " / " + id
			}
			instant, _ := v["instant"].(bool)
			if ranged, _ := v["range"].(bool); instant && !ranged {
				q.mode = Instant
			}
			hidden, _ := v["hide"].(bool)
			switch {
			case hidden:
				found(q, "hidden")
			case datasource != "" && !promQLSource.MatchString(datasource):
				found(q, "its data source is "+datasource)
			default:
				found(q, "")
			}
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			if name != "templating" {
				d.walk(v[name], source, datasource, found)
			}
		}
	}
}

// fill returns the queries with times and, for dashboards, the values of variables.
func (r *runner) fill(ctx context.Context) (queries []Query) {
	for _, q := range r.Queries {
		r.schedule(&q)
		if q.dashboard != nil {
			expr, err := r.interpolate(ctx, q.dashboard, q.Expr)
			if err != nil {
				r.skip(q.Source, err.Error())
				continue
			}
			q.Expr = expr
		}
		queries = append(queries, q)
	}
	return queries
}

// reference is $name, ${name}, ${name:format}, ${name.field:format} or [[name:format]].
var reference = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?:\.[^:}]*)?(?::([^}]+))?\}|\[\[(\w+)(?::(\w+))?\]\]`)

// interpolate replaces the variables in a text.
func (r *runner) interpolate(ctx context.Context, d *dashboard, text string) (string, error) {
	var first error
	text = reference.ReplaceAllStringFunc(text, func(match string) string {
		m := reference.FindStringSubmatch(match)
		name, format := m[1]+m[2]+m[4], m[3]+m[5]
		if value, ok := r.builtin(name); ok {
			return value
		}
		v := d.variables[name]
		if v == nil {
			if m[1] != "" && strings.Trim(name, "0123456789") == "" {
				return match // $1 of label_replace
			}
			first = cmp.Or(first, fmt.Errorf("the variable $%s is not defined", name))
			return match
		}
		r.fillVariable(ctx, d, v)
		value, err := v.format(format)
		first = cmp.Or(first, v.err, err)
		return value
	})
	return text, first
}

// builtin returns the value of a variable that Grafana defines.
func (r *runner) builtin(name string) (string, bool) {
	const scrape = 15 * time.Second
	d := r.Step
	switch name {
	case "__from":
		return strconv.FormatInt(r.End.Add(-r.Range).UnixMilli(), 10), true
	case "__to":
		return strconv.FormatInt(r.End.UnixMilli(), 10), true
	case "__interval", "__interval_ms", "interval_ms":
	case "__rate_interval", "__rate_interval_ms":
		d = max(r.Step+scrape, 4*scrape)
	case "__range", "__range_s", "__range_ms":
		d = r.Range
	default:
		return "", false
	}
	switch {
	case strings.HasSuffix(name, "_ms"):
		return strconv.FormatInt(d.Milliseconds(), 10), true
	case strings.HasSuffix(name, "_s"):
		return strconv.FormatInt(int64(d.Seconds()), 10), true
	}
	return model.Duration(d).String(), true
}

// fillVariable finds the values of a variable, once.
func (r *runner) fillVariable(ctx context.Context, d *dashboard, v *variable) {
	if v.filled {
		return
	}
	// what a query of this variable that refers to the variable itself gets
	v.filled, v.err = true, fmt.Errorf("the variable $%s refers to itself", v.Name)
	current := textsOf(v.Current.Value)
	text, _ := v.Query.(string)
	if object, ok := v.Query.(map[string]any); ok {
		text, _ = object["query"].(string)
	}
	text = cmp.Or(text, v.Definition)
	all := current
	switch v.Type {
	case "query":
		if text, v.err = r.interpolate(ctx, d, text); v.err == nil {
			all, v.err = r.lookup(ctx, text)
		}
		if v.err == nil {
			all, v.err = v.filter(all)
		}
	case "custom", "interval":
		all, v.err = nil, nil
		for item := range strings.SplitSeq(text, ",") {
			if _, value, ok := strings.Cut(item, " : "); ok {
				item = value
			}
			if item = strings.TrimSpace(item); item != "" && item != "auto" {
				all = append(all, item)
			}
		}
	default: // constants and texts have a value of their own
		if v.err = nil; len(all) == 0 && text != "" && v.Type != "datasource" {
			all = []string{text}
		}
	}
	v.values = slices.DeleteFunc(slices.Clone(current), func(value string) bool { return !slices.Contains(all, value) })
	switch everything := slices.Contains(current, "$__all") || slices.Contains(current, "All"); {
	case v.err != nil || everything && v.AllValue != "": // format returns AllValue
	case len(all) == 0:
		v.err = fmt.Errorf("the variable $%s has no values: %s", v.Name, text)
	case everything:
		v.values = all[:min(len(all), valuesMax)]
	case len(v.values) == 0:
		v.values = all[:1]
	}
}

// textsOf returns a text, or the texts of a list.
func textsOf(v any) (list []string) {
	switch v := v.(type) {
	case string:
		list = append(list, v)
	case []any:
		for _, element := range v {
			list = append(list, textsOf(element)...)
		}
	}
	return slices.DeleteFunc(list, func(text string) bool { return text == "" })
}

// queryFunction is a query of a variable, such as label_values(up{job="node"}, instance).
var queryFunction = regexp.MustCompile(`(?s)^\s*(label_values|label_names|metrics|query_result)\s*\((.*)\)\s*$`)

// lookup returns the values of the query of a variable on the left server, over the range of the run.
func (r *runner) lookup(ctx context.Context, query string) (values []string, err error) {
	m := queryFunction.FindStringSubmatch(query)
	if m == nil {
		return nil, fmt.Errorf("the query %q of a variable is not known", query)
	}
	form := url.Values{"start": {seconds(r.End.Add(-r.Range).UnixMilli())}, "end": {seconds(r.End.UnixMilli())}}
	path, argument := "/api/v1/labels", strings.TrimSpace(m[2])
	switch m[1] {
	case "query_result":
		samples, err := r.instant(ctx, r.Left, argument)
		for _, s := range samples {
			values = append(values, s.text())
		}
		return values, err
	case "metrics":
		path = "/api/v1/label/__name__/values"
		form.Set("match[]", fmt.Sprintf("{__name__=~%q}", ".*(?:"+argument+").*"))
	case "label_values":
		label := argument
		if i := strings.LastIndexByte(argument, ','); i >= 0 && !strings.Contains(argument[i:], "}") {
			label = strings.TrimSpace(argument[i+1:])
			form.Set("match[]", strings.TrimSpace(argument[:i]))
		}
		path = "/api/v1/label/" + label + "/values"
	}
	err = r.get(ctx, r.Left, path, form, &values)
	return values, err
}

// text writes an element as Grafana shows it to the regular expression of a variable.
func (s element) text() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(s.Metric)) {
		if name != "__name__" {
			pairs = append(pairs, fmt.Sprintf("%s=%q", name, s.Metric[name]))
		}
	}
	at, _ := s.Value[0].(float64)
	return fmt.Sprintf("%s{%s} %v %d", s.Metric["__name__"], strings.Join(pairs, ","), s.Value[1], int64(at*1000))
}

// filter applies the regular expression of a variable: what its group value, or its first group, matches is the value.
func (v *variable) filter(all []string) (values []string, err error) {
	text := strings.TrimSpace(v.Regex)
	if text == "" {
		return all, nil
	}
	if strings.HasPrefix(text, "/") {
		if end := strings.LastIndexByte(text, '/'); end > 0 {
			flags := text[end+1:]
			if text = text[1:end]; strings.Contains(flags, "i") {
				text = "(?i)" + text
			}
		}
	}
	re, err := regexp.Compile(strings.ReplaceAll(text, "(?<", "(?P<"))
	if err != nil {
		return nil, fmt.Errorf("the regular expression of $%s: %w", v.Name, err)
	}
	group := max(re.SubexpIndex("value"), min(re.NumSubexp(), 1))
	for _, value := range all {
		if m := re.FindStringSubmatch(value); m != nil && !slices.Contains(values, m[group]) {
			values = append(values, m[group])
		}
	}
	return values, nil
}

// format writes the values as Grafana does for the Prometheus data source.
func (v *variable) format(format string) (string, error) {
	quote, separator, brackets := func(text string) string { return text }, ",", false
	switch {
	case len(v.values) == 0:
		return v.AllValue, nil
	case format == "regex":
		quote, separator, brackets = regexp.QuoteMeta, "|", true
	case format == "pipe":
		separator = "|"
	case format == "" && (v.Multi || v.IncludeAll): // within quotes of PromQL
		quote = func(text string) string { return strings.ReplaceAll(regexp.QuoteMeta(text), `\`, `\\`) }
		separator, brackets = "|", true
	case format == "":
		quote = strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	case format == "doublequote":
		quote = strconv.Quote
	case format != "raw" && format != "csv" && format != "text":
		return "", fmt.Errorf("the format %q of $%s is not known", format, v.Name)
	}
	var list []string
	for _, value := range v.values {
		list = append(list, quote(value))
	}
	text := strings.Join(list, separator)
	if brackets && len(list) > 1 {
		text = "(" + text + ")"
	}
	return text, nil
}
