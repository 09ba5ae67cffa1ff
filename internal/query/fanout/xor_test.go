package fanout

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// reference reads a chunk as Prometheus does.
func reference(t testing.TB, data []byte) (times []int64, values []uint64, err error) {
	chunk, err := chunkenc.FromData(chunkenc.EncXOR, data)
	if err != nil {
		t.Fatal(err)
	}
	it := chunk.Iterator(nil)
	for it.Next() != chunkenc.ValNone {
		at, v := it.At()
		times, values = append(times, at), append(values, math.Float64bits(v))
	}
	return times, values, it.Err()
}

func (d *xorDecoder) bits() []uint64 {
	var all []uint64
	for _, v := range d.values {
		all = append(all, math.Float64bits(v))
	}
	return all
}

func TestXORDecoder_EqualsPrometheus(t *testing.T) {
	var d xorDecoder
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		chunk := chunkenc.NewXORChunk()
		app, err := chunk.Appender()
		if err != nil {
			t.Fatal(err)
		}
		at, v := rng.Int64N(1<<43)-1<<42, 0.0
		for range rng.IntN(300) {
			app.Append(0, at, v)
			at += 1 + rng.Int64N(1<<(1+rng.IntN(40)))
			switch rng.IntN(8) {
			case 0:
			case 1:
				v = math.Float64frombits(rng.Uint64())
			case 2:
				v = math.NaN()
			default:
				v += float64(rng.IntN(200)) / 8
			}
			if rng.IntN(3) == 0 {
				at = at/15_000*15_000 + 15_000
			}
		}
		data := chunk.Bytes()
		times, values, err := reference(t, data)
		for _, spare := range []int{0, xorSlack, 100} {
			given := append(make([]byte, 0, len(data)+spare), data...)
			if e := d.decode(given, false); e != nil || err != nil || !slices.Equal(d.times, times) || !slices.Equal(d.bits(), values) {
				t.Fatalf("seed %d: %v %v\ngot  %v\nwant %v", seed, e, err, d.times, times)
			}
		}
		if len(data) > 10 {
			if err := d.decode(data[:rng.IntN(len(data)-1)], false); err == nil {
				t.Fatalf("seed %d: a chunk that is cut is accepted", seed)
			}
		}
	}
}

func FuzzXOR(f *testing.F) {
	chunk := chunkenc.NewXORChunk()
	app, _ := chunk.Appender()
	for i := range int64(100) {
		app.Append(0, i*15_000+i%7, float64(i*i)/3)
	}
	f.Add(chunk.Bytes())
	f.Add([]byte{0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		var d xorDecoder
		if d.decode(data, false) != nil {
			return // no panic is enough: Prometheus reads on where this stops
		}
		times, values, err := reference(t, data)
		if err != nil || !slices.Equal(d.times, times) || !slices.Equal(d.bits(), values) {
			t.Fatalf("%v\ngot  %v %v\nwant %v %v", err, d.times, d.bits(), times, values)
		}
	})
}

func BenchmarkXOR(b *testing.B) {
	chunk := chunkenc.NewXORChunk()
	app, _ := chunk.Appender()
	rng := rand.New(rand.NewPCG(1, 1))
	v := 100.0
	for i := range int64(120) {
		app.Append(0, i*15_000+rng.Int64N(5), v)
		v += float64(rng.IntN(100)) / 100
	}
	b.Run("whole", func(b *testing.B) {
		var d xorDecoder
		for range b.N {
			_ = d.decode(chunk.Bytes(), false)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*120), "ns/sample")
	})
	b.Run("one by one", func(b *testing.B) {
		var it chunkenc.Iterator
		for range b.N {
			it = chunk.Iterator(it)
			for it.Next() != chunkenc.ValNone {
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*120), "ns/sample")
	})
}
