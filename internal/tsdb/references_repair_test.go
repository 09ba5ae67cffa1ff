package tsdb

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb/wlog"
)

// A repair of the log must not lower the last reference. Prometheus ignores series_state.json if the last segment ends in an
// incomplete record, and writes the reference of the snapshot into it when the repaired database is closed.
func TestStore_ReferencesAfterARepairAreNew(t *testing.T) {
	for _, killed := range []bool{false, true} {
		t.Run(fmt.Sprintf("killed %v", killed), func(t *testing.T) {
			o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, SnapshotOnShutdown: true, NoLockfile: true}
			shortLived(t, o)
			if killed {
				s := newStore(t, o)
				if err := s.Open(); err != nil {
					t.Fatal(err)
				}
				appendAt(t, s, "lasting", startMS+8*hourMS)
				dir := o.Dir
				time.Sleep(1500 * time.Millisecond) // Prometheus writes series_state.json once in a second
				o.Dir = copyOf(t, dir)
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			logs := filepath.Join(o.Dir, "wal")
			_, last, err := wlog.Segments(logs)
			if err != nil {
				t.Fatal(err)
			}
			segment, err := os.OpenFile(wlog.SegmentName(logs, last), os.O_WRONLY|os.O_APPEND, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := segment.Write([]byte{1, 0, 100, 1, 2, 3, 4, 5}); err != nil { // the start of a record of 100 bytes
				t.Fatal(err)
			}
			if err := segment.Close(); err != nil {
				t.Fatal(err)
			}
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
		})
	}
}
