package remoteread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrStalled is returned when a server was silent for longer than it may be.
var ErrStalled = errors.New("remote read server sends nothing")

// stallGuard cancels a request while which the server is silent for too long. It
// runs only between watch and rest: the time that the caller takes for what came
// does not count.
type stallGuard struct {
	after time.Duration
	timer *time.Timer // nil: no limit
}

// guard makes a context that a silent server cancels with ErrStalled; the guard
// watches at once.
func guard(ctx context.Context, after time.Duration) (context.Context, context.CancelFunc, *stallGuard) {
	g := &stallGuard{after: after}
	if after <= 0 {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, g
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g.timer = time.AfterFunc(after, func() { cancel(fmt.Errorf("%w for %s", ErrStalled, after)) })
	return ctx, func() { g.rest(); cancel(nil) }, g
}

func (g *stallGuard) watch() {
	if g.timer != nil {
		g.timer.Reset(g.after)
	}
}

func (g *stallGuard) rest() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

// stalled is the guard's own error in place of the one that cancelling made.
func stalled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrStalled) {
		return cause
	}
	return err
}

// guardedReader reads a body under a guard.
type guardedReader struct {
	from  io.Reader
	ctx   context.Context //nolint:containedctx // of the request that the body belongs to
	guard *stallGuard
}

// Read implements io.Reader.
func (r *guardedReader) Read(p []byte) (int, error) {
	r.guard.watch()
	n, err := r.from.Read(p)
	r.guard.rest()
	return n, stalled(r.ctx, err)
}
