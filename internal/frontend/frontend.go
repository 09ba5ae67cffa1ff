// Package frontend is an HTTP proxy that splits and caches queries in front of a
// Prometheus or a Thanos querier.
//
// A request of the Prometheus HTTP API comes in. A range query is split along time
// (split.go). Cached parts are read from a cache (package cache); the other parts are
// requested from the downstream, all at once (package downstream). The responses are
// spliced as they arrive (splice.go): bytes are copied, no sample is decoded, and
// a response of any size needs a few buffers only. Requests for label names, label values
// and series are split and cached, too; their lists are merged in memory, up to a limit.
// Every other request is streamed through.
//
// A response must never look complete and be wrong. Until the first byte is sent, a
// failure gets an error response with its status; later, the connection is aborted.
// There is no engine and no storage here. An expression is parsed only to find out
// whether it must not be split or cached.
package frontend

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpbody"
	instruments "github.com/ferula-io/ferula/metrics"
)

// Downstream sends requests to the server behind the frontend. downstream.Client
// implements it.
type Downstream interface {
	Open(ctx context.Context, r downstream.Request) (*downstream.Response, error)
}

// Options configure a Frontend. Zero values take the defaults.
type Options struct {
	Downstream Downstream
	Cache      *cache.Cache   // nil: no result cache
	LabelCache *cache.Cache   // nil: no cache of labels and series
	Admission  *limit.Limiter // of concurrent requests of each tenant, further ones wait; nil: no limit
	// Slots limits the concurrent calls of the downstream. A query acquires all slots it needs together. nil: no limit.
	Slots   *limit.Limiter
	Tenants limit.Tenants
	Limits  limit.Query

	Split         SplitOptions
	Parallelism   int  // parts of one query that are open at once; 0: 14
	AlignWithStep bool // move start and end to multiples of the step, as Thanos does
	// RequestDownsampled: if the request has max_source_resolution=auto, a part whose response has
	// no points is requested again with coarser data.
	RequestDownsampled bool
	// MaxFreshness is the minimum age of a step whose value may be cached; 0: 1m.
	MaxFreshness time.Duration
	// PartialResponse is the value of partial_response for range queries without that
	// parameter; "" adds none.
	PartialResponse string
	RangeRetries    int // of a range query or one part of it; 0: the client's default, negative: none
	InstantRetries  int // of a request that is neither a range query nor for labels or series; as above

	Labels LabelOptions
	Bodies *httpbody.Reader // reads request bodies; nil: with the defaults of its package

	ForwardHeaders []string      // names of client headers that are forwarded to the downstream
	TenantHeader   string        // client header that the downstream gets as limit.ThanosHeader; "": none
	NoCompression  bool          // do not compress responses, whatever the client accepts
	SlowerThan     time.Duration // log queries that take longer; 0: none, negative: all
	UserHeader     string        // logged as remote_user by the slow query log

	Logger     *slog.Logger
	Metrics    *instruments.Set              // nil: no metrics
	Tracer     trace.Tracer                  // one span for each request and stage; nil: none
	Propagator propagation.TextMapPropagator // reads the trace context of a request; nil: W3C Trace Context
	Now        func() time.Time
}

// LabelOptions are the settings of /labels, /label/<name>/values and /series.
type LabelOptions struct {
	Interval     time.Duration // of one part; 0: no split
	Parallelism  int           // 0: 14
	MaxFreshness time.Duration // 0: 1m
	DefaultRange time.Duration // of requests without start or end; 0: 24h
	// WholeIntervals extends the parts at the start and the end of a request to whole intervals, so
	// that they can be cached. The response may then have labels and series outside the requested
	// range.
	WholeIntervals  bool
	PartialResponse string
	Retries         int
	BytesMax        int64 // of all parts of a request, which are merged in memory; 0: 128 MiB
}

func (o Options) withDefaults() Options {
	o.Parallelism, o.Labels.Parallelism = cmp.Or(o.Parallelism, 14), cmp.Or(o.Labels.Parallelism, 14)
	o.MaxFreshness = cmp.Or(o.MaxFreshness, time.Minute)
	o.Labels.MaxFreshness = cmp.Or(o.Labels.MaxFreshness, time.Minute)
	o.Labels.DefaultRange = cmp.Or(o.Labels.DefaultRange, 24*time.Hour)
	o.Labels.BytesMax = cmp.Or(o.Labels.BytesMax, 128<<20)
	if o.Slots != nil { // a query acquires the slots of all its parts at once, so it must not have more parts than slots
		o.Parallelism = min(o.Parallelism, o.Slots.MaxPerRequest())
		o.Labels.Parallelism = min(o.Labels.Parallelism, o.Slots.MaxPerRequest())
	}
	o.Bodies = cmp.Or(o.Bodies, httpbody.NewReader(httpbody.Options{}))
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Tracer = cmp.Or(o.Tracer, noop.NewTracerProvider().Tracer(""))
	o.Propagator = cmp.Or[propagation.TextMapPropagator](o.Propagator, propagation.TraceContext{})
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Validate returns all faults of the options, joined.
func (o Options) Validate() error {
	var errs []error
	if o.Downstream == nil {
		errs = append(errs, errors.New("no downstream"))
	}
	if o.Parallelism < 0 || o.Labels.Parallelism < 0 {
		errs = append(errs, errors.New("--query-range.max-query-parallelism and --labels.max-query-parallelism must not be negative"))
	}
	if o.Cache != nil && o.Split.Interval == 0 && o.Split.MaxInterval == 0 {
		errs = append(errs, hint.Invalid("query-range.split-interval",
			errors.New("must be greater than 0 if --query-range.response-cache-config is set")))
	}
	if o.LabelCache != nil && o.Labels.Interval == 0 {
		errs = append(errs, hint.Invalid("labels.split-interval",
			errors.New("must be greater than 0 if --labels.response-cache-config is set")))
	}
	return errors.Join(append(errs, o.Split.Validate(), o.Tenants.Validate())...)
}

// Frontend is an http.Handler. It runs goroutines only while it serves a request.
type Frontend struct {
	opts            Options
	parser          parser.Parser
	metrics         *metrics
	splices         sync.Pool                            // of *splicing, to reuse their scanners and buffers
	unsorted        remembered[string, struct{}]         // queries that are not split again: their parts cannot be joined
	calls           *singleFlight                        // identical requests in progress
	repeats         remembered[responseID, sentResponse] // long responses from cached parts only
	readAheadBudget *semaphore.Weighted                  // readAheadTotalBytes, shared by all queries
}

// New returns a Frontend, or the faults of its options.
func New(opts Options) (*Frontend, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Frontend{
		opts: opts.withDefaults(),
		// Every feature that a downstream may have enabled is parsed. An expression that
		// this parser rejects is passed through unsplit.
		parser: parser.NewParser(parser.Options{
			EnableExperimentalFunctions: true, ExperimentalDurationExpr: true,
			EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
		}),
		metrics:         newMetrics(opts.Metrics),
		splices:         sync.Pool{New: func() any { return newSplicing() }},
		unsorted:        remembered[string, struct{}]{max: unsortedMax},
		calls:           newSingleFlight(),
		repeats:         remembered[responseID, sentResponse]{max: repeatsMax},
		readAheadBudget: semaphore.NewWeighted(readAheadTotalBytes),
	}, nil
}

// ServeHTTP implements http.Handler.
func (f *Frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, err := f.begin(w, r)
	if err != nil {
		e := classify(err)
		f.metrics.requests.With(kindOf(r.URL.Path).String(), strconv.Itoa(e.status), "").Inc()
		writeError(w, e)
		return
	}
	defer x.end()
	release, err := f.admit(x)
	if err != nil {
		e := classify(err)
		x.status = e.status
		writeError(w, e)
		return
	}
	defer release()
	if most := f.opts.Limits.TimeMax; most > 0 {
		ctx, cancel := context.WithTimeout(x.r.Context(), most)
		defer cancel()
		x.r = x.r.WithContext(ctx)
		x.deadline, _ = ctx.Deadline()
	}
	err = f.deduplicate(x, func() error {
		switch x.kind {
		case kindRange:
			return f.queryRange(x)
		case kindLabels:
			return f.metadata(x)
		default:
			return f.passThrough(x, x.query)
		}
	})
	if err != nil {
		f.fail(x, err)
	}
}
