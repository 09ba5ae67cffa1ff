package fanout

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
)

// downsampled returns the chunks that a compactor makes of raw samples. The timestamp of an aggregate is the end of its
// window. The last aggregate of a chunk has the timestamp of the last sample, if that is earlier. A chunk of a counter begins
// with the first raw sample, and ends with the value of the last raw sample.
func downsampled(t *testing.T, samples []sample, resolution int64, windows int) []aggrChunk {
	t.Helper()
	var all []aggrChunk
	for len(samples) > 0 {
		end := (samples[0].t/resolution + int64(windows)) * resolution
		n, _ := slices.BinarySearchFunc(samples, end, func(s sample, end int64) int { return int(s.t - end) })
		batch := samples[:n]
		samples = samples[n:]
		of := map[series.Aggr][]sample{series.Counter: {batch[0]}}
		total, before := 0.0, 0.0
		for len(batch) > 0 {
			end := batch[0].t/resolution*resolution + resolution - 1
			count, sum, last := 0.0, 0.0, 0.0
			for len(batch) > 0 && batch[0].t <= end {
				s := batch[0]
				if total += s.v - before; s.v < before {
					total += before
				}
				count, sum, last, before = count+1, sum+s.v, s.v, s.v
				if batch = batch[1:]; len(batch) == 0 {
					end = s.t
				}
			}
			of[series.Count] = append(of[series.Count], sample{end, count, false})
			of[series.Sum] = append(of[series.Sum], sample{end, sum, false})
			of[series.Counter] = append(of[series.Counter], sample{end, total, false})
			if len(batch) == 0 {
				of[series.Counter] = append(of[series.Counter], sample{end, last, false})
			}
		}
		chunks := aggregates(t, of)
		for i := range chunks { // the first value of a counter is not in the declared range
			chunks[i].MinMS = of[series.Count][0].t
		}
		all = append(all, chunks...)
	}
	return all
}

const testHours = 30

// truth are samples every 15 s or so. Values are no integers; counters of them
// are reset.
func truth(rng *rand.Rand, resets, gaps bool) []sample {
	var all []sample
	v := 0.5
	for at := int64(1 + rng.IntN(10_000)); at < testHours*coarseMS; at += 14_900 + int64(rng.IntN(200)) {
		if gaps && rng.IntN(600) == 0 {
			at += int64(rng.IntN(2_000_000))
		}
		if v += float64(rng.IntN(4)); resets && rng.IntN(200) == 0 {
			v = 0.5
		}
		if at < testHours*coarseMS {
			all = append(all, sample{at, v, false})
		}
	}
	return all
}

func between(samples []sample, minMS, maxMS int64) []sample {
	return slices.DeleteFunc(slices.Clone(samples), func(s sample) bool { return s.t < minMS || s.t > maxMS })
}

// holders returns stores of one replica, one for each resolution. Each store has a random part of the time. Downsampled
// blocks begin at whole hours, and end there if whole is set. have has the timestamps of the samples that any store has.
func holders(t *testing.T, rng *rand.Rand, lset labels.Labels, samples []sample, whole bool, resolutions ...int64) (stores []*fakeStore, have map[int64]bool) {
	have = map[int64]bool{}
	for _, resolution := range resolutions {
		begin, end := rng.Int64N(testHours*coarseMS), rng.Int64N(testHours*coarseMS)
		begin, end = min(begin, end), max(begin, end)
		if resolution > 0 {
			begin = begin / coarseMS * coarseMS
			if whole {
				end = end/coarseMS*coarseMS + coarseMS - 1
			}
		}
		part := between(samples, begin, end)
		o := one{labels: lset}
		if resolution == 0 {
			for chunk := range slices.Chunk(part, 1+rng.IntN(300)) {
				o.chunks = append(o.chunks, encode(t, chunk))
			}
		} else if len(part) > 0 {
			// The resolution of a chunk with one timestamp cannot be determined.
			single := func(c aggrChunk) bool { return c.MinMS == c.MaxMS }
			for n := 5 + rng.IntN(150); part[len(part)-1].t-part[0].t > 2*coarseMS; n++ {
				if o.aggr = downsampled(t, part, resolution, n); !slices.ContainsFunc(o.aggr, single) {
					break
				}
			}
		}
		if len(o.chunks)+len(o.aggr) == 0 {
			continue
		}
		for _, s := range part {
			have[s.t] = true
		}
		stores = append(stores, &fakeStore{series: []one{o}})
	}
	return stores, have
}

// countAndSum reads counts and sums of each hour.
func countAndSum(t *testing.T, f *Fanout, r Request) (count, sum [testHours]float64) {
	t.Helper()
	for _, function := range []string{"count_over_time", "sum_over_time"} {
		got, _, _, err := read(t, f.Queryable(r), 0, testHours*coarseMS, &storage.SelectHints{Start: 0, End: testHours * coarseMS, Func: function})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range got[named("m").String()] {
			switch hour := s.t / coarseMS; {
			case function == "sum_over_time":
				sum[hour] += s.v
			case s.v == math.Trunc(s.v):
				count[hour] += s.v
			default:
				count[hour]++ // a raw sample
			}
		}
	}
	return count, sum
}

// Every sample is counted and added once, whatever resolutions contain it. If an aggregate ends in the middle of a
// window, finer samples of the rest of that window may be missing.
func TestQuerier_EachSampleIsInOneResolution(t *testing.T) {
	for seed := range uint64(120) {
		rng := rand.New(rand.NewPCG(seed, 7))
		samples, whole := truth(rng, true, true), seed%2 == 0
		stores, have := holders(t, rng, named("m"), samples, whole, 0, fineMS, coarseMS)
		f, _ := newTestFanout(t, Options{}, stores...)
		count, sum := countAndSum(t, f, Request{MaxResolutionMS: coarseMS})
		var wantCount, wantSum [testHours]float64
		for _, s := range samples {
			if have[s.t] {
				wantCount[s.t/coarseMS]++
				wantSum[s.t/coarseMS] += s.v
			}
		}
		for hour := range wantCount {
			if math.Abs(sum[hour]-wantSum[hour]) < 1e-6 && count[hour] == wantCount[hour] {
				continue
			}
			if whole || count[hour] > wantCount[hour] || sum[hour] > wantSum[hour] {
				t.Errorf("seed %d, hour %d: count %g, sum %g, want %g and %g", seed, hour, count[hour], sum[hour], wantCount[hour], wantSum[hour])
			}
		}
	}
}

// The result for a counter never grows by more than the raw samples, whatever resolutions contain these samples.
func TestQuerier_CountersOfAllResolutionsGrowAsTheyDid(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 8))
		samples := truth(rng, true, true)
		stores, _ := holders(t, rng, named("m"), samples, false, 0, fineMS, coarseMS)
		f, _ := newTestFanout(t, Options{}, stores...)
		got, _, _, err := read(t, f.Queryable(Request{MaxResolutionMS: coarseMS}), 0, testHours*coarseMS, &storage.SelectHints{Start: 0, End: testHours * coarseMS, Func: "increase"})
		if err != nil {
			t.Fatal(err)
		}
		checkIncrease(t, fmt.Sprint("seed ", seed), got[named("m").String()], samples)
	}
}

func checkIncrease(t *testing.T, name string, got, samples []sample) {
	t.Helper()
	for i := 1; i < len(got); i++ {
		want, last := 0.0, 0.0
		for _, s := range samples {
			if s.t > got[i-1].t && s.t <= got[i].t {
				if want += s.v - last; s.v < last {
					want += last
				}
			}
			if s.t <= got[i].t {
				last = s.v
			}
		}
		grown := got[i].v - got[i-1].v
		if grown < 0 {
			grown = got[i].v // to PromQL this is a counter reset
		}
		if grown > want+1e-6 {
			t.Errorf("%s: from %d to %d it grows by %g, want %g at most", name, got[i-1].t, got[i].t, grown, want)
		}
	}
}

// Deduplication does not add the samples of two replicas if one has raw samples and the other has aggregates of the same
// time.
func TestQuerier_ReplicasOfDifferentResolutionsAreNotAdded(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 9))
		var stores []*fakeStore
		var most [testHours]float64
		resolutions := []int64{0, fineMS + int64(seed%2)*(coarseMS-fineMS)}
		for i, replica := range []string{"1", "2"} {
			samples := truth(rng, false, false)
			own, have := holders(t, rng, labels.FromStrings("__name__", "m", "r", replica), samples, true, resolutions[i])
			stores = append(stores, own...)
			var count [testHours]float64
			for _, s := range samples {
				if have[s.t] {
					count[s.t/coarseMS]++
				}
			}
			for hour := range most {
				most[hour] = max(most[hour], count[hour])
			}
		}
		f, _ := newTestFanout(t, Options{}, stores...)
		count, _ := countAndSum(t, f, Request{MaxResolutionMS: coarseMS, ReplicaLabels: []string{"r"}})
		for hour := range most {
			if count[hour] > most[hour]+2 {
				t.Errorf("seed %d, hour %d: count %g, want %g at most", seed, hour, count[hour], most[hour])
			}
		}
	}
}

// Chunks of one timestamp have the resolution of the chunk before them.
func TestView_ResolutionOfASingleTimestamp(t *testing.T) {
	samples := []sample{}
	for at := int64(1000); at < coarseMS; at += 15_000 {
		samples = append(samples, sample{at, 0.5, false})
	}
	for windows := 1; windows < 13; windows++ {
		s := &fakeStore{series: []one{{labels: named("m"), aggr: downsampled(t, samples, fineMS, windows)}}}
		raw := &fakeStore{series: []one{{labels: named("m"), chunks: []series.Chunk{encode(t, samples[:130])}}}}
		f, _ := newTestFanout(t, Options{}, s, raw)
		for _, resolution := range []int64{fineMS, coarseMS} {
			if count, _ := countAndSum(t, f, Request{MaxResolutionMS: resolution}); count[0] != float64(len(samples)) {
				t.Errorf("%d windows a chunk, at most %d: count %g, want %d", windows, resolution, count[0], len(samples))
			}
		}
	}
}

// Chunks that cannot be decoded are pieces, too.
func TestDistinct_PiecesUpToTheLimit(t *testing.T) {
	for packed, want := range map[int]error{piecesMax - 1: nil, piecesMax: series.ErrCorrupt} {
		chunks := make([]series.Chunk, packed+1)
		for i := range packed {
			chunks[i] = series.Chunk{MaxMS: 10, Encoding: series.Aggregated}
		}
		chunks[packed] = series.Chunk{MinMS: 5, MaxMS: 10, Encoding: chunkenc.EncXOR}
		pieces, cut, err := (&view{}).distinct(chunks)
		if !errors.Is(err, want) || want == nil && (len(pieces) != piecesMax || !cut) {
			t.Errorf("%d chunks: %d pieces, %v", len(chunks), len(pieces), err)
		}
	}
}
