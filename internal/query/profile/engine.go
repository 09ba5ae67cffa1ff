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
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"

	store "github.com/ferula-io/ferula/internal/store/profile"
)

// Viewer is a store of profiles.
type Viewer interface {
	View(tenant string, minNS, maxNS int64) (*store.View, error)
	Stats(tenant string) (profiles.Stats, error)
}

// Options of an Engine. A zero field takes the default.
type Options struct {
	CellsMax int // groups times steps of one query; 0: 2,000,000
	NodesMax int // of a merged tree; 0: 4,000,000
	IDsMax   int // profiles that one request may name; 0: 10,000
}

func (o Options) withDefaults() Options {
	if o.CellsMax <= 0 {
		o.CellsMax = 2_000_000
	}
	if o.NodesMax <= 0 {
		o.NodesMax = 4_000_000
	}
	if o.IDsMax <= 0 {
		o.IDsMax = 10_000
	}
	return o
}

// Engine answers. It is safe for concurrent use.
type Engine struct {
	opts  Options
	store Viewer
	pool  sync.Pool // of *selection
}

// New makes an engine over a store.
func New(opts Options, s Viewer) *Engine { return &Engine{opts: opts.withDefaults(), store: s} }

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

// withoutCorrupt runs f over sources until none of them is found corrupt or, where it
// lies elsewhere, cannot be read; f starts
// from nothing each time. It returns what was wrong with those left out.
func withoutCorrupt(view *store.View, f func(sources []block.Source) error) (warnings []error, err error) {
	sources, warnings := view.Sources, view.Warnings
	for {
		err := f(sources)
		var bad *badSource
		if !errors.As(err, &bad) || !(errors.Is(err, profiles.ErrCorrupt) || errors.Is(err, profiles.ErrUnavailable)) {
			return warnings, err
		}
		warnings = append(slices.Clip(warnings), err)
		kept := make([]block.Source, 0, len(sources))
		for _, src := range sources {
			if src != bad.source {
				kept = append(kept, src)
			}
		}
		sources = kept
	}
}

// badSource says in which source something went wrong.
type badSource struct {
	source block.Source
	err    error
}

func (b *badSource) Error() string { return b.source.Name() + ": " + b.err.Error() }
func (b *badSource) Unwrap() error { return b.err }

func in(src block.Source, err error) error {
	if err == nil {
		return nil
	}
	return &badSource{src, err}
}

// addValues is a sum that stays the biggest there is.
func addValues(a, b int64) int64 {
	if sum := a + b; sum >= 0 {
		return sum
	}
	return math.MaxInt64
}
