// Package httpapi implements the Prometheus HTTP API under /api/v1, one file for each group
// of endpoints.
//
// An endpoint parses and validates the form of a request as Prometheus does and calls
// the engine, the storage or the scrape manager. The response is appended to one pooled
// buffer that is written out whenever it is full: no reflection is used, and a large
// response is never in memory as a whole. The bytes equal Prometheus', except that lists
// which Prometheus returns in random order are sorted. A client that accepts columnsType gets the
// result of a range query as columns of float64 instead of JSON (columns.go). The package contains
// no storage, no PromQL evaluation, no server and no listener; package app calls Register.
//
// An error has one of the kinds in errors.go, whose table maps it to an HTTP status. After
// bytes have been sent, an error aborts the connection, so that a client never takes a
// truncated response for a complete one.
package httpapi

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/httputil"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/promql/backtest"
)

// Targets lists scrape targets. scrape.Manager implements it.
type Targets interface {
	TargetsActive() map[string][]*scrape.Target
	ScrapePoolConfig(pool string) (*config.ScrapeConfig, error)
}

// BuildInfo is the data of status/buildinfo.
type BuildInfo struct {
	Version   string `json:"version"` // Prometheus version whose API is implemented; Grafana reads it
	Revision  string `json:"revision"`
	Branch    string `json:"branch"`
	BuildUser string `json:"buildUser"`
	BuildDate string `json:"buildDate"`
	GoVersion string `json:"goVersion"`
	Program   string `json:"program,omitempty"` // "ferula" and its version
}

// Options are the data sources and settings of an API. Engine and Parser are required,
// and Queryable or Stores. If another source is nil, its endpoints are not registered and
// respond with status 404.
type Options struct {
	Engine    promql.QueryEngine
	Parser    parser.Parser
	Queryable storage.Queryable
	Exemplars storage.ExemplarQueryable // nil: query_exemplars returns an empty list
	Flames    Flames
	// FlamesTenant returns the tenant of a flame graph request; nil: api.TenantOf.
	FlamesTenant func(http.Header) (string, error)
	// Stores replaces Queryable and Exemplars in a querier of many stores.
	Stores        Stores
	StoreDefaults StoreDefaults
	StoreTimeout  time.Duration // timeout of requests to Stores without PromQL evaluation; 0: none
	Targets       Targets

	// Peer is Prometheus' own API below the same prefix (NewPeer). It serves endpoints that are rarely requested.
	// If it is nil, they have status 404.
	Peer        http.Handler
	Rules, TSDB bool // the peer has rules and alerts, and statistics of a TSDB

	RuleOptions func() RuleOptions // of backtests; nil: the defaults
	ExternalURL *url.URL           // in templates of backtests; nil: none
	BacktestMax time.Duration      // of all queries of a backtest together; 0: none
	// Recorded receives what the recording rules of a backtest have written; nil: nobody does.
	Recorded func(context.Context, *backtest.History) error

	// Admin allows clients to end the queries of other clients, with requests that Guard admits; Guard may be nil.
	Admin bool
	Guard func(http.Handler) http.Handler
	// Estimate returns the samples that a selection reads at most, without reading a chunk. A query whose selections read
	// more than EstimateMax together is rejected; 0: none is, and nothing is estimated.
	Estimate    func(ctx context.Context, mint, maxt int64, matchers ...*labels.Matcher) (series, samples int64, err error)
	EstimateMax int64
	Flags       hint.Flags // that raise the limits, by the names of options

	RemoteWrite http.Handler
	RemoteRead  http.Handler
	Export      storage.ChunkQueryable // source of /export

	Profiles      bool // the server has the profile API; used only by /status/features
	Notifications bool // the server has /notifications/live; used only by /status/features

	Config    func() config.Config
	BuildInfo BuildInfo
	// Ready wraps endpoints that are unavailable until the storage can be read.
	Ready      func(http.Handler) http.Handler
	CORSOrigin *regexp.Regexp // nil: all origins
	Logger     *slog.Logger
	Now        func() time.Time // nil: time.Now
}

func (o Options) withDefaults() Options {
	if o.Now == nil {
		o.Now = time.Now
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Ready == nil {
		o.Ready = func(h http.Handler) http.Handler { return h }
	}
	if o.Guard == nil {
		o.Guard = func(h http.Handler) http.Handler { return h }
	}
	o.CORSOrigin = cmp.Or(o.CORSOrigin, regexp.MustCompile("^(?:.*)$"))
	return o
}

// API serves /api/v1. Create it with New.
type API struct {
	opts    Options
	running runningQueries

	backtests chan struct{} // has one element for each running backtest
}

// New creates an API. It owns no goroutine.
func New(opts Options) *API {
	return &API{opts: opts.withDefaults(), backtests: make(chan struct{}, backtestsMax)}
}

// response is the successful result of an endpoint. write appends the value of `data` and may add
// to annotations; if write is nil, the status is 204. release, which may be nil, is called after the
// response was written or has failed.
type response struct {
	write       func(*stream)
	annotations *responseAnnotations // may be nil
	release     func()
	ended       func() error // returns why the response must not go on; may be nil
	engine      string       // that evaluated the query, for the header engineHeader; "" for none

	negotiated bool           // the media type depends on the header Accept
	columns    *matrixColumns // series that precede what write appends, in columnsType; nil: the response is JSON
}

// endpoint serves a request whose form is parsed.
type endpoint func(r *http.Request) (response, *apiError)

// Register adds the endpoints to mux under prefix, e.g. "/api/v1".
func (a *API) Register(mux *http.ServeMux, prefix string) {
	preflight := a.serve(func(*http.Request) (response, *apiError) { return response{}, nil })
	withPreflight := map[string]bool{}
	handle := func(method, path string, h http.Handler) {
		mux.Handle(method+" "+prefix+path, h)
		if !withPreflight[path] {
			withPreflight[path] = true
			mux.Handle("OPTIONS "+prefix+path, preflight)
		}
	}
	get := func(path string, f endpoint) { handle("GET", path, a.serve(f)) }
	both := func(path string, f endpoint) {
		get(path, f)
		handle("POST", path, a.serve(f))
	}
	both("/query", a.queryOf(a.instantQuery))
	both("/query_range", a.queryOf(a.rangeQuery))
	both("/query_explain", a.explainOf(a.instantQuery))
	both("/query_range_explain", a.explainOf(a.rangeQuery))
	both("/rules/backtest", a.backtest)
	get("/queries/running", a.runningList)
	handle("POST", "/queries/running/{id}/cancel", a.opts.Guard(a.serve(a.cancelRunning)))
	both("/query_exemplars", a.withStoreTimeout(a.queryExemplars))
	if a.opts.Flames != nil {
		get("/exemplar/flamegraph", a.exemplarFlamegraph)
	}
	both("/labels", a.withStoreTimeout(a.labelNames))
	get("/label/{name}/values", a.withStoreTimeout(a.labelValues))
	both("/series", a.withStoreTimeout(a.series))
	if a.opts.Targets != nil {
		get("/metadata", a.metricMetadata)
		get("/scrape_pools/config", a.scrapePoolConfig)
	}
	if a.opts.Stores != nil {
		get("/stores", a.stores)
		if !a.opts.TSDB {
			get("/status/tsdb", a.withStoreTimeout(a.storeStatusTSDB))
		}
		if a.opts.Targets == nil {
			get("/targets", a.withStoreTimeout(a.storeTargets))
			get("/metadata", a.withStoreTimeout(a.storeMetadata))
		}
		get("/rules", a.withStoreTimeout(a.storeRules))
		get("/alerts", a.withStoreTimeout(a.storeAlerts))
		get("/alertmanagers", constant(map[string][]string{"activeAlertmanagers": {}, "droppedAlertmanagers": {}}))
	}
	if a.opts.Config != nil {
		get("/status/config", a.statusConfig)
	}
	get("/status/features", a.features)
	get("/status/buildinfo", constant(a.opts.BuildInfo))
	if a.opts.Peer != nil {
		paths := []string{"/status/flags", "/status/runtimeinfo"}
		if a.opts.Targets != nil {
			paths = append(paths, "/scrape_pools", "/targets", "/targets/metadata")
		}
		if a.opts.Rules {
			paths = append(paths, "/rules", "/alerts", "/alertmanagers")
		}
		if a.opts.TSDB {
			paths = append(paths, "/status/tsdb")
			handle("GET", "/status/walreplay", a.peer(nil)) // also while the log is replayed
		}
		for _, path := range paths {
			handle("GET", path, a.opts.Ready(a.peer(nil)))
		}
		for _, path := range []string{"/format_query", "/parse_query"} {
			handle("GET", path, a.opts.Ready(a.peer(formattable)))
			handle("POST", path, a.opts.Ready(a.peer(formattable)))
		}
	}
	if a.opts.RemoteWrite != nil {
		handle("POST", "/write", a.opts.Ready(a.opts.RemoteWrite))
	}
	if a.opts.RemoteRead != nil {
		handle("POST", "/read", a.opts.Ready(a.opts.RemoteRead))
	}
	if a.opts.Export != nil {
		handle("GET", "/export", a.opts.Ready(newExporter(a)))
	}
}

// constant returns an endpoint with constant data.
func constant(data any) endpoint {
	return func(*http.Request) (response, *apiError) {
		return response{write: func(s *stream) { s.value(data) }}, nil
	}
}

// serve is serveAlways wrapped in Options.Ready.
func (a *API) serve(f endpoint) http.Handler {
	return a.opts.Ready(a.serveAlways(f))
}

func (a *API) serveAlways(f endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		httputil.SetCORS(w, a.opts.CORSOrigin, r)
		w.Header().Add("Vary", "Accept-Encoding")
		if err := parseForm(w, r); err != nil {
			a.respondError(w, err)
			return
		}
		resp, apiErr := f(r)
		if resp.release != nil {
			defer resp.release()
		}
		switch {
		case apiErr != nil:
			a.respondError(w, apiErr)
		case resp.write == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			a.respond(w, r, resp)
		}
	})
}

// errStoreTimeout is the error of requests that exceed StoreTimeout.
var errStoreTimeout = errors.New("the stores have not responded in time")

// withStoreTimeout adds StoreTimeout to an endpoint that queries stores without the
// engine, which has its own timeout.
func (a *API) withStoreTimeout(f endpoint) endpoint {
	if a.opts.Stores == nil || a.opts.StoreTimeout <= 0 {
		return f
	}
	return func(r *http.Request) (response, *apiError) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), a.opts.StoreTimeout,
			fmt.Errorf("%w: %w (%s)", context.DeadlineExceeded, errStoreTimeout, a.opts.StoreTimeout))
		resp, apiErr := f(r.WithContext(ctx))
		apiErr = a.asTimeout(apiErr)
		if write := resp.write; write != nil {
			resp.write = func(s *stream) {
				write(s)
				if late := (*midStreamError)(nil); errors.As(s.err, &late) && errors.Is(late.err, context.DeadlineExceeded) &&
					!errors.Is(late.err, errStoreTimeout) {
					late.err = fmt.Errorf("%w: %w", errStoreTimeout, late.err)
				}
			}
		}
		release := resp.release
		resp.release = func() {
			if release != nil {
				release()
			}
			cancel()
		}
		return resp, apiErr
	}
}

// asTimeout returns an exceeded deadline as kindTimeout. Stores receive the deadline too
// and may return it before the engine does.
func (a *API) asTimeout(err *apiError) *apiError {
	if a.opts.Stores != nil && err != nil && err.kind == kindExecution && errors.Is(err.err, context.DeadlineExceeded) {
		return &apiError{kindTimeout, err.err}
	}
	return err
}

// queryContext returns a context that ends with the request or after its `timeout`.
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
