package app

import (
	"cmp"
	"errors"
	"net/http"
	"net/url"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/httpapi/ui"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/remoteread"
)

// newHandler routes requests to the API, the web UI and the debug endpoints.
func (s *Serve) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := server.CORSOrigin(s.web.CORSOrigin)
	if err != nil {
		return nil, err
	}
	exposeBuild(s.reg)
	s.reg.ExposePrometheusHTTP(prefix)
	s.reg.ExposePackageMetrics()
	exposeReady(s.reg, &s.process.Readiness)
	guard := server.OriginGuard(external)
	read := s.opts.Read
	read.ExternalLabels = s.config.externalLabels
	// The API has its own mux, so that an unknown endpoint or method gets status 404 or
	// 405 instead of the web UI.
	endpoints := http.NewServeMux()
	api := httpapi.Options{
		Engine:        s.queries,
		Parser:        s.engine.Parser,
		Queryable:     s.remotes,
		Exemplars:     s.store,
		Flames:        flames{s.profiles, query.NewExemplarFinder(s.store, s.profiles.engine.MergeFlame)},
		FlamesTenant:  s.opts.Profiles.tenantOf(),
		Targets:       s.scraper.Manager,
		Rules:         true,
		RuleOptions:   s.ruleOptions,
		ExternalURL:   external,
		BacktestMax:   cmp.Or(s.opts.Query.Timeout, promql.TimeoutByDefault),
		TSDB:          true,
		Admin:         s.opts.Peer.Admin,
		Guard:         guard,
		Estimate:      s.store.Estimate,
		EstimateMax:   s.opts.EstimateMax,
		Flags:         hint.Flags{"EstimateMax": "--query.max-estimated-samples", "BacktestMax": "--query.timeout"},
		RemoteWrite:   s.remoteWrite(guard),
		RemoteRead:    remoteread.NewServer(read, s.remotes, s.opts.Logger.With("component", "remote read"), s.reg.Own),
		Export:        s.remotes,
		Profiles:      true,
		Notifications: true,
		Config:        s.config.current,
		BuildInfo:     buildInfo(),
		Ready:         s.process.Wrap,
		CORSOrigin:    origin,
		Logger:        s.opts.Logger.With("component", "api"),
	}
	peer, mux := s.peerOptions(prefix), http.NewServeMux()
	api.Peer = httpapi.NewPeer(api, peer)
	httpapi.New(api).Register(endpoints, prefix+"/api/v1")
	httpapi.RegisterPeer(api, peer, mux, endpoints)
	endpoints.Handle("POST "+prefix+"/api/v1/otlp/v1/metrics", s.process.Wrap(s.otlp(guard, s.config.current)))
	mux.Handle(prefix+"/api/", s.profiles.withPprofLabels(endpoints))
	mux.Handle("GET "+prefix+"/metrics", s.reg.Handler(s.opts.Logger))
	s.web.RegisterDebugEndpoints(mux, prefix, &s.process.Readiness)
	s.profiles.register(mux, prefix, s.process.Wrap, guard)
	s.lifecycle(mux, prefix, guard)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
	}
	return s.profiles.withPprofLabels(mux), nil
}

// ruleOptions returns the settings that rules of this server have.
func (s *Serve) ruleOptions() httpapi.RuleOptions {
	global := s.config.current().GlobalConfig
	return httpapi.RuleOptions{ExternalLabels: global.ExternalLabels, Interval: time.Duration(global.EvaluationInterval),
		QueryOffset: time.Duration(global.RuleQueryOffset), ResendDelay: s.opts.Rules.ResendDelay}
}

// ownServer serves the metrics on the in-process listener.
func (s *Serve) ownServer() process.Server {
	server := &http.Server{Handler: s.reg.Handler(s.opts.Logger), ReadHeaderTimeout: s.web.ReadTimeout}
	return process.Server{
		Name:  "server of own metrics",
		Serve: func() error { _ = server.Serve(s.own); return nil }, // returns when server is closed
		Drain: func() error { return errors.Join(server.Close(), s.own.Close()) },
	}
}

// lifecycle adds /-/reload and /-/quit. They respond with status 403 unless
// EnableLifecycle is set.
func (s *Serve) lifecycle(mux *http.ServeMux, prefix string, guard func(http.Handler) http.Handler) {
	allowed := func(act func() error) http.Handler {
		return guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if !s.web.EnableLifecycle {
				http.Error(w, "Lifecycle API is not enabled.", http.StatusForbidden)
				return
			}
			if !s.process.IsReady() {
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
		mux.Handle(method+prefix+"/-/quit", allowed(func() error { s.process.Quit(); return nil }))
	}
	for _, path := range []string{"/-/reload", "/-/quit"} {
		mux.HandleFunc("GET "+prefix+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", "POST, PUT")
			http.Error(w, "Only POST or PUT requests allowed", http.StatusMethodNotAllowed)
		})
	}
}
