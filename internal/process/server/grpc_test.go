package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/ferula-io/ferula/metrics"
)

// testService has one method, which calls the function.
func testService(call func(ctx context.Context) error) func(grpc.ServiceRegistrar) {
	return func(s grpc.ServiceRegistrar) {
		s.RegisterService(&grpc.ServiceDesc{
			ServiceName: "test.Service", HandlerType: (*any)(nil),
			Methods: []grpc.MethodDesc{{MethodName: "Call", Handler: func(_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
				in := &emptypb.Empty{}
				if err := decode(in); err != nil {
					return nil, err
				}
				return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/test.Service/Call"}, func(ctx context.Context, _ any) (any, error) {
					return &emptypb.Empty{}, call(ctx)
				})
			}}},
		}, nil)
	}
}

func start(t *testing.T, o GRPCOptions, set *metrics.Set, register func(grpc.ServiceRegistrar)) (*GRPC, *grpc.ClientConn, <-chan error) {
	t.Helper()
	o.ListenAddress = "127.0.0.1:0"
	g, err := NewGRPC(o, nil, slog.New(slog.DiscardHandler), set, register)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve() }()
	conn, err := grpc.NewClient(g.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return g, conn, served
}

func statusOf(t *testing.T, conn *grpc.ClientConn) healthpb.HealthCheckResponse_ServingStatus {
	t.Helper()
	resp, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Status
}

func TestServer_HealthFollowsReadyAndStopping(t *testing.T) {
	g, conn, served := start(t, GRPCOptions{}, metrics.NewSet(), func(grpc.ServiceRegistrar) {})
	if got := statusOf(t, conn); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("starting: %v", got)
	}
	g.Ready()
	if got := statusOf(t, conn); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("ready: %v", got)
	}
	g.Stopping()
	g.Ready()
	if got := statusOf(t, conn); got != healthpb.HealthCheckResponse_NOT_SERVING {
		t.Errorf("stopping: %v", got)
	}
	if err := g.Drain(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServer_CountsCallsAndRecoversPanics(t *testing.T) {
	set := metrics.NewSet()
	fail := func() error { return nil }
	g, conn, _ := start(t, GRPCOptions{}, set, testService(func(context.Context) error { return fail() }))
	defer func() { _ = g.Drain() }()
	for _, tt := range []struct {
		fail func() error
		code codes.Code
	}{
		{func() error { return nil }, codes.OK},
		{func() error { return status.Error(codes.NotFound, "no") }, codes.NotFound},
		{func() error { panic("a bug") }, codes.Internal},
	} {
		fail = tt.fail
		if err := conn.Invoke(t.Context(), "/test.Service/Call", &emptypb.Empty{}, &emptypb.Empty{}); status.Code(err) != tt.code {
			t.Errorf("%v, want %v", err, tt.code)
		}
	}
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for _, line := range []string{
		`grpc_server_started_total{grpc_method="Call",grpc_service="test.Service",grpc_type="unary"} 3`,
		`grpc_server_handled_total{grpc_code="NotFound",grpc_method="Call",grpc_service="test.Service",grpc_type="unary"} 1`,
		`grpc_server_handled_total{grpc_code="Internal",grpc_method="Call",grpc_service="test.Service",grpc_type="unary"} 1`,
		`grpc_req_panics_recovered_total 1`,
		`ferula_panics_recovered_total{place="grpc"} 1`,
	} {
		if !strings.Contains(page.String(), line+"\n") {
			t.Errorf("no %s in\n%s", line, page.String())
		}
	}
}

func TestServer_DrainWaitsForCallsForTheGracePeriod(t *testing.T) {
	running, release := make(chan struct{}), make(chan struct{})
	call := testService(func(ctx context.Context) error {
		close(running)
		select {
		case <-release:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	g, conn, served := start(t, GRPCOptions{GracePeriod: time.Minute}, metrics.NewSet(), call)
	result := make(chan error, 1)
	invoke := func() {
		result <- conn.Invoke(context.Background(), "/test.Service/Call", &emptypb.Empty{}, &emptypb.Empty{})
	}
	go invoke()
	<-running
	drained := make(chan error, 1)
	go func() { drained <- g.Drain() }()
	for ; ; time.Sleep(time.Millisecond) { // until no further connection is accepted
		conn, err := net.Dial("tcp", g.Addr().String())
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	close(release)
	if err := <-result; err != nil {
		t.Errorf("the running call: %v", err)
	}
	if err := <-drained; err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}

	running, release = make(chan struct{}), make(chan struct{})
	g, conn, _ = start(t, GRPCOptions{GracePeriod: time.Millisecond}, metrics.NewSet(), call)
	go invoke()
	<-running
	if err := g.Drain(); err == nil || !strings.Contains(err.Error(), "still running after 1ms") {
		t.Errorf("%v", err)
	}
	if err := <-result; err == nil {
		t.Error("the call that was cut off succeeded")
	}

	running, release = make(chan struct{}), make(chan struct{})
	g, conn, _ = start(t, GRPCOptions{GracePeriod: -1}, metrics.NewSet(), call)
	go invoke()
	<-running
	if err := g.Drain(); err != nil {
		t.Errorf("without a grace period: %v", err)
	}
	if err := <-result; err == nil {
		t.Error("without a grace period the call succeeded")
	}
}

func TestServer_DrainWithoutServe(t *testing.T) {
	g, err := NewGRPC(GRPCOptions{ListenAddress: "127.0.0.1:0"}, nil, slog.New(slog.DiscardHandler), metrics.NewSet(), func(grpc.ServiceRegistrar) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Drain(); err != nil {
		t.Error(err)
	}
	if err := g.Serve(); err != nil {
		t.Errorf("Serve after Drain: %v", err)
	}
}

func TestServer_NilIsAProcessWithoutGRPC(t *testing.T) {
	g, err := NewGRPC(GRPCOptions{}, nil, slog.New(slog.DiscardHandler), metrics.NewSet(), nil)
	if g != nil || err != nil {
		t.Fatal(g, err)
	}
	g.Ready()
	g.Stopping()
	if g.Addr() != nil || g.Serve() != nil || g.Drain() != nil {
		t.Error("a process without gRPC has a server")
	}
}

func TestNewGRPC_ReportsAnAddressInUse(t *testing.T) {
	g, _, _ := start(t, GRPCOptions{}, metrics.NewSet(), func(grpc.ServiceRegistrar) {})
	defer func() { _ = g.Drain() }()
	address := g.Addr().String()
	if _, err := NewGRPC(GRPCOptions{ListenAddress: address}, nil, slog.New(slog.DiscardHandler), metrics.NewSet(), func(grpc.ServiceRegistrar) {}); err == nil || !strings.Contains(err.Error(), address) {
		t.Errorf("%v", err)
	}
	if _, err := NewGRPC(GRPCOptions{ListenAddress: "127.0.0.1:0", TLS: ServerTLS{Cert: "/none"}}, nil, slog.New(slog.DiscardHandler), metrics.NewSet(), nil); err == nil || !strings.Contains(err.Error(), "--grpc-server-tls-*: certificate and key") {
		t.Errorf("%v", err)
	}
}

func TestOptions_CheckAnonymousComparesWithTheHTTPServer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	if err := os.WriteFile(file, []byte("basic_auth_users: {eve: $2y$10$abc}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	protected := WebOptions{ConfigFile: file}
	for _, tt := range []struct {
		grpc GRPCOptions
		web  WebOptions
		ok   bool
	}{
		{GRPCOptions{ListenAddress: "0.0.0.0:1"}, protected, false},
		{GRPCOptions{ListenAddress: "0.0.0.0:1"}, WebOptions{}, true},
		{GRPCOptions{ListenAddress: "127.0.0.1:1"}, protected, true},
		{GRPCOptions{ListenAddress: "0.0.0.0:1", TLS: ServerTLS{ClientCA: "ca"}}, protected, true},
		{GRPCOptions{}, protected, true},
	} {
		if err := tt.grpc.CheckAnonymous(tt.web); (err == nil) != tt.ok {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

func TestServer_SilentConnectionsDoNotBlockOthers(t *testing.T) {
	g, conn, served := start(t, GRPCOptions{ConnectionsMax: 2, ConnectTimeout: 100 * time.Millisecond}, metrics.NewSet(), func(grpc.ServiceRegistrar) {})
	for _, sent := range []string{"", "PRI * HTTP/2.0"} { // nothing, and a part of the HTTP/2 preface
		c, err := net.Dial("tcp", g.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Write([]byte(sent)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("next to two silent connections of two allowed: %v", err)
	}
	if err := g.Drain(); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// failing are credentials whose handshakes fail.
type failing struct {
	credentials.TransportCredentials
	err error
}

func (f failing) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, f.err
}

func TestLoggedTLS_AFailedHandshakeIsALineAndAProbeIsNot(t *testing.T) {
	var out bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&out, nil))
	ours, theirs := net.Pipe()
	defer func() { _, _ = ours.Close(), theirs.Close() }()
	for _, err := range []error{io.EOF, errors.New("bad certificate")} {
		if _, _, got := newLoggedTLS(failing{err: err}, logger).ServerHandshake(ours); !errors.Is(got, err) {
			t.Errorf("%v, want %v", got, err)
		}
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 1 || !strings.Contains(lines[0], `client=pipe err="bad certificate"`) {
		t.Errorf("%q", lines)
	}
}
