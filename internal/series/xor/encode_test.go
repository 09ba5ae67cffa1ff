package xor

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// prometheusChunk encodes samples with Prometheus' appender.
func prometheusChunk(t *testing.T, samples []Point) []byte {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range samples {
		app.Append(0, s.T, s.F)
	}
	return c.Bytes()
}

// randomSamples returns samples whose intervals and values need all encodings.
func randomSamples(rng *rand.Rand, n int) []Point {
	all := make([]Point, n)
	at, value := rng.Int64N(1<<42)-1<<41, 0.0
	step := []int64{1, 15_000, 1 << 13, 1 << 16, 1 << 19, 1 << 40}
	for i := range all {
		at += 1 + rng.Int64N(step[rng.IntN(len(step))])
		switch rng.IntN(6) {
		case 0:
			value = math.Float64frombits(rng.Uint64())
		case 1:
			value = float64(rng.IntN(1000))
		case 2:
			value = rng.NormFloat64()
		case 3:
			value = math.Float64frombits(math.Float64bits(value) ^ 1<<rng.IntN(64))
		}
		all[i] = Point{at, value}
	}
	return all
}

func TestAppendChunk_HasTheBytesOfPrometheusAppender(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	prefix := []byte("before")
	for _, n := range []int{0, 1, 2, 3, 10, 120, 500} {
		for range 50 {
			samples := randomSamples(rng, n)
			want := prometheusChunk(t, samples)
			got := AppendChunk(slices.Clone(prefix), samples)
			if !bytes.Equal(got[len(prefix):], want) {
				t.Fatalf("%d samples %v:\n got %x\nwant %x", n, samples, got[len(prefix):], want)
			}
		}
	}
}

func TestAppendChunk_EdgesOfIntervals(t *testing.T) {
	for _, change := range []int64{0, 1, -1, 1<<13 - 1, 1 << 13, 1<<13 + 1, -(1 << 13) + 1, -(1 << 13), 1 << 16, 1<<16 + 1, -(1 << 16), 1 << 19, 1<<19 + 1, -(1 << 19), 1 << 40, -(1 << 40)} {
		samples := []Point{{0, 1}, {1 << 41, 2}, {1<<42 + change, 3}, {1<<43 + change, 3}}
		if got, want := AppendChunk(nil, samples), prometheusChunk(t, samples); !bytes.Equal(got, want) {
			t.Errorf("change %d: got %x, want %x", change, got, want)
		}
	}
}

func TestAppendChunk_IsDecoded(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		samples := randomSamples(rng, 1+rng.IntN(300))
		got, err := AppendPoints([]Point(nil), AppendChunk(nil, samples), Ascending)
		if err != nil {
			t.Fatal(err)
		}
		same := func(a, b Point) bool { return a.T == b.T && math.Float64bits(a.F) == math.Float64bits(b.F) }
		if !slices.EqualFunc(got, samples, same) {
			t.Fatalf("got %v, want %v", got, samples)
		}
	}
}

func BenchmarkAppendChunk(b *testing.B) {
	samples := randomSamples(rand.New(rand.NewPCG(5, 6)), 120)
	var buf []byte
	for b.Loop() {
		buf = AppendChunk(buf[:0], samples)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(samples)), "ns/sample")
}
