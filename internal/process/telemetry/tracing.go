package telemetry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"slices"
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
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/version"
)

// attributeBytesMax is the length at which attributes, such as the text of a query, are
// cut: up to 2048 spans wait in memory for the receiver, and 512 must fit into one gRPC message.
const attributeBytesMax = 4096

// Tracing sends the spans of a process to an OTLP receiver, as a configuration demands that may change. Without one,
// nothing is sent, and requests cost nothing.
type Tracing struct {
	service string
	logger  *slog.Logger
	// how long pending spans may take to be sent when a configuration ends; then they are dropped
	flush     time.Duration
	live      bool                      // follows the section of prometheus.yml
	installed atomic.Pointer[installed] // nil: nothing is sent

	mu     sync.Mutex     // held by commit and Close
	ending sync.WaitGroup // former providers that send their pending spans
}

// installed is a configuration in effect.
type installed struct {
	section  config.TracingConfig // of Thanos' configuration only the endpoint
	provider *tracesdk.TracerProvider
}

// NewLiveTracing creates a tracing that sends nothing until a Change is committed. service is the service's name,
// unless the environment has OTEL_SERVICE_NAME. Its spans go through OpenTelemetry's global provider, because
// Prometheus' packages start their spans with it, so only one of a process can send at a time.
func NewLiveTracing(service string, logger *slog.Logger) *Tracing {
	return &Tracing{service: service, logger: logger, flush: 5 * time.Second, live: true}
}

// NewTracing creates the tracing of a service from Thanos' YAML configuration; "" sends no spans.
func NewTracing(text, service string, logger *slog.Logger) (*Tracing, error) {
	t := NewLiveTracing(service, logger)
	t.live = false
	var c configFile
	if err := c.parse(text); err != nil || c.Type == "" {
		return t, err
	}
	sampler, err := samplerOf(c.Config.SamplerType, c.Config.SamplerParam)
	if err != nil {
		return nil, err
	}
	client, err := c.client()
	if err != nil {
		return nil, err
	}
	if c.Config.ServiceName != "" {
		t.service = c.Config.ServiceName
	}
	attributes := t.attributes()
	for name, value := range c.Config.ResourceAttributes {
		attributes = append(attributes, attribute.String(name, value))
	}
	provider, err := newProvider(client, sampler, tracesdk.WithResource(resource.NewSchemaless(attributes...)))
	t.installed.Store(&installed{config.TracingConfig{Endpoint: c.Config.Endpoint}, provider})
	return t, err
}

func (t *Tracing) attributes() []attribute.KeyValue {
	return []attribute.KeyValue{attribute.String("service.name", t.service),
		attribute.String("service.version", version.Current().Version)}
}

func newProvider(client otlptrace.Client, sampler tracesdk.Sampler,
	options ...tracesdk.TracerProviderOption) (*tracesdk.TracerProvider, error) {
	exporter, err := otlptrace.New(context.Background(), client)
	if err != nil {
		return nil, fmt.Errorf("OTLP exporter: %w", err)
	}
	return tracesdk.NewTracerProvider(append(options, tracesdk.WithSampler(sampler),
		tracesdk.WithBatcher(withoutPasswords{exporter}))...), nil
}

// Provider returns the provider that is in effect.
func (t *Tracing) Provider() trace.TracerProvider {
	if now := t.installed.Load(); now != nil {
		return now.provider
	}
	return noop.NewTracerProvider()
}

// Sends reports whether there is a configuration in effect.
func (t *Tracing) Sends() bool { return t.installed.Load() != nil }

// CheckTracing returns the error that applying the Change to a section would return.
func CheckTracing(section config.TracingConfig) error {
	if section.Endpoint == "" {
		return nil
	}
	_, err := sectionClient(section)
	return err
}

// Change is the change to a section of prometheus.yml. An unchanged section without TLS stays in effect; with TLS the
// files may have changed. Spans that wait for the former receiver are still sent, without delaying the caller.
func (t *Tracing) Change(section config.TracingConfig) process.Change {
	var next *installed
	keep := false
	return process.Change{
		Apply: func() (err error) {
			now := t.installed.Load()
			keep = now != nil && section.TLSConfig == (config_util.TLSConfig{}) && reflect.DeepEqual(now.section, section)
			if !keep && section.Endpoint != "" {
				next, err = t.prepare(section)
			}
			return err
		},
		Undo: func() error {
			if next == nil {
				return nil
			}
			return next.shutdown(t.flush) // it has no pending spans
		},
		Commit: func() {
			if !keep {
				t.commit(next)
			}
		},
	}
}

// prepare reads the certificates of a section and creates its exporter.
func (t *Tracing) prepare(section config.TracingConfig) (*installed, error) {
	client, err := sectionClient(section)
	if err != nil {
		return nil, err
	}
	named, err := resource.New(context.Background(), resource.WithAttributes(t.attributes()...),
		resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		t.logger.Warn("Some attributes of the service are left out of traces", "err", err)
	}
	limits := tracesdk.NewSpanLimits()
	if limits.AttributeValueLengthLimit < 0 {
		limits.AttributeValueLengthLimit = attributeBytesMax
	}
	provider, err := newProvider(client, tracesdk.ParentBased(tracesdk.TraceIDRatioBased(section.SamplingFraction)),
		tracesdk.WithResource(named), tracesdk.WithRawSpanLimits(limits))
	return &installed{section, provider}, err
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

// commit puts a section into effect; nil: none.
func (t *Tracing) commit(next *installed) {
	t.mu.Lock()
	defer t.mu.Unlock()
	former := t.installed.Load()
	switch {
	case next != nil:
		otel.SetTextMapPropagator(propagation.TraceContext{})
		otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.logger.Warn("Sending traces failed", "err", err) }))
		otel.SetTracerProvider(next.provider)
		t.logger.Info("Sending traces", "endpoint", next.section.Endpoint, "sampling_fraction",
			next.section.SamplingFraction)
	case former != nil:
		otel.SetTracerProvider(noop.NewTracerProvider())
		t.logger.Info("Traces are no longer sent")
	}
	t.installed.Store(next)
	if former != nil {
		t.ending.Go(func() { t.end(former) })
	}
}

// Close sends the pending spans, for a few seconds at most.
func (t *Tracing) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := t.installed.Swap(nil); now != nil {
		if t.live {
			otel.SetTracerProvider(noop.NewTracerProvider())
		}
		t.end(now)
	}
	t.ending.Wait()
	return nil
}

func (t *Tracing) end(former *installed) {
	if err := former.shutdown(t.flush); err != nil {
		t.logger.Warn("Some traces were not sent", "endpoint", former.section.Endpoint, "err", err)
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
func (t *Tracing) Handler(next http.Handler) http.Handler {
	traced := otelhttp.NewHandler(next, "", otelhttp.WithPropagators(propagation.TraceContext{}),
		otelhttp.WithSpanNameFormatter(func(_ string, r *http.Request) string { return r.Method + " " + r.URL.Path }))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t.Sends() {
			traced.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// RoundTripper creates a span for every outgoing request and propagates its context. Without a configuration it is
// next.
func (t *Tracing) RoundTripper(next http.RoundTripper) http.RoundTripper {
	if !t.Sends() {
		return next
	}
	return transport{otelhttp.NewTransport(next, otelhttp.WithTracerProvider(t.Provider()),
		otelhttp.WithPropagators(propagation.TraceContext{})), next}
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

// transport is a traced transport whose idle connections can be closed.
type transport struct {
	http.RoundTripper
	next http.RoundTripper
}

// CloseIdleConnections closes the idle connections of the transport that is traced.
func (t transport) CloseIdleConnections() {
	if next, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// withoutPasswords is an exporter of spans without the passwords of URLs. Prometheus' remote-write queues set the URL
// of their remote_write section, with its password, as an attribute.
type withoutPasswords struct{ tracesdk.SpanExporter }

// ExportSpans implements tracesdk.SpanExporter.
func (e withoutPasswords) ExportSpans(ctx context.Context, spans []tracesdk.ReadOnlySpan) error {
	redacted := make([]tracesdk.ReadOnlySpan, len(spans))
	for i, s := range spans {
		redacted[i] = redactedSpan{s}
	}
	return e.SpanExporter.ExportSpans(ctx, redacted)
}

// redactedSpan is a span without the passwords of URLs in its attributes.
type redactedSpan struct{ tracesdk.ReadOnlySpan }

// Attributes implements tracesdk.ReadOnlySpan.
func (s redactedSpan) Attributes() []attribute.KeyValue {
	return redactedAttributes(s.ReadOnlySpan.Attributes())
}

func (s redactedSpan) Events() []tracesdk.Event {
	events := slices.Clone(s.ReadOnlySpan.Events())
	for i := range events {
		events[i].Attributes = redactedAttributes(events[i].Attributes)
	}
	return events
}

func redactedAttributes(all []attribute.KeyValue) []attribute.KeyValue {
	all = slices.Clone(all)
	for i, a := range all {
		if a.Value.Type() == attribute.STRING {
			all[i].Value = attribute.StringValue(redact.Value(a.Value.AsString()))
		}
	}
	return all
}
