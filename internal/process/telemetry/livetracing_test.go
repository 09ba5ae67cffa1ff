package telemetry

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/process"
)

// receiver is an OTLP receiver that keeps the names of spans, prefixed by their service.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	address string
	section config.TracingConfig

	mu      sync.Mutex
	spans   []string
	traces  []string
	header  string
	longest int // attribute
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(ctx context.Context, in *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		r.add(in, strings.Join(md.Get("x-tenant"), ","))
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// ServeHTTP implements http.Handler.
func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body := io.Reader(q.Body)
	if q.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body = unzipped
	}
	raw, err := io.ReadAll(body)
	in := &collector.ExportTraceServiceRequest{}
	if err == nil {
		err = proto.Unmarshal(raw, in)
	}
	if err != nil || q.URL.Path != "/v1/traces" {
		http.Error(w, "not a trace", http.StatusBadRequest)
		return
	}
	r.add(in, q.Header.Get("x-tenant"))
}

func (r *receiver) add(in *collector.ExportTraceServiceRequest, header string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.header = header
	for _, of := range in.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				r.spans = append(r.spans, service+" "+span.Name)
				r.traces = append(r.traces, trace.TraceID(span.TraceId).String())
				for _, a := range span.Attributes {
					r.longest = max(r.longest, len(a.Value.GetStringValue()))
				}
			}
		}
	}
}

func (r *receiver) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.spans)
}

// receive runs a receiver of a client type.
func receive(t *testing.T, clientType config.TracingClientType) *receiver {
	t.Helper()
	r := &receiver{}
	if clientType == config.TracingClientHTTP {
		s := httptest.NewServer(r)
		t.Cleanup(s.Close)
		r.address = strings.TrimPrefix(s.URL, "http://")
	} else {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		collector.RegisterTraceServiceServer(s, r)
		ended := make(chan struct{})
		go func() { _ = s.Serve(l); close(ended) }()
		t.Cleanup(func() { s.Stop(); <-ended })
		r.address = l.Addr().String()
	}
	r.section = config.TracingConfig{ClientType: clientType, Endpoint: r.address, Insecure: true, SamplingFraction: 1, Headers: map[string]string{"x-tenant": "north"}, Compression: "gzip"}
	return r
}

// live returns a tracing that is closed at the end of the test.
func live(t *testing.T) *Tracing {
	t.Helper()
	l := NewLiveTracing("test", slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// apply changes the section.
func (t *Tracing) apply(of *testing.T, section config.TracingConfig) {
	of.Helper()
	if err := process.Apply(t.Change(section)); err != nil {
		of.Fatal(err)
	}
}

// globalSpan starts and ends a span as Prometheus' packages do.
func globalSpan(name string, attributes ...attribute.KeyValue) {
	_, span := otel.Tracer("").Start(context.Background(), name, trace.WithAttributes(attributes...))
	span.End()
}

func TestLive_SpansGoToTheReceiverInEffect(t *testing.T) {
	for _, clientType := range []config.TracingClientType{config.TracingClientHTTP, config.TracingClientGRPC} {
		t.Run(string(clientType), func(t *testing.T) {
			l, one, two := live(t), receive(t, clientType), receive(t, clientType)
			globalSpan("before")
			l.apply(t, config.TracingConfig{})
			if l.Sends() {
				t.Error("spans are sent without a section")
			}
			l.apply(t, one.section)
			globalSpan("first", attribute.String("query", strings.Repeat("x", 10_000)))
			refused := errors.New("refused")
			if err := process.Apply(l.Change(two.section), process.Change{Apply: func() error { return refused }}); !errors.Is(err, refused) {
				t.Fatal(err)
			}
			globalSpan("after a section that was discarded")
			before := l.installed.Load()
			if l.apply(t, one.section); l.installed.Load() != before {
				t.Error("an unchanged section has a new exporter")
			}
			l.apply(t, two.section)
			globalSpan("second")
			l.apply(t, config.TracingConfig{})
			globalSpan("off")
			if err := l.Close(); err != nil || l.Sends() {
				t.Error(err)
			}
			if got, want := one.names(), []string{"test first", "test after a section that was discarded"}; !slices.Equal(got, want) {
				t.Errorf("the first receiver has %q, want %q", got, want)
			}
			if got, want := two.names(), []string{"test second"}; !slices.Equal(got, want) {
				t.Errorf("the second receiver has %q, want %q", got, want)
			}
			if one.header != "north" || one.longest != attributeBytesMax {
				t.Errorf("the header is %q, the longest attribute has %d bytes", one.header, one.longest)
			}
		})
	}
}

func TestLive_CertificatesAreReadAgain(t *testing.T) {
	l, r := live(t), receive(t, config.TracingClientHTTP)
	l.apply(t, r.section)
	section := r.section
	section.TLSConfig = config_util.TLSConfig{CAFile: filepath.Join(t.TempDir(), "missing.pem")}
	if err := CheckTracing(section); err != nil {
		t.Errorf("insecure: %v", err) // as in Prometheus, files are not read then
	}
	section.Insecure = false
	for _, clientType := range []config.TracingClientType{config.TracingClientHTTP, config.TracingClientGRPC} {
		section.ClientType = clientType
		if err := l.Change(section).Apply(); err == nil || !strings.Contains(err.Error(), "tracing: tls_config: ") || !strings.Contains(err.Error(), "missing.pem") {
			t.Error(err)
		}
		if err := CheckTracing(section); err == nil {
			t.Error("Check accepts a missing file")
		}
	}
	section.TLSConfig = config_util.TLSConfig{InsecureSkipVerify: true}
	l.apply(t, section)
	before := l.installed.Load()
	if l.apply(t, section); l.installed.Load() == before {
		t.Error("a section with TLS keeps its exporter, whose files may have changed")
	}
	if err := CheckTracing(config.TracingConfig{}); err != nil {
		t.Error(err)
	}
}

func TestLive_HandlerContinuesTheTraceOfTheClient(t *testing.T) {
	l, r := live(t), receive(t, config.TracingClientHTTP)
	served := 0
	server := httptest.NewServer(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		served++
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Errorf("deadlines of a response: %v", err)
		}
		if _, ok := w.(http.Flusher); !ok {
			t.Error("a response cannot be flushed")
		}
		globalSpan("unrelated")
		_, span := otel.Tracer("").Start(q.Context(), "inner")
		span.End()
	})))
	t.Cleanup(server.Close)
	get := func(traceparent string) {
		t.Helper()
		q, err := http.NewRequest(http.MethodGet, server.URL+"/some/path?query=x", nil)
		if err != nil {
			t.Fatal(err)
		}
		if traceparent != "" {
			q.Header.Set("Traceparent", traceparent)
		}
		resp, err := http.DefaultClient.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	const id = "0123456789abcdef0123456789abcdef"
	get("00-" + id + "-0123456789abcdef-01") // nothing is sent yet
	section := r.section
	section.SamplingFraction = 0 // those of clients whose trace is sampled only
	l.apply(t, section)
	get("")
	get("00-" + id + "-0123456789abcdef-00")
	get("00-" + id + "-0123456789abcdef-01")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := r.names(), []string{"test inner", "test GET /some/path"}; !slices.Equal(got, want) || served != 4 {
		t.Errorf("%d requests, spans %q, want %q", served, got, want)
	}
	for _, got := range r.traces {
		if got != id {
			t.Errorf("the trace is %s", got)
		}
	}
}

func TestLive_CallsOfGRPCFollowTheSection(t *testing.T) {
	l, r := live(t), receive(t, config.TracingClientGRPC)
	client, _ := recorded()
	api := connect(t, client, l)
	check := func() {
		t.Helper()
		if _, err := api.Check(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		stream, err := api.Watch(t.Context(), nil)
		if err == nil {
			_, err = stream.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check()
	l.apply(t, r.section)
	if _, err := api.Check(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	l.apply(t, config.TracingConfig{})
	check()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := r.names(), []string{"test grpc.health.v1.Health/Check"}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}

// A receiver that takes requests and never responds delays neither a change nor the end.
func TestLive_StalledReceiverDelaysNothing(t *testing.T) {
	stalled := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		<-stalled
	}))
	t.Cleanup(server.Close)
	t.Cleanup(func() { close(stalled) })
	l := live(t)
	l.flush = 10 * time.Millisecond
	section := config.TracingConfig{ClientType: config.TracingClientHTTP, Endpoint: strings.TrimPrefix(server.URL, "http://"), Insecure: true, SamplingFraction: 1}
	l.apply(t, section)
	globalSpan("lost")
	section.SamplingFraction = 0.5
	l.apply(t, section)
	done := make(chan error, 1)
	go func() { done <- l.Close() }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("Close waits for the receiver")
	}
}

func TestRoundTripper_PropagatesTheTraceOfARequest(t *testing.T) {
	var parents []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) { parents = append(parents, q.Header.Get("Traceparent")) }))
	t.Cleanup(server.Close)
	tr, spans := recorded()
	client := &http.Client{Transport: RoundTripper("Remote Read", http.DefaultTransport)}
	get := func(ctx context.Context) {
		t.Helper()
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	get(t.Context())
	ctx, root := tr.Provider().Tracer("test").Start(t.Context(), "root")
	get(ctx)
	root.End()
	if id := root.SpanContext().TraceID().String(); len(parents) != 2 || parents[0] != "" || !strings.Contains(parents[1], id) {
		t.Errorf("headers are %q, want none and one with %s", parents, id)
	}
	if got, want := endedSpans(t, spans, 2), []string{"Remote Read client Unset", "root internal Unset"}; !slices.Equal(got, want) {
		t.Errorf("spans %q, want %q", got, want)
	}
}
