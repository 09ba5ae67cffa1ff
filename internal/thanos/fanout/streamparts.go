package fanout

import (
	"context"
	"errors"
	"time"

	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// call is the context of a call to a store. It is cancelled if the store sends nothing for the response timeout, which
// includes connecting.
type call struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	timeout time.Duration // for each message
	timer   *time.Timer   // cancels the call; runs while the store must send; nil: no timeout
}

// newCall returns a call without a running timer. timeout 0: none.
func newCall(ctx context.Context, timeout time.Duration) call {
	c := call{timeout: timeout}
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	if timeout > 0 {
		cancel := c.cancel
		c.timer = time.AfterFunc(timeout, func() { cancel(ErrStalled) })
		c.timer.Stop()
	}
	return c
}

// expect starts the timeout: the store must send.
func (c *call) expect() {
	if c.timer != nil {
		c.timer.Reset(c.timeout)
	}
}

// received stops the timeout.
func (c *call) received() {
	if c.timer != nil {
		c.timer.Stop()
	}
}

// stalled reports whether the timeout has ended the call.
func (c *call) stalled() bool { return errors.Is(context.Cause(c.ctx), ErrStalled) }

// over reports whether the request has ended.
func (c *call) over() bool { return c.ctx.Err() != nil && !c.stalled() }

// labelRemover removes labels from sorted label sets.
type labelRemover struct {
	names    []string // none: label sets stay as they are
	unsorted bool     // a label set sorts before the previous one after labels were removed
	labels   []byte
	previous []byte
}

// remove returns a valid label set without the labels. The result is valid until the next call.
func (r *labelRemover) remove(set []byte) []byte {
	if len(r.names) == 0 {
		return set
	}
	before := r.labels
	r.labels, _ = labelenc.AppendWithout(r.previous[:0], set, r.names) // it is valid
	r.previous = before
	if labelenc.Compare(r.previous, r.labels) > 0 {
		r.unsorted = true
	}
	return r.labels
}

// streamMemory counts the buffers of a stream against the budget of all queries.
type streamMemory struct {
	budget *budget // nil: the reader of the stream counts them
	held   int64   // bytes that budget has granted
}

// set sets the bytes that the buffers take from the budget. It may wait for memory that other queries
// hold. The response timeout does not run while it waits.
func (m *streamMemory) set(ctx context.Context, bytes int64) error {
	switch more := bytes - m.held; {
	case more > 0:
		if err := m.budget.take(ctx, more); err != nil {
			return err
		}
	case -more > budgetStep: // small differences between messages are not worth taking the lock of the budget
		m.budget.release(-more)
	default:
		return nil
	}
	m.held = bytes
	return nil
}

// release returns all bytes to the budget. It is called at the end of the stream, which frees the buffers.
func (m *streamMemory) release() {
	if m.held > 0 {
		m.budget.release(m.held)
		m.held = 0
	}
}
