package dedup

import (
	"math"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

func TestIsCounter_NamesThreeFunctions(t *testing.T) {
	for function, want := range map[string]bool{"rate": true, "irate": true, "increase": true, "resets": false, "delta": false, "": false} {
		if IsCounter(function) != want {
			t.Errorf("%q: %v", function, !want)
		}
	}
}

func TestPenaltyAndChain_OfOneReplicaAreIt(t *testing.T) {
	one := &samples{}
	if Penalty([]chunkenc.Iterator{one}, "rate") != chunkenc.Iterator(one) || Chain([]chunkenc.Iterator{one}) != chunkenc.Iterator(one) {
		t.Error("one replica is wrapped")
	}
}

// stamped has a start timestamp.
type stamped struct{ samples }

func (*stamped) AtST() int64 { return 77 }

func TestPenalty_PassesHistogramsAndStartTimestamps(t *testing.T) {
	replicas := []chunkenc.Iterator{&stamped{samples{all: []sample{{5, 3, true}}}}, &stamped{}}
	it := Penalty(replicas, "")
	if it.Next() != chunkenc.ValHistogram || it.AtST() != 77 || it.AtT() != 5 {
		t.Fatalf("at %d, started at %d", it.AtT(), it.AtST())
	}
	if at, h := it.AtHistogram(nil); at != 5 || h.Sum != 3 {
		t.Error(at, h)
	}
	if at, h := it.AtFloatHistogram(nil); at != 5 || h.Sum != 3 {
		t.Error(at, h)
	}
	if it.Next() != chunkenc.ValNone || it.Next() != chunkenc.ValNone || it.Seek(0) != chunkenc.ValNone {
		t.Error("samples after the end")
	}
}

func TestCounter_SkipsNaNAndSamplesBefore(t *testing.T) {
	it := Counter(&samples{all: []sample{{10, math.NaN(), false}, {10, 5, false}, {20, 4, true}, {15, 9, true}, {20, 9, true}, {5, 1, false}, {30, 6, false}}})
	got := read(it)
	want := []sample{{10, 5, false}, {20, 4, true}, {30, 6, false}}
	if len(got) != len(want) || got[0] != want[0] || got[1] != want[1] || got[2] != want[2] {
		t.Errorf("%v", got)
	}
	if it.Next() != chunkenc.ValNone || it.Seek(0) != chunkenc.ValNone {
		t.Error("samples after the end")
	}
	it = Counter(&samples{all: []sample{{10, 5, false}, {20, 6, false}}})
	if it.Seek(10) != chunkenc.ValFloat || it.AtT() != 10 || it.Seek(10) != chunkenc.ValFloat || it.AtT() != 10 || it.Seek(11) != chunkenc.ValFloat || it.AtT() != 20 || it.Seek(21) != chunkenc.ValNone {
		t.Errorf("at %d", it.AtT())
	}
}
