package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
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
		s.opts.Remote, s.opts.RemoteEvery, s.opts.remoteOpenMax = full, time.Hour, 2
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

// A block whose size cannot be read concerns the queries of its tenant only.
func TestView_BlockWithoutSizesIsAWarningOfItsTenant(t *testing.T) {
	denied := errors.New("403 Forbidden")
	blocks, id := bucketOf(t), ulid.Make()
	s := idleRemotes(t, &listed{blocks: append(blocks, profiles.BucketBlock{Tenant: "u", ID: id, Unread: denied})}, nil)
	s.awaitList()
	for tenant, want := range map[string]int{"t": 0, "u": 1} {
		v, err := s.View(t.Context(), tenant, 0, timeMax)
		if err != nil || len(v.Warnings) != want || len(v.Sources) != 3*(1-want) {
			t.Fatalf("%s: %+v, %v", tenant, v, err)
		}
		for _, w := range v.Warnings {
			if !errors.Is(w, profiles.ErrUnavailable) || !errors.Is(w, denied) || !strings.Contains(w.Error(), id.String()) {
				t.Error(w)
			}
		}
		v.Close()
	}
}

func TestUnreadable_ManyBadBlocksAreCounted(t *testing.T) {
	for _, bad := range []int{badMax, badMax + 3} {
		l := &remoteList{blocks: map[ulid.ULID]*remoteBlock{}}
		for range bad {
			id := ulid.Make()
			l.blocks[id] = &remoteBlock{bad: fmt.Errorf("%w: %s", profiles.ErrCorrupt, id)}
		}
		warnings := l.unreadable(local{}, nil)
		if last := warnings[len(warnings)-1]; len(warnings) != min(bad, badMax+1) || bad > badMax && !strings.Contains(last.Error(), ": 3 more profile blocks") {
			t.Errorf("%d blocks: %d warnings, %v", bad, len(warnings), last)
		}
	}
}

// The mark may be of another process and have a reason that this one does not know.
func TestClean_BlockWhoseMarkCannotBeReadStays(t *testing.T) {
	s, far := three(t, func(o *Options) { o.RemoteRetention = 10 * time.Hour }) // blocks at 0, 1 and 2 h
	far.take(t, s.opts.Dir)
	newest := time.Unix(0, s.tenants["t"].blocks[2].Meta().MaxNS)
	far.blocks[0].MarkUnread = true
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 3}, {s.opts.RemoteDeleteDelay, 2}, {1000 * time.Hour, 1}, {1100 * time.Hour, 1}} {
		if n := s.remotes.at(t, far, newest.Add(10*time.Hour+step.after)); n != step.want {
			t.Errorf("after %s %d blocks are left, want %d", step.after, n, step.want)
		}
	}
	if _, marked := far.reasons()[far.blocks[0].ID]; marked {
		t.Error("the mark was written again")
	}
	far.blocks[0].MarkUnread = false
	if n := s.remotes.at(t, far, newest.Add(1200*time.Hour)); n != 0 {
		t.Errorf("%d blocks are left", n)
	}
}

// The rows of a block that cannot be read are not missing if another block has them: a compactor has merged the block, and has
// not deleted it yet.
func TestView_ReplacedBlockThatCannotBeReadIsNoWarning(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	parents := slices.Clone(far.blocks)
	merged := *far.put(t, from.merged(t, 0, 1, 2))
	unread := profiles.BucketBlock{Tenant: "t", ID: parents[1].ID, Unread: errors.New("403 Forbidden")}
	cut := parents[1]
	cut.Index = strings.NewReader(strings.Repeat("x", int(cut.IndexBytes)))
	damaged := merged
	damaged.Index = strings.NewReader("")
	for name, test := range map[string]struct {
		blocks         []profiles.BucketBlock
		rows, warnings int
	}{
		"merged":                          {[]profiles.BucketBlock{parents[0], unread, parents[2], merged}, 3, 0},
		"corrupt and merged":              {[]profiles.BucketBlock{parents[0], cut, parents[2], merged}, 3, 0},
		"not merged":                      {[]profiles.BucketBlock{parents[0], unread, parents[2]}, 2, 1},
		"merged into an unreadable block": {[]profiles.BucketBlock{parents[0], unread, parents[2], damaged}, 2, 2},
	} {
		s := idleRemotes(t, &listed{blocks: test.blocks}, nil)
		s.awaitList()
		if rows, warnings := s.rows(t); len(rows) != test.rows || len(warnings) != test.warnings {
			t.Errorf("%s: %v, %v", name, rows, warnings)
		}
	}
}

// bytesOf returns the content of a file of a fake remote.
func bytesOf(t *testing.T, at io.ReaderAt) []byte {
	t.Helper()
	r := at.(*bytes.Reader)
	b := make([]byte, r.Size())
	if _, err := r.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return b
}

// The index of a bucket has sizes and metas, which servers do not request then. If they are wrong, no memory is allocated
// for them, a warning names the block, the other blocks are read, and the next list reads the true ones.
func TestView_WrongSizesInTheIndexOfTheBucketAreAWarningUntilTheNextList(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	other, err := block.Head(bytesOf(t, full.blocks[0].Index))
	if err != nil {
		t.Fatal(err)
	}
	for name, lie := range map[string]func(b *profiles.BucketBlock){
		"an index that is longer by a byte":    func(b *profiles.BucketBlock) { b.IndexBytes++ },
		"an index that is shorter by a byte":   func(b *profiles.BucketBlock) { b.IndexBytes-- },
		"an index of a byte":                   func(b *profiles.BucketBlock) { b.IndexBytes = 1 },
		"an index of 200 MiB":                  func(b *profiles.BucketBlock) { b.IndexBytes = 200 << 20 },
		"the largest index":                    func(b *profiles.BucketBlock) { b.IndexBytes = block.IndexMax },
		"more than the largest index":          func(b *profiles.BucketBlock) { b.IndexBytes = block.IndexMax + 1 },
		"an index whose size overflows":        func(b *profiles.BucketBlock) { b.IndexBytes = math.MaxInt64 },
		"rows that are longer":                 func(b *profiles.BucketBlock) { b.RowsBytes++ },
		"rows whose size overflows":            func(b *profiles.BucketBlock) { b.RowsBytes = math.MaxInt64 },
		"the head of another block":            func(b *profiles.BucketBlock) { b.Head = bytes.Clone(other) },
		"a head that is cut":                   func(b *profiles.BucketBlock) { b.Head = b.Head[:len(b.Head)-1] },
		"a head of a byte":                     func(b *profiles.BucketBlock) { b.Head = b.Head[:1] },
		"a head that is not that of the index": func(b *profiles.BucketBlock) { b.Head = append(bytes.Clone(b.Head), 0xff) },
	} {
		t.Run(name, func(t *testing.T) {
			doubts, lying := make(chan int, 100), &fakeRemote{}
			for i, b := range full.blocks {
				head, err := block.Head(bytesOf(t, b.Index))
				if err != nil {
					t.Fatal(err)
				}
				b.Head, b.Doubt = bytes.Clone(head), func() { doubts <- i }
				if i == 1 {
					lie(&b)
				}
				lying.blocks = append(lying.blocks, b)
			}
			s := openTest(t, t.TempDir(), func(s *Store) {
				s.opts.Remote, s.opts.RemoteEvery = lying, time.Hour
				s.remotes = newRemotes(s)
			})
			s.awaitList()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range 2 {
				v, err := s.View(context.Background(), "t", 0, timeMax)
				if err != nil {
					t.Fatal(err)
				}
				if len(v.Sources) != 2 || len(v.Warnings) != 1 || !strings.Contains(v.Warnings[0].Error(), "block bucket/"+full.blocks[1].ID.String()) {
					t.Errorf("%d blocks, warnings %v", len(v.Sources), v.Warnings)
				}
				v.Close()
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
				t.Errorf("%d MiB were allocated", used>>20)
			}
			if len(doubts) == 0 {
				t.Fatal("the sizes were not doubted")
			}
			for len(doubts) > 0 {
				if i := <-doubts; i != 1 {
					t.Errorf("block %d is doubted", i)
				}
			}
			lying.mu.Lock()
			lying.blocks = full.blocks // as the reader of the bucket finds them
			lying.mu.Unlock()
			if err := s.remotes.refresh(context.Background()); err != nil {
				t.Fatal(err)
			}
			if counts := stored(t, s); len(counts) != 3 {
				t.Errorf("after the next list: %v", counts)
			}
		})
	}
}

// A size in the index of the bucket can be more than the memory for queries.
func TestView_IndexThatExceedsTheMemoryIsNamed(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	doubts := 0
	lying := &fakeRemote{blocks: full.blocks[:1:1]}
	head, err := block.Head(bytesOf(t, full.blocks[0].Index))
	if err != nil {
		t.Fatal(err)
	}
	lying.blocks[0].Head, lying.blocks[0].IndexBytes, lying.blocks[0].Doubt = head, 100<<20, func() { doubts++ }
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery = lying, time.Hour
		s.remotes = newRemotes(s)
		s.memory.max = 50 << 20
	})
	s.awaitList()
	if _, err := s.View(context.Background(), "t", 0, timeMax); !errors.Is(err, profiles.ErrLimit) || !strings.Contains(err.Error(), "the largest with 104857600 bytes of block bucket/"+lying.blocks[0].ID.String()) || doubts != 1 {
		t.Errorf("%v, doubted %d times", err, doubts)
	}
}
