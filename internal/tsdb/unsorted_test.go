package tsdb

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// checkUnsorted compares the order of an unsorted selection with that of Prometheus'
// querier, which PromQL uses. It returns whether the selection was sorted.
func checkUnsorted(t *testing.T, s *Store, mint, maxt int64, matchers ...*labels.Matcher) bool {
	t.Helper()
	stock, err := s.Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	raw, err := s.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var want, got []string
	for set := stock.Select(context.Background(), false, nil, matchers...); ; {
		more, panicked := nextOrPanic(set)
		if panicked {
			return false
		}
		if !more {
			break
		}
		if it := set.At().Iterator(nil); it.Next() != 0 { // Prometheus also returns series without samples
			want = append(want, set.At().Labels().String())
		}
	}
	builder := labels.NewScratchBuilder(4)
	sorted := true
	var before labels.Labels
	set := raw.Select(context.Background(), series.SelectOptions{OwnOrder: true}, matchers...)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		if len(set.Chunks()) > 0 {
			got = append(got, lset.String())
		}
		sorted, before = sorted && labels.Compare(before, lset) < 0, lset
	}
	if set.Err() != nil || !slices.Equal(got, want) {
		t.Fatalf("%d-%d: %v\n got %s\nwant %s", mint, maxt, set.Err(), got, want)
	}
	return sorted
}

func TestSelectInOwnOrder_OrderOfThePrometheusQuerier(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	app := s.Appender(context.Background())
	for i := range 200 { // labels in another order than references
		if _, err := app.Append(0, labels.FromStrings(labels.MetricName, "late", "n", fmt.Sprint(i*7919%200)), startMS+10*hourMS, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
	fill(t, s, 40, startMS+10*hourMS, startMS+18*hourMS, 60_000)
	if checkUnsorted(t, s, startMS+10*hourMS, startMS+18*hourMS, everything) {
		t.Error("the head is sorted")
	}
	checkUnsorted(t, s, startMS+10*hourMS, startMS+18*hourMS, labels.MustNewMatcher(labels.MatchRegexp, "n", "1.+|2.+"))
	compact(t, s)
	blocks := s.db.Load().Blocks()
	if len(blocks) < 2 {
		t.Fatalf("%d blocks", len(blocks))
	}
	end := blocks[len(blocks)-1].MaxTime()
	if !checkUnsorted(t, s, startMS, startMS+18*hourMS, everything) || !checkUnsorted(t, s, startMS, startMS+11*hourMS, everything) {
		t.Error("blocks are not sorted")
	}
	if checkUnsorted(t, s, end, startMS+18*hourMS, everything) {
		t.Error("the head behind blocks is sorted")
	}
	checkUnsorted(t, s, startMS-hourMS, startMS, everything)
}

func TestSelectInOwnOrder_LateSamples(t *testing.T) {
	s := openWorld(t, t.TempDir(), 24*3600e9)
	fill(t, s, 40, startMS+2*hourMS, startMS+4*hourMS, 60_000)
	fill(t, s, 20, startMS+2*hourMS+17, startMS+3*hourMS, 90_000)
	if checkUnsorted(t, s, startMS+2*hourMS, startMS+4*hourMS, everything) {
		t.Error("the head is sorted")
	}
}

func TestRawQuerier_SetsAreReadAtTheSameTime(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	fill(t, s, 40, startMS, startMS+7*hourMS, 15_000) // several chunks of the head are not mapped
	compact(t, s)
	for name, mint := range map[string]int64{"blocks and head": startMS, "head": startMS + 6*hourMS} {
		t.Run(name, func(t *testing.T) {
			raw, err := s.RawQuerier(t.Context(), mint, startMS+7*hourMS)
			if err != nil {
				t.Fatal(err)
			}
			defer raw.Close()
			if !raw.Capabilities().Concurrent {
				t.Fatal("sets of blocks and of the head may not be read at the same time")
			}
			want := rest(t, raw.Select(t.Context(), series.SelectOptions{}, everything))
			if len(want) < 40 {
				t.Fatalf("%d series", len(want))
			}
			unsorted := series.SelectOptions{OwnOrder: true}
			wantUnsorted := rest(t, raw.Select(t.Context(), unsorted, everything))
			var all sync.WaitGroup
			for range 2 {
				all.Go(func() {
					if got := rest(t, raw.Select(t.Context(), series.SelectOptions{}, everything)); !reflect.DeepEqual(got, want) {
						t.Errorf("%d series differ from %d that were read alone", len(got), len(want))
					}
				})
				all.Go(func() {
					if got := rest(t, raw.Select(t.Context(), unsorted, everything)); !reflect.DeepEqual(got, wantUnsorted) {
						t.Errorf("%d unsorted series differ from %d that were read alone", len(got), len(wantUnsorted))
					}
				})
			}
			all.Wait()
		})
	}
}

// Prometheus' queriers, which merge overlapping samples, are read by one goroutine.
func TestRawQuerier_SetsOfPrometheusQueriersAreReadOneByOne(t *testing.T) {
	s := openWorld(t, t.TempDir(), time.Hour)
	appendAll(t, s, numbered(3), startMS+hourMS, 1)
	appendAll(t, s, numbered(3), startMS+hourMS-60_000, 2) // late
	raw, err := s.RawQuerier(t.Context(), startMS, startMS+2*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if raw.Capabilities().Concurrent {
		t.Error("sets of late samples may be read at the same time")
	}
}
