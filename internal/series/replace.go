package series

import (
	"cmp"
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

// SortBudget bounds the bytes of series that several sets of one request hold to sort them.
// It is not safe for concurrent use: the sets are read by one goroutine.
type SortBudget struct{ used, max int }

// NewSortBudget returns a budget of bytesMax bytes; 0: 256 MiB.
func NewSortBudget(bytesMax int) *SortBudget { return &SortBudget{max: cmp.Or(bytesMax, 256<<20)} }

// SelectReplacingLabels selects series, sets the external labels, which replace a series' own labels of the same names,
// and removes the labels named in without. This is the rule of StoreAPI; SelectWithExternalLabels implements the
// rule of remote read. The matchers do not apply to the external labels.
//
// If no series has a label that is set or removed, the external labels are added while streaming. Otherwise
// the order of the series changes, so all series are read, copied and sorted, within the budget. Series
// whose new labels are equal are merged into one series with the chunks of all.
func SelectReplacingLabels(ctx context.Context, q Querier, opts SelectOptions, external labels.Labels, without []string,
	budget *SortBudget, matchers ...*labels.Matcher) Set {
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
		return replaced(set, gone, add, budget, opts.LabelsOnly)
	case len(add) == 0:
		return set
	}
	return &extendedSet{set: set, add: add, lastName: labelenc.LastName(add)}
}

// WithoutLabels removes labels from the series of a set and sorts the series again, up to
// sortBytesMax bytes; 0: 256 MiB. Series with equal resulting labels are merged into one.
func WithoutLabels(set Set, names []string, sortBytesMax int) Set {
	return replaced(set, names, nil, NewSortBudget(sortBytesMax), false)
}

// replaced removes labels from the series of a set, adds others, and sorts the series by the new labels.
func replaced(set Set, gone []string, add []byte, budget *SortBudget, labelsOnly bool) Set {
	why := fmt.Sprintf("removing or replacing labels %q, which series have themselves, needs", gone)
	read := func(keep func([]byte, []Chunk) error) error {
		var remaining, lset []byte // labels that are not removed, and the new labels
		for set.Next() {
			var err error
			if remaining, err = labelenc.AppendWithout(remaining[:0], set.Labels(), gone); err != nil {
				return err
			}
			if lset, err = labelenc.AppendMerged(lset[:0], add, remaining); err != nil {
				return err
			}
			chunks := set.Chunks()
			if labelsOnly {
				chunks = nil
			}
			if err := keep(lset, chunks); err != nil {
				return err
			}
		}
		return set.Err()
	}
	return Sorted(budget, why, func(keep func([]byte, []Chunk) error) (annotations.Annotations, error) {
		err := read(keep)
		return set.Warnings(), err
	})
}

// Sorted returns the series that fill passes to keep, in any order, sorted by labels. Series with equal labels are merged
// into one. The first Next calls fill, and keep copies every series. why begins the error of a budget that does not
// suffice, and is followed by "more than … bytes to sort".
func Sorted(budget *SortBudget, why string,
	fill func(keep func(lset []byte, chunks []Chunk) error) (annotations.Annotations, error)) Set {
	return &sorted{budget: budget, why: why, fill: fill}
}

type sorted struct {
	budget *SortBudget
	why    string
	fill   func(keep func([]byte, []Chunk) error) (annotations.Annotations, error) // nil: it was called

	all      []heldSeries
	current  heldSeries
	warnings annotations.Annotations
	err      error
}

// heldSeriesBytes estimates the size of a held series without its labels and chunks.
const heldSeriesBytes = 128

func (s *sorted) Next() bool {
	if s.fill != nil {
		s.warnings, s.err = s.fill(s.keep)
		if s.fill = nil; s.err != nil {
			s.all = nil
			return false
		}
		slices.SortStableFunc(s.all, func(a, b heldSeries) int { return labelenc.Compare(a.labels, b.labels) })
	}
	if len(s.all) == 0 {
		return false
	}
	n := 1
	for n < len(s.all) && labelenc.Compare(s.all[0].labels, s.all[n].labels) == 0 {
		n++
	}
	s.current = s.all[0]
	if n > 1 {
		for _, same := range s.all[1:n] {
			s.current.chunks = append(s.current.chunks, same.chunks...)
		}
		s.current.chunks = Tidy(s.current.chunks)
	}
	clear(s.all[:n]) // so that returned series can be freed
	s.all = s.all[n:]
	return true
}

func (s *sorted) keep(lset []byte, chunks []Chunk) error {
	held := heldSeries{labels: slices.Clone(lset)}
	held.chunks, held.data = CopyChunks(held.chunks, held.data, chunks)
	if s.budget.used += heldSeriesBytes + len(held.labels) + len(held.data) +
		64*len(held.chunks); s.budget.used > s.budget.max {
		return fmt.Errorf("%w: %s more than %d bytes to sort", ErrSortLimit, s.why, s.budget.max)
	}
	s.all = append(s.all, held)
	return nil
}

func (s *sorted) Labels() []byte                    { return s.current.labels }
func (s *sorted) Chunks() []Chunk                   { return s.current.chunks }
func (s *sorted) Err() error                        { return s.err }
func (s *sorted) Warnings() annotations.Annotations { return s.warnings }
