package httpapi

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/route"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
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

// PeerOptions are the options of the endpoints that Prometheus' own package web/api/v1 serves, on ferula's storage,
// scrape manager and configuration. These endpoints get few requests. Prometheus does not export its handler of
// /federate, so federate.go implements it. A server without a TSDB needs only the options above Store.
type PeerOptions struct {
	Prefix      string // of all paths
	Flags       map[string]string
	RuntimeInfo func() (RuntimeInfo, error)

	Store     *tsdb.Store
	Rules     Rules
	Queryable storage.SampleAndChunkQueryable // of the search endpoints
	Engine    promql.QueryEngine
	Parser    parser.Parser
	Targets   ScrapeManager
	Config    func() config.Config
	Gatherer  prometheus.Gatherer
	Build     BuildInfo

	Admin     bool // the endpoints that delete and copy data
	Search    bool
	SearchMax int                // results of one search; 0: no limit
	Features  features.Collector // of the whole server

	LookbackDelta time.Duration // of /federate
	SeriesMax     int           // series of one response of /federate; 0: no limit

	Notifications *notifications.Notifications
	ExternalURL   *url.URL
	ListenAddress string
	CORSOrigin    *regexp.Regexp

	// Ready wraps endpoints that are unavailable until the storage can be read. Guard wraps endpoints that change
	// something. UntilShutdown wraps endpoints whose responses have no end: it ends them at shutdown.
	Ready, Guard, UntilShutdown func(http.Handler) http.Handler
	Logger                      *slog.Logger
}

// NewPeer returns the handler of Prometheus' API below Prefix + "/api/v1". The first request creates the API, because
// it writes its OpenAPI documents then: they cost more than all else of a start, and most processes never serve them.
func NewPeer(opts PeerOptions) http.Handler {
	router := sync.OnceValue(func() http.Handler {
		router := route.New().WithPrefix(opts.Prefix + "/api/v1")
		prometheusAPI(opts).Register(router)
		return router
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { router().ServeHTTP(w, r) })
}

// RegisterPeer adds /federate and /version to mux, and the endpoints of router that API does not have to
// endpoints, the mux of the paths below Prefix + "/api/v1". router is the result of NewPeer with the same options.
func RegisterPeer(opts PeerOptions, router http.Handler, mux, endpoints *http.ServeMux) {
	prefix := opts.Prefix
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
	handle("POST PUT", opts.Guard(router), "/admin/tsdb/delete_series", "/admin/tsdb/clean_tombstones",
		"/admin/tsdb/snapshot")
	handle("", router, "/otlp/v1/metrics")
	mux.Handle("GET "+prefix+"/federate", opts.Ready(&federation{opts: opts, now: time.Now}))
	mux.HandleFunc("GET "+prefix+"/version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var s stream
		s.value(opts.version())
		_, _ = w.Write(append(s.b, '\n')) // fails only if the client has disconnected
	})
}

func (o PeerOptions) version() *v1.PrometheusVersion {
	return &v1.PrometheusVersion{Version: o.Build.Version, Revision: o.Build.Revision, Branch: o.Build.Branch,
		BuildUser: o.Build.BuildUser, BuildDate: o.Build.BuildDate, GoVersion: o.Build.GoVersion}
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
func prometheusAPI(o PeerOptions) *v1.API {
	var store v1.TSDBAdminStats
	var dir string
	if o.Store != nil {
		store, dir = admin{o.Store}, o.Store.Options().Dir
	}
	targets := func(context.Context) v1.TargetRetriever { return o.Targets }
	pools := func(context.Context) v1.ScrapePoolsRetriever { return o.Targets }
	return v1.NewAPI(
		o.Engine, o.Queryable, nil, nil, nil, pools, targets,
		func(context.Context) v1.AlertmanagerRetriever { return o.Rules },
		o.Config, o.Flags, v1.GlobalURLOptions{ListenAddress: o.ListenAddress, Host: o.ExternalURL.Host,
			Scheme: o.ExternalURL.Scheme},
		func(next http.HandlerFunc) http.HandlerFunc { return o.Ready(next).ServeHTTP },
		store, dir, o.Admin, o.Search, o.SearchMax, o.Logger,
		func(context.Context) v1.RulesRetriever { return o.Rules },
		0, 0, 0, false, o.CORSOrigin, o.runtimeInfo, o.version(),
		o.Notifications.Get, o.Notifications.Sub, o.Gatherer, nil, nil,
		false, nil, false, false, false, false,
		o.LookbackDelta, false, false, nil, o.Features,
		v1.OpenAPIOptions{ExternalURL: o.ExternalURL.String(), Version: o.Build.Version, MaxSearchLimit: o.SearchMax},
		o.Parser,
	)
}

// admin is the storage as Prometheus' API uses it.
type admin struct{ *tsdb.Store }

var _ v1.TSDBAdminStats = admin{}

// Stats implements v1.TSDBAdminStats.
func (a admin) Stats(byLabel string, limit int) (*promtsdb.Stats, error) {
	return a.HeadStats(byLabel, limit)
}

// WALReplayStatus implements v1.TSDBAdminStats.
func (a admin) WALReplayStatus() (promtsdb.WALReplayStatus, error) {
	return a.Store.WALReplayStatus(), nil
}

// Delete implements v1.TSDBAdminStats.
func (a admin) Delete(ctx context.Context, mint, maxt int64, matchers ...*labels.Matcher) error {
	return a.DeleteSeries(ctx, mint, maxt, matchers...)
}
