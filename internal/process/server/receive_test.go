package server

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// streamingService is testService with a further method, whose response is a stream.
func streamingService(s grpc.ServiceRegistrar) {
	testService(func(context.Context) error { return nil })(s)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "test.Streams", HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Call", ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
			in := &emptypb.Empty{}
			if err := stream.RecvMsg(in); err != nil {
				return err
			}
			return stream.SendMsg(in)
		}}},
	}, nil)
}

// open begins a call and sends nothing.
func open(t *testing.T, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	return stream
}

func TestReceiver_ACallThatSendsNothingEnds(t *testing.T) {
	g, conn, _ := start(t, GRPCOptions{ReceiveTimeout: 50 * time.Millisecond}, metrics.NewSet(), streamingService)
	defer func() { _ = g.Drain() }()
	for _, method := range []string{"/test.Service/Call", "/test.Streams/Call", "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"} {
		if err := open(t, conn, method).RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s: %v", method, err)
		}
	}
}

// slow returns how many slow messages there are.
func slow(r *receiver) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.slow)
}

// A message beyond the limit of slow messages ends the oldest one. Others are always
// served, and a slow message that arrives completely is served, too.
func TestReceiver_TooManySlowMessagesEndTheOldest(t *testing.T) {
	opts := GRPCOptions{ReceiveTimeout: time.Minute, receiveSoon: time.Millisecond, RequestBytesMax: 1 << 20, ReceiveBytesMax: 2 << 20}
	g, conn, _ := start(t, opts, metrics.NewSet(), streamingService)
	defer func() { _ = g.Drain() }()
	var streams []grpc.ClientStream
	for i := range 10 {
		streams = append(streams, open(t, conn, "/test.Streams/Call"))
		for ; slow(g.receiver) <= min(i, 1); time.Sleep(time.Millisecond) { // until it is slow
			if t.Context().Err() != nil {
				t.Fatal("the messages are not slow")
			}
		}
		if i >= 2 {
			if err := streams[i-2].RecvMsg(&emptypb.Empty{}); status.Code(err) != codes.ResourceExhausted {
				t.Fatalf("stream %d: %v", i-2, err)
			}
		}
		if i == 9 {
			break // a call that is slow by accident would end the oldest of the two
		}
		if err := conn.Invoke(t.Context(), "/test.Service/Call", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range streams[8:] {
		if err := errors.Join(s.SendMsg(&emptypb.Empty{}), s.CloseSend(), s.RecvMsg(&emptypb.Empty{})); err != nil {
			t.Error(err)
		}
		if err := s.RecvMsg(&emptypb.Empty{}); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
}

func TestReceiver_CountsAPanicOfTheDecoder(t *testing.T) {
	set := metrics.NewSet()
	r := newReceiver(GRPCOptions{RequestBytesMax: 1}.withDefaults(), set, newCallMetrics(set, nil, slog.New(slog.DiscardHandler)))
	err := r.receive(func(any) error { panic("a bug") }, nil)
	if status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if n := process.Panics(set, "grpc").Get(); n != 1 {
		t.Errorf("%d panics are counted, want 1", n)
	}
}
