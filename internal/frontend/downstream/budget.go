package downstream

import (
	"sync"
	"time"
)

// budget is what all requests together may spend on being repeated: a token
// bucket to which every request adds a fraction of a token and the clock a few,
// and from which every repetition takes a whole one. A downstream that is down
// therefore sees little more than the load it would see anyway.
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

// deposit is called once for every request, repetitions not counted.
func (b *budget) deposit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tokens = min(b.burst, b.tokens+b.ratio)
}

// withdraw takes a token, or reports that there is none.
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
