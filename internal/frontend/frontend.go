// Package frontend stands between people who ask for graphs and the Prometheus
// that answers them.
//
// A request of the Prometheus HTTP API comes in. A range query is cut along time
// (split), what is known of it is taken from a cache, the rest is asked of the
// downstream, all parts at once (downstream), and the answers are laid end to end
// as they arrive (splice): bytes are copied, no sample is decoded, and an answer
// of any size passes through a few buffers. Everything else is streamed through.
//
// What must never happen is an answer that looks complete and is wrong. Until the
// first byte is out, a failure gets the status it deserves; after it, the
// connection is cut. There is no engine and no storage here, and an expression is
// parsed only to see what must not be cut or kept.
package frontend

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/frontend/split"
	instruments "github.com/ferula-io/ferula/metrics"
)

// Downstream answers what the frontend cannot. downstream.Client implements it.
type Downstream interface {
	Open(ctx context.Context, r downstream.Request) (*downstream.Response, error)
}

// Admission lets so many requests of each tenant in at once, and makes others
// wait.
type Admission interface {
	Acquire(ctx context.Context, tenant string) (release func(), err error)
}

// Slots are calls of the downstream that may be under way at once. A query takes all
// that it needs together. limit.Limiter implements it.
type Slots interface {
	// AcquireN waits for n slots, at most Most; free gives some of them back.
	AcquireN(ctx context.Context, tenant string, n int) (free func(some int), err error)
	MaxPerRequest() int
}

// Options are what a Frontend is made of and how it behaves. Zero values take
// the defaults.
type Options struct {
	Downstream Downstream
	Cache      RangeCache // nil: no result cache
	LabelCache RangeCache // nil: no cache of labels and series
	Admission  Admission  // nil: everybody at once
	Slots      Slots      // nil: as many calls of the downstream as there are parts
	Tenants    limit.Tenants
	Limits     limit.Query

	Split         split.Options
	Parallelism   int  // parts of one query that are open at once; 0: 14
	AlignWithStep bool // move start and end to multiples of the step, as Thanos does
	// MaxFreshness is how old a moment must be for its answer to be kept; 0: 1m.
	MaxFreshness time.Duration
	// PartialResponse is what a range query without that parameter asks for; "" adds
	// nothing.
	PartialResponse string
	RangeRetries    int // of a part of a range query; 0: the client's, negative: none
	InstantRetries  int

	Labels LabelOptions

	ForwardHeaders []string      // of a request, to the downstream
	TenantHeader   string        // reaches the downstream as limit.ThanosHeader instead; "": none
	NoCompression  bool          // of answers, whatever the client accepts
	SlowerThan     time.Duration // log queries that take longer; 0: none, negative: all
	UserHeader     string        // whose value the slow query log shows

	Logger     *slog.Logger
	Metrics    *instruments.Set // nil: none are kept
	Tracer     trace.Tracer     // of a span for each request and stage; nil: none
	Propagator propagation.TextMapPropagator
	Now        func() time.Time
}

// LabelOptions are about /labels, /label/<name>/values and /series.
type LabelOptions struct {
	Interval        time.Duration // of a piece; 0: no split
	Parallelism     int           // 0: 14
	MaxFreshness    time.Duration // 0: 1m
	DefaultRange    time.Duration // where a request names no times; 0: 24h
	PartialResponse string
	Retries         int
	BytesMax        int64 // of all pieces, which are united in memory; 0: 128 MiB
}

func (o Options) withDefaults() Options {
	if o.Parallelism == 0 {
		o.Parallelism = 14
	}
	if o.MaxFreshness == 0 {
		o.MaxFreshness = time.Minute
	}
	if o.Labels.Parallelism == 0 {
		o.Labels.Parallelism = 14
	}
	if o.Labels.MaxFreshness == 0 {
		o.Labels.MaxFreshness = time.Minute
	}
	if o.Labels.DefaultRange == 0 {
		o.Labels.DefaultRange = 24 * time.Hour
	}
	if o.Slots != nil { // longer parts rather than more than there can be
		o.Parallelism = min(o.Parallelism, o.Slots.MaxPerRequest())
		o.Labels.Parallelism = min(o.Labels.Parallelism, o.Slots.MaxPerRequest())
	}
	if o.Labels.BytesMax == 0 {
		o.Labels.BytesMax = 128 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Tracer == nil {
		o.Tracer = noop.NewTracerProvider().Tracer("")
	}
	if o.Propagator == nil {
		o.Propagator = propagation.TraceContext{}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Validate reports every fault of the options at once.
func (o Options) Validate() error {
	var errs []error
	if o.Downstream == nil {
		errs = append(errs, errors.New("no downstream"))
	}
	if o.Parallelism < 0 || o.Labels.Parallelism < 0 {
		errs = append(errs, errors.New("max query parallelism must not be negative"))
	}
	if o.Cache != nil && o.Split.Interval == 0 && o.Split.MaxInterval == 0 {
		errs = append(errs, errors.New("split queries interval should be greater than 0 when caching is enabled"))
	}
	if o.LabelCache != nil && o.Labels.Interval == 0 {
		errs = append(errs, errors.New("split labels interval should be greater than 0 when caching is enabled"))
	}
	return errors.Join(append(errs, o.Split.Validate(), o.Tenants.Validate())...)
}

// Frontend is an http.Handler. It owns no goroutine outside of a request.
type Frontend struct {
	opts    Options
	parser  parser.Parser
	metrics *metrics
	splices splicePool
	unsorted  *unsortedQueries
	calls  *singleFlight
	readAheadBudget   *semaphore.Weighted // bytes that parts are read ahead
}

// New makes a frontend.
func New(opts Options) (*Frontend, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &Frontend{
		opts: opts.withDefaults(),
		// Whatever a downstream may understand is looked at; what this parser does
		// not know is passed through whole.
		parser: parser.NewParser(parser.Options{
			EnableExperimentalFunctions: true, ExperimentalDurationExpr: true,
			EnableExtendedRangeSelectors: true, EnableBinopFillModifiers: true,
		}),
		metrics: newMetrics(opts.Metrics),
		unsorted:  newUnsortedQueries(),
		calls:  newSingleFlight(),
		readAheadBudget:   semaphore.NewWeighted(readAheadTotalBytes),
	}, nil
}

// ServeHTTP answers one request.
func (f *Frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x, err := f.begin(w, r)
	if err != nil {
		e := classify(err)
		f.metrics.rejected(kindOf(r.URL.Path), e.status)
		writeError(w, e)
		return
	}
	defer x.end()
	release, err := f.admit(x)
	if err != nil {
		f.reject(x, err)
		return
	}
	defer release()
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
