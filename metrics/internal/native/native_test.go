package native

import (
	"math"
	"testing"
)

func TestBuckets_NeverExceedTheLimitAndLoseNothing(t *testing.T) {
	for _, limit := range []int{1, 2, 10, 160} {
		b := New(SchemaMax, DefaultZeroThreshold, limit)
		x, n := uint64(1), uint64(0)
		for range 20_000 {
			x = x*6364136223846793005 + 1442695040888963407
			v := math.Abs(math.Float64frombits(x))
			if v != v {
				continue
			}
			b.Add(v)
			n++
			if len(b.Indexes) > limit {
				t.Fatalf("%d buckets, at most %d", len(b.Indexes), limit)
			}
		}
		b.Add(math.Inf(1))
		b.Add(0)
		total := b.Zero
		for i, c := range b.Counts {
			total += c
			if i > 0 && b.Indexes[i-1] >= b.Indexes[i] {
				t.Fatalf("indexes do not rise: %v", b.Indexes)
			}
		}
		if total != n+2 {
			t.Errorf("limit %d: %d values, want %d", limit, total, n+2)
		}
	}
}

func TestBuckets_EveryValueIsInsideItsBucket(t *testing.T) {
	for schema := int32(SchemaMin); schema <= SchemaMax; schema++ {
		b := New(schema, 0, 1)
		for v := 1e-300; v < 1e300; v *= 1.37 {
			i := float64(b.index(v))
			step := math.Exp2(-float64(schema))
			low, high := (i-1)*step, i*step
			if l := math.Log2(v); l < low-1e-9 || l > high+1e-9 {
				t.Fatalf("schema %d: %g is in bucket %v", schema, v, i)
			}
		}
		for e := -1000; e < 1000; e += 7 { // an exact power is the upper end of its bucket
			v := math.Ldexp(1, e)
			if got, above := b.index(v), b.index(math.Nextafter(v, math.Inf(1))); schema >= 0 && (got != int32(e<<schema) || above != got+1) {
				t.Fatalf("schema %d: 2^%d is in bucket %d, the next number in %d", schema, e, got, above)
			}
		}
	}
}

func TestBuckets_AddDoesNotAllocateWhenWarm(t *testing.T) {
	b := New(DefaultSchema, DefaultZeroThreshold, DefaultBucketsMax)
	fill := func() {
		for v := 1e-9; v < 1e9; v *= 1.1 {
			b.Add(v)
		}
	}
	fill()
	b.Reset()
	fill()
	if n := testing.AllocsPerRun(10, func() { b.Reset(); fill() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
