package dedup

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
)

type sample struct {
	t int64
	v float64
	h bool // a histogram whose sum is v
}

// samples is an iterator over a list, written for correctness only.
type samples struct {
	all []sample
	i   int // index of the sample after the current one
}

func (s *samples) Next() chunkenc.ValueType {
	s.i++
	return s.current()
}

func (s *samples) current() chunkenc.ValueType {
	switch {
	case s.i > len(s.all):
		s.i = len(s.all) + 1
		return chunkenc.ValNone
	case s.all[s.i-1].h:
		return chunkenc.ValHistogram
	}
	return chunkenc.ValFloat
}

func (s *samples) Seek(t milliseconds) chunkenc.ValueType {
	if s.i == 0 {
		s.i = 1
	}
	for s.i <= len(s.all) && s.all[s.i-1].t < t {
		s.i++
	}
	return s.current()
}

func (s *samples) At() (int64, float64) { return s.all[s.i-1].t, s.all[s.i-1].v }
func (s *samples) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) {
	h := tsdbutil.GenerateTestHistogram(1)
	h.Sum = s.all[s.i-1].v
	return s.all[s.i-1].t, h
}

func (s *samples) AtFloatHistogram(*histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	_, h := s.AtHistogram(nil)
	return s.all[s.i-1].t, h.ToFloat(nil)
}
func (s *samples) AtT() int64  { return s.all[s.i-1].t }
func (s *samples) AtST() int64 { return 0 }
func (s *samples) Err() error  { return nil }

func read(it chunkenc.Iterator) []sample {
	var all []sample
	for {
		switch it.Next() {
		case chunkenc.ValNone:
			return all
		case chunkenc.ValFloat:
			t, v := it.At()
			all = append(all, sample{t, v, false})
		case chunkenc.ValHistogram:
			t, h := it.AtHistogram(nil)
			all = append(all, sample{t, h.Sum, true})
		}
	}
}

func iterators(replicas [][]sample, function string) []chunkenc.Iterator {
	var its []chunkenc.Iterator
	for _, r := range replicas {
		var it chunkenc.Iterator = &samples{all: r}
		if IsCounter(function) {
			it = Counter(it)
		}
		its = append(its, it)
	}
	return its
}

func parseSamples(t *testing.T, fields []string) []sample {
	var all []sample
	for _, field := range fields {
		at, v, _ := strings.Cut(field, ":")
		ms, err1 := strconv.ParseInt(at, 10, 64)
		f, err2 := strconv.ParseFloat(v, 64)
		if err1 != nil || err2 != nil {
			t.Fatal(field, err1, err2)
		}
		all = append(all, sample{ms, f, false})
	}
	return all
}

// The file has the results of the package dedup of Thanos 0.42.4 for random replicas with
// gaps, resets and jitter, for rate and for a function that is not a counter's.
func TestPenalty_EqualsThanos(t *testing.T) {
	text, err := os.ReadFile("testdata/thanos-0.42.4-penalty.txt")
	if err != nil {
		t.Fatal(err)
	}
	var (
		function string
		replicas [][]sample
		cases    int
	)
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "case":
			function, replicas = strings.Trim(fields[1], `"`), nil
		case "replica":
			replicas = append(replicas, parseSamples(t, fields[1:]))
		case "shown":
			cases++
			want := parseSamples(t, fields[1:])
			if got := read(Penalty(iterators(replicas, function), function)); !slices.Equal(got, want) {
				t.Errorf("case %d, %q:\ngot  %v\nwant %v", cases, function, got, want)
			}
		}
	}
	if cases < 20 {
		t.Fatalf("only %d cases", cases)
	}
}

// naive is the penalty algorithm over two whole lists.
func naive(a, b []sample) []sample {
	var shown []sample
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
		switch {
		case len(a) == 0 && len(b) == 0:
			return shown
		case len(b) == 0:
			penaltyA = 0
			last = a[0].t
			shown = append(shown, a[0])
		case len(a) == 0:
			penaltyB = 0
			last = b[0].t
			shown = append(shown, b[0])
		case a[0].t <= b[0].t:
			penaltyA, penaltyB = 0, since(a[0].t)
			last = a[0].t
			shown = append(shown, a[0])
		default:
			penaltyA, penaltyB = since(b[0].t), 0
			last = b[0].t
			shown = append(shown, b[0])
		}
	}
}

func randomReplicas(rng *rand.Rand, histograms bool) [][]sample {
	replicas := make([][]sample, 1+rng.IntN(4))
	for i := range replicas {
		at := rng.Int64N(1000) - 500
		for range rng.IntN(60) {
			at += 1 + rng.Int64N(300)
			if rng.IntN(10) == 0 {
				at += rng.Int64N(5000)
			}
			replicas[i] = append(replicas[i], sample{at, float64(rng.IntN(100)), histograms && rng.IntN(3) == 0})
		}
	}
	return replicas
}

func TestPenalty_EqualsTheNaiveAlgorithm(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		replicas := randomReplicas(rng, true)
		want := replicas[0]
		for _, r := range replicas[1:] {
			want = naive(want, r)
		}
		if got := read(Penalty(iterators(replicas, ""), "")); !slices.Equal(got, want) {
			t.Fatalf("%v\ngot  %v\nwant %v", replicas, got, want)
		}
	}
}

func TestPenalty_SeekEqualsNext(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, function := range []string{"", "rate"} {
		for range 300 {
			replicas := randomReplicas(rng, true)
			all := read(Penalty(iterators(replicas, function), function))
			it := Penalty(iterators(replicas, function), function)
			for at := int64(-600); at < 20_000; at += rng.Int64N(2000) {
				for len(all) > 0 && all[0].t < at {
					all = all[1:]
				}
				vt := it.Seek(at)
				if len(all) == 0 {
					if vt != chunkenc.ValNone {
						t.Fatalf("sought %d: %v after the end", at, vt)
					}
					break
				}
				if vt == chunkenc.ValNone || it.AtT() != all[0].t {
					t.Fatalf("sought %d: want %v", at, all[0])
				}
				if vt == chunkenc.ValFloat {
					if _, v := it.At(); v != all[0].v {
						t.Fatalf("sought %d: %g, want %v", at, v, all[0])
					}
				}
			}
		}
	}
}

func TestPenalty_SeekToTheCurrentSampleStays(t *testing.T) {
	one, two := []sample{{1000, 1, false}, {16000, 2, false}, {31000, 3, false}}, []sample{{1500, 1, false}, {16500, 2, false}, {31500, 3, false}}
	for _, replicas := range [][][]sample{{one, two}, {one, two, one}} {
		it := Penalty(iterators(replicas, ""), "")
		n := 0
		for ; it.Next() != chunkenc.ValNone; n++ {
			at := it.AtT()
			for _, sought := range []int64{at, at - 1, at} {
				if vt := it.Seek(sought); vt != chunkenc.ValFloat || it.AtT() != at {
					t.Fatalf("%d replicas, at %d: sought %d, got %v at %d", len(replicas), at, sought, vt, it.AtT())
				}
			}
		}
		if n != 3 {
			t.Errorf("%d samples", n)
		}
	}
}

// Two replicas of one counter, one of which ends between scrapes: whichever replica follows, the result for rate never
// decreases.
func TestPenalty_CounterNeverDecreases(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		replicas := randomReplicas(rng, false)
		shown := read(Penalty(iterators(replicas, "rate"), "rate"))
		for i := 1; i < len(shown) && len(replicas) > 1; i++ {
			if shown[i].v < shown[i-1].v || shown[i].t <= shown[i-1].t {
				t.Fatalf("%v after %v", shown[i], shown[i-1])
			}
		}
	}
}

func TestPenalty_EqualReplicasReturnOne(t *testing.T) {
	one := []sample{{1000, 1, false}, {16000, 2, false}, {31000, 3, true}, {46000, 4, false}}
	if got := read(Penalty(iterators([][]sample{one, one, one}, ""), "")); !slices.Equal(got, one) {
		t.Error(got)
	}
	if got := read(Chain(iterators([][]sample{one, one}, ""))); !slices.Equal(got, one) {
		t.Error(got)
	}
}

func TestChain_ReturnsTheSamplesOfBothReplicas(t *testing.T) {
	one, two := []sample{{1000, 1, false}, {31000, 3, false}}, []sample{{16000, 2, false}, {46000, 4, false}}
	want := []sample{one[0], two[0], one[1], two[1]}
	if got := read(Chain(iterators([][]sample{one, two}, ""))); !slices.Equal(got, want) {
		t.Error(got)
	}
}

func TestCounter_UsesTheTrueLastValueOfADownsampledChunk(t *testing.T) {
	stale := math.Float64frombits(value.StaleNaN)
	for _, c := range []struct{ in, want []sample }{
		{[]sample{{10, 5, false}, {20, 8, false}, {20, 3, false}, {30, 4, false}}, []sample{{10, 5, false}, {20, 8, false}, {30, 9, false}}},
		{[]sample{{10, 5, false}, {20, 8, false}, {20, 3, false}, {30, 2, false}}, []sample{{10, 5, false}, {20, 8, false}, {30, 10, false}}},
		{[]sample{{10, 5, false}, {15, stale, false}, {20, 2, false}, {12, 9, false}, {30, 3, false}}, []sample{{10, 5, false}, {20, 7, false}, {30, 8, false}}},
	} {
		if got := read(Counter(&samples{all: c.in})); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}

func BenchmarkPenalty_TwoReplicas(b *testing.B) {
	var replicas [][]sample
	for r := range 2 {
		var all []sample
		for i := range int64(1000) {
			all = append(all, sample{i*15000 + int64(r)*700, float64(i), false})
		}
		replicas = append(replicas, all)
	}
	for _, function := range []string{"", "rate"} {
		b.Run(fmt.Sprintf("function=%q", function), func(b *testing.B) {
			for range b.N {
				it := Penalty(iterators(replicas, function), function)
				for it.Next() != chunkenc.ValNone {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*1000), "ns/sample")
		})
	}
}

// failing is a replica that ends with an error after its samples.
type failing struct {
	samples
	err error
}

func (f *failing) Err() error {
	if f.i > len(f.all) {
		return f.err
	}
	return nil
}

// Unreadable samples of any replica are an error. They are not omitted.
func TestPenalty_ReportsErrorsOfAllReplicas(t *testing.T) {
	corrupt := errors.New("corrupt")
	for _, function := range []string{"", "rate"} {
		for broken := range 3 {
			var replicas []chunkenc.Iterator
			for i := range 3 {
				f := &failing{samples: samples{all: []sample{{int64(i + 1), 1, false}, {int64(i + 1001), 2, false}}}}
				if i == broken {
					f.err = corrupt
				}
				replicas = append(replicas, f)
			}
			it := Penalty(replicas, function)
			for it.Next() != chunkenc.ValNone {
			}
			if err := it.Err(); !errors.Is(err, corrupt) {
				t.Errorf("%q: replica %d is broken: %v", function, broken, err)
			}
			replicas[broken].(*failing).i = 0
		}
	}
}

// The samples are a few milliseconds apart, so that equal timestamps are common, and samples exactly at the end of a
// penalty, one millisecond before it and one after it.
func TestPenalty_OfDenseSamplesEqualsTheNaiveAlgorithm(t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for range 5000 {
		replicas := make([][]sample, 2+rng.IntN(2))
		for i := range replicas {
			at := rng.Int64N(5)
			for range rng.IntN(40) {
				if at += 1 + rng.Int64N(3); rng.IntN(30) == 0 {
					at += rng.Int64N(20) + 5000*rng.Int64N(2)
				}
				replicas[i] = append(replicas[i], sample{at, float64(rng.IntN(100)), rng.IntN(20) == 0})
			}
		}
		want := replicas[0]
		for _, r := range replicas[1:] {
			want = naive(want, r)
		}
		if got := read(Penalty(iterators(replicas, ""), "")); !slices.Equal(got, want) {
			t.Fatalf("%v\ngot  %v\nwant %v", replicas, got, want)
		}
	}
}

func TestCounter_AnEqualValueIsNoReset(t *testing.T) {
	in := []sample{{10, 5, false}, {20, 5, false}, {30, 0, false}, {40, 0, false}, {50, 1, false}}
	want := []sample{{10, 5, false}, {20, 5, false}, {30, 5, false}, {40, 5, false}, {50, 6, false}}
	if got := read(Counter(&samples{all: in})); !slices.Equal(got, want) {
		t.Error(got)
	}
}

// Both replicas are raised when the result switches from one to the other, and only then.
func TestPenalty_RaisesCountersOfBothReplicasAtASwitch(t *testing.T) {
	a := []sample{{0, 100, false}, {1000, 110, false}, {2000, 120, false}, {60_000, 130, false}, {61_000, 131, false}}
	b := []sample{{500, 1, false}, {1500, 2, false}, {2500, 3, false}, {3500, 4, false}, {8500, 5, false}, {20_000, 6, false}, {40_000, 8, false}}
	got := read(Penalty(iterators([][]sample{a, b}, "rate"), "rate"))
	for i := 1; i < len(got); i++ {
		if got[i].v < got[i-1].v {
			t.Errorf("%v", got)
		}
	}
	if got[0] != a[0] || got[len(got)-1].v <= 120 {
		t.Errorf("%v", got)
	}
}
