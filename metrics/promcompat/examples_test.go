package promcompat_test

import (
	"path/filepath"
	"testing"
)

// comparison runs after client_golang's examples, in their package: promhttp and promcompat must serve the same families.
const comparison = `package prometheus_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

func TestMain(m *testing.M) {
	code := m.Run()
	for _, accept := range []string{"", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"} {
		want := families(promhttp.HandlerFor(prometheus.DefaultGatherer, promhttp.HandlerOpts{}), accept)
		got := families(promcompat.Handler(prometheus.DefaultGatherer, metrics.HandlerOptions{Sets: []*metrics.Set{metrics.NewSet()}}), accept)
		fmt.Println("families:", len(want))
		for name, text := range want {
			if got[name] != text {
				fmt.Printf("%s: got %s, want %s\n", name, got[name], text)
				code = 1
			}
		}
		if len(got) != len(want) || len(want) < 6 {
			fmt.Printf("%d families, want %d\n", len(got), len(want))
			code = 1
		}
	}
	os.Exit(code)
}

// families parses a page, without the parts that change between two scrapes.
func families(h http.Handler, accept string) map[string]string {
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	d := expfmt.NewDecoder(w.Body, expfmt.ResponseFormat(w.Header()))
	all := map[string]string{}
	for {
		var f dto.MetricFamily
		if d.Decode(&f) != nil {
			return all
		}
		if n := f.GetName(); !strings.HasPrefix(n, "go_") && !strings.HasPrefix(n, "process_") && n != "runtime_goroutines_count" && n != "expvar_memstats" {
			all[n] = f.String()
		}
	}
}
`

// client_golang's own examples run next to package metrics. promcompat.Handler serves
// their metrics as promhttp does.
func TestExamples_OfClientGolangAreServedAsByPromhttp(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	peer := filepath.Join(command(t, ".", "go", "list", "-m", "-f", "{{.Dir}}", peerModule), "prometheus")
	files, err := filepath.Glob(filepath.Join(peer, "example*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	files = append(files, filepath.Join(peer, "expvar_collector_test.go"), filepath.Join(peer, "utils_test.go")) // the second has helpers of the examples
	b := overlay{t: t, folder: "peerexamples", tmp: t.TempDir(), Replace: map[string]string{}}
	b.add("main_test.go", comparison)
	for _, file := range files {
		b.add(filepath.Base(file), read(t, file))
	}
	b.add("registry_test.go", examplesOf(t, filepath.Join(peer, "registry_test.go"), []string{"ExampleRegistry_grouping"}, "", "prometheus_test"))
	binary := filepath.Join(b.tmp, "examples.test")
	command(t, ".", "go", "test", "-c", "-vet=off", "-o", binary, "-overlay="+b.write(), "./"+b.folder)
	// The excluded example has callbacks that dereference nil when they are scraped, also
	// by promhttp.
	t.Log(command(t, b.tmp, binary, "-test.skip=ExampleGaugeFunc_constLabels"))
}
