package profile

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/series/profiles"
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
	s, far := three(t, func(o *Options) { o.Retention, o.BlockSpan = -1, 365*24*time.Hour })
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
	far.blocks = append([]RemoteBlock{cut}, parents...)
	for i := range 3 {
		if n := s.remotes.at(t, far, start.Add(time.Duration(i)*24*time.Hour)); n != 5 {
			t.Fatalf("%d blocks are left", n)
		}
	}
	far.blocks = append([]RemoteBlock{merged}, parents...)
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
	s := openTest(t, t.TempDir(), func(s *Store) { s.opts.BlockSpan = 24 * time.Hour })
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
