package tsdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// shortLived is the history of a database whose last new series has left the head when it is closed with a snapshot. Its
// out-of-order chunks are still among the mapped chunks, and its record is still in the log.
func shortLived(t *testing.T, o Options) {
	t.Helper()
	s := newStore(t, o)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	db := s.db.Load()
	db.DisableCompactions()
	write := func(id string, times ...int64) {
		t.Helper()
		appendAt(t, s, id, times...)
	}
	write("lasting", startMS)
	write("short-lived", startMS+hourMS)
	for i := range int64(40) { // more than one chunk of out-of-order samples holds
		write("short-lived", startMS+(i+1)*1000)
	}
	for at := startMS + hourMS; at < startMS+8*hourMS; at += 60_000 {
		write("lasting", at)
	}
	if err := errors.Join(db.CompactOOOHead(context.Background())); err != nil {
		t.Fatal(err)
	}
	db.EnableCompactions()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := db.Head().NumSeries(); n != 1 {
		t.Fatalf("the head has %d series", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func appendAt(t *testing.T, s *Store, id string, times ...int64) {
	t.Helper()
	app := s.Appender(context.Background())
	for _, at := range times {
		if _, err := app.Append(0, labels.FromStrings("__name__", "m", "id", id), at, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

// timesOf returns the timestamps of the series that match id, each with the id of its series.
func timesOf(t *testing.T, s *Store, id string) (times []string) {
	t.Helper()
	q, err := s.Querier(0, startMS+100*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "id", id))
	for set.Next() {
		for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
			at, _ := it.At()
			times = append(times, fmt.Sprint(set.At().Labels().Get("id"), " ", (at-startMS)/1000))
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return times
}

// A new series after a start from a snapshot must not get the reference of a series that has left the head: the replay of
// the whole log, and of the mapped chunks, would take one for the other.
func TestStore_StartFromASnapshotReusesNoReference(t *testing.T) {
	for _, state := range []string{"kept", "missing", "incomplete"} {
		t.Run("state "+state, func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
			shortLived(t, o)
			path := filepath.Join(o.Dir, "wal", seriesStateFile)
			switch state {
			case "missing":
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			case "incomplete":
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			newSeriesAreNew(t, o)
		})
	}
}

// newSeriesAreNew fails the test if a series that is appended after a start takes the reference of the series of
// shortLived, also after another start with or without a snapshot.
func newSeriesAreNew(t *testing.T, o Options) {
	t.Helper()
	s := newStore(t, o)
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	short := timesOf(t, s, "short-lived")
	if len(short) != 41 {
		t.Fatalf("%d samples", len(short))
	}
	appendAt(t, s, "new", startMS+8*hourMS)
	want := []string{fmt.Sprint("new ", 8*3600)}
	for _, o := range []Options{o, without(o)} {
		after := o
		after.Dir = copyOf(t, o.Dir) // as a killed server leaves it
		s := newStore(t, after)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		if got := timesOf(t, s, "new"); !slices.Equal(got, want) {
			t.Errorf("snapshots %v: new series: %v, want %v", o.SnapshotOnShutdown, got, want)
		}
		if got := timesOf(t, s, "short-lived"); !slices.Equal(got, short) {
			t.Errorf("snapshots %v: short-lived series: %v, want %v", o.SnapshotOnShutdown, got, short)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func without(o Options) Options {
	o.SnapshotOnShutdown = false
	return o
}

func copyOf(t *testing.T, dir string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// Prometheus does not maintain series_state.json without its feature fast-startup. A file that a former run of ferula has left
// must not lower the last reference: new series would get those of Prometheus' series.
func TestStore_ReferencesAfterARunOfPrometheusAreNew(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
			write := func(id string) {
				t.Helper()
				s := newStore(t, o)
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				appendAt(t, s, id, startMS)
				if killed {
					o.Dir = copyOf(t, o.Dir)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			write("first")
			prometheusWrites(t, o.Dir, "second", "third")
			write("fourth")
			prometheusWrites(t, o.Dir, "fifth")
			for _, o := range []Options{o, without(o)} {
				o.Dir = copyOf(t, o.Dir)
				s := newStore(t, o)
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				for _, id := range []string{"first", "second", "third", "fourth", "fifth"} {
					if got, want := timesOf(t, s, id), []string{id + " 0"}; !slices.Equal(got, want) {
						t.Errorf("snapshots %v: %s: %v, want %v", o.SnapshotOnShutdown, id, got, want)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// prometheusWrites opens a directory as a Prometheus with memory-snapshot-on-shutdown and without fast-startup does, and writes
// a sample of each series.
func prometheusWrites(t *testing.T, dir string, ids ...string) {
	t.Helper()
	opts := tsdb.DefaultOptions()
	opts.EnableMemorySnapshotOnShutdown, opts.OutOfOrderTimeWindow, opts.RetentionDuration = true, 24*hourMS, 0
	db, err := tsdb.Open(dir, nil, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	app := db.Appender(context.Background())
	for _, id := range ids {
		if _, err := app.Append(0, labels.FromStrings("__name__", "m", "id", id), startMS, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(app.Commit(), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// The index of the head has five bytes for a series reference. A file with a reference that no series can have is corrupt. If it
// were used, the next new series would have such a reference, and each query of it would panic; or the next reference after the
// highest number would be 0, which is no reference.
func TestStore_ReferencesThatNoSeriesCanHaveAreNotUsed(t *testing.T) {
	for _, last := range []string{"1099511627774", "1099511627775", "1099511627776", "18446744073709551614", "18446744073709551615", "-1"} {
		for _, segment := range []int{0, -1, 1 << 30} {
			t.Run(fmt.Sprint(last, " of segment ", segment), func(t *testing.T) {
				o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
				s := newStore(t, o)
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				appendAt(t, s, "old", startMS)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
				logs := filepath.Join(o.Dir, "wal")
				segments, err := segmentsOf(logs)
				if err != nil {
					t.Fatal(err)
				}
				if segment == 0 {
					segment = segments[len(segments)-1]
				}
				content := fmt.Sprintf(`{"last_series_id":%s,"last_wal_segment":%d,"clean_shutdown":true}`, last, segment)
				if err := os.WriteFile(filepath.Join(logs, seriesStateFile), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
				s = newStore(t, o)
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				for _, id := range []string{"new", "newer"} {
					appendAt(t, s, id, startMS)
				}
				for _, id := range []string{"old", "new", "newer"} {
					if got, want := timesOf(t, s, id), []string{id + " 0"}; !slices.Equal(got, want) {
						t.Errorf("%s: %v, want %v", id, got, want)
					}
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
