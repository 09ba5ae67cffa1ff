package tsdb

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/tsdbutil"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// lateDatabase is a database with an out-of-order window.
type lateDatabase struct {
	t    *testing.T
	kind string
	s    *Store
	opts Options
}

func (d *lateDatabase) open() *tsdb.DB {
	d.t.Helper()
	d.s = newStore(d.t, d.opts)
	if err := d.s.Open(); err != nil {
		d.t.Fatal(err)
	}
	db := d.s.db.Load()
	db.DisableCompactions()
	return db
}

// write appends n samples of metric m, one a second from atMS on.
func (d *lateDatabase) write(atMS int64, n int) {
	d.t.Helper()
	app := d.s.Appender(context.Background())
	for i := range int64(n) {
		var err error
		switch name := labels.FromStrings("__name__", "m"); d.kind {
		case "histograms":
			_, err = app.AppendHistogram(0, name, atMS+i*1000, tsdbutil.GenerateTestHistogram(1), nil)
		case "histograms with custom buckets":
			_, err = app.AppendHistogram(0, name, atMS+i*1000, nil, tsdbutil.GenerateTestCustomBucketsFloatHistogram(1))
		default:
			_, err = app.Append(0, name, atMS+i*1000, 1)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
	if err := app.Commit(); err != nil {
		d.t.Fatal(err)
	}
}

// Late samples that arrive after the first compaction of late samples since a start can be read at once, whether or not
// they are mapped from disk, and no later truncation of the head drops them.
func TestStore_LateSamplesAfterACompactionSinceTheStartAreRead(t *testing.T) {
	for name, files := range map[string]int{"first file of chunks": 1, "later file of chunks": 3, "histograms": 1,
		"histograms with custom buckets": 1} {
		t.Run(name, func(t *testing.T) {
			d := lateDatabase{t: t, kind: name, opts: Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour}}
			db := d.open()
			from := startMS - startMS%(2*hourMS)
			d.write(from+hourMS, 1)
			written := 1
			for i := range files {
				d.write(from+int64(i)*60_000, 10) // in an own file of chunks
				written += 10
				if err := db.CompactOOOHead(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // the chunks of the last file are in a block, and are loaded again
				if err := d.s.Close(); err != nil {
					t.Fatal(err)
				}
				db = d.open()
			}
			if err := db.CompactOOOHead(context.Background()); err != nil {
				t.Fatal(err)
			}
			d.write(from+30*60_000, 100) // more than a chunk holds
			written += 100
			if n := countSamples(t, d.s); n != written {
				t.Errorf("%d samples are read, want %d", n, written)
			}
			if _, err := tsdb.NewOOOCompactionHead(context.Background(), db.Head()); err != nil { // maps the last chunk
				t.Fatal(err)
			}
			if n := countSamples(t, d.s); n != written {
				t.Errorf("%d samples are read while late samples move to a block, want %d", n, written)
			}
			if err := db.Head().Truncate(from + 10*60_000); err != nil {
				t.Fatal(err)
			}
			if err := db.CompactOOOHead(context.Background()); err != nil {
				t.Fatal(err)
			}
			if n := countSamples(t, d.s); n != written {
				t.Errorf("%d samples are read after the head was truncated, want %d", n, written)
			}
			if err := d.s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The fault of the library: a compaction of late samples that finds all of them in mapped chunks deletes all files of
// chunks, if no chunk was written since the start. Files are numbered from 1 again then, and the head takes new chunks
// for old ones. If this test fails, the library has no such fault any more, and latechunks.go can go.
func TestLibrary_TakesNewChunksForOldOnes(t *testing.T) {
	dir := t.TempDir()
	opts := Options{Dir: dir, Retention: -1, OutOfOrderWindow: 24 * time.Hour}.resolved().prometheus()
	open := func() *tsdb.DB {
		t.Helper()
		db, err := tsdb.Open(dir, nil, nil, opts, nil)
		if err != nil {
			t.Fatal(err)
		}
		db.DisableCompactions()
		return db
	}
	write := func(db *tsdb.DB, atMS int64, n int) {
		t.Helper()
		app := db.Appender(context.Background())
		for i := range int64(n) {
			if _, err := app.Append(0, labels.FromStrings("__name__", "m"), atMS+i*1000, 1); err != nil {
				t.Fatal(err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	db := open()
	write(db, startMS+hourMS, 1)
	write(db, startMS, 10)
	if err := db.CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	db = open()
	if err := db.CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	write(db, startMS+30*60_000, 33)
	files, err := os.ReadDir(filepath.Join(dir, wlog.WblDirName))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	s := newStore(t, Options{Dir: dir, Retention: -1})
	s.db.Store(db)
	if n := countSamples(t, s); n != 12 {
		t.Errorf("%d samples are read, want 12: the fault of the library hides the mapped chunk of 32 samples", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
