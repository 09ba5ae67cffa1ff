package app

import (
	"cmp"
	"context"
	"log/slog"
	"math"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/redact"
	instruments "github.com/ferula-io/ferula/metrics"
)

// QueryFrontendOptions are the options of `ferula query-frontend`.
type QueryFrontendOptions struct {
	Web         WebOptions
	DisableCORS bool
	Downstream  downstream.Options
	Frontend    frontend.Options // Downstream, caches, Admission, Logger and Metrics are set by NewQueryFrontend
	// RangeCache and LabelCache are Thanos' response cache configurations in YAML; "":
	// no cache.
	RangeCache, LabelCache string
	Limits                 limit.Options
	// DownstreamMax limits the concurrent requests to the downstream; 0: 256. If
	// MaxConnsPerHost of the transport is lower, it is the limit.
	DownstreamMax int
	Tracing       string // Thanos' tracing configuration in YAML; "" sends no spans
	// ProbeEvery is the interval of the downstream's readiness probes, which decide the
	// readiness of this process; 0: 10 s.
	ProbeEvery time.Duration

	Logger *slog.Logger
}

// QueryFrontend is a query frontend process. Call NewQueryFrontend, then Run once.
type QueryFrontend struct {
	base
	opts    QueryFrontendOptions
	client  *downstream.Client
	probe   *downstream.Probe
	tracing *telemetry.Tracing
	slots   *limit.Limiter // of concurrent requests to the downstream
}

// NewQueryFrontend builds the process and opens its listener.
func NewQueryFrontend(opts QueryFrontendOptions) (_ *QueryFrontend, err error) {
	q := &QueryFrontend{opts: opts, base: newBase(opts.Web, opts.Logger)}
	defer q.release(&err)
	if q.tracing, err = q.trace(opts.Tracing, "ferula-query-frontend"); err != nil {
		return nil, err
	}
	opts.Downstream.Wrap = q.tracing.RoundTripper
	if q.client, err = downstream.New(opts.Downstream, opts.Logger.With("component", "downstream"),
		q.reg.Own); err != nil {
		return nil, err
	}
	q.probe = downstream.NewProbe(q.client, q.readiness())
	q.process.Add(process.Component{Name: "downstream", Run: q.probe.Run,
		Close: func() error { q.client.Close(); return nil }})
	o := opts.Frontend
	o.Downstream, o.Logger, o.Metrics = q.probe, opts.Logger, q.reg.Own
	o.Tracer, o.Propagator = q.tracing.Provider().Tracer("ferula/frontend"), propagation.TraceContext{}
	if o.Cache, err = q.newCache(opts.RangeCache, "query_range"); err != nil {
		return nil, hint.Invalid("query-range.response-cache-config", err)
	}
	if o.LabelCache, err = q.newCache(opts.LabelCache, "labels"); err != nil {
		return nil, hint.Invalid("labels.response-cache-config", err)
	}
	admission, err := limit.New(opts.Limits, q.reg.Own)
	if err != nil {
		return nil, err
	}
	o.Admission = admission
	slots, err := newSlots(opts, q.reg.Own)
	if err != nil {
		return nil, err
	}
	q.slots, o.Slots = slots, slots
	front, err := frontend.New(o)
	if err != nil {
		return nil, err
	}
	if err = q.listen(); err != nil {
		return nil, err
	}
	q.process.AddServer(q.webServer(q.reg.Instrumented(q.newHandler(front))))
	return q, nil
}

// newSlots returns the limiter of concurrent requests to the downstream. Its queue has
// no limit: only admitted requests wait in it, and admission limits their number.
func newSlots(opts QueryFrontendOptions, set *instruments.Set) (*limit.Limiter, error) {
	calls := cmp.Or(opts.DownstreamMax, 256)
	if perHost := opts.Downstream.Transport.MaxConnsPerHost; perHost != nil && *perHost > 0 {
		calls = min(calls, *perHost)
	}
	return limit.New(limit.Options{ConcurrencyMax: calls, TenantQueueMax: math.MaxInt, WaitMax: opts.Limits.WaitMax,
		Downstream: true}, set)
}

// newCache creates a results cache from its YAML configuration; nil if yaml is empty.
func (q *QueryFrontend) newCache(yaml, name string) (*cache.Cache, error) {
	if yaml == "" {
		return nil, nil
	}
	c, inert, err := frontend.NewCache(yaml, name, q.opts.Logger, q.reg.Own)
	if err != nil {
		return nil, err
	}
	if len(inert) > 0 {
		q.opts.Logger.Warn("Ignoring keys of the cache configuration that ferula does not need", "cache", name, "keys", inert)
	}
	q.process.Add(process.Component{Name: "cache " + name, Close: c.Close})
	return c, nil
}

func (q *QueryFrontend) newHandler(front *frontend.Frontend) http.Handler {
	mux := q.newMux()
	mux.Handle("/", q.withCORS(server.GuardForwarded(server.OriginGuard(nil), front)))
	return mux
}

// withCORS allows requests from pages of any origin, as Thanos does, unless DisableCORS
// is set.
func (q *QueryFrontend) withCORS(next http.Handler) http.Handler {
	if q.opts.DisableCORS {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Headers", "Accept, Accept-Encoding, Authorization, Content-Type, Origin")
		h.Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Access-Control-Expose-Headers", "Date, Server-Timing, X-Ferula-Cache")
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Run serves until ctx is canceled or the server fails, then drains running requests.
func (q *QueryFrontend) Run(ctx context.Context) error {
	q.opts.Logger.Info("Listening", "address", q.Addr().String())
	return q.process.Run(ctx)
}

// readiness returns the options of the probes. This process is ready while its downstream
// is. Requests are forwarded even if it is not ready: readiness is for load balancers
// that choose among several frontends.
func (q *QueryFrontend) readiness() downstream.ProbeOptions {
	to := redact.URL(q.opts.Downstream.URL)
	return downstream.ProbeOptions{
		Every:   q.opts.ProbeEvery,
		Busy:    func() bool { return q.slots.Full() },
		IsReady: q.process.IsReady,
		Ready: func() {
			q.process.Ready()
			q.opts.Logger.Info("Ready", "url", q.url(), "downstream", to)
		},
		Waiting: func(err error) {
			q.process.Waiting()
			q.opts.Logger.Warn("Not ready: the downstream is not available", "downstream", to, "err", err)
		},
	}
}
