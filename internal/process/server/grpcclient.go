package server

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/metrics"
)

// callFamilies are the metrics of the calls that a client or a server handles.
type callFamilies struct {
	started, handled *metrics.CounterVec
	handling         *metrics.PrometheusHistogramVec
}

func newCallFamilies(set *metrics.Set, side string, upperBounds []float64) callFamilies {
	prefix := "grpc_" + side
	return callFamilies{
		started: set.NewCounterVec(prefix+"_started_total", "Total number of RPCs started on the "+side+".",
			"grpc_method", "grpc_service", "grpc_type"),
		handled: set.NewCounterVec(prefix+"_handled_total",
			"Total number of RPCs completed on the "+side+", regardless of success or failure.",
			"grpc_code", "grpc_method", "grpc_service", "grpc_type"),
		handling: set.NewPrometheusHistogramVec(prefix+"_handling_seconds",
			"Time from the start of an RPC to its end on the "+side+".", upperBounds,
			"grpc_method", "grpc_service", "grpc_type"),
	}
}

// call is one call that is counted.
type call struct {
	families              *callFamilies
	kind, service, method string
	begun                 time.Time
	end                   sync.Once
	endSpan               func(error) // nil: the call has no span
}

func (f *callFamilies) begin(kind, full string) *call {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	f.started.With(method, service, kind).Inc()
	return &call{families: f, kind: kind, service: service, method: method, begun: time.Now()}
}

func (c *call) ended(err error) {
	c.end.Do(func() {
		c.families.handled.With(status.Code(err).String(), c.method, c.service, c.kind).Inc()
		c.families.handling.With(c.method, c.service, c.kind).UpdateDuration(c.begun)
		if c.endSpan != nil {
			c.endSpan(err)
		}
	})
}

// ClientMetrics are the metrics of all connections of a process. They have the names of go-grpc-middleware, which
// dashboards of Thanos query. A call is counted when it begins and once when it ends: with the received status, or as
// Canceled if its caller canceled it.
type ClientMetrics struct {
	callFamilies
	sent, received *metrics.CounterVec
}

// seconds are Thanos' buckets of the durations of calls, in seconds. Those of a server end at 120.
var seconds = []float64{0.001, 0.01, 0.1, 0.3, 0.6, 1, 3, 6, 9, 20, 30, 60, 90, 120, 240, 360, 720}

// NewClientMetrics registers the metrics with set.
func NewClientMetrics(set *metrics.Set) *ClientMetrics {
	return &ClientMetrics{
		callFamilies: newCallFamilies(set, "client", seconds),
		sent: set.NewCounterVec("grpc_client_msg_sent_total", "Total number of messages sent by the client.",
			"grpc_method", "grpc_service", "grpc_type"),
		received: set.NewCounterVec("grpc_client_msg_received_total", "Total number of messages received by the client.",
			"grpc_method", "grpc_service", "grpc_type"),
	}
}

// Span begins the span of a call of a method, if the call has one. It returns the context of the call, and what ends
// the span, or nil.
type Span func(ctx context.Context, method string) (context.Context, func(error))

func (s Span) orNone() Span {
	if s == nil {
		return func(ctx context.Context, _ string) (context.Context, func(error)) { return ctx, nil }
	}
	return s
}

// DialOptions returns the options of connections whose calls are counted, and traced unless span is nil.
func (m *ClientMetrics) DialOptions(span Span) []grpc.DialOption {
	calls := clientCalls{m, span.orNone()}
	return []grpc.DialOption{grpc.WithChainUnaryInterceptor(calls.unary), grpc.WithChainStreamInterceptor(calls.stream)}
}

type clientCalls struct {
	*ClientMetrics
	span Span
}

func (m clientCalls) unary(ctx context.Context, method string, request, response any, conn *grpc.ClientConn,
	invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c := m.begin("unary", method)
	ctx, c.endSpan = m.span(ctx, method)
	m.sent.With(c.method, c.service, c.kind).Inc()
	received := m.received.With(c.method, c.service, c.kind)
	err := invoke(ctx, method, request, response, conn, opts...)
	if err == nil {
		received.Inc()
	}
	c.ended(err)
	return err
}

func (m clientCalls) stream(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	c := m.begin("server_stream", method)
	ctx, c.endSpan = m.span(ctx, method)
	stream, err := open(ctx, desc, conn, method, opts...)
	if err != nil {
		c.ended(err)
		return nil, err
	}
	// A caller that stops reading before the end cancels its context.
	stop := context.AfterFunc(ctx, func() { c.ended(status.FromContextError(ctx.Err()).Err()) })
	return &countedStream{ClientStream: stream, call: c, stop: stop,
		sent: m.sent.With(c.method, c.service, c.kind), received: m.received.With(c.method, c.service, c.kind)}, nil
}

// countedStream counts the messages and the end of a stream.
type countedStream struct {
	grpc.ClientStream
	call           *call
	stop           func() bool
	sent, received *metrics.Counter
}

// SendMsg implements grpc.ClientStream.
func (s *countedStream) SendMsg(m any) error {
	err := s.ClientStream.SendMsg(m)
	if err == nil {
		s.sent.Inc()
	}
	return err
}

func (s *countedStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	switch {
	case err == nil:
		s.received.Inc()
		return nil
	case errors.Is(err, io.EOF):
		s.call.ended(nil)
	default:
		s.call.ended(err)
	}
	s.stop()
	return err
}
