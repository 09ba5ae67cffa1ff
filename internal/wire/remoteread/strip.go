package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// ErrLabelMissing is returned for a series that does not have all labels that
// SelectWithout is to remove.
var ErrLabelMissing = errors.New("series of remote read lacks a label that is to be removed")

// WithoutQuerier extends the querier of RawQuerier.
type WithoutQuerier interface {
	series.Querier
	// SelectWithout selects series that all have the labels in without, and removes these labels.
	// Prometheus sorts series before it adds its external labels, so its series arrive sorted by
	// the remaining labels. inOrder states that the server sorts in this way: then no series is
	// buffered for sorting, and series out of order are an error.
	SelectWithout(ctx context.Context, without labels.Labels, inOrder bool, matchers ...*labels.Matcher) series.Set
	// SelectUnordered is SelectWithout for a caller that sorts. Series come in the order
	// of the server, a label set may occur twice, and none is buffered.
	SelectUnordered(ctx context.Context, without labels.Labels, matchers ...*labels.Matcher) series.Set
}

var _ WithoutQuerier = (*clientQuerier)(nil)

// SelectWithout implements WithoutQuerier.
func (q *clientQuerier) SelectWithout(ctx context.Context, without labels.Labels, inOrder bool, matchers ...*labels.Matcher) series.Set {
	set := q.sel(ctx, nil, matchers)
	if without.IsEmpty() {
		return set
	}
	open, encoded := set.open, labelenc.Append(nil, without)
	set.open = func() (source, error) {
		from, err := open()
		if err != nil {
			return nil, err
		}
		if _, chunks := from.(*frameSource); chunks && inOrder {
			set.windowBytes = 0
		} else if set.windowBytes == 0 {
			set.windowBytes = set.holdBytesMax // the source sorted the series with the labels that are removed
		}
		return &labelStripper{source: from, without: encoded}, nil
	}
	return set
}

// SelectUnordered implements WithoutQuerier.
func (q *clientQuerier) SelectUnordered(ctx context.Context, without labels.Labels, matchers ...*labels.Matcher) series.Set {
	set := q.SelectWithout(ctx, without, false, matchers...)
	set.(*orderedSet).unordered = true
	return set
}

// labelStripper removes labels by name and value from the series of a source.
type labelStripper struct {
	source
	without   []byte
	labels    []byte
	following []byte
}

func (s *labelStripper) next() error {
	err := s.source.next()
	if err == nil {
		s.labels, err = s.strip(s.labels[:0], s.source.Labels())
	}
	return err
}

// strip appends set without the labels. Both are sorted by name.
func (s *labelStripper) strip(dst, set []byte) ([]byte, error) {
	without := s.without
	for rest := set; len(rest) > 0; {
		_, _, after, err := labelenc.Next(rest)
		if err != nil {
			return dst, err
		}
		label := rest[:len(rest)-len(after)]
		if bytes.HasPrefix(without, label) {
			without = without[len(label):]
		} else {
			dst = append(dst, label...)
		}
		rest = after
	}
	if len(without) > 0 {
		return dst, fmt.Errorf("%w: %s does not have all of %s", ErrLabelMissing, labelsText(set), labelsText(s.without))
	}
	return dst, nil
}

func (s *labelStripper) Labels() []byte { return s.labels }

func (s *labelStripper) ahead() []byte {
	set := s.source.ahead()
	if set == nil {
		return nil
	}
	var err error
	if s.following, err = s.strip(s.following[:0], set); err != nil {
		return nil // next returns the error
	}
	return s.following
}
