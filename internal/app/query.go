package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"time"

	prompromql "github.com/prometheus/prometheus/promql"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/propagation"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/process"

	"github.com/ferula-io/ferula/internal/httpapi/ui"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// QueryOptions are the options of `ferula query`.
type QueryOptions struct {
	Web         WebOptions
	DisableCORS bool
	Admin       bool // clients may end the queries of other clients
	GRPC        GRPCOptions
	StoreAPI    storeapi.ServerOptions // limits of the StoreAPI server
	Client      StoreClientOptions
	Endpoints   fanout.EndpointsOptions // Dial, Logger, Metrics and Selector.Relabel are set by NewQuery
	Relabel     string                  // Prometheus' relabel configuration in YAML that selects data of stores; "": all
	Fanout      fanout.Options
	Stores      httpapi.StoreDefaults // Lookback is set by NewQuery
	Query       promql.Options
	Engine      EngineOptions
	// SubqueryInterval is the default step of subqueries; 0: 1 minute.
	SubqueryInterval time.Duration
	Tracing          string // Thanos' tracing configuration in YAML; "" sends no spans

	Flags  map[string]string // as returned by status/flags
	Logger *slog.Logger
}

// Query is a process that queries many stores. Call NewQuery, then Run once.
type Query struct {
	base
	opts      QueryOptions
	engine    *promql.Engine
	queries   prompromql.QueryEngine
	endpoints *fanout.Endpoints
	fanout    *fanout.Fanout
	tracing   *telemetry.Tracing
}

// NewQuery builds the process and opens its listeners. It sends no request to a store.
func NewQuery(opts QueryOptions) (_ *Query, err error) {
	q := &Query{opts: opts, base: newBase(opts.Web, opts.Logger)}
	defer q.release(&err)
	if q.tracing, err = q.trace(opts.Tracing, "ferula-query"); err != nil {
		return nil, err
	}
	opts.Query.SlotWaited = newSlotMetric(q.reg.Own)
	opts.Query.Panicked = process.Panics(q.reg.Own, "promql").Inc
	if q.engine, err = promql.New(opts.Query, opts.Logger.With("component", "promql"), q.reg); err != nil {
		return nil, err
	}
	exposeSlots(q.reg.Own, q.engine)
	q.process.Add(process.Component{Name: "queries", Close: q.engine.Close})
	if q.queries, err = newQueryEngine(opts.Engine, opts.Query, q.engine, q.reg.Own); err != nil {
		return nil, err
	}
	if opts.SubqueryInterval > 0 {
		q.engine.SetEvaluationInterval(opts.SubqueryInterval)
	}
	q.opts.Stores.Lookback = q.engine.LookbackDelta()
	client := opts.Client
	client.TLSWatch = q.tls
	client.Dial = server.NewClientMetrics(q.reg.Own).DialOptions(q.tracing.Call)
	dial, err := client.Dialer()
	if err != nil {
		return nil, hint.Invalid("grpc-client-tls-*", err)
	}
	endpoints := opts.Endpoints
	endpoints.Dial, endpoints.Logger, endpoints.Metrics = dial, opts.Logger.With("component", "endpoints"), q.reg.Own
	if endpoints.Selector.Relabel, err = selectorRelabel(opts.Relabel); err != nil {
		return nil, hint.Invalid("selector.relabel-config", err)
	}
	q.endpoints = fanout.NewEndpoints(endpoints)
	q.process.Add(process.Component{
		Name: "stores", ForRequests: true,
		Open:  func(ctx context.Context) error { q.endpoints.Update(ctx); return nil },
		Run:   func(ctx context.Context) error { q.endpoints.Run(ctx); return nil },
		Close: func() error { q.endpoints.Close(); return nil },
	})
	q.fanout = fanout.New(q.endpoints, opts.Fanout)
	if err = q.listen(); err != nil {
		return nil, err
	}
	if err = q.listenStoreAPI(opts.GRPC, q.tracing, q.fanout.Source(), opts.StoreAPI); err != nil {
		return nil, err
	}
	external, err := server.ExternalURL(opts.Web.ExternalURL, q.Addr())
	if err != nil {
		return nil, fmt.Errorf("external URL %q: %w", redact.URL(opts.Web.ExternalURL), err)
	}
	prefix, err := server.RoutePrefix("web.route-prefix", opts.Web.RoutePrefix, external)
	if err != nil {
		return nil, err
	}
	handler, err := q.newHandler(prefix, external)
	if err != nil {
		return nil, err
	}
	q.process.AddServer(q.webServer(q.reg.Instrumented(handler)),
		q.grpcServer())
	return q, nil
}

// newHandler routes requests to the API, the web UI and the debug endpoints.
func (q *Query) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := server.CORSOrigin(q.web.CORSOrigin)
	if q.opts.DisableCORS {
		origin, err = server.CORSOrigin("[^\x00-\U0010FFFF]") // matches nothing
	}
	if err != nil {
		return nil, err
	}
	endpoints := http.NewServeMux()
	api := httpapi.Options{
		Engine:        q.queries,
		Parser:        q.engine.Parser,
		Admin:         q.opts.Admin,
		Guard:         server.OriginGuard(external),
		Stores:        httpapi.StoresOf(q.fanout, q.endpoints),
		StoreDefaults: q.opts.Stores,
		ExternalURL:   external,
		BacktestMax:   cmp.Or(q.opts.Query.Timeout, promql.TimeoutByDefault),
		Flags:         hint.Flags{"BacktestMax": "--query.timeout"},
		StoreTimeout:  cmp.Or(q.opts.Query.Timeout, promql.TimeoutByDefault),
		BuildInfo:     buildInfo(),
		Ready:         q.process.Wrap,
		CORSOrigin:    origin,
		Logger:        q.opts.Logger.With("component", "api"),
	}
	api.Peer = httpapi.NewPeer(api, httpapi.PeerOptions{Prefix: prefix, Flags: q.opts.Flags, RuntimeInfo: q.runtimeInfo,
		Logger: q.opts.Logger.With("component", "web")})
	httpapi.New(api).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	var apiHandler http.Handler = endpoints
	if q.tracing.Sends() {
		apiHandler = otelhttp.NewHandler(endpoints, "query", otelhttp.WithTracerProvider(q.tracing.Provider()),
			otelhttp.WithPropagators(propagation.TraceContext{}))
	}
	mux.Handle(prefix+"/api/", apiHandler)
	mux.Handle("GET "+prefix+"/metrics", q.reg.Handler(q.opts.Logger))
	q.web.RegisterDebugEndpoints(mux, prefix, &q.process.Readiness)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
		q.web.RegisterDebugEndpoints(mux, "", &q.process.Readiness) // Thanos serves these without the prefix too
		mux.Handle("GET /metrics", q.reg.Handler(q.opts.Logger))
	}
	return mux, nil
}

// Run serves until ctx is canceled or a server fails, then drains running requests.
// The process is ready once every store has returned its Info or timed out.
func (q *Query) Run(ctx context.Context) error {
	q.process.Opened = func() {
		q.process.Ready()
		q.grpc.Ready()
		q.opts.Logger.Info("Ready", "url", q.url(), "stores",
			len(q.endpoints.Statuses()))
	}
	return q.process.Run(ctx)
}
