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

// ErrLabelMissing is returned for a series without a label that all were said to
// have.
var ErrLabelMissing = errors.New("series of remote read lack a label that is to be taken away")

// WithoutQuerier is what RawQuerier's querier can do beside.
type WithoutQuerier interface {
	series.Querier
	// SelectWithout selects series that all have these labels, and takes them away.
	// Prometheus sorts its series before it puts its external labels on, so that it
	// is without them that they are in order as they come: inOrder says that they
	// are, and that none need be held to sort them. It is an error if they are not.
	SelectWithout(ctx context.Context, without labels.Labels, inOrder bool, matchers ...*labels.Matcher) series.Set
	// SelectUnordered is SelectWithout for a caller that sorts: series come in the order
	// of the server, a label set may come twice, and none is held.
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
			set.windowBytes = set.holdBytesMax // it was sorted with the labels
		}
		return &lacking{source: from, without: encoded}, nil
	}
	return set
}

// SelectUnordered implements WithoutQuerier.
func (q *clientQuerier) SelectUnordered(ctx context.Context, without labels.Labels, matchers ...*labels.Matcher) series.Set {
	set := q.SelectWithout(ctx, without, false, matchers...)
	set.(*ordered).asTheyCome = true
	return set
}

// lacking is a source whose series lose labels.
type lacking struct {
	source
	without   []byte
	labels    []byte
	following []byte
}

func (s *lacking) next() error {
	err := s.source.next()
	if err == nil {
		s.labels, err = s.strip(s.labels[:0], s.source.Labels())
	}
	return err
}

// strip appends a set without the labels; both are in the order of their names.
func (s *lacking) strip(dst, set []byte) ([]byte, error) {
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
		return dst, fmt.Errorf("%w: %s has not all of %s", ErrLabelMissing, labelsText(set), labelsText(s.without))
	}
	return dst, nil
}

func (s *lacking) Labels() []byte { return s.labels }

func (s *lacking) ahead() []byte {
	set := s.source.ahead()
	if set == nil {
		return nil
	}
	var err error
	if s.following, err = s.strip(s.following[:0], set); err != nil {
		return nil // next finds it
	}
	return s.following
}
