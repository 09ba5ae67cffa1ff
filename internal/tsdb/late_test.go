package tsdb

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// countSamples returns the number of samples of metric m.
func countSamples(t *testing.T, s *Store) int {
	t.Helper()
	q, err := s.Querier(0, startMS+100*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set, n := q.Select(context.Background(), false, nil, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m")), 0
	for set.Next() {
		for it := set.At().Iterator(nil); it.Next() != chunkenc.ValNone; {
			n++
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return n
}

// After a compaction of out-of-order samples with in-order blocks, the next start must still
// read the in-order samples that only the write-ahead log has.
func TestStore_RestartKeepsTheHeadBeforeTheEndOfLateBlocks(t *testing.T) {
	for name, list := range map[string]string{"": "", "with a list of uploaded blocks": filepath.Join(t.TempDir(), "missing.json")} {
		o := Options{Dir: t.TempDir(), Retention: -1, OutOfOrderWindow: 24 * time.Hour, MinBlockDuration: 2 * time.Hour, MaxBlockDuration: 6 * time.Hour, UploadedBlocksFile: list}
		s := newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		db := s.db.Load()
		db.DisableCompactions()
		written := 0
		write := func(mint, maxt int64) {
			t.Helper()
			app := s.Appender(context.Background())
			for ts := mint; ts < maxt; ts += 60_000 {
				if _, err := app.Append(0, labels.FromStrings("__name__", "m"), ts, 1); err != nil {
					t.Fatal(err)
				}
				written++
			}
			if err := app.Commit(); err != nil {
				t.Fatal(err)
			}
		}
		compact := func() {
			t.Helper()
			db.EnableCompactions()
			if err := db.Compact(context.Background()); err != nil {
				t.Fatal(err)
			}
			db.DisableCompactions()
		}
		from := startMS - startMS%(18*hourMS)
		write(from, from+410*60_000) // the last 2:50 stay in the head
		write(from+4*hourMS+30_000, from+4*hourMS+630_000)
		write(from+6*hourMS+30_000, from+6*hourMS+630_000)
		compact()
		if n := len(db.Blocks()); n != 4 || db.Head().MinTime() != from+4*hourMS {
			t.Errorf("%s: %d blocks, the head begins at %d", name, n, db.Head().MinTime())
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = newStore(t, o)
		if err := s.Open(); err != nil {
			t.Fatal(err)
		}
		db = s.db.Load()
		db.DisableCompactions()
		if n := countSamples(t, s); n != written {
			t.Errorf("%s: %d samples after a restart, written were %d", name, n, written)
		}
		// Once the head was cut beyond their ends, the late blocks are compacted.
		write(from+410*60_000, from+16*hourMS)
		compact()
		for _, b := range db.Blocks() {
			if m := b.Meta(); m.Compaction.FromOutOfOrder() && m.MaxTime <= from+6*hourMS {
				t.Errorf("%s: a block of late samples was never compacted: %+v", name, m)
			}
		}
		if n := countSamples(t, s); n != written {
			t.Errorf("%s: %d samples after a compaction, written were %d", name, n, written)
		}
	}
}
