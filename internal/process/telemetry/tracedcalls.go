package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Call begins the span of a gRPC call, in the trace of the request that the call belongs to, and adds the trace context
// to what is sent to the server. A call outside of a trace, such as a poll, has no span: end is nil.
func (t *Tracing) Call(ctx context.Context, method string) (_ context.Context, end func(error)) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, nil
	}
	ctx, span := t.start(ctx, method, trace.SpanKindClient)
	sent := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, sent)
	for name, value := range sent {
		ctx = metadata.AppendToOutgoingContext(ctx, name, value)
	}
	return ctx, func(err error) { endCall(span, err) }
}

func (t *Tracing) start(ctx context.Context, method string, kind trace.SpanKind) (context.Context, trace.Span) {
	return t.Provider().Tracer("ferula/grpc").Start(ctx, strings.TrimPrefix(method, "/"), trace.WithSpanKind(kind))
}

func endCall(span trace.Span, err error) {
	code := status.Code(err)
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// Served begins the span of a call that a server handles, within the client's trace. end is nil while
// no spans are sent.
func (t *Tracing) Served(ctx context.Context, method string) (_ context.Context, end func(error)) {
	if !t.Sends() {
		return ctx, nil
	}
	received, _ := metadata.FromIncomingContext(ctx)
	carrier := propagation.MapCarrier{}
	for name, values := range received {
		carrier[name] = values[0]
	}
	ctx, span := t.start(propagation.TraceContext{}.Extract(ctx, carrier), method, trace.SpanKindServer)
	return ctx, func(err error) { endCall(span, err) }
}
