package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// ErrLabelMissing is returned for a series that lacks a label which SelectWithout must
// remove, or has another value of it.
var ErrLabelMissing = errors.New("series of remote read lacks a label that is to be removed")

// SelectWithout removes the labels in without from every series. The matchers must select
// only series that have all of these labels: any other series ends the set with
// ErrLabelMissing.
//
// Prometheus sorts series before it adds its external labels, so its series arrive sorted by
// the remaining labels. inOrder states that the server sorts series in this way in a response
// of chunks. Then the client buffers a series only while the next series is smaller. If a
// series is smaller than one that was already returned, the set ends with ErrLimit. inOrder has
// no effect on a response of samples.
func (q *Querier) SelectWithout(ctx context.Context, without labels.Labels, inOrder bool,
	matchers ...*labels.Matcher) series.Set {
	set := q.sel(ctx, nil, matchers)
	if without.IsEmpty() {
		return set
	}
	encoded := labelenc.Append(nil, without)
	set.change = func(dst, lset []byte) ([]byte, bool, error) {
		dst, err := appendStripped(dst, lset, encoded)
		return dst, err == nil, err
	}
	if inOrder {
		set.windowBytes = 0
	}
	return set
}

// SelectUnordered is SelectWithout for a caller that sorts the series itself. Series come in
// the order of the server, and a label set may occur twice. The client does not buffer series of chunks.
func (q *Querier) SelectUnordered(ctx context.Context, without labels.Labels,
	matchers ...*labels.Matcher) series.Set {
	set := q.SelectWithout(ctx, without, false, matchers...)
	set.(*orderedSet).unordered = true
	return set
}

// appendStripped appends a label set without the labels in without, all of which it must have. Both are sorted by name.
func appendStripped(dst, set, without []byte) ([]byte, error) {
	left := without
	for rest := set; len(rest) > 0; {
		_, _, after, err := labelenc.Next(rest)
		if err != nil {
			return dst, err
		}
		label := rest[:len(rest)-len(after)]
		if bytes.HasPrefix(left, label) {
			left = left[len(label):]
		} else {
			dst = append(dst, label...)
		}
		rest = after
	}
	if len(left) > 0 {
		return dst, fmt.Errorf("%w: %s does not have all of %s", ErrLabelMissing, labelenc.Text(set), labelenc.Text(without))
	}
	return dst, nil
}

// changedLabels changes the labels of the series of a source.
type changedLabels struct {
	source
	// change appends the changed labels to dst, which is empty. The series is dropped unless keep is true.
	change            func(dst, lset []byte) (_ []byte, keep bool, err error)
	labels, following []byte
}

func (s *changedLabels) next() error {
	for keep := false; !keep; {
		err := s.source.next()
		if err == nil {
			s.labels, keep, err = s.change(s.labels[:0], s.source.Labels())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *changedLabels) Labels() []byte { return s.labels }

func (s *changedLabels) ahead() []byte {
	set := s.source.ahead()
	if set == nil {
		return nil
	}
	var err error
	keep := false
	if s.following, keep, err = s.change(s.following[:0], set); err != nil || !keep {
		return nil // next returns the error
	}
	return s.following
}
