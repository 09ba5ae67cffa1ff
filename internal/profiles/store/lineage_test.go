package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// put adds the block of a directory.
func (s *fakeRemote) put(t *testing.T, dir string) *profiles.BucketBlock {
	t.Helper()
	index, err := os.ReadFile(filepath.Join(dir, block.IndexFile))
	rows, err2 := os.ReadFile(filepath.Join(dir, block.RowsFile))
	meta, err3 := block.MetaOf(index)
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = append(s.blocks, profiles.BucketBlock{
		Tenant: "t", ID: meta.ULID, Index: bytes.NewReader(index), Rows: bytes.NewReader(rows), IndexBytes: int64(len(index)), RowsBytes: int64(len(rows)),
	})
	return &s.blocks[len(s.blocks)-1]
}

// merged compacts blocks of the tenant as a compactor of the bucket does, and returns the directory.
func (s *Store) merged(t *testing.T, numbers ...int) string {
	t.Helper()
	var run []*block.Reader
	for _, n := range numbers {
		run = append(run, s.tenants["t"].blocks[n].Reader)
	}
	dir := t.TempDir()
	if err := Merge(context.Background(), dir, ulid.Make(), run); err != nil {
		t.Fatal(err)
	}
	return dir
}

// rows returns how often a view has each profile, and its warnings.
func (s *Store) rows(t *testing.T) (map[uint64]int, []error) {
	t.Helper()
	v, err := s.View(context.Background(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	counts := map[uint64]int{}
	for _, src := range v.Sources {
		for row := range src.Rows() {
			id, err := src.ID(row)
			if err != nil {
				t.Fatal(err)
			}
			counts[binary.BigEndian.Uint64(id[:])-1]++
		}
	}
	return counts, v.Warnings
}

// once fails unless there are the first n profiles, once each.
func once(t *testing.T, counts map[uint64]int, n int) {
	t.Helper()
	if len(counts) != n {
		t.Errorf("%v, want %d profiles", counts, n)
	}
	for id, count := range counts {
		if count != 1 {
			t.Errorf("profile %d is counted %d times", id, count)
		}
	}
}

// empty returns a store without blocks of its own that reads from far.
func empty(t *testing.T, far *fakeRemote, change ...func(*Options)) *Store {
	t.Helper()
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery = far, time.Hour
		s.now = far.now
		for _, f := range change {
			f(&s.opts)
		}
		s.remotes = newRemotes(s)
	})
	s.awaitList()
	return s
}

func TestView_TwoCompactionsOfTheSameBlocksAreReadOnce(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	far.put(t, from.merged(t, 0, 1, 2))
	far.put(t, from.merged(t, 2, 1, 0))
	s := empty(t, far)
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) > 0 {
		t.Error(warnings)
	}
	if n := s.remotes.at(t, far, time.Now()); n != 5 {
		t.Fatalf("%d blocks", n)
	}
	if n := s.remotes.at(t, far, time.Now().Add(100*time.Hour)); n != 1 {
		t.Errorf("%d blocks are left", n)
	}
	counts, _ = s.rows(t)
	once(t, counts, 3)
}

// failing is an index of which reads fail once fails is set.
type failing struct {
	io.ReaderAt
	fails atomic.Bool
}

// ReadAt implements io.ReaderAt.
func (f *failing) ReadAt(p []byte, off int64) (int, error) {
	if f.fails.Load() {
		return 0, io.ErrUnexpectedEOF
	}
	return f.ReaderAt.ReadAt(p, off)
}

func TestView_ADuplicateIsReadIfTheOtherCannotBeOpened(t *testing.T) {
	from, far := three(t, nil)
	first, second := from.merged(t, 0, 1, 2), from.merged(t, 0, 1, 2)
	b := far.put(t, first) // the smaller ULID
	broken := &failing{ReaderAt: b.Index}
	b.Index = broken
	far.put(t, second)
	s := empty(t, far)
	broken.fails.Store(true)
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrUnavailable) {
		t.Error(warnings)
	}
}

func TestView_ReplacedBlocksOnTheDiskAreReadFromThere(t *testing.T) {
	const years = 365 * 24 * time.Hour
	s, far := three(t, func(o *Options) { o.Retention = 20 * years })
	far.put(t, s.merged(t, 0, 1, 2))
	ctx := context.Background()
	if err := s.remotes.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	counts, _ := s.rows(t)
	if once(t, counts, 3); s.metrics.remoteOpened.Get() != 0 {
		t.Error("the block in the bucket was read")
	}
	if replaced, err := s.Replaced("t", s.tenants["t"].blocks[0].Meta().ULID); !replaced || err != nil {
		t.Errorf("the first block is to be uploaded: %v %v", replaced, err)
	}
	if replaced, err := s.Replaced("t", ulid.Make()); replaced || err != nil {
		t.Errorf("an unknown block: %v %v", replaced, err)
	}
	// The bucket has no copy of the blocks, but one that replaces them: they may leave the disk.
	tenant := s.tenants["t"]
	tenant.flushMu.Lock()
	tenant.replace(tenant.blocks[:1], nil)
	tenant.flushMu.Unlock()
	counts, _ = s.rows(t)
	if once(t, counts, 3); s.metrics.remoteOpened.Get() != 1 {
		t.Error("the block in the bucket was not read")
	}
	far.clock.Store(time.Now().Add(30 * years).UnixNano())
	if err := tenant.retain(); err != nil || tenant.count() != 0 {
		t.Errorf("%v, %d blocks are on disk", err, tenant.count())
	}
	counts, _ = s.rows(t)
	once(t, counts, 3)
}

// A server compacts two blocks, before it sees a block in the bucket that was compacted from these two and a third, which has left the disk.
func TestView_ACompactionOnTheDiskThatTheBucketHasTooIsReadOnce(t *testing.T) {
	ctx := context.Background()
	s, far := three(t, nil)
	dir := s.merged(t, 0, 1, 2)
	tenant := s.tenants["t"]
	tenant.flushMu.Lock()
	run, third := tenant.blocks[:2], tenant.blocks[2:]
	err := tenant.compactRun(ctx, run)
	tenant.replace(third, nil)
	tenant.flushMu.Unlock()
	if err != nil || tenant.count() != 1 {
		t.Fatal(err, tenant.count())
	}
	b := far.put(t, dir)
	broken := &failing{ReaderAt: b.Index}
	b.Index = broken
	if err := s.remotes.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) > 0 {
		t.Error(warnings)
	}
	if replaced, err := s.Replaced("t", tenant.blocks[0].Meta().ULID); !replaced || err != nil {
		t.Errorf("the block on the disk is to be uploaded: %v, %v", replaced, err)
	}
	far.blocks = nil // the block is closed
	if err := s.remotes.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	far.put(t, dir).Index = broken
	if err := s.remotes.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	broken.fails.Store(true)
	counts, warnings = s.rows(t)
	if once(t, counts, 2); len(warnings) != 1 {
		t.Errorf("with a block in the bucket that cannot be opened: %v", warnings)
	}
}

func TestCompact_LeavesOutBlocksThatTheBucketHasReplaced(t *testing.T) {
	ctx := context.Background()
	s, far := three(t, func(o *Options) { o.Retention, o.blockSpan = -1, 365*24*time.Hour })
	far.put(t, s.merged(t, 0, 1))
	p := numbered(3) // with the fourth block there are enough
	p.TimeNS += int64(3 * time.Hour)
	if err := errors.Join(s.remotes.refresh(ctx), s.Append(ctx, "t", []profiles.RawProfile{p}), s.Flush(ctx), s.Compact(ctx)); err != nil {
		t.Fatal(err)
	}
	if n := s.tenants["t"].count(); n != 4 {
		t.Errorf("%d blocks are on disk", n)
	}
	counts, _ := s.rows(t)
	once(t, counts, 4)
	far.mu.Lock()
	far.blocks = nil
	far.mu.Unlock()
	if err := errors.Join(s.remotes.refresh(ctx), s.Compact(ctx)); err != nil || s.tenants["t"].count() != 1 {
		t.Errorf("%v, %d blocks are on disk", err, s.tenants["t"].count())
	}
}

// A compactor may be killed while it uploads the index, in a bucket where part of an object is visible.
func TestRemotes_ACompactedBlockWithHalfAnIndexReplacesNothing(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	b := far.put(t, from.merged(t, 0, 1, 2))
	b.IndexBytes -= 40
	s := empty(t, far)
	counts, warnings := s.rows(t)
	if once(t, counts, 3); len(warnings) != 1 || !errors.Is(warnings[0], profiles.ErrCorrupt) || !strings.Contains(warnings[0].Error(), b.ID.String()) {
		t.Error(warnings)
	}
	for i := range 3 {
		if n := s.remotes.at(t, far, time.Now().Add(time.Duration(i)*100*time.Hour)); n != 4 {
			t.Errorf("%d blocks are left", n)
		}
	}
}

func TestView_WarnsOfBlocksWithProfilesInCommon(t *testing.T) {
	from, far := three(t, nil)
	far.put(t, from.merged(t, 0, 1))
	far.put(t, from.merged(t, 1, 2))
	s := empty(t, far)
	counts, warnings := s.rows(t)
	if len(counts) != 3 || len(warnings) != 2 || !errors.Is(warnings[0], errOverlap) || s.metrics.remoteOverlaps.Get() != 2 {
		t.Errorf("%v %v", counts, warnings)
	}
}
