// Package promql evaluates PromQL: Prometheus' engine with ferula's limits.
//
// The input is a query and a storage.Queryable, the output a promql.Result, whose points
// the engine owns until the query is closed. All limits of a query's evaluation are set
// here (samples in memory, timeout, concurrency, lookback). HTTP and JSON are elsewhere.
package promql

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/hint"
)

// TimeoutByDefault is the timeout of queries if Options have none.
const TimeoutByDefault = 2 * time.Minute

// Options limit the cost of queries. Zero values are replaced by Prometheus' defaults.
type Options struct {
	MaxSamples     int           // samples one query may hold in memory; 0: 50,000,000
	Timeout        time.Duration // of one query; 0: 2 minutes
	MaxConcurrency int           // concurrent queries, further ones wait; 0: 20
	LookbackDelta  time.Duration // lookback delta; 0: 5 minutes
	TrackerDir     string        // directory of the active query log; "" for none

	// Feature flags of Prometheus.
	ExperimentalFunctions  bool
	ExtendedRangeSelectors bool
	BinopFillModifiers     bool
	DelayedNameRemoval     bool
	PerStepStats           bool
	TypeAndUnitLabels      bool
	UseStartTimestamps     bool

	Flags hint.Flags // flags that raise the limits, by the names of options
	// SlotWaited is called with the time that a query waited for a slot. A query waits twice: before it is parsed and
	// before it is evaluated. May be nil.
	SlotWaited func(time.Duration)
	// Panicked is called when a panic has ended a query, whose error then is a runtime.Error. May be nil.
	Panicked func()
}

func (o Options) withDefaults() Options {
	o.MaxSamples = cmp.Or(o.MaxSamples, 50_000_000)
	o.Timeout = cmp.Or(o.Timeout, TimeoutByDefault)
	o.MaxConcurrency = cmp.Or(o.MaxConcurrency, 20)
	o.LookbackDelta = cmp.Or(o.LookbackDelta, 5*time.Minute)
	return o
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	if o.MaxSamples < 0 {
		errs = append(errs, hint.Invalid("query.max-samples", fmt.Errorf("%d is negative", o.MaxSamples)))
	}
	if o.Timeout < 0 {
		errs = append(errs, hint.Invalid("query.timeout", fmt.Errorf("%s is negative", o.Timeout)))
	}
	if o.MaxConcurrency < 0 {
		errs = append(errs, hint.Invalid("query.max-concurrency", fmt.Errorf("%d is negative", o.MaxConcurrency)))
	}
	if o.LookbackDelta < 0 {
		errs = append(errs, hint.Invalid("query.lookback-delta", fmt.Errorf("%s is negative", o.LookbackDelta)))
	}
	return errors.Join(errs...)
}

// Engine is Prometheus' engine. It also rejects queries that could take memory or time that no limit of Prometheus
// counts (see bounded), and counts the slots in use.
type Engine struct {
	*promql.Engine
	Parser               parser.Parser
	noStepSubqueryMS     atomic.Int64 // default step of subqueries
	defaultLookbackDelta time.Duration
	flags                hint.Flags
	opts                 promql.EngineOpts
	slots                *slots
	panicked             func() // may be nil
}

var _ promql.QueryEngine = (*Engine)(nil)

// NewParser returns the parser of an engine with these options.
func NewParser(opts Options) parser.Parser {
	return parser.NewParser(parser.Options{
		ExperimentalDurationExpr:     true, // always on in Prometheus 3.15
		EnableExperimentalFunctions:  opts.ExperimentalFunctions,
		EnableExtendedRangeSelectors: opts.ExtendedRangeSelectors,
		EnableBinopFillModifiers:     opts.BinopFillModifiers,
	})
}

// New returns an engine. Close it when no query is running.
func New(opts Options, logger *slog.Logger, reg prometheus.Registerer) (*Engine, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	e := &Engine{
		Parser:               NewParser(opts),
		defaultLookbackDelta: opts.LookbackDelta,
		flags:                opts.Flags,
		panicked:             opts.Panicked,
	}
	e.noStepSubqueryMS.Store(time.Minute.Milliseconds())
	engineOpts := promql.EngineOpts{
		Logger:                   logger,
		Reg:                      reg,
		MaxSamples:               opts.MaxSamples,
		Timeout:                  opts.Timeout,
		LookbackDelta:            opts.LookbackDelta,
		NoStepSubqueryIntervalFn: e.SubqueryStep,
		EnableAtModifier:         true,
		EnableNegativeOffset:     true,
		EnablePerStepStats:       opts.PerStepStats,
		EnableDelayedNameRemoval: opts.DelayedNameRemoval,
		EnableTypeAndUnitLabels:  opts.TypeAndUnitLabels,
		UseStartTimestamps:       opts.UseStartTimestamps,
		Parser:                   e.Parser,
	}
	e.opts = engineOpts
	e.opts.Reg = nil
	engineOpts.ActiveQueryTracker = make(gate, opts.MaxConcurrency)
	if opts.TrackerDir != "" {
		tracker, err := promql.NewActiveQueryTracker(opts.TrackerDir, opts.MaxConcurrency, logger)
		switch {
		case errors.Is(err, syscall.ENOSPC):
			logger.Error("Queries that run are not logged until a restart: the disk is full", "dir", opts.TrackerDir)
		case err != nil:
			return nil, fmt.Errorf("active query log in %s: %w", opts.TrackerDir, err)
		default:
			engineOpts.ActiveQueryTracker = tracker
		}
	}
	e.slots = &slots{QueryTracker: engineOpts.ActiveQueryTracker, waited: opts.SlotWaited}
	engineOpts.ActiveQueryTracker = e.slots
	e.Engine = promql.NewEngine(engineOpts)
	return e, nil
}

// SlotsInUse returns the number of query slots in use, and the number of all slots.
func (e *Engine) SlotsInUse() (used, all int) {
	return int(e.slots.used.Load()), e.slots.GetMaxConcurrent()
}

// Bare returns an engine for evaluating parts of the queries of e. It has the options of e, except that maxSamples
// is its limit of samples and that it has no slots, no query log and no metrics. It need not be closed.
func (e *Engine) Bare(maxSamples int) *promql.Engine {
	opts := e.opts
	opts.MaxSamples = maxSamples
	return promql.NewEngine(opts)
}

// MaxSamples returns the number of samples one query may hold in memory.
func (e *Engine) MaxSamples() int { return e.opts.MaxSamples }

// SubqueryStep returns the default step of subqueries, in ms. It does not depend on the range.
func (e *Engine) SubqueryStep(int64) int64 { return e.noStepSubqueryMS.Load() }

// SetEvaluationInterval sets the default step of subqueries. Prometheus takes it from global.evaluation_interval of the
// configuration.
func (e *Engine) SetEvaluationInterval(d time.Duration) { e.noStepSubqueryMS.Store(d.Milliseconds()) }

// LookbackDelta returns the lookback delta of requests that do not set one.
func (e *Engine) LookbackDelta() time.Duration { return e.defaultLookbackDelta }

// slots counts the slots in use, and observes how long queries wait for them.
type slots struct {
	promql.QueryTracker
	used   atomic.Int64
	waited func(time.Duration) // may be nil
}

// Insert implements promql.QueryTracker.
func (s *slots) Insert(ctx context.Context, query string) (int, error) {
	begun := time.Now()
	index, err := s.QueryTracker.Insert(ctx, query)
	if s.waited != nil {
		s.waited(time.Since(begun))
	}
	if err == nil {
		s.used.Add(1)
	}
	return index, err
}

// Delete implements promql.QueryTracker.
func (s *slots) Delete(index int) {
	s.used.Add(-1)
	s.QueryTracker.Delete(index)
}

// watched tells the engine of a panic.
type watched struct {
	promql.Query
	panicked func()
}

// Exec implements promql.Query.
func (w watched) Exec(ctx context.Context) *promql.Result {
	res := w.Query.Exec(ctx)
	if bug := runtime.Error(nil); errors.As(res.Err, &bug) {
		w.panicked()
	}
	return res
}

// gate limits concurrency if there is no directory for an active query log. Insert waits until a slot is free or the
// context is done.
type gate chan struct{}

var _ promql.QueryTracker = (gate)(nil)

// GetMaxConcurrent implements promql.QueryTracker.
func (g gate) GetMaxConcurrent() int { return cap(g) }

// Insert implements promql.QueryTracker.
func (g gate) Insert(ctx context.Context, _ string) (int, error) {
	select {
	case g <- struct{}{}:
		return 0, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// Delete implements promql.QueryTracker.
func (g gate) Delete(int) { <-g }

// Close implements promql.QueryTracker.
func (g gate) Close() error { return nil }
