package role

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"
)

// WebOptions are about the HTTP side of any role.
type WebOptions struct {
	ListenAddress   string        // host:port; port 0 takes a free one
	MoreAddresses   []string      // listened on too; what is said of the address is of the first
	ConfigFile      string        // TLS and basic authentication, exporter-toolkit's format
	ExternalURL     string        // where users reach the server; "" derives it from the address
	RoutePrefix     string        // path before every route; "" takes the external URL's
	CORSOrigin      string        // regular expression of allowed origins; "" allows every one
	EnableLifecycle bool          // POST /-/reload and /-/quit
	MaxConnections  int           // of all addresses together, further ones wait; 0: 512, negative: no limit
	ReadTimeout     time.Duration // of one request's header and body; 0: 5 minutes
	DrainTimeout    time.Duration // for running requests at the end; 0: 30 s
	CommandLine     []string      // as /debug/pprof/cmdline shows it; nil: the program's name only
}

func (o WebOptions) withDefaults() WebOptions {
	if o.MaxConnections == 0 {
		o.MaxConnections = 512
	}
	if o.ReadTimeout == 0 {
		o.ReadTimeout = 5 * time.Minute
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = 30 * time.Second
	}
	return o
}

// listening is the listeners of one web server. As a listener it is the first.
type listening struct {
	net.Listener
	all []net.Listener
}

// Close implements net.Listener.
func (l *listening) Close() error {
	var errs []error
	for _, one := range l.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// listen checks the web configuration and takes the addresses.
func (o WebOptions) listen() (net.Listener, error) {
	if err := web.Validate(o.ConfigFile); err != nil {
		return nil, fmt.Errorf("web configuration %s: %w", o.ConfigFile, err)
	}
	l := &listening{}
	for _, address := range append([]string{o.ListenAddress}, o.MoreAddresses...) {
		one, err := net.Listen("tcp", address)
		if err != nil {
			_ = l.Close()
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		l.all = append(l.all, one)
	}
	l.Listener = l.all[0]
	return l, nil
}

// scheme is that of the server's URLs.
func (o WebOptions) scheme() string {
	if o.security().tls {
		return "https"
	}
	return "http"
}

// security is what a web configuration wants of clients.
type security struct {
	tls     bool
	clients bool // they have a password or a certificate
}

// security reads the web configuration. Its faults are found by listen.
func (o WebOptions) security() security {
	if o.ConfigFile == "" {
		return security{}
	}
	var file struct {
		TLS *struct {
			ClientAuth string `yaml:"client_auth_type"`
		} `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	text, err := os.ReadFile(o.ConfigFile)
	if err != nil || yaml.Unmarshal(text, &file) != nil {
		return security{}
	}
	found := security{tls: file.TLS != nil, clients: len(file.Users) > 0}
	if file.TLS != nil && (file.TLS.ClientAuth == "RequireAndVerifyClientCert" || file.TLS.ClientAuth == "RequireAnyClientCert") {
		found.clients = true
	}
	return found
}

// server makes what serve and drain work on.
func (o WebOptions) server(handler http.Handler, logger *slog.Logger) *http.Server {
	var protocols *http.Protocols
	if o.ConfigFile == "" { // gRPC without TLS; with it, the configuration says what there is
		protocols = new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Server{
		Protocols:         protocols,
		Handler:           handler,
		ReadTimeout:       o.ReadTimeout,
		ReadHeaderTimeout: o.ReadTimeout,
		IdleTimeout:       o.ReadTimeout,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(logger.With("component", "web").Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.Background() },
	}
}

// serve answers until the server is shut down.
func (o WebOptions) serve(listener net.Listener, server *http.Server, logger *slog.Logger) error {
	all := []net.Listener{listener}
	if l, ok := listener.(*listening); ok {
		all = slices.Clone(l.all)
	}
	addresses, systemd := make([]string, len(all)), false
	connections := make(chan struct{}, max(0, o.MaxConnections))
	for i, one := range all {
		addresses[i] = one.Addr().String()
		if o.MaxConnections > 0 {
			all[i] = &limitListener{Listener: one, connections: connections, closed: make(chan struct{})}
		}
	}
	err := web.ServeMultiple(all, server, &web.FlagConfig{
		WebListenAddresses: &addresses,
		WebSystemdSocket:   &systemd,
		WebConfigFile:      &o.ConfigFile,
	}, logger.With("component", "web"))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// limitListener accepts a connection once there is a slot for it among those of all
// listeners. A listener without a client holds no slot.
type limitListener struct {
	net.Listener
	connections chan struct{}
	closed      chan struct{}
	once        sync.Once
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	select {
	case l.connections <- struct{}{}:
		return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.connections })}, nil
	case <-l.closed:
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
}

// Close implements net.Listener.
func (l *limitListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// drain waits for running requests, as long as it may.
func (o WebOptions) drain(server *http.Server) error {
	ctx, done := context.WithTimeout(context.Background(), o.DrainTimeout)
	defer done()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
		return fmt.Errorf("requests were still running after %s: %w", o.DrainTimeout, err)
	}
	return nil
}

// gate answers 503 until the storage can be read, and again once it stops.
type gate struct {
	state atomic.Int32
	note  func() string // what readiness adds; set before anybody asks, may be nil
}

const (
	gateStarting int32 = iota
	gateReady
	gateStopping
)

func (g *gate) ready()        { g.state.CompareAndSwap(gateStarting, gateReady) }
func (g *gate) waiting()      { g.state.CompareAndSwap(gateReady, gateStarting) }
func (g *gate) stopping()     { g.state.Store(gateStopping) }
func (g *gate) isReady() bool { return g.state.Load() == gateReady }

// wrap lets requests through only while ready.
func (g *gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch g.state.Load() {
		case gateReady:
			next.ServeHTTP(w, r)
		case gateStopping:
			w.Header().Set("X-Prometheus-Stopping", "true")
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
		default:
			w.Header().Set("X-Prometheus-Stopping", "false")
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
		}
	})
}

// operational adds health, readiness and profiling.
func (o WebOptions) operational(mux *http.ServeMux, prefix string, g *gate) {
	mux.HandleFunc("GET "+prefix+"/-/healthy", func(w http.ResponseWriter, _ *http.Request) { say(w, "ferula is healthy.\n") })
	mux.Handle("GET "+prefix+"/-/ready", g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		text := "ferula is ready.\n"
		if g.note != nil {
			text += g.note()
		}
		say(w, text)
	})))
	mux.HandleFunc(prefix+"/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = r.URL.Path[len(prefix):] // pprof.Index knows its names by the path
		pprof.Index(w, r)
	})
	mux.HandleFunc(prefix+"/debug/pprof/cmdline", o.cmdline)
	mux.HandleFunc(prefix+"/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc(prefix+"/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc(prefix+"/debug/pprof/trace", pprof.Trace)
}

// cmdline is pprof's without the secrets that flags may hold. Arguments are separated
// by NUL.
func (o WebOptions) cmdline(w http.ResponseWriter, _ *http.Request) {
	args := o.CommandLine
	if args == nil {
		args = os.Args[:1]
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	say(w, strings.Join(args, "\x00"))
}

// parseURL is url.Parse with an error that does not repeat the URL, which may have a
// password.
func parseURL(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = parsing.Err
	}
	return u, err
}

// redactedURL is a URL as it may be logged: without its password.
func redactedURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err == nil:
		return u.Redacted()
	case strings.Contains(text, "@"):
		return "<secret>"
	}
	return text
}

func say(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the asker has gone if it fails
}
