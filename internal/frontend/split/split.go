// Package split decides how a range query is cut along time.
//
// A query's text and its range come in; what goes out are the ranges that may be
// asked for one by one so that their answers, laid end to end, equal the answer
// to the whole. shape.go says when a query must not be cut or not be kept. There
// is no HTTP, no cache and no evaluation here: an expression is looked at, never
// run.
package split

import (
	"errors"
	"fmt"
	"time"
)

// Range is the steps of a range query: StartMS, StartMS+StepMS, ... up to EndMS,
// which is a step too. Times are in milliseconds.
type Range struct {
	StartMS, EndMS, StepMS int64
}

// NewRange makes a Range; end is moved back to the last step.
func NewRange(startMS, endMS, stepMS int64) (Range, error) {
	if stepMS <= 0 {
		return Range{}, fmt.Errorf("step of %d ms", stepMS)
	}
	if endMS < startMS {
		return Range{}, fmt.Errorf("end %d before start %d", endMS, startMS)
	}
	return Range{startMS, startMS + (endMS-startMS)/stepMS*stepMS, stepMS}, nil
}

// Points is how many steps the range has.
func (r Range) Points() int64 { return (r.EndMS-r.StartMS)/r.StepMS + 1 }

// Phase is where the steps stand on the axis of time: two ranges with one step
// and one phase share their grid.
func (r Range) StepOffset() int64 { return floorMod(r.StartMS, r.StepMS) }

// Clip is the steps of r within [fromMS, toMS]; ok is false where there are none.
func (r Range) Clip(fromMS, toMS int64) (part Range, ok bool) {
	start, end := r.StartMS, r.EndMS
	if fromMS > start {
		start += ceilDiv(fromMS-start, r.StepMS) * r.StepMS
	}
	if toMS < end {
		end = r.StartMS + floorDiv(toMS-r.StartMS, r.StepMS)*r.StepMS
	}
	return Range{start, end, r.StepMS}, start <= end
}

// Without is what remains of r, in order, once the given parts are taken out.
// The parts are sorted, do not overlap, and share r's grid.
func (r Range) Without(parts []Range) []Range {
	var gaps []Range
	next := r.StartMS
	for _, p := range parts {
		if p.StartMS > next {
			gaps = append(gaps, Range{next, p.StartMS - r.StepMS, r.StepMS})
		}
		next = max(next, p.EndMS+r.StepMS)
	}
	if next <= r.EndMS {
		gaps = append(gaps, Range{next, r.EndMS, r.StepMS})
	}
	return gaps
}

// Part is one piece of a split: the steps of it, and the number of the interval
// they lie in, counted from the epoch.
type Part struct {
	Range
	Index int64
}

// Options say how long the pieces are. The names are Thanos'.
type Options struct {
	Interval         time.Duration // of a piece; 0: the three below, or no split
	MinInterval      time.Duration // shorter queries are not split
	MaxInterval      time.Duration // longer queries are split in pieces of this length
	HorizontalShards int           // pieces of queries in between
}

// Validate reports every fault of the options at once.
func (o Options) Validate() error {
	var errs []error
	dynamic := o.MinInterval != 0 || o.MaxInterval != 0 || o.HorizontalShards != 0
	if o.Interval < 0 || o.MinInterval < 0 || o.MaxInterval < 0 || o.HorizontalShards < 0 {
		errs = append(errs, errors.New("split intervals and shards must not be negative"))
	}
	if dynamic && o.Interval != 0 {
		errs = append(errs, errors.New("split queries interval and dynamic query split interval cannot be set at the same time"))
	}
	if dynamic && o.Interval == 0 {
		if o.HorizontalShards < 2 {
			errs = append(errs, errors.New("min horizontal shards should be greater than 1 when dynamic splitting is used"))
		}
		if o.MinInterval == 0 || o.MaxInterval == 0 {
			errs = append(errs, errors.New("min and max split interval should be greater than 0 when dynamic splitting is used"))
		} else if o.MaxInterval < o.MinInterval {
			errs = append(errs, errors.New("max split interval should be greater than min split interval"))
		}
	}
	return errors.Join(errs...)
}

// IntervalFor is how long the pieces of a query over r are; 0 means one piece.
func (o Options) IntervalFor(r Range) time.Duration {
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

// Plan cuts r at the multiples of interval. Pieces without a step are left out.
func Plan(r Range, interval time.Duration) []Part {
	length := interval.Milliseconds()
	if length <= 0 {
		return []Part{{Range: r}}
	}
	var parts []Part
	for start := r.StartMS; start <= r.EndMS; {
		index := floorDiv(start, length)
		piece, _ := Range{start, r.EndMS, r.StepMS}.Clip(start, (index+1)*length-1)
		parts = append(parts, Part{piece, index})
		start = piece.EndMS + r.StepMS
	}
	return parts
}

// Widen is the shortest multiple of interval that cuts r into at most maxParts
// pieces; 0, which is no cut, where one piece is all that is allowed.
func Widen(r Range, interval time.Duration, maxParts int) time.Duration {
	length := interval.Milliseconds()
	if length <= 0 || maxParts <= 1 {
		return 0
	}
	// Fewer pieces than the span holds intervals there cannot be.
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
