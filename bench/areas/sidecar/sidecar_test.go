package sidecar

import (
	"errors"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/stores"
)

func TestComplete_RequiresEverySeriesChunkAndSample(t *testing.T) {
	full := stores.Response{Series: spec().Series, Chunks: 2 * spec().Series}
	if err := complete(recentSeries(), full, 480*spec().Series); err != nil {
		t.Error(err)
	}
	for what, c := range map[string]struct {
		of      request
		a       stores.Response
		samples int
	}{
		"a series less":  {recentSeries(), stores.Response{Series: spec().Series - 1, Chunks: full.Chunks}, 480 * spec().Series},
		"a chunk less":   {recentSeries(), stores.Response{Series: spec().Series, Chunks: full.Chunks - 1}, 480 * spec().Series},
		"a sample less":  {recentSeries(), full, 480*spec().Series - 1},
		"too few hours":  {plain(), full, 0},
		"not only names": {labelsOnly(), full, 0},
	} {
		if err := complete(c.of, c.a, c.samples); !errors.Is(err, area.ErrEmpty) {
			t.Errorf("%s: got %v, want ErrEmpty", what, err)
		}
	}
}

func TestRequests_AreWithinTheData(t *testing.T) {
	for _, q := range []request{plain(), plain2h(), withoutName(), labelsOnly(), recentSeries()} {
		if q.series.MinMS < spec().StartMS || q.series.MaxMS >= spec().EndMS() || q.series.MaxMS-q.series.MinMS+1 < 2*hourMS {
			t.Errorf("%+v", q)
		}
	}
}
