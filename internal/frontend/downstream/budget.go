package downstream

import (
	"sync"
	"time"
)

// budget limits the retries of all requests together: a token bucket. Every request adds ratio
// tokens, every second adds perSecond tokens, and every retry takes one token. A downstream that is
// down therefore gets little more than its usual load.
type budget struct {
	ratio     float64
	perSecond float64
	burst     float64

	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func newBudget(ratio, perSecond float64, burst int) *budget {
	return &budget{ratio: ratio, perSecond: perSecond, burst: float64(burst), tokens: float64(burst), last: time.Now()}
}

// deposit is called once for every request, not for retries.
func (b *budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.burst, b.tokens+b.ratio)
}

// withdraw takes a token and reports whether there was one.
func (b *budget) withdraw() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.tokens = min(b.burst, b.tokens+b.perSecond*now.Sub(b.last).Seconds())
	b.last = now
	if b.tokens < 1 {
		return false
	}
	b.tokens--
	return true
}
