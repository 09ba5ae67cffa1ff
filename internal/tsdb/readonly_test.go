package tsdb

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

var quiet = slog.New(slog.DiscardHandler)

// appendTo appends a sample every minute to two series, from mint to maxt, exclusive.
func appendTo(t *testing.T, to interface {
	Appender(context.Context) storage.Appender
}, mint, maxt int64) {
	t.Helper()
	app := to.Appender(context.Background())
	for ts := mint; ts < maxt; ts += 60_000 {
		for _, i := range []string{"1", "2"} {
			if _, err := app.Append(0, labels.FromStrings("__name__", "m", "i", i), ts, float64(ts)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := app.Commit(); err != nil {
		t.Fatal(err)
	}
}

func addBlock(t *testing.T, dir string, mint, maxt int64) {
	t.Helper()
	w, err := tsdb.NewBlockWriter(quiet, dir, 2*hourMS)
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, w, mint, maxt)
	if _, err := w.Flush(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// times returns the timestamps of all samples of a window, by series.
func times(t *testing.T, d *ReadOnly, mint, maxt int64) map[string]map[int64]bool {
	t.Helper()
	q, err := d.RawQuerier(context.Background(), mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	set := q.Select(context.Background(), series.SelectOptions{}, labels.MustNewMatcher(labels.MatchEqual, "__name__", "m"))
	all, builder := map[string]map[int64]bool{}, labels.NewScratchBuilder(4)
	for set.Next() {
		lset, err := labelenc.Labels(set.Labels(), &builder)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[int64]bool{}
		all[lset.String()] = seen
		for _, c := range set.Chunks() {
			chunk, err := chunkenc.FromData(c.Encoding, c.Data)
			if err != nil {
				t.Fatal(err)
			}
			for it := chunk.Iterator(nil); it.Next() != chunkenc.ValNone; {
				seen[it.AtT()] = true
			}
		}
	}
	if set.Err() != nil {
		t.Fatal(set.Err())
	}
	return all
}

func TestReadOnly_ReadsBlocksAndLog(t *testing.T) {
	dir, sandbox := t.TempDir(), t.TempDir()
	addBlock(t, dir, startMS, startMS+2*hourMS)
	addBlock(t, dir, startMS+hourMS, startMS+2*hourMS) // overlaps
	addBlock(t, dir, startMS+2*hourMS, startMS+4*hourMS)
	db, err := tsdb.Open(dir, quiet, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.DisableCompactions()
	appendTo(t, db, startMS+4*hourMS, startMS+5*hourMS)
	left := filepath.Join(sandbox, "ferula_read_1") // of a killed process
	if err := errors.Join(os.Mkdir(left, 0o755), os.Chtimes(left, time.Time{}, time.Now().Add(-time.Hour))); err != nil {
		t.Fatal(err)
	}
	d, err := OpenReadOnly(dir, sandbox, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct{ mint, maxt int64 }{
		{startMS, startMS + 2*hourMS - 1}, {startMS + 2*hourMS, startMS + 4*hourMS - 1}, {startMS + 4*hourMS, startMS + 6*hourMS}, {startMS + hourMS + 1, startMS + 5*hourMS},
		{startMS - 2*hourMS, startMS - 1}, // no samples
	} {
		got := times(t, d, w.mint, w.maxt)
		for _, seen := range got {
			n := 0
			for ts := startMS; ts < startMS+5*hourMS; ts += 60_000 {
				if ts >= w.mint && ts <= w.maxt {
					if n++; !seen[ts] {
						t.Fatalf("%+v: no sample at %d", w, ts)
					}
				}
			}
			if n != len(seen) {
				t.Errorf("%+v: %d samples, want %d", w, len(seen), n)
			}
		}
		if wanted := 2; w.maxt >= startMS && len(got) != wanted {
			t.Errorf("%+v: %d series", w, len(got))
		}
	}
	// What a killed process leaves is in one directory, which the next process removes.
	if left, err := os.ReadDir(sandbox); err != nil || len(left) != 1 {
		t.Errorf("in the sandbox: %v, %v", left, err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(sandbox); err != nil || len(left) != 0 {
		t.Errorf("left in the sandbox: %v, %v", left, err)
	}
}

func TestOpenReadOnly_NotADatabaseFails(t *testing.T) {
	empty := t.TempDir()
	for _, dir := range []string{empty, filepath.Join(empty, "none")} {
		if d, err := OpenReadOnly(dir, "", quiet); !errors.Is(err, os.ErrNotExist) || d != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
	broken := t.TempDir()
	addBlock(t, broken, startMS, startMS+hourMS)
	indexes, err := filepath.Glob(filepath.Join(broken, "*", "index"))
	if err != nil || len(indexes) != 1 {
		t.Fatal(indexes, err)
	}
	if err := os.Truncate(indexes[0], 10); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(broken, "", quiet); err == nil {
		t.Error("a corrupt index was accepted")
	}
}

func TestReadOnly_BlocksWithoutALog(t *testing.T) {
	dir := t.TempDir()
	addBlock(t, dir, startMS, startMS+hourMS)
	d, err := OpenReadOnly(dir, "", quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if got := times(t, d, startMS, startMS+10*hourMS); len(got) != 2 {
		t.Errorf("%d series", len(got))
	}
}

func TestReadOnly_OutOfOrderSamplesAreInTheWindowsOfBlocks(t *testing.T) {
	dir, sandbox := t.TempDir(), t.TempDir()
	addBlock(t, dir, startMS, startMS+2*hourMS)
	addBlock(t, dir, startMS+2*hourMS, startMS+4*hourMS)
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.DisableCompactions()
	appendTo(t, db, startMS+4*hourMS, startMS+5*hourMS)
	appendTo(t, db, startMS+2*hourMS+30_000, startMS+2*hourMS+630_000) // between those of a block
	d, err := OpenReadOnly(dir, sandbox, quiet)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		mint, maxt int64
		want       int
	}{
		{startMS, startMS + 2*hourMS - 1, 120}, {startMS + 2*hourMS, startMS + 4*hourMS - 1, 130},
		{startMS + 2*hourMS + 30_000, startMS + 2*hourMS + 30_000, 1}, {startMS + 2*hourMS + 600_000, startMS + 2*hourMS + 660_000, 2},
		{startMS + 4*hourMS, startMS + 6*hourMS, 60}, {startMS, startMS + 6*hourMS, 310}, {startMS - hourMS, startMS - 1, 0},
	} {
		got := times(t, d, tt.mint, tt.maxt)
		if len(got) != min(2, tt.want*2) {
			t.Errorf("%+v: %d series", tt, len(got))
		}
		for lset, seen := range got {
			if len(seen) != tt.want {
				t.Errorf("%+v: %s has %d samples", tt, lset, len(seen))
			}
		}
	}
	if d.head == nil || d.head.minMS != startMS+2*hourMS+30_000 {
		t.Errorf("the head begins at another time: %+v", d.head)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(sandbox); err != nil || len(left) != 0 {
		t.Errorf("left in the sandbox: %v, %v", left, err)
	}
}

func TestReadOnly_OutOfOrderBlockDoesNotHideTheLogBeforeItsEnd(t *testing.T) {
	dir := t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.DisableCompactions()
	appendTo(t, db, startMS, startMS+hourMS)
	appendTo(t, db, startMS+30_000, startMS+630_000)
	if err := db.CompactOOOHead(context.Background()); err != nil {
		t.Fatal(err)
	}
	if len(db.Blocks()) != 1 {
		t.Fatalf("%d blocks of late samples", len(db.Blocks()))
	}
	wantSamples(t, dir, startMS+2*hourMS, 70)
}

// wantSamples checks that both series of the directory have n samples up to endMS.
func wantSamples(t *testing.T, dir string, endMS int64, n int) {
	t.Helper()
	d, err := OpenReadOnly(dir, t.TempDir(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	got := times(t, d, startMS, endMS)
	if len(got) != 2 {
		t.Errorf("%d series", len(got))
	}
	for lset, seen := range got {
		if len(seen) != n {
			t.Errorf("%s has %d samples, written were %d", lset, len(seen), n)
		}
	}
}

// A database's directory is often a mount point, such as a volume of a container: its parent
// is on another file system, and so is the system's directory for temporary files.
func TestReadOnly_SandboxOnAnotherFileSystem(t *testing.T) {
	const other = "/dev/shm"
	sandbox := t.TempDir()
	if _, err := os.Stat(other); err != nil || sameFileSystem(other, sandbox) {
		t.Skipf("%s is not another file system than %s", other, sandbox)
	}
	dir, err := os.MkdirTemp(other, "ferula-readonly-")
	if err != nil {
		t.Skipf("no folder on another file system: %v", err)
	}
	defer os.RemoveAll(dir)
	opts := tsdb.DefaultOptions()
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, db, startMS, startMS+3*hourMS) // more than one chunk: some are in chunks_head
	db.ForceHeadMMap()
	if files, err := os.ReadDir(filepath.Join(dir, "chunks_head")); err != nil || len(files) == 0 {
		t.Fatalf("the head has no chunk files: %v", err)
	}
	d, err := OpenReadOnly(dir, sandbox, quiet)
	if err != nil {
		t.Fatal(err)
	}
	got := times(t, d, startMS, startMS+3*hourMS)
	if err := errors.Join(d.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 {
		t.Fatalf("%d series", len(got))
	}
	for labels, at := range got {
		if len(at) != 180 {
			t.Errorf("%s has %d samples, want 180", labels, len(at))
		}
	}
	if left, err := os.ReadDir(sandbox); err != nil || len(left) > 0 {
		t.Errorf("files are left in the sandbox: %v %v", left, err)
	}
}

// Prometheus compacts out-of-order blocks with the in-order blocks before them. The resulting
// block has no hint. It ends where the last out-of-order block ended, but the newest in-order
// samples before its end are still only in the log.
func TestReadOnly_MixedBlockDoesNotHideTheLogBeforeItsEnd(t *testing.T) {
	dir := t.TempDir()
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow, opts.RetentionDuration, opts.MaxBlockDuration = 24*hourMS, 0, 6*hourMS
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.DisableCompactions()
	appendTo(t, db, startMS, startMS+410*60_000)                       // the last 2:50 stay in the head
	appendTo(t, db, startMS+4*hourMS+30_000, startMS+4*hourMS+630_000) // late
	appendTo(t, db, startMS+6*hourMS+30_000, startMS+6*hourMS+630_000) // late
	db.EnableCompactions()
	if err := db.Compact(context.Background()); err != nil {
		t.Fatal(err)
	}
	if meta := db.Blocks()[0].Meta(); meta.MaxTime != startMS+6*hourMS || meta.Compaction.FromOutOfOrder() || db.Head().MinTime() != startMS+4*hourMS {
		t.Fatalf("the first block is %+v, the head begins at %d: not what is tested", meta, db.Head().MinTime())
	}
	wantSamples(t, dir, startMS+8*hourMS, 430)
}

func TestInOrderUntil_KnowsNoMoreThanTheBlockSays(t *testing.T) {
	const none = math.MinInt64
	first, second := tsdb.BlockDesc{MinTime: 0, MaxTime: 20}, tsdb.BlockDesc{MinTime: 20, MaxTime: 40}
	for name, tt := range map[string]struct {
		compaction tsdb.BlockMetaCompaction
		want       int64
	}{
		"cut from the head":                   {tsdb.BlockMetaCompaction{Level: 1}, 40},
		"of late samples":                     {tsdb.BlockMetaCompaction{Level: 1, Hints: []string{tsdb.CompactionHintFromOutOfOrder}}, none},
		"of stale series":                     {tsdb.BlockMetaCompaction{Level: 1, Hints: []string{tsdb.CompactionHintFromStaleSeries}}, none},
		"of selected series":                  {tsdb.BlockMetaCompaction{Level: 1, Hints: []string{tsdb.CompactionHintFromSelectedSeries}}, none},
		"of two, one may be of late samples":  {tsdb.BlockMetaCompaction{Level: 2, Parents: []tsdb.BlockDesc{first, second}}, 20},
		"of two with the same end":            {tsdb.BlockMetaCompaction{Level: 2, Parents: []tsdb.BlockDesc{second, second}}, 40},
		"of compacted ones":                   {tsdb.BlockMetaCompaction{Level: 3, Parents: []tsdb.BlockDesc{first, second}}, 0},
		"rewritten without deleted samples":   {tsdb.BlockMetaCompaction{Level: 1, Parents: []tsdb.BlockDesc{{MaxTime: 40}}}, 0},
		"compacted by a tool without parents": {tsdb.BlockMetaCompaction{Level: 2}, 0},
	} {
		if got := inOrderUntil(&tsdb.BlockMeta{MinTime: 0, MaxTime: 40, Compaction: tt.compaction}); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// onWarning is a handler that calls do at the first warning.
type onWarning struct {
	slog.Handler
	once *sync.Once
	do   func()
}

func (onWarning) Enabled(context.Context, slog.Level) bool { return true }

func (h onWarning) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		h.once.Do(h.do)
	}
	return nil
}

// The server writes its late samples to blocks while the directory is opened: after the blocks
// are listed, and before the log is checked. Overlapping blocks make the database log a
// warning between these two steps.
func TestOpenReadOnly_LateSamplesThatBecomeBlocksMeanwhileAreRead(t *testing.T) {
	dir := t.TempDir()
	addBlock(t, dir, startMS, startMS+2*hourMS)
	addBlock(t, dir, startMS+hourMS, startMS+2*hourMS)
	addBlock(t, dir, startMS+2*hourMS, startMS+4*hourMS)
	opts := tsdb.DefaultOptions()
	opts.OutOfOrderTimeWindow = 24 * hourMS
	db, err := tsdb.Open(dir, quiet, nil, opts, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.DisableCompactions()
	appendTo(t, db, startMS+4*hourMS, startMS+5*hourMS)
	appendTo(t, db, startMS+2*hourMS+30_000, startMS+2*hourMS+630_000) // late
	compacted := false
	logger := slog.New(onWarning{slog.DiscardHandler, new(sync.Once), func() {
		if err := db.CompactOOOHead(context.Background()); err != nil {
			t.Error(err)
		}
		compacted = true
	}})
	d, err := OpenReadOnly(dir, t.TempDir(), logger)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if late, err := segmentBytes(filepath.Join(dir, "wbl")); err != nil || len(late) > 0 || !compacted {
		t.Fatalf("the log still has late samples: %v, %t, %v", late, compacted, err)
	}
	got := times(t, d, startMS+2*hourMS, startMS+3*hourMS-1) // a window that ends before the head
	if len(got) != 2 {
		t.Errorf("%d series", len(got))
	}
	for lset, seen := range got {
		if len(seen) != 70 {
			t.Errorf("%s has %d samples, written were 70", lset, len(seen))
		}
	}
}

func TestReadOnly_BlockThatBreaksBeforeTheReplayIsAnError(t *testing.T) {
	dir := t.TempDir()
	addBlock(t, dir, startMS, startMS+hourMS)
	db, err := tsdb.Open(dir, quiet, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	appendTo(t, db, startMS+4*hourMS, startMS+5*hourMS)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	d, err := OpenReadOnly(dir, t.TempDir(), quiet)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	indexes, err := filepath.Glob(filepath.Join(dir, "*", "index"))
	if err != nil || len(indexes) != 1 {
		t.Fatal(indexes, err)
	}
	if err := errors.Join(os.Remove(indexes[0]), os.WriteFile(indexes[0], []byte("short"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := d.RawQuerier(context.Background(), startMS, startMS+6*hourMS); err == nil {
		t.Error("a block that cannot be listed after the replay is left out")
	}
}

// Prometheus renames a block before it deletes it. A directory in which this happens must open, with the other blocks.
func TestOpenReadOnly_BlocksMayBeDeletedMeanwhile(t *testing.T) {
	dir := t.TempDir()
	addBlock(t, dir, startMS, startMS+2*hourMS)
	addBlock(t, dir, startMS+2*hourMS, startMS+4*hourMS)
	blocks, err := filepath.Glob(filepath.Join(dir, "*", "meta.json"))
	if err != nil || len(blocks) != 2 {
		t.Fatalf("blocks %v, %v", blocks, err)
	}
	deleted := filepath.Dir(blocks[1])
	stop := make(chan struct{})
	var deleting sync.WaitGroup
	deleting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := errors.Join(os.Rename(deleted, deleted+".tmp-for-deletion"), os.Rename(deleted+".tmp-for-deletion", deleted)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 300 {
		d, err := OpenReadOnly(dir, t.TempDir(), quiet)
		if err != nil {
			t.Error(err)
			break
		}
		if n := len(d.blocks); n != 1 && n != 2 {
			t.Errorf("%d blocks", n)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	deleting.Wait()
}
