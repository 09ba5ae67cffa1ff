package tsdb

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/wlog"

	"github.com/ferula-io/ferula/metrics"
)

// generations returns the directory of a closed store that was started n times. The start i has
// written the segment i of the log, with the generation i.
func generations(t *testing.T, n int, at int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for i := range n {
		s := openGuarded(t, dir, metrics.NewSet())
		if err := errors.Join(appendSeries(s, i, 300, at), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Prometheus' repair removes the segments behind the damaged one in ascending order. After
// an end in between there is a gap, with which its log does not open.
func TestStore_OpensAfterARepairThatEndedBetweenSegments(t *testing.T) {
	at := time.Now().UnixMilli()
	for name, damaged := range map[string]bool{"damaged": true, "sound": false} {
		t.Run(name, func(t *testing.T) {
			dir := generations(t, 6, at)
			if damaged {
				damage(t, wlog.SegmentName(filepath.Join(dir, "wal"), 1))
			}
			for _, removed := range []int{2, 3} {
				if err := os.Remove(wlog.SegmentName(filepath.Join(dir, "wal"), removed)); err != nil {
					t.Fatal(err)
				}
			}
			// Only the start that finds the gap counts it; the size is shown while the segments are there.
			for start, corruptions := range []float64{1, 0} {
				reg, set := prometheus.NewRegistry(), metrics.NewSet()
				s, err := New(Options{Dir: dir}, slog.New(slog.DiscardHandler), reg, set)
				if err := errors.Join(err, s.Open()); err != nil {
					t.Fatal(err)
				}
				if damaged && start == 0 {
					corruptions++ // the damaged segment
				}
				if n := gathered(t, reg, "prometheus_tsdb_wal_corruptions_total"); n != corruptions {
					t.Errorf("start %d counts %g corruptions, want %g", start, n, corruptions)
				}
				var page strings.Builder
				set.WritePrometheus(&page)
				size := regexp.MustCompile(`(?m)^ferula_tsdb_wal_aside_bytes (\d+)$`).FindStringSubmatch(page.String())
				if size == nil || size[1] == "0" {
					t.Errorf("start %d: no size of what is set aside: %q", start, size)
				}
				for generation, want := range []int{300, 300, 0, 0, 0, 0} {
					if n := countSeries(t, s, generation, at); n != want {
						t.Errorf("generation %d has %d series, want %d", generation, n, want)
					}
				}
				if err := errors.Join(appendSeries(s, 7, 300, at), s.Close()); err != nil {
					t.Fatal(err)
				}
			}
			aside, err := filepath.Glob(filepath.Join(dir, "wal", "*"+asideSuffix))
			if err != nil || len(aside) != 2 || !strings.HasSuffix(aside[0], "00000004"+asideSuffix) {
				t.Errorf("aside: %q, %v", aside, err)
			}
		})
	}
}

// For a damaged checkpoint Prometheus removes the whole log, and then does not open.
func TestStore_DamagedCheckpointIsRefusedAndTheLogStays(t *testing.T) {
	at := time.Now().UnixMilli()
	dir := generations(t, 5, at)
	logs := filepath.Join(dir, "wal")
	w, err := wlog.New(slog.New(slog.DiscardHandler), prometheus.NewRegistry(), logs, "snappy")
	if err != nil {
		t.Fatal(err)
	}
	_, err = wlog.Checkpoint(slog.New(slog.DiscardHandler), w, 0, 1, func(chunks.HeadSeriesRef) bool { return true }, 0, false)
	if err := errors.Join(err, w.Truncate(2), w.Close()); err != nil {
		t.Fatal(err)
	}
	count := func() int {
		all, err := filepath.Glob(filepath.Join(logs, "0*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := count()
	s := openGuarded(t, dir, metrics.NewSet())
	for generation := range 5 {
		if n := countSeries(t, s, generation, at); n != 300 {
			t.Fatalf("generation %d has %d series", generation, n)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkpoint := filepath.Join(logs, "checkpoint.00000001", "00000000")
	sound, err := os.ReadFile(checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	damaged := append([]byte{}, sound...)
	damaged[100] ^= 0x55
	if err := os.WriteFile(checkpoint, damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s, err := New(Options{Dir: dir}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
		if err != nil {
			t.Fatal(err)
		}
		if err = s.Open(); err == nil || !strings.Contains(err.Error(), "checkpoint.00000001 is damaged") {
			t.Errorf("opened: %v", err)
		}
		if n := count(); n < before {
			t.Fatalf("%d segments of %d are left", n, before)
		}
	}
	if err := os.WriteFile(checkpoint, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	s = openGuarded(t, dir, metrics.NewSet())
	defer s.Close()
	for generation := range 5 {
		if n := countSeries(t, s, generation, at); n != 300 {
			t.Errorf("generation %d has %d series", generation, n)
		}
	}
}

// A Prometheus that starts between a repair that was interrupted and its resumption writes
// a segment with the number of the damaged one.
func TestStore_SegmentThatPrometheusWroteIsNotReplacedByTheDamagedOne(t *testing.T) {
	at := time.Now().UnixMilli()
	dir, segment := damagedStore(t, at)
	if err := os.Rename(segment, segment+repairSuffix); err != nil {
		t.Fatal(err)
	}
	later, err := filepath.Glob(filepath.Join(dir, "wal", "0*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range later {
		if !strings.HasSuffix(name, repairSuffix) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
	}
	db, err := tsdb.Open(dir, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	peer := &Store{guard: newWriteGuard(dir, -1, nil), gate: &lateGate{}}
	peer.db.Store(db)
	if err := errors.Join(appendSeries(peer, 1, 300, at), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(segment); err != nil {
		t.Fatal(err)
	}
	s := openGuarded(t, dir, metrics.NewSet())
	defer s.Close()
	if n := countSeries(t, s, 1, at); n != 300 {
		t.Errorf("%d series of 300 that Prometheus acknowledged", n)
	}
	if _, err := os.Stat(segment + repairSuffix); err != nil {
		t.Errorf("the damaged segment was not kept: %v", err)
	}
}

func TestStore_RepairReportsTheSegmentsThatItRemoves(t *testing.T) {
	at := time.Now().UnixMilli()
	for _, tt := range []struct {
		segment int
		removed bool
	}{{1, true}, {3, false}} {
		dir := generations(t, 4, at)
		damage(t, wlog.SegmentName(filepath.Join(dir, "wal"), tt.segment))
		var lines strings.Builder
		s, err := New(Options{Dir: dir}, slog.New(slog.NewTextHandler(&lines, nil)), prometheus.NewRegistry(), metrics.NewSet())
		if err == nil {
			err = s.Open()
		}
		if err = errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		if reported := strings.Contains(lines.String(), "were removed"); reported != tt.removed {
			t.Errorf("damage in segment %d of 4: reported %v in %s", tt.segment, reported, lines.String())
		}
	}
}

// gathered returns the value of a counter.
func gathered(t *testing.T, reg prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
