package columns

import (
	"errors"
	"math/bits"
	"slices"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/schema"
)

// bitmap has one bit for each step.
type bitmap []uint64

func newBitmap(steps int) bitmap { return make(bitmap, (steps+63)/64) }
func (b bitmap) set(i int)       { b[i>>6] |= 1 << (i & 63) }
func (b bitmap) get(i int) bool  { return b[i>>6]>>(i&63)&1 == 1 }
func (b bitmap) clear()          { clear(b) }

// word returns word i of a bitmap whose first n bits are set.
func (b bitmap) word(i, n int) uint64 { return ^uint64(0) >> (64 - min(64, n-i*64)) }

func (b bitmap) fill(n int) {
	for i := range b {
		b[i] = b.word(i, n)
	}
}

func (b bitmap) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

func (b bitmap) empty() bool {
	for _, w := range b {
		if w != 0 {
			return false
		}
	}
	return true
}

// row is one series at all steps. values[i] is valid only if has.get(i).
type row struct {
	metric labels.Labels
	values []float64
	has    bitmap // the steps that have a value
	// dropName means that the metric name is to be removed at the end of the query. It is used only with
	// Options.DelayedNameRemoval. Without that option, operators remove names at once.
	dropName bool
	// distinct means that the series of the operand have distinct labels even without __name__, __type__ and
	// __unit__.
	distinct bool
	hists    []*histogram.FloatHistogram // by step; nil: no value is a histogram
	kept     bitmap                      // if filtered: the steps whose values a filter keeps
	filtered bool                        // no other values are set
	notRead  bitmap                      // of kept; their values are not set; nil: there are none
}

func newRow(steps int) row { return row{values: make([]float64, steps), has: newBitmap(steps)} }

// full reports whether every step has a value.
func (r *row) full() bool {
	for i, w := range r.has {
		if w != r.has.word(i, len(r.values)) {
			return false
		}
	}
	return true
}

// setUnread sets the values that were not read. With join, the first of those at successive steps stands for all.
func (r *row) setUnread(join bool) {
	before := uint64(0) // the last bit of the word before
	for k, unread := range r.notRead {
		set := unread
		if join {
			set &^= unread<<1 | before
			before = unread >> 63
			r.has[k] = r.has[k]&^unread | set
		}
		for ; set != 0; set &= set - 1 {
			r.values[k*64+bits.TrailingZeros64(set)] = UnreadValue
		}
	}
}

func (r *row) clone() row {
	return row{metric: r.metric, values: slices.Clone(r.values), has: slices.Clone(r.has), dropName: r.dropName,
		hists: slices.Clone(r.hists)}
}

func (r *row) deepClone() row {
	c := r.clone()
	for i, h := range c.hists {
		if h != nil {
			c.hists[i] = h.Copy()
		}
	}
	return c
}

var errSameLabels = errors.New("vector cannot contain metrics with the same labelset")

// labelsets finds series with equal labels, by hash as Prometheus does. Series with equal labels are allowed if their
// samples are at different steps. They become one series of the result.
type labelsets struct {
	ev   *evaluation
	seen map[uint64]int32 // by hash: index in steps
	// sets of steps at which series have samples; equal sets that follow each other are stored once
	steps    []bitmap
	dupStep  int  // first step at which two series have a sample; -1: none
	repeated bool // two series had the same labels
}

func (ev *evaluation) newLabelsets() *labelsets {
	return &labelsets{ev: ev, seen: map[uint64]int32{}, dupStep: -1}
}

// dup returns the first step at which two series of l with the same labels have a sample. It returns -1 if there is
// no such step, or if Prometheus accepts such series. It is for operators that Prometheus evaluates step by step.
func (ev *evaluation) dup(l *labelsets) int {
	if ev.engine.opts.DelayedNameRemoval && ev.onlyStep() {
		return -1
	}
	return l.dupStep
}

// drop removes the metric name of a row, or with delayed name removal marks the row only.
func (ev *evaluation) drop(r *row) {
	r.dropName = true
	if !ev.engine.opts.DelayedNameRemoval {
		r.metric = r.metric.DropReserved(schema.IsMetadataLabel)
	}
}

// pass adds a series unless its labels are known to be distinct, and passes it on. A series that is not added takes no
// memory.
func (l *labelsets) pass(distinct bool, r *row, sink func(*row) error) error {
	if !distinct {
		if err := l.add(r); err != nil {
			return err
		}
	}
	return sink(r)
}

// add adds a series. It returns errGiveUp if the sets of steps take too much memory.
func (l *labelsets) add(r *row) (err error) {
	hash := r.metric.Hash()
	number, ok := l.seen[hash]
	if !ok {
		l.seen[hash], err = l.number(r.has)
		return err
	}
	l.repeated = true
	has := slices.Clone(l.steps[number])
	for i, word := range r.has {
		if both := has[i] & word; both != 0 {
			if step := i*64 + bits.TrailingZeros64(both); l.dupStep < 0 || step < l.dupStep {
				l.dupStep = step
			}
		}
		has[i] |= word
	}
	l.seen[hash], err = l.number(has)
	return err
}

// number returns the index of a set of steps in l.steps. It adds the set unless it equals the last
// one.
func (l *labelsets) number(has bitmap) (int32, error) {
	if n := len(l.steps); n == 0 || !slices.Equal(l.steps[n-1], has) {
		if err := l.ev.hold(len(has)); err != nil {
			return 0, err
		}
		l.steps = append(l.steps, slices.Clone(has))
	}
	return int32(len(l.steps) - 1), nil
}
