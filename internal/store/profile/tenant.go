package profile

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/series/profiles"
	"github.com/ferula-io/ferula/internal/store/profile/block"
	"github.com/ferula-io/ferula/internal/store/profile/wal"
	"github.com/ferula-io/ferula/internal/vfs"
)

// tenant is the log, head and blocks of one tenant. Its committer is the only
// goroutine that writes the log and the head.
type tenant struct {
	store *Store
	name  string
	dir   string

	queueMu sync.Mutex
	queue   batch         // what the committer takes next
	used    time.Time     // when it was pushed to last
	wake    chan struct{} // of capacity 1
	closing error         // why nothing more is queued
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
	merging unfinished    // guarded by flushMu
	ended   chan struct{} // closed with the committer

	flushRetry, mergeRetry retry
}

// unfinished is a merge that failed. Until it succeeds, or its block is known not to
// be there, no other one may begin.
type unfinished struct {
	id  ulid.ULID
	run []*heldBlock
}

// batch is pushes that go to the disk together.
type batch struct {
	frames  []byte
	waiting []*waiting
}

type waiting struct {
	pushed []profiles.RawProfile
	done   chan error // of capacity 1
}

// cut is a head that is closed, and the last segment of the log it is in.
type cut struct {
	head    *head
	through uint64
	id      ulid.ULID // of the block that the head becomes, however often that is tried
	err     error
}

// readTenant opens a tenant's blocks and replays its log. A folder is made for one
// that is new.
func (s *Store) readTenant(name string, known bool) (*tenant, error) {
	t := &tenant{
		store: s, name: name, dir: filepath.Join(s.root(), profiles.TenantFolder(name)), head: newHead(), headFrom: s.now(), used: s.now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}), cuts: make(chan chan cut), ended: make(chan struct{}),
		flushRetry: retry{min: 4 * time.Second, max: time.Minute}, mergeRetry: retry{min: 4 * time.Second, max: 10 * time.Minute},
	}
	if !known {
		if err := vfs.MakeDir(s.fs, t.dir); err != nil {
			return nil, err
		}
	}
	through, err := t.openBlocks()
	if err == nil {
		err = t.replay(through)
	}
	if err != nil {
		s.budget.discharge(t.head)
		t.closeBlocks()
		return nil, err
	}
	go t.commit()
	return t, nil
}

// append waits until a push is on the disk. Once it is queued it is waited for,
// whatever the context says: what is borrowed is still in use.
func (t *tenant) append(ctx context.Context, pushed []profiles.RawProfile) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	w := &waiting{pushed: pushed, done: make(chan error, 1)}
	t.queueMu.Lock()
	if t.closing != nil {
		t.queueMu.Unlock()
		return t.closing
	}
	if len(t.queue.frames) > t.store.opts.PendingBytes {
		n := len(t.queue.frames)
		t.queueMu.Unlock()
		return fmt.Errorf("%w: %d bytes of profiles wait for the disk", profiles.ErrUnavailable, n)
	}
	if t.queue.frames == nil {
		t.queue.frames = t.store.lendFrames()
	}
	t.used = t.store.now()
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
	t.queue = batch{}
	t.queueMu.Unlock()
	if len(b.waiting) == 0 {
		return
	}
	err := t.tooFull()
	if err == nil {
		err = t.log.Append(b.frames)
	}
	if err == nil {
		for _, w := range b.waiting {
			for i := range w.pushed {
				t.apply(&w.pushed[i])
			}
		}
		t.store.budget.charge(t.head)
		t.dropIfEmpty()
	}
	t.store.metrics.committed(len(b.frames), len(b.waiting), err)
	t.store.giveBackFrames(b.frames)
	for _, w := range b.waiting {
		w.done <- err
	}
}

// framesMax is the greatest batch whose buffer is used for another.
const framesMax = 8 << 20

func (s *Store) lendFrames() []byte {
	if b, ok := s.frames.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

func (s *Store) giveBackFrames(b []byte) {
	if cap(b) <= framesMax {
		s.frames.Put(&b)
	}
}

// tooFull says why nothing more may come into a tenant's memory: one tenant whose
// blocks cannot be written must not take the memory of all.
func (t *tenant) tooFull() error {
	if size := t.head.size(); int64(size) > t.store.budget.max/2 {
		t.store.budget.relieve()
		return fmt.Errorf("%w: %d bytes of profiles could not be written as a block yet", profiles.ErrUnavailable, size)
	}
	return nil
}

// apply puts a durable profile into the head.
func (t *tenant) apply(p *profiles.RawProfile) {
	t.head.apply(p, p.TimeNS, t.older)
}

// emptyHeadBytes is how much a head without rows may take.
const emptyHeadBytes = 1 << 20

// dropIfEmpty starts a new head in place of one that has symbols only: those of
// pushes that were stored already.
func (t *tenant) dropIfEmpty() {
	if t.head.rows() > 0 || t.head.size() < emptyHeadBytes {
		return
	}
	t.store.budget.discharge(t.head)
	t.mu.Lock()
	t.head = newHead()
	t.mu.Unlock()
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
	return cut{head: head, through: through, id: ulid.MustNewDefault(t.store.now())}
}

// headSize is the memory of the head that is being filled.
func (t *tenant) headSize() int {
	t.mu.RLock()
	head := t.head
	t.mu.RUnlock()
	if head.count() == 0 {
		return 0
	}
	return head.size()
}

func (t *tenant) close(why error) error {
	t.queueMu.Lock()
	t.closing = why
	t.queueMu.Unlock()
	close(t.done)
	<-t.ended
	t.flushMu.Lock() // whoever writes a block finishes first
	defer t.flushMu.Unlock()
	t.closeBlocks()
	t.store.budget.discharge(t.head)
	if t.stuck != nil {
		t.store.budget.discharge(t.stuck.head)
	}
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
