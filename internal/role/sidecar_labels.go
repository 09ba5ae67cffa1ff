package role

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// LabelsOnly implements series.LabelsReader: Prometheus lists its series, and no chunk
// is read.
func (q *besideQuerier) LabelsOnly() series.Querier { return besideLabels{q} }

var _ series.LabelsReader = (*besideQuerier)(nil)

// besideLabels gives the labels of series as Prometheus lists them, which is without
// its external labels.
type besideLabels struct{ *besideQuerier }

// LabelNamesOf implements series.NamesOf: of all series, as above.
func (q besideLabels) LabelNamesOf(ctx context.Context, _ ...*labels.Matcher) ([]string, error) {
	names, _, err := q.api.LabelNames(ctx, nil, q.mint, q.maxt, 0)
	return names, toStore(err)
}

// LabelNames implements series.Querier.
func (q besideLabels) LabelNames(ctx context.Context) ([]string, error) { return q.LabelNamesOf(ctx) }

// Select implements series.Querier.
func (q besideLabels) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	return &listedSet{list: func(f func(labels.Labels) error) ([]string, error) {
		return q.api.Series(ctx, matchers, q.mint, q.maxt, f)
	}, bytesMax: q.sortBytes}
}

// listedSet is a list of label sets in any order. It is read as a whole, and sorted,
// with the first Next.
type listedSet struct {
	list     func(f func(labels.Labels) error) (warnings []string, err error)
	bytesMax int

	read     bool
	text     []byte // of all sets, one after the other
	sets     []textSpan
	current  []byte
	warnings []string
	err      error
}

type textSpan struct{ from, to int }

// textSpanBytes is what a set takes beside its labels.
const textSpanBytes = 16

// Next implements series.Set.
func (l *listedSet) Next() bool {
	if !l.read {
		l.read = true
		l.err = l.collect()
	}
	if l.err != nil {
		return false
	}
	for len(l.sets) > 0 {
		next := l.at(l.sets[0])
		l.sets = l.sets[1:]
		if l.current == nil || labelenc.Compare(l.current, next) != 0 {
			l.current = next
			return true
		}
	}
	return false
}

func (l *listedSet) at(s textSpan) []byte { return l.text[s.from:s.to:s.to] }

func (l *listedSet) collect() (err error) {
	sorted := true
	l.warnings, err = l.list(func(lset labels.Labels) error {
		from := len(l.text)
		l.text = labelenc.Append(l.text, lset)
		l.sets = append(l.sets, textSpan{from, len(l.text)})
		if len(l.text)+textSpanBytes*len(l.sets) > l.bytesMax {
			return fmt.Errorf("%w: the labels of the series that match have more than %d bytes", series.ErrSortLimit, l.bytesMax)
		}
		n := len(l.sets)
		sorted = sorted && (n == 1 || labelenc.Compare(l.at(l.sets[n-2]), l.at(l.sets[n-1])) <= 0)
		return nil
	})
	if err != nil {
		l.text, l.sets = nil, nil
		return toStore(err)
	}
	if !sorted {
		slices.SortFunc(l.sets, func(a, b textSpan) int { return labelenc.Compare(l.at(a), l.at(b)) })
	}
	return nil
}

// Labels implements series.Set.
func (l *listedSet) Labels() []byte { return l.current }

// Chunks implements series.Set.
func (*listedSet) Chunks() []series.Chunk { return nil }

// Err implements series.Set.
func (l *listedSet) Err() error { return l.err }

// Warnings implements series.Set.
func (l *listedSet) Warnings() annotations.Annotations {
	var all annotations.Annotations
	for _, text := range l.warnings {
		all.Add(errors.New(text))
	}
	return all
}
