package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	config_util "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/ferula-io/ferula/internal/version"
)

// attributeBytesMax is the length at which attributes, such as the text of a query, are
// cut: up to 2048 spans wait in memory for the receiver, and 512 must fit into one gRPC message.
const attributeBytesMax = 4096

// LiveTracing sends the traces of a server as the section tracing of its configuration demands. Without
// a section, nothing is sent, and requests cost nothing. Create it with NewLiveTracing.
type LiveTracing struct {
	service string
	logger  *slog.Logger
	// how long pending spans may take to be sent when a section ends; then they are dropped
	flush     time.Duration
	installed atomic.Pointer[installed] // nil: nothing is sent

	mu     sync.Mutex     // held by Commit and Close
	ending sync.WaitGroup // former providers that send their pending spans
}

// installed is a section in effect.
type installed struct {
	section  config.TracingConfig
	provider *tracesdk.TracerProvider
}

// NewLiveTracing creates a tracing that sends nothing. service is the service's name, unless the
// environment has OTEL_SERVICE_NAME. Only one LiveTracing of a process can send at a time.
func NewLiveTracing(service string, logger *slog.Logger) *LiveTracing {
	return &LiveTracing{service: service, logger: logger, flush: 5 * time.Second}
}

// Sends reports whether there is a section in effect.
func (l *LiveTracing) Sends() bool { return l.installed.Load() != nil }

// CheckTracing returns the error that Stage would return.
func CheckTracing(section config.TracingConfig) error {
	if section.Endpoint == "" {
		return nil
	}
	_, err := sectionClient(section)
	return err
}

// Staged is a section that is not yet in effect.
type Staged struct {
	live *LiveTracing
	keep bool       // the section is in effect already
	next *installed // nil: nothing is sent
}

// Stage reads the certificates of a section and creates its exporter. Commit or Undo the
// result. An unchanged section without TLS stays in effect; with TLS the files may have
// changed.
func (l *LiveTracing) Stage(section config.TracingConfig) (*Staged, error) {
	if section.Endpoint == "" {
		return &Staged{live: l}, nil
	}
	if now := l.installed.Load(); now != nil && section.TLSConfig == (config_util.TLSConfig{}) &&
		reflect.DeepEqual(now.section, section) {
		return &Staged{live: l, keep: true}, nil
	}
	client, err := sectionClient(section)
	if err != nil {
		return nil, err
	}
	exporter, err := newExporter(client)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	named, err := resource.New(context.Background(),
		resource.WithAttributes(attribute.String("service.name", l.service),
			attribute.String("service.version", version.Current().Version)),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		l.logger.Warn("Some attributes of the service are left out of traces", "err", err)
	}
	limits := tracesdk.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = attributeBytesMax
	}
	return &Staged{live: l, next: &installed{section, tracesdk.NewTracerProvider(tracesdk.WithBatcher(exporter),
		tracesdk.WithResource(named), tracesdk.WithRawSpanLimits(limits),
		tracesdk.WithSampler(tracesdk.ParentBased(tracesdk.TraceIDRatioBased(section.SamplingFraction))))}}, nil
}

func sectionClient(section config.TracingConfig) (otlptrace.Client, error) {
	var c configFile
	o := &c.Config
	o.ClientType, o.Endpoint, o.Insecure = string(section.ClientType), section.Endpoint, section.Insecure
	o.Headers, o.Compression, o.Timeout = section.Headers, section.Compression, time.Duration(section.Timeout)
	if !section.Insecure {
		o.TLSConfig = section.TLSConfig
	}
	client, err := c.client()
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return client, nil
}

// Undo discards the section.
func (s *Staged) Undo() error {
	if s.next == nil {
		return nil
	}
	return s.next.shutdown(s.live.flush) // it has no pending spans
}

// Commit puts the section into effect. Spans that wait for the former receiver are still
// sent, without delaying the caller.
func (s *Staged) Commit() {
	if s.keep {
		return
	}
	l := s.live
	l.mu.Lock()
	defer l.mu.Unlock()
	former := l.installed.Load()
	switch {
	case s.next != nil:
		otel.SetTextMapPropagator(propagation.TraceContext{})
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { l.logger.Warn("Sending traces failed", "err", err) }))
		otel.SetTracerProvider(s.next.provider)
		l.logger.Info("Sending traces", "endpoint", s.next.section.Endpoint, "sampling_fraction",
			s.next.section.SamplingFraction)
	case former != nil:
		otel.SetTracerProvider(noop.NewTracerProvider())
		l.logger.Info("Traces are no longer sent")
	}
	l.installed.Store(s.next)
	if former != nil {
		l.ending.Go(func() { l.end(former) })
	}
}

// Close sends the pending spans, for a few seconds at most.
func (l *LiveTracing) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := l.installed.Swap(nil); now != nil {
		otel.SetTracerProvider(noop.NewTracerProvider())
		l.end(now)
	}
	l.ending.Wait()
	return nil
}

func (l *LiveTracing) end(former *installed) {
	if err := former.shutdown(l.flush); err != nil {
		l.logger.Warn("Some traces were not sent", "endpoint", former.section.Endpoint, "err", err)
	}
}

// shutdown sends the pending spans.
func (i *installed) shutdown(within time.Duration) error {
	ctx, done := context.WithTimeout(context.Background(), within)
	defer done()
	return i.provider.Shutdown(ctx)
}

// Handler gives each request a span with the name "METHOD PATH", within the trace of the
// client, while a section is in effect.
func (l *LiveTracing) Handler(next http.Handler) http.Handler {
	traced := otelhttp.NewHandler(next, "", otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithTracerProvider(&provider{live: l}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.URL.Path }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if l.Sends() {
			traced.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Tracing returns the tracing of gRPC calls, which follows the section.
func (l *LiveTracing) Tracing() *Tracing {
	return &Tracing{Provider: &provider{live: l}, Propagator: propagation.TraceContext{}, sends: true, enabled: l.Sends,
		shutdown: func(context.Context) error {
			return nil
		}}
}

// RoundTripper gives each request of a sampled trace a span, and sends the span's context to the server.
func RoundTripper(name string, next http.RoundTripper) http.RoundTripper {
	traced := otelhttp.NewTransport(next, otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(string, *http.Request) string { return name }))
	return transport{roundTripper(func(r *http.Request) (*http.Response, error) {
		if trace.SpanContextFromContext(r.Context()).IsSampled() {
			return traced.RoundTrip(r)
		}
		return next.RoundTrip(r)
	}), next}
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// provider delegates to the provider of the section in effect.
type provider struct {
	embedded.TracerProvider
	live *LiveTracing
}

// Tracer implements trace.TracerProvider.
func (p *provider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return &tracer{live: p.live, name: name, opts: opts}
}

// tracer starts spans with the provider in effect at that time.
type tracer struct {
	embedded.Tracer
	live *LiveTracing
	name string
	opts []trace.TracerOption
}

// Start implements trace.Tracer.
func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	now := t.live.installed.Load()
	if now == nil {
		return noop.NewTracerProvider().Tracer(t.name).Start(ctx, name, opts...)
	}
	return now.provider.Tracer(t.name, t.opts...).Start(ctx, name, opts...)
}
