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
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"
)

// WebOptions are about the HTTP side of any role.
type WebOptions struct {
	ListenAddress   string        // host:port; port 0 takes a free one
	ConfigFile      string        // TLS and basic authentication, exporter-toolkit's format
	ExternalURL     string        // where users reach the server; "" derives it from the address
	RoutePrefix     string        // path before every route; "" takes the external URL's
	CORSOrigin      string        // regular expression of allowed origins; "" allows every one
	EnableLifecycle bool          // POST /-/reload and /-/quit
	MaxConnections  int           // further ones wait; 0: 512, negative: no limit
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

// listen checks the web configuration and takes the address.
func (o WebOptions) listen() (net.Listener, error) {
	if err := web.Validate(o.ConfigFile); err != nil {
		return nil, fmt.Errorf("web configuration %s: %w", o.ConfigFile, err)
	}
	l, err := net.Listen("tcp", o.ListenAddress)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", o.ListenAddress, err)
	}
	return l, nil
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
	addresses, systemd := []string{listener.Addr().String()}, false
	if o.MaxConnections > 0 {
		listener = netutil.LimitListener(listener, o.MaxConnections)
	}
	err := web.ServeMultiple([]net.Listener{listener}, server, &web.FlagConfig{
		WebListenAddresses: &addresses,
		WebSystemdSocket:   &systemd,
		WebConfigFile:      &o.ConfigFile,
	}, logger.With("component", "web"))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
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
