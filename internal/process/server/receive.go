package server

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/metrics"
)

// receiver limits the messages that clients send slowly. gRPC holds the received part of a
// message until the rest arrives, without a deadline and for every call of every connection.
// The receiver sets a timeout for each message. A message that takes longer than soon is
// slow. At most slowMax messages may be slow, so that they fit into the budget of bytes: when one
// more becomes slow, the call of the oldest slow message fails. So clients that send nothing never
// delay other clients, and no call waits for a slot.
type receiver struct {
	soon, timeout time.Duration
	slowMax       int
	failed        *metrics.CounterVec
	calls         *callMetrics

	mu   sync.Mutex
	slow []chan struct{} // closed when the message is ended; the oldest is first
}

func newReceiver(opts GRPCOptions, set *metrics.Set, calls *callMetrics) *receiver {
	return &receiver{
		calls: calls, soon: opts.receiveSoon, timeout: opts.ReceiveTimeout, slowMax: max(1, int(opts.ReceiveBytesMax)/opts.RequestBytesMax),
		failed: set.NewCounterVec("ferula_grpc_receive_failed_total",
			"Messages from gRPC clients that were dropped because receiving them took too long.", "reason"),
	}
}

// registrar registers services with the server such that receiver receives their messages.
type registrar struct {
	*grpc.Server
	receiver *receiver
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, service any) {
	own := *desc
	own.Methods, own.Streams = slices.Clone(desc.Methods), slices.Clone(desc.Streams)
	for i := range own.Methods {
		handler := own.Methods[i].Handler
		own.Methods[i].Handler = func(srv any, ctx context.Context, decode func(any) error,
			interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handler(srv, ctx, func(m any) error { return r.receiver.receive(decode, m) }, interceptor)
		}
	}
	for i := range own.Streams {
		handler := own.Streams[i].Handler
		own.Streams[i].Handler = func(srv any, stream grpc.ServerStream) error {
			return handler(srv, receivedStream{stream, r.receiver})
		}
	}
	r.Server.RegisterService(&own, service)
}

// receivedStream is a stream whose messages are received by the receiver.
type receivedStream struct {
	grpc.ServerStream
	receiver *receiver
}

// RecvMsg implements grpc.ServerStream.
func (s receivedStream) RecvMsg(m any) error {
	return s.receiver.receive(s.ServerStream.RecvMsg, m)
}

// receive decodes a message. After an error the call must end, which ends a decode that is
// still running.
func (r *receiver) receive(decode func(any) error, m any) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if p := recover(); p != nil {
				done <- r.calls.panicked("unknown, while decoding a request", p)
			}
		}()
		done <- decode(m)
	}()
	timer := time.NewTimer(r.soon)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
	}
	end := r.begin()
	defer r.end(end)
	timer.Reset(r.timeout - r.soon)
	select {
	case err := <-done:
		return err
	case <-end:
		r.failed.With("too many").Inc()
		return status.Error(codes.ResourceExhausted, fmt.Sprintf("more than %d requests are being received slowly",
			r.slowMax))
	case <-timer.C:
		r.failed.With("timeout").Inc()
		return status.Error(codes.DeadlineExceeded, fmt.Sprintf("the request was not received within %s", r.timeout))
	}
}

// begin adds a slow message. If there are too many, it ends the oldest one.
func (r *receiver) begin() chan struct{} {
	end := make(chan struct{})
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.slow) >= r.slowMax {
		close(r.slow[0])
		r.slow = slices.Delete(r.slow, 0, 1)
	}
	r.slow = append(r.slow, end)
	return end
}

func (r *receiver) end(end chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.Index(r.slow, end); i >= 0 {
		r.slow = slices.Delete(r.slow, i, i+1)
	}
}
