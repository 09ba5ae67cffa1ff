package xor

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// reference reads a chunk as Prometheus does.
func reference(t testing.TB, data []byte) ([]Point, error) {
	t.Helper()
	chunk, err := chunkenc.FromData(chunkenc.EncXOR, data)
	if err != nil {
		t.Fatal(err)
	}
	var points []Point
	it := chunk.Iterator(nil)
	for it.Next() != chunkenc.ValNone {
		at, v := it.At()
		points = append(points, Point{at, v})
	}
	return points, it.Err()
}

// encode makes a chunk of samples.
func encode(t testing.TB, points []Point) []byte {
	t.Helper()
	chunk := chunkenc.NewXORChunk()
	app, err := chunk.Appender()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range points {
		app.Append(0, p.T, p.F)
	}
	return chunk.Bytes()
}

// randomPoints returns n samples that use every case of the encoding. If ascending is set, they are in order of time.
func randomPoints(random *rand.Rand, n int, ascending bool) []Point {
	points := make([]Point, n)
	at, delta, v := random.Int64N(1<<43)-1<<42, int64(15_000), random.Float64()
	for i := range points {
		points[i] = Point{at, v}
		switch random.IntN(12) {
		case 0:
			delta += random.Int64N(1<<14) - 1<<13
		case 1:
			delta += random.Int64N(1<<17) - 1<<16
		case 2:
			delta += random.Int64N(1<<20) - 1<<19
		case 3:
			delta += random.Int64N(1<<40) - 1<<39
		case 4:
			delta = int64(15_000 + 1<<(random.IntN(22)))
		}
		if ascending && delta < 1 {
			delta = 1 - delta
		}
		if !ascending && random.IntN(100) == 0 {
			delta = int64(random.Uint64())
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
	return points
}

func samePoint(a, b Point) bool {
	return a.T == b.T && math.Float64bits(a.F) == math.Float64bits(b.F)
}

// batches reads a chunk in batches of n.
func batches(chunk []byte, order Order, n int) (points []Point, err error) {
	var r Reader
	if err := r.Reset(chunk, order); err != nil {
		return nil, err
	}
	dst := make([]Point, n)
	for {
		got, err := Read(&r, dst)
		points = append(points, dst[:got]...)
		if err != nil || got < n {
			return points, err
		}
	}
}

// exact returns a copy whose capacity ends with it, so that a read behind it panics.
func exact(b []byte) []byte { return slices.Clip(append(make([]byte, 0, len(b)), b...)) }

func TestDecoders_EqualPrometheus(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for round := range 4000 {
		order := Order(round % 3)
		points := randomPoints(random, random.IntN(260), order != AnyOrder)
		chunk := exact(encode(t, points))
		want, err := reference(t, chunk)
		if err != nil {
			t.Fatal(err)
		}
		before := []Point{{1, 2}}
		got, err := AppendPoints(before, chunk, order)
		if err != nil || !slices.EqualFunc(got[1:], want, samePoint) || got[0] != before[0] {
			t.Fatalf("round %d: %v\ngot  %v\nwant %v", round, err, got, want)
		}
		if got, err := batches(chunk, order, 1+random.IntN(70)); err != nil || !slices.EqualFunc(got, want, samePoint) {
			t.Fatalf("round %d: batches: %v", round, err)
		}
	}
}

func TestAppendPoints_IntoPromQLPoints(t *testing.T) {
	chunk := encode(t, []Point{{1000, 1.5}, {2000, 2.5}})
	got, err := AppendPoints([]promql.FPoint(nil), chunk, Ascending)
	if err != nil || !slices.Equal(got, []promql.FPoint{{T: 1000, F: 1.5}, {T: 2000, F: 2.5}}) {
		t.Fatal(got, err)
	}
}

func TestAppendPoints_ReusedSliceDoesNotAllocate(t *testing.T) {
	chunk := encode(t, randomPoints(rand.New(rand.NewPCG(1, 2)), 120, true))
	points, err := AppendPoints([]promql.FPoint(nil), chunk, Ascending)
	if n := testing.AllocsPerRun(10, func() {
		points, err = AppendPoints(points[:0], chunk, Ascending)
	}); n > 0 || err != nil {
		t.Fatalf("%g allocations, %v", n, err)
	}
}

func TestAppendPoints_CutChunkNamesTheSample(t *testing.T) {
	points := randomPoints(rand.New(rand.NewPCG(7, 8)), 120, true)
	chunk := encode(t, points)
	for cut := range chunk {
		got, err := AppendPoints([]Point(nil), exact(chunk[:cut]), Ascending)
		if err == nil {
			t.Fatalf("cut after %d bytes: accepted", cut)
		}
		if !slices.EqualFunc(got, points[:len(got)], samePoint) {
			t.Fatalf("cut after %d bytes: wrong samples", cut)
		}
		if cut < headerBytes {
			continue
		}
		if want := (&Reader{read: len(got), samples: 120}).failed(errCut); err.Error() != want.Error() {
			t.Fatalf("cut after %d bytes: %v, want %v", cut, err, want)
		}
	}
}

func TestAppendPoints_HeaderThatLies(t *testing.T) {
	chunk := encode(t, randomPoints(rand.New(rand.NewPCG(7, 8)), 100, true))
	chunk[0], chunk[1] = 0xff, 0xff
	got, err := AppendPoints([]Point(nil), exact(chunk), Ascending)
	if err == nil || len(got) < 100 || cap(got) > 8*len(chunk) {
		t.Fatalf("%d samples, capacity %d: %v", len(got), cap(got), err)
	}
	if _, err := AppendPoints([]Point(nil), []byte{0xff, 0xff}, Ascending); err == nil || !strings.Contains(err.Error(), "sample 1 of 65535") {
		t.Fatal(err)
	}
	if got, err := AppendPoints([]Point(nil), []byte{0, 0}, Ascending); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
}

func TestAppendPoints_Order(t *testing.T) {
	for _, c := range []struct {
		name  string
		times []int64
		order Order
		valid int
	}{
		{"repeated", []int64{1000, 2000, 3000, 3000, 4000}, Ascending, 3},
		{"repeated and accepted", []int64{1000, 2000, 3000, 3000, 4000}, NotDescending, 5},
		{"repeated at once", []int64{1000, 1000, 1000}, Ascending, 1},
		{"descending", []int64{1000, 2000, 1500, 4000}, NotDescending, 2},
		{"descending at once", []int64{1000, 500, 4000}, NotDescending, 1},
		{"descending and accepted", []int64{1000, 500, 4000, 3999}, AnyOrder, 4},
		{"overflow", []int64{math.MaxInt64 - 1000, math.MaxInt64 - 500, math.MinInt64 - 1 + 500, math.MinInt64 - 1 + 1000}, NotDescending, 2},
		{"overflow in the second", []int64{math.MaxInt64 - 100, math.MinInt64 + 400}, NotDescending, 1},
	} {
		points := make([]Point, len(c.times))
		for i, at := range c.times {
			points[i].T = at
		}
		got, err := AppendPoints([]Point(nil), encode(t, points), c.order)
		if len(got) != c.valid || (err == nil) != (c.valid == len(points)) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
		if err != nil && err.Error() != (&Reader{read: c.valid, samples: len(points)}).failed(errOrder).Error() {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestAppendPoints_ValueOfTooManyBits(t *testing.T) {
	for leading, bad := range map[byte]bool{0: false, 1: true, 31: true} { // of the third sample's value, which has 64 more bits
		chunk := encode(t, []Point{{1000, 1}, {2000, 1}})
		chunk[1] = 3
		chunk = append(chunk[:len(chunk)-1], 0b0_0_11_0000|leading>>1, leading<<7)
		chunk = append(chunk, make([]byte, 20)...)
		got, err := AppendPoints([]Point(nil), chunk, Ascending)
		if !bad && err != nil || bad && (err == nil || !strings.Contains(err.Error(), "sample 3 of 3: "+errBits.Error())) {
			t.Errorf("%d leading zeros: %v %v", leading, got, err)
		}
	}
}

func FuzzDecoders(f *testing.F) {
	random := rand.New(rand.NewPCG(9, 10))
	for n := range 20 {
		f.Add(encode(f, randomPoints(random, n, n%2 == 0)), uint8(n))
	}
	f.Add([]byte{0, 3, 2, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint8(1))
	f.Fuzz(func(t *testing.T, chunk []byte, n uint8) {
		if chunk = exact(chunk); len(chunk) < headerBytes {
			return
		}
		want, wantErr := reference(t, chunk)
		got, err := AppendPoints([]Point(nil), chunk, AnyOrder)
		// Prometheus accepts values of more than 64 bits, and reads zeros behind the end.
		if len(got) > len(want) || !slices.EqualFunc(got, want[:len(got)], samePoint) {
			t.Fatalf("%v\ngot  %v\nwant %v", err, got, want)
		}
		if err == nil && (wantErr != nil || len(got) != len(want)) {
			t.Fatalf("%d samples, %v; Prometheus has %d, %v", len(got), err, len(want), wantErr)
		}
		parts, partsErr := batches(chunk, AnyOrder, 1+int(n))
		if !slices.EqualFunc(parts, got, samePoint) || message(err) != message(partsErr) {
			t.Fatalf("%d samples, %v; %d in batches, %v", len(got), err, len(parts), partsErr)
		}
		for order, least := range map[Order]int64{NotDescending: 0, Ascending: 1} {
			ordered := 0
			for ordered < len(got) && (ordered == 0 || got[ordered].T-got[ordered-1].T >= least && got[ordered].T >= got[ordered-1].T) {
				ordered++
			}
			if in, err := AppendPoints([]Point(nil), chunk, order); len(in) != ordered || ordered < len(got) && err == nil {
				t.Fatalf("order %d: %d samples, %v, want %d", order, len(in), err, ordered)
			}
		}
	})
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// benchSeries are values that series usually have. Each has its own chunks, so that branches are not predicted from one chunk.
var benchSeries = []struct {
	name   string
	jitter int64 // ms by which one scrape in four is late
	next   func(random *rand.Rand, last float64) float64
}{
	{"floats", 0, func(random *rand.Rand, _ float64) float64 { return float64(random.Int64N(1e15)) / 1e9 }},
	{"counter", 0, func(random *rand.Rand, last float64) float64 { return last + float64(random.IntN(1000)) }},
	{"constant", 0, func(_ *rand.Rand, last float64) float64 { return last }},
	{"jitter", 2, func(random *rand.Rand, last float64) float64 { return last + float64(random.IntN(1000)) }},
}

func BenchmarkDecoders(b *testing.B) {
	const samples = 120
	random := rand.New(rand.NewPCG(1, 2))
	for _, kind := range benchSeries {
		chunks := make([][]byte, 512)
		for i := range chunks {
			points, last := make([]Point, samples), math.Trunc(random.Float64()*1e6)
			for k := range points {
				last = kind.next(random, last)
				points[k] = Point{1_700_000_000_000 + int64(k)*15_000, last}
				if kind.jitter > 0 && random.IntN(4) == 0 {
					points[k].T += 1 + random.Int64N(kind.jitter)
				}
			}
			chunks[i] = encode(b, points)
		}
		perSample := func(b *testing.B) {
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*samples), "ns/sample")
		}
		var points []promql.FPoint
		b.Run(kind.name+"/points", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				points, _ = AppendPoints(points[:0], chunks[i%len(chunks)], Ascending)
			}
			perSample(b)
		})
		xor := chunkenc.NewXORChunk()
		var it chunkenc.Iterator
		b.Run(kind.name+"/iterator", func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				xor.Reset(chunks[i%len(chunks)])
				points = points[:0]
				for it = xor.Iterator(it); it.Next() != chunkenc.ValNone; {
					t, v := it.At()
					points = append(points, promql.FPoint{T: t, F: v})
				}
			}
			perSample(b)
		})
	}
}

func TestAppendPointsUntil_HasAllSamplesUpToTheTime(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 2_000 {
		samples := randomSamples(rng, 1+rng.IntN(130))
		last := rng.IntN(len(samples))
		got, err := AppendPointsUntil([]Point{{1, 2}}, AppendChunk(nil, samples), Ascending, samples[last].T)
		if err != nil {
			t.Fatal(err)
		}
		got = got[1:]
		if len(got) <= last || len(got) > last+1+untilBatch || !slices.EqualFunc(got, samples[:len(got)], samePoint) {
			t.Fatalf("%d samples up to number %d of %d: %v, want the first of %v", len(got), last, len(samples), got, samples)
		}
	}
}
