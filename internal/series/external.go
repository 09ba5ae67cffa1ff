package series

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// externalInUseMax bounds how many external labels' names series may have of
// their own: each one doubles the selections.
const externalInUseMax = 4

// ExternalSelector is a Querier of several storages, not all of which lack the
// external labels: it adds them itself, to each storage in the right way.
type ExternalSelector interface {
	Querier
	// SelectWithExternal is what the function SelectWithExternal does.
	SelectWithExternal(ctx context.Context, external labels.Labels, matchers ...*labels.Matcher) Set
}

// SelectWithExternal selects as if every series had the external labels, which
// are a server's own: matchers of every type see them, a series' own label wins,
// and the set is in the order of the labels that it gives.
//
// Where a series has an external label's name itself, its place among the others
// changes with the value; so such series are selected apart from those without,
// and the selections merged.
func SelectWithExternalLabels(ctx context.Context, q Querier, external labels.Labels, matchers ...*labels.Matcher) Set {
	if own, ok := q.(ExternalSelector); ok {
		return own.SelectWithExternal(ctx, external, matchers...)
	}
	if external.IsEmpty() {
		return q.Select(ctx, matchers...)
	}
	names, err := q.LabelNames(ctx)
	if err != nil {
		return Failed(err)
	}
	var inUse []string
	external.Range(func(l labels.Label) {
		if slices.Contains(names, l.Name) {
			inUse = append(inUse, l.Name)
		}
	})
	if len(inUse) > externalInUseMax {
		return Failed(fmt.Errorf("series have labels of their own named as %d of the external labels (%q), at most %d are supported", len(inUse), inUse, externalInUseMax))
	}
	var sets []Set
	for subset := range 1 << len(inUse) {
		var own []string // names that the series of this selection have themselves
		for i, name := range inUse {
			if subset>>i&1 == 1 {
				own = append(own, name)
			}
		}
		if set := selectPart(ctx, q, external, own, matchers); set != nil {
			sets = append(sets, set)
		}
	}
	return Merge(sets...)
}

// selectPart selects the series that have exactly the names of own themselves;
// nil if the external labels match none.
func selectPart(ctx context.Context, q Querier, external labels.Labels, own []string, matchers []*labels.Matcher) Set {
	var part []*labels.Matcher
	for _, m := range matchers {
		if !external.Has(m.Name) || slices.Contains(own, m.Name) {
			part = append(part, m)
		} else if !m.Matches(external.Get(m.Name)) {
			return nil
		}
	}
	var add []byte
	external.Range(func(l labels.Label) {
		kind := labels.MatchNotEqual
		if !slices.Contains(own, l.Name) {
			kind = labels.MatchEqual
			add = labelenc.AppendLabel(add, l.Name, l.Value)
		}
		part = append(part, labels.MustNewMatcher(kind, l.Name, ""))
	})
	set := q.Select(ctx, part...)
	if len(add) == 0 {
		return set
	}
	return &widened{set: set, add: add, lastName: labelenc.LastName(add)}
}

// widened adds the same labels to every series of a set, none of which has any
// of their names.
//
// Adding them changes the order in one case only: a set that others begin with,
// {a} before {a, b}, goes behind them if it gets a label that is greater than b.
// A series whose last name is less than that of the added labels is therefore
// held, as a copy, until one comes that is greater in the new order. Sets that
// begin one another are few, so the copies are, where a set knows its next series
// (Ahead); else every series whose last name is such is copied.
type widened struct {
	set      Set
	add      []byte
	lastName []byte

	labels  []byte // of set's current series, widened
	pending bool   // which was not given yet
	done    bool
	held    []*heldSeries // the least is the last
	free    []*heldSeries
	current *heldSeries // nil: set's own
	numbers []uint64
	err     error
}

type heldSeries struct {
	labels  []byte
	numbers []uint64 // of the labels, if they have any
	chunks  []Chunk
	data    []byte
}

func (w *widened) Next() bool {
	if w.current != nil {
		w.free = append(w.free, w.current)
		w.current = nil
	}
	if w.err != nil {
		return false
	}
	for {
		if !w.pending && !w.done && !w.advance() {
			return false
		}
		if n := len(w.held); n > 0 && (w.done || labelenc.Compare(w.held[n-1].labels, w.labels) < 0) {
			w.current, w.held = w.held[n-1], w.held[:n-1]
			return true
		}
		if w.done {
			return false
		}
		w.pending = false
		if bytes.Compare(labelenc.LastName(w.set.Labels()), w.lastName) >= 0 {
			return true
		}
		// Those that begin with a set follow it at once, so that without one there is none.
		if next, ok := w.set.(interface{ Ahead() []byte }); ok && len(w.held) == 0 {
			if ahead := next.Ahead(); ahead != nil && !bytes.HasPrefix(ahead, w.set.Labels()) {
				return true
			}
		}
		w.hold()
	}
}

// advance brings the next series of set; false is a failure.
func (w *widened) advance() bool {
	if !w.set.Next() {
		w.done = true
		w.err = w.set.Err()
		return w.err == nil
	}
	w.labels, w.err = labelenc.AppendMerged(w.labels[:0], w.set.Labels(), w.add)
	w.pending = true
	return w.err == nil
}

func (w *widened) hold() {
	h := &heldSeries{}
	if n := len(w.free); n > 0 {
		h, w.free = w.free[n-1], w.free[:n-1]
	}
	h.labels = append(h.labels[:0], w.labels...)
	h.numbers = append(h.numbers[:0], w.ownNumbers()...)
	h.keepChunks(w.set.Chunks())
	w.held = append(w.held, h)
}

// keepChunks copies chunks.
func (h *heldSeries) keepChunks(chunks []Chunk) {
	h.chunks = append(h.chunks[:0], chunks...)
	size := 0
	for _, c := range h.chunks {
		size += len(c.Data)
	}
	h.data = slices.Grow(h.data[:0], size) // so that it does not move below
	for i, c := range h.chunks {
		start := len(h.data)
		h.data = append(h.data, c.Data...)
		h.chunks[i].Data = h.data[start:]
	}
}

func (w *widened) Labels() []byte {
	if w.current != nil {
		return w.current.labels
	}
	return w.labels
}

func (w *widened) Chunks() []Chunk {
	if w.current != nil {
		return w.current.chunks
	}
	return w.set.Chunks()
}

func (w *widened) Err() error                        { return w.err }
func (w *widened) Warnings() annotations.Annotations { return w.set.Warnings() }
