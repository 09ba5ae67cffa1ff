package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/ferula-io/ferula/internal/app"
)

// trace1 is the trace of the spans 1 and 2.
const trace1 = "4bf92f3577b34da6a3ce929d0e0e4736"

// spans returns a profile of two spans of one trace, and of samples without a span.
func spans(t *testing.T) []byte {
	t.Helper()
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
		TimeNanos: time.Now().UnixNano(), DurationNanos: 1e9,
	}
	for i, name := range []string{"main.first", "main.second", "main.idle"} {
		f := &profile.Function{ID: uint64(i + 1), Name: name}
		l := &profile.Location{ID: uint64(i + 1), Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		s := &profile.Sample{Location: []*profile.Location{l}, Value: []int64{int64(i+1) * 100}}
		if i < 2 {
			s.Label = map[string][]string{"span_id": {fmt.Sprintf("%016x", i+1)}, "trace_id": {trace1}}
		}
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	if err := p.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestProfiles_ExemplarOfAnotherProgramSelectsProfilesByTime(t *testing.T) {
	page := "# TYPE latency_seconds histogram\nlatency_seconds_bucket{le=\"+Inf\"} 1 # {trace_id=\"" + trace1 + "\",span_id=\"0000000000000002\"} 0.5\nlatency_seconds_count 1\nlatency_seconds_sum 0.5\n# EOF\n"
	exporter := newPage(t, "application/openmetrics-text; version=1.0.0; charset=utf-8", page)
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: app, static_configs: [{targets: ['"+exporter+"']}]}]\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = config })
	resp, err := http.Post(s.base+"/ingest?format=pprof&name=app", "application/octet-stream", bytes.NewReader(spans(t)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	// Without a selection of spans all samples count.
	if f := s.flame(cpuType, `{service_name="app"}`); f.Flamegraph.Total != "600" || !f.has("main.second") {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		field, value string
		status       int
		want         string
	}{
		{"spanSelector", "0000000000000002", 200, `"total":"200"`},
		{"traceIdSelector", trace1, 200, `"total":"300"`},
		{"spanSelector", "x", 400, "span id"},
		{"traceIdSelector", "x", 400, "trace id"},
	} {
		request := lastHour(map[string]any{"profileTypeID": cpuType, "labelSelector": "{}", c.field: []string{c.value}})
		if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", request, nil); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s", c.field, c.value, status, text)
		}
	}
	// The exemplar of another program has no profile ID, so its time selects.
	query := "/api/v1/exemplar/flamegraph?query=latency_seconds_bucket"
	if status, text := s.get(query); status != http.StatusBadRequest || !strings.Contains(text, "no exemplar in this range") {
		t.Errorf("%d %s", status, text)
	}
	eventually(t, 60*time.Second, "the exemplar's flame graph", func() bool {
		status, text := s.get(query + "&window=1m&" + url.Values{"selector": {`{service_name="app"}`}}.Encode())
		if status == http.StatusBadRequest && strings.Contains(text, "no exemplar") {
			return false
		}
		if status != http.StatusOK || !strings.Contains(text, `"by":"time","id":""`) || !strings.Contains(text, `"total":600`) || !strings.Contains(text, "main.second") || !strings.Contains(text, `"trace_id":"`+trace1+`"`) {
			t.Fatalf("%d %s", status, text)
		}
		return true
	})
}

// newPage serves one page of metrics until the test ends, and returns its address.
func newPage(t *testing.T, contentType, text string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}
