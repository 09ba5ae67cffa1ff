package remoteread

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// byIterator returns the expected result of appendXORFloats, read with an iterator.
func byIterator(chunk []byte, n int) ([]byte, int, error) {
	c, err := chunkenc.FromData(chunkenc.EncXOR, chunk)
	if err != nil {
		return nil, 0, err
	}
	var out []byte
	it := c.Iterator(nil)
	i := 0
	for ; i < n && it.Next() != chunkenc.ValNone; i++ {
		t, v := it.At()
		out = appendFloat(out, t, v)
	}
	return out, i, it.Err()
}

// xorChunk encodes samples whose timestamps and values use every case of the encoding.
func xorChunk(t testing.TB, random *rand.Rand, n int, start int64) []byte {
	t.Helper()
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		t.Fatal(err)
	}
	at, v, delta := start, random.Float64(), int64(15_000)
	for range n {
		app.Append(0, at, v)
		switch random.IntN(12) {
		case 0:
			delta += random.Int64N(1<<14) - 1<<13
		case 1:
			delta += random.Int64N(1<<17) - 1<<16
		case 2:
			delta += random.Int64N(1<<20) - 1<<19
		case 3:
			delta += random.Int64N(1<<30) - 1<<29
		}
		at += delta
		switch random.IntN(6) {
		case 0:
		case 1:
			v++
		case 2:
			v = random.NormFloat64()
		case 3:
			v = math.Float64frombits(random.Uint64())
		case 4:
			v = math.Float64frombits(math.Float64bits(v) ^ 1<<random.IntN(64))
		case 5:
			v = math.Copysign(0, v)
		}
	}
	return c.Bytes()
}

func TestAppendXORFloats_EqualsPrometheus(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 2000 {
		n, start := random.IntN(130), int64(1_700_000_000_000)
		if round%3 == 0 {
			start = random.Int64() - 1<<62
		}
		chunk := xorChunk(t, random, n, start)
		minMS, maxMS := int64(math.MinInt64), int64(math.MaxInt64)
		if round%3 == 1 {
			minMS, maxMS = floatFromMS, floatToMS
		}
		for _, limit := range []int{0, 1, n / 2, n, n + 1} {
			want, wantN, err := byIterator(chunk, limit)
			if err != nil {
				t.Fatal(err)
			}
			got, gotN, err := appendXORFloats([]byte("before"), chunk, limit, minMS, maxMS)
			if err != nil || gotN != wantN || !bytes.Equal(got, append([]byte("before"), want...)) {
				t.Fatalf("round %d, %d of %d samples: %d, %v", round, limit, n, gotN, err)
			}
		}
	}
}

func TestAppendXORFloats_InvalidChunkIsAnError(t *testing.T) {
	chunk := xorChunk(t, rand.New(rand.NewPCG(7, 8)), 120, 1_700_000_000_000)
	for cut := range len(chunk) {
		if _, _, err := appendXORFloats(nil, chunk[:cut], 120, math.MinInt64, math.MaxInt64); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut after %d bytes: %v", cut, err)
		}
	}
	if _, _, err := appendXORFloats(nil, chunk, 120, 1_700_000_000_001, math.MaxInt64); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
}

func FuzzXORChunk(f *testing.F) {
	random := rand.New(rand.NewPCG(9, 10))
	for n := range 20 {
		f.Add(xorChunk(f, random, n, 1_700_000_000_000))
	}
	f.Fuzz(func(t *testing.T, chunk []byte) {
		if len(chunk) < 2 {
			return
		}
		got, n, err := appendXORFloats(nil, chunk, math.MaxInt, math.MinInt64, math.MaxInt64)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return // an iterator may accept more than 64 bits of a value
		}
		want, wantN, wantErr := byIterator(chunk, math.MaxInt)
		if wantErr != nil || n != wantN || !bytes.Equal(got, want) {
			t.Fatalf("%d samples, want %d, %v", n, wantN, wantErr)
		}
		if got, n, err := appendXORFloats(nil, chunk, math.MaxInt, floatFromMS, floatToMS); err == nil && (n != wantN || !bytes.Equal(got, want)) {
			t.Fatalf("of usual times: %d samples, want %d", n, wantN)
		}
	})
}

func BenchmarkXORChunk(b *testing.B) {
	c := chunkenc.NewXORChunk()
	app, err := c.Appender()
	if err != nil {
		b.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range int64(120) {
		app.Append(0, 1_700_000_000_000+i*15_000, random.Float64())
	}
	var dst []byte
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			dst, _, _ = appendXORFloats(dst[:0], c.Bytes(), 120, floatFromMS, floatToMS)
		}
	})
	b.Run("iterator", func(b *testing.B) {
		var it chunkenc.Iterator
		b.ReportAllocs()
		for b.Loop() {
			it = c.Iterator(it)
			dst = dst[:0]
			for it.Next() != chunkenc.ValNone {
				t, v := it.At()
				dst = appendFloat(dst, t, v)
			}
		}
	})
}
