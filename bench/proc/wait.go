package proc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// errFinal ends the waiting of Until.
var errFinal = errors.New("cannot become true")

// Wait waits for d, or until the context ends, whose cause it returns.
func Wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// Until waits until check returns no error, and asks it at intervals. what names the awaited state in the error.
func Until(ctx context.Context, timeout, every time.Duration, what string, check func() error) error {
	for deadline := time.Now().Add(timeout); ; {
		err := check()
		if err == nil || errors.Is(err, errFinal) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %s: %w", timeout, what, err)
		}
		if err := Wait(ctx, every); err != nil {
			return err
		}
	}
}

// Parallel runs n calls at once and returns the first error, by their numbers, when all have ended.
func Parallel(n int, call func(i int) error) error {
	errs := make([]error, n)
	var running sync.WaitGroup
	for i := range n {
		running.Go(func() { errs[i] = call(i) })
	}
	running.Wait()
	for _, err := range errs {
		if err != nil {
			return err // the others are often the same
		}
	}
	return nil
}
