package remoteread

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	configutil "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

func TestCheck_ReturnsTheErrorOfASection(t *testing.T) {
	good := &config.RemoteReadConfig{URL: parse(t, "http://127.0.0.1:1/read")}
	broken := &config.RemoteReadConfig{URL: parse(t, "http://127.0.0.1:2/read")}
	broken.HTTPClientConfig.TLSConfig.CAFile = filepath.Join(t.TempDir(), "absent")
	if err := Check(&config.Config{RemoteReadConfigs: []*config.RemoteReadConfig{good}}); err != nil {
		t.Error(err)
	}
	if err := Check(&config.Config{RemoteReadConfigs: []*config.RemoteReadConfig{good, broken}}); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Error(err)
	}
}

// Until the storage is ready, localStart returns an error, because the start of the first block is not known.
func TestStorage_LocalStartOfAClosedStorageIsAnError(t *testing.T) {
	s, err := tsdb.New(tsdb.Options{Dir: t.TempDir()}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if start, err := New(s, 0).localStart(); err == nil {
		t.Errorf("%d without an error", start)
	}
}

func TestStorage_CloseCanBeRepeatedAndForgetsTheClients(t *testing.T) {
	r := New(emptyStore(t), 0)
	for range 2 {
		take, err := r.Prepare(&config.Config{RemoteReadConfigs: []*config.RemoteReadConfig{{URL: parse(t, "http://127.0.0.1:1/read")}}})
		if err != nil {
			t.Fatal(err)
		}
		if take(); len(r.clients) != 1 {
			t.Errorf("%d clients", len(r.clients))
		}
		for range 2 {
			if err := r.Close(); err != nil || r.clients != nil {
				t.Errorf("%d clients, %v", len(r.clients), err)
			}
		}
	}
}

func TestNewHTTPClient_PropagatesSampledTraces(t *testing.T) {
	var got string
	srv := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Traceparent") }))
	defer srv.Close()
	client, err := newHTTPClient(configutil.HTTPClientConfig{}, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	span := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, TraceFlags: trace.FlagsSampled})
	request, err := http.NewRequestWithContext(trace.ContextWithSpanContext(t.Context(), span), http.MethodGet, srv.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if !strings.Contains(got, span.TraceID().String()) {
		t.Errorf("traceparent %q", got)
	}
}
