package e2e

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/ferula-io/ferula/internal/app"
)

// The page has the role's own metrics and those of Prometheus' packages. Prometheus'
// parser reads it, and each family occurs once.
func TestMetrics_EveryRoleExposesOneValidPageInEveryFormat(t *testing.T) {
	objects := "type: FILESYSTEM\nconfig: {directory: " + t.TempDir() + "}\n"
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = configFile(t, "cluster: one")
		o.Ship.Bucket, o.Ship.IgnoreBlockSize = objects, true
	})
	sidecar := startSidecar(t, s.base, func(o *app.SidecarOptions) {
		o.Ship = app.ShippingOptions{Bucket: objects, IgnoreBlockSize: true}
	})
	sidecar.waitReady()
	query := startQuery(t, []string{sidecar.grpc}, nil)
	front := startFrontend(t, s.base, func(o *app.QueryFrontendOptions) {
		o.RangeCache, o.LabelCache = "type: IN-MEMORY\n", "type: IN-MEMORY\n"
		o.Frontend.Labels.Interval = time.Hour
	})
	for _, c := range []struct {
		name     string
		server   *server
		families int
		wanted   []string
	}{
		{"serve", s, 100, []string{
			"prometheus_tsdb_head_series", "prometheus_tsdb_head_min_time_seconds", "prometheus_config_last_reload_successful",
			"prometheus_remote_read_handler_queries", "thanos_shipper_uploads_total", "ferula_profiles_shipper_blocks_waiting",
			"ferula_profiles_received_total", "ferula_profiles_pushes_total", "thanos_objstore_bucket_operations_total",
			`ferula_http_requests_total{code="200", handler="/api/v1/query", method="GET"}`,
			`ferula_http_request_duration_seconds_count{code="200", handler="/api/v1/query", method="GET"}`,
		}},
		{"sidecar", sidecar.server, 60, []string{
			"thanos_sidecar_prometheus_up", "thanos_sidecar_reloader_reloads_total", "thanos_shipper_dir_syncs_total",
			`grpc_server_started_total{grpc_method="Info", grpc_service="thanos.info.Info", grpc_type="unary"}`,
		}},
		{"query", query.server, 60, []string{`ferula_query_stores{component="sidecar", up="true"}`, "prometheus_engine_queries"}},
		{"query-frontend", front, 60, []string{
			`ferula_frontend_cache_lookups_total{cache="query_range", result="miss"}`, `ferula_frontend_cache_memory_max_bytes{cache="labels"}`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sendTraced(t, c.server.base+"/api/v1/query?query=1")
			wanted := append(c.wanted, "ferula_build_info", "go_goroutines", "process_cpu_seconds_total", "process_open_fds")
			pageInEveryFormat(t, c.server.base, c.families, wanted)
		})
	}
}

func pageInEveryFormat(t *testing.T, base string, families int, wanted []string) {
	for _, accept := range []string{
		"", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		page, contentType := metricsPage(t, base, accept)
		checkFamiliesOnce(t, page, contentType, families)
		series := seriesOf(t, page, contentType)
		for _, want := range wanted {
			if !strings.Contains(series, "\n"+want) {
				t.Errorf("%s: no %s", contentType, want)
			}
		}
	}
	page, _ := metricsPage(t, base, "application/openmetrics-text;version=1.0.0")
	if !bytes.HasSuffix(page, []byte("\n# EOF\n")) || bytes.Count(page, []byte("# EOF")) != 1 || !bytes.Contains(page, []byte(`# {trace_id="0af7651916cd43dd8448eb211c80319c"}`)) {
		t.Errorf("no # EOF or no exemplar:\n%s", page)
	}
}

// sendTraced sends a request with a trace context.
func sendTraced(t *testing.T, address string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
}

func metricsPage(t *testing.T, base, accept string) ([]byte, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, base+"/metrics", nil)
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

// checkFamiliesOnce fails the test if the page has fewer families or one of them twice.
func checkFamiliesOnce(t *testing.T, page []byte, contentType string, families int) {
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
	if len(seen) < families {
		t.Errorf("%s: only %d families", contentType, len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: family %s occurs %d times", contentType, name, n)
		}
	}
}

// seriesOf returns the series that Prometheus' scraper parses, one per line.
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
			t.Errorf("%s: %s occurs twice", contentType, l)
		}
		seen[l.String()] = true
		b.WriteString("\n" + l.Get("__name__") + l.DropReserved(func(name string) bool { return name == "__name__" }).String())
	}
}
