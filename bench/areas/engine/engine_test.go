package engine

import (
	"errors"
	"testing"

	"github.com/ferula-io/ferula/bench/blocks"
)

func TestQueries_AreWithinTheData(t *testing.T) {
	for _, q := range queries {
		if q.StartMS < startMS || q.EndMS() >= spec().EndMS() {
			t.Errorf("%s: from %d to %d", q.What, q.StartMS, q.EndMS())
		}
	}
}

func TestLastHour_IsWithinTheHead(t *testing.T) {
	if from, to := lastHour().StartMS, lastHour().EndMS(); from < startMS+5*60_000 || to >= recentSpec().EndMS() {
		t.Errorf("from %d to %d", from, to)
	}
}

func TestParseShare_NeedsAReport(t *testing.T) {
	share, err := parseShare([]byte("    scripts_test.go:51: 91.9 % of 12345 evaluations without Prometheus' engine\n"))
	if err != nil || share < 0.0809 || share > 0.0811 {
		t.Errorf("%v, %v", share, err)
	}
	if _, err := parseShare([]byte("ok")); !errors.Is(err, errNoShare) {
		t.Errorf("%v", err)
	}
}

func TestHistogramSpec_BucketsAreCumulative(t *testing.T) {
	before := blocks.SpecSequence(histogramSpec, 0, 50)
	for i := 1; i < buckets; i++ {
		values := blocks.SpecSequence(histogramSpec, i, 50)
		for j := range values {
			if values[j] < before[j] {
				t.Fatalf("bucket %d has %v at %d, the one below %v", i, values[j], j, before[j])
			}
		}
		before = values
	}
}
