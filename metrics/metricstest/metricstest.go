// Package metricstest helps to test code that is instrumented with package metrics: it reads
// single values, compares the text output of a set and finds names that break conventions.
package metricstest

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"

	"github.com/ferula-io/ferula/metrics"
)

// TB is the part of testing.TB that this package uses.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
}

// Value returns the value of a line of the set's text output. line is a name with labels in the
// order of the output, such as requests_total{code="200"} or seconds_count. ok is false if there
// is no such line.
func Value(set *metrics.Set, line string) (v float64, ok bool) {
	v, ok = values(set)[line]
	return v, ok
}

// values returns the values of the set's text output, by name with labels.
func values(set *metrics.Set) map[string]float64 {
	found := map[string]float64{}
	for line := range strings.Lines(page(set)) {
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[at:]), 64); err == nil {
			found[line[:at]] = v
		}
	}
	return found
}

func page(set *metrics.Set) string {
	var b bytes.Buffer
	set.WritePrometheus(&b)
	return b.String()
}

// checkCollectors fails the test if a collector of the set returns an error or an invalid
// metric: WritePrometheus only logs these.
func checkCollectors(t TB, set *metrics.Set) {
	t.Helper()
	if set.CollectedFamilies() == nil {
		return // no collector has run
	}
	w := httptest.NewRecorder()
	set.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Errorf("%s", w.Body)
	}
}

// Expect fails the test for every line of want that is not in the set's text output or has
// another value there. The keys of want are as in Value. Expect ignores other lines. Errors of
// collectors fail the test, too.
func Expect(t TB, set *metrics.Set, want map[string]float64) {
	t.Helper()
	found := values(set)
	checkCollectors(t, set)
	for line, w := range want {
		if got, ok := found[line]; !ok {
			t.Errorf("no line %s in\n%s", line, page(set))
		} else if got != w && (got == got || w == w) {
			t.Errorf("%s is %v, want %v", line, got, w)
		}
	}
}

// Compare fails the test unless the lines of the named families in the set's text output are
// the lines of want, in any order. Without names it compares the lines of all families. It
// ignores comments and empty lines. Errors of collectors fail the test, too.
func Compare(t TB, set *metrics.Set, want string, families ...string) {
	t.Helper()
	got, expected := lines(page(set), families), lines(want, nil)
	checkCollectors(t, set)
	for _, line := range expected {
		if !slices.Contains(got, line) {
			t.Errorf("no line %s in\n%s", line, strings.Join(got, "\n"))
		}
	}
	for _, line := range got {
		if !slices.Contains(expected, line) {
			t.Errorf("unexpected line %s", line)
		}
	}
}

// lines returns the sample lines of text output that belong to families; of all if families is
// empty.
func lines(page string, families []string) []string {
	var out []string
	for line := range strings.Lines(page) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(line, " ")
		name, _, _ = strings.Cut(name, "{")
		if len(families) > 0 && !slices.ContainsFunc(families, func(f string) bool {
			return name == f || slices.Contains(suffixes, strings.TrimPrefix(name, f)) && strings.HasPrefix(name, f)
		}) {
			continue
		}
		out = append(out, line)
	}
	return out
}

// suffixes of histograms and summaries.
var suffixes = []string{"_bucket", "_sum", "_count"}

// Problem is a name that breaks a convention.
type Problem struct{ Name, Text string }

// String returns the problem as one line.
func (p Problem) String() string { return p.Name + ": " + p.Text }

// Lint returns the names of a set that break conventions of Prometheus: counters end with
// _total and others do not, units are base units, and names are in snake case. It runs the
// collectors of the set and checks the names of their metrics, too.
func Lint(set *metrics.Set) []Problem {
	var found []Problem
	seen := map[string]bool{}
	page(set) // runs the collectors
	names, kinds := set.ListMetricNames(), kindsOf(set)
	for _, f := range set.CollectedFamilies() {
		names = append(names, f.Name)
		kinds[f.Name] = f.Type
	}
	slices.Sort(names)
	for _, full := range names {
		name, _, _ := strings.Cut(full, "{")
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		problem := func(format string, args ...any) {
			found = append(found, Problem{name, fmt.Sprintf(format, args...)})
		}
		total := strings.HasSuffix(name, "_total")
		switch kind := kinds[name]; {
		case kind == "counter" && !total:
			problem("a counter's name ends with _total")
		case kind != "counter" && total:
			problem("only a counter's name ends with _total")
		}
		if strings.ContainsAny(name, ":") {
			problem("colons are for recording rules")
		}
		if strings.ToLower(name) != name {
			problem("names are in snake_case")
		}
		for _, part := range strings.Split(name, "_") {
			if base, ok := baseUnits[part]; ok {
				problem("the base unit of %s is %s", part, base)
			}
		}
	}
	return found
}

// kindsOf returns the types of the set's families, by name.
func kindsOf(set *metrics.Set) map[string]string {
	kinds := map[string]string{}
	for _, f := range set.Families() {
		kinds[f.Name] = f.Type
	}
	return kinds
}

var baseUnits = map[string]string{
	"milliseconds": "seconds", "ms": "seconds", "microseconds": "seconds", "nanoseconds": "seconds", "minutes": "seconds",
	"hours":     "seconds",
	"kilobytes": "bytes", "kb": "bytes", "megabytes": "bytes", "mb": "bytes", "gigabytes": "bytes", "bits": "bytes",
	"percent": "ratio", "percentage": "ratio", "fahrenheit": "celsius",
}
