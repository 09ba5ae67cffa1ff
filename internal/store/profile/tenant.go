package profile

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/codec/pprof"
	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
	"github.com/ferula-io/ferula/internal/store/profile/wal"
)

// tenant is the log, head and blocks of one tenant. Its committer is the only
// goroutine that writes the log and the head.
type tenant struct {
	store *Store
	name  string
	dir   string

	queueMu sync.Mutex
	queue   batch // what the committer takes next
	spare   batch
	wake    chan struct{} // of capacity 1
	closing bool
	done    chan struct{}

	log *wal.Log // the committer's

	// mu is of what readers see. It is taken after a head's lock, never before it:
	// apply asks the blocks while it holds its head.
	mu           sync.RWMutex
	head         *head
	flushing     *head // being written as a block
	headFrom     time.Time
	blocks       []*heldBlock
	writing      ulid.ULID // a block that has its name and is not one of blocks yet
	symbolsSwept time.Time // the maintainer's
	broken       []error   // blocks that could not be opened; never changes

	cuts    chan chan cut // to the committer
	flushMu sync.Mutex    // one flush, merge or removal of blocks at a time
	stuck   *cut          // a head that is to become a block; guarded by flushMu
	ended   chan struct{} // closed with the committer
}

// batch is pushes that go to the disk together.
type batch struct {
	frames  []byte
	waiting []*waiting
}

type waiting struct {
	pushed []profiles.Pushed
	done   chan error // of capacity 1
}

// cut is a head that is closed, and the last segment of the log it is in.
type cut struct {
	head    *head
	through uint64
	err     error
}

func (s *Store) openTenant(name string) (*tenant, error) {
	t := &tenant{
		store: s, name: name, dir: filepath.Join(s.root(), name), head: newHead(), headFrom: s.now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}), cuts: make(chan chan cut), ended: make(chan struct{}),
	}
	through, err := t.openBlocks()
	if err != nil {
		return nil, err
	}
	decoder := &pprof.Profile{}
	log, torn, err := wal.Open(filepath.Join(t.dir, "wal"), through, s.create, func(record []byte) error {
		return readRecord(record, func(p *profiles.Pushed) error {
			if err := decoder.Decode(p.Raw, s.opts.Limits); err != nil {
				return err
			}
			p.Profile = decoder
			t.apply(p)
			return nil
		})
	})
	if err != nil {
		t.closeBlocks()
		return nil, err
	}
	for _, end := range torn {
		s.logger.Warn("the log of profiles ends in the middle of a record, which nobody was told is stored", "segment", end.Segment, "at", end.At, "bytes", end.Bytes)
	}
	t.log = log
	go t.commit()
	return t, nil
}

// append waits until a push is on the disk. Once it is queued it is waited for,
// whatever the context says: what is borrowed is still in use.
func (t *tenant) append(ctx context.Context, pushed []profiles.Pushed) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &waiting{pushed: pushed, done: make(chan error, 1)}
	t.queueMu.Lock()
	if t.closing {
		t.queueMu.Unlock()
		return fmt.Errorf("%w: the store is closed", profiles.ErrUnavailable)
	}
	if len(t.queue.frames) > t.store.opts.PendingBytes {
		n := len(t.queue.frames)
		t.queueMu.Unlock()
		return fmt.Errorf("%w: %d bytes of profiles wait for the disk", profiles.ErrUnavailable, n)
	}
	t.queue.frames = wal.AppendFrame(t.queue.frames, func(b []byte) []byte { return appendRecord(b, pushed) })
	t.queue.waiting = append(t.queue.waiting, w)
	t.queueMu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return <-w.done
}

// commit writes what is queued, as one write, until the tenant is closed.
func (t *tenant) commit() {
	defer close(t.ended)
	for {
		select {
		case <-t.wake:
			t.commitQueue()
		case answer := <-t.cuts:
			answer <- t.cutHead()
		case <-t.done:
			t.commitQueue()
			return
		}
	}
}

func (t *tenant) commitQueue() {
	t.queueMu.Lock()
	b := t.queue
	t.queue, t.spare = t.spare, batch{}
	t.queueMu.Unlock()
	if len(b.waiting) == 0 {
		t.giveBack(b)
		return
	}
	err := t.tooFull()
	if err == nil {
		err = t.log.Append(b.frames)
	}
	for _, w := range b.waiting {
		if err == nil {
			for i := range w.pushed {
				t.apply(&w.pushed[i])
			}
		}
	}
	t.store.metrics.committed(len(b.frames), len(b.waiting), err)
	for i, w := range b.waiting {
		w.done <- err
		b.waiting[i] = nil
	}
	t.giveBack(b)
}

func (t *tenant) giveBack(b batch) {
	if cap(b.frames) > 8<<20 {
		b.frames = nil
	}
	t.queueMu.Lock()
	t.spare = batch{b.frames[:0], b.waiting[:0]}
	t.queueMu.Unlock()
}

// headsMax is how many times its size a head may become while blocks cannot be
// written.
const headsMax = 8

// tooFull says why nothing more may come into memory.
func (t *tenant) tooFull() error {
	if size := t.head.size(); size > headsMax*t.store.opts.HeadBytes {
		return fmt.Errorf("%w: %d bytes of profiles could not be written as a block yet", profiles.ErrUnavailable, size)
	}
	return nil
}

// apply puts a durable profile into the head.
func (t *tenant) apply(p *profiles.Pushed) {
	t.head.apply(p, p.TimeNS, t.older)
}

// cutHead closes the head and starts another.
func (t *tenant) cutHead() cut {
	t.mu.RLock()
	head, flushing := t.head, t.flushing
	t.mu.RUnlock()
	if flushing != nil || head.rows() == 0 {
		return cut{}
	}
	through, err := t.log.Cut()
	if err != nil {
		return cut{err: err}
	}
	t.mu.Lock()
	t.flushing, t.head, t.headFrom = head, newHead(), t.store.now()
	t.mu.Unlock()
	return cut{head: head, through: through}
}

func (t *tenant) close() error {
	t.queueMu.Lock()
	t.closing = true
	t.queueMu.Unlock()
	close(t.done)
	<-t.ended
	t.flushMu.Lock() // whoever writes a block finishes first
	defer t.flushMu.Unlock()
	t.closeBlocks()
	return t.log.Close()
}

// older says whether a block, or the head that becomes one, has rows of a profile,
// and whether it has this series of it. The lock keeps the blocks where they are.
func (t *tenant) older(key block.Key, labels []byte) (profile, row bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.flushing != nil {
		profile, row = t.flushing.holds(key, labels)
	}
	for _, b := range t.blocks {
		if row {
			break
		}
		p, r := b.holds(key, labels)
		profile, row = profile || p, r
	}
	return profile, row
}
