package promhttp_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat/promhttp"
)

// withRegistry replaces the default registry of client_golang during a test.
func withRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	registerer, gatherer := prometheus.DefaultRegisterer, prometheus.DefaultGatherer
	t.Cleanup(func() { prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registerer, gatherer })
	r := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = r, r
	return r
}

func get(h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w
}

func gauge(name string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Help."})
}

// The handlers of the default gatherer have the metrics of both libraries; those of other gatherers have only those.
func TestHandler_OnlyTheDefaultGathererHasTheSets(t *testing.T) {
	r := withRegistry(t)
	set := metrics.NewSet()
	set.NewCounter("ours_total").Inc()
	metrics.RegisterSet(set)
	defer metrics.UnregisterSet(set, true)
	r.MustRegister(gauge("theirs"))
	other := prometheus.NewRegistry()
	other.MustRegister(gauge("theirs"))
	for name, c := range map[string]struct {
		h    http.Handler
		both bool
	}{
		"Handler":                     {promhttp.Handler(), true},
		"HandlerFor, default":         {promhttp.HandlerFor(prometheus.DefaultGatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}), true},
		"HandlerFor, other":           {promhttp.HandlerFor(other, promhttp.HandlerOpts{}), false},
		"HandlerFor, not comparable":  {promhttp.HandlerFor(prometheus.Gatherers{r}, promhttp.HandlerOpts{}), false},
		"HandlerFor, function":        {promhttp.HandlerFor(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return r.Gather() }), promhttp.HandlerOpts{}), false},
		"HandlerForTransactional":     {promhttp.HandlerForTransactional(prometheus.ToTransactionalGatherer(r), promhttp.HandlerOpts{}), false},
		"InstrumentMetricHandler too": {promhttp.InstrumentMetricHandler(other, promhttp.HandlerFor(r, promhttp.HandlerOpts{})), true},
	} {
		w := get(c.h)
		page := w.Body.String()
		if w.Code != http.StatusOK || !strings.Contains(page, "\ntheirs 0\n") || strings.Contains(page, "\nours_total 1\n") != c.both {
			t.Errorf("%s: status %d\n%s", name, w.Code, page)
		}
	}
	prometheus.DefaultGatherer = prometheus.Gatherers{r} // not comparable: its handlers have no sets, and do not panic
	if w := get(promhttp.Handler()); w.Code != http.StatusOK || strings.Contains(w.Body.String(), "ours_total") {
		t.Errorf("status %d\n%s", w.Code, w.Body)
	}
}

// A family of both libraries fails the scrape with an error that names it.
func TestHandler_FamilyOfBothFails(t *testing.T) {
	withRegistry(t).MustRegister(gauge("twice"))
	set := metrics.NewSet()
	set.NewCounter("twice").Inc()
	metrics.RegisterSet(set)
	defer metrics.UnregisterSet(set, true)
	if w := get(promhttp.Handler()); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "family twice is in a set and in the gatherer") {
		t.Errorf("status %d\n%s", w.Code, w.Body)
	}
	w := get(promhttp.HandlerFor(prometheus.DefaultGatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	if w.Code != http.StatusOK || !strings.HasSuffix(w.Body.String(), "# HELP twice Help.\n# TYPE twice gauge\ntwice 0\n") {
		t.Errorf("ContinueOnError: status %d\n%s", w.Code, w.Body)
	}
}

// Every exported name of client_golang's package is here, so that any program compiles.
func TestNames_AreThoseOfClientGolang(t *testing.T) {
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/prometheus/client_golang/prometheus/promhttp").Output()
	if err != nil {
		t.Fatal(err)
	}
	want, got := exported(t, strings.TrimSpace(string(dir))), exported(t, ".")
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if len(want) < 25 {
		t.Errorf("only %d names", len(want))
	}
}

// exported returns the exported names of a package's functions, types, constants and variables, sorted.
func exported(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil {
					names[d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
	}
	maps.DeleteFunc(names, func(name string, _ bool) bool { return !ast.IsExported(name) })
	return slices.Sorted(maps.Keys(names))
}

// A program that changes only the import has the metrics of both libraries in one response.
func ExampleHandler() {
	registry := prometheus.NewRegistry()
	prometheus.DefaultRegisterer, prometheus.DefaultGatherer = registry, registry
	jobs := prometheus.NewCounter(prometheus.CounterOpts{Name: "jobs_total", Help: "Jobs done."})
	prometheus.MustRegister(jobs)
	jobs.Inc()
	defer metrics.UnregisterAllMetrics()
	metrics.NewCounterVec("requests_total", "Requests served.", "path").With("/api").Inc() // a new metric

	w := httptest.NewRecorder()
	promhttp.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "jobs_total") || strings.HasPrefix(line, "requests_total") {
			fmt.Print(line)
		}
	}
	// Output:
	// jobs_total 1
	// requests_total{path="/api"} 1
}
