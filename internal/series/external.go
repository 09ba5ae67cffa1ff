package series

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// externalInUseMax limits how many names of external labels may also be names of labels that series have
// themselves. Each such name doubles the number of selections.
const externalInUseMax = 4

// SelectWithExternalLabels selects as if every series had the external labels of this
// server: matchers of every type apply to them, a series' own label wins over an external
// label of the same name, and the set is sorted by the resulting labels.
//
// A series that has its own label with the name of an external label is already sorted by the
// value of its own label. A series without such a label moves when the external label is added.
// The function therefore selects both kinds of series separately, and merges the selections.
func SelectWithExternalLabels(ctx context.Context, q Querier, external labels.Labels, matchers ...*labels.Matcher) Set {
	if external.IsEmpty() || q.Capabilities().External {
		return q.Select(ctx, SelectOptions{External: external}, matchers...)
	}
	names, err := q.LabelNames(ctx, SelectOptions{})
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
		return Failed(fmt.Errorf("series already have labels with the names of %d external labels (%q), "+
			"at most %d are supported", len(inUse), inUse, externalInUseMax))
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

// selectPart selects the series that have their own labels with the names in own, and no own label with the name of
// another external label. It adds these other external labels. It returns nil if one of them does not match.
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
	set := q.Select(ctx, SelectOptions{}, part...)
	if len(add) == 0 {
		return set
	}
	return &extendedSet{set: set, add: add, lastName: labelenc.LastName(add)}
}

// extendedSet adds the same labels to every series of a set. No series of the set has a
// label with one of these names.
//
// Added labels change the order of two series only if one label set is a prefix of the other: {a="1"} sorts before
// {a="1", b="1"}, but {a="1", z="1"} sorts after {a="1", b="1", z="1"}. Only a series whose last label name is less
// than the last added name can be such a prefix. extendedSet copies such a series and holds the copy until the next
// series of the set is greater in the new order. It copies nothing if the set is an Ahead, and the current label set is
// not a prefix of the labels ahead.
type extendedSet struct {
	set      Set
	add      []byte
	lastName []byte // name of the last label in add

	labels  []byte // of set's current series with the added labels
	pending bool   // labels was not returned yet
	done    bool
	held    []*heldSeries // descending: the least is the last
	free    []*heldSeries
	current *heldSeries // series that Labels and Chunks return; nil: the current series of set
	err     error
}

type heldSeries struct {
	labels []byte
	chunks []Chunk
	data   []byte
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
		// The label sets that begin with the current one follow it immediately. If the next label set does not begin
		// with the current one, no later one does.
		if next, ok := w.set.(Ahead); ok && len(w.held) == 0 {
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

// hold copies the current series, with the added labels, to w.held.
func (w *extendedSet) hold() {
	h := &heldSeries{}
	if n := len(w.free); n > 0 {
		h, w.free = w.free[n-1], w.free[:n-1]
	}
	h.labels = append(h.labels[:0], w.labels...)
	h.chunks, h.data = CopyChunks(h.chunks, h.data, w.set.Chunks())
	w.held = append(w.held, h)
}

// CopyChunks copies chunks to dst and their data to data, from the beginning of both, and returns both.
func CopyChunks(dst []Chunk, data []byte, chunks []Chunk) ([]Chunk, []byte) {
	dst = append(dst[:0], chunks...)
	size := 0
	for _, c := range dst {
		size += len(c.Data)
	}
	data = slices.Grow(data[:0], size) // so that append below does not reallocate
	for i, c := range dst {
		start := len(data)
		data = append(data, c.Data...)
		dst[i].Data, dst[i].Mapped = data[start:], false
	}
	return dst, data
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
