package role

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/query/exemplar"
	"github.com/ferula-io/ferula/internal/ui"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
)

// newHandler routes requests to the API, the web UI and the debug endpoints.
func (s *Serve) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := corsOrigin(s.opts.Web.CORSOrigin)
	if err != nil {
		return nil, err
	}
	guard := originGuard(external)
	read := s.opts.Read
	read.ExternalLabels = func() labels.Labels { return s.config.current().GlobalConfig.ExternalLabels }
	// The API has its own mux, so that an unknown endpoint or method gets status 404 or
	// 405 instead of the web UI.
	endpoints := http.NewServeMux()
	api.New(api.Options{
		Engine:        s.engine,
		Parser:        s.engine.Parser,
		Queryable:     s.remotes,
		Exemplars:     s.store,
		Flames:        flames{s.profiles, exemplar.New(s.store, s.profiles.engine)},
		FlamesTenant:  s.opts.Profiles.tenantOf(),
		Targets:       s.scraper.Manager,
		Status:        s.store,
		Gatherer:      s.reg,
		RemoteWrite:   s.remoteWrite(guard),
		RemoteRead:    remoteread.NewServer(read, s.remotes, s.opts.Logger.With("component", "remote read"), s.reg.own),
		Config:        s.config.current,
		Flags:         s.opts.Flags,
		BuildInfo:     buildInfo(),
		RuntimeInfo:   s.runtimeInfo,
		Ready:         s.readiness.wrap,
		ExternalURL:   external,
		ListenAddress: s.listener.Addr().String(),
		CORSOrigin:    origin,
		Logger:        s.opts.Logger.With("component", "api"),
	}).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	mux.Handle(prefix+"/api/", s.profiles.withPprofLabels(endpoints))
	mux.Handle("GET "+prefix+"/metrics", metricsHandler(s.reg, s.opts.Logger))
	s.opts.Web.registerDebugEndpoints(mux, prefix, s.readiness)
	s.profiles.register(mux, prefix, s.readiness.wrap, guard)
	s.lifecycle(mux, prefix, guard)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
	}
	return s.profiles.withPprofLabels(mux), nil
}

// serveOwn serves the metrics on the in-process listener until stop is called.
func (s *Serve) serveOwn() (stop func()) {
	if s.own == nil {
		return func() {}
	}
	server := &http.Server{Handler: metricsHandler(s.reg, s.opts.Logger), ReadHeaderTimeout: s.opts.Web.ReadTimeout}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(s.own) // returns when server is closed
	}()
	return func() {
		_ = server.Close()
		<-done
	}
}

// pipeListener is an in-process listener. A server that authenticates its clients
// scrapes itself through it: the scrape needs no credentials, and no port without
// authentication is open to other clients.
type pipeListener struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener(addr net.Addr) *pipeListener {
	return &pipeListener{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *pipeListener) Addr() net.Addr { return l.addr }

// Close implements net.Listener.
func (l *pipeListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// lifecycle adds /-/reload and /-/quit. They respond with status 403 unless
// EnableLifecycle is set.
func (s *Serve) lifecycle(mux *http.ServeMux, prefix string, guard func(http.Handler) http.Handler) {
	allowed := func(act func() error) http.Handler {
		return guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !s.opts.Web.EnableLifecycle {
				http.Error(w, "Lifecycle API is not enabled.", http.StatusForbidden)
				return
			}
			if !s.readiness.isReady() {
				http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
				return
			}
			if err := act(); err != nil {
				http.Error(w, "failed to reload config: "+err.Error(), http.StatusInternalServerError)
			}
		}))
	}
	for _, method := range []string{"POST ", "PUT "} {
		mux.Handle(method+prefix+"/-/reload", allowed(s.config.reload))
		mux.Handle(method+prefix+"/-/quit", allowed(func() error { s.quit(); return nil }))
	}
	for _, path := range []string{"/-/reload", "/-/quit"} {
		mux.HandleFunc("GET "+prefix+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "POST, PUT")
			http.Error(w, "Only POST or PUT requests allowed", http.StatusMethodNotAllowed)
		})
	}
}
