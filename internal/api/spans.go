package api

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// querySpan is the span of a query. Without a trace it does nothing.
type querySpan struct {
	trace.Span
	query string
}

// startQuerySpan starts a span with the tracer of the request's span, with the name and
// the attributes that it has in Prometheus.
func startQuerySpan(ctx context.Context, r *http.Request, name string) (context.Context, querySpan) {
	parent := trace.SpanFromContext(ctx)
	if !parent.IsRecording() {
		return ctx, querySpan{}
	}
	var attributes []attribute.KeyValue
	for _, parameter := range []string{"time", "start", "end", "step", "timeout"} {
		if v := r.FormValue(parameter); v != "" {
			attributes = append(attributes, attribute.String(parameter, v))
		}
	}
	ctx, span := parent.TracerProvider().Tracer("ferula/api").Start(ctx, name, trace.WithAttributes(attributes...))
	return ctx, querySpan{span, r.FormValue("query")}
}

// failed notes why the query failed.
func (s querySpan) failed(err error) {
	if s.Span != nil {
		s.RecordError(err)
		s.SetStatus(codes.Error, err.Error())
	}
}

// end ends the span of a query. engine is the name of the engine that evaluated it, "" if unknown. The attribute query is
// set here: Prometheus' engine sets the expression that it evaluates, which may be a part of the query.
func (s querySpan) end(engine string) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.String("query", s.query), attribute.String("engine", engine))
	s.End()
}
