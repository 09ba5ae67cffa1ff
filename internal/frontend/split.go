package frontend

import (
	"errors"
	"fmt"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
)

// stepRange is the steps of a range query: StartMS, StartMS+StepMS, ..., EndMS. EndMS is a
// step too. Times are in milliseconds.
type stepRange struct {
	StartMS, EndMS, StepMS int64
}

// newRange returns a stepRange whose end is moved back to the last step.
func newRange(startMS, endMS, stepMS int64) (stepRange, error) {
	if stepMS <= 0 {
		return stepRange{}, fmt.Errorf("step of %d ms is not positive", stepMS)
	}
	if endMS < startMS {
		return stepRange{}, fmt.Errorf("end %d before start %d", endMS, startMS)
	}
	return stepRange{startMS, startMS + (endMS-startMS)/stepMS*stepMS, stepMS}, nil
}

// StepOffset returns the start modulo the step, in ms. Two ranges with the same step and
// the same offset have their steps at the same times.
func (r stepRange) StepOffset() int64 { return floorMod(r.StartMS, r.StepMS) }

// Clip returns the steps of r within [fromMS, toMS]. ok is false if there are none.
func (r stepRange) Clip(fromMS, toMS int64) (part stepRange, ok bool) {
	start, end := r.StartMS, r.EndMS
	if fromMS > start {
		start += ceilDiv(fromMS-start, r.StepMS) * r.StepMS
	}
	if toMS < end {
		end = r.StartMS + floorDiv(toMS-r.StartMS, r.StepMS)*r.StepMS
	}
	return stepRange{start, end, r.StepMS}, start <= end
}

// Without returns the gaps of r that the given parts leave, in order of time. The parts
// must be sorted, must not overlap, and have the step and step offset of r.
func (r stepRange) Without(parts []stepRange) []stepRange {
	var gaps []stepRange
	next := r.StartMS
	for _, p := range parts {
		if p.StartMS > next {
			gaps = append(gaps, stepRange{next, p.StartMS - r.StepMS, r.StepMS})
		}
		next = max(next, p.EndMS+r.StepMS)
	}
	if next <= r.EndMS {
		gaps = append(gaps, stepRange{next, r.EndMS, r.StepMS})
	}
	return gaps
}

// intervalPart is one part of a split query: its steps, and the index of their interval, counted
// from the epoch.
type intervalPart struct {
	stepRange
	Index int64
}

// SplitOptions set the length of the parts. The names are from Thanos.
type SplitOptions struct {
	Interval         time.Duration // length of a part; 0: by the three options below, or no split if they are 0
	MinInterval      time.Duration // queries up to this length are split only at its multiples
	MaxInterval      time.Duration // queries at least twice as long are split in parts of this length
	HorizontalShards int           // queries in between are split in this many parts, or in one more
}

// Flags of Thanos that set the options.
const (
	intervalFlag = "query-range.split-interval"
	maxFlag      = "query-range.max-split-interval"
	shardsFlag   = "query-range.horizontal-shards"
)

// Validate returns all faults of the options, joined.
func (o SplitOptions) Validate() error {
	var errs []error
	dynamic := o.MinInterval != 0 || o.MaxInterval != 0 || o.HorizontalShards != 0
	if o.Interval < 0 || o.MinInterval < 0 || o.MaxInterval < 0 || o.HorizontalShards < 0 {
		errs = append(errs, errors.New("split intervals and shards must not be negative"))
	}
	if dynamic && o.Interval != 0 {
		errs = append(errs, hint.Invalid(intervalFlag,
			errors.New("cannot be set together with --query-range.min-split-interval, --query-range.max-split-interval or --query-range.horizontal-shards")))
	}
	if dynamic && o.Interval == 0 {
		if o.HorizontalShards < 2 {
			errs = append(errs, hint.Invalid(shardsFlag, errors.New(
				"must be at least 2 if --query-range.min-split-interval or --query-range.max-split-interval is set")))
		}
		if o.MinInterval == 0 || o.MaxInterval == 0 {
			errs = append(errs, hint.Invalid(maxFlag, errors.New(
				"must be set together with --query-range.min-split-interval and --query-range.horizontal-shards")))
		} else if o.MaxInterval < o.MinInterval {
			errs = append(errs, hint.Invalid(maxFlag, errors.New("must not be less than --query-range.min-split-interval")))
		}
	}
	return errors.Join(errs...)
}

// IntervalFor returns the length of the parts of a query over r. 0 means no split.
func (o SplitOptions) IntervalFor(r stepRange) time.Duration {
	if o.Interval != 0 || o.MaxInterval == 0 {
		return o.Interval
	}
	length := time.Duration(r.EndMS-r.StartMS) * time.Millisecond
	switch {
	case length/o.MaxInterval >= 2:
		return o.MaxInterval
	case length > o.MinInterval:
		return max(length/time.Duration(o.HorizontalShards), time.Millisecond).Truncate(time.Millisecond)
	default:
		return o.MinInterval
	}
}

// splitAt splits r at the multiples of interval. Intervals without a step are omitted.
func splitAt(r stepRange, interval time.Duration) []intervalPart {
	length := interval.Milliseconds()
	if length <= 0 {
		return []intervalPart{{stepRange: r}}
	}
	var parts []intervalPart
	for start := r.StartMS; start <= r.EndMS; {
		index := floorDiv(start, length)
		part, _ := stepRange{start, r.EndMS, r.StepMS}.Clip(start, (index+1)*length-1)
		parts = append(parts, intervalPart{part, index})
		start = part.EndMS + r.StepMS
	}
	return parts
}

// widen returns the shortest multiple of interval with which splitAt splits r into at most maxParts
// parts. It returns 0, no split, if maxParts is 1.
func widen(r stepRange, interval time.Duration, maxParts int) time.Duration {
	length := interval.Milliseconds()
	if length <= 0 || maxParts <= 1 {
		return 0
	}
	// The search begins at the smallest possible factor: with a smaller one, maxParts intervals are
	// shorter than r.
	for factor := max(1, (r.EndMS-r.StartMS)/(length*int64(maxParts))); ; factor++ {
		wide := length * factor
		if floorDiv(r.EndMS, wide)-floorDiv(r.StartMS, wide)+1 <= int64(maxParts) {
			return time.Duration(wide) * time.Millisecond
		}
	}
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }

func ceilDiv(a, b int64) int64 { return -floorDiv(-a, b) }
