package role

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
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

	"github.com/ferula-io/ferula/internal/wire/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// GRPCOptions configure the gRPC server of any role. Zero limits take the defaults.
type GRPCOptions struct {
	ListenAddress string // host:port; port 0 picks a free port; "": no gRPC server

	TLSCert, TLSKey string   // files; both or none
	TLSClientCA     string   // file; clients must present a certificate signed by this CA
	TLSMinVersion   string   // 1.0 to 1.3; "": 1.3
	TLSCiphers      []string // names as in package crypto/tls; none: Go's defaults
	TLSCurves       []string

	// AllowAnonymous accepts clients without a certificate on an address that is not
	// loopback, although the HTTP server requires a password or a client certificate.
	AllowAnonymous bool

	MaxConnectionAge time.Duration // after it the server sends GOAWAY and clients reconnect; 0: never
	GracePeriod      time.Duration // for running calls at shutdown; 0: 30 s
	ConnectionsMax   int           // further connections wait; 0: 512
	StreamsMax       uint32        // concurrent calls per connection, further calls wait; 0: 1000
	RequestBytesMax  int           // of one received message; 0: 32 MiB
}

func (o GRPCOptions) withDefaults() GRPCOptions {
	if o.TLSMinVersion == "" {
		o.TLSMinVersion = "1.3"
	}
	if o.GracePeriod == 0 {
		o.GracePeriod = 30 * time.Second
	}
	if o.ConnectionsMax == 0 {
		o.ConnectionsMax = 512
	}
	if o.StreamsMax == 0 {
		o.StreamsMax = 1000
	}
	if o.RequestBytesMax == 0 {
		o.RequestBytesMax = 32 << 20
	}
	return o
}

// checkAnonymous returns an error if the gRPC server would accept every client while
// the HTTP server authenticates its clients.
func (o GRPCOptions) checkAnonymous(web WebOptions) error {
	if o.ListenAddress == "" || o.TLSClientCA != "" || isLoopback(o.ListenAddress) || !web.security().clients {
		return nil
	}
	return fmt.Errorf("the gRPC server on %s would accept every client, while %s requires a password or a client certificate: set --grpc-server-tls-client-ca, listen on a loopback address, or disable gRPC with --grpc-address=", o.ListenAddress, web.ConfigFile)
}

// warnAnonymous logs the error of checkAnonymous as a warning. Thanos deployments
// commonly run gRPC without client certificates, so that an error would break them.
func (o GRPCOptions) warnAnonymous(web WebOptions, logger *slog.Logger) {
	if err := o.checkAnonymous(web); err != nil {
		logger.Warn("The gRPC server accepts clients that the HTTP server rejects", "reason", err)
	}
}

// isLoopback reports whether an address is reachable from this machine only.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false // net.Listen returns the error
	}
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

// keepaliveTime is how long a connection may be idle before the server pings the client.
const keepaliveTime = 2 * time.Minute

// grpcServer is a listening gRPC server with the health and reflection services. Its
// health status is NOT_SERVING until ready is called.
type grpcServer struct {
	opts     GRPCOptions
	listener net.Listener
	server   *grpc.Server
	health   *health.Server
	logger   *slog.Logger
}

// newGRPCServer listens and registers services, but accepts no connection until serve
// is called. It returns nil if there is no listen address.
func newGRPCServer(opts GRPCOptions, logger *slog.Logger, reg *registry, register func(*grpc.Server)) (*grpcServer, error) {
	if opts.ListenAddress == "" {
		return nil, nil
	}
	opts = opts.withDefaults()
	storeapi.RegisterSnappy()
	g := &grpcServer{opts: opts, health: health.NewServer(), logger: logger.With("component", "grpc")}
	g.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	calls := newCallMetrics(reg, g.logger)
	options := append(storeapi.GRPCServerOptions(),
		grpc.MaxRecvMsgSize(opts.RequestBytesMax), grpc.MaxSendMsgSize(1<<31-1), grpc.MaxConcurrentStreams(opts.StreamsMax),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionAge: opts.MaxConnectionAge, Time: keepaliveTime, Timeout: keepaliveTime / 4}),
		grpc.UnaryInterceptor(calls.unary), grpc.StreamInterceptor(calls.stream),
	)
	config, err := opts.tls()
	if err != nil {
		return nil, fmt.Errorf("gRPC server: %w", err)
	}
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	l, err := net.Listen("tcp", opts.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("listen on %s for gRPC: %w", opts.ListenAddress, err)
	}
	g.listener, g.server = netutil.LimitListener(l, opts.ConnectionsMax), grpc.NewServer(options...)
	register(g.server)
	healthpb.RegisterHealthServer(g.server, g.health)
	reflection.Register(g.server)
	return g, nil
}

// addr returns the listen address; nil without a server.
func (g *grpcServer) addr() net.Addr {
	if g == nil {
		return nil
	}
	return g.listener.Addr()
}

// serve accepts connections until drain is called.
func (g *grpcServer) serve() error {
	if g == nil {
		return nil
	}
	g.logger.Info("Listening for gRPC", "address", g.listener.Addr().String(), "tls", g.opts.TLSCert != "")
	return g.server.Serve(g.listener)
}

// ready sets the health status to SERVING.
func (g *grpcServer) ready() {
	if g != nil {
		g.health.SetServingStatus("", healthpb.HealthCheckResponse_SERVING)
	}
}

// stopping sets the health status to NOT_SERVING for good, so that clients choose
// another server.
func (g *grpcServer) stopping() {
	if g != nil {
		g.health.Shutdown()
	}
}

// drain waits for running calls, for GracePeriod at most. It may be called without
// serve.
func (g *grpcServer) drain() error {
	if g == nil {
		return nil
	}
	g.stopping()
	drained := make(chan struct{})
	go func() { defer close(drained); g.server.GracefulStop() }()
	timer := time.NewTimer(g.opts.GracePeriod)
	defer timer.Stop()
	var err error
	select {
	case <-drained:
	case <-timer.C:
		err = fmt.Errorf("gRPC calls were still running after %s", g.opts.GracePeriod)
		g.server.Stop()
		<-drained
	}
	_ = g.listener.Close() // GracefulStop closes it only if Serve was called
	return err
}

var tlsVersions = map[string]uint16{"1.0": tls.VersionTLS10, "1.1": tls.VersionTLS11, "1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}

var tlsCurves = []tls.CurveID{
	tls.CurveP256, tls.CurveP384, tls.CurveP521, tls.X25519, tls.X25519MLKEM768, tls.SecP256r1MLKEM768, tls.SecP384r1MLKEM1024,
}

// tls builds the server's TLS configuration; nil without a certificate.
func (o GRPCOptions) tls() (*tls.Config, error) {
	if o.TLSCert == "" && o.TLSKey == "" {
		if o.TLSClientCA != "" {
			return nil, errors.New("a client CA also needs a server certificate and key")
		}
		return nil, nil
	}
	if o.TLSCert == "" || o.TLSKey == "" {
		return nil, errors.New("certificate and key must both be set")
	}
	config := &tls.Config{}
	var ok bool
	if config.MinVersion, ok = tlsVersions[o.TLSMinVersion]; !ok {
		return nil, fmt.Errorf("unknown TLS version %q; known are 1.0, 1.1, 1.2, 1.3", o.TLSMinVersion)
	}
	for _, name := range o.TLSCiphers {
		i := slices.IndexFunc(tls.CipherSuites(), func(c *tls.CipherSuite) bool { return c.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown or unsafe TLS cipher suite %q", name)
		}
		config.CipherSuites = append(config.CipherSuites, tls.CipherSuites()[i].ID)
	}
	for _, name := range o.TLSCurves {
		i := slices.IndexFunc(tlsCurves, func(c tls.CurveID) bool { return c.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("unknown TLS curve %q; known are %v", name, tlsCurves)
		}
		config.CurvePreferences = append(config.CurvePreferences, tlsCurves[i])
	}
	pair := &keyPair{certFile: o.TLSCert, keyFile: o.TLSKey}
	if _, err := pair.get(); err != nil {
		return nil, err
	}
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.get() }
	if o.TLSClientCA != "" {
		var err error
		if config.ClientCAs, err = readCA(o.TLSClientCA); err != nil {
			return nil, err
		}
		config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return config, nil
}

func readCA(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("CA %s: contains no certificate", file)
	}
	return pool, nil
}

// keyPair is a certificate and its key. get reads the files again when the
// modification time of one of them has changed.
type keyPair struct {
	certFile, keyFile string

	mu            sync.Mutex
	certAt, keyAt time.Time
	pair          *tls.Certificate
}

func (k *keyPair) get() (*tls.Certificate, error) {
	cert, err := os.Stat(k.certFile)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	key, err := os.Stat(k.keyFile)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pair != nil && cert.ModTime().Equal(k.certAt) && key.ModTime().Equal(k.keyAt) {
		return k.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return nil, fmt.Errorf("certificate %s: %w", k.certFile, err)
	}
	k.pair, k.certAt, k.keyAt = &pair, cert.ModTime(), key.ModTime()
	return k.pair, nil
}

// callMetrics counts calls under the metric names of go-grpc-middleware. It recovers
// panics and returns them as the error of the call.
type callMetrics struct {
	started, handled *metrics.CounterVec
	panics           *metrics.Counter
	logger           *slog.Logger
}

func newCallMetrics(reg *registry, logger *slog.Logger) *callMetrics {
	return &callMetrics{
		started: reg.own.NewCounterVec("grpc_server_started_total", "Total number of RPCs started on the server.",
			"grpc_method", "grpc_service", "grpc_type"),
		handled: reg.own.NewCounterVec("grpc_server_handled_total", "Total number of RPCs completed on the server, regardless of success or failure.",
			"grpc_code", "grpc_method", "grpc_service", "grpc_type"),
		panics: reg.counter("grpc_req_panics_recovered_total", "Total number of gRPC requests recovered from internal panic."),
		logger: logger,
	}
}

func (m *callMetrics) instrument(kind, method string, call func() error) (err error) {
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	m.started.With(name, service, kind).Inc()
	defer func() {
		if p := recover(); p != nil {
			m.panics.Inc()
			m.logger.Error("A gRPC call panicked", "method", method, "panic", p, "stack", string(debug.Stack()))
			err = status.Errorf(codes.Internal, "panic: %v", p)
		}
		code := status.Code(err)
		if code == codes.Internal || code == codes.DataLoss || code == codes.Unknown {
			m.logger.Error("A gRPC call failed", "method", method, "err", err)
		}
		m.handled.With(code.String(), name, service, kind).Inc()
	}()
	return call()
}

func (m *callMetrics) unary(ctx context.Context, in any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (out any, err error) {
	err = m.instrument("unary", info.FullMethod, func() (err error) { out, err = handler(ctx, in); return err })
	return out, err
}

func (m *callMetrics) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return m.instrument("server_stream", info.FullMethod, func() error { return handler(srv, stream) })
}
