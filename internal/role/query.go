package role

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/query/dedup"
	"github.com/ferula-io/ferula/internal/query/fanout"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/internal/ui"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// QueryOptions are what `ferula query` runs with.
type QueryOptions struct {
	Web         WebOptions
	DisableCORS bool
	GRPC        GRPCOptions
	StoreAPI    storeapi.ServerOptions // limits of the StoreAPI that is offered
	Client      StoreClientOptions
	Endpoints   fanout.EndpointsOptions // Dial, Logger and Metrics are filled in
	Fanout      fanout.Options          // what is done with replicas is filled in
	Chain       bool                    // replicas are mixed instead of chosen from
	Stores      api.StoreDefaults       // Lookback is filled in
	Query       promql.Options
	// SubqueryInterval is the resolution of subqueries that name none. 0: 1 minute
	SubqueryInterval time.Duration
	Tracing          string // Thanos' YAML; "" sends none

	Flags  map[string]string // as status/flags shows them
	Logger *slog.Logger
}

// Query is a querier over many stores in one process. Use NewQuery, then Run once.
type Query struct {
	opts      QueryOptions
	reg       *registry
	engine    *promql.Engine
	endpoints *fanout.Endpoints
	fanout    *fanout.Fanout
	tracing   *tracing
	listener  net.Listener
	grpc      *grpcServer
	gate      *gate
	handler   http.Handler
	started   time.Time
}

// NewQuery builds the process and begins to listen; no store is asked yet.
func NewQuery(opts QueryOptions) (_ *Query, err error) {
	opts.Web = opts.Web.withDefaults()
	q := &Query{opts: opts, reg: newRegistry(), gate: &gate{}, started: time.Now().UTC()}
	defer func() {
		if err != nil {
			_ = q.free()
		}
	}()
	if q.tracing, err = newTracing(opts.Tracing, "ferula-query"); err != nil {
		return nil, fmt.Errorf("tracing.config: %w", err)
	}
	if q.engine, err = promql.New(opts.Query, opts.Logger.With("component", "promql"), q.reg); err != nil {
		return nil, fmt.Errorf("query options: %w", err)
	}
	if opts.SubqueryInterval > 0 {
		q.engine.SetEvaluationInterval(opts.SubqueryInterval)
	}
	q.opts.Stores.Lookback = q.engine.LookbackDelta()
	dial, err := opts.Client.dialer()
	if err != nil {
		return nil, fmt.Errorf("gRPC client: %w", err)
	}
	endpoints := opts.Endpoints
	endpoints.Dial, endpoints.Logger, endpoints.Metrics = dial, opts.Logger.With("component", "endpoints"), q.reg.own
	q.endpoints = fanout.NewEndpoints(endpoints)
	many := opts.Fanout
	many.Dedup, many.IsCounter, many.Counter = dedup.Penalty, dedup.IsCounter, dedup.Counter
	if opts.Chain {
		many.Dedup, many.IsCounter = dedup.Chain, func(string) bool { return false }
	}
	q.fanout = fanout.New(q.endpoints, many)
	if q.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	store := opts.StoreAPI
	store.Metrics = q.reg.own
	opts.GRPC.warnOpenBeside(opts.Web, opts.Logger)
	if q.grpc, err = newGRPCServer(opts.GRPC, opts.Logger, q.reg, func(to *grpc.Server) {
		storeapi.NewServer(q.fanout.Source(), store).Register(to)
	}); err != nil {
		return nil, err
	}
	external, err := externalURL(opts.Web.ExternalURL, q.listener.Addr())
	if err != nil {
		return nil, fmt.Errorf("external URL %q: %w", redactedURL(opts.Web.ExternalURL), err)
	}
	q.handler, err = q.newHandler(routePrefix(opts.Web.RoutePrefix, external), external)
	return q, err
}

// newHandler joins the API, the page and the operational endpoints.
func (q *Query) newHandler(prefix string, external *url.URL) (http.Handler, error) {
	origin, err := corsOrigin(q.opts.Web.CORSOrigin)
	if q.opts.DisableCORS {
		origin, err = corsOrigin("[^\x00-\U0010FFFF]") // matches nothing
	}
	if err != nil {
		return nil, err
	}
	endpoints := http.NewServeMux()
	api.New(api.Options{
		Engine:        q.engine,
		Parser:        q.engine.Parser,
		Stores:        manyStores{q.fanout, q.endpoints},
		StoreDefaults: q.opts.Stores,
		StoreTimeout:  cmp.Or(q.opts.Query.Timeout, promql.TimeoutByDefault),
		Gatherer:      q.reg,
		Flags:         q.opts.Flags,
		BuildInfo:     buildInfo(),
		RuntimeInfo:   q.runtimeInfo,
		Ready:         q.gate.wrap,
		ExternalURL:   external,
		ListenAddress: q.listener.Addr().String(),
		CORSOrigin:    origin,
		Logger:        q.opts.Logger.With("component", "api"),
	}).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	var answers http.Handler = endpoints
	if q.opts.Tracing != "" {
		answers = otelhttp.NewHandler(endpoints, "query", otelhttp.WithTracerProvider(q.tracing.provider), otelhttp.WithPropagators(q.tracing.propagator))
	}
	mux.Handle(prefix+"/api/", answers)
	mux.Handle("GET "+prefix+"/metrics", metricsHandler(q.reg, q.opts.Logger))
	q.opts.Web.operational(mux, prefix, q.gate)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
		q.opts.Web.operational(mux, "", q.gate) // Thanos has these at the root too
		mux.Handle("GET /metrics", metricsHandler(q.reg, q.opts.Logger))
	}
	return mux, nil
}

func (q *Query) runtimeInfo() (api.RuntimeInfo, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return api.RuntimeInfo{}, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return api.RuntimeInfo{}, err
	}
	return api.RuntimeInfo{StartTime: q.started, CWD: cwd, Hostname: hostname, ReloadConfigSuccess: true, LastConfigTime: q.started}, nil
}

// Addr is the address listened on for HTTP.
func (q *Query) Addr() net.Addr { return q.listener.Addr() }

// GRPCAddr is the address listened on for gRPC; nil if there is none.
func (q *Query) GRPCAddr() net.Addr { return q.grpc.addr() }

// Run serves until ctx ends or something fails, and drains. It is ready once every
// store was asked what it holds, or did not answer in time.
func (q *Query) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := q.opts.Web.server(q.reg.observed(q.handler), q.opts.Logger)
	var serving, work sync.WaitGroup
	serving.Go(func() {
		if err := q.opts.Web.serve(q.listener, server, q.opts.Logger); err != nil {
			stop(fmt.Errorf("web server: %w", err))
		}
	})
	serving.Go(func() {
		if err := q.grpc.serve(); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			stop(fmt.Errorf("gRPC server: %w", err))
		}
	})
	// Running requests still need the stores while they drain.
	finding, found := context.WithCancel(context.Background())
	defer found()
	work.Go(func() {
		q.endpoints.Update(ctx)
		q.gate.ready()
		q.grpc.ready()
		q.opts.Logger.Info("Ready", "url", q.opts.Web.scheme()+"://"+q.listener.Addr().String()+"/", "stores", len(q.endpoints.Statuses()))
		q.endpoints.Run(finding)
	})
	<-ctx.Done()
	q.gate.stopping()
	q.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	err := errors.Join(q.opts.Web.drain(server), q.grpc.drain())
	serving.Wait()
	found()
	work.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, q.free())
}

// free lets go of what NewQuery took.
func (q *Query) free() error {
	var errs []error
	if q.listener != nil {
		_ = q.listener.Close()
	}
	if q.engine != nil {
		errs = append(errs, q.engine.Close())
	}
	if q.tracing != nil {
		errs = append(errs, q.tracing.close())
	}
	return errors.Join(errs...)
}

// manyStores is a fan-out as the API sees it.
type manyStores struct {
	fanout    *fanout.Fanout
	endpoints *fanout.Endpoints
}

func (m manyStores) query(p api.StoreParams) *fanout.Query {
	return m.fanout.Queryable(fanout.Request{
		ReplicaLabels: p.ReplicaLabels, AbortOnPartial: !p.Partial, MaxResolutionMS: p.MaxResolution.Milliseconds(), Stores: p.Stores,
	})
}

// Queryable implements api.Stores.
func (m manyStores) Queryable(p api.StoreParams) storage.Queryable { return m.query(p) }

// Exemplars implements api.Stores.
func (m manyStores) Exemplars(ctx context.Context, p api.StoreParams, start, end int64, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	return m.query(p).Exemplars(ctx, start, end, selectors)
}

// MetricMetadata implements api.Stores.
func (m manyStores) MetricMetadata(ctx context.Context, p api.StoreParams, metric string, limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	return m.query(p).MetricMetadata(ctx, metric, limit)
}

// Targets implements api.Stores.
func (m manyStores) Targets(ctx context.Context, p api.StoreParams, state string) (storeapi.Targets, annotations.Annotations, error) {
	return m.query(p).Targets(ctx, state)
}

// Rules implements api.Stores.
func (m manyStores) Rules(ctx context.Context, p api.StoreParams, kind string) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	return m.query(p).Rules(ctx, kind)
}

// Statuses implements api.Stores.
func (m manyStores) Statuses() []api.StoreStatus {
	var all []api.StoreStatus
	for _, s := range m.endpoints.Statuses() {
		all = append(all, api.StoreStatus{
			Name: s.Name, Component: s.Component, LastCheck: s.LastCheck, LastError: s.LastError, LabelSets: s.LabelSets, MinMS: s.MinMS, MaxMS: s.MaxMS,
		})
	}
	return all
}
