package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
)

// fakeRemote is a Remote of given blocks. Listing may fail.
type fakeRemote struct {
	mu     sync.Mutex
	err    error
	blocks []profiles.BucketBlock
	marks  int          // calls of Mark and Unmark
	fixed  bool         // these calls fail
	clock  atomic.Int64 // time of the store in ns; 0: the real one
}

// now is the clock of a store.
func (s *fakeRemote) now() time.Time {
	if ns := s.clock.Load(); ns != 0 {
		return time.Unix(0, ns)
	}
	return time.Now()
}

// Blocks implements Remote.
func (s *fakeRemote) Blocks(context.Context) ([]profiles.BucketBlock, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.blocks, s.err
}

// Mark implements Remote.
func (s *fakeRemote) Mark(_ context.Context, _ string, id ulid.ULID, at time.Time, reason string) error {
	return s.mark(id, at, reason)
}

// Unmark implements Remote.
func (s *fakeRemote) Unmark(_ context.Context, _ string, id ulid.ULID) error {
	return s.mark(id, time.Time{}, "")
}

func (s *fakeRemote) mark(id ulid.ULID, at time.Time, reason string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fixed {
		return io.ErrUnexpectedEOF
	}
	s.marks++
	s.setMark(id, at, reason)
	return nil
}

// setMark changes the mark of a block. s.mu is held.
func (s *fakeRemote) setMark(id ulid.ULID, at time.Time, reason string) {
	s.blocks = slices.Clone(s.blocks)
	for i := range s.blocks {
		if b := &s.blocks[i]; b.ID == id {
			b.Marked, b.MarkReason = at, reason
		}
	}
}

// markedByOther changes the mark of the block with a number, as another process does.
func (s *fakeRemote) markedByOther(n int, at time.Time, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setMark(s.blocks[n].ID, at, reason)
}

// written returns the number of calls of Mark and Unmark.
func (s *fakeRemote) written() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.marks
}

// Delete implements Remote.
func (s *fakeRemote) Delete(_ context.Context, _ string, id ulid.ULID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = slices.DeleteFunc(slices.Clone(s.blocks), func(b profiles.BucketBlock) bool { return b.ID == id })
	return s.err
}

// take copies the tenant's blocks.
func (s *fakeRemote) take(t *testing.T, dir string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "profiles", "t", "*", "index"))
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = nil
	for _, path := range found {
		index, err := os.ReadFile(path)
		rows, err2 := os.ReadFile(filepath.Join(filepath.Dir(path), "profiles.parquet"))
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		s.blocks = append(s.blocks, profiles.BucketBlock{
			Tenant: "t", ID: ulid.MustParseStrict(filepath.Base(filepath.Dir(path))), Index: bytes.NewReader(index), Rows: bytes.NewReader(rows),
			IndexBytes: int64(len(index)), RowsBytes: int64(len(rows)),
		})
	}
}

// three returns a store of three old blocks, hours apart, with an empty remote.
func three(t *testing.T, change func(*Options)) (*Store, *fakeRemote) {
	t.Helper()
	far, ctx := &fakeRemote{}, context.Background()
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery, s.opts.Retention = far, time.Hour, time.Hour
		s.now = far.now
		if change != nil {
			change(&s.opts)
		}
		s.remotes = newRemotes(s)
	})
	for n := range uint64(3) {
		p := numbered(n)
		p.TimeNS += int64(n) * int64(time.Hour)
		if err := errors.Join(s.Append(ctx, "t", []profiles.RawProfile{p}), s.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitList()
	return s, far
}

// awaitList waits until the remote has been listed.
func (s *Store) awaitList() {
	for {
		if _, _, err := s.remotes.list("t"); err == nil {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (s *Store) localBlocks() int {
	t := s.tenants["t"]
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.blocks)
}

func TestRetain_ExpiredBlockIsRemovedOnceShipped(t *testing.T) {
	ctx := context.Background()
	s, far := three(t, nil)
	retain := func(want int) {
		t.Helper()
		if err := errors.Join(s.remotes.refresh(ctx), s.tenants["t"].retain()); err != nil {
			t.Fatal(err)
		}
		if got := s.localBlocks(); got != want {
			t.Fatalf("%d blocks are on disk, want %d", got, want)
		}
		if counts := stored(t, s); len(counts) != 3 || counts[0] != 1 || counts[1] != 1 || counts[2] != 1 {
			t.Fatalf("%v", counts)
		}
	}
	retain(3)
	far.take(t, s.opts.Dir)
	whole := far.blocks
	cut := whole[0] // an incomplete upload
	cut.RowsBytes--
	far.blocks = []profiles.BucketBlock{cut, whole[1]}
	retain(2)
	far.blocks = whole
	retain(0)
}

func TestRetain_SizeRemovesShippedBlocksFirst(t *testing.T) {
	ctx := context.Background()
	s, far := three(t, func(o *Options) { o.Retention = -1 })
	far.take(t, s.opts.Dir)
	far.blocks = far.blocks[2:] // the newest
	size := s.tenants["t"].blocks[0].Bytes()
	for limit, want := range map[int64]int{size * 7 / 2: 3, size * 5 / 2: 2} {
		s.opts.RetentionBytes = limit
		if err := errors.Join(s.remotes.refresh(ctx), s.tenants["t"].retain()); err != nil {
			t.Fatal(err)
		}
		if limit < size*3 && (s.localBlocks() != want || len(stored(t, s)) != 3 || s.metrics.lost.Get() != 0) {
			t.Errorf("%d blocks, %v, %d lost", s.localBlocks(), stored(t, s), s.metrics.lost.Get())
		}
	}
	s.opts.RetentionBytes = size * 3 / 2
	if err := s.tenants["t"].retain(); err != nil {
		t.Fatal(err)
	}
	if s.localBlocks() != 1 || len(stored(t, s)) != 2 || s.metrics.lost.Get() != 1 {
		t.Errorf("%d blocks, %v, %d lost", s.localBlocks(), stored(t, s), s.metrics.lost.Get())
	}
}

func TestView_FailedBucketListKeepsTheLastOne(t *testing.T) {
	ctx, far := context.Background(), &fakeRemote{err: errors.New("no route")}
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery = far, time.Hour
		s.remotes = newRemotes(s)
	})
	v, err := s.View(context.Background(), "t", 0, timeMax)
	if err != nil || len(v.Sources) != 0 || len(v.Warnings) != 1 || !errors.Is(v.Warnings[0], profiles.ErrUnavailable) {
		t.Fatalf("%+v, %v", v, err)
	}
	v.Close()
	far.mu.Lock()
	far.err, far.blocks = nil, full.blocks
	far.mu.Unlock()
	if err := s.remotes.refresh(ctx); err != nil || len(stored(t, s)) != 3 {
		t.Fatal(err)
	}
	far.mu.Lock()
	far.err = errors.New("no route again")
	far.mu.Unlock()
	if err := s.remotes.refresh(ctx); err == nil || len(stored(t, s)) != 3 {
		t.Fatal(err)
	}
}

func TestView_OpensRemoteBlocksOfTheRangeUpToTheLimit(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery, s.opts.RemoteOpenMax = full, time.Hour, 2
		s.remotes = newRemotes(s)
	})
	s.awaitList()
	at := numbered(0).TimeNS
	for range 3 {
		v, err := s.View(context.Background(), "t", at, at+int64(time.Minute))
		if err != nil || len(v.Sources) != 1 {
			t.Fatalf("%+v, %v", v, err)
		}
		v.Close()
	}
	if opened := s.metrics.remoteOpened.Get(); opened != 1 {
		t.Errorf("%d blocks were opened", opened)
	}
	if _, err := s.View(context.Background(), "t", 0, timeMax); !errors.Is(err, profiles.ErrLimit) {
		t.Error(err)
	}
	for n := range 3 {
		v, err := s.View(context.Background(), "t", at+int64(n)*int64(time.Hour), at+int64(n)*int64(time.Hour)+int64(time.Minute))
		if err != nil || len(v.Sources) != 1 {
			t.Fatalf("%+v, %v", v, err)
		}
		v.Close()
	}
	if n := len(s.remotes.open); n != 2 {
		t.Errorf("%d blocks are open", n)
	}
}

// stalling is an index whose reads block once it stalls.
type stalling struct {
	*bytes.Reader
	stalled atomic.Bool
	release chan struct{}
}

// ReadAt implements io.ReaderAt.
func (s *stalling) ReadAt(p []byte, off int64) (int, error) {
	if s.stalled.Load() {
		<-s.release
		return 0, errors.New("timeout")
	}
	return s.Reader.ReadAt(p, off)
}

func TestView_StalledBucketTakesHalfOfTheTimeout(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	release := make(chan struct{})
	stuck := make([]*stalling, len(full.blocks))
	for i, b := range full.blocks {
		stuck[i] = &stalling{Reader: b.Index.(*bytes.Reader), release: release}
		full.blocks[i].Index = stuck[i]
	}
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery = full, time.Hour
		s.remotes = newRemotes(s)
	})
	s.awaitList()
	at := numbered(0).TimeNS
	first, err := s.View(context.Background(), "t", at, at) // this block is open
	if err != nil || len(first.Sources) != 1 {
		t.Fatalf("%+v %v", first, err)
	}
	first.Close()
	for _, b := range stuck {
		b.stalled.Store(true)
	}
	for range 3 { // views that timed out do not delay later ones
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		v, err := s.View(ctx, "t", 0, timeMax)
		if err != nil || ctx.Err() != nil || len(v.Sources) != 1 || len(v.Warnings) != 2 || !errors.Is(v.Warnings[0], profiles.ErrUnavailable) {
			t.Fatalf("%+v %v %v", v, err, ctx.Err())
		}
		v.Close()
		cancel()
	}
	gone, cancel := context.WithCancel(context.Background())
	go cancel()
	if v, err := s.View(gone, "t", 0, timeMax); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled request: %+v %v", v, err)
	}
	for _, b := range stuck {
		b.stalled.Store(false)
	}
	close(release)
	if counts := stored(t, s); len(counts) != 3 {
		t.Errorf("once it responds: %v", counts)
	}
}
