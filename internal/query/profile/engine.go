// Package profile answers what is asked of profiles: values over time with the
// profiles that stand for them, and sums of profiles as flame graphs or pprof.
//
// A request names a type, matchers and a range. A View of the store gives heads and
// blocks; of each source the matching series get a group, and a scan adds its rows
// to cells, one for each group and step, in which only the place of the best profile
// is kept. Ids and labels are looked up once, for the winners. Merges add samples to
// an array by stack, source by source, and put stacks together by name, or for pprof
// by line, at the end. A source that turns out to be corrupt is left out, and the
// answer says so. There is no wire, no HTTP and no selector language here.
package profile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"

	store "github.com/ferula-io/ferula/internal/store/profile"
	instruments "github.com/ferula-io/ferula/metrics"
)

// Viewer is a store of profiles.
type Viewer interface {
	View(ctx context.Context, tenant string, minNS, maxNS int64) (*store.View, error)
	Stats(tenant string) (profiles.Stats, error)
}

// Options of an Engine. A zero field takes the default.
type Options struct {
	PointsMax int // groups times steps of one query; 0: 2,000,000
	NodesMax  int // of a merged tree; 0: 4,000,000
	IDsMax    int // profiles that one request may name; 0: 10,000

	ConcurrencyMax int           // queries at once, further ones wait; 0: 20
	Timeout        time.Duration // of one query, its wait for a slot included; 0: 2 minutes
	RangeMax       time.Duration // between start and end of one query; 0: no limit
	FailPartial    bool          // a query that would lack a block fails instead

	Logger  *slog.Logger     // gets one line for each block that cannot be read; nil: no log
	Metrics *instruments.Set // nil: nobody sees them
}

func (o Options) withDefaults() Options {
	if o.PointsMax <= 0 {
		o.PointsMax = 2_000_000
	}
	if o.NodesMax <= 0 {
		o.NodesMax = 4_000_000
	}
	if o.IDsMax <= 0 {
		o.IDsMax = 10_000
	}
	if o.ConcurrencyMax <= 0 {
		o.ConcurrencyMax = 20
	}
	if o.Timeout <= 0 {
		o.Timeout = 2 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = instruments.NewSet()
	}
	return o
}

// Engine answers. It is safe for concurrent use.
type Engine struct {
	opts  Options
	store Viewer
	pool  sync.Pool     // of *selection
	slots chan struct{} // of running queries
	lacks *lacks
}

// New makes an engine over a store.
func New(opts Options, s Viewer) *Engine {
	opts = opts.withDefaults()
	e := &Engine{opts: opts, store: s, slots: make(chan struct{}, opts.ConcurrencyMax), lacks: newLacks(opts)}
	gauge := func(name, help string, value func() float64) {
		opts.Metrics.Describe("ferula_profiles_"+name, help, "")
		opts.Metrics.NewGauge("ferula_profiles_"+name, value)
	}
	gauge("queries_running", "Profile queries that run.", func() float64 { return float64(len(e.slots)) })
	gauge("queries_max", "Profile queries that may run at once.", func() float64 { return float64(cap(e.slots)) })
	return e
}

// admit checks a query's range and waits for a slot. The query runs with the
// context, which ends with its time, and calls done at its end.
func (e *Engine) admit(ctx context.Context, startMS, endMS int64) (_ context.Context, done func(), err error) {
	if most := e.opts.RangeMax.Milliseconds(); most > 0 && endMS > startMS && uint64(endMS)-uint64(startMS) > uint64(most) {
		return nil, nil, fmt.Errorf("%w: the range of %s is longer than %s", profiles.ErrLimit, inWords(uint64(endMS)-uint64(startMS)), e.opts.RangeMax)
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
		return nil, nil, fmt.Errorf("%w: %d profile queries run at once, and none ended in time", profiles.ErrLimit, cap(e.slots))
	}
}

// inWords writes a number of milliseconds as a duration.
func inWords(ms uint64) string {
	if ms > math.MaxInt64/uint64(time.Millisecond) {
		return "more than 292 years"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// Stats are the times that a tenant's profiles span.
func (e *Engine) Stats(tenant string) (profiles.Stats, error) { return e.store.Stats(tenant) }

// farthestMS is later than any profile; a time past it means the same.
const farthestMS = 8_000_000_000_000

// span turns a range in milliseconds, inclusive, into nanoseconds.
func span(startMS, endMS int64) (minNS, maxNS int64, err error) {
	if startMS > endMS {
		return 0, 0, fmt.Errorf("%w: the range is upside down: start %d is after end %d", profiles.ErrBadRequest, startMS, endMS)
	}
	startMS, endMS = max(0, min(startMS, farthestMS)), max(-1, min(endMS, farthestMS))
	return startMS * 1e6, endMS*1e6 + 999_999, nil
}

// find looks a label up in an encoded set, aliasing it.
func find(set []byte, name string) []byte {
	for len(set) > 0 {
		n, v, rest, err := labelenc.Next(set)
		if err != nil {
			return nil
		}
		if string(n) == name {
			return v
		}
		set = rest
	}
	return nil
}

func matches(set []byte, matchers []*labels.Matcher) bool {
	for _, m := range matchers {
		if !m.Matches(string(find(set, m.Name))) {
			return false
		}
	}
	return true
}

// typeOf is the number that a type has in a source, or -1.
func typeOf(src block.Source, t profiles.Type) int {
	for i, other := range src.Types() {
		if other == t {
			return i
		}
	}
	return -1
}

// addValues is a sum that stays the biggest there is.
func addValues(a, b int64) int64 {
	if sum := a + b; sum >= 0 {
		return sum
	}
	return math.MaxInt64
}
