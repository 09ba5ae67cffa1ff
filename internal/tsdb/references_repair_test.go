package tsdb

import (
	"fmt"
	"os"
	"path/filepath"
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
			newSeriesAreNew(t, o)
		})
	}
}
