package store

import (
	"sync"
	"time"
)

// retry schedules retries of a failed operation with exponential backoff.
type retry struct {
	min, max time.Duration

	mu   sync.Mutex
	wait time.Duration
	at   time.Time
}

func (r *retry) due(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.wait == 0 || !now.Before(r.at)
}

// result records the outcome of an attempt.
func (r *retry) result(now time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.wait = 0
		return
	}
	r.wait = min(max(2*r.wait, r.min), r.max)
	r.at = now.Add(r.wait)
}
