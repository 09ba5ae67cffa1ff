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

// externalInUseMax limits how many external label names may also be names of series'
// own labels: each one doubles the number of selections.
const externalInUseMax = 4

// ExternalSelector is a Querier over several storages, some of which add the external labels themselves. It adds the
// labels to the series of those that do not.
type ExternalSelector interface {
	Querier
	// SelectWithExternal implements SelectWithExternalLabels for this Querier.
	SelectWithExternal(ctx context.Context, external labels.Labels, matchers ...*labels.Matcher) Set
}

// SelectWithExternalLabels selects as if every series had the external labels of this
// server: matchers of every type apply to them, a series' own label wins over an external
// label of the same name, and the set is sorted by the resulting labels.
//
// If a series has its own label with the name of an external label, its position in the
// order depends on the value. Such series are therefore selected separately from those
// without the label, and the selections are merged.
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
		return Failed(fmt.Errorf("series already have labels with the names of %d external labels (%q), at most %d are supported", len(inUse), inUse, externalInUseMax))
	}
	var sets []Set
	for subset := range 1 << len(inUse) {
		var own []string // external label names that the series of this selection have as own labels
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

// selectPart selects the series that have, of all external label names, exactly those in own as labels of their own. It
// returns nil if the external labels do not match.
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
	return &extendedSet{set: set, add: add, lastName: labelenc.LastName(add)}
}

// extendedSet adds the same labels to every series of a set. No series of the set has a
// label with one of these names.
//
// Adding labels changes the order in one case only. {a} sorts before {a, b}, because it is a prefix. If a label that
// sorts after b is added to both, {a} sorts after {a, b}. A series whose last label name is less than the last
// added name is therefore copied and held until a series follows that is greater in the new order. Few label sets are
// prefixes of others, so few copies are held if the set knows its next series (Ahead). Otherwise every series with such a
// last name is copied.
type extendedSet struct {
	set      Set
	add      []byte
	lastName []byte // name of the last label in add

	labels  []byte // of set's current series with the added labels
	pending bool   // labels was not returned yet
	done    bool
	held    []*heldSeries // descending: the least is the last
	free    []*heldSeries
	current *heldSeries // nil: the current series of set
	numbers []uint64
	err     error
}

type heldSeries struct {
	labels  []byte
	numbers []uint64 // of the labels, if they have any
	chunks  []Chunk
	data    []byte
}

func (w *extendedSet) Next() bool {
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
		// Label sets that begin with this one follow immediately: if the next does not begin with it, none does.
		if next, ok := w.set.(interface{ Ahead() []byte }); ok && len(w.held) == 0 {
			if ahead := next.Ahead(); ahead != nil && !bytes.HasPrefix(ahead, w.set.Labels()) {
				return true
			}
		}
		w.hold()
	}
}

// advance reads the next series of set. It returns false after a failure.
func (w *extendedSet) advance() bool {
	if !w.set.Next() {
		w.done = true
		w.err = w.set.Err()
		return w.err == nil
	}
	w.labels, w.err = labelenc.AppendMerged(w.labels[:0], w.set.Labels(), w.add)
	w.pending = true
	return w.err == nil
}

func (w *extendedSet) hold() {
	h := &heldSeries{}
	if n := len(w.free); n > 0 {
		h, w.free = w.free[n-1], w.free[:n-1]
	}
	h.labels = append(h.labels[:0], w.labels...)
	h.numbers = append(h.numbers[:0], w.mergedNumbers()...)
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
	h.data = slices.Grow(h.data[:0], size) // so that append below does not reallocate
	for i, c := range h.chunks {
		start := len(h.data)
		h.data = append(h.data, c.Data...)
		h.chunks[i].Data, h.chunks[i].Mapped = h.data[start:], false
	}
}

func (w *extendedSet) Labels() []byte {
	if w.current != nil {
		return w.current.labels
	}
	return w.labels
}

func (w *extendedSet) Chunks() []Chunk {
	if w.current != nil {
		return w.current.chunks
	}
	return w.set.Chunks()
}

func (w *extendedSet) Err() error                        { return w.err }
func (w *extendedSet) Warnings() annotations.Annotations { return w.set.Warnings() }
