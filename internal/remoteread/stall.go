package remoteread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// ErrStalled is returned when a server sends nothing for longer than StallTimeout.
var ErrStalled = errors.New("remote read server sends nothing")

// stallGuard cancels a request when the server sends nothing for too long. It runs
// between start and stop only: the time that the caller takes to process data does
// not count.
type stallGuard struct {
	timeout time.Duration
	timer   *time.Timer // nil: no limit
}

// withStallGuard returns a context that is cancelled with ErrStalled when the server is
// silent for timeout. The guard is running.
func withStallGuard(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc, *stallGuard) {
	g := &stallGuard{timeout: timeout}
	if timeout <= 0 {
		ctx, cancel := context.WithCancel(ctx)
		return ctx, cancel, g
	}
	ctx, cancel := context.WithCancelCause(ctx)
	g.timer = time.AfterFunc(timeout, func() { cancel(fmt.Errorf("%w for %s", ErrStalled, timeout)) })
	return ctx, func() { g.stop(); cancel(nil) }, g
}

func (g *stallGuard) start() {
	if g.timer != nil {
		g.timer.Reset(g.timeout)
	}
}

func (g *stallGuard) stop() {
	if g.timer != nil {
		g.timer.Stop()
	}
}

// stalled returns ErrStalled instead of err if the guard cancelled the request.
func stalled(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrStalled) {
		return cause
	}
	return err
}

// stallReader reads a body under a stallGuard.
type stallReader struct {
	from  io.Reader
	ctx   context.Context // of the request that the body belongs to
	guard *stallGuard
}

// Read implements io.Reader.
func (r *stallReader) Read(p []byte) (int, error) {
	r.guard.start()
	n, err := r.from.Read(p)
	r.guard.stop()
	return n, stalled(r.ctx, err)
}
