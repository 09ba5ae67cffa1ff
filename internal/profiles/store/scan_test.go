package store

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/ferula-io/ferula/internal/profiles"
)

func TestScan_DoesNotAllocate(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), nil)
	var pushed []profiles.RawProfile
	for n := range uint64(5000) {
		pushed = append(pushed, numbered(n))
	}
	if err := s.Append(ctx, "t", pushed); err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"head", "block"} {
		if where == "block" {
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		v, err := s.View(context.Background(), "t", 0, timeMax)
		if err != nil || len(v.Sources) != 1 {
			t.Fatalf("%d sources, %v", len(v.Sources), err)
		}
		series, err := v.Sources[0].Series()
		if err != nil {
			t.Fatal(err)
		}
		groupOf := make([]int32, len(series))
		scan := Scan{}
		for _, exemplars := range []bool{false, true} {
			var sum int64
			n := testing.AllocsPerRun(20, func() {
				scan.Reset()
				scan.Steps, scan.Exemplars = Steps{FromNS: 1_699_999_999_999_999_999, StepNS: 500, Count: 10}, exemplars
				err := errors.Join(scan.Source(ctx, v.Sources[0], groupOf, 1), scan.Finish())
				if err != nil {
					t.Fatal(err)
				}
				sum = 0
				for i := range scan.Accumulators {
					sum += scan.Accumulators[i].Sum
				}
				if best := scan.Accumulators[9].ExemplarValue; exemplars && best != 5000 {
					t.Fatalf("the exemplar is %d", best)
				}
			})
			if sum != 5000*5001/2 {
				t.Errorf("%s: the sum is %d", where, sum)
			}
			if n != 0 {
				t.Errorf("%s, exemplars %v: %v allocations", where, exemplars, n)
			}
		}
		v.Close()
	}
}

// While pushes, flushes and merges run, a view has every profile acknowledged before it was
// opened, and none twice.
func TestView_IsConsistentDuringFlushesAndMerges(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), nil)
	var acknowledged atomic.Uint64
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.Append(ctx, "t", []profiles.RawProfile{numbered(n)}); err != nil {
				t.Error(err)
				return
			}
			acknowledged.Store(n + 1)
		}
	})
	running.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(s.Flush(ctx), s.Compact(ctx)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for round := 0; (round < 200 || acknowledged.Load() < 60) && !t.Failed(); round++ {
		before := acknowledged.Load()
		v, err := s.View(context.Background(), "t", 0, timeMax)
		if err != nil {
			t.Fatal(err)
		}
		counts := map[uint64]int{}
		for _, src := range v.Sources {
			for row := range src.Rows() {
				id, err := src.ID(row)
				if err != nil {
					t.Fatal(err)
				}
				counts[binary.BigEndian.Uint64(id[:])-1]++
			}
		}
		v.Close()
		for n := range before {
			if counts[n] != 1 {
				t.Fatalf("profile %d of %d is stored %d times", n, before, counts[n])
			}
		}
		for n, count := range counts {
			if count != 1 {
				t.Fatalf("profile %d is stored %d times", n, count)
			}
		}
	}
	close(stop)
	running.Wait()
}

func TestScan_SourceSamplesBeyondTheLimitFails(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), nil)
	var pushed []profiles.RawProfile
	for n := range uint64(3) { // a series each
		pushed = append(pushed, numbered(n))
	}
	if err := s.Append(ctx, "t", pushed); err != nil {
		t.Fatal(err)
	}
	v, err := s.View(ctx, "t", 0, timeMax)
	if err != nil || len(v.Sources) != 1 {
		t.Fatalf("%d sources, %v", len(v.Sources), err)
	}
	defer v.Close()
	counted := make([]bool, 64)
	for i := range counted {
		counted[i] = true
	}
	for limit, want := range map[int]error{2: profiles.ErrLimit, 3: nil} {
		scan := Scan{Steps: Steps{FromNS: 1_699_999_999_999_999_999, StepNS: 500, Count: 1}, AccumulatorsMax: limit}
		if err := scan.SourceSamples(ctx, v.Sources[0], []int32{0, 1, 2}, 3, counted); !errors.Is(err, want) {
			t.Errorf("at most %d points: %v, want %v", limit, err, want)
		}
	}
}
