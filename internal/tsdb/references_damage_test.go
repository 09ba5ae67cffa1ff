package tsdb

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb/wlog"
)

// To open a FIFO blocks until another process opens it. Prometheus opens the file, too, and writes its next content to the one with
// the suffix, so a start must not leave a FIFO there. As in a corrupt file, the last reference is not in it.
func TestStore_SeriesStateThatIsNoFileIsReplaced(t *testing.T) {
	fifo := func(path string) error { return syscall.Mkfifo(path, 0o600) }
	for name, create := range map[string]func(string) error{
		"FIFO":             fifo,
		"link to a FIFO":   func(path string) error { return os.Symlink("pipe", path) },
		"directory":        func(path string) error { return os.Mkdir(path, 0o700) },
		"link to nothing":  func(path string) error { return os.Symlink("nothing", path) },
		"link to a device": func(path string) error { return os.Symlink("/dev/zero", path) },
	} {
		for _, suffix := range []string{"", ".tmp"} {
			for _, logged := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s%s logged %v", name, suffix, logged), func(t *testing.T) {
					o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
					logs := filepath.Join(o.Dir, "wal")
					path := filepath.Join(logs, seriesStateFile)
					if logged {
						s := newStore(t, o)
						if err := s.Open(); err != nil {
							t.Fatal(err)
						}
						appendAt(t, s, "old", startMS)
						if err := s.Close(); err != nil {
							t.Fatal(err)
						}
						if err := os.Remove(path); err != nil {
							t.Fatal(err)
						}
					} else if err := os.Mkdir(logs, 0o700); err != nil {
						t.Fatal(err)
					}
					if err := fifo(filepath.Join(logs, "pipe")); err != nil {
						t.Fatal(err)
					}
					if err := create(path + suffix); err != nil {
						t.Fatal(err)
					}
					s := newStore(t, o)
					mustEnd(t, "the start", s.Open)
					appendAt(t, s, "new", startMS)
					if got, want := timesOf(t, s, "new"), []string{"new 0"}; !slices.Equal(got, want) {
						t.Errorf("%v, want %v", got, want)
					}
					mustEnd(t, "the shutdown", s.Close)
					if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
						t.Errorf("the file was not replaced: %v %v", info, err)
					}
				})
			}
		}
	}
}

// A start from a snapshot does not read the segments before the snapshot, so damage in one of them leaves the later ones, whose series
// have references, too.
func TestLastReferenceOfLog_ReadsTheSegmentsBehindADamagedOne(t *testing.T) {
	o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
	for _, id := range []string{"first", "second", "third"} { // each start begins a segment
		s := newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		appendAt(t, s, id, startMS)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	logs := filepath.Join(o.Dir, "wal")
	segments, err := segmentsOf(logs)
	if err != nil || len(segments) < 3 {
		t.Fatal(segments, err)
	}
	if got := lastReferenceOfLog(logs, segments); got != 3 {
		t.Fatalf("%d before the damage, want 3", got)
	}
	for _, index := range segments[:2] {
		name := wlog.SegmentName(logs, index)
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		content[10]++ // in the first record
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastReferenceOfLog(logs, segments); got != 3 {
			t.Errorf("%d behind damage in segment %d, want 3", got, index)
		}
	}
}

// mustEnd fails the test if f hangs or returns an error.
func mustEnd(t *testing.T, what string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal(what, " hangs")
	}
}
