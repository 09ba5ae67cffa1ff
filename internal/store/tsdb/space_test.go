package tsdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/metrics"
)

// smallDisk mounts a file system of 32 MiB. Without the right to mount it skips.
func smallDisk(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("mount a file system for the test: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) })
	return dir
}

func openGuarded(t *testing.T, dir string, set *metrics.Set) *Store {
	t.Helper()
	s, err := New(Options{Dir: dir}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), set)
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// appendSeries appends a sample to n series of a generation.
func appendSeries(s *Store, generation, n int, at int64) error {
	app := s.Appender(context.Background())
	random := rand.New(rand.NewPCG(uint64(generation), 1))
	for i := range n {
		filler := make([]byte, 0, 200)
		for range 200 {
			filler = append(filler, 'a'+byte(random.IntN(26)))
		}
		lset := labels.FromStrings("__name__", "m", "generation", fmt.Sprint(generation), "i", fmt.Sprint(i), "filler", string(filler))
		if _, err := app.Append(0, lset, at, 1); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
	return app.Commit()
}

func countSeries(t *testing.T, s *Store, generation int, at int64) (n int) {
	t.Helper()
	q, err := s.Querier(at, at)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "generation", fmt.Sprint(generation)))
	for set.Next() {
		if set.At().Iterator(nil).Next() != chunkenc.ValNone {
			n++
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return n
}

func TestStore_NearlyFullDiskRefusesSamples(t *testing.T) {
	set := metrics.NewSet()
	s := openGuarded(t, t.TempDir(), set)
	defer s.Close()
	free := int64(0)
	s.guard.free = func(string) (int64, int64, error) { return free, 1 << 40, nil }
	at := time.Now().UnixMilli()
	for _, tt := range []struct {
		free int64
		ok   bool
	}{{defaultFreeBytesMin, true}, {defaultFreeBytesMin - 1, false}, {0, false}, {defaultFreeBytesMin + 1, true}} {
		free = tt.free
		at++
		if err := appendSeries(s, 1, 3, at); (err == nil) != tt.ok || !tt.ok && !errors.Is(err, ErrNoSpace) || errors.Is(s.Refusal(), ErrNoSpace) == tt.ok {
			t.Errorf("%d bytes are free: %v, %v", free, err, s.Refusal())
		}
		var page strings.Builder
		set.WritePrometheus(&page)
		accepts := 0
		if tt.ok {
			accepts = 1
		}
		if want := fmt.Sprintf("ferula_tsdb_accepts_samples %d\n", accepts); !strings.Contains(page.String(), want) {
			t.Errorf("%d bytes are free: no %q in %s", free, want, page.String())
		}
		app := s.AppenderV2(context.Background())
		if err := app.Commit(); (err == nil) != tt.ok {
			t.Errorf("%d bytes are free: %v", free, err)
		}
	}
	s.guard.free = func(string) (int64, int64, error) { return 1 << 20, 10 << 20, nil } // a small disk
	if err := s.Refusal(); err != nil {
		t.Error(err)
	}
	s.guard.free = func(string) (int64, int64, error) { return 0, 0, errors.New("no such call") }
	if err := s.Refusal(); err != nil {
		t.Error(err)
	}
}

// TestStore_NothingIsAcknowledgedAfterTheLogFailed fills the disk behind the guard's back.
func TestStore_NothingIsAcknowledgedAfterTheLogFailed(t *testing.T) {
	disk := smallDisk(t)
	dir, filler := filepath.Join(disk, "data"), filepath.Join(disk, "filler")
	s := openGuarded(t, dir, metrics.NewSet())
	s.guard.free = func(string) (int64, int64, error) { return 1 << 40, 1 << 41, nil }
	at := time.Now().UnixMilli()
	if err := appendSeries(s, 0, 300, at); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filler, make([]byte, 64<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	for generation := 1; generation < 4; generation++ {
		if err := appendSeries(s, generation, 300, at); !errors.Is(err, ErrLogFailed) {
			t.Fatalf("generation %d: %v", generation, err)
		}
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	acknowledged := []int{0}
	for generation := 1; generation < 6; generation++ {
		if err := appendSeries(s, generation, 300, at); err == nil {
			acknowledged = append(acknowledged, generation)
		} else if !errors.Is(err, ErrLogFailed) {
			t.Errorf("generation %d: %v", generation, err)
		}
	}
	_ = s.Close() // the log cannot be ended properly
	s = openGuarded(t, dir, metrics.NewSet())
	defer s.Close()
	for _, generation := range acknowledged {
		if n := countSeries(t, s, generation, at); n != 300 {
			t.Errorf("generation %d has %d series of 300 that were acknowledged", generation, n)
		}
	}
	if err := appendSeries(s, 7, 300, at); err != nil || countSeries(t, s, 7, at) != 300 {
		t.Errorf("after the restart: %v, %d series", err, countSeries(t, s, 7, at))
	}
}
