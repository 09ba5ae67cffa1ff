package series

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
)

// ErrTooMuchToSort is returned where series must be sorted anew and are too many
// for that.
var ErrSortLimit = errors.New("too many bytes to sort")

// MatchExternal splits off the matchers of external labels, which win over a
// series' own: ok is false if one of them does not match.
func MatchExternal(external labels.Labels, matchers []*labels.Matcher) (rest []*labels.Matcher, ok bool) {
	for _, m := range matchers {
		if !external.Has(m.Name) {
			rest = append(rest, m)
		} else if !m.Matches(external.Get(m.Name)) {
			return nil, false
		}
	}
	return rest, true
}

// SelectReplacing selects series, gives each of them the external labels, which
// win over their own, and takes the labels named in without away. It is the rule
// of StoreAPI; SelectWithExternal has that of remote read. The matchers do not
// see the external labels.
//
// Labels that no series carries itself are added as they pass. To take away or
// to override one that series do carry changes the order throughout, so these
// are collected and sorted, within sortBytesMax; series that become the same are
// then one, with the chunks of all.
func SelectReplacingLabels(ctx context.Context, q Querier, external labels.Labels, without []string, sortBytesMax int, matchers ...*labels.Matcher) Set {
	if external.IsEmpty() && len(without) == 0 {
		return q.Select(ctx, matchers...)
	}
	names, err := namesOf(ctx, q, matchers)
	if err != nil {
		return Failed(err)
	}
	var gone []string // names that series carry and lose
	for _, name := range without {
		if _, found := slices.BinarySearch(names, name); found {
			gone = append(gone, name)
		}
	}
	var add []byte
	external.Range(func(l labels.Label) {
		if !slices.Contains(without, l.Name) {
			add = labelenc.AppendLabel(add, l.Name, l.Value)
			if _, found := slices.BinarySearch(names, l.Name); found {
				gone = append(gone, l.Name)
			}
		}
	})
	set := q.Select(ctx, matchers...)
	switch {
	case len(gone) > 0:
		return &resorted{set: set, gone: gone, add: add, bytesMax: sortBytesMax}
	case len(add) == 0:
		return set
	}
	return &widened{set: set, add: add, lastName: labelenc.LastName(add)}
}

// resorted has other labels than its set, and is in their order.
type resorted struct {
	set      Set
	gone     []string
	add      []byte
	bytesMax int

	all     []heldSeries
	read    bool
	current heldSeries
	err     error
}

// heldSeriesBytes is about what a series takes beside its labels and chunks.
const heldSeriesBytes = 128

func (r *resorted) Next() bool {
	if !r.read {
		r.read = true
		if r.err = r.collect(); r.err != nil {
			r.all = nil
			return false
		}
	}
	if len(r.all) == 0 {
		return false
	}
	n := 1
	for n < len(r.all) && labelenc.Compare(r.all[0].labels, r.all[n].labels) == 0 {
		n++
	}
	r.current = r.all[0]
	if n > 1 {
		for _, same := range r.all[1:n] {
			r.current.chunks = append(r.current.chunks, same.chunks...)
		}
		r.current.chunks = tidy(r.current.chunks)
	}
	clear(r.all[:n]) // so that what was given can be freed
	r.all = r.all[n:]
	return true
}

// collect reads the whole set, copies it and sorts it.
func (r *resorted) collect() error {
	var kept []byte
	size := 0
	for r.set.Next() {
		var err error
		if kept, err = labelenc.AppendWithout(kept[:0], r.set.Labels(), r.gone); err != nil {
			return err
		}
		one := heldSeries{}
		if one.labels, err = labelenc.AppendMerged(nil, r.add, kept); err != nil {
			return err
		}
		one.keepChunks(r.set.Chunks())
		if size += heldSeriesBytes + len(one.labels) + len(one.data) + 64*len(one.chunks); size > r.bytesMax {
			return fmt.Errorf("%w: labels %q are carried by series themselves, so that without them or with others in their place all must be sorted again, and they have more than %d bytes", ErrSortLimit, r.gone, r.bytesMax)
		}
		r.all = append(r.all, one)
	}
	if err := r.set.Err(); err != nil {
		return err
	}
	slices.SortStableFunc(r.all, func(a, b heldSeries) int { return labelenc.Compare(a.labels, b.labels) })
	return nil
}

func (r *resorted) Labels() []byte                    { return r.current.labels }
func (r *resorted) Chunks() []Chunk                   { return r.current.chunks }
func (r *resorted) Err() error                        { return r.err }
func (r *resorted) Warnings() annotations.Annotations { return r.set.Warnings() }

// Without takes the labels of some names away from a set's series, and puts them in
// order anew, within sortBytesMax; series that become the same are then one.
func WithoutLabels(set Set, names []string, sortBytesMax int) Set {
	return &resorted{set: set, gone: names, bytesMax: sortBytesMax}
}
