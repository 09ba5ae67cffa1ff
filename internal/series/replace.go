package series

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ErrSortLimit is returned if series must be sorted again and need more bytes than the limit.
var ErrSortLimit = errors.New("too many bytes to sort")

// MatchExternal compares matchers with external labels, which replace a series' own labels of the
// same names. rest has the matchers on other names. ok is false if a matcher on the name of an
// external label does not match its value.
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

// SelectReplacingLabels selects series, sets the external labels, which replace a series' own labels of the same names,
// and removes the labels named in without. This is the rule of StoreAPI; SelectWithExternalLabels implements the
// rule of remote read. The matchers do not apply to the external labels.
//
// If no series has a label that is set or removed, the external labels are added while streaming. Otherwise
// the order of the series changes, so all series are read, copied and sorted, up to sortBytesMax bytes. Series
// whose new labels are equal are merged into one series with the chunks of all.
func SelectReplacingLabels(ctx context.Context, q Querier, opts SelectOptions, external labels.Labels, without []string,
	sortBytesMax int, matchers ...*labels.Matcher) Set {
	return SelectReplacingLabelsWithin(ctx, q, opts, external, without, NewSortBudget(sortBytesMax), matchers...)
}

// SortBudget bounds the bytes of series that several sets of one request hold to sort them.
// It is not safe for concurrent use: the sets are read by one goroutine.
type SortBudget struct{ used, max int }

// NewSortBudget returns a budget of bytesMax bytes.
func NewSortBudget(bytesMax int) *SortBudget { return &SortBudget{max: bytesMax} }

// SelectReplacingLabelsWithin is SelectReplacingLabels with a budget that other sets use too.
func SelectReplacingLabelsWithin(ctx context.Context, q Querier, opts SelectOptions, external labels.Labels,
	without []string, budget *SortBudget, matchers ...*labels.Matcher) Set {
	if external.IsEmpty() && len(without) == 0 {
		return q.Select(ctx, opts, matchers...)
	}
	names, err := q.LabelNames(ctx, opts, matchers...)
	if err != nil {
		return Failed(err)
	}
	var gone []string // names of series' own labels that are removed or replaced
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
	set := q.Select(ctx, opts, matchers...)
	switch {
	case len(gone) > 0:
		return &resorted{set: set, gone: gone, add: add, budget: budget, labelsOnly: opts.LabelsOnly}
	case len(add) == 0:
		return set
	}
	return &extendedSet{set: set, add: add, lastName: labelenc.LastName(add)}
}

// resorted removes labels from the series of a set, adds others, and sorts the series by the new labels. The first Next
// reads the whole set.
type resorted struct {
	set        Set
	gone       []string // names of labels to remove
	add        []byte   // labels to add, encoded
	budget     *SortBudget
	labelsOnly bool // the chunks of set are not needed

	all     []heldSeries
	read    bool // all was filled
	current heldSeries
	err     error
}

// heldSeriesBytes estimates the size of a held series without its labels and chunks.
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
	clear(r.all[:n]) // so that returned series can be freed
	r.all = r.all[n:]
	return true
}

// collect reads, copies and sorts the whole set.
func (r *resorted) collect() error {
	var remaining []byte // labels that are not removed
	for r.set.Next() {
		var err error
		if remaining, err = labelenc.AppendWithout(remaining[:0], r.set.Labels(), r.gone); err != nil {
			return err
		}
		held := heldSeries{}
		if held.labels, err = labelenc.AppendMerged(nil, r.add, remaining); err != nil {
			return err
		}
		if !r.labelsOnly {
			held.keepChunks(r.set.Chunks())
		}
		if r.budget.used += heldSeriesBytes + len(held.labels) + len(held.data) +
			64*len(held.chunks); r.budget.used > r.budget.max {
			return fmt.Errorf("%w: removing or replacing labels %q, which series have themselves, needs more than %d bytes to sort", ErrSortLimit, r.gone, r.budget.max)
		}
		r.all = append(r.all, held)
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

// WithoutLabels removes labels from the series of a set and sorts the series again, up to
// sortBytesMax bytes. Series with equal resulting labels are merged into one.
func WithoutLabels(set Set, names []string, sortBytesMax int) Set {
	return &resorted{set: set, gone: names, budget: NewSortBudget(sortBytesMax)}
}
