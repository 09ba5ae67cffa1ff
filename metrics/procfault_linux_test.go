package metrics

import (
	"bytes"
	"log"
	"os"
	"strings"
	"testing"
)

func TestProcReader_FaultIsLoggedOnceAndTheRestIsExposed(t *testing.T) {
	const stat = "/proc/self/stat"
	var logged bytes.Buffer
	log.SetOutput(&logged)
	defer log.SetOutput(os.Stderr)
	page := func() string {
		var b bytes.Buffer
		WriteProcessMetrics(&b)
		return b.String()
	}
	if got := page(); !strings.Contains(got, "process_cpu_seconds_total") {
		t.Fatal(got)
	}
	defer func() {
		proc.mu.Lock()
		delete(proc.faults, stat)
		proc.mu.Unlock()
	}()
	for n := range 2 {
		proc.mu.Lock()
		_ = proc.files[stat].Close() // reads of it fail from now on
		proc.mu.Unlock()
		if got := page(); strings.Contains(got, "process_cpu_seconds_total") || !strings.Contains(got, "go_goroutines") {
			t.Errorf("read %d: %s", n, got)
		}
		if got := strings.Count(logged.String(), "ERROR: metrics: "+stat); got != 1 {
			t.Errorf("read %d is logged %d times: %s", n, got, &logged)
		}
		if got := page(); !strings.Contains(got, "process_cpu_seconds_total") {
			t.Errorf("after read %d: %s", n, got)
		}
	}
}
