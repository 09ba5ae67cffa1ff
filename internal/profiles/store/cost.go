package store

import (
	"context"
	"fmt"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
)

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
	costSeries   = 600 // without its labels: the shared set's handle, an entry of a map, what slices allocate in advance
	labelBytes   = 25  // of a label beside its texts, or the name and separators of a label of a type
	costLabels   = 3   // for a byte of labels: alone, with those of the type, as a key
)

// costOf returns an upper bound of the bytes that decoded profiles take in a head.
func costOf(pushed ...profiles.RawProfile) int64 {
	var sum int64
	for i := range pushed {
		p, d := &pushed[i], pushed[i].Profile
		samples, types, rows := int64(len(d.Samples)), int64(len(d.SampleTypes)), int64(1)
		set := int64(len(p.Labels)) // the longest label set
		if d.HasLabels() {
			rows = min(samples, profiles.SplitsMax)
			set += longestLabels(d)
			sum += samples * (costSpan*types + costTrace)
		}
		rows *= types
		sum += int64(d.RawBytes()) + costNode*int64(d.Nodes()) + costText*int64(d.Strings()) +
			costFunction*int64(len(d.Functions))
		sum += costFrame*int64(len(d.Lines)+len(d.Locations)) + samples*(costSample+costValue*types)
		sum += rows * (rowBytes + lastRowBytes + costSeries + costLabels*set + longestType(d) + int64(len(p.Labels)))
	}
	return sum
}

// longestLabels returns an upper bound of the bytes of the labels of a sample, encoded.
func longestLabels(d *pprof.Profile) (longest int64) {
	for i := range d.Samples {
		n := 0
		for _, l := range d.Labels(&d.Samples[i]) {
			n += len(d.ValidText(l.Key)) + len(d.ValidText(l.Text)) + labelBytes
		}
		longest = max(longest, int64(n))
	}
	return longest
}

// longestType returns an upper bound of the bytes of the labels of a type, without the name in its text.
func longestType(d *pprof.Profile) (longest int64) {
	for _, t := range append(d.SampleTypes[:len(d.SampleTypes):len(d.SampleTypes)], d.PeriodType) {
		longest = max(longest, int64(len(d.ValidText(t.Type))+len(d.ValidText(t.Unit))))
	}
	return 4*longest + 5*labelBytes // of the sample and of the period, alone and in the text
}

// memoryError returns the error of a push refused for lack of memory.
func (s *Store) memoryError(need int64) error {
	if need > s.memory.headsMax {
		return fmt.Errorf("%w: the push may need %d bytes of memory, more than all heads may have: %d%s", pprof.ErrLimit,
			need, s.memory.headsMax, s.opts.Flags.Of("HeadsBytes"))
	}
	return fmt.Errorf("%w: the push may need %d bytes of memory, and heads use %d of %d: they are being written "+
		"as blocks%s", profiles.ErrUnavailable, need, s.memory.heads.Load(), s.memory.headsMax, s.opts.Flags.Of("HeadsBytes"))
}

// flushBiggest writes the biggest heads as blocks until the budget is not under pressure.
func (s *Store) flushBiggest(ctx context.Context) {
	tried := map[*tenant]bool{}
	for s.memory.underPressure() && ctx.Err() == nil {
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
