package metrics

import (
	"encoding/binary"
	"flag"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

var updateDraws = flag.Bool("update-draws", false, "write draws.bin")

// draws.bin has all draws of the generator, in their order.
func TestDraws_AreThoseOfTheGenerator(t *testing.T) {
	var want []byte
	random, last := uint32(1), uint64(sampleMax)
	end := uint64(drawsMax)
	if raceEnabled && !*updateDraws {
		end = 1 << 22
	}
	for count := uint64(sampleMax) + 1; count <= end; count++ {
		if slot := drawNext(&random, count); slot < sampleMax {
			want = binary.AppendUvarint(want, (count-last)<<drawSlotBits|slot)
			last = count
		}
	}
	if *updateDraws {
		if err := os.WriteFile("draws.bin", want, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d bytes, state %d", len(want), random)
		return
	}
	if got := draws[:min(len(want), len(draws))]; got != string(want) || end == drawsMax && (len(want) != len(draws) || random != drawsState) {
		t.Errorf("draws.bin has %d bytes, the draws up to %d values have %d; the state is %d: go test -run TestDraws -update-draws", len(draws), end, len(want), random)
	}
}

// A reservoir that reads draws.bin has the same sample as one that draws a random number for each
// value, also after the end of the file.
func TestReservoir_SampleIsThatOfADrawForEachValue(t *testing.T) {
	for _, from := range []uint64{0, drawsMax - 1} {
		r, random := newReservoir(), uint32(1)
		if from > 0 { // as after so many values
			for range sampleMax {
				r.add(0)
			}
			for r.accept < drawsMax {
				r.advance()
			}
			r.count = from
			r.add(0) // the last draw of the file, which takes no value
			from, random = drawsMax, drawsState
		}
		want := slices.Clone(r.values)
		source := rand.New(rand.NewPCG(1, 2))
		for count := from + 1; count <= from+20_000; count++ {
			low, high, v := r.min, r.max, source.NormFloat64()
			if count%97 == 0 {
				v = math.NaN()
			}
			if v < low {
				low = v
			}
			if v > high {
				high = v
			}
			if !r.skips(v) {
				r.add(v)
			}
			if len(want) < sampleMax {
				want = append(want, v)
			} else if slot := drawNext(&random, count); slot < sampleMax {
				want[slot] = v
			}
			if r.count != count || r.min != low || r.max != high {
				t.Fatalf("value %d: count %d, min %v, max %v, want %v, %v", count, r.count, r.min, r.max, low, high)
			}
		}
		for i := range want {
			if r.values[i] != want[i] && !(math.IsNaN(want[i]) && math.IsNaN(r.values[i])) {
				t.Fatalf("from %d: value %d of the sample is %v, want %v", from, i, r.values[i], want[i])
			}
		}
	}
}

func BenchmarkSummary_Update(b *testing.B) {
	sm := NewSet().NewSummary("s")
	for i := range b.N {
		sm.Update(float64(i*7919%10007) / 7)
	}
}
