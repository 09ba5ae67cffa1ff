// Package server has the HTTP server and the gRPC server of a process: listeners, limits, TLS and authentication,
// drain, debug endpoints, health, the metrics of calls, and the checks of where a request comes from. It also has the
// TLS settings and the metrics of clients.
package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
)

// WebOptions configure the HTTP server of a process.
type WebOptions struct {
	ListenAddress string   // host:port; port 0 picks a free port
	MoreAddresses []string // further listen addresses; URLs and Addr use ListenAddress
	ConfigFile    string   // TLS and basic authentication, in exporter-toolkit's format
	ConfigFlag    string   // the flag of ConfigFile, for errors, without dashes; "": none
	ExternalURL   string   // URL by which users reach the server; "": derived from the listen address
	RoutePrefix   string   // path prefix of every route; "": the path of ExternalURL
	CORSOrigin    string   // anchored regular expression of allowed origins; "": all
	// accepted in the header Host; none: checked only if all addresses are loopback; AnyHost: not checked
	AllowedHosts    []string
	EnableLifecycle bool // enable POST /-/reload and /-/quit
	// over all listen addresses; beyond it a connection replaces an idle one, or waits; 0: 512, negative: no limit
	MaxConnections int
	ReadTimeout    time.Duration // for headers and body of a request, and between two requests; 0: 5 minutes
	DrainTimeout   time.Duration // for running requests at shutdown; 0: 30 s, negative: they are cut at once
	CommandLine    []string      // as returned by /debug/pprof/cmdline; nil: the program's name only
}

// headerTimeout is how long a client may take for a TLS handshake or the headers of a
// request: connections without a request must not fill MaxConnections for long.
const headerTimeout = 10 * time.Second

// WithDefaults returns the options with defaults for zero values.
func (o WebOptions) WithDefaults() WebOptions {
	o.MaxConnections = cmp.Or(o.MaxConnections, 512)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 5*time.Minute)
	o.DrainTimeout = cmp.Or(o.DrainTimeout, 30*time.Second)
	return o
}

// Listeners are the listeners of one HTTP server.
type Listeners []net.Listener

// Close closes all of them.
func (l Listeners) Close() error {
	var errs []error
	for _, one := range l {
		errs = append(errs, one.Close())
	}
	return errors.Join(errs...)
}

// Listen validates the web configuration and listens on all addresses.
func (o WebOptions) Listen() (all Listeners, err error) {
	if err = web.Validate(o.ConfigFile); err != nil {
		err = fmt.Errorf("web configuration %s: %w", o.ConfigFile, err)
		if o.ConfigFlag != "" {
			err = hint.Invalid(o.ConfigFlag, err)
		}
		return nil, err
	}
	for _, address := range append([]string{o.ListenAddress}, o.MoreAddresses...) {
		one, err := net.Listen("tcp", address)
		if err != nil {
			_ = all.Close()
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// Scheme returns the scheme of the server's URLs.
func (o WebOptions) Scheme() string {
	if o.Security().TLS {
		return "https"
	}
	return "http"
}

// Security describes the TLS and authentication settings of a web configuration.
type Security struct {
	TLS               bool
	Clients           bool   // clients are authenticated by a password or a certificate
	CertFile, KeyFile string // "": none, or in the configuration itself
}

// Security reads the web configuration. It ignores errors, which Listen returns.
func (o WebOptions) Security() Security {
	if o.ConfigFile == "" {
		return Security{}
	}
	var file struct {
		TLS *struct {
			ClientAuth string `yaml:"client_auth_type"`
			CertFile   string `yaml:"cert_file"`
			KeyFile    string `yaml:"key_file"`
		} `yaml:"tls_server_config"`
		Users map[string]string `yaml:"basic_auth_users"`
	}
	content, err := os.ReadFile(o.ConfigFile)
	if err != nil || yaml.Unmarshal(content, &file) != nil {
		return Security{}
	}
	found := Security{TLS: file.TLS != nil, Clients: len(file.Users) > 0}
	if file.TLS != nil && file.TLS.CertFile != "" && file.TLS.KeyFile != "" {
		dir := filepath.Dir(o.ConfigFile)
		found.CertFile = commonconfig.JoinDir(dir, file.TLS.CertFile)
		found.KeyFile = commonconfig.JoinDir(dir, file.TLS.KeyFile)
	}
	if file.TLS != nil && (file.TLS.ClientAuth == "RequireAndVerifyClientCert" ||
		file.TLS.ClientAuth == "RequireAnyClientCert") {
		found.Clients = true
	}
	return found
}

// Server creates the server for Serve and Drain.
func (o WebOptions) Server(handler http.Handler, logger *slog.Logger) *http.Server {
	var protocols *http.Protocols
	if o.ConfigFile == "" { // allow HTTP/2 without TLS, for gRPC; with TLS, the configuration file sets http2
		protocols = new(http.Protocols)
		protocols.SetHTTP1(true)
		protocols.SetUnencryptedHTTP2(true)
	}
	return &http.Server{
		Protocols: protocols,
		Handler: newHostNames(append([]string{o.ListenAddress}, o.MoreAddresses...), o.ExternalURL,
			o.AllowedHosts).wrap(handler),
		ReadTimeout:       o.ReadTimeout,
		ReadHeaderTimeout: min(o.ReadTimeout, headerTimeout),
		IdleTimeout:       o.ReadTimeout,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(logger.With("component", "web").Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.Background() },
	}
}

// Serve serves requests until the server is shut down.
func (o WebOptions) Serve(listeners Listeners, server *http.Server, logger *slog.Logger) error {
	all := slices.Clone(listeners)
	addresses, systemd := make([]string, len(all)), false
	var limit *connLimit
	if o.MaxConnections > 0 {
		limit = newConnLimit(o.MaxConnections)
		server.ConnState = limit.connState
	}
	for i, one := range all {
		addresses[i] = one.Addr().String()
		if limit != nil {
			all[i] = limit.listener(one)
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

// Drain waits for running requests, for DrainTimeout at most.
func (o WebOptions) Drain(server *http.Server) error {
	if o.DrainTimeout < 0 {
		return server.Close()
	}
	ctx, done := context.WithTimeout(context.Background(), o.DrainTimeout)
	defer done()
	if err := server.Shutdown(ctx); err != nil {
		_ = server.Close()
		return fmt.Errorf("requests were still running after %s: %w", o.DrainTimeout, err)
	}
	return nil
}

// RegisterDebugEndpoints adds the endpoints for health, readiness and pprof.
func (o WebOptions) RegisterDebugEndpoints(mux *http.ServeMux, prefix string, g *process.Readiness) {
	mux.HandleFunc("GET "+prefix+"/-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		WriteText(w, "ferula is healthy.\n")
	})
	mux.Handle("GET "+prefix+"/-/ready", g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body := "ferula is ready.\n"
		if g.Note != nil {
			body += g.Note()
		}
		WriteText(w, body)
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
	WriteText(w, strings.Join(args, "\x00"))
}

// WriteText responds with a plain text.
func WriteText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	//lint:ignore gosec the response is plain text, by its content type
	_, _ = io.WriteString(w, text) // fails only if the client has disconnected
}
