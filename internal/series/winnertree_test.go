package series

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// Both merges get the same sets: 2 to 40, some empty, with series in several of them,
// label sets that are prefixes of others, and repeated chunks.
func TestWinnerTree_EqualsTheLinearMerge(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		sets := 2 + rng.IntN(39)
		contents := make([][]one, sets)
		for i := range contents {
			for _, lset := range randomLabels(rng, rng.IntN(8)) {
				s := one{labels: lset}
				for at := range int64(rng.IntN(4)) {
					s.chunks = append(s.chunks, chunk(at*10, at*10+int64(rng.IntN(15)), fmt.Sprint(rng.IntN(2))))
				}
				contents[i] = append(contents[i], s)
			}
		}
		open := func() []Set {
			var all []Set
			for _, content := range contents {
				all = append(all, &list{series: content})
			}
			return all
		}
		linear := open()
		want := texts(t, &merge{sets: linear, waiting: slices.Clone(linear)})
		set := newWinnerTree(open())
		got := texts(t, set)
		if set.Err() != nil || !slices.Equal(got, want) {
			t.Fatalf("%v\ngot  %q\nwant %q", set.Err(), got, want)
		}
	}
}

func TestWinnerTree_FailureOfOneSetEndsIt(t *testing.T) {
	for failing := range 9 {
		var sets []Set
		for i := range 9 {
			l := &list{series: []one{{labels.FromStrings("a", fmt.Sprint(i)), nil}}}
			if i == failing {
				l.err = ErrCorrupt
			}
			sets = append(sets, l)
		}
		set := Merge(sets...)
		got := texts(t, set)
		if set.Err() == nil || len(got) > failing+1 || set.Next() {
			t.Errorf("set %d: %q, %v", failing, got, set.Err())
		}
	}
}

func TestWinnerTree_AllocatesNothingPerSeries(t *testing.T) {
	allocations := func(n int) float64 {
		var all []one
		for i := range n {
			all = append(all, one{labels.FromStrings("a", fmt.Sprintf("%06d", i)), nil})
		}
		return testing.AllocsPerRun(5, func() {
			var sets []Set
			for i := range 20 {
				sets = append(sets, &list{series: all[i*n/40:]})
			}
			set := Merge(sets...)
			for set.Next() {
			}
		})
	}
	if few, many := allocations(40), allocations(2000); many > few+10 {
		t.Errorf("%v allocations for 40 series, %v for 2,000", few, many)
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

func BenchmarkMerge_ManyStores(b *testing.B) {
	for _, stores := range []int{2, 4, 8, 16, 64} {
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
			run := func(name string, open func([]Set) Set) {
				b.Run(fmt.Sprintf("stores=%d/replicas=%d/%s", stores, replicas, name), func(b *testing.B) {
					for range b.N {
						var sets []Set
						for _, content := range contents {
							sets = append(sets, &fixed{all: content})
						}
						set := open(sets)
						for set.Next() {
						}
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*stores*1000), "ns/series")
				})
			}
			run("linear", func(sets []Set) Set { return &merge{sets: sets, waiting: slices.Clone(sets)} })
			run("winnertree", func(sets []Set) Set { return newWinnerTree(sets) })
		}
	}
}
