package fanout

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
)

// randomLabelSets are distinct and sorted, many are prefixes of others; the replica label r
// is in the middle of the names.
func randomLabelSets(rng *rand.Rand, n int) []labels.Labels {
	var all []labels.Labels
	for range n {
		pairs := []string{"__name__", "m"}
		for _, name := range []string{"a", "b", "z"} {
			if rng.IntN(2) == 0 {
				pairs = append(pairs, name, fmt.Sprint(rng.IntN(2)))
			}
		}
		all = append(all, labels.FromStrings(pairs...))
	}
	slices.SortFunc(all, labels.Compare)
	return slices.CompactFunc(all, labels.Equal)
}

// Stores have overlapping pieces of the same series. The result has every series and each sample once.
func TestQuerier_OverlappingStoresAreReadOnce(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var stores []*fakeStore
		want := map[string]map[int64]sample{}
		minMS, maxMS := int64(rng.IntN(10_000)), int64(10_000+rng.IntN(40_000))
		for range 1 + rng.IntN(8) {
			f := &fakeStore{strips: rng.IntN(2) == 0}
			for _, lset := range randomLabelSets(rng, rng.IntN(8)) {
				seedOf := float64(lset.Hash() % 1000)
				// The timestamp determines the kind of a sample, so that pieces agree.
				chunks := randomSeries(t, rng, func(at int64) (float64, bool) { return seedOf + float64(at), (at/16_000+int64(seedOf))%3 == 0 }, true)
				f.series = append(f.series, one{labels: lset, chunks: chunks})
				if want[lset.String()] == nil {
					want[lset.String()] = map[int64]sample{}
				}
				for _, s := range decode(t, chunks, minMS, maxMS) {
					want[lset.String()][s.t] = s
				}
			}
			stores = append(stores, f)
		}
		f, _ := newTestFanout(t, Options{}, stores...)
		got, order, warnings, err := read(t, f.Queryable(Request{}), minMS, maxMS, nil)
		if err != nil || len(warnings) > 0 {
			t.Fatal(err, warnings)
		}
		if len(got) != len(want) || len(order) != len(want) {
			t.Fatalf("seed %d: %d series, want %d", seed, len(order), len(want))
		}
		for name, samples := range want {
			all := slices.SortedFunc(maps.Values(samples), func(a, b sample) int { return cmp.Compare(a.t, b.t) })
			if !slices.Equal(got[name], all) {
				t.Fatalf("seed %d: %s\ngot  %v\nwant %v", seed, name, got[name], all)
			}
		}
	}
}

// naivePenalty is the algorithm over whole lists, of any number of replicas.
func naivePenalty(replicas [][]sample) []sample {
	shown := replicas[0]
	for _, b := range replicas[1:] {
		a, next := shown, []sample(nil)
		last, penaltyA, penaltyB := int64(math.MinInt64), int64(0), int64(0)
		for {
			for len(a) > 0 && a[0].t < last+1+penaltyA {
				a = a[1:]
			}
			for len(b) > 0 && b[0].t < last+1+penaltyB {
				b = b[1:]
			}
			since := func(t int64) int64 {
				if last == math.MinInt64 {
					return 5000
				}
				return 2 * (t - last)
			}
			if len(a) == 0 && len(b) == 0 {
				break
			}
			if len(b) == 0 || len(a) > 0 && a[0].t <= b[0].t {
				if penaltyA = 0; len(b) > 0 {
					penaltyB = since(a[0].t)
				}
				last, next = a[0].t, append(next, a[0])
			} else {
				if penaltyB = 0; len(a) > 0 {
					penaltyA = since(b[0].t)
				}
				last, next = b[0].t, append(next, b[0])
			}
		}
		shown = next
	}
	return shown
}

// Replicas are in one store or in several, in stores that remove the replica label and in
// others, with gaps and histograms: each series equals the result of the naive algorithm
// over all its chunks.
func TestQuerier_DeduplicatesAsTheNaiveAlgorithm(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var stores []*fakeStore
		all := map[string][]series.Chunk{}
		minMS, maxMS := int64(rng.IntN(10_000)), int64(10_000+rng.IntN(40_000))
		for range 1 + rng.IntN(5) {
			f := &fakeStore{strips: rng.IntN(2) == 0}
			for _, lset := range randomLabelSets(rng, rng.IntN(6)) {
				for replica := range 1 + rng.IntN(3) {
					with := labels.NewBuilder(lset).Set("r", fmt.Sprint(replica)).Labels()
					chunks := randomSeries(t, rng, func(int64) (float64, bool) { return rng.Float64(), rng.IntN(9) == 0 }, rng.IntN(2) == 0)
					f.series = append(f.series, one{labels: with, chunks: chunks})
					all[lset.String()] = append(all[lset.String()], chunks...)
				}
			}
			slices.SortFunc(f.series, func(a, b one) int { return labels.Compare(a.labels, b.labels) })
			stores = append(stores, f)
		}
		f, _ := newTestFanout(t, Options{}, stores...)
		got, order, _, err := read(t, f.Queryable(Request{ReplicaLabels: []string{"r"}}), minMS, maxMS, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(order) != len(all) {
			t.Fatalf("seed %d: %q, want %d series", seed, order, len(all))
		}
		for name, chunks := range all {
			slices.SortStableFunc(chunks, series.CompareChunks)
			var replicas [][]sample
			for _, track := range naiveTracks(chunks) {
				replicas = append(replicas, decode(t, track, minMS, maxMS))
			}
			var want []sample
			if len(replicas) > 0 {
				want = naivePenalty(replicas)
			}
			if !slices.Equal(got[name], want) {
				t.Fatalf("seed %d: %s\ngot  %v\nwant %v", seed, name, got[name], want)
			}
		}
	}
}

func naiveTracks(chunks []series.Chunk) [][]series.Chunk {
	var tracks [][]series.Chunk
chunks:
	for _, c := range chunks {
		for i, track := range tracks {
			if track[len(track)-1].MaxMS < c.MinMS {
				tracks[i] = append(track, c)
				continue chunks
			}
		}
		tracks = append(tracks, []series.Chunk{c})
	}
	return tracks
}

func TestQuerier_MergesPiecesOfASeries(t *testing.T) {
	lset := labels.FromStrings("__name__", "m")
	f, _ := newTestFanout(t, Options{}, &fakeStore{series: []one{
		{labels: lset, chunks: []series.Chunk{encode(t, []sample{{1, 1, false}}), encode(t, []sample{{2, 2, false}})}},
		{labels: lset, chunks: []series.Chunk{encode(t, []sample{{3, 3, false}})}},
	}}, &fakeStore{series: []one{{labels: lset, chunks: []series.Chunk{encode(t, []sample{{2, 2, false}})}}}})
	got, _, _, err := read(t, f.Queryable(Request{}), 0, 10, nil)
	if want := []sample{{1, 1, false}, {2, 2, false}, {3, 3, false}}; err != nil || !slices.Equal(got[lset.String()], want) {
		t.Errorf("%v %v", err, got)
	}
}

// A querier of a querier returns the same, whichever of the two deduplicates.
func TestSource_EqualsTheQueriersResult(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 4))
		var stores []*fakeStore
		for range 1 + rng.IntN(6) {
			f := &fakeStore{strips: rng.IntN(2) == 0}
			for _, lset := range randomLabelSets(rng, rng.IntN(6)) {
				with := labels.NewBuilder(lset).Set("r", fmt.Sprint(rng.IntN(2))).Labels()
				f.series = append(f.series, one{labels: with, chunks: randomSeries(t, rng, func(int64) (float64, bool) { return rng.Float64(), false }, false)})
			}
			slices.SortFunc(f.series, func(a, b one) int { return labels.Compare(a.labels, b.labels) })
			stores = append(stores, f)
		}
		near, _ := newTestFanout(t, Options{}, stores...)
		e := NewEndpoints(EndpointsOptions{Static: []Address{{Name: "near"}}, Dial: func(Address) (Client, error) { return sourceClient{near.Source()}, nil }})
		e.Update(context.Background())
		far := New(e, near.opts)
		for _, replicaLabels := range [][]string{nil, {"r"}} {
			want, wantOrder, _, err := read(t, near.Queryable(Request{ReplicaLabels: replicaLabels}), 0, 40_000, nil)
			got, order, warnings, err2 := read(t, far.Queryable(Request{ReplicaLabels: replicaLabels}), 0, 40_000, nil)
			if err != nil || err2 != nil || len(warnings) > 0 || !slices.Equal(order, wantOrder) {
				t.Fatalf("seed %d: %v %v %q, order %q, want %q", seed, err, err2, warnings, order, wantOrder)
			}
			for name, samples := range want {
				if !slices.Equal(got[name], samples) {
					t.Fatalf("seed %d: %s\ngot  %v\nwant %v", seed, name, got[name], samples)
				}
			}
		}
	}
}

// sourceClient queries a source without a wire.
type sourceClient struct{ *Source }

func (sourceClient) Close() error { return nil }
