package prometheusstore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// listedSet is a series.Set of label sets that are listed in any order. The first call of
// Next reads and sorts all of them.
type listedSet struct {
	list     func(f func(labels.Labels) error) (warnings []string, err error)
	bytesMax int

	read     bool
	buf      []byte // encoded label sets, concatenated
	sets     []span
	current  []byte
	warnings []string
	err      error
}

// span is a label set in listedSet.buf.
type span struct{ from, to int }

// spanBytes is the memory of a span, in addition to the encoded labels.
const spanBytes = 16

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

func (l *listedSet) at(s span) []byte { return l.buf[s.from:s.to:s.to] }

// collect reads all label sets into l.buf and sorts l.sets. It returns series.ErrSortLimit if they take more than
// bytesMax bytes.
func (l *listedSet) collect() (err error) {
	sorted := true
	l.warnings, err = l.list(func(lset labels.Labels) error {
		from := len(l.buf)
		l.buf = labelenc.Append(l.buf, lset)
		l.sets = append(l.sets, span{from, len(l.buf)})
		if len(l.buf)+spanBytes*len(l.sets) > l.bytesMax {
			return fmt.Errorf("%w: the labels of the matching series exceed %d bytes", series.ErrSortLimit, l.bytesMax)
		}
		n := len(l.sets)
		sorted = sorted && (n == 1 || labelenc.Compare(l.at(l.sets[n-2]), l.at(l.sets[n-1])) <= 0)
		return nil
	})
	if err != nil {
		l.buf, l.sets = nil, nil
		return toStore(err)
	}
	if !sorted {
		slices.SortFunc(l.sets, func(a, b span) int { return labelenc.Compare(l.at(a), l.at(b)) })
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
	for _, warning := range l.warnings {
		all.Add(errors.New(warning))
	}
	return all
}
