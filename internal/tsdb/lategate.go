package tsdb

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/prometheus/tsdb"
)

// lateGate makes commits wait while Prometheus' database collects the out-of-order chunks of the head, before it
// writes them to blocks.
//
// Without it, acknowledged samples are lost. The database visits all series of the head, and remembers those with
// out-of-order chunks and the last of these chunks. If a series gets its first out-of-order chunk after its visit,
// and a series that is visited later has a chunk behind it, the chunk is deleted with the others once the blocks are
// written, but no block has it.
//
// The database has no callback for this, but it logs before and after it, so lateGate is a handler of its logs. If a
// message changes, commits do not wait, or wait for gateTimeout: TestStore_LateSamplesAreKeptWhileOthersMoveToBlocks
// fails then.
type lateGate struct {
	commits sync.RWMutex // commits hold it for reading
	head    func() *tsdb.Head
	rangeMS int64 // length of a block that is cut from the head

	mu       sync.Mutex
	enabled  bool        // the database accepts out-of-order samples, or has done so
	timeout  *time.Timer // opens the gate; nil: the gate is open
	decideBy time.Time   // see decide
}

// gateTimeout is the longest time that commits wait. The visit of a million series takes about a second. If it takes
// longer than gateTimeout, late samples that arrive in the rest of it can be lost.
const gateTimeout = 30 * time.Second

// gateDecision is the time that commits wait if the database goes on with another range of the head.
const gateDecision = 2 * time.Second

// Messages of the database, in the order of a compaction.
const (
	messageTruncated      = "Head GC completed" // with the caller truncateMemory
	messageCheckpoint     = "Creating checkpoint"
	messageCheckpointDone = "WAL checkpoint complete"
	messageCollected      = "out-of-order compaction started"
	messageFailed         = "compaction failed"
)

// observe closes and opens the gate. caller is the attribute of the message that has this name.
func (g *lateGate) observe(message, caller string) {
	switch {
	case message == messageTruncated && caller == "truncateMemory":
		g.close(gateDecision)
	case message == messageCheckpointDone:
		g.close(0)
	case message == messageCheckpoint, message == messageCollected, message == messageFailed:
		g.open()
	}
}

// goesOn reports whether the database goes on with another range of the head, for which it waits for appenders.
func (g *lateGate) goesOn() bool {
	h := g.head()
	return h != nil && h.MaxTime()-h.MinTime() > g.rangeMS/2*3
}

// close waits for running commits, and makes later ones wait. It does nothing if the database has no out-of-order
// samples. decide opens the gate again within this time if the database goes on with another range; 0: it does not.
func (g *lateGate) close(decide time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.enabled:
		return
	case g.timeout != nil: // for the range before
	case decide > 0:
		g.commits.Lock()
		g.timeout = time.AfterFunc(gateDecision/100, g.decide)
	default:
		g.commits.Lock()
		g.timeout = time.AfterFunc(gateTimeout, g.open)
	}
	g.decideBy = time.Now().Add(decide)
}

// decide opens the gate if the database goes on with another range of the head.
//
// The database logs messageTruncated before it raises the head's minimum time to the first sample that is left, so
// goesOn can be true although no other range follows. So it is asked until it is false, or was true for gateDecision:
// a process that gets little CPU raises the time late.
func (g *lateGate) decide() {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.timeout == nil:
	case !g.goesOn():
		g.timeout = time.AfterFunc(gateTimeout, g.open)
	case time.Now().Before(g.decideBy):
		g.timeout = time.AfterFunc(gateDecision/100, g.decide)
	default:
		g.timeout = nil
		g.commits.Unlock()
	}
}

func (g *lateGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timeout != nil {
		g.timeout.Stop()
		g.timeout = nil
		g.commits.Unlock()
	}
}

// enable is called with each out-of-order window that takes effect, in ms.
func (g *lateGate) enable(windowMS int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.enabled = g.enabled || windowMS > 0
}

// commit calls f when the gate is open.
func (g *lateGate) commit(f func() error) error {
	g.commits.RLock()
	defer g.commits.RUnlock()
	return f()
}

// gateHandler passes records to next, after the gate has observed them.
type gateHandler struct {
	next slog.Handler
	gate *lateGate
}

// Enabled implements slog.Handler. The gate observes messages of level info whether or not they are logged.
func (h gateHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h gateHandler) Handle(ctx context.Context, r slog.Record) error {
	caller := ""
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "caller" {
			caller = a.Value.String()
		}
		return caller == ""
	})
	h.gate.observe(r.Message, caller)
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h gateHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return gateHandler{h.next.WithAttrs(attrs), h.gate}
}

// WithGroup implements slog.Handler.
func (h gateHandler) WithGroup(name string) slog.Handler {
	return gateHandler{h.next.WithGroup(name), h.gate}
}
