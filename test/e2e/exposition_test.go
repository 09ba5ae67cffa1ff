package e2e

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
)

// A server's own metrics and those of Prometheus' packages are one valid page in every
// format: each family is there once, and Prometheus reads all of it.
func TestOwnMetricsAreOneValidPageInEveryFormat(t *testing.T) {
	s := startServe(t, nil)
	ask := func(accept string) ([]byte, string) {
		req, err := http.NewRequest(http.MethodGet, s.base+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", accept)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d, %v", accept, resp.StatusCode, err)
		}
		return page, resp.Header.Get("Content-Type")
	}
	req, err := http.NewRequest(http.MethodGet, s.base+"/api/v1/query?query=1", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if resp, err := http.DefaultClient.Do(req); err != nil {
		t.Fatal(err)
	} else {
		resp.Body.Close()
	}
	wanted := []string{
		"ferula_build_info", "go_goroutines", "process_cpu_seconds_total", "process_open_fds", "prometheus_tsdb_head_series",
		`ferula_http_requests_total{code="200", handler="/api/v1/query", method="GET"}`,
		`ferula_http_request_duration_seconds_count{code="200", handler="/api/v1/query", method="GET"}`,
	}
	for _, accept := range []string{
		"", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		page, contentType := ask(accept)
		onceEach(t, page, contentType)
		series := seriesOf(t, page, contentType)
		for _, want := range wanted {
			if !strings.Contains(series, "\n"+want) {
				t.Errorf("%s: no %s", contentType, want)
			}
		}
	}
	page, _ := ask("application/openmetrics-text;version=1.0.0")
	if !bytes.HasSuffix(page, []byte("\n# EOF\n")) || bytes.Count(page, []byte("# EOF")) != 1 || !bytes.Contains(page, []byte(`# {trace_id="0af7651916cd43dd8448eb211c80319c"}`)) {
		t.Errorf("no end, or no exemplar:\n%s", page)
	}
}

// onceEach refuses a family that is described twice.
func onceEach(t *testing.T, page []byte, contentType string) {
	t.Helper()
	seen := map[string]int{}
	if strings.Contains(contentType, "protobuf") {
		decoder := expfmt.NewDecoder(bytes.NewReader(page), expfmt.Format(contentType))
		for {
			var family dto.MetricFamily
			if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			seen[family.GetName()]++
		}
	} else {
		for line := range strings.Lines(string(page)) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
				name, _, _ := strings.Cut(rest, " ")
				seen[name]++
			}
		}
	}
	if len(seen) < 100 {
		t.Errorf("%s: only %d families", contentType, len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: family %s is there %d times", contentType, name, n)
		}
	}
}

// seriesOf lists what Prometheus' scraper reads, each on a line of its own.
func seriesOf(t *testing.T, page []byte, contentType string) string {
	t.Helper()
	p, err := textparse.New(page, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	seen := map[string]bool{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", contentType, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		if seen[l.String()] {
			t.Errorf("%s: %s is there twice", contentType, l)
		}
		seen[l.String()] = true
		b.WriteString("\n" + l.Get("__name__") + l.DropMetricName().String())
	}
}
