package tsdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/fileutil"

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
	s.guard.plenty.Store(0)
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

// The default keeps space for the next block, which a large head needs more of. A limit that is set is kept.
func TestStore_KeepsSpaceForTheNextBlock(t *testing.T) {
	const mapped = 1 << 30
	for _, tt := range []struct{ limit, free, refused int64 }{
		{0, mapped, 1}, {0, mapped + 3*seriesBytes, 0}, {defaultFreeBytesMin, defaultFreeBytesMin, 0},
	} {
		s := newStore(t, Options{FreeBytesMin: tt.limit})
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		at := time.Now().UnixMilli()
		if err := appendSeries(s, 1, 3, at); err != nil {
			t.Fatal(err)
		}
		chunks, err := os.Create(filepath.Join(s.opts.Dir, "chunks_head", "filler"))
		if err := errors.Join(err, chunks.Truncate(mapped), chunks.Close()); err != nil {
			t.Fatal(err)
		}
		s.guard.free = func(string) (int64, int64, error) { return tt.free, 1 << 40, nil }
		s.guard.plenty.Store(0)
		s.guard.needs.Store(nil)
		if err := appendSeries(s, 1, 3, at+1); errors.Is(err, ErrNoSpace) != (tt.refused == 1) {
			t.Errorf("limit %d, %d bytes free: %v", tt.limit, tt.free, err)
		}
	}
}

// A server whose disk is too full for samples can start. One that cannot even replay its log waits.
func TestStore_AwaitSpaceWaitsForAQuarterOfTheReserve(t *testing.T) {
	s := newStore(t, Options{})
	free := int64(defaultFreeBytesMin / startShare)
	s.guard.free = func(string) (int64, int64, error) { return free, 1 << 40, nil }
	if err := s.AwaitSpace(context.Background()); err != nil {
		t.Error(err)
	}
	free--
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.AwaitSpace(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	s.guard.reserve = -1
	if err := s.AwaitSpace(ctx); err != nil {
		t.Error(err)
	}
}

func TestWriteGuard_ReadsTheFreeSpaceOnceASecondWhileThereIsPlenty(t *testing.T) {
	g := newWriteGuard("", defaultFreeBytesMin, nil)
	free, reads := int64(0), 0
	g.free = func(string) (int64, int64, error) {
		reads++
		return free, 1 << 40, nil
	}
	refuse := func(times, wantReads int, refused bool) {
		t.Helper()
		reads = 0
		for range times {
			if err := g.refusal(); (err != nil) != refused {
				t.Fatalf("%d bytes are free: %v", free, err)
			}
		}
		if reads != wantReads {
			t.Errorf("%d bytes are free: read %d times in %d checks, want %d", free, reads, times, wantReads)
		}
	}
	free = defaultFreeBytesMin + plentyBytes - 1
	refuse(5, 5, false)
	free = defaultFreeBytesMin + plentyBytes
	g.plenty.Store(time.Now().Add(time.Hour).UnixNano()) // the clock was set back
	refuse(1, 1, false)
	g.plenty.Store(time.Now().Add(plentyFor - time.Nanosecond).UnixNano()) // read just now
	refuse(1, 0, false)
	free = 0
	g.plenty.Store(time.Now().UnixNano()) // read a second ago
	refuse(3, 3, true)
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

// damage appends half a record to a segment of a log.
func damage(t *testing.T, segment string) {
	t.Helper()
	f, err := os.OpenFile(segment, os.O_WRONLY|os.O_APPEND, 0)
	if err == nil {
		_, err = f.Write([]byte{1, 200, 0, 1, 2, 3, 4, 5, 6, 7}) // a full record of 51,200 bytes
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// damagedStore returns the directory of a closed store with 300 series, whose log is damaged.
func damagedStore(t *testing.T, at int64) (dir, segment string) {
	t.Helper()
	dir = t.TempDir()
	s := openGuarded(t, dir, metrics.NewSet())
	if err := errors.Join(appendSeries(s, 0, 300, at), s.Close()); err != nil {
		t.Fatal(err)
	}
	segment = filepath.Join(dir, "wal", "00000000")
	damage(t, segment)
	return dir, segment
}

// A repair that the disk or a signal interrupts leaves the damaged segment under another
// name, and a part of its records under the name of the segment.
func TestStore_ResumesAnInterruptedRepair(t *testing.T) {
	at := time.Now().UnixMilli()
	for name, later := range map[string][]string{"no later segment": nil, "an empty one": {"00000001"}, "two": {"00000001", "00000002"}} {
		t.Run(name, func(t *testing.T) {
			dir, segment := damagedStore(t, at)
			whole, err := os.ReadFile(segment)
			if err != nil {
				t.Fatal(err)
			}
			err = errors.Join(os.Rename(segment, segment+".repair"), os.WriteFile(segment, whole[:32<<10], 0o600))
			for _, name := range later {
				err = errors.Join(err, os.WriteFile(filepath.Join(dir, "wal", name), nil, 0o600))
			}
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				s := openGuarded(t, dir, metrics.NewSet())
				if n := countSeries(t, s, 0, at); n != 300 {
					t.Errorf("%d series of 300", n)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if left, err := filepath.Glob(filepath.Join(dir, "wal", "*.repair")); err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
		})
	}
}

func TestStore_KeepsAnInterruptedRepairAsideIfTheLogWentOn(t *testing.T) {
	at := time.Now().UnixMilli()
	dir, segment := damagedStore(t, at)
	aside := filepath.Join(dir, "wal", "00000000.repair")
	if err := errors.Join(os.Rename(segment, aside), os.WriteFile(segment, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	lock, _, err := fileutil.Flock(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Dir: dir}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err == nil {
		t.Error("the directory of another process was opened")
	}
	if _, err := os.Stat(aside); err != nil {
		t.Errorf("the directory of another process was changed: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}

	// A version that does not resume repairs has continued the log.
	if err := os.Rename(aside, aside+".hidden"); err != nil {
		t.Fatal(err)
	}
	s = openGuarded(t, dir, metrics.NewSet())
	if err := errors.Join(appendSeries(s, 1, 300, at), s.Close(), os.Rename(aside+".hidden", aside)); err != nil {
		t.Fatal(err)
	}
	s = openGuarded(t, dir, metrics.NewSet())
	defer s.Close()
	if n := countSeries(t, s, 1, at); n != 300 {
		t.Errorf("%d series of 300 of the log that went on", n)
	}
	if _, err := os.Stat(aside); err != nil {
		t.Error(err)
	}
}

// The replay ends where the log is damaged, before it reads the log of late samples.
func TestStore_LateSamplesSurviveADamagedLog(t *testing.T) {
	at := time.Now().UnixMilli()
	late := at - time.Hour.Milliseconds()
	dir := t.TempDir()
	reg := prometheus.NewRegistry()
	open := func() *Store {
		t.Helper()
		reg = prometheus.NewRegistry()
		s, err := New(Options{Dir: dir, OutOfOrderWindow: 2 * time.Hour}, slog.New(slog.DiscardHandler), reg, metrics.NewSet())
		if err == nil {
			err = s.Open()
		}
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if err := errors.Join(appendSeries(s, 0, 300, at), appendSeries(s, 0, 300, late), s.Close()); err != nil {
		t.Fatal(err)
	}
	for _, log := range []string{"wal", "wal", "wbl", "wal"} {
		segments, err := filepath.Glob(filepath.Join(dir, log, "0*"))
		if err != nil {
			t.Fatal(err)
		}
		segment := segments[len(segments)-1] // the log ends here
		damage(t, segment)
		s = open()
		if n, l := countSeries(t, s, 0, at), countSeries(t, s, 0, late); n != 300 || l != 300 {
			t.Errorf("%s is damaged: %d samples in order and %d late ones, 300 of each expected", segment, n, l)
		}
		if err := appendSeries(s, 0, 300, at+1); err != nil {
			t.Error(err)
		}
		families, err := reg.Gather()
		if err != nil || len(families) < 50 {
			t.Errorf("%d metrics, %v", len(families), err)
		}
		if i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "prometheus_tsdb_wal_corruptions_total" }); i < 0 || families[i].Metric[0].GetCounter().GetValue() != 1 {
			t.Errorf("the repair is not counted: %v", families)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		at++
	}
}

// A panic of Prometheus' storage would otherwise be the only line about it.
func TestStore_OpeningOnANearlyFullDiskIsLogged(t *testing.T) {
	for _, tt := range []struct {
		free int64
		want bool
	}{{1 << 20, true}, {1 << 40, false}} {
		var log bytes.Buffer
		s, err := New(Options{Dir: t.TempDir()}, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), metrics.NewSet())
		if err != nil {
			t.Fatal(err)
		}
		s.guard.free = func(string) (int64, int64, error) { return tt.free, 1 << 42, nil }
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(log.String(), "The disk is nearly full"); got != tt.want {
			t.Errorf("%d bytes are free: %s", tt.free, log.String())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
