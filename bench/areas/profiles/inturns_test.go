package profiles

import (
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/ferula-io/ferula/bench/area"
)

func TestInTurns_RecordsTheMedianOfEachSide(t *testing.T) {
	b := area.New(Area, area.Env{Rounds: 2, Log: io.Discard})
	readings := []float64{3, 9, 1, 5, 5, 6}
	var turns []int
	err := inTurns(b, "what", 3, func(b *area.Bench, round, turn int) error {
		turns = append(turns, turn)
		b.Add(round, plain, "time", area.Seconds, readings[0])
		b.Add(round, with, "time", area.Seconds, 10*readings[0])
		readings = readings[1:]
		return nil
	})
	want := []area.Reading{{What: "time", Side: plain, Unit: area.Seconds, Round: 1, Value: 3},
		{What: "time", Side: with, Unit: area.Seconds, Round: 1, Value: 30}, {What: "time", Side: plain, Unit: area.Seconds, Round: 2, Value: 5},
		{What: "time", Side: with, Unit: area.Seconds, Round: 2, Value: 50}}
	if err != nil || !slices.Equal(b.Readings, want) {
		t.Errorf("%v, %v, want %v", b.Readings, err, want)
	}
	if !slices.Equal(turns, []int{0, 1, 2, 0, 1, 2}) {
		t.Errorf("turns %v", turns)
	}
	failed := errors.New("failed")
	err = inTurns(b, "what", 2, func(*area.Bench, int, int) error { return failed })
	if !errors.Is(err, failed) || len(b.Readings) != len(want) {
		t.Errorf("%v, %d readings", err, len(b.Readings))
	}
}
