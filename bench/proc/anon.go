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
}

// Bytes returns the growth in bytes.
func (g Growth) Bytes() int64 { return max(0, g.Peak-g.Idle) }

// GrowthDuring measures how the server's anonymous memory grows during work. Go returns memory to the kernel slowly, so that only
// the first call on a fresh process sees all of the growth: start one for each measurement.
func (s *Server) GrowthDuring(ctx context.Context, work func() error) (Growth, error) {
	idle, err := s.settle(ctx)
	if err != nil {
		return Growth{}, err
	}
	stop := make(chan struct{})
	peak := make(chan int64)
	go func() { peak <- s.watch(stop) }()
	err = work()
	close(stop)
	return Growth{Idle: idle, Peak: max(idle, <-peak)}, err
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
	for deadline := time.Now().Add(settleTimeout); time.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(settleEvery):
		}
		now, err := s.Anon()
		if err != nil {
			return 0, err
		}
		if max(now-last, last-now) <= settledBytes {
			return now, nil
		}
		last = now
	}
	return 0, fmt.Errorf("%s: %w", s.name, ErrUnsettled)
}

// watch returns the highest reading until stop is closed. A process that has ended reads as 0.
func (s *Server) watch(stop <-chan struct{}) int64 {
	tick := time.NewTicker(anonEvery)
	defer tick.Stop()
	var peak int64
	for {
		if now, err := s.Anon(); err == nil {
			peak = max(peak, now)
		}
		select {
		case <-stop:
			return peak
		case <-tick.C:
		}
	}
}
