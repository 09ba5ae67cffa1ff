package role

import (
	"net/http"
	"net/url"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/query/exemplar"
	"github.com/ferula-io/ferula/internal/ui"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
)

// newHandler joins the API, the page and the operational endpoints.
func (s *Serve) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := corsOrigin(s.opts.Web.CORSOrigin)
	if err != nil {
		return nil, err
	}
	guard := originGuard(external)
	read := s.opts.Read
	read.ExternalLabels = func() labels.Labels { return s.config.current().GlobalConfig.ExternalLabels }
	// The API has a mux of its own, so that an unknown endpoint or method is
	// answered 404 or 405 and does not fall through to the page.
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
		Ready:         s.gate.wrap,
		ExternalURL:   external,
		ListenAddress: s.listener.Addr().String(),
		CORSOrigin:    origin,
		Logger:        s.opts.Logger.With("component", "api"),
	}).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	mux.Handle(prefix+"/api/", s.profiles.labelled(endpoints))
	mux.Handle("GET "+prefix+"/metrics", metricsHandler(s.reg, s.opts.Logger))
	s.opts.Web.operational(mux, prefix, s.gate)
	s.profiles.register(mux, prefix, s.gate.wrap, guard)
	s.lifecycle(mux, prefix, guard)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
	}
	return s.profiles.labelled(mux), nil
}

// lifecycle adds reloading and quitting, if the operator allowed it.
func (s *Serve) lifecycle(mux *http.ServeMux, prefix string, guard func(http.Handler) http.Handler) {
	allowed := func(act func() error) http.Handler {
		return guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
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
		}))
	}
	for _, method := range []string{"POST ", "PUT "} {
		mux.Handle(method+prefix+"/-/reload", allowed(s.config.reload))
		mux.Handle(method+prefix+"/-/quit", allowed(func() error { s.quit(); return nil }))
	}
}
