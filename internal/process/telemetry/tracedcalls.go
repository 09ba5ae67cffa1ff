package telemetry

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// carrier reads and writes a trace context in the metadata of a call.
type carrier metadata.MD

var _ propagation.TextMapCarrier = carrier{}

// Get implements propagation.TextMapCarrier.
func (c carrier) Get(key string) string {
	if values := metadata.MD(c).Get(key); len(values) > 0 {
		return values[0]
	}
	return ""
}

// Set implements propagation.TextMapCarrier.
func (c carrier) Set(key, value string) { metadata.MD(c).Set(key, value) }

// Keys implements propagation.TextMapCarrier.
func (c carrier) Keys() []string {
	var all []string
	for key := range c {
		all = append(all, key)
	}
	return all
}

// Call begins the span of a gRPC call, in the trace of the request that the call belongs to, and adds the trace context
// to what is sent to the server. A call outside of a trace, such as a poll, has no span: end is nil.
func (t *Tracing) Call(ctx context.Context, method string) (_ context.Context, end func(error)) {
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return ctx, nil
	}
	ctx, span := t.Provider.Tracer("ferula/grpc").Start(ctx, strings.TrimPrefix(method, "/"),
		trace.WithSpanKind(trace.SpanKindClient))
	sent, ok := metadata.FromOutgoingContext(ctx)
	if !ok {
		sent = metadata.MD{}
	}
	t.Propagator.Inject(ctx, carrier(sent)) // FromOutgoingContext has copied it
	return metadata.NewOutgoingContext(ctx, sent), func(err error) { endCall(span, err) }
}

func endCall(span trace.Span, err error) {
	code := status.Code(err)
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(code)))
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// ServerOptions returns the options of a server whose calls have a span within the
// client's trace; none if spans are not sent.
func (t *Tracing) ServerOptions() []grpc.ServerOption {
	if t == nil || !t.sends {
		return nil
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, in any, info *grpc.UnaryServerInfo,
			handler grpc.UnaryHandler) (any, error) {
			if t.enabled != nil && !t.enabled() {
				return handler(ctx, in)
			}
			ctx, span := t.incoming(ctx, info.FullMethod)
			out, err := handler(ctx, in)
			endCall(span, err)
			return out, err
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			if t.enabled != nil && !t.enabled() {
				return handler(srv, stream)
			}
			ctx, span := t.incoming(stream.Context(), info.FullMethod)
			err := handler(srv, servedStream{stream, ctx})
			endCall(span, err)
			return err
		}),
	}
}

func (t *Tracing) incoming(ctx context.Context, method string) (context.Context, trace.Span) {
	received, _ := metadata.FromIncomingContext(ctx)
	ctx = t.Propagator.Extract(ctx, carrier(received))
	return t.Provider.Tracer("ferula/grpc").Start(ctx, strings.TrimPrefix(method, "/"),
		trace.WithSpanKind(trace.SpanKindServer))
}

// servedStream is a stream whose context has the span.
type servedStream struct {
	grpc.ServerStream
	ctx context.Context // required by the interface
}

// Context implements grpc.ServerStream.
func (s servedStream) Context() context.Context { return s.ctx }
