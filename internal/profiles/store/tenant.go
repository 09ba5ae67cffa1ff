package store

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// tenant has the log, head and blocks of one tenant. Only its committer goroutine writes
// the log and the head.
type tenant struct {
	store *Store
	name  string
	dir   string

	queueMu sync.Mutex
	queue   batch         // the next batch of the committer
	used    time.Time     // time of the last push
	wake    chan struct{} // of capacity 1
	closing error         // error of every push once the queue is closed; nil: open
	done    chan struct{} // closed to end the committer

	log *pushLog // used by the committer only

	// mu guards the fields that readers use. It is taken after a head's lock, never before:
	// apply looks into the blocks while it holds the head's lock.
	mu           sync.RWMutex
	head         *head
	flushing     *head // being written as a block
	headFrom     time.Time
	blocks       []*heldBlock
	writing      ulid.ULID // a block that is being written and not in blocks yet
	symbolsSwept time.Time // used by the maintainer only
	broken       []error   // blocks that could not be opened; not changed after open

	cuts        chan chan cut    // requests to the committer to close the head
	flushMu     sync.Mutex       // one flush, compaction or removal of blocks at a time
	failedFlush *cut             // a closed head that is not written as a block yet; guarded by flushMu
	compacting  failedCompaction // guarded by flushMu
	ended       chan struct{}    // closed when the committer returns

	flushRetry, compactRetry retry
}

// failedCompaction is a compaction that failed. Its block may exist nevertheless. Another
// compaction may begin only after a retry has succeeded, or after this block was discarded:
// otherwise two blocks could have the same rows.
type failedCompaction struct {
	id  ulid.ULID    // of the compacted block; zero: no compaction has failed
	run []*heldBlock // the blocks to compact
}

// batch has pushes that are written to the log together.
type batch struct {
	frames  []byte     // the encoded pushes
	waiting []*waiting // the callers of append
}

type waiting struct {
	pushed []profiles.RawProfile
	done   chan error // of capacity 1
}

// cut is a closed head and the last log segment that has its records.
type cut struct {
	head    *head
	through uint64
	id      ulid.ULID // of the block written from the head; retries reuse it
	err     error
}

// readTenant opens a tenant's blocks and replays its log. It creates the directory of a new
// tenant.
func (s *Store) readTenant(name string, known bool) (*tenant, error) {
	t := &tenant{
		store: s, name: name, dir: filepath.Join(s.root(), profiles.TenantDir(name)), head: s.newHead(), headFrom: s.now(),
		used: s.now(),
		wake: make(chan struct{}, 1), done: make(chan struct{}), cuts: make(chan chan cut), ended: make(chan struct{}),
		flushRetry: retry{min: 4 * time.Second, max: time.Minute}, compactRetry: retry{min: 4 * time.Second,
			max: 10 * time.Minute},
	}
	if !known {
		if err := files.MakeDir(s.fs, t.dir); err != nil {
			return nil, err
		}
	}
	err := t.openBlocks()
	if err == nil {
		err = t.replay()
	}
	if err != nil {
		s.memory.discharge(t.head)
		t.closeBlocks()
		return nil, err
	}
	go t.commit()
	return t, nil
}

// append returns once a push is synced. A queued push cannot be canceled: append waits for it
// even if ctx is done, because the committer reads the borrowed memory.
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
	if len(t.queue.frames) > t.store.opts.pendingBytes {
		n := len(t.queue.frames)
		t.queueMu.Unlock()
		return fmt.Errorf("%w: %d bytes of pushes are queued for the disk", profiles.ErrUnavailable, n)
	}
	if t.queue.frames == nil {
		t.queue.frames = t.store.borrowFrames()
	}
	t.used = t.store.now()
	t.queue.frames = appendFrame(t.queue.frames, func(b []byte) []byte { return appendRecord(b, pushed) })
	t.queue.waiting = append(t.queue.waiting, w)
	t.queueMu.Unlock()
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return <-w.done
}

// commit writes queued pushes, each batch as one write, until the tenant is closed.
func (t *tenant) commit() {
	defer close(t.ended)
	for {
		select {
		case <-t.wake:
			t.commitQueue()
		case reply := <-t.cuts:
			reply <- t.cutHead()
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
	err := t.headLimitError()
	if err == nil {
		err = t.log.append(b.frames)
	}
	if err == nil {
		for _, w := range b.waiting {
			for i := range w.pushed {
				t.apply(&w.pushed[i])
			}
		}
		t.store.memory.charge(t.head)
		t.dropIfEmpty()
	}
	t.store.metrics.committed(len(b.frames), len(b.waiting), err)
	t.store.releaseFrames(b.frames)
	for _, w := range b.waiting {
		w.done <- err
	}
}

// framesMax is the size up to which a batch's buffer is reused.
const framesMax = 8 << 20

func (s *Store) borrowFrames() []byte {
	if b, ok := s.frames.Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return nil
}

func (s *Store) releaseFrames(b []byte) {
	if cap(b) <= framesMax {
		s.frames.Put(&b)
	}
}

// headLimitError returns an error if the head of the tenant takes more than half of the memory
// limit of all heads: one tenant whose blocks cannot be written must not use all memory.
func (t *tenant) headLimitError() error {
	if size := t.head.size(); int64(size) > t.store.memory.headsMax/2 {
		t.store.memory.relieve()
		return fmt.Errorf("%w: %d bytes of profiles have not been written as a block yet", profiles.ErrUnavailable, size)
	}
	return nil
}

// apply adds a durable profile to the head.
func (t *tenant) apply(p *profiles.RawProfile) {
	before := t.head.spansDropped
	t.head.apply(p, p.TimeNS, t.older)
	t.store.metrics.spansDropped.Add(t.head.spansDropped - before)
}

// emptyHeadBytes is the size that a head without rows may have.
const emptyHeadBytes = 1 << 20

// dropIfEmpty replaces a head that has symbols and no rows. Pushes whose rows exist already
// leave such a head.
func (t *tenant) dropIfEmpty() {
	if t.head.rows() > 0 || t.head.size() < emptyHeadBytes {
		return
	}
	t.store.memory.discharge(t.head)
	t.mu.Lock()
	t.head = t.store.newHead()
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
	through, err := t.log.cut()
	if err != nil {
		return cut{err: err}
	}
	t.mu.Lock()
	t.flushing, t.head, t.headFrom = head, t.store.newHead(), t.store.now()
	t.mu.Unlock()
	head.seal()
	t.store.memory.charge(head)
	return cut{head: head, through: through, id: ulid.MustNewDefault(t.store.now())}
}

// headSize returns the memory of the current head.
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
	t.flushMu.Lock() // wait for the current block write
	defer t.flushMu.Unlock()
	t.closeBlocks()
	t.store.memory.discharge(t.head)
	if t.failedFlush != nil {
		t.store.memory.discharge(t.failedFlush.head)
	}
	return t.log.close()
}

// older reports whether a block, or the head being flushed, has rows of a profile, and
// calls row with the labels of each. It holds t.mu, so no block is replaced meanwhile.
func (t *tenant) older(key block.Key, row func(labels []byte)) (profile bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.flushing != nil {
		profile = t.flushing.holds(key, row)
	}
	for _, b := range t.blocks {
		profile = b.holds(key, row) || profile
	}
	return profile
}
