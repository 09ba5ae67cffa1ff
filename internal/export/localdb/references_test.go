package localdb

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
)

// snapshotDatabase returns the directory of a database that was closed with a snapshot of its head, started from it, and got a new
// series afterwards. The series {i="short"} had the last reference and had left the head. lastReference: the database keeps it
// over the restart.
func snapshotDatabase(t *testing.T, lastReference bool) (dir string) {
	t.Helper()
	dir = t.TempDir()
	opts := tsdb.DefaultOptions()
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
	one := func(db *tsdb.DB, i string, at int64) {
		t.Helper()
		app := db.Appender(context.Background())
		if _, err := app.Append(0, labels.FromStrings("__name__", "m", "i", i), at, 1); err != nil {
			t.Fatal(err)
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	db := open()
	appendTo(t, db, startMS, startMS+hourMS)
	one(db, "short", startMS+hourMS)
	appendTo(t, db, startMS+hourMS, startMS+8*hourMS)
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
	one(db, "new", startMS+8*hourMS)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Prometheus gives a new series the reference of one that has left the head, if it starts from a snapshot. A replay of its
// log would return the new series for matchers of the other one.
func TestDB_LogWithOneReferenceForTwoSeriesIsAnError(t *testing.T) {
	for _, lastReference := range []bool{false, true} {
		dir := snapshotDatabase(t, lastReference)
		d, err := Open(dir, t.TempDir(), quiet)
		if err != nil {
			t.Fatal(err)
		}
		switch q, err := d.RawQuerier(context.Background(), 0, math.MaxInt64); {
		case !lastReference && (err == nil || !strings.Contains(err.Error(), `the reference 3 for the series {__name__="m", i="new"}`)):
			t.Errorf("error %v", err)
		case lastReference && err != nil:
			t.Error(err)
		case lastReference:
			if err := q.Close(); err != nil {
				t.Error(err)
			}
			all := times(t, d, 0, math.MaxInt64)
			if n := len(all[`{__name__="m", i="new"}`]); len(all) != 4 || n != 1 {
				t.Errorf("%d series, %d samples of the new one", len(all), n)
			}
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Characters of patterns in the name of a directory must not keep its log from being checked, or the directory from being read.
func TestDB_NamesLikePatternsAreChecked(t *testing.T) {
	wrong, right := snapshotDatabase(t, false), snapshotDatabase(t, true)
	for _, name := range []string{"[prod]", "[prod", `a\*`} {
		for from, want := range map[string]bool{wrong: false, right: true} {
			dir := filepath.Join(t.TempDir(), name, "data")
			if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
				t.Fatal(err)
			}
			d, err := Open(dir, t.TempDir(), quiet)
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
