package telemetry

import (
	"context"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	tracesdk "go.opentelemetry.io/otel/sdk/trace"

	"github.com/ferula-io/ferula/internal/redact"
)

// withoutPasswords is an exporter of spans without the passwords of URLs. Prometheus' remote-write queues set the URL
// of their remote_write section, with its password, as an attribute.
type withoutPasswords struct{ tracesdk.SpanExporter }

func newExporter(client otlptrace.Client) (tracesdk.SpanExporter, error) {
	exporter, err := otlptrace.New(context.Background(), client)
	return withoutPasswords{exporter}, err
}

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

// Events implements tracesdk.ReadOnlySpan.
func (s redactedSpan) Events() []tracesdk.Event {
	events := slices.Clone(s.ReadOnlySpan.Events())
	for i := range events {
		events[i].Attributes = redactedAttributes(events[i].Attributes)
	}
	return events
}

// redactedAttributes returns the same attributes, copied if one has a password.
func redactedAttributes(all []attribute.KeyValue) []attribute.KeyValue {
	copied := false
	for i, a := range all {
		if a.Value.Type() != attribute.STRING {
			continue
		}
		text := a.Value.AsString()
		shown := redact.Value(text)
		if shown == text {
			continue
		}
		if !copied {
			all, copied = slices.Clone(all), true
		}
		all[i] = attribute.String(string(a.Key), shown)
	}
	return all
}
