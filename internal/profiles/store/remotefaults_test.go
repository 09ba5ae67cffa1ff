package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// listed is a Remote of a list of blocks, which records deletions. Marks have no effect.
type listed struct {
	mu      sync.Mutex
	blocks  []profiles.BucketBlock
	onList  func()
	fails   error // of Delete
	deleted []ulid.ULID
	calls   int // of Delete
}

// Blocks implements Remote.
func (l *listed) Blocks(context.Context) ([]profiles.BucketBlock, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.onList != nil {
		l.onList()
	}
	return l.blocks, nil
}

// Mark implements Remote.
func (l *listed) Mark(context.Context, string, ulid.ULID, time.Time, string) error { return nil }

// Unmark implements Remote.
func (l *listed) Unmark(context.Context, string, ulid.ULID) error { return nil }

// Delete implements Remote.
func (l *listed) Delete(_ context.Context, _ string, id ulid.ULID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.calls++; l.fails != nil {
		return l.fails
	}
	l.deleted = append(l.deleted, id)
	return nil
}

// counted is a file whose reads are counted.
type counted struct {
	io.ReaderAt
	mu    sync.Mutex
	reads int
}

// ReadAt implements io.ReaderAt.
func (c *counted) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	c.reads++
	c.mu.Unlock()
	return c.ReaderAt.ReadAt(p, off)
}

func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads
}

// bucketOf returns the blocks of a bucket with three profiles, hours apart.
func bucketOf(t *testing.T) []profiles.BucketBlock {
	t.Helper()
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	return far.blocks
}

// idleRemotes returns a store that lists the blocks of a bucket once, when it is opened.
func idleRemotes(t *testing.T, far Remote, change func(*Store)) *Store {
	t.Helper()
	return openTest(t, t.TempDir(), func(s *Store) {
		s.every, s.opts.Remote, s.opts.RemoteEvery = time.Hour, far, time.Hour
		if change != nil {
			change(s)
		}
		s.remotes = newRemotes(s)
	})
}

// eventually waits until ok.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it did not happen")
		}
	}
}

func TestRefresh_LimitOfBlocksAndNamesOfTenants(t *testing.T) {
	far := &listed{blocks: make([]profiles.BucketBlock, remoteMax)} // of a tenant without a name
	s := &Store{opts: Options{Remote: far}, logger: quiet, uptime: func() time.Duration { return 0 }, now: time.Now, metrics: newMetrics(nil)}
	r := newRemotes(s)
	if _, _, err := r.list("t"); !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("before the first list: %v", err)
	}
	if err := r.refresh(t.Context()); err != nil || len(r.all) != 0 || r.lists != 1 {
		t.Errorf("as many as the limit: %v, %d tenants, %d lists", err, len(r.all), r.lists)
	}
	far.blocks = append(far.blocks, profiles.BucketBlock{})
	if err := r.refresh(t.Context()); !errors.Is(err, profiles.ErrLimit) || !strings.Contains(err.Error(), "there are 100001 blocks") || r.lists != 1 {
		t.Errorf("one past the limit: %v", err)
	}
	if _, number, err := r.list("t"); err != nil || number != 1 {
		t.Errorf("the last list is lost: %v", err)
	}
	if known, number, err := (*remotes)(nil).list("t"); known != nil || number != 0 || err != nil {
		t.Errorf("without a bucket: %v, %d, %v", known, number, err)
	}
}

func TestRefresh_MetasAreReadOncePerVersion(t *testing.T) {
	blocks := bucketOf(t)
	files := make([]*counted, len(blocks))
	for i := range blocks {
		files[i] = &counted{ReaderAt: blocks[i].Index}
		blocks[i].Index = files[i]
	}
	far := &listed{blocks: blocks}
	s := &Store{opts: Options{Remote: far}, logger: quiet, uptime: func() time.Duration { return 0 }, now: time.Now, metrics: newMetrics(nil)}
	r := newRemotes(s)
	reads := func(what string, want ...int) {
		t.Helper()
		if err := r.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := []int{files[0].count(), files[1].count(), files[2].count()}; !slices.Equal(got, want) {
			t.Errorf("%s: %v reads, want %v", what, got, want)
		}
	}
	reads("first list", 1, 1, 1)
	reads("same list", 1, 1, 1)
	changed := slices.Clone(blocks)
	changed[0].IndexBytes--
	changed[1].RowsBytes++ // not the size in its meta: it is read again each time
	far.blocks = changed
	reads("other sizes", 2, 2, 1)
	reads("the same other sizes", 2, 3, 1)
	if got := r.metas("t"); len(got) != 2 {
		t.Errorf("%d metas", len(got))
	}
	far.blocks = blocks
	reads("as before", 3, 4, 1)
	if got := r.metas("t"); len(got) != 3 || r.metas("u") != nil {
		t.Errorf("%d metas", len(got))
	}
}

func TestRefresh_CancelledOneKeepsTheListAndReadsAgain(t *testing.T) {
	far := &listed{blocks: bucketOf(t)}
	s := &Store{opts: Options{Remote: far}, logger: quiet, uptime: func() time.Duration { return 0 }, now: time.Now, metrics: newMetrics(nil)}
	r := newRemotes(s)
	ctx, cancel := context.WithCancel(t.Context())
	far.onList = cancel
	if err := r.refresh(ctx); !errors.Is(err, context.Canceled) || r.lists != 0 || r.blocks != nil {
		t.Errorf("%v, %d lists", err, r.lists)
	}
	far.onList = nil
	if err := r.refresh(t.Context()); err != nil || len(r.metas("t")) != 3 {
		t.Errorf("%v, %d metas", err, len(r.metas("t")))
	}
	for _, m := range r.metas("t") {
		if m.Rows != 1 {
			t.Errorf("a meta that was not read: %+v", m)
		}
	}
}

func TestReadMeta_FaultsOfABlock(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	plain := far.blocks[0]
	merged := *far.put(t, from.merged(t, 0, 1, 2))
	index := make([]byte, merged.IndexBytes)
	if _, err := merged.Index.ReadAt(index, 0); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		block  profiles.BucketBlock
		change func(b *profiles.BucketBlock)
		want   error
		text   string
	}{
		"whole":               {plain, func(*profiles.BucketBlock) {}, nil, ""},
		"merged":              {merged, func(*profiles.BucketBlock) {}, nil, ""},
		"head is known":       {merged, func(b *profiles.BucketBlock) { b.Head, b.Index = index, nil }, nil, ""},
		"other ID":            {plain, func(b *profiles.BucketBlock) { b.ID[0]++ }, profiles.ErrCorrupt, "its meta has ULID"},
		"fewer rows":          {plain, func(b *profiles.BucketBlock) { b.RowsBytes-- }, profiles.ErrCorrupt, "bytes of rows, want"},
		"shorter than listed": {plain, func(b *profiles.BucketBlock) { b.IndexBytes++ }, profiles.ErrUnavailable, "EOF"},
		"no index":            {plain, func(b *profiles.BucketBlock) { b.IndexBytes = 4 }, profiles.ErrCorrupt, ""},
		"merged, cut":         {merged, func(b *profiles.BucketBlock) { b.IndexBytes-- }, profiles.ErrCorrupt, "its index is cut short"},
		"plain, cut":          {plain, func(b *profiles.BucketBlock) { b.IndexBytes-- }, nil, ""}, // it replaces nothing, so its end is not read
	} {
		b := &remoteBlock{BucketBlock: c.block}
		c.change(&b.BucketBlock)
		b.readMeta()
		if (b.bad == nil) != (c.want == nil) || c.want != nil && (!errors.Is(b.bad, c.want) || !strings.Contains(b.bad.Error(), c.text) || !strings.HasPrefix(b.bad.Error(), "block bucket/"+b.ID.String())) {
			t.Errorf("%s: %v", name, b.bad)
		}
		if b.Head != nil || c.want == nil && b.meta.ULID != b.ID {
			t.Errorf("%s: the head is kept, or the meta is lost", name)
		}
	}
	// A long index is not read whole: its end is read on its own.
	long := make([]byte, block.HeadBytes+100)
	copy(long[len(long)-block.TailBytes:], index[len(index)-block.TailBytes:])
	b := &remoteBlock{BucketBlock: profiles.BucketBlock{Index: bytes.NewReader(long), IndexBytes: int64(len(long))}}
	if err := b.readTail(long[:block.HeadBytes]); err != nil {
		t.Errorf("long index: %v", err)
	}
	b.IndexBytes--
	if err := b.readTail(long[:block.HeadBytes]); !errors.Is(err, profiles.ErrCorrupt) {
		t.Errorf("long index, cut: %v", err)
	}
	b.IndexBytes += 2
	if err := b.readTail(long[:block.HeadBytes]); !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("long index that ends early: %v", err)
	}
}

func TestLocal_HasBlocksAndAllTheirParents(t *testing.T) {
	id := func(n byte) [16]byte { return [16]byte{n} }
	disk := local{ids: map[ulid.ULID]bool{id(1): true, id(2): true}, parents: map[ulid.ULID]bool{id(3): true}, writing: id(4)}
	for name, c := range map[string]struct {
		meta block.Meta
		want bool
	}{
		"on disk":          {block.Meta{ULID: id(1)}, true},
		"being written":    {block.Meta{ULID: id(4)}, true},
		"unknown":          {block.Meta{ULID: id(9)}, false},
		"a parent on disk": {block.Meta{ULID: id(9), Parents: [][16]byte{id(1)}}, true},
		"all parents":      {block.Meta{ULID: id(9), Parents: [][16]byte{id(1), id(3), id(2)}}, true},
		"one is missing":   {block.Meta{ULID: id(9), Parents: [][16]byte{id(1), id(8)}}, false},
	} {
		if got := disk.has(&c.meta); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	bad := func(n byte) *remoteBlock {
		return &remoteBlock{BucketBlock: profiles.BucketBlock{ID: id(n)}, meta: block.Meta{ULID: id(n)}, bad: errDisk}
	}
	list := &remoteList{blocks: map[ulid.ULID]*remoteBlock{id(1): bad(1), id(3): bad(3), id(4): bad(4), id(8): bad(8)}}
	if blocks, warnings := list.readable(disk), list.unreadable(disk, disk.parents); len(blocks) != 0 || len(warnings) != 1 {
		t.Errorf("%d blocks, warnings %v", len(blocks), warnings)
	}
	for n := range list.blocks {
		list.blocks[n].bad = nil
	}
	list.blocks[id(3)].meta.Parents = [][16]byte{id(1)}
	if blocks, warnings := list.readable(disk), list.unreadable(disk, disk.parents); len(blocks) != 1 || blocks[0].ID != id(8) || len(warnings) != 0 {
		t.Errorf("%d blocks, warnings %v", len(blocks), warnings)
	}
}

func TestReplacedBy_ParentsAndDuplicatesOfReadableBlocks(t *testing.T) {
	id := func(n byte) [16]byte { return [16]byte{n} }
	of := func(n byte, level uint64, minNS, maxNS int64, parents ...[16]byte) *remoteBlock {
		return &remoteBlock{BucketBlock: profiles.BucketBlock{ID: id(n)}, meta: block.Meta{ULID: id(n), Level: level, MinNS: minNS, MaxNS: maxNS, Parents: parents}}
	}
	unread := of(7, 0, 0, 0)
	unread.bad = errDisk
	merged := of(9, 1, 10, 20, id(1), id(2), id(3), id(4), id(5), id(7))
	list := &remoteList{
		blocks:     map[ulid.ULID]*remoteBlock{id(9): merged, id(1): of(1, 0, 10, 20), id(2): of(2, 1, 10, 20), id(3): of(3, 0, 9, 20), id(4): of(4, 0, 10, 21), id(7): unread},
		duplicates: map[[16]byte][][16]byte{id(9): {id(8)}},
	}
	disk := local{parents: map[ulid.ULID]bool{id(6): true}}
	got := list.replacedBy(disk, []*remoteBlock{merged}, nil)
	// A parent of the same level or of another time range is not replaced. A parent that is not listed or cannot be read is.
	if want := map[ulid.ULID]bool{id(1): true, id(5): true, id(6): true, id(7): true, id(8): true}; !maps.Equal(got, want) {
		t.Errorf("replaced %v, want %v", got, want)
	}
	if got := list.replacedBy(disk, []*remoteBlock{merged}, map[ulid.ULID]bool{id(9): true}); !maps.Equal(got, disk.parents) {
		t.Errorf("a block that cannot be opened replaces %v", got)
	}
}

func TestHas_AllFilesOfABlockAreInTheBucket(t *testing.T) {
	s, far := three(t, nil)
	far.take(t, s.opts.Dir)
	whole, tenant := far.blocks[0], s.tenants["t"]
	has := func(what string, want bool, blocks ...profiles.BucketBlock) {
		t.Helper()
		far.mu.Lock()
		far.blocks = blocks
		far.mu.Unlock()
		if err := s.remotes.refresh(t.Context()); err != nil || s.remotes.has("t", tenant.blocks[0]) != want {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	has("whole", true, whole)
	cut := whole
	cut.IndexBytes--
	has("its index is cut", false, cut)
	has("gone", false)
	other := whole
	other.Tenant = "u"
	has("another tenant", false, other)
}

func TestHold_LeastRecentlyUsedBlocksAreClosedAtTheLimits(t *testing.T) {
	far := &listed{blocks: bucketOf(t)}
	at := numbered(0).TimeNS
	var s *Store
	open := func(hours ...int64) {
		t.Helper()
		for _, h := range hours {
			v, err := s.View(t.Context(), "t", at+h*int64(time.Hour), at+h*int64(time.Hour)+int64(time.Minute))
			if err != nil || len(v.Sources) != 1 || len(v.Warnings) != 0 {
				t.Fatalf("%+v, %v", v, err)
			}
			v.Close()
		}
	}
	check := func(what string, want ...int) {
		t.Helper()
		s.remotes.mu.Lock()
		defer s.remotes.mu.Unlock()
		var got []int
		var size int64
		for _, b := range s.remotes.open {
			size += b.IndexBytes
			got = append(got, slices.IndexFunc(far.blocks, func(o profiles.BucketBlock) bool { return o.ID == b.ID }))
			if n := b.held.refs.Load(); n != 1 {
				t.Errorf("%s: %d references to an open block", what, n)
			}
		}
		if !slices.Equal(got, want) || s.remotes.bytes != size {
			t.Errorf("%s: %v are open, want %v; %d bytes, want %d", what, got, want, s.remotes.bytes, size)
		}
		for _, b := range s.remotes.blocks["t"].blocks {
			if (b.held != nil) != slices.Contains(s.remotes.open, b) {
				t.Errorf("%s: block %s has a reader although it is closed, or none", what, b.ID)
			}
		}
	}
	fresh := func(change func(*Store)) {
		t.Helper()
		s = idleRemotes(t, far, change)
		s.awaitList()
	}
	fresh(func(s *Store) { s.opts.remoteOpenMax = 2 })
	open(0, 1, 0, 2)
	check("two blocks", 0, 2)
	open(1)
	check("two blocks, another one", 2, 1)
	if n := s.metrics.remoteOpened.Get(); n != 4 {
		t.Errorf("%d blocks were opened", n)
	}
	sum := far.blocks[0].IndexBytes + far.blocks[1].IndexBytes
	fresh(func(s *Store) { s.opts.RemoteIndexBytes = sum })
	open(0, 1)
	check("as many bytes as the limit", 0, 1)
	fresh(func(s *Store) { s.opts.RemoteIndexBytes = sum - 1 })
	open(0, 1)
	check("a byte more", 1)
	fresh(func(s *Store) { s.opts.RemoteIndexBytes = 1 })
	open(0, 1, 2)
	check("one is always open", 2)
	held := s.remotes.open[0].held
	far.mu.Lock()
	far.blocks = far.blocks[:2]
	far.mu.Unlock()
	if err := s.remotes.refresh(t.Context()); err != nil || held.refs.Load() != 0 {
		t.Errorf("%v, %d references to a block that left the bucket", err, held.refs.Load())
	}
	check("a block that left the bucket")
}

func TestHold_FaultsAreNamedAndCounted(t *testing.T) {
	blocks := bucketOf(t)
	index := make([]byte, blocks[0].IndexBytes)
	if _, err := blocks[0].Index.ReadAt(index, 0); err != nil {
		t.Fatal(err)
	}
	s := idleRemotes(t, &listed{blocks: blocks}, nil)
	s.awaitList()
	for name, c := range map[string]struct {
		change       func(b *profiles.BucketBlock)
		want         error
		text         string
		corrupt, all uint64
	}{
		"whole":       {func(*profiles.BucketBlock) {}, nil, "", 0, 1},
		"large index": {func(b *profiles.BucketBlock) { b.IndexBytes = block.IndexMax + 1 }, profiles.ErrLimit, "its index has 268435457 bytes, more than 268435456", 0, 0},
		"short":       {func(b *profiles.BucketBlock) { b.IndexBytes++ }, profiles.ErrUnavailable, "index: EOF", 0, 0},
		"cut": {func(b *profiles.BucketBlock) {
			b.Index = bytes.NewReader(append(slices.Clone(index[:len(index)-60]), make([]byte, 60)...))
		}, profiles.ErrCorrupt, "", 1, 0},
	} {
		b := &remoteBlock{BucketBlock: blocks[0]}
		c.change(&b.BucketBlock)
		corrupt, opened := s.metrics.corrupt.Get(), s.metrics.remoteOpened.Get()
		h, err := s.remotes.hold(t.Context(), b)
		if (err == nil) != (c.want == nil) || c.want != nil && (!errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), b.name())) {
			t.Errorf("%s: %v", name, err)
		}
		if n, m := s.metrics.corrupt.Get()-corrupt, s.metrics.remoteOpened.Get()-opened; n != c.corrupt || m != c.all {
			t.Errorf("%s: %d are counted as corrupt, %d as opened", name, n, m)
		}
		if err != nil {
			if b.held != nil || len(s.remotes.open) > 1 {
				t.Errorf("%s: it is open", name)
			}
			continue
		}
		if again, err := s.remotes.hold(t.Context(), b); err != nil || again != h || h.refs.Load() != 3 || s.remotes.bytes != b.IndexBytes || !h.Remote() {
			t.Errorf("%s, again: %v, %d references", name, err, h.refs.Load())
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.remotes.hold(ctx, &remoteBlock{BucketBlock: blocks[1]}); !errors.Is(err, profiles.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestView_MemoryOfRemoteIndexesIsLeasedOnce(t *testing.T) {
	blocks := bucketOf(t)
	broken := &failing{ReaderAt: blocks[1].Index}
	blocks[1].Index = broken
	var sum int64
	for _, b := range blocks {
		sum += b.IndexBytes
	}
	s := idleRemotes(t, &listed{blocks: blocks}, func(s *Store) { s.opts.remoteOpenMax, s.opts.Flags = 3, hint.Flags{"MemoryBytes": "--memory"} })
	s.awaitList()
	broken.fails.Store(true)
	s.memory.max = sum - 1
	if _, err := s.View(t.Context(), "t", 0, timeMax); !errors.Is(err, profiles.ErrLimit) || !strings.Contains(err.Error(), "indexes of 3 blocks in the bucket") || s.memory.leased.Load() != 0 {
		t.Errorf("a byte less: %v, %d bytes are leased", err, s.memory.leased.Load())
	}
	s.memory.max = sum
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil || len(v.Sources) != 2 || len(v.Warnings) != 1 || !errors.Is(v.Warnings[0], profiles.ErrUnavailable) || v.Lease.bytes != sum || v.indexBytes != sum {
		t.Fatalf("%+v, %v", v, err)
	}
	held := slices.Clone(v.Sources)
	for _, src := range held {
		if n := src.(*heldBlock).refs.Load(); n != 2 {
			t.Errorf("%d references", n)
		}
	}
	if v.Close(); s.memory.leased.Load() != 0 || held[0].(*heldBlock).refs.Load() != 1 || held[1].(*heldBlock).refs.Load() != 1 {
		t.Errorf("%d bytes are leased after Close", s.memory.leased.Load())
	}
	broken.fails.Store(false)
	first, last := numbered(0).TimeNS, numbered(2).TimeNS+2*int64(time.Hour)
	for _, c := range []struct {
		minNS, maxNS int64
		sources      int
	}{{0, first - 1, 0}, {0, first, 1}, {last, last, 1}, {last + 1, timeMax, 0}, {first, last, 3}} {
		v, err := s.View(t.Context(), "t", c.minNS, c.maxNS)
		if err != nil || len(v.Sources) != c.sources || len(v.Warnings) != 0 {
			t.Errorf("%+v: %+v, %v", c, v, err)
			continue
		}
		v.Close()
	}
	if stats, err := s.Stats("t"); err != nil || stats != (profiles.Stats{OldestMS: first / 1e6, NewestMS: last / 1e6}) {
		t.Errorf("%+v, %v", stats, err)
	}
}

func TestView_DroppedBlocksAreReleased(t *testing.T) {
	s := openFaulty(t, t.TempDir(), &faults{}, nil)
	blocks := flushed(t, s, 0, 1, 2).blocks
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	v.drop(func(b *heldBlock) bool { return b == blocks[1] })
	if len(v.Sources) != 2 || v.Sources[0] != block.Source(blocks[0]) || v.Sources[1] != block.Source(blocks[2]) {
		t.Errorf("%d sources", len(v.Sources))
	}
	for i, want := range []int64{2, 1, 2} {
		if n := blocks[i].refs.Load(); n != want {
			t.Errorf("block %d has %d references", i, n)
		}
	}
}

func TestDropSymbols_AlsoThoseOfRemoteBlocks(t *testing.T) {
	s := idleRemotes(t, &listed{blocks: bucketOf(t)}, nil)
	s.awaitList()
	v, err := s.View(t.Context(), "t", 0, timeMax)
	if err != nil || len(v.Sources) != 3 {
		t.Fatalf("%+v, %v", v, err)
	}
	defer v.Close()
	decode := func() {
		t.Helper()
		for _, src := range v.Sources {
			_, done, err := v.PartSymbols(src, 0)
			if err != nil {
				t.Fatal(err)
			}
			done()
		}
		if s.memory.symbols.Load() == 0 {
			t.Error("no symbols are cached")
		}
	}
	if decode(); !s.dropSymbols() || s.memory.symbols.Load() != 0 {
		t.Errorf("%d bytes of symbols", s.memory.symbols.Load())
	}
	decode()
	if s.remotes.sweep(); s.memory.symbols.Load() == 0 {
		t.Error("symbols in use were dropped")
	}
	if s.remotes.sweep(); s.memory.symbols.Load() != 0 {
		t.Errorf("%d bytes of idle symbols", s.memory.symbols.Load())
	}
}

func TestClean_LimitErrorsAndCounters(t *testing.T) {
	far, now := &listed{}, time.Unix(1_700_000_000, 0)
	s := &Store{opts: Options{Remote: far, RemoteDeleteDelay: time.Hour}, logger: quiet, uptime: func() time.Duration { return 0 }, now: func() time.Time { return now }, metrics: newMetrics(nil)}
	r := newRemotes(s)
	reset := func(due, later int) {
		r.all = map[string]map[ulid.ULID]*remoteBlock{"t": {}}
		for n := range due + later {
			id := ulid.ULID{1, byte(n >> 8), byte(n)}
			r.all["t"][id] = &remoteBlock{BucketBlock: profiles.BucketBlock{ID: id, Tenant: "t", Marked: now, MarkReason: MarkReplaced}, reason: MarkReplaced}
			if r.all["t"][id].leaving = now.Add(-time.Hour); n >= due {
				r.all["t"][id].leaving = now.Add(1 - time.Hour)
			}
		}
		r.all["t"][ulid.ULID{2}] = &remoteBlock{} // not leaving
		far.deleted, far.calls = nil, 0
	}
	check := func(what string, deleted, calls int, counted, failed uint64) {
		t.Helper()
		if len(far.deleted) != deleted || far.calls != calls || s.metrics.remoteDeleted.Get() != counted || s.metrics.remoteDeleteFail.Get() != failed {
			t.Errorf("%s: %d are deleted in %d calls, %d are counted, %d failed", what, len(far.deleted), far.calls, s.metrics.remoteDeleted.Get(), s.metrics.remoteDeleteFail.Get())
		}
	}
	reset(3, 2)
	r.clean(t.Context())
	check("due", 3, 3, 3, 0)
	reset(deletionsMax, 1)
	r.clean(t.Context())
	check("as many as the limit", deletionsMax, deletionsMax, 3+deletionsMax, 0)
	reset(deletionsMax+1, 0)
	r.clean(t.Context())
	check("one past the limit", deletionsMax, deletionsMax, 3+2*deletionsMax, 0)
	reset(3, 0)
	far.fails = errDisk
	r.clean(t.Context())
	check("failed", 0, 1, 3+2*deletionsMax, 1)
	far.fails = nil
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	reset(3, 0)
	r.clean(ctx)
	check("cancelled", 0, 0, 3+2*deletionsMax, 1)
}

func TestVisible_BlockWhoseReplacementIsGoneStays(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	parents := slices.Clone(far.blocks)
	far.put(t, from.merged(t, 0, 1, 2))
	all := slices.Clone(far.blocks)
	now := time.Now()
	s := &Store{opts: Options{Remote: far, RemoteDeleteDelay: time.Hour}, logger: quiet, uptime: func() time.Duration { return 0 }, now: func() time.Time { return now }, metrics: newMetrics(nil)}
	r := newRemotes(s)
	leaving := func(what string, blocks []profiles.BucketBlock, want int, since time.Time) {
		t.Helper()
		far.blocks = blocks
		if err := r.refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, b := range r.all["t"] {
			if !b.leaving.IsZero() {
				if n++; !b.leaving.Equal(since) {
					t.Errorf("%s: block %s leaves since %s", what, b.ID, b.leaving)
				}
			}
		}
		if n != want || len(r.blocks["t"].blocks) != len(blocks) {
			t.Errorf("%s: %d are leaving, %d visible", what, n, len(r.blocks["t"].blocks))
		}
	}
	first := now
	leaving("replaced", all, 3, first)
	now = now.Add(time.Minute)
	leaving("still replaced", all, 3, first)
	leaving("not replaced", parents, 0, first)
	now = now.Add(time.Minute)
	leaving("replaced again", all, 3, now)
	keep := time.Hour
	s.opts.RemoteRetention, s.uptime = keep, func() time.Duration { return time.Hour }
	if at := now.Add(-keep).UnixNano(); r.expired(at) || !r.expired(at-1) {
		t.Error("a block as old as the retention expires, or an older one does not")
	}
	s.opts.RemoteRetention = 0
	if r.expired(0) {
		t.Error("a block expires without a retention")
	}
}

// The first list deletes what is due, and blocks of which nothing is known are not replaced.
func TestReplaced_TenantsAndBlocksThatAreUnknown(t *testing.T) {
	far := &fakeRemote{err: errors.New("no route")}
	s := idleRemotes(t, far, nil)
	if replaced, err := s.Replaced("t", ulid.Make()); replaced || !errors.Is(err, profiles.ErrUnavailable) {
		t.Errorf("before the first list: %v, %v", replaced, err)
	}
	blocks := bucketOf(t)
	far.mu.Lock()
	far.err, far.blocks = nil, blocks
	far.mu.Unlock()
	if err := s.remotes.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	tenant := flushed(t, s, 7)
	if err := s.Append(t.Context(), "u", []profiles.RawProfile{numbered(1)}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		tenant string
		id     ulid.ULID
	}{{"t", tenant.blocks[0].Meta().ULID}, {"t", ulid.Make()}, {"u", ulid.Make()}, {"v", ulid.Make()}, {"a/..", ulid.Make()}} {
		if replaced, err := s.Replaced(c.tenant, c.id); replaced || err != nil {
			t.Errorf("%s: %v, %v", fmt.Sprint(c), replaced, err)
		}
	}
}

func TestRun_ExpiredBlocksAreDeletedAfterTheFirstList(t *testing.T) {
	far := &fakeRemote{blocks: bucketOf(t)}
	s := openTest(t, t.TempDir(), func(s *Store) {
		s.opts.Remote, s.opts.RemoteEvery, s.opts.RemoteRetention, s.opts.RemoteDeleteDelay = far, time.Hour, time.Hour, 0
		s.remotes = newRemotes(s)
	})
	s.awaitList()
	eventually(t, func() bool {
		far.mu.Lock()
		defer far.mu.Unlock()
		return len(far.blocks) == 0
	})
	eventually(t, func() bool { return s.metrics.remoteDeleted.Get() == 3 })
}
