package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestScan_DoesNotAllocate(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), func(s *Store) { s.every = time.Hour }) // maintenance allocates, and is counted
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

// A profile becomes a row for each set of labels of its samples. Labels that are pushed for
// the whole profile, and those of one request, make no row of their own.
func TestStore_SamplesOfOneProfileAreSplitByTheirLabels(t *testing.T) {
	f := &profile.Function{ID: 1, Name: "main"}
	at := &profile.Location{ID: 1, Line: []profile.Line{{Function: f, Line: 1}}}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1,
		Function: []*profile.Function{f}, Location: []*profile.Location{at},
	}
	for i, set := range []map[string][]string{
		nil, {"env": {"a"}}, {"env": {"b"}, "span_id": {"1"}}, {"env": {"a"}, "trace_id": {"7"}, "request": {"8"}}, {"service_name": {"shop"}}, {"profile_id": {"x"}},
	} {
		p.Sample = append(p.Sample, &profile.Sample{Location: []*profile.Location{at}, Value: []int64{1 << i}, Label: set})
	}
	var raw bytes.Buffer
	if err := p.WriteUncompressed(&raw); err != nil {
		t.Fatal(err)
	}
	s := openTest(t, t.TempDir(), func(s *Store) { s.drop = map[string]bool{"request": true} })
	pushed := profiles.RawProfile{ID: profiles.ID{1}, TimeNS: 1_700_000_000_000_000_000, Raw: raw.Bytes()}
	pushed.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "shop")
	if err := s.Append(context.Background(), "t", []profiles.RawProfile{pushed}); err != nil {
		t.Fatal(err)
	}
	v, err := s.View(context.Background(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	got, rows := map[string]int64{}, 0
	builder := labels.NewScratchBuilder(4)
	for _, src := range v.Sources {
		series, err := src.Series()
		if err != nil {
			t.Fatal(err)
		}
		all := make([]int, src.Rows())
		for row := range all {
			all[row] = row
		}
		rows += len(all)
		err = src.Samples(context.Background(), all, func(row int, _ []uint32, values []int64) error {
			c, err := src.Columns(row)
			if err != nil {
				return err
			}
			set, err := labelenc.Labels(series[c.SeriesAt(row-c.First)].Plain, &builder)
			for _, value := range values {
				got[set.Get("env")] += value
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if want := map[string]int64{"": 1 + 16 + 32, "a": 2 + 8, "b": 4}; len(got) != len(want) || rows != 3 || !slices.Equal([]int64{got[""], got["a"], got["b"]}, []int64{want[""], want["a"], want["b"]}) {
		t.Errorf("%v, want %v", got, want)
	}
}
