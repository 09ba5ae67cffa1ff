package storeapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	floats "github.com/ferula-io/ferula/internal/series/xor"
)

// gaugeChunk encodes n samples with irregular times.
func gaugeChunk(rng *rand.Rand, fromMS int64, n int) series.Chunk {
	points := make([]floats.Point, n)
	at := fromMS
	for i := range points {
		points[i] = floats.Point{T: at, F: rng.NormFloat64()}
		at += 1 + rng.Int64N(30_000)
	}
	return series.Chunk{MinMS: points[0].T, MaxMS: points[n-1].T, Encoding: chunkenc.EncXOR, Data: floats.AppendChunk(nil, points)}
}

func pointsOf(t *testing.T, chunks []series.Chunk) (all []floats.Point) {
	t.Helper()
	for _, c := range chunks {
		var err error
		if all, err = floats.AppendPoints(all, c.Data, floats.Ascending); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// lastAt returns the last point at or before a time.
func lastAt(points []floats.Point, ms int64) (last floats.Point) {
	for _, p := range points {
		if p.T <= ms {
			last = p
		}
	}
	return last
}

func atSteps(steps *series.Steps) SeriesRequest {
	return SeriesRequest{MaxMS: 1 << 50, Matchers: all(), Steps: steps}
}

func TestServer_LeavesOutSamplesBetweenSteps(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	src := &memorySource{}
	for i := range 50 {
		r := row{labels: labels.FromStrings("__name__", "requests_total", "i", fmt.Sprintf("%03d", i))}
		for at, n := int64(1000), 0; n < 4; n++ {
			c := gaugeChunk(rng, at, 1+rng.IntN(200))
			r.chunks, at = append(r.chunks, c), c.MaxMS+1+rng.Int64N(1e6)
		}
		src.rows = append(src.rows, r)
	}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	less := 0
	for _, steps := range []series.Steps{{FirstMS: 0, LastMS: 4e6, StepMS: 1000}, {FirstMS: 3e5, LastMS: 4e6, StepMS: 180_000}, {FirstMS: -5e6, LastMS: 9e7, StepMS: 1e6}, {FirstMS: 2e6, LastMS: 2e6, StepMS: 1}} {
		got, err := read(t, client.Series(context.Background(), atSteps(&steps)))
		if err != nil || len(got) != len(src.rows) {
			t.Fatalf("%+v: %d series, %v", steps, len(got), err)
		}
		for i, want := range src.rows {
			for j, c := range got[i].chunks {
				whole := want.chunks[j]
				if c.MinMS != whole.MinMS || c.MaxMS != whole.MaxMS {
					t.Fatalf("%+v: chunk %d to %d, want %d to %d", steps, c.MinMS, c.MaxMS, whole.MinMS, whole.MaxMS)
				}
				if len(c.Data) < len(whole.Data) {
					less++
				} else if !bytes.Equal(c.Data, whole.Data) {
					t.Fatalf("%+v: a chunk has other bytes and is not shorter", steps)
				}
			}
			have, all := pointsOf(t, got[i].chunks), pointsOf(t, want.chunks)
			for at := steps.FirstMS; at <= steps.LastMS; at += steps.StepMS {
				if g, w := lastAt(have, at), lastAt(all, at); g != w {
					t.Fatalf("%+v: the last sample at %d is %v, want %v", steps, at, g, w)
				}
			}
			if g, w := have[len(have)-1], all[len(all)-1]; g != w {
				t.Fatalf("%+v: the last sample is %v, want %v", steps, g, w)
			}
		}
	}
	if less < 200 {
		t.Errorf("%d chunks lack samples", less)
	}
	// Without steps, and without the extension, every chunk is whole.
	for _, opts := range []ClientOptions{{}, {NoExtension: true}} {
		r := atSteps(nil)
		if opts.NoExtension {
			r.Steps = &series.Steps{LastMS: 1, StepMS: 1}
		}
		got, err := read(t, NewClient(dial(t, src, ServerOptions{}), opts).Series(context.Background(), r))
		if err != nil {
			t.Fatal(err)
		}
		check(t, got, src.rows)
	}
}

// Histograms, corrupt chunks and chunks of few samples are sent as they are.
func TestServer_SendsOtherChunksWhole(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	good := gaugeChunk(rng, 1000, 120)
	cut, outside, few, histogram, empty := good, good, gaugeChunk(rng, 1000, 2), good, good
	cut.Data = cut.Data[:len(cut.Data)/2]
	outside.MaxMS--
	histogram.Encoding = chunkenc.EncFloatHistogram
	empty.Data = []byte{0, 0}
	src := &memorySource{}
	for i, c := range []series.Chunk{cut, outside, few, histogram, empty} {
		src.rows = append(src.rows, row{labels: labels.FromStrings("__name__", "requests_total", "i", fmt.Sprint(i)), chunks: []series.Chunk{c}})
	}
	steps := series.Steps{FirstMS: good.MaxMS, LastMS: good.MaxMS, StepMS: 1}
	got, err := read(t, NewClient(dial(t, src, ServerOptions{}), ClientOptions{}).Series(context.Background(), atSteps(&steps)))
	if err != nil {
		t.Fatal(err)
	}
	check(t, got, src.rows)
}

func TestServer_InvalidStepsAreBadRequests(t *testing.T) {
	client := NewClient(dial(t, &memorySource{rows: rows(t, 3)}, ServerOptions{}), ClientOptions{})
	for _, steps := range []series.Steps{{FirstMS: 1, LastMS: 0, StepMS: 1}, {FirstMS: 0, LastMS: 1, StepMS: -1}} {
		if _, err := read(t, client.Series(context.Background(), atSteps(&steps))); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%+v: %v", steps, err)
		}
	}
	r := atSteps(&series.Steps{LastMS: 1, StepMS: 1})
	r.JoinMS = -1
	if _, err := read(t, client.Series(context.Background(), r)); !errors.Is(err, ErrBadRequest) {
		t.Errorf("chunks joined within %d ms: %v", r.JoinMS, err)
	}
}

// Joined chunks have the samples that chunks apart have at each step. Chunks that overlap, that have no floats or that are corrupt
// stay as they are, and in their order.
func TestServer_JoinsWhatRemainsOfChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	src := &memorySource{}
	const count = 100
	for i := range count {
		r := row{labels: labels.FromStrings("__name__", "requests_total", "i", fmt.Sprintf("%03d", i))}
		for at := int64(1000); len(r.chunks) < 20; {
			c := gaugeChunk(rng, at, 1+rng.IntN(200))
			switch at = c.MaxMS + 1 + rng.Int64N(1e6); rng.IntN(20) {
			case 0:
				at = c.MaxMS // the next one overlaps
			case 1:
				c.Encoding = chunkenc.EncFloatHistogram
			case 2:
				c.Data = c.Data[:len(c.Data)*2/3]
			}
			r.chunks = append(r.chunks, c)
		}
		src.rows = append(src.rows, r)
	}
	sound := func(chunks []series.Chunk) (all []floats.Point) {
		for _, c := range chunks {
			if points, err := floats.AppendPoints([]floats.Point(nil), c.Data, floats.Ascending); err == nil && c.Encoding == chunkenc.EncXOR {
				all = append(all, points...)
			}
		}
		return all
	}
	client := NewClient(dial(t, src, ServerOptions{}), ClientOptions{})
	for _, steps := range []series.Steps{{FirstMS: 0, LastMS: 4e7, StepMS: 180_000}, {FirstMS: 3e6, LastMS: 1e7, StepMS: 1e6}} {
		request := atSteps(&steps)
		request.JoinMS = JoinAny
		joined, err := read(t, client.Series(context.Background(), request))
		if err != nil || len(joined) != count {
			t.Fatalf("%d series, %v", len(joined), err)
		}
		chunks, whole := 0, 0
		for i, want := range src.rows {
			have := joined[i].chunks
			chunks += len(have)
			next := 0 // of the chunks of the source
			for _, c := range have {
				first := want.chunks[next]
				if c.MinMS != first.MinMS {
					t.Fatalf("a chunk from %d, want %d", c.MinMS, first.MinMS)
				}
				for ; want.chunks[next].MaxMS != c.MaxMS; next++ {
					if want.chunks[next+1].MinMS <= want.chunks[next].MaxMS {
						t.Fatal("overlapping chunks are joined")
					}
				}
				if next++; bytes.Equal(c.Data, first.Data) {
					whole++
				} else if _, err := floats.AppendPoints([]floats.Point(nil), c.Data, floats.Ascending); err != nil || c.Encoding != chunkenc.EncXOR {
					t.Fatal(err)
				}
			}
			if next != len(want.chunks) {
				t.Fatalf("%d of %d chunks", next, len(want.chunks))
			}
			got, all := sound(have), sound(want.chunks)
			for at := steps.FirstMS; at <= steps.LastMS; at += steps.StepMS {
				if g, w := lastAt(got, at), lastAt(all, at); g != w {
					t.Fatalf("%+v: the last sample at %d is %v, want %v", steps, at, g, w)
				}
			}
		}
		if chunks > count*20/2 || whole < count {
			t.Errorf("%d chunks of %d, %d of them whole", chunks, count*20, whole)
		}
	}
}

// Equal chunks of two stores must stay equal, whatever chunks are next to them.
func TestStepsFilter_DependsOnTheChunkAlone(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	a, b := gaugeChunk(rng, 0, 150), gaugeChunk(rng, 5e6, 150)
	steps := series.Steps{FirstMS: 7, LastMS: 1e9, StepMS: 200_000}
	alone := slices.Clone((&stepsFilter{steps: steps}).thin([]series.Chunk{b})[0].Data)
	second := (&stepsFilter{steps: steps}).thin([]series.Chunk{a, b})[1].Data
	if !bytes.Equal(alone, second) || len(alone) >= len(b.Data) {
		t.Errorf("%x alone, %x after another chunk", alone, second)
	}
}

// A sidecar has chunks that Prometheus has cut to the request's range, a store gateway the whole chunks.
func TestStepsFilter_WholeChunksBecomeEqualToThoseThatPrometheusHasCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for range 500 {
		var whole, cut []series.Chunk
		for at := rng.Int64N(1e6); len(whole) < 6; at = whole[len(whole)-1].MaxMS + 1 + rng.Int64N(1e6) {
			whole = append(whole, gaugeChunk(rng, at, 1+rng.IntN(60)))
		}
		f := &stepsFilter{steps: series.Steps{FirstMS: rng.Int64N(3e6), LastMS: 1e9, StepMS: 1 + rng.Int64N(400_000)}, joinMS: JoinAny * rng.Int64N(2)}
		f.minMS, f.maxMS = f.steps.FirstMS-rng.Int64N(300_000), f.steps.FirstMS+rng.Int64N(3e6)
		for _, c := range whole {
			if data, first, last, ok := floats.Trim(nil, c.Data, f.minMS, f.maxMS); ok {
				cut = append(cut, series.Chunk{MinMS: first, MaxMS: last, Encoding: c.Encoding, Data: data})
			}
		}
		inRange := slices.DeleteFunc(slices.Clone(whole), func(c series.Chunk) bool { return c.MaxMS < f.minMS || c.MinMS > f.maxMS })
		copied := func(chunks []series.Chunk) []series.Chunk {
			chunks, _ = series.CopyChunks(nil, nil, chunks)
			return chunks
		}
		got, want := copied(f.thin(f.cut(inRange))), copied(f.thin(f.cut(cut)))
		if !slices.EqualFunc(got, want, func(a, b series.Chunk) bool { return series.CompareChunks(a, b) == 0 }) {
			t.Fatalf("%+v, want %+v", got, want)
		}
	}
}

// Between two raw chunks may be a downsampled one.
func TestStepsFilter_JoinsNoChunksOfASeriesWithDownsampledOnes(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	chunks := []series.Chunk{gaugeChunk(rng, 0, 150), gaugeChunk(rng, 5e6, 150)}
	f := &stepsFilter{steps: series.Steps{FirstMS: 7, LastMS: 1e9, StepMS: 200_000}, joinMS: JoinAny}
	between := downsampled(series.Chunk{MinMS: 4e6, MaxMS: 4e6, Encoding: chunkenc.EncXOR, Data: []byte("x")}, series.Sum)
	if joined, apart := len(f.thin(chunks)), len(f.thin([]series.Chunk{chunks[0], between, chunks[1]})); joined != 1 || apart != 3 {
		t.Errorf("%d and %d chunks, want 1 and 3", joined, apart)
	}
}

// The interval between samples at steps may change from sample to sample, while that of all samples does not.
func TestStepsFilter_KeepsNoChunksThatWouldBeLonger(t *testing.T) {
	points := make([]floats.Point, 120)
	for i := range points {
		points[i].T = int64(i) * 600_000
	}
	c := series.Chunk{MaxMS: points[len(points)-1].T, Encoding: chunkenc.EncXOR, Data: floats.AppendChunk(nil, points)}
	f := &stepsFilter{steps: series.Steps{FirstMS: 0, LastMS: 1e12, StepMS: 2_100_000}}
	thinned := floats.AppendChunk(nil, lastAtSteps(points, f.steps))
	if len(thinned) < 2*len(c.Data) {
		t.Fatalf("%d bytes instead of %d", len(thinned), len(c.Data))
	}
	if got := f.thin([]series.Chunk{c, c, c}); !bytes.Equal(got[2].Data, c.Data) || len(f.data) != 0 {
		t.Errorf("%d bytes instead of %d; %d are kept", len(got[2].Data), len(c.Data), len(f.data))
	}
}

// Each interval of the chunk can be encoded, and that of the first and the last sample cannot.
func TestStepsFilter_SendsChunksOfMoreThanHalfOfAllTimesWhole(t *testing.T) {
	points := make([]floats.Point, 9)
	for i := range points {
		points[i] = floats.Point{T: math.MinInt64 + int64(i)*(1<<60), F: float64(i)}
	}
	c := series.Chunk{MinMS: points[0].T, MaxMS: points[8].T, Encoding: chunkenc.EncXOR, Data: floats.AppendChunk(nil, points)}
	f := &stepsFilter{steps: series.Steps{FirstMS: points[0].T, LastMS: points[0].T, StepMS: 1}}
	if got := f.thin([]series.Chunk{c})[0].Data; !bytes.Equal(got, c.Data) {
		t.Errorf("%d bytes instead of %d", len(got), len(c.Data))
	}
}

// fuzzChunk is a chunk whose time range is that of its samples, or any if it is corrupt.
func fuzzChunk(data []byte) (c series.Chunk, points []floats.Point) {
	points, err := floats.AppendPoints(points, data, floats.Ascending)
	c = series.Chunk{MinMS: -1000, MaxMS: 1000, Encoding: chunkenc.EncXOR, Data: data}
	if n := len(points); err == nil && n > 0 {
		c.MinMS, c.MaxMS = points[0].T, points[n-1].T
	}
	return c, points
}

func FuzzStepsFilter(f *testing.F) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, n := range []int{1, 2, 50, 240} {
		f.Add(gaugeChunk(rng, -5000, n).Data, int64(0), int64(1e6), int64(200_000))
	}
	f.Add(floats.AppendChunk(nil, []floats.Point{{T: math.MinInt64}, {T: -1}, {T: 0, F: 1}, {T: 1}, {T: 2}, {T: 3}, {T: math.MaxInt64}}), int64(math.MinInt64), int64(math.MaxInt64), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, data []byte, first, last, step int64) {
		steps := series.Steps{FirstMS: first, LastMS: last, StepMS: step}
		if !steps.Valid() {
			return
		}
		c, points := fuzzChunk(slices.Clone(data))
		filter := &stepsFilter{steps: steps}
		got := filter.thin([]series.Chunk{c})[0].Data
		if !bytes.Equal(c.Data, data) {
			t.Fatal("the chunk was changed")
		}
		if bytes.Equal(got, data) {
			return
		}
		have, err := floats.AppendPoints([]floats.Point(nil), got, floats.Ascending)
		if err != nil || len(got) >= len(data) {
			t.Fatalf("%d bytes of %d: %v", len(got), len(data), err)
		}
		same := func(a, b floats.Point) bool { return a.T == b.T && math.Float64bits(a.F) == math.Float64bits(b.F) }
		if !same(have[len(have)-1], points[len(points)-1]) {
			t.Fatal("the last sample is missing")
		}
		k := 0
		for i, p := range points { // p is needed if it is the last one, or if a step is before the next one
			for k < len(have) && have[k].T < p.T {
				k++
			}
			at := steps.NotBefore(p.T)
			needed := i == len(points)-1 || at <= last && at >= p.T && at < points[i+1].T
			if kept := k < len(have) && same(have[k], p); needed && !kept {
				t.Fatalf("sample %d at %d is missing for %+v", i, p.T, steps)
			}
		}
	})
}

// wholeRequests serves the chunks of a memorySource itself, as the store of a bucket does.
type wholeRequests struct{ *memorySource }

func (w wholeRequests) Series(ctx context.Context, r SeriesRequest) Stream {
	q, _ := w.RawQuerier(ctx, r.MinMS, r.MaxMS)
	return selection{q.Select(ctx, series.SelectOptions{}, r.Matchers...), q}
}

// forwarding is a source whose stores leave out samples.
type forwarding struct{ wholeRequests }

func (forwarding) Capabilities() Capabilities { return Capabilities{ForwardsSteps: true} }

// Samples of whole requests are left out, too, unless it forwards the steps.
func TestServer_LeavesOutSamplesOfSourcesOfWholeRequests(t *testing.T) {
	whole := gaugeChunk(rand.New(rand.NewPCG(5, 6)), 1000, 120)
	memory := &memorySource{rows: []row{{labels: labels.FromStrings("__name__", "requests_total"), chunks: []series.Chunk{whole}}}}
	for _, tt := range []struct {
		src  Source
		want int // samples
	}{{wholeRequests{memory}, 1}, {forwarding{wholeRequests{memory}}, 120}} {
		steps := series.Steps{FirstMS: whole.MaxMS, LastMS: whole.MaxMS, StepMS: 1}
		got, err := read(t, NewClient(dial(t, tt.src, ServerOptions{}), ClientOptions{}).Series(context.Background(), atSteps(&steps)))
		if err != nil || len(got) != 1 {
			t.Fatalf("%T: %d series, %v", tt.src, len(got), err)
		}
		if n := len(pointsOf(t, got[0].chunks)); n != tt.want {
			t.Errorf("%T: %d samples, want %d", tt.src, n, tt.want)
		}
	}
}

func TestLastAtSteps_IntervalsThatDiffer(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		points, at := make([]floats.Point, 1+rng.IntN(40)), rng.Int64N(1000)-500
		for i := range points {
			points[i] = floats.Point{T: at, F: rng.Float64()}
			at += 1 + rng.Int64N([]int64{1, 3, 100}[rng.IntN(3)])
		}
		first := rng.Int64N(1500) - 750
		steps := series.Steps{FirstMS: first, LastMS: first + rng.Int64N(1500), StepMS: 1 + rng.Int64N(120)}
		var want []floats.Point
		for i, p := range points {
			if i == len(points)-1 || steps.NotBefore(p.T) <= min(steps.LastMS, points[i+1].T-1) {
				want = append(want, p)
			}
		}
		if got := lastAtSteps(slices.Clone(points), steps); !slices.Equal(got, want) {
			t.Fatalf("%v of %v are %v, want %v", steps, points, got, want)
		}
	}
}
