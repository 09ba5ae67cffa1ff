package metricsdiff

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	ours "github.com/ferula-io/ferula/metrics"
)

// strictly parses OpenMetrics with the reference implementation and prints the families with their types and numbers of
// samples.
const strictly = `
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
for f in text_string_to_metric_families(sys.stdin.read()):
    exemplars = sum(1 for s in f.samples if s.exemplar)
    print(f.type, len(f.samples), exemplars, f.name)
`

// The reference parser rejects everything that the specification forbids. FERULA_TEST_PYTHON names a python with
// prometheus_client.
func TestPeerPython_ParsesOpenMetricsStrictly(t *testing.T) {
	python := os.Getenv("FERULA_TEST_PYTHON")
	if os.Getenv("FERULA_TEST_PEERS") == "" || python == "" {
		t.Skip("needs FERULA_TEST_PEERS=1 and FERULA_TEST_PYTHON, a python with prometheus_client")
	}
	for _, escaping := range escapings {
		page, _ := scrape(t, everything(), acceptOpenMetrics+escaping, ours.HandlerOptions{ProcessMetrics: true, CreatedLines: true})
		cmd := exec.Command(python, "-c", strictly)
		cmd.Stdin = bytes.NewReader(page)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v\n%s\n%s", escaping, err, out, page)
			continue
		}
		for _, want := range []string{"counter 2 1 plain\n", "unknown 1 0 clash_total\n", "gauge 1 0 clash\n", "histogram 7 0 bounded\n", "gauge 1 0 go_goroutines\n"} {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s: no %q in\n%s", escaping, want, out)
			}
		}
	}
}
