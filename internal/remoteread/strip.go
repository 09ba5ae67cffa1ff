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

// WithoutQuerier is the querier of RawQuerier, with selections that remove labels.
type WithoutQuerier interface {
	series.Querier
	// SelectWithout removes the labels in without from every series. The matchers must select
	// only series that have all of these labels: any other series ends the set with
	// ErrLabelMissing.
	//
	// Prometheus sorts series before it adds its external labels, so its series arrive sorted by
	// the remaining labels. inOrder states that the server sorts series in this way in a response
	// of chunks. Then the client buffers a series only while the next series is smaller. If a
	// series is smaller than one that was already returned, the set ends with ErrLimit. inOrder has
	// no effect on a response of samples.
	SelectWithout(ctx context.Context, without labels.Labels, inOrder bool, matchers ...*labels.Matcher) series.Set
	// SelectUnordered is SelectWithout for a caller that sorts the series itself. Series come in
	// the order of the server, and a label set may occur twice. The client does not buffer series of chunks.
	SelectUnordered(ctx context.Context, without labels.Labels, matchers ...*labels.Matcher) series.Set
}

// WithoutQuerier returns the querier of RawQuerier; mint and maxt are inclusive, in ms.
func (c *Client) WithoutQuerier(mint, maxt int64) WithoutQuerier {
	return &clientQuerier{client: c, mint: mint, maxt: maxt}
}

// SelectWithout implements WithoutQuerier.
func (q *clientQuerier) SelectWithout(ctx context.Context, without labels.Labels, inOrder bool,
	matchers ...*labels.Matcher) series.Set {
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
		if _, samples := from.(*sampleSource); samples {
			set.windowBytes = set.holdBytesMax // they were sorted with the labels that are removed
		} else if inOrder {
			set.windowBytes = 0
		}
		return &labelStripper{source: from, without: encoded}, nil
	}
	return set
}

// SelectUnordered implements WithoutQuerier.
func (q *clientQuerier) SelectUnordered(ctx context.Context, without labels.Labels,
	matchers ...*labels.Matcher) series.Set {
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

// strip appends set to dst, without the labels to remove. Both are sorted by name.
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
		return dst, fmt.Errorf("%w: %s does not have all of %s", ErrLabelMissing, labelenc.Text(set), labelenc.Text(s.without))
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
