// Package api is the HTTP side of ferula: the Prometheus HTTP API under
// /api/v1, one file for each family of endpoints.
//
// A request's form comes in; it is parsed and checked as Prometheus does it,
// handed to the engine, the storage or the scrape manager, and the answer is
// appended into one pooled buffer that is written out whenever it is full: no
// reflection, and never a whole answer in memory. What leaves equals Prometheus'
// bytes wherever Prometheus defines their order. There is no storage, no PromQL
// evaluation, no server and no listener here; Handler is mounted by a role.
//
// An error is one of the kinds in errors.go, whose table gives its status. Once
// bytes have been sent an error can only abort the connection, so that a client
// never takes a part for the whole.
package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/util/httputil"
)

// Targets tells what is scraped. scrape.Manager implements it.
type Targets interface {
	ScrapePools() []string
	TargetsActive() map[string][]*scrape.Target
	TargetsDropped() map[string][]*scrape.Target
	TargetsDroppedCounts() map[string]int
	ScrapePoolConfig(pool string) (*config.ScrapeConfig, error)
}

// Status tells about the database.
type Status interface {
	HeadStats(byLabel string, limit int) (*tsdb.Stats, error)
	WALReplayStatus() tsdb.WALReplayStatus
}

// BuildInfo says what program answers.
type BuildInfo struct {
	Version   string // of the Prometheus API that is spoken, which Grafana reads
	Revision  string
	Branch    string
	BuildUser string
	BuildDate string
	GoVersion string
	Program   string // ferula and its own version
}

// RuntimeInfo is the state of the process as status/runtimeinfo shows it.
type RuntimeInfo struct {
	StartTime           time.Time
	CWD                 string
	Hostname            string
	ReloadConfigSuccess bool
	LastConfigTime      time.Time
	CorruptionCount     int64
	StorageRetention    string
}

// Options are what an API answers from. Fields that a role does not have stay
// nil, and their endpoints answer 404.
type Options struct {
	Engine    promql.QueryEngine
	Parser    parser.Parser
	Queryable storage.Queryable
	Exemplars storage.ExemplarQueryable
	Flames    Flames
	// FlamesTenant reads the tenant of a request for a flame graph; nil:
	// profileapi.TenantOf.
	FlamesTenant func(http.Header) (string, error)
	// Stores takes the place of Queryable and Exemplars in a querier of many stores.
	Stores        Stores
	StoreDefaults StoreDefaults
	StoreTimeout  time.Duration // of requests to Stores that are not evaluated; 0: none
	Targets       Targets
	Status        Status
	Gatherer      prometheus.Gatherer // read for status/tsdb's chunk count

	RemoteWrite http.Handler
	RemoteRead  http.Handler

	Config      func() config.Config
	Flags       map[string]string
	BuildInfo   BuildInfo
	RuntimeInfo func() (RuntimeInfo, error)
	// Ready wraps what must wait until the storage can be read.
	Ready func(http.Handler) http.Handler
	// ExternalURL is where users reach this server; nil leaves target URLs alone.
	ExternalURL   *url.URL
	ListenAddress string
	CORSOrigin    *regexp.Regexp // nil: every origin
	Logger        *slog.Logger
	Now           func() time.Time // nil: time.Now

	BodyMaxBytes int64 // of a form; 0: 10 MiB
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Ready == nil {
		o.Ready = func(h http.Handler) http.Handler { return h }
	}
	if o.CORSOrigin == nil {
		o.CORSOrigin = regexp.MustCompile("^(?:.*)$")
	}
	if o.BodyMaxBytes == 0 {
		o.BodyMaxBytes = 10 << 20
	}
	return o
}

// API answers /api/v1. Use New.
type API struct {
	opts Options
}

// New makes an API; it starts nothing and owns no goroutine.
func New(opts Options) *API {
	return &API{opts: opts.withDefaults()}
}

// answer is what an endpoint has to say. write appends the value of `data`; nil
// means 204, and what it finds to say meanwhile it adds to notes. release is
// called once the answer is out, or could not be written.
type answer struct {
	write   func(*stream)
	notes   *notes // may be nil
	release func()
}

type endpoint func(r *http.Request) (answer, *apiError)

// Register adds every endpoint to mux below prefix, e.g. "/api/v1".
func (a *API) Register(mux *http.ServeMux, prefix string) {
	preflight := a.serve(func(*http.Request) (answer, *apiError) { return answer{}, nil })
	get := func(path string, f endpoint) {
		mux.Handle("GET "+prefix+path, a.serve(f))
		mux.Handle("OPTIONS "+prefix+path, preflight)
	}
	both := func(path string, f endpoint) {
		get(path, f)
		mux.Handle("POST "+prefix+path, a.serve(f))
	}
	both("/query", a.query)
	both("/query_range", a.queryRange)
	both("/query_exemplars", a.timed(a.queryExemplars))
	if a.opts.Flames != nil {
		get("/exemplar/flamegraph", a.exemplarFlamegraph)
	}
	both("/format_query", a.formatQuery)
	both("/parse_query", a.parseQuery)
	both("/labels", a.timed(a.labelNames))
	get("/label/{name}/values", a.timed(a.labelValues))
	both("/series", a.timed(a.series))
	if a.opts.Targets != nil {
		get("/scrape_pools", a.scrapePools)
		get("/targets", a.targets)
		get("/targets/metadata", a.targetMetadata)
		get("/metadata", a.metricMetadata)
	}
	if a.opts.Stores != nil {
		get("/stores", a.stores)
		if a.opts.Targets == nil {
			get("/targets", a.timed(a.storeTargets))
			get("/metadata", a.timed(a.storeMetadata))
		}
	}
	if a.opts.Stores != nil {
		get("/rules", a.timed(a.storeRules))
		get("/alerts", a.timed(a.storeAlerts))
	} else {
		get("/rules", constant(`{"groups":[]}`))
		get("/alerts", constant(`{"alerts":[]}`))
	}
	get("/alertmanagers", constant(`{"activeAlertmanagers":[],"droppedAlertmanagers":[]}`))
	if a.opts.Config != nil {
		get("/status/config", a.statusConfig)
	}
	get("/status/flags", a.statusFlags)
	get("/status/buildinfo", a.statusBuildInfo)
	if a.opts.RuntimeInfo != nil {
		get("/status/runtimeinfo", a.statusRuntimeInfo)
	}
	if a.opts.Status != nil {
		get("/status/tsdb", a.statusTSDB)
		mux.Handle("GET "+prefix+"/status/walreplay", a.serveAlways(a.statusWALReplay))
		mux.Handle("OPTIONS "+prefix+"/status/walreplay", preflight)
	}
	if a.opts.RemoteWrite != nil {
		mux.Handle("POST "+prefix+"/write", a.opts.Ready(a.opts.RemoteWrite))
		mux.Handle("OPTIONS "+prefix+"/write", preflight)
	}
	if a.opts.RemoteRead != nil {
		mux.Handle("POST "+prefix+"/read", a.opts.Ready(a.opts.RemoteRead))
		mux.Handle("OPTIONS "+prefix+"/read", preflight)
	}
}

// constant answers the same JSON always: rules and alerts of a server that
// evaluates none are truly empty, and Grafana asks for them.
func constant(data string) endpoint {
	return func(*http.Request) (answer, *apiError) {
		return answer{write: func(s *stream) { s.raw(data) }}, nil
	}
}

// serve is serveAlways behind the readiness gate.
func (a *API) serve(f endpoint) http.Handler {
	return a.opts.Ready(a.serveAlways(f))
}

func (a *API) serveAlways(f endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httputil.SetCORS(w, a.opts.CORSOrigin, r)
		w.Header().Add("Vary", "Accept-Encoding")
		if err := parseForm(w, r, a.opts.BodyMaxBytes); err != nil {
			a.respondError(w, err)
			return
		}
		ans, apiErr := f(r)
		if ans.release != nil {
			defer ans.release()
		}
		switch {
		case apiErr != nil:
			a.respondError(w, apiErr)
		case ans.write == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			a.respond(w, r, ans)
		}
	})
}

// errStoreTimeout ends requests to stores, some of which have not responded.
var errStoreTimeout = errors.New("the stores have not responded in time")

// timed bounds the time of an endpoint that asks stores without the engine, which has
// a time limit of its own.
func (a *API) timed(f endpoint) endpoint {
	if a.opts.Stores == nil || a.opts.StoreTimeout <= 0 {
		return f
	}
	return func(r *http.Request) (answer, *apiError) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), a.opts.StoreTimeout, fmt.Errorf("%w: %w (%s)", context.DeadlineExceeded, errStoreTimeout, a.opts.StoreTimeout))
		ans, apiErr := f(r.WithContext(ctx))
		apiErr = a.late(apiErr)
		if write := ans.write; write != nil {
			ans.write = func(s *stream) {
				write(s)
				if late := (*midStreamError)(nil); errors.As(s.err, &late) && errors.Is(late.err, context.DeadlineExceeded) && !errors.Is(late.err, errStoreTimeout) {
					late.err = fmt.Errorf("%w: %w", errStoreTimeout, late.err)
				}
			}
		}
		release := ans.release
		ans.release = func() {
			if release != nil {
				release()
			}
			cancel()
		}
		return ans, apiErr
	}
}

// late calls a request a timeout whose time ended in the stores: they are given the
// deadline too, and may notice it first.
func (a *API) late(err *apiError) *apiError {
	if a.opts.Stores != nil && err != nil && err.kind == kindExecution && errors.Is(err.err, context.DeadlineExceeded) {
		return &apiError{kindTimeout, err.err}
	}
	return err
}

// queryContext ends with the request, or after the request's own timeout.
func (a *API) queryContext(r *http.Request) (context.Context, context.CancelFunc, *apiError) {
	ctx := httputil.ContextFromRequest(httputil.ContextWithPath(r.Context(), r.URL.Path), r)
	text := r.FormValue("timeout")
	if text == "" {
		return ctx, func() {}, nil
	}
	timeout, err := parseDuration(text)
	if err != nil {
		return nil, nil, invalidParameter("timeout", err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	return ctx, cancel, nil
}
