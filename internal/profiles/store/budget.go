package store

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

// budget limits the memory of the heads of all tenants. Before a push is logged, the most memory
// that the push could need is reserved. Once the push is in a head, the actual growth of the
// head is charged instead.
type budget struct {
	max  int64
	used atomic.Int64
	wake chan struct{} // of capacity 1; receives when heads should be written as blocks
}

// take reserves bytes. It returns false and reserves nothing if the reserved bytes would exceed max.
func (b *budget) take(bytes int64) bool {
	for {
		used := b.used.Load()
		if used+bytes > b.max/2 {
			b.relieve()
		}
		if used+bytes > b.max {
			return false
		}
		if b.used.CompareAndSwap(used, used+bytes) {
			return true
		}
	}
}

func (b *budget) relieve() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *budget) add(bytes int64) { b.used.Add(bytes) }

// underPressure reports whether heads should be written as blocks although they are small and new.
func (b *budget) underPressure() bool { return b.used.Load() > b.max/2 }

// charge adds a head's growth since the last charge.
func (b *budget) charge(h *head) {
	size := int64(h.size())
	b.add(size - h.charged)
	h.charged = size
}

// discharge releases the charges of a head that no longer changes.
func (b *budget) discharge(h *head) {
	b.add(-h.charged)
	h.charged = 0
}

// Upper bounds of the bytes that each part of a profile takes in a head; see Builder.Bytes and
// head.size.
const (
	costNode     = 80
	costText     = 80
	costFunction = 80
	costFrame    = 64
	costSample   = 48
	costValue    = 15
	costSpan     = 2*32 + 2*20 // a span of one sample and one type; slices that grow are up to twice as long
	costTrace    = 2*16 + 48
)

// costOf returns an upper bound of the bytes that decoded profiles take in a head.
func costOf(pushed ...profiles.RawProfile) int64 {
	var sum int64
	for i := range pushed {
		p, d := &pushed[i], pushed[i].Profile
		samples, types, rows := int64(len(d.Samples)), int64(len(d.SampleTypes)), int64(1)
		if d.HasLabels() {
			rows = min(samples, profiles.SplitsMax)
			sum += samples * (costSpan*types + costTrace)
		}
		rows *= types
		sum += int64(d.RawBytes()) + costNode*int64(d.Nodes()) + costText*int64(d.Strings()) +
			costFunction*int64(len(d.Functions))
		sum += costFrame*int64(len(d.Lines)+len(d.Locations)) + samples*(costSample+costValue*types)
		sum += rows * (rowBytes + lastRowBytes + 200 + 4*int64(len(p.Labels)))
	}
	return sum
}

// memoryError returns the error of a push refused for lack of memory.
func (s *Store) memoryError(need int64) error {
	if need > s.budget.max {
		return fmt.Errorf("%w: the push may need %d bytes of memory, more than all heads may have: %d%s", pprof.ErrLimit,
			need, s.budget.max, s.opts.Flags.Of("HeadsBytes"))
	}
	return fmt.Errorf("%w: the push may need %d bytes of memory, and heads use %d of %d: they are being written "+
		"as blocks%s", profiles.ErrUnavailable, need, s.budget.used.Load(), s.budget.max, s.opts.Flags.Of("HeadsBytes"))
}

// flushBiggest writes the biggest heads as blocks until the budget is not under pressure.
func (s *Store) flushBiggest(ctx context.Context) {
	tried := map[*tenant]bool{}
	for s.budget.underPressure() && ctx.Err() == nil {
		var biggest *tenant
		size := 0
		for _, t := range s.list() {
			if n := t.headSize(); n > size && !tried[t] && t.flushRetry.due(s.now()) {
				biggest, size = t, n
			}
		}
		if biggest == nil {
			return
		}
		tried[biggest] = true
		if err := biggest.flush(ctx, false); err != nil && ctx.Err() == nil {
			s.logger.Error("Writing a profile head as a block failed", "tenant", biggest.name, "err", err)
		}
	}
}
