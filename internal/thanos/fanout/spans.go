package fanout

import (
	"cmp"
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// startSpan starts a span with the tracer of the request's span. If the request has none, the returned span records
// nothing.
func startSpan(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, trace.Span) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, trace.SpanFromContext(context.Background())
	}
	return parent.TracerProvider().Tracer("ferula/fanout").Start(ctx, name, trace.WithAttributes(attributes...))
}

func endSpan(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// endSpan ends the span of a store. Its attributes are the numbers of received series, chunks,
// samples and bytes.
func (s *storeStream) endSpan() {
	if s.span == nil {
		return
	}
	t := s.traffic
	s.span.SetAttributes(attribute.Int("series", t.series), attribute.Int("chunks", t.chunks),
		attribute.Int("samples", t.samples), attribute.Int("bytes", t.bytes),
		attribute.Float64("first_series_seconds", t.first.Seconds()))
	endSpan(s.span, cmp.Or(s.err, s.warning))
}
