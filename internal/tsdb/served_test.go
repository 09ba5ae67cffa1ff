package tsdb

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/series"
)

// servedWorld is a store with three blocks and a head, and a reader of its directory. bytes is the size that the store
// reports.
func servedWorld(t *testing.T) (s *Store, d *ServedBlocks, bytes int64) {
	t.Helper()
	s = openWorld(t, t.TempDir(), 0)
	fill(t, s, 20, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	for _, b := range s.db.Load().Blocks() {
		bytes += b.Size()
	}
	d = NewServedBlocks(s.opts.Dir, quiet)
	t.Cleanup(func() { _ = d.Close() })
	return s, d, bytes
}

func (d *ServedBlocks) confirmOf(s *Store, bytes int64) { d.Confirm(bytes, s.HeadMinTime(), nil) }

// checkServed compares what a reader returns with what the store returns for the same range.
func checkServed(t *testing.T, d *ServedBlocks, s *Store, mint, maxt int64) (untilMS int64) {
	t.Helper()
	q, untilMS, err := d.Querier(mint, maxt)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	want, err := s.RawQuerier(context.Background(), mint, min(maxt, untilMS-1))
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	got, wanted := rest(t, q.Select(context.Background(), series.SelectOptions{}, everything)), rest(t, want.Select(context.Background(), series.SelectOptions{}, everything))
	if !reflect.DeepEqual(got, wanted) || len(got) == 0 {
		t.Errorf("%d to %d: %d series, the store has %d", mint, maxt, len(got), len(wanted))
	}
	return untilMS
}

func TestServedBlocks_HaveTheSamplesOfTheStoreUpToItsHead(t *testing.T) {
	s, d, bytes := servedWorld(t)
	if _, _, err := d.Querier(startMS, math.MaxInt64); !errors.Is(err, ErrNotServed) {
		t.Errorf("before they are confirmed: %v", err)
	}
	d.confirmOf(s, bytes)
	head := s.HeadMinTime()
	for _, r := range [][2]int64{{math.MinInt64, math.MaxInt64}, {startMS + 61_000, startMS + 2*hourMS}, {startMS + 2*hourMS - 1, startMS + 2*hourMS}, {head - 60_001, head}} {
		if until := checkServed(t, d, s, r[0], r[1]); until != head {
			t.Errorf("until %d, the head begins at %d", until, head)
		}
	}
	if _, _, err := d.Querier(head, math.MaxInt64); !errors.Is(err, ErrNotServed) {
		t.Errorf("of the head: %v", err)
	}
	d.Confirm(bytes, head-1, nil) // samples before head-1 may follow, in the head
	if _, _, err := d.Querier(startMS, head); !errors.Is(err, ErrNotServed) {
		t.Errorf("blocks that reach into the head: %v", err)
	}
	d.Confirm(bytes, math.MaxInt64, nil) // an empty head
	if until := checkServed(t, d, s, startMS, head-1); until != head {
		t.Errorf("until %d, the blocks end at %d", until, head)
	}
	d.Confirm(bytes, head, errors.New("unfit"))
	if _, _, err := d.Querier(startMS, head); !errors.Is(err, ErrNotServed) {
		t.Errorf("unfit: %v", err)
	}
}

// Each change is logged once, and at the level debug each request that does not read blocks.
func TestServedBlocks_LogTellsWhereSamplesComeFrom(t *testing.T) {
	s := openWorld(t, t.TempDir(), 0)
	var log bytes.Buffer
	d := NewServedBlocks(s.opts.Dir, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer d.Close()
	logged := func(what, want string) {
		t.Helper()
		if got := log.String(); want == "" && got != "" || !strings.Contains(got, want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
		log.Reset()
	}
	d.Confirm(0, math.MaxInt64, nil)
	logged("without blocks", "")
	fill(t, s, 2, startMS, startMS+8*hourMS, 60_000)
	compact(t, s)
	size := int64(0)
	for _, b := range s.db.Load().Blocks() {
		size += b.Size()
	}
	d.confirmOf(s, size)
	logged("with blocks", "from the directory")
	d.confirmOf(s, size)
	logged("again", "")
	if err := os.Mkdir(filepath.Join(d.dir, "01JAAAAAAAAAAAAAAAAAAAAAAA"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Querier(startMS, math.MaxInt64); !errors.Is(err, ErrNotServed) {
		t.Error(err)
	}
	logged("with another block", "level=DEBUG")
}

func TestServedBlocks_DeletedSamplesAreGoneAndDeletedBlocksStayReadable(t *testing.T) {
	s, d, bytes := servedWorld(t)
	d.confirmOf(s, bytes)
	old, _, err := d.Querier(startMS, math.MaxInt64)
	if err != nil {
		t.Fatal(err)
	}
	set := old.Select(context.Background(), series.SelectOptions{}, everything)
	before := 1
	set.Next()
	m := labels.MustNewMatcher(labels.MatchRegexp, labels.MetricName, "m[1-3]|h")
	if err := s.DeleteSeries(context.Background(), startMS+hourMS/2, startMS+3*hourMS, m); err != nil {
		t.Fatal(err)
	}
	checkServed(t, d, s, startMS, math.MaxInt64)
	if err := s.CleanTombstones(); err != nil { // writes the blocks again
		t.Fatal(err)
	}
	if _, _, err := d.Querier(startMS, math.MaxInt64); !errors.Is(err, ErrNotServed) {
		t.Errorf("after other blocks have replaced them: %v", err)
	}
	before += len(rest(t, set))
	if err := old.Close(); err != nil || before < 20 {
		t.Errorf("%d series, %v", before, err)
	}
	bytes = 0
	for _, b := range s.db.Load().Blocks() {
		bytes += b.Size()
	}
	d.confirmOf(s, bytes)
	checkServed(t, d, s, startMS, math.MaxInt64)
	if err := d.Close(); err != nil || openBelow(t, s.opts.Dir) == 0 {
		t.Errorf("%v; the store has no mapping", err)
	}
	if _, _, err := d.Querier(startMS, math.MaxInt64); !errors.Is(err, ErrNotReady) {
		t.Errorf("after Close: %v", err)
	}
}

// Whatever happens to the directory, before or after its blocks were confirmed, no sample comes from it that the server
// does not have.
func TestServedBlocks_ADirectoryThatIsNotTheServersIsNotRead(t *testing.T) {
	first := func(d *ServedBlocks) string { return filepath.Join(d.dir, d.blocks[0].ULID.String()) }
	for name, breaks := range map[string]func(d *ServedBlocks) error{
		"a block is gone":   func(d *ServedBlocks) error { return os.RemoveAll(first(d)) },
		"the index is gone": func(d *ServedBlocks) error { return os.Remove(filepath.Join(first(d), "index")) },
		"the directory":     func(d *ServedBlocks) error { return os.Rename(d.dir, d.dir+"x") },
		"half a block": func(d *ServedBlocks) error {
			return os.Mkdir(filepath.Join(d.dir, "01JAAAAAAAAAAAAAAAAAAAAAAA"), 0o755)
		},
		"damaged tombstones": func(d *ServedBlocks) error {
			return os.WriteFile(filepath.Join(first(d), "tombstones"), []byte("x"), 0o600)
		},
		"out-of-order samples": func(d *ServedBlocks) error {
			return errors.Join(os.MkdirAll(filepath.Join(d.dir, "wbl"), 0o755), os.WriteFile(filepath.Join(d.dir, "wbl", "00000000"), []byte("x"), 0o600))
		},
		"another block": func(d *ServedBlocks) error {
			return os.CopyFS(filepath.Join(d.dir, "01JAAAAAAAAAAAAAAAAAAAAAAA"), os.DirFS(first(d)))
		},
		"an index of the future": func(d *ServedBlocks) error { return changeByte(filepath.Join(first(d), "index"), 4) },
		"a meta.json of the future": func(d *ServedBlocks) error {
			file := filepath.Join(first(d), "meta.json")
			text, err := os.ReadFile(file)
			return errors.Join(err, os.WriteFile(file, []byte(strings.Replace(string(text), `"version": 1`, `"version": 2`, 1)), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, _, bytes := servedWorld(t)
			d := NewServedBlocks(copyOf(t, s.opts.Dir), quiet)
			defer d.Close()
			d.confirmOf(s, bytes)
			checkServed(t, d, s, startMS, math.MaxInt64)
			if err := breaks(d); err != nil {
				t.Fatal(err)
			}
			// A confirmed block changes as a whole, or its tombstones.
			if !strings.Contains(name, "future") && !strings.Contains(name, "index") {
				if _, _, err := d.Querier(startMS, math.MaxInt64); err == nil {
					t.Error("read")
				}
			}
			again := NewServedBlocks(d.dir, quiet)
			again.confirmOf(s, bytes)
			if _, _, err := again.Querier(startMS, math.MaxInt64); !errors.Is(err, ErrNotServed) {
				t.Errorf("confirmed: %v", err)
			}
		})
	}
}

func TestServedBlocks_OverlappingBlocksAreNotRead(t *testing.T) {
	s, d, bytes := servedWorld(t)
	addBlock(t, d.dir, startMS+hourMS, startMS+hourMS+60_000)
	ids, err := d.ids()
	if err != nil || len(ids) != 4 {
		t.Fatal(ids, err)
	}
	added, err := tsdb.OpenBlock(quiet, filepath.Join(d.dir, ids[3].String()), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	bytes += added.Size()
	if err := added.Close(); err != nil {
		t.Fatal(err)
	}
	d.confirmOf(s, bytes)
	if _, _, err := d.Querier(startMS, startMS+2*hourMS); !errors.Is(err, ErrNotServed) || !strings.Contains(err.Error(), "overlap") {
		t.Error(err)
	}
	checkServed(t, d, s, startMS+2*hourMS, math.MaxInt64)
}

func changeByte(file string, at int) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	content[at] ^= 0xFF
	return os.WriteFile(file, content, 0o600)
}
