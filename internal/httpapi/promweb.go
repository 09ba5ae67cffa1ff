package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	promtsdb "github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/features"
	"github.com/prometheus/prometheus/util/notifications"
	v1 "github.com/prometheus/prometheus/web/api/v1"

	"github.com/ferula-io/ferula/internal/tsdb"
)

// RuntimeInfo is the data of status/runtimeinfo. New adds what Go knows about the process.
type RuntimeInfo = v1.RuntimeInfo

// Rules are the rules that this server evaluates, and the Alertmanagers that receive its alerts.
type Rules interface {
	v1.RulesRetriever
	v1.AlertmanagerRetriever
}

// ScrapeManager lists scrape targets and their jobs, as Prometheus' scrape.Manager does.
type ScrapeManager interface {
	v1.TargetRetriever
	v1.ScrapePoolsRetriever
}

// PeerOptions are further options of the endpoints that Prometheus' own package web/api/v1 serves, on ferula's storage,
// scrape manager and configuration. These endpoints get few requests. Prometheus does not export its handler of
// /federate, so federate.go implements it. A server without a TSDB needs only the options above Store.
type PeerOptions struct {
	Prefix      string // of all paths
	Flags       map[string]string
	RuntimeInfo func() (RuntimeInfo, error)
	Logger      *slog.Logger

	Store     *tsdb.Store
	Rules     Rules
	Queryable storage.SampleAndChunkQueryable // of the search endpoints
	Targets   ScrapeManager
	Gatherer  prometheus.Gatherer

	Search    bool
	SearchMax int                // results of one search; 0: no limit
	Features  features.Collector // of the whole server

	LookbackDelta time.Duration // of /federate
	SeriesMax     int           // series of one response of /federate; 0: no limit

	Notifications *notifications.Notifications
	ListenAddress string
	// UntilShutdown wraps endpoints whose responses have no end: it ends them at shutdown.
	UntilShutdown func(http.Handler) http.Handler
}

// NewPeer returns the handler of Prometheus' API below Prefix + "/api/v1". The first request creates the API, because
// it writes its OpenAPI documents then: they cost more than all else of a start, and most processes never serve them.
func NewPeer(api Options, opts PeerOptions) http.Handler {
	router := sync.OnceValue(func() http.Handler {
		router := route.New().WithPrefix(opts.Prefix + "/api/v1")
		prometheusAPI(api, opts).Register(router)
		return router
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { router().ServeHTTP(w, r) })
}

// RegisterPeer adds /federate and /version to mux, and the endpoints of api.Peer that API does not have to
// endpoints, the mux of the paths below Prefix + "/api/v1". api.Peer is the result of NewPeer with the same options.
func RegisterPeer(api Options, opts PeerOptions, mux, endpoints *http.ServeMux) {
	prefix, router := opts.Prefix, api.Peer
	for _, name := range v1.FuzzAlgorithms() {
		opts.Features.Enable(features.API, "search_fuzz_alg_"+name)
	}
	handle := func(methods string, to http.Handler, paths ...string) {
		for _, path := range paths {
			for method := range strings.FieldsSeq(methods) {
				endpoints.Handle(method+" "+prefix+"/api/v1"+path, to)
			}
			endpoints.Handle("OPTIONS "+prefix+"/api/v1"+path, router) // preflight requests
		}
	}
	handle("GET", router, "/targets/relabel_steps", "/status/tsdb/blocks", "/status/self_metrics", "/features",
		"/notifications", "/openapi.yaml")
	handle("GET", opts.UntilShutdown(router), "/notifications/live")
	handle("GET POST", router, "/search/metric_names", "/search/label_names", "/search/label_values")
	handle("POST PUT", api.Guard(router), "/admin/tsdb/delete_series", "/admin/tsdb/clean_tombstones",
		"/admin/tsdb/snapshot")
	handle("", router, "/otlp/v1/metrics")
	mux.Handle("GET "+prefix+"/federate", api.Ready(&federation{api, opts, time.Now}))
	mux.HandleFunc("GET "+prefix+"/version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var s stream
		s.value(api.BuildInfo.version())
		_, _ = w.Write(append(s.b, '\n')) // fails only if the client has disconnected
	})
}

func (b BuildInfo) version() *v1.PrometheusVersion {
	return &v1.PrometheusVersion{Version: b.Version, Revision: b.Revision, Branch: b.Branch, BuildUser: b.BuildUser,
		BuildDate: b.BuildDate, GoVersion: b.GoVersion}
}

// runtimeInfo is RuntimeInfo with what Go knows about the process.
func (o PeerOptions) runtimeInfo() (RuntimeInfo, error) {
	info, err := o.RuntimeInfo()
	info.ServerTime, info.GoroutineCount, info.GOMAXPROCS = time.Now().UTC(), runtime.NumGoroutine(), runtime.GOMAXPROCS(0)
	info.GOMEMLIMIT, info.GOGC, info.GODEBUG = debug.SetMemoryLimit(-1), os.Getenv("GOGC"), os.Getenv("GODEBUG")
	return info, err
}

// prometheusAPI returns Prometheus' API. Only the endpoints for which ferula has data are routed to. It is no
// method of PeerOptions: the compiler would generate the thousands of generic functions of v1.API again for each
// package that uses PeerOptions.
func prometheusAPI(api Options, o PeerOptions) *v1.API {
	var store v1.TSDBAdminStats
	var dir string
	if o.Store != nil {
		store, dir = admin{o.Store}, o.Store.Options().Dir
	}
	targets := func(context.Context) v1.TargetRetriever { return o.Targets }
	pools := func(context.Context) v1.ScrapePoolsRetriever { return o.Targets }
	return v1.NewAPI(
		api.Engine, o.Queryable, nil, nil, nil, pools, targets,
		func(context.Context) v1.AlertmanagerRetriever { return o.Rules },
		api.Config, o.Flags, v1.GlobalURLOptions{ListenAddress: o.ListenAddress, Host: api.ExternalURL.Host,
			Scheme: api.ExternalURL.Scheme},
		func(next http.HandlerFunc) http.HandlerFunc { return api.Ready(next).ServeHTTP },
		store, dir, api.Admin, o.Search, o.SearchMax, o.Logger,
		func(context.Context) v1.RulesRetriever { return o.Rules },
		0, 0, 0, false, api.CORSOrigin, o.runtimeInfo, api.BuildInfo.version(),
		o.Notifications.Get, o.Notifications.Sub, o.Gatherer, nil, nil,
		false, nil, false, false, false, false,
		o.LookbackDelta, false, false, nil, o.Features,
		v1.OpenAPIOptions{ExternalURL: api.ExternalURL.String(), Version: api.BuildInfo.Version,
			MaxSearchLimit: o.SearchMax},
		api.Parser,
	)
}

// admin is the storage as Prometheus' API uses it.
type admin struct{ *tsdb.Store }

var _ v1.TSDBAdminStats = admin{}

// Stats implements v1.TSDBAdminStats.
func (a admin) Stats(byLabel string, limit int) (*promtsdb.Stats, error) {
	return a.HeadStats(byLabel, limit)
}

func (a admin) WALReplayStatus() (promtsdb.WALReplayStatus, error) {
	return a.Store.WALReplayStatus(), nil
}

func (a admin) Delete(ctx context.Context, mint, maxt int64, matchers ...*labels.Matcher) error {
	return a.DeleteSeries(ctx, mint, maxt, matchers...)
}
