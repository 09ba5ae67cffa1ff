package proc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrOverload means that requests were sent so late that the load was not the intended one.
var ErrOverload = errors.New("overload")

// OpenLoop is a load whose requests are due at a constant rate, whether or not earlier requests have ended.
type OpenLoop struct {
	Rate     int // requests a second
	Requests int
	Clients  int           // requests at once, at most; further requests wait and are late
	LateMax  time.Duration // a request that is sent later than this ends the load with ErrOverload
}

// Run calls send for each request, with the number of the client that sends it. It returns the latency of each request:
// from the time at which it was due to the return of send. The first error of send ends the load. Run returns when all
// requests have ended.
func (l OpenLoop) Run(ctx context.Context, send func(ctx context.Context, client, request int) error) ([]time.Duration, error) {
	begin := time.Now()
	due := func(request int) time.Time {
		return begin.Add(time.Duration(request) * time.Second / time.Duration(l.Rate))
	}
	running, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	latencies := make([]time.Duration, l.Requests)
	requests := make(chan int, l.Requests)
	var clients sync.WaitGroup
	for client := range l.Clients {
		clients.Go(func() {
			for request := range requests {
				if running.Err() != nil {
					return
				}
				if late := time.Since(due(request)); late > l.LateMax {
					stop(fmt.Errorf("%w: request %d of %d is %v late at %d a second", ErrOverload, request+1, l.Requests, late.Round(time.Millisecond), l.Rate))
					return
				}
				if err := send(ctx, client, request); err != nil { // a request that was sent is not canceled
					stop(err)
					return
				}
				latencies[request] = time.Since(due(request))
			}
		})
	}
	for request := range l.Requests {
		if running.Err() != nil {
			break
		}
		sleepUntil(due(request))
		requests <- request
	}
	close(requests)
	clients.Wait()
	if running.Err() != nil {
		return nil, context.Cause(running)
	}
	return latencies, nil
}

// sleepUntil sleeps until a time. It is a system call, because time.Sleep wakes up to 1 ms late in an idle process.
func sleepUntil(t time.Time) {
	for {
		left := time.Until(t)
		if left <= 0 {
			return
		}
		ts := unix.NsecToTimespec(left.Nanoseconds())
		_ = unix.ClockNanosleep(unix.CLOCK_MONOTONIC, 0, &ts, nil) // a signal interrupts it; then the loop sleeps again
	}
}

// Quantile returns the smallest duration that is not less than the share q of the durations, and 0 without any.
func Quantile(durations []time.Duration, q float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}
