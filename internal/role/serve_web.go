package role

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"sync/atomic"

	"github.com/alecthomas/units"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"golang.org/x/net/netutil"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ui"
)

func sizeText(bytes int64) string { return units.Base2Bytes(bytes).String() }

// gate answers 503 until the storage can be read, and again once it stops.
type gate struct{ state atomic.Int32 }

const (
	gateStarting int32 = iota
	gateReady
	gateStopping
)

func (g *gate) ready()        { g.state.CompareAndSwap(gateStarting, gateReady) }
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

// newHandler joins the API, the page and the operational endpoints.
func (s *Serve) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := corsOrigin(s.opts.Web.CORSOrigin)
	if err != nil {
		return nil, err
	}
	// The API has a mux of its own, so that an unknown endpoint or method is
	// answered 404 or 405 and does not fall through to the page.
	endpoints := http.NewServeMux()
	api.New(api.Options{
		Engine:        s.engine,
		Parser:        s.engine.Parser,
		Queryable:     s.store,
		Exemplars:     s.store,
		Targets:       s.scraper.Manager,
		Status:        s.store,
		Gatherer:      s.reg,
		RemoteWrite:   remotewrite.NewHandler(s.opts.Write, s.store, s.opts.Logger.With("component", "remote write"), s.reg),
		Config:        s.config.current,
		Flags:         s.opts.Flags,
		BuildInfo:     buildInfo(),
		RuntimeInfo:   s.runtimeInfo,
		Ready:         s.gate.wrap,
		ExternalURL:   external,
		ListenAddress: s.listener.Addr().String(),
		CORSOrigin:    origin,
		Logger:        s.opts.Logger.With("component", "api"),
		Registerer:    s.reg,
	}).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	mux.Handle(prefix+"/api/", endpoints)
	mux.Handle("GET "+prefix+"/metrics", promhttp.InstrumentMetricHandler(s.reg, promhttp.HandlerFor(s.reg, promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		ErrorLog:            slog.NewLogLogger(s.opts.Logger.Handler(), slog.LevelError),
		ErrorHandling:       promhttp.ContinueOnError,
		MaxRequestsInFlight: 16,
	})))
	s.operational(mux, prefix)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
	}
	return mux, nil
}

// operational adds health, readiness, profiling and, if enabled, lifecycle.
func (s *Serve) operational(mux *http.ServeMux, prefix string) {
	healthy := func(w http.ResponseWriter, _ *http.Request) { say(w, "ferula is healthy.\n") }
	mux.HandleFunc("GET "+prefix+"/-/healthy", healthy)
	mux.Handle("GET "+prefix+"/-/ready", s.gate.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "ferula is ready.\n") })))
	for _, method := range []string{"POST ", "PUT "} {
		mux.HandleFunc(method+prefix+"/-/reload", s.lifecycle(s.config.reload))
		mux.HandleFunc(method+prefix+"/-/quit", s.lifecycle(func() error { s.quit(); return nil }))
	}
	mux.HandleFunc(prefix+"/debug/pprof/", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = r.URL.Path[len(prefix):] // pprof.Index knows its names by the path
		pprof.Index(w, r)
	})
	mux.HandleFunc(prefix+"/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc(prefix+"/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc(prefix+"/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc(prefix+"/debug/pprof/trace", pprof.Trace)
}

func say(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // the asker has gone if it fails
}

// lifecycle runs an action of /-/ if the operator allowed it.
func (s *Serve) lifecycle(act func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if !s.opts.Web.EnableLifecycle {
			http.Error(w, "Lifecycle API is not enabled.", http.StatusForbidden)
			return
		}
		if !s.gate.isReady() {
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
			return
		}
		if err := act(); err != nil {
			http.Error(w, "failed to reload config: "+err.Error(), http.StatusInternalServerError)
		}
	}
}

func (s *Serve) newServer() *http.Server {
	return &http.Server{
		Handler:           s.handler,
		ReadTimeout:       s.opts.Web.ReadTimeout,
		ReadHeaderTimeout: s.opts.Web.ReadTimeout,
		IdleTimeout:       s.opts.Web.ReadTimeout,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          slog.NewLogLogger(s.opts.Logger.With("component", "web").Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return context.Background() },
	}
}

func (s *Serve) serveHTTP(server *http.Server) error {
	limited := netutil.LimitListener(s.listener, s.opts.Web.MaxConnections)
	addresses, systemd := []string{s.listener.Addr().String()}, false
	err := web.ServeMultiple([]net.Listener{limited}, server, &web.FlagConfig{
		WebListenAddresses: &addresses,
		WebSystemdSocket:   &systemd,
		WebConfigFile:      &s.opts.Web.ConfigFile,
	}, s.opts.Logger.With("component", "web"))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
