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

// WebOptions configure the HTTP server of any role.
type WebOptions struct {
	ListenAddress   string        // host:port; port 0 picks a free port
	MoreAddresses   []string      // further listen addresses; URLs and Addr use ListenAddress
	ConfigFile      string        // TLS and basic authentication, in exporter-toolkit's format
	ExternalURL     string        // URL by which users reach the server; "": derived from the listen address
	RoutePrefix     string        // path prefix of every route; "": that of ExternalURL
	CORSOrigin      string        // anchored regular expression of allowed origins; "": all
	EnableLifecycle bool          // enable POST /-/reload and /-/quit
	MaxConnections  int           // over all listen addresses, further connections wait; 0: 512, negative: no limit
	ReadTimeout     time.Duration // for headers and body of a request; 0: 5 minutes
	DrainTimeout    time.Duration // for running requests at shutdown; 0: 30 s
	CommandLine     []string      // as returned by /debug/pprof/cmdline; nil: the program's name only
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

// listenerSet holds the listeners of one web server. Accept and Addr are those of the
// first.
type listenerSet struct {
	net.Listener
	all []net.Listener
}

// Close implements net.Listener.
func (l *listenerSet) Close() error {
	var errs []error
	for _, one := range l.all {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// listen validates the web configuration and listens on all addresses.
func (o WebOptions) listen() (net.Listener, error) {
	if err := web.Validate(o.ConfigFile); err != nil {
		return nil, fmt.Errorf("web configuration %s: %w", o.ConfigFile, err)
	}
	l := &listenerSet{}
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

// scheme returns the scheme of the server's URLs.
func (o WebOptions) scheme() string {
	if o.security().tls {
		return "https"
	}
	return "http"
}

// security describes the TLS and authentication settings of a web configuration.
type security struct {
	tls     bool
	clients bool // clients are authenticated by a password or a certificate
}

// security reads the web configuration. It ignores errors, which listen returns.
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
	content, err := os.ReadFile(o.ConfigFile)
	if err != nil || yaml.Unmarshal(content, &file) != nil {
		return security{}
	}
	found := security{tls: file.TLS != nil, clients: len(file.Users) > 0}
	if file.TLS != nil && (file.TLS.ClientAuth == "RequireAndVerifyClientCert" || file.TLS.ClientAuth == "RequireAnyClientCert") {
		found.clients = true
	}
	return found
}

// server creates the server for serve and drain.
func (o WebOptions) server(handler http.Handler, logger *slog.Logger) *http.Server {
	var protocols *http.Protocols
	if o.ConfigFile == "" { // allow HTTP/2 without TLS, for gRPC; with TLS, the configuration file sets http2
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

// serve serves requests until the server is shut down.
func (o WebOptions) serve(listener net.Listener, server *http.Server, logger *slog.Logger) error {
	all := []net.Listener{listener}
	if l, ok := listener.(*listenerSet); ok {
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

// limitListener limits the connections of several listeners that share the channel
// connections. A slot is taken after a connection is accepted, so that a listener without
// clients holds none.
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

// drain waits for running requests, for DrainTimeout at most.
func (o WebOptions) drain(server *http.Server) error {
	ctx, done := context.WithTimeout(context.Background(), o.DrainTimeout)
	defer done()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
		return fmt.Errorf("requests were still running after %s: %w", o.DrainTimeout, err)
	}
	return nil
}

// readiness is the readiness state of a process.
type readiness struct {
	state atomic.Int32
	note  func() string // further lines of the readiness response; set before serving, may be nil
}

const (
	stateNotReady int32 = iota
	stateReady
	stateStopping
)

func (g *readiness) ready()        { g.state.CompareAndSwap(stateNotReady, stateReady) }
func (g *readiness) waiting()      { g.state.CompareAndSwap(stateReady, stateNotReady) }
func (g *readiness) stopping()     { g.state.Store(stateStopping) }
func (g *readiness) isReady() bool { return g.state.Load() == stateReady }

// wrap responds with status 503 unless the process is ready.
func (g *readiness) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch g.state.Load() {
		case stateReady:
			next.ServeHTTP(w, r)
		case stateStopping:
			w.Header().Set("X-Prometheus-Stopping", "true")
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
		default:
			w.Header().Set("X-Prometheus-Stopping", "false")
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
		}
	})
}

// registerDebugEndpoints adds the endpoints for health, readiness and pprof.
func (o WebOptions) registerDebugEndpoints(mux *http.ServeMux, prefix string, g *readiness) {
	mux.HandleFunc("GET "+prefix+"/-/healthy", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ferula is healthy.\n") })
	mux.Handle("GET "+prefix+"/-/ready", g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body := "ferula is ready.\n"
		if g.note != nil {
			body += g.note()
		}
		writeText(w, body)
	})))
	mux.HandleFunc(prefix+"/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = r.URL.Path[len(prefix):] // pprof.Index reads the profile's name from the path
		pprof.Index(w, r)
	})
	mux.HandleFunc(prefix+"/debug/pprof/cmdline", o.cmdline)
	mux.HandleFunc(prefix+"/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc(prefix+"/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc(prefix+"/debug/pprof/trace", pprof.Trace)
}

// cmdline is pprof.Cmdline without the secrets that flags may contain. Arguments are
// separated by NUL.
func (o WebOptions) cmdline(w http.ResponseWriter, _ *http.Request) {
	args := o.CommandLine
	if args == nil {
		args = os.Args[:1]
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeText(w, strings.Join(args, "\x00"))
}

// parseURL is url.Parse with an error that does not contain the URL, which may include
// a password.
func parseURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	var parsing *url.Error
	if errors.As(err, &parsing) {
		err = parsing.Err
	}
	return u, err
}

// redactedURL replaces the password of a URL for logs and errors.
func redactedURL(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err == nil:
		return u.Redacted()
	case strings.Contains(raw, "@"):
		return "<secret>"
	}
	return raw
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // fails only if the client has disconnected
}
