package proc

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	anonEvery     = 2 * time.Millisecond
	settleEvery   = 100 * time.Millisecond
	settleTimeout = 10 * time.Second
	settledBytes  = 256 << 10
)

// ErrUnsettled means that an idle server's memory did not stop changing.
var ErrUnsettled = errors.New("anonymous memory does not settle")

// Growth is how a server's resident anonymous memory grew while it worked.
type Growth struct {
	Idle int64 // bytes, after a collection, before the work
	Peak int64 // bytes, the highest reading while it worked

	course []int64 // all readings, at equal intervals
}

// Bytes returns the growth in bytes.
func (g Growth) Bytes() int64 { return max(0, g.Peak-g.Idle) }

// At returns the growth in bytes at a share of the time of the work.
func (g Growth) At(share float64) int64 {
	return max(0, g.course[int(share*float64(len(g.course)-1))]-g.Idle)
}

// GrowthDuring measures how the server's anonymous memory grows during work. Go returns memory to the kernel slowly, so that only
// the first call on a fresh process sees all of the growth: start one for each measurement.
func (s *Server) GrowthDuring(ctx context.Context, work func() error) (Growth, error) {
	idle, err := s.settle(ctx)
	if err != nil {
		return Growth{}, err
	}
	g := Growth{Idle: idle, Peak: idle}
	stop := Watch(s.Pid(), anonEvery, func(_ time.Duration, anon int64) {
		g.Peak, g.course = max(g.Peak, anon), append(g.course, anon)
	})
	err = work()
	stop()
	return g, err
}

// settle collects garbage twice, to free objects with finalizers too, and waits for two equal readings.
func (s *Server) settle(ctx context.Context) (int64, error) {
	for range 2 {
		if err := s.GC(ctx); err != nil {
			return 0, err
		}
	}
	last, err := s.Anon()
	if err != nil {
		return 0, err
	}
	if err := Wait(ctx, settleEvery); err != nil {
		return 0, err
	}
	err = Until(ctx, settleTimeout, settleEvery, s.name+"'s memory settles", func() error {
		before := last
		if last, err = s.Anon(); err != nil {
			return fmt.Errorf("%w: %w", errFinal, err)
		}
		if max(before-last, last-before) > settledBytes {
			return ErrUnsettled
		}
		return nil
	})
	return last, err
}

// Watch reads the anonymous memory of process pid at once and then at intervals, until stop is called. each gets the time
// since the start, too. A process that has ended is not read.
func Watch(pid int, every time.Duration, each func(at time.Duration, anon int64)) (stop func()) {
	end, ended, begun := make(chan struct{}), make(chan struct{}), time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			if now, err := Anon(pid); err == nil {
				each(time.Since(begun), now)
			}
			select {
			case <-end:
				return
			case <-tick.C:
			}
		}
	}()
	return func() { close(end); <-ended }
}
