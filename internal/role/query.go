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

// QueryOptions are the options of `ferula query`.
type QueryOptions struct {
	Web         WebOptions
	DisableCORS bool
	GRPC        GRPCOptions
	StoreAPI    storeapi.ServerOptions // limits of the StoreAPI server
	Client      StoreClientOptions
	Endpoints   fanout.EndpointsOptions // Dial, Logger and Metrics are set by NewQuery
	Fanout      fanout.Options          // Dedup, IsCounter and Counter are set by NewQuery
	Chain       bool                    // deduplicate by merging all replicas; default: penalty, which picks one replica at a time
	Stores      api.StoreDefaults       // Lookback is set by NewQuery
	Query       promql.Options
	// SubqueryInterval is the default step of subqueries; 0: 1 minute.
	SubqueryInterval time.Duration
	Tracing          string // Thanos' tracing configuration in YAML; "" sends no spans

	Flags  map[string]string // as returned by status/flags
	Logger *slog.Logger
}

// Query is a process that queries many stores. Call NewQuery, then Run once.
type Query struct {
	opts      QueryOptions
	reg       *registry
	engine    *promql.Engine
	endpoints *fanout.Endpoints
	fanout    *fanout.Fanout
	tracing   *tracing
	listener  net.Listener
	grpc      *grpcServer
	readiness *readiness
	handler   http.Handler
	started   time.Time
}

// NewQuery builds the process and opens its listeners. It sends no request to a store.
func NewQuery(opts QueryOptions) (_ *Query, err error) {
	opts.Web = opts.Web.withDefaults()
	q := &Query{opts: opts, reg: newRegistry(), readiness: &readiness{}, started: time.Now().UTC()}
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
	fan := opts.Fanout
	fan.Dedup, fan.IsCounter, fan.Counter = dedup.Penalty, dedup.IsCounter, dedup.Counter
	if opts.Chain {
		fan.Dedup, fan.IsCounter = dedup.Chain, func(string) bool { return false }
	}
	q.fanout = fanout.New(q.endpoints, fan)
	if q.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	store := opts.StoreAPI
	store.Metrics = q.reg.own
	opts.GRPC.warnAnonymous(opts.Web, opts.Logger)
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

// newHandler routes requests to the API, the web UI and the debug endpoints.
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
		Stores:        storeSet{q.fanout, q.endpoints},
		StoreDefaults: q.opts.Stores,
		StoreTimeout:  cmp.Or(q.opts.Query.Timeout, promql.TimeoutByDefault),
		Gatherer:      q.reg,
		Flags:         q.opts.Flags,
		BuildInfo:     buildInfo(),
		RuntimeInfo:   q.runtimeInfo,
		Ready:         q.readiness.wrap,
		ExternalURL:   external,
		ListenAddress: q.listener.Addr().String(),
		CORSOrigin:    origin,
		Logger:        q.opts.Logger.With("component", "api"),
	}).Register(endpoints, prefix+"/api/v1")
	mux := http.NewServeMux()
	var apiHandler http.Handler = endpoints
	if q.opts.Tracing != "" {
		apiHandler = otelhttp.NewHandler(endpoints, "query", otelhttp.WithTracerProvider(q.tracing.provider), otelhttp.WithPropagators(q.tracing.propagator))
	}
	mux.Handle(prefix+"/api/", apiHandler)
	mux.Handle("GET "+prefix+"/metrics", metricsHandler(q.reg, q.opts.Logger))
	q.opts.Web.registerDebugEndpoints(mux, prefix, q.readiness)
	mux.Handle(prefix+"/", ui.Handler(prefix))
	if prefix != "" {
		mux.Handle("GET /{$}", http.RedirectHandler(prefix+"/", http.StatusFound))
		q.opts.Web.registerDebugEndpoints(mux, "", q.readiness) // Thanos serves these without the prefix too
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

// Addr returns the HTTP listen address.
func (q *Query) Addr() net.Addr { return q.listener.Addr() }

// GRPCAddr returns the gRPC listen address; nil without a gRPC server.
func (q *Query) GRPCAddr() net.Addr { return q.grpc.addr() }

// Run serves until ctx is canceled or a server fails, then drains running requests.
// The process is ready once every store has returned its Info or timed out.
func (q *Query) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := q.opts.Web.server(q.reg.instrumented(q.handler), q.opts.Logger)
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
	// Running requests need the stores until they are drained.
	updateCtx, stopUpdates := context.WithCancel(context.Background())
	defer stopUpdates()
	work.Go(func() {
		q.endpoints.Update(ctx)
		q.readiness.ready()
		q.grpc.ready()
		q.opts.Logger.Info("Ready", "url", q.opts.Web.scheme()+"://"+q.listener.Addr().String()+"/", "stores", len(q.endpoints.Statuses()))
		q.endpoints.Run(updateCtx)
	})
	<-ctx.Done()
	q.readiness.stopping()
	q.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	err := errors.Join(q.opts.Web.drain(server), q.grpc.drain())
	serving.Wait()
	stopUpdates()
	work.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, q.free())
}

// free releases the resources of NewQuery.
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

// storeSet implements api.Stores on the fan-out and its endpoints.
type storeSet struct {
	fanout    *fanout.Fanout
	endpoints *fanout.Endpoints
}

func (m storeSet) query(p api.StoreParams) *fanout.Query {
	return m.fanout.Queryable(fanout.Request{
		ReplicaLabels: p.ReplicaLabels, AbortOnPartial: !p.Partial, MaxResolutionMS: p.MaxResolution.Milliseconds(), Stores: p.Stores,
	})
}

// Queryable implements api.Stores.
func (m storeSet) Queryable(p api.StoreParams) storage.Queryable { return m.query(p) }

// Exemplars implements api.Stores.
func (m storeSet) Exemplars(ctx context.Context, p api.StoreParams, start, end int64, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	return m.query(p).Exemplars(ctx, start, end, selectors)
}

// MetricMetadata implements api.Stores.
func (m storeSet) MetricMetadata(ctx context.Context, p api.StoreParams, metric string, limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	return m.query(p).MetricMetadata(ctx, metric, limit)
}

// Targets implements api.Stores.
func (m storeSet) Targets(ctx context.Context, p api.StoreParams, state string) (storeapi.Targets, annotations.Annotations, error) {
	return m.query(p).Targets(ctx, state)
}

// Rules implements api.Stores.
func (m storeSet) Rules(ctx context.Context, p api.StoreParams, kind string) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	return m.query(p).Rules(ctx, kind)
}

// Statuses implements api.Stores.
func (m storeSet) Statuses() []api.StoreStatus {
	var all []api.StoreStatus
	for _, s := range m.endpoints.Statuses() {
		all = append(all, api.StoreStatus{
			Name: s.Name, Component: s.Component, LastCheck: s.LastCheck, LastError: s.LastError, LabelSets: s.LabelSets, MinMS: s.MinMS, MaxMS: s.MaxMS,
		})
	}
	return all
}
