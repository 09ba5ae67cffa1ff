package fanout

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// bucketBomb is the data of a chunk of histograms that announce four billion buckets.
func bucketBomb() []byte {
	bits := "00000000" + "0" + "10001" + "11111110" + strings.Repeat("0", 24) + strings.Repeat("1", 32) + strings.Repeat("0", 90)
	data := []byte{0, 1, 0}
	for ; len(bits) >= 8; bits = bits[8:] {
		v, _ := strconv.ParseUint(bits[:8], 2, 8)
		data = append(data, byte(v))
	}
	return data
}

// Invalid data of a store is an error. It must not stop the querier.
func TestQuerier_LiesOfAStoreAreErrors(t *testing.T) {
	point := encode(t, []sample{{50, 1, false}})
	overlapping := make([]series.Chunk, 100_000)
	for i := range overlapping {
		overlapping[i] = series.Chunk{MinMS: int64(i), MaxMS: 1 << 40, Encoding: point.Encoding, Data: point.Data}
	}
	aggregate := func(kind series.Aggr, minMS, maxMS int64, enc chunkenc.Encoding, data []byte) aggrChunk {
		return aggrChunk{Aggr: kind, Chunk: series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: enc, Data: data}}
	}
	var gaps []aggrChunk // aggregates with a gap after each
	for i := range int64(2000) {
		at := 2 * i * fineMS
		gaps = append(gaps, aggregate(series.Count, at, at, chunkenc.EncXOR, encode(t, []sample{{at, 1, false}}).Data), aggregate(series.Sum, at, at, chunkenc.EncXOR, encode(t, []sample{{at, 1, false}}).Data))
	}
	long := make([]series.Chunk, 2000) // each overlaps all others
	for i := range long {
		long[i] = series.Chunk{MinMS: int64(i), MaxMS: 1 << 40, Encoding: point.Encoding, Data: point.Data}
	}
	histograms := aggregate(series.Count, 0, 10, chunkenc.EncHistogram, bucketBomb())
	for what, c := range map[string]struct {
		one
		want string
	}{
		"chunks that all overlap":       {one{chunks: overlapping}, "more than 1000 chunks overlap"},
		"histograms without a chunk":    {one{chunks: []series.Chunk{{MaxMS: 10, Encoding: chunkenc.EncFloatHistogram, Data: bucketBomb()}}}, "4294967295 buckets"},
		"aggregates without a chunk":    {one{aggr: []aggrChunk{histograms, aggregate(series.Sum, 0, 10, chunkenc.EncHistogram, bucketBomb())}}, "4294967295 buckets"},
		"chunks between all aggregates": {one{aggr: gaps, chunks: long}, "more than 1048576 pieces"},
	} {
		c.labels = named("m")
		for _, replicas := range [][]string{nil, {"r"}} {
			f, _ := newTestFanout(t, Options{}, &fakeStore{series: []one{c.one}})
			_, _, _, err := read(t, f.Queryable(Request{ReplicaLabels: replicas, MaxResolutionMS: fineMS}), 0, 1<<40, nil)
			if replicas == nil && what == "chunks that all overlap" {
				continue // they are merged by a heap
			}
			if !errors.Is(err, series.ErrCorrupt) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, replicas %v: %v", what, replicas, err)
			}
		}
	}
}

// A constant has four samples a byte: 70 chunks of 16 KiB are 70 MiB of points.
func TestAppendFloats_LeavesVeryManySamplesToTheIterator(t *testing.T) {
	chunk, err := chunkenc.NewEmptyChunk(chunkenc.EncXOR)
	if err != nil {
		t.Fatal(err)
	}
	app, err := chunk.Appender()
	if err != nil {
		t.Fatal(err)
	}
	const each = 65_535
	for i := range int64(each) {
		app.Append(0, i, 1)
	}
	view := &view{maxMS: maxTime}
	whole := []series.Chunk{{MaxMS: each - 1, Encoding: chunkenc.EncXOR, Data: chunk.Bytes()}}
	if points, ok, err := (&storedSeries{view: view, chunks: whole}).AppendFloats(nil, 0, maxTime); len(points) != each || !ok || err != nil {
		t.Fatal(len(points), ok, err)
	}
	for n := range int64(pointsMax / each) { // further chunks need a header only, since none is decoded
		at := (n + 1) * 100_000
		whole = append(whole, series.Chunk{MinMS: at, MaxMS: at + each, Encoding: chunkenc.EncXOR, Data: chunk.Bytes()[:3]})
	}
	if points, ok, err := (&storedSeries{view: view, chunks: whole}).AppendFloats(nil, 0, maxTime); len(points) != 0 || ok || err != nil {
		t.Errorf("%d points, %v, %v", len(points), ok, err)
	}
}

// naiveResolve implements resolve: it searches all chunks before each chunk.
func naiveResolve(chunks []stamped) {
	last := coarseMS
	if i := slices.IndexFunc(chunks, func(k stamped) bool { return k.resolution > 0 }); i >= 0 {
		last = chunks[i].resolution
	}
	for i := range chunks {
		if c := &chunks[i]; c.resolution == 0 {
			c.resolution = last
			for _, before := range slices.Backward(chunks[:i]) {
				if window(before.chunk.MaxMS, before.resolution).minMS == window(c.chunk.MinMS, before.resolution).minMS-before.resolution {
					c.resolution = before.resolution
					break
				}
			}
		}
		last = chunks[i].resolution
	}
}

func TestResolve_EqualsASearchOfAllChunksBefore(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		chunks := make([]stamped, 1+rng.IntN(12))
		at := int64(0)
		for i := range chunks {
			at += rng.Int64N(4) * fineMS
			chunks[i] = stamped{chunk: series.Chunk{MinMS: at + rng.Int64N(fineMS), MaxMS: at + rng.Int64N(3)*coarseMS + fineMS}, resolution: []int64{0, 0, fineMS, coarseMS}[rng.IntN(4)]}
		}
		want := slices.Clone(chunks)
		naiveResolve(want)
		resolve(chunks)
		for i := range chunks {
			if chunks[i].resolution != want[i].resolution {
				t.Fatalf("chunk %d of %+v has resolution %d, want %d", i, chunks, chunks[i].resolution, want[i].resolution)
			}
		}
	}
}

func TestAppendOutside_SkipsSpansBefore(t *testing.T) {
	spans := []span{{0, 9}, {20, 29}, {40, 49}}
	for _, c := range []struct {
		from, to int64
		want     string
	}{{0, 9, ""}, {10, 19, "10-19"}, {5, 45, "10-19 30-39"}, {25, 35, "30-35"}, {50, 60, "50-60"}, {29, 29, ""}, {49, 50, "50-50"}, {-5, 60, "-5--1 10-19 30-39 50-60"}} {
		var got []string
		for _, p := range appendOutside(nil, series.Chunk{MinMS: c.from, MaxMS: c.to}, spans) {
			got = append(got, fmt.Sprint(p.MinMS, "-", p.MaxMS))
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%d to %d: %q, want %q", c.from, c.to, text, c.want)
		}
	}
}
