package remoteread

import (
	"bytes"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestLabelStripper_RemovesTheLabelsOfEverySeries(t *testing.T) {
	without := labels.FromStrings("cluster", "eu", "replica", "r1")
	s := labelStripper{without: labelenc.Append(nil, without)}
	for _, given := range []struct{ from, want labels.Labels }{
		{labels.FromStrings("a", "1", "cluster", "eu", "d", "2", "replica", "r1", "z", "3"), labels.FromStrings("a", "1", "d", "2", "z", "3")},
		{labels.FromStrings("cluster", "eu", "replica", "r1"), labels.EmptyLabels()},
	} {
		got, err := s.strip(nil, labelenc.Append(nil, given.from))
		if err != nil || !bytes.Equal(got, labelenc.Append(nil, given.want)) {
			t.Errorf("%s: %q, %v", given.from, got, err)
		}
	}
	for _, lacks := range []labels.Labels{
		labels.FromStrings("a", "1"), labels.FromStrings("a", "1", "cluster", "us", "replica", "r1"), labels.FromStrings("cluster", "eu"), labels.EmptyLabels(),
	} {
		if _, err := s.strip(nil, labelenc.Append(nil, lacks)); !errors.Is(err, ErrLabelMissing) {
			t.Errorf("%s: %v", lacks, err)
		}
	}
	if _, err := s.strip(nil, []byte{0x0A, 0x09}); !errors.Is(err, labelenc.ErrCorrupt) {
		t.Error(err)
	}
}
