package store

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

func (t *tenant) count() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.blocks)
}

// at lists and cleans the remote at a later time and returns the number of its blocks.
func (r *remotes) at(t *testing.T, far *fakeRemote, now time.Time) int {
	t.Helper()
	far.clock.Store(now.UnixNano())
	if err := r.refresh(context.Background()); err != nil {
		t.Fatal(err)
	}
	r.clean(context.Background())
	far.mu.Lock()
	defer far.mu.Unlock()
	return len(far.blocks)
}

func (s *fakeRemote) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func TestRemotes_ReplacedBlocksAreDeletedAfterADelay(t *testing.T) {
	ctx := context.Background()
	s, far := three(t, func(o *Options) { o.Retention, o.blockSpan = -1, 365*24*time.Hour })
	p := numbered(3)
	if err := errors.Join(s.Append(ctx, "t", []profiles.RawProfile{p}), s.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	far.take(t, s.opts.Dir)
	parents := far.blocks
	if err := s.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	far.take(t, s.opts.Dir)
	if len(parents) != 4 || len(far.blocks) != 1 {
		t.Fatalf("%d blocks are merged to %d", len(parents), len(far.blocks))
	}
	merged := far.blocks[0]
	start := time.Now()
	cut := merged // an incomplete upload replaces nothing
	cut.RowsBytes--
	far.blocks = append([]profiles.BucketBlock{cut}, parents...)
	for i := range 3 {
		if n := s.remotes.at(t, far, start.Add(time.Duration(i)*24*time.Hour)); n != 5 {
			t.Fatalf("%d blocks are left", n)
		}
	}
	far.blocks = append([]profiles.BucketBlock{merged}, parents...)
	from := start.Add(100 * time.Hour)
	for _, step := range []struct {
		after time.Duration
		want  int
	}{{0, 5}, {s.opts.RemoteDeleteDelay - 1, 5}, {s.opts.RemoteDeleteDelay, 1}, {24 * time.Hour, 1}} {
		if n := s.remotes.at(t, far, from.Add(step.after)); n != step.want {
			t.Fatalf("after %s %d blocks are left, want %d", step.after, n, step.want)
		}
	}
	if got := s.metrics.remoteDeleted.Get(); got != 4 {
		t.Errorf("%d blocks are counted as deleted", got)
	}
	if counts := stored(t, s); len(counts) != 4 {
		t.Errorf("%v", counts)
	}
}

func TestRemotes_RetentionOfTheBucketHidesThenDeletes(t *testing.T) {
	s, far := three(t, func(o *Options) { o.RemoteRetention = 10 * time.Hour }) // blocks at 0, 1 and 2 h
	far.take(t, s.opts.Dir)
	tenant := s.tenants["t"]
	newest := time.Unix(0, tenant.blocks[2].Meta().MaxNS)
	if n := s.remotes.at(t, far, newest.Add(10*time.Hour)); n != 3 {
		t.Fatalf("%d blocks are left before the delay", n)
	}
	if err := tenant.retain(); err != nil || tenant.count() != 0 {
		t.Fatalf("%v, %d blocks are on disk", err, tenant.count())
	}
	if counts := stored(t, s); len(counts) != 1 {
		t.Errorf("queries read %v", counts)
	}
	far.fail(io.ErrUnexpectedEOF)
	s.remotes.clean(context.Background())
	far.fail(nil)
	if n := s.remotes.at(t, far, newest.Add(10*time.Hour+s.opts.RemoteDeleteDelay)); n != 1 {
		t.Errorf("%d blocks are left", n)
	}
	if n := s.remotes.at(t, far, newest.Add(1010*time.Hour)); n != 0 {
		t.Errorf("%d blocks are left in the end", n)
	}
}

func TestRetain_ABlockThatTheBucketWouldDropDoesNotWaitForIt(t *testing.T) {
	s, far := three(t, func(o *Options) { o.RemoteRetention = 2 * time.Hour })
	tenant := s.tenants["t"]
	far.clock.Store(time.Now().Add(1000 * time.Hour).UnixNano())
	if err := tenant.retain(); err != nil || tenant.count() != 0 {
		t.Errorf("%v, %d blocks are on disk", err, tenant.count())
	}
}

func TestOptions_BucketRetentionIsNotShorterThanThatOfTheDisk(t *testing.T) {
	for disk, fails := range map[time.Duration]bool{-1: true, 0: true, 48 * time.Hour: true, 24 * time.Hour: false, time.Hour: false} {
		if err := (Options{Dir: "d", Retention: disk, RemoteRetention: 24 * time.Hour}).Validate(); (err != nil) != fails {
			t.Errorf("%s: %v", disk, err)
		}
	}
}

func TestCompact_MergedBlocksHaveALimitedTimeRange(t *testing.T) {
	ctx := context.Background()
	s := openTest(t, t.TempDir(), func(s *Store) { s.opts.blockSpan = 24 * time.Hour })
	const days = 3
	for n := range uint64(days * 12) {
		p := numbered(n)
		p.TimeNS += int64(n) * int64(2*time.Hour)
		if err := errors.Join(s.Append(ctx, "t", []profiles.RawProfile{p}), s.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	merged := 0
	for _, b := range s.tenants["t"].blocks {
		lo, hi := b.Bounds()
		if hi-lo > int64(24*time.Hour) {
			t.Errorf("block %s has %s", ulid.ULID(b.Meta().ULID), time.Duration(hi-lo))
		}
		if b.Meta().Level > 0 {
			merged++
		}
	}
	if counts := stored(t, s); len(counts) != days*12 || merged < days*3 {
		t.Errorf("%d profiles, %d merged blocks", len(counts), merged)
	}
}

// reasons returns the reasons of the marks in the bucket, by block.
func (s *fakeRemote) reasons() map[ulid.ULID]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[ulid.ULID]string{}
	for _, b := range s.blocks {
		if !b.Marked.IsZero() {
			all[b.ID] = b.MarkReason
		}
	}
	return all
}

// The delay begins at the time in the mark, not at the start of the server: a server that restarts often must delete, too.
func TestRemotes_TheDelayOfAMarkSurvivesARestart(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	far.put(t, from.merged(t, 0, 1, 2))
	start, delay := time.Unix(1_900_000_000, 0), from.opts.RemoteDeleteDelay
	far.clock.Store(start.UnixNano())
	first := empty(t, far)
	if n := first.remotes.at(t, far, start.Add(time.Minute)); n != 4 || len(far.reasons()) != 3 {
		t.Fatalf("%d blocks, marks %v", n, far.reasons())
	}
	if first.remotes.at(t, far, start.Add(delay/2)); far.written() != 3 {
		t.Errorf("3 marks were written %d times", far.written())
	}
	far.clock.Store(start.Add(delay - time.Second).UnixNano())
	second := empty(t, far)
	if n := second.remotes.at(t, far, start.Add(delay-time.Second)); n != 4 {
		t.Errorf("%d blocks are left before the delay has passed", n)
	}
	if n := second.remotes.at(t, far, start.Add(delay+time.Minute)); n != 1 {
		t.Errorf("%d blocks are left", n)
	}
	counts, _ := second.rows(t)
	once(t, counts, 3)
}

// A mark counts from its time only if its reason has held since then.
func TestRemotes_AMarkOlderThanItsReasonDoesNotShortenTheDelay(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	start := time.Unix(1_900_000_000, 0)
	far.markedByOther(0, start.Add(-100*time.Hour), MarkReplaced)
	far.clock.Store(start.UnixNano())
	s := empty(t, far)
	if n := s.remotes.at(t, far, start); n != 3 {
		t.Errorf("%d blocks are left: one was deleted although nothing replaces it", n)
	}
	counts, _ := s.rows(t)
	once(t, counts, 3)
	far.put(t, from.merged(t, 0, 1, 2))
	if n := s.remotes.at(t, far, start.Add(time.Minute)); n != 4 {
		t.Errorf("%d blocks are left", n)
	}
	far.markedByOther(1, start.Add(1000*time.Hour), MarkReplaced) // a wrong clock
	if n := s.remotes.at(t, far, start.Add(time.Minute+s.opts.RemoteDeleteDelay)); n != 1 {
		t.Errorf("%d blocks are left after the delay", n)
	}
}

// A block that another process has marked for another reason is deleted by that process, such as the command that compacts
// the bucket, or by an operator. This server only stops to read it.
func TestView_BlocksMarkedByOthersAreNotReadAfterTheDelay(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	start := time.Unix(1_900_000_000, 0)
	far.clock.Store(start.UnixNano())
	s := empty(t, far)
	far.markedByOther(1, start, "by hand")
	for after, want := range map[time.Duration]int{0: 3, s.opts.RemoteDeleteDelay - 1: 3, s.opts.RemoteDeleteDelay: 2, 1000 * time.Hour: 2} {
		if n := s.remotes.at(t, far, start.Add(after)); n != 3 || far.written() != 0 {
			t.Errorf("after %s %d blocks are left, %d marks were changed", after, n, far.written())
		}
		counts, warnings := s.rows(t)
		if once(t, counts, want); len(warnings) > 0 {
			t.Error(warnings)
		}
	}
	far.markedByOther(1, time.Time{}, "")
	s.remotes.at(t, far, start.Add(1000*time.Hour))
	counts, _ := s.rows(t)
	once(t, counts, 3)
}

// A disk that keeps a block which the bucket is about to lose would upload it again.
func TestRetain_ABlockMarkedInTheBucketLeavesTheDisk(t *testing.T) {
	s, far := three(t, nil)
	far.take(t, s.opts.Dir)
	for n := range 3 {
		far.markedByOther(n, time.Unix(1, 0), "by hand")
	}
	s.remotes.at(t, far, time.Now())
	if err := s.tenants["t"].retain(); err != nil || s.tenants["t"].count() != 0 {
		t.Errorf("%v, %d blocks are on disk", err, s.tenants["t"].count())
	}
}

func TestRemotes_ALongerRetentionRemovesItsMarks(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	start := time.Unix(1_900_000_000, 0)
	far.clock.Store(start.UnixNano())
	first, last := far.blocks[0].ID, far.blocks[2].ID // the store will change the blocks concurrently
	s := empty(t, far, func(o *Options) { o.Retention, o.RemoteRetention = time.Hour, time.Hour })
	if n := s.remotes.at(t, far, start); n != 3 || len(far.reasons()) != 3 || far.reasons()[first] != MarkExpired {
		t.Fatalf("%d blocks, marks %v", n, far.reasons())
	}
	far.markedByOther(2, start, "by hand")
	s = empty(t, far)
	if n := s.remotes.at(t, far, start.Add(time.Hour)); n != 3 || len(far.reasons()) != 1 || far.reasons()[last] != "by hand" {
		t.Errorf("%d blocks, marks %v", n, far.reasons())
	}
}

// The marks are removed after the list. Queries read the blocks at once.
func TestView_ALongerRetentionIsObeyedByTheFirstList(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	start := time.Unix(1_900_000_000, 0)
	far.clock.Store(start.Add(1000 * time.Hour).UnixNano())
	s := empty(t, far)
	for i := range 3 {
		far.markedByOther(i, start, MarkExpired)
	}
	if err := s.remotes.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	known, _, err := s.remotes.list("t")
	if err != nil {
		t.Fatal(err)
	}
	if blocks, warnings := known.readable(local{}), known.unreadable(local{}, nil); len(blocks) != 3 || len(warnings) != 0 {
		t.Errorf("%d of 3 blocks are read, warnings %v", len(blocks), warnings)
	}
}

func TestRemotes_NothingIsDeletedWithoutAMark(t *testing.T) {
	from, far := three(t, nil)
	far.take(t, from.opts.Dir)
	far.put(t, from.merged(t, 0, 1, 2))
	start := time.Unix(1_900_000_000, 0)
	far.clock.Store(start.UnixNano())
	far.fixed = true
	s := empty(t, far)
	if n := s.remotes.at(t, far, start.Add(1000*time.Hour)); n != 4 || s.metrics.remoteDeleteFail.Get() == 0 {
		t.Errorf("%d blocks are left, %d failures", n, s.metrics.remoteDeleteFail.Get())
	}
	far.mu.Lock()
	far.fixed = false
	far.mu.Unlock()
	if n := s.remotes.at(t, far, start.Add(1001*time.Hour)); n != 1 || far.written() != 3 {
		t.Errorf("%d blocks are left, %d marks", n, far.written())
	}
}

// heads gives each block the beginning of its index, as the index of a bucket does.
func (s *fakeRemote) heads(t *testing.T) {
	t.Helper()
	for i := range s.blocks {
		head, err := block.Head(bytesOf(t, s.blocks[i].Index))
		if err != nil {
			t.Fatal(err)
		}
		s.blocks[i].Head = bytes.Clone(head)
	}
}

// read drops what the index of the bucket has about a block, as the reader of a bucket does after a doubt.
func (s *fakeRemote) read(id ulid.ULID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocks = slices.Clone(s.blocks)
	for i := range s.blocks {
		if s.blocks[i].ID == id {
			s.blocks[i].Head = nil
		}
	}
}

// The files of a block may differ from the entry in the index of the bucket, for example in an incomplete copy of a bucket. The blocks
// that such a block replaces must not be marked or deleted before its files are read.
func TestClean_ReplacingBlocksOfTheIndexOfTheBucketAreRead(t *testing.T) {
	ctx := context.Background()
	from, far := three(t, func(o *Options) { o.Retention, o.blockSpan = -1, 365*24*time.Hour })
	if err := errors.Join(from.Append(ctx, "t", []profiles.RawProfile{numbered(3)}), from.Flush(ctx)); err != nil {
		t.Fatal(err)
	}
	far.take(t, from.opts.Dir)
	parents := far.blocks
	if err := from.Compact(ctx); err != nil {
		t.Fatal(err)
	}
	far.take(t, from.opts.Dir)
	if len(parents) != 4 || len(far.blocks) != 1 {
		t.Fatalf("%d blocks are merged to %d", len(parents), len(far.blocks))
	}
	far.heads(t)
	merged := far.blocks[0]
	index := bytesOf(t, merged.Index)
	changed := bytes.Clone(index)
	changed[len(merged.Head)/2] ^= 1
	for name, c := range map[string]struct {
		index io.ReaderAt
		want  int // blocks that stay
	}{
		"a whole block":        {bytes.NewReader(index), 1},
		"an index that is cut": {bytes.NewReader(index[:len(index)-1]), 5},
		"an index of zeros":    {bytes.NewReader(make([]byte, len(index))), 5},
		"another meta":         {bytes.NewReader(changed), 5},
		"no index":             {bytes.NewReader(nil), 5},
	} {
		t.Run(name, func(t *testing.T) {
			b, far := merged, &fakeRemote{}
			b.Index, b.Doubt = c.index, func() { far.read(merged.ID) } // as the reader of a bucket
			far.blocks = append([]profiles.BucketBlock{b}, parents...)
			s := openTest(t, t.TempDir(), func(s *Store) {
				s.opts.Remote, s.opts.RemoteEvery, s.now = far, time.Hour, far.now
				s.remotes = newRemotes(s)
			})
			s.awaitList()
			start, n := time.Now(), 0
			for _, after := range []time.Duration{0, time.Hour, s.opts.RemoteDeleteDelay, 3 * s.opts.RemoteDeleteDelay} {
				n = s.remotes.at(t, far, start.Add(after))
			}
			if n != c.want || (far.written() == 0) != (c.want == 5) {
				t.Errorf("%d blocks are left, want %d; %d marks", n, c.want, far.written())
			}
		})
	}
}

// The time range of a block comes from the index of the bucket, too.
func TestClean_ExpiredBlocksOfTheIndexOfTheBucketAreRead(t *testing.T) {
	from, full := three(t, nil)
	full.take(t, from.opts.Dir)
	full.heads(t)
	newest := time.Unix(0, from.tenants["t"].blocks[2].Meta().MaxNS)
	for changes, want := range map[int]int{0: 1, 1: 2} { // blocks that have changed since the index was written, blocks that stay
		far := &fakeRemote{blocks: slices.Clone(full.blocks)}
		far.clock.Store(newest.UnixNano())
		for i := range changes {
			index := bytesOf(t, far.blocks[i].Index)
			index[len(far.blocks[i].Head)/2] ^= 1
			far.blocks[i].Index = bytes.NewReader(index)
		}
		for i := range far.blocks {
			id := far.blocks[i].ID
			far.blocks[i].Doubt = func() { far.read(id) }
		}
		s := openTest(t, t.TempDir(), func(s *Store) {
			s.opts.Remote, s.opts.RemoteEvery, s.opts.RemoteRetention, s.now = far, time.Hour, 10*time.Hour, far.now
			s.remotes = newRemotes(s)
		})
		s.awaitList()
		n := 0
		for _, after := range []time.Duration{0, time.Minute, s.opts.RemoteDeleteDelay + time.Hour} {
			n = s.remotes.at(t, far, newest.Add(10*time.Hour+after))
		}
		if n != want {
			t.Errorf("%d blocks have changed: %d are left, want %d", changes, n, want)
		}
	}
}
