package api

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// overGRPC serves a server over gRPC for the time of a test.
func overGRPC(t *testing.T, s *Server, ready func() bool) *grpc.ClientConn {
	t.Helper()
	server := grpc.NewServer()
	s.RegisterGRPC(server, ready)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

func TestRegisterGRPC_ServesTheSameMethods(t *testing.T) {
	s := &stub{}
	ready := false
	conn := overGRPC(t, New(Options{}, s, s), func() bool { return ready })
	defer func() {
		if s.open.Load() != 0 {
			t.Error("a result was not closed")
		}
	}()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-scope-orgid", "acme")
	request := &profilepb.SelectSeriesRequest{ProfileTypeID: cpu, Start: 1, End: 60_000, Step: 15, ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL}
	var response profilepb.SelectSeriesResponse
	if err := conn.Invoke(ctx, querierPath+"SelectSeries", request, &response); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	ready = true
	if err := conn.Invoke(ctx, querierPath+"SelectSeries", request, &response); err != nil || s.tenant != "acme" || response.Series[0].Points[1].Exemplars[0].ProfileId != firstID {
		t.Error(err, s.tenant, &response)
	}
	push := &profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{Samples: []*profilepb.RawSample{{RawProfile: []byte("x")}}}}}
	if err := conn.Invoke(ctx, pusherPath+"Push", push, &profilepb.PushResponse{}); err != nil || len(s.pushed) != 1 {
		t.Error(err, s.pushed)
	}
	s.err = fmt.Errorf("wrapped: %w", errFull)
	if err := conn.Invoke(ctx, pusherPath+"Push", push, &profilepb.PushResponse{}); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	if err := conn.Invoke(ctx, querierPath+"SelectSeries", &profilepb.SelectSeriesRequest{}, &response); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
	if err := conn.Invoke(metadata.AppendToOutgoingContext(context.Background(), "x-scope-orgid", "a/b"), querierPath+"ProfileTypes", &profilepb.ProfileTypesRequest{}, &profilepb.ProfileTypesResponse{}); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}
