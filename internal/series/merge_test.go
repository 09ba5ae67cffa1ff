package series

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// The merged sets are 1 to 40, some empty, with series in several of them, label sets that are prefixes of others, and
// repeated chunks.
func TestMerge_RandomSetsEqualASort(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		sets := make([]Set, 1+rng.IntN(40))
		chunksOf := map[string][]Chunk{}
		for i := range sets {
			l := &list{}
			for _, lset := range randomLabels(rng, rng.IntN(8)) {
				s := one{labels: lset}
				for at := range int64(rng.IntN(4)) {
					s.chunks = append(s.chunks, chunk(at*10, at*10+int64(rng.IntN(15)), fmt.Sprint(rng.IntN(2))))
				}
				l.series = append(l.series, s)
				key := string(labelenc.Append(nil, lset))
				chunksOf[key] = append(chunksOf[key], s.chunks...)
			}
			sets[i] = l
		}
		var all []one
		builder := labels.NewScratchBuilder(4)
		for key, chunks := range chunksOf {
			lset, err := labelenc.Labels([]byte(key), &builder)
			if err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(chunks, CompareChunks)
			chunks = slices.CompactFunc(chunks, func(a, b Chunk) bool { return CompareChunks(a, b) == 0 })
			all = append(all, one{lset, chunks})
		}
		slices.SortFunc(all, func(a, b one) int { return labels.Compare(a.labels, b.labels) })
		want := texts(t, &list{series: all})
		set := Merge(sets...)
		got := texts(t, set)
		if set.Err() != nil || !slices.Equal(got, want) {
			t.Fatalf("%v\ngot  %q\nwant %q", set.Err(), got, want)
		}
	}
}

func TestMerge_AllocatesNothingPerSeries(t *testing.T) {
	allocations := func(sets, n int) float64 {
		var all []one
		for i := range n {
			all = append(all, one{labels.FromStrings("a", fmt.Sprintf("%06d", i)), nil})
		}
		return testing.AllocsPerRun(5, func() {
			var from []Set
			for i := range sets {
				from = append(from, &list{series: all[i*n/sets/2:]})
			}
			set := Merge(from...)
			for set.Next() {
			}
		})
	}
	for _, sets := range []int{2, 3, 20} {
		if few, many := allocations(sets, 40), allocations(sets, 2000); many > few+10 {
			t.Errorf("%d sets: %v allocations for 40 series, %v for 2,000", sets, few, many)
		}
	}
}

// fixed returns the same labels without copying, so that only merging is measured.
type fixed struct {
	failed
	all [][]byte
	i   int
}

func (f *fixed) Next() bool     { f.i++; return f.i <= len(f.all) }
func (f *fixed) Labels() []byte { return f.all[f.i-1] }

func BenchmarkMerge(b *testing.B) {
	for _, stores := range []int{2, 3, 8, 16, 64} {
		for _, replicas := range []int{1, 2} {
			contents := make([][][]byte, stores)
			for s := range contents {
				for i := range 1000 {
					l := labels.FromStrings("__name__", "some_metric_name_total", "instance", fmt.Sprintf("host-%05d", i), "job", "node", "shard", fmt.Sprint(s/replicas))
					var set []byte
					set = labelenc.Append(set, l)
					contents[s] = append(contents[s], set)
				}
			}
			b.Run(fmt.Sprintf("stores=%d/replicas=%d", stores, replicas), func(b *testing.B) {
				for range b.N {
					var sets []Set
					for _, content := range contents {
						sets = append(sets, &fixed{all: content})
					}
					set := Merge(sets...)
					for set.Next() {
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*stores*1000), "ns/series")
			})
		}
	}
}
