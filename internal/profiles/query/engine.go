// Package query queries profiles: values over time with exemplars, and sums of profiles as
// flame graphs or pprof.
//
// A request names a type, matchers and a range. A View of the store has the sources: heads and blocks. There are two
// kinds of queries:
//
//   - Values over time: the matching series of each source are assigned to groups by the labels of the request's
//     group-by. A scan adds the rows of these series to accumulators, one for each group and step. An accumulator also
//     stores which row is its exemplar. Profile IDs and labels are looked up for exemplars only.
//   - Sums of profiles: a merge sums the samples of each source by stack, and joins the stacks of all sources by
//     function name, or by line for pprof.
//
// A corrupt source is skipped and named in the warnings of the result.
package query

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/series/labelenc"

	"github.com/ferula-io/ferula/internal/profiles/store"
	instruments "github.com/ferula-io/ferula/metrics"
)

// Viewer is a store of profiles.
type Viewer interface {
	View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error)
	Stats(tenant string) (profiles.Stats, error)
}

const (
	nodesMax = 4_000_000 // of a merged tree
	idsMax   = 10_000    // profile IDs of one request
)

// Options of an Engine. Zero values are replaced by defaults.
type Options struct {
	ConcurrencyMax int           // concurrent queries, further ones wait; 0: 20
	Timeout        time.Duration // of one query, including the wait for a slot; 0: 2 minutes
	RangeMax       time.Duration // limit of the range of one query; 0: no limit
	// a block that cannot be read fails the query; false: the response is partial, with a warning
	FailPartial bool
	Flags       hint.Flags // names of the flags that raise the limits, for errors

	Logger  *slog.Logger     // logs each block that cannot be read; nil: no log
	Metrics *instruments.Set // nil: not exposed
}

func (o Options) withDefaults() Options {
	o.ConcurrencyMax = cmp.Or(o.ConcurrencyMax, 20)
	o.Timeout = cmp.Or(o.Timeout, 2*time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Metrics = cmp.Or(o.Metrics, instruments.NewSet())
	return o
}

// Engine runs profile queries. It is safe for concurrent use.
type Engine struct {
	opts       Options
	store      Viewer
	pool       sync.Pool     // of *selection
	slots      chan struct{} // of running queries
	partialLog *partialLog
	pointsMax  int // limit of groups times steps of one query
}

// New returns an engine over a store.
func New(opts Options, s Viewer) *Engine {
	opts = opts.withDefaults()
	e := &Engine{opts: opts, store: s, slots: make(chan struct{}, opts.ConcurrencyMax), partialLog: newPartialLog(opts),
		pointsMax: 2_000_000}
	process.Gauge(opts.Metrics, "ferula_profiles_queries_running", "Running profile queries.",
		func() float64 { return float64(len(e.slots)) })
	process.Gauge(opts.Metrics, "ferula_profiles_queries_max", "Profile queries that may run at once.",
		func() float64 { return float64(cap(e.slots)) })
	return e
}

// admit checks a query's range and waits for a slot. It returns the context with which the
// query must run: it has the timeout, which includes the wait. The query must call done at its
// end.
func (e *Engine) admit(ctx context.Context, startMS, endMS int64) (_ context.Context, done func(), err error) {
	if most := e.opts.RangeMax.Milliseconds(); most > 0 && endMS > startMS &&
		uint64(endMS)-uint64(startMS) > uint64(most) {
		return nil, nil, fmt.Errorf("%w: the range of %s exceeds the limit of %s%s", profiles.ErrLimit,
			inWords(uint64(endMS)-uint64(startMS)), e.opts.RangeMax, e.opts.Flags.Of("RangeMax"))
	}
	ctx, cancel := context.WithTimeout(ctx, e.opts.Timeout)
	select {
	case e.slots <- struct{}{}:
		return ctx, func() { cancel(); <-e.slots }, nil
	default:
	}
	select {
	case e.slots <- struct{}{}:
		return ctx, func() { cancel(); <-e.slots }, nil
	case <-ctx.Done():
		defer cancel()
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, nil, ctx.Err()
		}
		return nil, nil, fmt.Errorf("%w: %d profile queries are running, and none ended in time", profiles.ErrLimit,
			cap(e.slots))
	}
}

// inWords formats milliseconds as a duration.
func inWords(ms uint64) string {
	if ms > math.MaxInt64/uint64(time.Millisecond) {
		return "more than 292 years"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// view admits a query and returns a view of the sources in a range. The query must call done at its end.
func (e *Engine) view(ctx context.Context, tenant string, startMS, endMS, minNS, maxNS int64) (_ context.Context,
	view *store.View, done func(), err error) {
	ctx, admitted, err := e.admit(ctx, startMS, endMS)
	if err != nil {
		return nil, nil, nil, err
	}
	if view, err = e.store.View(ctx, tenant, minNS, maxNS); err != nil {
		admitted()
		return nil, nil, nil, err
	}
	return ctx, view, func() { view.Close(); admitted() }, nil
}

// Stats returns the time range of a tenant's profiles.
func (e *Engine) Stats(tenant string) (profiles.Stats, error) { return e.store.Stats(tenant) }

// farthestMS is later than any profile. Greater timestamps are reduced to it, so that nanoseconds
// do not overflow.
const farthestMS = 8_000_000_000_000

// span converts a range in milliseconds, inclusive, to nanoseconds.
func span(startMS, endMS int64) (minNS, maxNS int64, err error) {
	if startMS > endMS {
		return 0, 0, fmt.Errorf("%w: start %d is after end %d", profiles.ErrBadRequest, startMS, endMS)
	}
	startMS, endMS = max(0, min(startMS, farthestMS)), max(-1, min(endMS, farthestMS))
	return startMS * 1e6, endMS*1e6 + 999_999, nil
}

func matches(set []byte, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(string(labelenc.Value(set, m.Name))) {
			return false
		}
	}
	return true
}

// seriesOf returns the series of a source and the number of a type in it. There are no series without the type.
func seriesOf(src block.Source, t profiles.Type) (series []block.Series, number uint32, err error) {
	n := slices.Index(src.Types(), t)
	if n >= 0 {
		series, err = src.Series()
	}
	return series, uint32(n), err
}
