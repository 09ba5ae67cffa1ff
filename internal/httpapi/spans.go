package httpapi

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

// startQuerySpan starts a span as a child of the request's span. name must be the name of the same
// span in Prometheus. The attributes are the same as in Prometheus, too.
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

// end ends the span of a query. engine is the name of the engine that evaluated the query, "" if unknown. end sets the
// attribute query to the whole query: Prometheus' engine has set it to the expression that it evaluated, which may
// be only a part of the query.
func (s querySpan) end(engine string) {
	if s.Span == nil {
		return
	}
	s.SetAttributes(attribute.String("query", s.query), attribute.String("engine", engine))
	s.End()
}
