package server

import (
	"log/slog"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

func TestReceiver_CountsAPanicOfTheDecoder(t *testing.T) {
	set := metrics.NewSet()
	r := newReceiver(GRPCOptions{RequestBytesMax: 1}.withDefaults(), set, newCallMetrics(set, slog.New(slog.DiscardHandler)))
	err := r.receive(func(any) error { panic("a bug") }, nil)
	if status.Code(err) != codes.Internal {
		t.Error(err)
	}
	if n := process.Panics(set, "grpc").Get(); n != 1 {
		t.Errorf("%d panics are counted, want 1", n)
	}
}
