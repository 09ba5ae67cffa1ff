package profiles

import (
	"context"
	"errors"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/internal/profiles/query"
)

func TestCompareEngine_ComparesEveryPointAndExemplar(t *testing.T) {
	ctx := context.Background()
	o := unmerged
	o.Dir = t.TempDir()
	s, err := openWith(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	pushed, err := pushFleet(ctx, s, setsOf(fleetServices, fleetPods), 1400, fleetBlocks, fleetBlocks+1)
	if err != nil {
		t.Fatal(err)
	}
	e := query.New(query.Options{}, s)
	for _, minutes := range []int64{1, 60} {
		if err := compareEngine(ctx, e, groupedRequest(minutes), pushed); err != nil {
			t.Errorf("%d min: %v", minutes, err)
		}
		if err := compareEngine(ctx, e, seriesRequest(minutes), pushed); err != nil {
			t.Errorf("%d min, one group: %v", minutes, err)
		}
	}
	pushed.rows[700].value++
	if err := compareEngine(ctx, e, groupedRequest(60), pushed); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("another value was pushed: got %v, want ErrUnequal", err)
	}
	pushed.rows = nil
	if err := compareEngine(ctx, e, groupedRequest(60), pushed); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("nothing was pushed: got %v, want ErrEmpty", err)
	}
}

func TestGroupedWhat_NamesThePartsOfTheFoundingBenchmark(t *testing.T) {
	for i, want := range []string{"1Minute", "5Minutes", "15Minutes", "1Hour"} {
		want = "TimeSeriesQuery_TimeRange/" + want + ", 3000 rows by service, step 60 s"
		if got := groupedWhat(3000, groupedMinutes[i]); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
