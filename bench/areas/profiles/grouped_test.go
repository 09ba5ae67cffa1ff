package profiles

import (
	"context"
	"errors"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
	query "github.com/ferula-io/ferula/internal/query/profile"
	series "github.com/ferula-io/ferula/internal/series/profiles"
)

func TestCompareGrouped_ComparesEveryPointAndExemplar(t *testing.T) {
	ctx := context.Background()
	s, err := openStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	pushed, err := pushFleet(ctx, s, 1400)
	if err != nil {
		t.Fatal(err)
	}
	e := query.New(query.Options{}, s)
	for _, minutes := range []int64{1, 60} {
		req := seriesRequest(minutes, series.LabelService)
		req.StepMS = groupedStepMS
		if err := compareGrouped(ctx, e, req, pushed); err != nil {
			t.Errorf("%d min: %v", minutes, err)
		}
	}
	req := seriesRequest(60, series.LabelService)
	req.StepMS = groupedStepMS
	pushed[700].value++
	if err := compareGrouped(ctx, e, req, pushed); !errors.Is(err, area.ErrUnequal) {
		t.Errorf("another value was pushed: got %v, want ErrUnequal", err)
	}
	if err := compareGrouped(ctx, e, req, nil); !errors.Is(err, area.ErrEmpty) {
		t.Errorf("nothing was pushed: got %v, want ErrEmpty", err)
	}
}
