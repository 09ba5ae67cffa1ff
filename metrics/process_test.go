package metrics

import (
	"bytes"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The README lists which process metrics each system has.
func TestProcessMetrics_READMEHasThemBySystem(t *testing.T) {
	readme := try(os.ReadFile("README.md")).must(t)
	quoted := regexp.MustCompile("[`\"](process_\\w*)(…?)[`\"]")
	for column, file := range []string{"process_linux.go", "process_unix.go", "process_windows.go"} {
		source := try(os.ReadFile(file)).must(t)
		var names []string
		for _, m := range quoted.FindAllStringSubmatch(string(source), -1) {
			names = append(names, m[1])
		}
		listed := map[string]bool{}
		for line := range strings.Lines(string(readme)) {
			cells := strings.Split(line, "|")
			if len(cells) != 6 || !strings.Contains(cells[1], "`process_") {
				continue
			}
			for _, m := range quoted.FindAllStringSubmatch(cells[1], -1) {
				here := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
					return name != m[1] && (m[2] == "" || !strings.HasPrefix(name, m[1]))
				})
				if want := map[bool]string{true: "yes", false: "no"}[len(here) > 0]; strings.TrimSpace(cells[2+column]) != want {
					t.Errorf("%s: the README has%sfor %s", file, cells[2+column], m[0])
				}
				for _, name := range here {
					listed[name] = true
				}
			}
		}
		for _, name := range names {
			if !listed[name] {
				t.Errorf("%s has %s, but the README does not", file, name)
			}
		}
		if len(listed) < 4 {
			t.Errorf("%s: only %d names", file, len(listed))
		}
	}
}

// withProcessFamilies returns a set that has families of the process metrics, of every kind, registered and collected.
func withProcessFamilies() *Set {
	s := NewSet()
	s.NewGauge("go_threads", nil).Set(-1)
	s.NewSummaryExt(`go_gc_duration_seconds{a="b"}`, 0, []float64{.5}).Update(-2)
	s.NewCounter("processed_total")
	goroutines, cpu := NewDesc("go_goroutines", "Goroutines."), NewDesc("process_cpu_seconds_total", "CPU.")
	latencies, fds := NewDesc("go_sched_latencies_seconds", "Latencies."), NewDesc("process_open_fds", "Open files.")
	s.RegisterCollector(func(sink *Sink) error {
		sink.Gauge(goroutines, -3)
		sink.Counter(cpu, 0.125)
		sink.Histogram(latencies, 1, 1, []Bucket{{1, 1}})
		sink.Gauge(fds, -4)
		return nil
	})
	return s
}

// If a set has families of the process metrics, the response has these families once, with the values of the set.
func TestHandler_ProcessFamiliesOfASetAreExposedOnce(t *testing.T) {
	for _, opts := range []HandlerOptions{{ProcessMetrics: true, OpenFiles: true}, {ProcessMetrics: true, OpenFiles: true, Metadata: true}, {OpenFiles: true, Metadata: true}} {
		opts.Sets = []*Set{withProcessFamilies(), NewSet()}
		h := NewHandler(opts)
		for name, accept := range requested {
			for range 2 {
				w := get(h, accept, "")
				if w.Code != 200 {
					t.Fatalf("status %d: %s", w.Code, w.Body)
				}
				if name != "protobuf" {
					checkProcessFamilies(t, name, w.Body.String(), opts.ProcessMetrics)
					continue
				}
				for _, family := range []string{"go_threads", "go_gc_duration_seconds", "go_goroutines", "go_sched_latencies_seconds", "process_open_fds"} {
					if n := bytes.Count(w.Body.Bytes(), []byte(family)); n != 1 {
						t.Errorf("protobuf has %s %d times", family, n)
					}
				}
			}
		}
	}
}

// checkProcessFamilies checks that no line occurs twice, that families of withProcessFamilies have its values, and that the
// other families of the process metrics are there.
func checkProcessFamilies(t *testing.T, what, page string, process bool) {
	t.Helper()
	values, types := map[string]string{}, map[string]bool{}
	for line := range strings.Lines(page) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			if types[rest] {
				t.Errorf("%s: twice: %s", what, line)
			}
			types[rest] = true
		}
		if name == "#" {
			continue
		}
		if _, there := values[name]; there {
			t.Errorf("%s: twice: %s", what, line)
		}
		values[name] = strings.TrimSuffix(value, ".0")
	}
	for name, want := range map[string]string{
		"go_threads": "-1", `go_gc_duration_seconds{a="b",quantile="0.5"}`: "-2", "go_goroutines": "-3", "process_cpu_seconds_total": "0.125",
		`go_sched_latencies_seconds_bucket{le="+Inf"}`: "1", "process_open_fds": "-4",
	} {
		if strings.Contains(name, "quantile") && !strings.Contains(page, name) {
			continue // OpenMetrics has no negative quantiles
		}
		if values[name] != want {
			t.Errorf("%s: %s is %q, want %q", what, name, values[name], want)
		}
	}
	for name := range maps.Keys(values) {
		if strings.HasPrefix(name, "go_gc_duration_seconds") && !strings.Contains(name, `a="b"`) || strings.HasPrefix(name, "go_sched_latencies_seconds_bucket") && !slices.Contains([]string{`{le="1"}`, `{le="1.0"}`, `{le="+Inf"}`}, name[len("go_sched_latencies_seconds_bucket"):]) {
			t.Errorf("%s: %s is one of the process metrics", what, name)
		}
	}
	if _, there := values["go_gomaxprocs"]; there != process {
		t.Errorf("%s: go_gomaxprocs: %v", what, there)
	}
	if values["processed_total"] != "0" {
		t.Errorf("%s: no processed_total in\n%s", what, page)
	}
}

func TestWritePrometheus_ProcessFamiliesOfASetAreWrittenOnce(t *testing.T) {
	s := withProcessFamilies()
	RegisterSet(s)
	defer UnregisterSet(s, true)
	for _, described := range []bool{false, true} {
		ExposeMetadata(described)
		defer ExposeMetadata(false)
		var page bytes.Buffer
		WritePrometheus(&page, true)
		checkProcessFamilies(t, "text", page.String(), true)
	}
	var alone bytes.Buffer
	WriteProcessMetrics(&alone)
	if !strings.Contains(alone.String(), "\ngo_goroutines ") {
		t.Errorf("WriteProcessMetrics omits what a set has:\n%s", alone.String())
	}
}
