package remoteread

import (
	"bytes"
	"errors"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestSelectWithout_RemovesTheLabelsOfEverySeries(t *testing.T) {
	without := labels.FromStrings("cluster", "eu", "replica", "r1")
	encoded := labelenc.Append(nil, without)
	for _, given := range []struct{ from, want labels.Labels }{
		{labels.FromStrings("a", "1", "cluster", "eu", "d", "2", "replica", "r1", "z", "3"), labels.FromStrings("a", "1", "d", "2", "z", "3")},
		{labels.FromStrings("cluster", "eu", "replica", "r1"), labels.EmptyLabels()},
	} {
		got, err := appendStripped(nil, labelenc.Append(nil, given.from), encoded)
		if err != nil || !bytes.Equal(got, labelenc.Append(nil, given.want)) {
			t.Errorf("%s: %q, %v", given.from, got, err)
		}
	}
	for _, lacks := range []labels.Labels{
		labels.FromStrings("a", "1"), labels.FromStrings("a", "1", "cluster", "us", "replica", "r1"), labels.FromStrings("cluster", "eu"), labels.EmptyLabels(),
	} {
		if _, err := appendStripped(nil, labelenc.Append(nil, lacks), encoded); !errors.Is(err, ErrLabelMissing) {
			t.Errorf("%s: %v", lacks, err)
		}
	}
	if _, err := appendStripped(nil, []byte{0x0A, 0x09}, encoded); !errors.Is(err, labelenc.ErrCorrupt) {
		t.Error(err)
	}
}
