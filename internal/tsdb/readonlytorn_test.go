package tsdb

import (
	"context"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"

	"github.com/ferula-io/ferula/internal/series"
)

// tornDatabase returns the directory of a database with two commits in its log of in-order samples, and in that of
// out-of-order samples, and the sizes of a log's last segment after the first and after the second commit.
func tornDatabase(t *testing.T, log string) (dir, segment string, first, second int64) {
	t.Helper()
	dir = t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	opts.WALSegmentSize = 1 << 20
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	size := func() int64 {
		sizes, err := segmentBytes(filepath.Join(dir, log))
		if err != nil || len(sizes) == 0 {
			t.Fatalf("%v: %v", sizes, err)
		}
		segment = slices.Max(slices.Collect(maps.Keys(sizes)))
		return sizes[segment]
	}
	appendTo(t, db, startMS+4*hourMS, startMS+5*hourMS)
	appendTo(t, db, startMS+2*hourMS, startMS+3*hourMS) // late
	first = size()
	if log == wlog.WblDirName {
		appendTo(t, db, startMS+3*hourMS, startMS+3*hourMS+600_000)
	} else {
		appendTo(t, db, startMS+5*hourMS, startMS+5*hourMS+600_000)
	}
	second = size()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if second < first+100 {
		t.Fatalf("the second commit has the bytes %d to %d", first, second)
	}
	return dir, segment, first, second
}

func TestOpenReadOnly_IncompleteLastRecordOfALogIsNotRead(t *testing.T) {
	for _, log := range []string{"wal", wlog.WblDirName} {
		dir, segment, first, second := tornDatabase(t, log)
		whole, err := os.ReadFile(segment)
		if err != nil {
			t.Fatal(err)
		}
		for _, length := range []int64{first + 1, first + 5, first + 8, first + 40, (first + second) / 2, second - 1} {
			for _, zeros := range []int64{0, 10, 40 << 10} { // a disk may keep zero bytes for those that were not written
				if err := os.WriteFile(segment, append(whole[:length:length], make([]byte, zeros)...), 0o666); err != nil {
					t.Fatal(err)
				}
				d, err := OpenReadOnly(dir, t.TempDir(), quiet)
				if err != nil {
					t.Fatal(err)
				}
				for lset, seen := range times(t, d, startMS, startMS+9*hourMS) {
					for i := range int64(60) {
						if !seen[startMS+4*hourMS+i*60_000] || !seen[startMS+2*hourMS+i*60_000] {
							t.Fatalf("%s: %d bytes and %d zeros: %s lacks sample %d", log, length, zeros, lset, i)
						}
					}
					if len(seen) < 120 || len(seen) > 130 {
						t.Errorf("%s: %d bytes and %d zeros: %s has %d samples", log, length, zeros, lset, len(seen))
					}
				}
				if err := d.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if got, err := os.ReadFile(segment); err != nil || int64(len(got)) != second-1+40<<10 {
			t.Errorf("%s: the segment has %d bytes, %v: it was changed", log, len(got), err)
		}
	}
}

// Acknowledged samples may be behind the damage, so the log is not cut there.
func TestOpenReadOnly_DamageBeforeTheLastRecordOfALogIsAnError(t *testing.T) {
	for _, log := range []string{"wal", wlog.WblDirName} {
		for name, damage := range map[string]func(whole []byte, first int64) []byte{
			"a byte in the middle": func(whole []byte, first int64) []byte { whole[first/2] ^= 0x55; return whole },
			"a byte after the incomplete record": func(whole []byte, first int64) []byte {
				whole[first+20] ^= 0x55
				return append(append(whole, make([]byte, 100)...), 1)
			},
		} {
			dir, segment, first, _ := tornDatabase(t, log)
			whole, err := os.ReadFile(segment)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(segment, damage(whole, first), 0o666); err != nil {
				t.Fatal(err)
			}
			d, err := OpenReadOnly(dir, t.TempDir(), quiet)
			if err != nil {
				t.Fatal(err)
			}
			var corrupt *wlog.CorruptionErr
			if q, err := d.RawQuerier(context.Background(), startMS, math.MaxInt64); !errors.As(err, &corrupt) {
				if err == nil {
					set := q.Select(context.Background(), series.SelectOptions{}, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
					for set.Next() {
					}
					err = errors.Join(set.Err(), q.Close())
				}
				if !errors.As(err, &corrupt) {
					t.Errorf("%s, %s: %v, want an error of the log", log, name, err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A log with a checkpoint is replayed from the checkpoint on.
func TestOpenReadOnly_IncompleteLastRecordAfterACheckpointIsNotRead(t *testing.T) {
	dir, segment, first, _ := tornDatabase(t, "wal")
	log := filepath.Dir(segment)
	index, err := strconv.Atoi(filepath.Base(segment))
	if err != nil {
		t.Fatal(err)
	}
	// The segment of the first commit becomes a checkpoint, and the second commit a segment of its own.
	whole, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(segment, first); err != nil {
		t.Fatal(err)
	}
	w, err := wlog.New(quiet, nil, log, compression.None)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := wlog.Checkpoint(quiet, w, 0, index, func(chunks.HeadSeriesRef) bool { return true }, math.MinInt64, false); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Close(), w.Truncate(index+1)); err != nil {
		t.Fatal(err)
	}
	next := wlog.SegmentName(log, index+1)
	if err := os.WriteFile(next, append([]byte{}, whole[first:first+50]...), 0o666); err != nil {
		t.Fatal(err)
	}
	d, err := OpenReadOnly(dir, t.TempDir(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	got := times(t, d, startMS, startMS+9*hourMS)
	if len(got) != 2 {
		t.Errorf("%d series", len(got))
	}
	for lset, seen := range got {
		if len(seen) != 120 {
			t.Errorf("%s has %d samples", lset, len(seen))
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}
