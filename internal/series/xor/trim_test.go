package xor

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// randomXOR returns a chunk with samples of one of several shapes, and their timestamps.
func randomXOR(t testing.TB, rng *rand.Rand, n int) ([]byte, []int64) {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	at, v, shape := rng.Int64N(1<<41)-1<<20, rng.Float64()*1000, rng.IntN(6)
	var times []int64
	for range n {
		switch rng.IntN(12) {
		case 0:
			at += rng.Int64N(1 << rng.IntN(40))
		case 1:
			at += rng.Int64N(40)
		}
		at += 15_000
		switch shape {
		case 0:
			v++
		case 1:
			v = rng.NormFloat64()
		case 2:
			v = float64(rng.IntN(3))
		case 3:
			v = math.Float64frombits(rng.Uint64() >> rng.IntN(64) << rng.IntN(64))
		case 4:
			v = []float64{0, math.Copysign(0, -1), math.Inf(1), math.Float64frombits(value.StaleNaN), math.NaN(), 1}[rng.IntN(6)]
		case 5:
			v = math.Round(v*100+rng.NormFloat64()) / 100
		}
		app.Append(0, at, v)
		times = append(times, at)
	}
	return bytes.Clone(c.Bytes()), times
}

// trimmedByPrometheus encodes the samples of a chunk from mint to maxt with Prometheus'
// encoder.
func trimmedByPrometheus(t testing.TB, chunk []byte, mint, maxt int64) (out []byte, first, last int64) {
	t.Helper()
	in, err := chunkenc.FromData(chunkenc.EncXOR, chunk)
	if err != nil {
		t.Fatal(err)
	}
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	it := in.Iterator(nil)
	for it.Next() != chunkenc.ValNone {
		at, v := it.At()
		if at < mint || at > maxt {
			continue
		}
		if n == 0 {
			first = at
		}
		n, last = n+1, at
		app.Append(0, at, v)
	}
	if n == 0 {
		return nil, 0, 0
	}
	return c.Bytes(), first, last
}

func TestTrim_EqualsPrometheus(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		chunk, times := randomXOR(t, rng, 1+rng.IntN(130))
		mint, maxt := int64(math.MinInt64), int64(math.MaxInt64)
		if rng.IntN(4) > 0 {
			mint = times[rng.IntN(len(times))] - rng.Int64N(3) + 1
		}
		if rng.IntN(4) > 0 {
			maxt = times[rng.IntN(len(times))] + rng.Int64N(3) - 1
		}
		want, wantFirst, wantLast := trimmedByPrometheus(t, chunk, mint, maxt)
		got, first, last, ok := Trim([]byte("before"), chunk, mint, maxt)
		if ok != (want != nil) {
			t.Fatalf("%x from %d to %d: ok %v, want %d bytes", chunk, mint, maxt, ok, len(want))
		}
		if ok && (!bytes.Equal(got, append([]byte("before"), want...)) || first != wantFirst || last != wantLast) {
			t.Fatalf("%x from %d to %d:\n got %x %d %d\nwant %x %d %d", chunk, mint, maxt, got[6:], first, last, want, wantFirst, wantLast)
		}
	}
}

func TestTrim_AllocatesNothing(t *testing.T) {
	chunk, times := randomXOR(t, rand.New(rand.NewPCG(3, 4)), 120)
	buf := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		if _, _, _, ok := Trim(buf, chunk, times[50], times[100]); !ok {
			t.Fatal("not trimmed")
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzTrim(f *testing.F) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		chunk, times := randomXOR(f, rng, 1+rng.IntN(130))
		f.Add(chunk, times[len(times)/3], times[len(times)/2])
	}
	f.Fuzz(func(t *testing.T, chunk []byte, mint, maxt int64) {
		out, first, last, ok := Trim(nil, chunk, mint, maxt)
		if !ok {
			return
		}
		c, err := chunkenc.FromData(chunkenc.EncXOR, out)
		if err != nil {
			t.Fatal(err)
		}
		it, n := c.Iterator(nil), 0
		for it.Next() != chunkenc.ValNone {
			if at := it.AtT(); n == 0 && at != first {
				t.Fatalf("begins at %d, want %d", at, first)
			} else if at < mint || at > maxt {
				t.Fatalf("a sample at %d", at)
			}
			n++
		}
		if it.Err() != nil || n != c.NumSamples() || it.AtT() != last {
			t.Fatal(n, c.NumSamples(), it.AtT(), last, it.Err())
		}
	})
}

func BenchmarkTrim(b *testing.B) {
	rng := rand.New(rand.NewPCG(3, 4))
	type trim struct {
		chunk      []byte
		mint, maxt int64
	}
	var all []trim
	for range 64 {
		chunk, times := randomXOR(b, rng, 120)
		all = append(all, trim{chunk, times[20], times[100]})
	}
	buf := make([]byte, 0, 4096)
	for i := 0; b.Loop(); i++ {
		if one := all[i%len(all)]; one.maxt > 0 {
			if _, _, _, ok := Trim(buf, one.chunk, one.mint, one.maxt); !ok {
				b.Fatal("not trimmed")
			}
		}
	}
}
