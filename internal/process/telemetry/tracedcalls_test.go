package telemetry

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"time"

	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/metrics"
)

// recorded returns a tracing whose spans are recorded.
func recorded() (*Tracing, *tracetest.SpanRecorder) {
	recorder := tracetest.NewSpanRecorder()
	t := &Tracing{}
	t.installed.Store(&installed{provider: tracesdk.NewTracerProvider(tracesdk.WithSpanProcessor(recorder))})
	return t, recorder
}

// connect serves the health service with the spans of served and returns a client with client's.
func connect(t *testing.T, client, served *Tracing) healthpb.HealthClient {
	t.Helper()
	s, err := server.NewGRPC(server.GRPCOptions{ListenAddress: "127.0.0.1:0", Span: served.Served}, nil, slog.New(slog.DiscardHandler), metrics.NewSet(), func(grpc.ServiceRegistrar) {})
	if err != nil {
		t.Fatal(err)
	}
	s.Ready()
	ended := make(chan struct{})
	go func() { _ = s.Serve(); close(ended) }()
	conn, err := grpc.NewClient("passthrough:///"+s.Addr().String(), append(server.NewClientMetrics(metrics.NewSet()).DialOptions(client.Call), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(); _ = s.Drain(); <-ended })
	return healthpb.NewHealthClient(conn)
}

// endedSpans waits until n spans have ended and returns their names, kinds and status.
func endedSpans(t *testing.T, r *tracetest.SpanRecorder, n int) (all []string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); len(r.Ended()) < n && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for _, s := range r.Ended() {
		all = append(all, s.Name()+" "+s.SpanKind().String()+" "+s.Status().Code.String())
	}
	slices.Sort(all)
	return all
}

func TestTracing_CallsHaveSpansOfTheirRequestsTrace(t *testing.T) {
	client, sent := recorded()
	server, served := recorded()
	api := connect(t, client, server)
	if _, err := api.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if n := len(sent.Ended()); n != 0 {
		t.Errorf("%d spans of a call without a trace", n)
	}
	ctx, root := client.Provider().Tracer("test").Start(t.Context(), "root")
	if _, err := api.Check(ctx, &healthpb.HealthCheckRequest{Service: "absent"}); err == nil {
		t.Error("no error for an absent service")
	}
	streamed, cancel := context.WithCancel(ctx)
	stream, err := api.Watch(streamed, &healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		t.Error(err)
	}
	cancel() // the client leaves without reading to the end
	root.End()
	if got, want := endedSpans(t, sent, 3), []string{"grpc.health.v1.Health/Check client Error", "grpc.health.v1.Health/Watch client Error", "root internal Unset"}; !slices.Equal(got, want) {
		t.Errorf("client: %q", got)
	}
	if got, want := endedSpans(t, served, 3), []string{"grpc.health.v1.Health/Check server Error", "grpc.health.v1.Health/Check server Unset", "grpc.health.v1.Health/Watch server Error"}; !slices.Equal(got, want) {
		t.Errorf("server: %q", got)
	}
	of := 0
	for _, s := range served.Ended() {
		if s.SpanContext().TraceID() == root.SpanContext().TraceID() {
			of++
		}
	}
	if of != 2 {
		t.Errorf("%d spans of the server are of the client's trace", of)
	}
}

func TestTracing_WithoutConfigurationServedCallsHaveNoSpan(t *testing.T) {
	none, err := NewTracing("", "test", slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	if ctx, end := none.Served(t.Context(), "/a/b"); ctx != t.Context() || end != nil {
		t.Error("a call has a span")
	}
	if _, err := connect(t, none, none).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	}
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }

func TestTracing_IdleConnectionsOfATracedClientAreClosed(t *testing.T) {
	tr, _ := recorded()
	next := &idle{}
	(&http.Client{Transport: tr.RoundTripper(next)}).CloseIdleConnections()
	if !next.closed {
		t.Error("they stay open")
	}
}
