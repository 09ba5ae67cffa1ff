package role

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ferula-io/ferula/internal/frontend"
	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/frontend/splice"
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
	// DownstreamMax limits the concurrent requests to the downstream; 0: 256. A lower
	// MaxConnsPerHost of the transport lowers it.
	DownstreamMax int
	Tracing       string // Thanos' tracing configuration in YAML; "" sends no spans
	// ProbeEvery is the interval of the downstream's readiness probes, which decide the
	// readiness of this process; 0: 10 s, negative: no probes, always ready.
	ProbeEvery time.Duration

	Logger *slog.Logger
}

// QueryFrontend is a query frontend process. Call NewQueryFrontend, then Run once.
type QueryFrontend struct {
	opts      QueryFrontendOptions
	reg       *registry
	client    *downstream.Client
	seen      *observedDownstream
	tracing   *tracing
	slots     *limit.Limiter // of concurrent requests to the downstream
	caches    []*cache.Cache
	listener  net.Listener
	readiness *readiness
	handler   http.Handler
}

// NewQueryFrontend builds the process and opens its listener.
func NewQueryFrontend(opts QueryFrontendOptions) (_ *QueryFrontend, err error) {
	opts.Web = opts.Web.withDefaults()
	q := &QueryFrontend{opts: opts, reg: newRegistry(), readiness: &readiness{}}
	defer func() {
		if err != nil {
			_ = q.free()
		}
	}()
	if q.tracing, err = newTracing(opts.Tracing, "ferula-query-frontend"); err != nil {
		return nil, fmt.Errorf("tracing.config: %w", err)
	}
	if opts.Tracing != "" {
		opts.Downstream.Wrap = q.tracing.roundTripper
	}
	if q.client, err = downstream.New(opts.Downstream, opts.Logger.With("component", "downstream"), q.reg.own); err != nil {
		return nil, fmt.Errorf("downstream: %w", err)
	}
	q.seen = &observedDownstream{Client: q.client}
	o := opts.Frontend
	o.Downstream, o.Logger, o.Metrics = q.seen, opts.Logger, q.reg.own
	o.Tracer, o.Propagator = q.tracing.provider.Tracer("ferula/frontend"), q.tracing.propagator
	if o.Cache, err = q.newCache(opts.RangeCache, "query_range"); err != nil {
		return nil, fmt.Errorf("query-range.response-cache-config: %w", err)
	}
	if o.LabelCache, err = q.newCache(opts.LabelCache, "labels"); err != nil {
		return nil, fmt.Errorf("labels.response-cache-config: %w", err)
	}
	admission, err := limit.New(opts.Limits, q.reg.own)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	o.Admission = admission
	slots, err := newSlots(opts, q.reg.own)
	if err != nil {
		return nil, fmt.Errorf("limits: %w", err)
	}
	q.slots, o.Slots = slots, slots
	front, err := frontend.New(o)
	if err != nil {
		return nil, err
	}
	if q.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	q.handler = q.newHandler(front)
	return q, nil
}

// newSlots returns the limiter of concurrent requests to the downstream. Its queue has
// no limit: only admitted requests wait in it, and admission limits their number.
func newSlots(opts QueryFrontendOptions, set *instruments.Set) (*limit.Limiter, error) {
	calls := cmp.Or(opts.DownstreamMax, 256)
	if perHost := opts.Downstream.Transport.MaxConnsPerHost; perHost != nil && *perHost > 0 {
		calls = min(calls, *perHost)
	}
	return limit.New(limit.Options{ConcurrencyMax: calls, TenantQueueMax: math.MaxInt, WaitMax: opts.Limits.WaitMax, Downstream: true}, set)
}

// newCache creates a results cache from its YAML configuration; nil if that is empty.
func (q *QueryFrontend) newCache(yaml, name string) (frontend.RangeCache, error) {
	if yaml == "" {
		return nil, nil
	}
	c, inert, err := cache.FromConfig([]byte(yaml), cache.Options{Name: name, Merge: mergeExtents}, q.opts.Logger.With("component", "cache", "cache", name), q.reg.own)
	if err != nil {
		return nil, err
	}
	if len(inert) > 0 {
		q.opts.Logger.Warn("Ignoring keys of the cache configuration that have no effect", "cache", name, "keys", inert)
	}
	q.caches = append(q.caches, c)
	return rangeCache{c}, nil
}

// mergeExtents joins adjacent cached extents into one response. The cache calls it when
// it compacts extents.
func mergeExtents(_ context.Context, dst io.Writer, sources []cache.Source) error {
	parts := make([]splice.Part, len(sources))
	for i, source := range sources {
		parts[i] = splice.Part{Body: source, Cut: true, FromMS: source.StartMS, ToMS: source.EndMS}
	}
	_, err := splice.New(splice.Options{}).Write(dst, parts)
	return err
}

// rangeCache implements frontend.RangeCache on a cache.
type rangeCache struct{ *cache.Cache }

// Lookup implements frontend.RangeCache.
func (k rangeCache) Lookup(ctx context.Context, key string, startMS, endMS int64) []frontend.Extent {
	found := k.Cache.Lookup(ctx, key, startMS, endMS)
	extents := make([]frontend.Extent, len(found))
	for i, e := range found {
		extents[i] = e
	}
	return extents
}

// Keep implements frontend.RangeCache.
func (k rangeCache) Keep(key string, startMS, endMS, stepMS int64) frontend.CacheWriter {
	return k.Cache.Writer(key, startMS, endMS, stepMS)
}

func (q *QueryFrontend) newHandler(front *frontend.Frontend) http.Handler {
	mux := http.NewServeMux()
	q.opts.Web.registerDebugEndpoints(mux, "", q.readiness)
	mux.Handle("GET /metrics", metricsHandler(q.reg, q.opts.Logger))
	mux.Handle("/", q.withCORS(guardForwarded(originGuard(nil), front)))
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

// Addr returns the listen address.
func (q *QueryFrontend) Addr() net.Addr { return q.listener.Addr() }

// Run serves until ctx is canceled or the server fails, then drains running requests.
func (q *QueryFrontend) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := q.opts.Web.server(q.reg.instrumented(q.handler), q.opts.Logger)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := q.opts.Web.serve(q.listener, server, q.opts.Logger); err != nil {
			stop(fmt.Errorf("web server: %w", err))
		}
	})
	q.opts.Logger.Info("Listening", "address", q.listener.Addr().String())
	q.followDownstream(ctx)
	q.readiness.stopping()
	q.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	err := q.opts.Web.drain(server)
	serving.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, q.free())
}

const (
	probeEvery   = 10 * time.Second
	probeTimeout = 5 * time.Second // or ProbeEvery if that is shorter
)

// followDownstream sets the readiness of the process to that of the downstream until
// ctx is canceled. Requests are forwarded regardless of it: readiness is for load
// balancers that choose among several frontends.
func (q *QueryFrontend) followDownstream(ctx context.Context) {
	every := q.opts.ProbeEvery
	if every == 0 {
		every = probeEvery
	}
	begun, reported := time.Now(), false
	for ctx.Err() == nil {
		var err error
		if every > 0 {
			err = q.probe(ctx)
		}
		// While all slots are in use, the probe waits like a query does. It may then time
		// out although the downstream is available.
		alive := err == nil || q.seen.since(begun) || q.readiness.isReady() && q.slots.Full()
		begun = time.Now()
		switch {
		case ctx.Err() != nil:
			return
		case alive && !q.readiness.isReady():
			q.readiness.ready()
			reported = false
			q.opts.Logger.Info("Ready", "url", q.opts.Web.scheme()+"://"+q.listener.Addr().String()+"/", "downstream", redactedURL(q.opts.Downstream.URL))
		case !alive && (q.readiness.isReady() || !reported):
			q.readiness.waiting()
			reported = true
			q.opts.Logger.Warn("Not ready: the downstream is not available", "downstream", redactedURL(q.opts.Downstream.URL), "err", err)
		}
		if every < 0 {
			<-ctx.Done()
			return
		}
		pause := every
		if !alive {
			pause = min(pause, 2*time.Second) // the downstream may be starting
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// probe requests /-/ready of the downstream. Every status below 500 means ready, also
// 404: a server may implement the query API without a readiness endpoint.
func (q *QueryFrontend) probe(ctx context.Context) error {
	timeout := probeTimeout
	if every := q.opts.ProbeEvery; every > 0 {
		timeout = min(timeout, every)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	resp, err := q.client.Open(ctx, downstream.Request{Path: "/-/ready", Retries: -1})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Status >= http.StatusInternalServerError {
		return fmt.Errorf("GET /-/ready returned status %d", resp.Status)
	}
	return nil
}

// observedDownstream records the time of the last successful response. A downstream
// that responds to queries is available although it is too busy for a probe.
type observedDownstream struct {
	*downstream.Client
	last atomic.Int64 // ns since the epoch
}

// Open implements frontend.Downstream.
func (s *observedDownstream) Open(ctx context.Context, r downstream.Request) (*downstream.Response, error) {
	resp, err := s.Client.Open(ctx, r)
	if err == nil && resp.Status < http.StatusInternalServerError {
		s.last.Store(time.Now().UnixNano())
	}
	return resp, err
}

// since reports whether there was a response after t.
func (s *observedDownstream) since(t time.Time) bool { return s.last.Load() > t.UnixNano() }

// free releases the resources of NewQueryFrontend.
func (q *QueryFrontend) free() error {
	var errs []error
	for _, c := range q.caches {
		errs = append(errs, c.Close())
	}
	if q.client != nil {
		q.client.Close()
	}
	if q.tracing != nil {
		errs = append(errs, q.tracing.close())
	}
	return errors.Join(errs...)
}
