package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/metrics"
)

// GRPCOptions configure the gRPC server of a process. Zero limits take the defaults.
type GRPCOptions struct {
	ListenAddress string // host:port; port 0 picks a free port; "": no gRPC server

	TLS ServerTLS

	// AllowAnonymous accepts clients without a certificate on an address that is not
	// loopback, although the HTTP server requires a password or a client certificate.
	AllowAnonymous bool

	MaxConnectionAge time.Duration // after it the server sends GOAWAY and clients reconnect; 0: never
	GracePeriod      time.Duration // for running calls at shutdown; 0: 30 s, negative: they are cut at once
	ConnectionsMax   int           // further connections wait; 0: 512
	ConnectTimeout   time.Duration // for TLS and the HTTP/2 preface of a new connection; 0: 10 s
	RequestBytesMax  int           // of one received message; 0: 32 MiB
	ReceiveTimeout   time.Duration // from the start of a call until its message is complete; 0: 30 s
	// budget of messages that are received slowly, each counted as RequestBytesMax; 0: 256 MiB
	ReceiveBytesMax int64

	Span Span // of a call that the server handles; nil: calls have none

	receiveSoon time.Duration // a message that takes longer is slow; 0: 3 s
}

func (o GRPCOptions) withDefaults() GRPCOptions {
	o.GracePeriod = cmp.Or(o.GracePeriod, 30*time.Second)
	o.ConnectionsMax = cmp.Or(o.ConnectionsMax, 512)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.RequestBytesMax = cmp.Or(o.RequestBytesMax, 32<<20)
	o.ReceiveTimeout = cmp.Or(o.ReceiveTimeout, 30*time.Second)
	o.ReceiveBytesMax = cmp.Or(o.ReceiveBytesMax, 256<<20)
	o.receiveSoon = cmp.Or(o.receiveSoon, min(3*time.Second, o.ReceiveTimeout))
	return o
}

// CheckAnonymous returns an error if the gRPC server would accept every client while
// the HTTP server authenticates its clients.
func (o GRPCOptions) CheckAnonymous(web WebOptions) error {
	if o.ListenAddress == "" || o.TLS.ClientCA != "" || IsLoopback(o.ListenAddress) || !web.Security().Clients {
		return nil
	}
	return fmt.Errorf("the gRPC server on %s would accept every client, while %s requires a password or a client "+
		"certificate: set --grpc-server-tls-client-ca, listen on a loopback address, or disable gRPC with --grpc-address=",
		o.ListenAddress, web.ConfigFile)
}

// streamsMax limits the concurrent calls of a connection. Further calls wait.
const streamsMax = 1000

// keepaliveTime is how long a connection may be idle before the server pings the client.
const keepaliveTime = 2 * time.Minute

// GRPC is a listening gRPC server with the health and reflection services. Its health
// status is NOT_SERVING until Ready is called. A nil *GRPC is a process without gRPC: its
// methods do nothing.
type GRPC struct {
	opts     GRPCOptions
	listener net.Listener
	server   *grpc.Server
	health   *health.Server
	receiver *receiver
	logger   *slog.Logger
}

// windowBytes is the HTTP/2 window: the number of bytes that a client may send before the
// server reads them. Requests are small. With a fixed window gRPC does not estimate the
// bandwidth, which could raise the window of each stream to megabytes.
const windowBytes = 64 << 10

// NewGRPC listens and registers services, but accepts no connection until Serve is called.
// extra are further options of grpc.NewServer. NewGRPC returns nil if there is no listen address.
func NewGRPC(opts GRPCOptions, extra []grpc.ServerOption, logger *slog.Logger, set *metrics.Set,
	register func(grpc.ServiceRegistrar)) (*GRPC, error) {
	if opts.ListenAddress == "" {
		return nil, nil
	}
	opts = opts.withDefaults()
	g := &GRPC{opts: opts, health: health.NewServer(), logger: logger.With("component", "grpc")}
	g.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	calls := newCallMetrics(set, opts.Span, g.logger)
	options := append(slices.Clone(extra),
		grpc.ConnectionTimeout(opts.ConnectTimeout),
		grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(windowBytes),
		grpc.MaxRecvMsgSize(opts.RequestBytesMax), grpc.MaxSendMsgSize(1<<31-1), grpc.MaxConcurrentStreams(streamsMax),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: opts.MaxConnectionAge, Time: keepaliveTime,
			Timeout: keepaliveTime / 4}),
		grpc.UnaryInterceptor(calls.unary), grpc.StreamInterceptor(calls.stream),
	)
	config, err := opts.TLS.Config()
	if err != nil {
		return nil, hint.Invalid("grpc-server-tls-*", err)
	}
	if config != nil {
		options = append(options, grpc.Creds(newLoggedTLS(credentials.NewTLS(config), g.logger)))
	}
	l, err := net.Listen("tcp", opts.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for gRPC: %w", opts.ListenAddress, err)
	}
	g.listener, g.server = netutil.LimitListener(l, opts.ConnectionsMax), grpc.NewServer(options...)
	g.receiver = newReceiver(opts, set, calls)
	services := registrar{g.server, g.receiver}
	register(services)
	healthpb.RegisterHealthServer(services, g.health)
	reflection.Register(services)
	return g, nil
}

// Addr returns the listen address; nil without a server.
func (g *GRPC) Addr() net.Addr {
	if g == nil {
		return nil
	}
	return g.listener.Addr()
}

// Serve accepts connections until Drain is called.
func (g *GRPC) Serve() error {
	if g == nil {
		return nil
	}
	g.logger.Info("Listening for gRPC", "address", g.listener.Addr().String(), "tls", g.opts.TLS.Cert != "")
	if err := g.server.Serve(g.listener); !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil // drained before it served
}

// Ready sets the health status to SERVING.
func (g *GRPC) Ready() {
	if g != nil {
		g.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	}
}

// Stopping sets the health status to NOT_SERVING for good, so that clients choose
// another server.
func (g *GRPC) Stopping() {
	if g != nil {
		g.health.Shutdown()
	}
}

// Drain waits for running calls, for GracePeriod at most. It may be called without
// Serve.
func (g *GRPC) Drain() error {
	if g == nil {
		return nil
	}
	g.Stopping()
	drained := make(chan struct{})
	go func() { defer close(drained); g.server.GracefulStop() }()
	timer := time.NewTimer(g.opts.GracePeriod)
	defer timer.Stop()
	var err error
	select {
	case <-drained:
	case <-timer.C:
		if g.opts.GracePeriod > 0 {
			err = fmt.Errorf("gRPC calls were still running after %s", g.opts.GracePeriod)
		}
		g.server.Stop()
		<-drained
	}
	_ = g.listener.Close() // GracefulStop closes it only if Serve was called
	return err
}

// callMetrics counts calls under the metric names of go-grpc-middleware. It recovers
// panics and returns them as the error of the call.
type callMetrics struct {
	callFamilies
	panics [2]*metrics.Counter // under Thanos' name and ferula's
	span   Span
	logger *slog.Logger
}

func newCallMetrics(set *metrics.Set, span Span, logger *slog.Logger) *callMetrics {
	return &callMetrics{
		callFamilies: newCallFamilies(set, "server", seconds[:14]),
		panics: [2]*metrics.Counter{process.Counter(set, "grpc_req_panics_recovered_total",
			"Total number of gRPC requests recovered from internal panic."), process.Panics(set, "grpc")},
		span:   span.orNone(),
		logger: logger,
	}
}

func (m *callMetrics) instrument(ctx context.Context, kind, method string,
	call func(context.Context) error) (err error) {
	c := m.begin(kind, method)
	ctx, c.endSpan = m.span(ctx, method)
	defer func() {
		if p := recover(); p != nil {
			err = m.panicked(method, p)
		}
		if code := status.Code(err); code == codes.Internal || code == codes.DataLoss || code == codes.Unknown {
			m.logger.Error("A gRPC call failed", "method", method, "err", err)
		}
		c.ended(err)
	}()
	return call(ctx)
}

// panicked counts and logs a panic, and returns the error of its call.
func (m *callMetrics) panicked(method string, p any) error {
	for _, counter := range m.panics {
		counter.Inc()
	}
	m.logger.Error("A gRPC call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
	return status.Errorf(codes.Internal, "panic: %v", p)
}

func (m *callMetrics) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (out any, err error) {
	err = m.instrument(ctx, "unary", info.FullMethod, func(ctx context.Context) (err error) {
		out, err = handler(ctx, in)
		return err
	})
	return out, err
}

func (m *callMetrics) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo,
	handler grpc.StreamHandler) error {
	return m.instrument(stream.Context(), "server_stream", info.FullMethod, func(ctx context.Context) error {
		return handler(srv, servedStream{stream, ctx})
	})
}

// servedStream is a stream in the context of its call.
type servedStream struct {
	grpc.ServerStream
	ctx context.Context // required by the interface
}

// Context implements grpc.ServerStream.
func (s servedStream) Context() context.Context { return s.ctx }

// handshakeLogInterval is the least time between two lines about failed handshakes: a
// client that is refused reconnects, and a scanner connects all the time.
const handshakeLogInterval = time.Second

// loggedTLS are credentials that log failed handshakes. gRPC reports these only to its own
// log, which is not written, so the server would log nothing about a rejected client.
type loggedTLS struct {
	credentials.TransportCredentials
	logger *slog.Logger
}

func newLoggedTLS(of credentials.TransportCredentials, logger *slog.Logger) loggedTLS {
	return loggedTLS{of, slog.New(process.ThinLog(logger.Handler(), 1, handshakeLogInterval, time.Now))}
}

// ServerHandshake implements credentials.TransportCredentials.
func (l loggedTLS) ServerHandshake(conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := l.TransportCredentials.ServerHandshake(conn)
	switch client := conn.RemoteAddr().String(); {
	case errors.Is(err, io.EOF): // a probe that only connects
		l.logger.Debug("A client disconnected before its TLS handshake", "client", client)
	case err != nil:
		l.logger.Warn("The TLS handshake of a client failed", "client", client, "err", err)
	}
	return secure, info, err
}

func (l loggedTLS) Clone() credentials.TransportCredentials {
	return loggedTLS{l.TransportCredentials.Clone(), l.logger}
}
