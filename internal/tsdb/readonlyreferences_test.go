package tsdb

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// snapshotDatabase returns the directory of a database that was closed with a snapshot of its head, started from it, and got a new
// series afterwards. The series {i="short"} had the last reference and had left the head; late: it had out-of-order samples.
// lastReference: the database keeps the last reference over the restart.
func snapshotDatabase(t *testing.T, late, lastReference bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	opts.EnableMemorySnapshotOnShutdown, opts.EnableFastStartup = true, lastReference
	open := func() *tsdb.DB {
		t.Helper()
		db, err := tsdb.Open(dir, quiet, nil, opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		db.DisableCompactions()
		return db
	}
	db := open()
	appendTo(t, db, startMS, startMS+hourMS)
	appendToDB(t, db, "short", startMS+hourMS)
	if late {
		appendToDB(t, db, "short", startMS+hourMS/2)
	}
	appendTo(t, db, startMS+hourMS, startMS+8*hourMS)
	if err := db.CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	db.EnableCompactions()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := db.Head().NumSeries(); n != 2 {
		t.Fatalf("the head has %d series", n)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open()
	appendToDB(t, db, "new", startMS+8*hourMS)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Prometheus gives a new series the reference of one that has left the head, if it starts from a snapshot. Out-of-order chunks of
// the one could then be read for the other.
func TestReadOnly_ChunksWithOneReferenceForTwoSeriesAreAnError(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, lastReference := range []bool{false, true} {
			dir := snapshotDatabase(t, late, lastReference)
			d, err := OpenReadOnly(dir, t.TempDir(), quiet)
			if err != nil {
				t.Fatal(err)
			}
			q, err := d.RawQuerier(context.Background(), 0, math.MaxInt64)
			if late && !lastReference {
				if err == nil || !strings.Contains(err.Error(), `the reference 3 for the series {__name__="m", i="new"}`) {
					t.Errorf("error %v", err)
				}
			} else if err != nil {
				t.Error(err)
			} else {
				all := times(t, d, 0, math.MaxInt64)
				if n, short := len(all[`{__name__="m", i="new"}`]), len(all[`{__name__="m", i="short"}`]); len(all) != 4 || n != 1 || short != 1+map[bool]int{true: 1}[late] {
					t.Errorf("late %v, last reference %v: %d series, %d samples of the new one, %d of the old one", late, lastReference, len(all), n, short)
				}
				if err := q.Close(); err != nil {
					t.Error(err)
				}
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A server that starts from a snapshot does not read which references of the log before it belong to one series. Its next
// checkpoint keeps the samples with such a reference, but not the record that names their series.
func TestReadOnly_SnapshotHasSeriesThatTheCheckpointLacks(t *testing.T) {
	dir := t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.EnableMemorySnapshotOnShutdown = true
	open := func() *tsdb.DB {
		t.Helper()
		db, err := tsdb.Open(dir, quiet, nil, opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		db.DisableCompactions()
		return db
	}
	lasting := func(db *tsdb.DB, mint, maxt int64) {
		t.Helper()
		app := db.Appender(context.Background())
		for at := mint; at < maxt; at += 60_000 {
			if _, err := app.Append(0, labels.FromStrings("__name__", "lasting"), at, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	compact := func(db *tsdb.DB) {
		t.Helper()
		db.EnableCompactions()
		if err := db.Compact(context.Background()); err != nil {
			t.Fatal(err)
		}
		db.DisableCompactions()
	}
	db := open()
	appendTo(t, db, startMS, startMS+hourMS)
	lasting(db, startMS, startMS+8*hourMS)
	compact(db)                                         // the two series leave the head
	appendTo(t, db, startMS+8*hourMS, startMS+9*hourMS) // with new references
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	dir = killed
	for range 8 { // each start begins a segment of the log
		if err := open().Close(); err != nil {
			t.Fatal(err)
		}
	}
	db = open()
	lasting(db, startMS+8*hourMS, startMS+9*hourMS+10*60_000)
	compact(db)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	checkpoint, _, err := wlog.LastCheckpoint(filepath.Join(dir, "wal"))
	if err != nil {
		t.Fatal(err)
	}
	t.Log(checkpoint)
	d, err := OpenReadOnly(dir, t.TempDir(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	all := times(t, d, 0, math.MaxInt64)
	for lset, seen := range all {
		if len(seen) != 120 {
			t.Errorf("%s has %d samples, want 120", lset, len(seen))
		}
	}
	if len(all) != 2 {
		t.Errorf("%d series", len(all))
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// Characters of patterns in the name of a directory must not keep its log from being checked, or the directory from being read.
func TestReadOnly_NamesLikePatternsAreChecked(t *testing.T) {
	wrong, right := snapshotDatabase(t, true, false), snapshotDatabase(t, true, true)
	for _, name := range []string{"[prod]", "[prod", `a\*`} {
		for from, want := range map[string]bool{wrong: false, right: true} {
			dir := filepath.Join(t.TempDir(), name, "data")
			if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			d, err := OpenReadOnly(dir, t.TempDir(), quiet)
			if err != nil {
				t.Fatal(err)
			}
			q, err := d.RawQuerier(context.Background(), 0, math.MaxInt64)
			if (err == nil) != want {
				t.Errorf("%s, without duplicates %v: %v", name, want, err)
			}
			if err == nil {
				err = q.Close()
			} else {
				err = nil
			}
			if err := errors.Join(err, d.Close()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A snapshot lacks the second reference of a series that has left the head and returned. Its out-of-order samples are found by a
// replay of the whole log.
func TestReadOnly_LogHasOutOfOrderSamplesThatThesnapshotLacks(t *testing.T) {
	dir := t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	opts.EnableMemorySnapshotOnShutdown = true
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	db.DisableCompactions()
	appendToDB(t, db, "again", startMS+hourMS)
	appendTo(t, db, startMS, startMS+8*hourMS)
	db.EnableCompactions()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := db.Head().NumSeries(); n != 2 {
		t.Fatalf("the head has %d series", n)
	}
	db.DisableCompactions()
	appendToDB(t, db, "again", startMS+8*hourMS)
	appendToDB(t, db, "again", startMS+7*hourMS)
	killed := t.TempDir()
	if err := os.CopyFS(killed, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if db, err = tsdb.Open(killed, quiet, nil, opts, nil); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := OpenReadOnly(killed, t.TempDir(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	if seen := times(t, d, 0, math.MaxInt64)[`{__name__="m", i="again"}`]; len(seen) != 3 {
		t.Errorf("samples %v, want 3", seen)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
}

// appendOne appends the value 1 to the series m{i=…}.
func appendToDB(t *testing.T, db *tsdb.DB, i string, atMS int64) {
	t.Helper()
	app := db.Appender(context.Background())
	if _, err := app.Append(0, labels.FromStrings("__name__", "m", "i", i), atMS, 1); err != nil {
		t.Fatal(err)
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}
