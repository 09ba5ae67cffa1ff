package metrics

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// Summary has quantiles of the values in a sliding window, and the sum and count of all
// values:
//
//	name{labels,quantile="0.5"} 1.5
//	name_sum{labels} 7.25
//	name_count{labels} 4
//
// Quantiles are computed from a random sample (reservoir) of at most 1,000 values. A summary
// has two reservoirs, which start half a window apart: one is exposed while the next one fills.
// A summary without values has no reservoir, runs no timer and is not exposed.
type Summary struct {
	named
	spec   *summarySpec
	mu     sync.Mutex
	count  uint64
	sum    float64
	recent *recent // nil while there are no values in the window
}

// summarySpec holds the options of summaries; it is shared and immutable.
type summarySpec struct {
	window    time.Duration
	quantiles []float64
	sorted    []quantile // in the order of exposition: by their text
}

type quantile struct {
	phi  float64
	text string // value of the label with the closing quote: 0.5"
}

const defaultSummaryWindow = 5 * time.Minute

var defaultSummarySpec = summarySpec{
	window:    defaultSummaryWindow,
	quantiles: []float64{0.5, 0.9, 0.97, 0.99, 1},
	sorted:    []quantile{{0.5, `0.5"`}, {0.9, `0.9"`}, {0.97, `0.97"`}, {0.99, `0.99"`}, {1, `1"`}},
}

// newSummarySpec panics with the name of the summary if a quantile is invalid.
func newSummarySpec(name string, window time.Duration, quantiles []float64) *summarySpec {
	spec := &summarySpec{window: window, quantiles: slices.Clone(quantiles)}
	for _, phi := range quantiles {
		if !(phi >= 0 && phi <= 1) { // NaN, too
			panic(fmt.Errorf("BUG: summary %q: quantile %v is outside [0, 1]", name, phi))
		}
		spec.sorted = append(spec.sorted, quantile{phi, strconv.FormatFloat(phi, 'g', -1, 64) + `"`})
	}
	slices.SortFunc(spec.sorted, func(a, b quantile) int { return strings.Compare(a.text, b.text) })
	for i := 1; i < len(spec.sorted); i++ {
		if spec.sorted[i-1].text == spec.sorted[i].text {
			panic(fmt.Errorf("BUG: summary %q: quantile %v is given twice", name, spec.sorted[i].phi))
		}
	}
	return spec
}

// recent is the part of a summary that exists while there are values in the window.
type recent struct {
	// next has the values since the last rotate; shown, which is exposed, those since the rotate before it
	shown, next *reservoir
	rotation    *time.Timer
	values      []float64 // of the quantiles, in the order of spec.sorted
	lines       []byte    // the quantile lines of the last scrape
	stale       bool      // lines are older than shown
}

// Update adds v.
func (sm *Summary) Update(v float64) {
	sm.mu.Lock()
	r := sm.recent
	if r == nil {
		r = sm.begin()
	}
	if !r.shown.skips(v) && r.shown.add(v) {
		r.stale = true
	}
	if !r.next.skips(v) {
		r.next.add(v)
	}
	sm.sum += v
	sm.count++
	sm.mu.Unlock()
}

// UpdateDuration adds the seconds since start.
func (sm *Summary) UpdateDuration(start time.Time) { sm.Update(time.Since(start).Seconds()) }

func (sm *Summary) begin() *recent {
	r := &recent{shown: newReservoir(), next: newReservoir(), values: make([]float64, len(sm.spec.sorted))}
	sm.recent = r
	if half := sm.spec.window / 2; half > 0 {
		r.rotation = time.AfterFunc(half, func() { sm.rotate(r) })
	}
	return r
}

// rotate exposes the reservoir next, which was filled for half a window, and starts another one.
// If next has no values, rotate removes both reservoirs and does not restart the timer. The next
// value creates them again.
func (sm *Summary) rotate(r *recent) {
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if sm.recent != r {
		return
	}
	if r.next.count == 0 {
		sm.recent = nil
		return
	}
	r.shown, r.next = r.next, r.shown
	r.next.reset()
	r.stale = true
	r.rotation.Reset(sm.spec.window / 2)
}

// stop ends the timer of a summary that was removed from its set.
func (sm *Summary) stop() {
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if sm.recent != nil && sm.recent.rotation != nil {
		sm.recent.rotation.Stop()
	}
	sm.recent = nil
}

func (sm *Summary) typeName() string { return "summary" }

func (sm *Summary) appendTo(dst []byte) []byte {
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if sm.count == 0 {
		return dst
	}
	dst = appendNumber(exposition.AppendSuffixed(dst, sm.name, "_sum"), "", sm.sum)
	return appendUint(exposition.AppendSuffixed(dst, sm.name, "_count"), "", sm.count)
}

func (sm *Summary) read(m *exposition.Metric) bool {
	sm.mu.Lock()
	defer sm.mu.Unlock()
	m.Reset(exposition.Summary)
	m.Count, m.Sum = sm.count, sm.sum
	if r := sm.recent; r != nil {
		r.shown.quantiles(r.values, sm.spec.sorted)
		for i, q := range sm.spec.sorted {
			if !math.IsNaN(r.values[i]) {
				m.Quantiles = append(m.Quantiles, exposition.Quantile{Phi: q.phi, Value: r.values[i]})
			}
		}
	}
	return m.Count > 0
}

// quantileLines are the quantile lines of a summary, which precede all other lines of its
// family.
type quantileLines Summary

func (q *quantileLines) typeName() string { return "summary" }

func (q *quantileLines) read(*exposition.Metric) bool { return false }

func (q *quantileLines) appendTo(dst []byte) []byte {
	sm := (*Summary)(q)
	sm.mu.Lock()
	defer sm.mu.Unlock()
	if r := sm.recent; r != nil {
		if r.stale {
			r.lines, r.stale = sm.appendQuantiles(r.lines[:0], r), false
		}
		dst = append(dst, r.lines...)
	}
	return dst
}

func (sm *Summary) appendQuantiles(dst []byte, r *recent) []byte {
	r.shown.quantiles(r.values, sm.spec.sorted)
	base, separator := exposition.OpenLabels(sm.name)
	for i, q := range sm.spec.sorted {
		if v := r.values[i]; !math.IsNaN(v) {
			dst = append(append(append(dst, base...), separator...), `quantile="`...)
			dst = appendFloat(append(dst, q.text...), "}", v)
		}
	}
	return dst
}

// reservoir is a uniform random sample of at most sampleMax of all added values. The seed is
// constant, so the same values result in the same sample.
type reservoir struct {
	count    uint64
	accept   uint64 // the count at which the next value enters the sample, from draws; 0: not known
	min, max float64
	values   []float64
	sorted   []float64 // values, sorted by the last call of quantiles
	changes  []change  // replacements in values since that call; too many cause a full sort
	random   uint32    // state of the generator after the end of draws
	offset   uint32    // in draws
	slot     uint16    // index of the value that the next accepted value replaces
	nan      bool      // a value was NaN since the last reset
}

// change is the replacement of one value of the sample.
type change struct{ from, to float64 }

const (
	sampleMax  = 1000
	movesMax   = 16  // above it a merge is cheaper than single moves
	changesMax = 256 // above it a full sort is cheaper than a merge
)

func newReservoir() *reservoir {
	r := &reservoir{}
	r.reset()
	return r
}

func (r *reservoir) reset() {
	*r = reservoir{
		values: r.values[:0], sorted: r.sorted[:0], changes: r.changes[:0],
		min: math.Inf(1), max: math.Inf(-1),
	}
}

// skips adds v if v changes only the count, and reports whether it has added v. In a full
// reservoir most values change only the count.
func (r *reservoir) skips(v float64) bool {
	if r.count+1 < r.accept && v <= r.max && v >= r.min {
		r.count++
		return true
	}
	return false
}

// add adds v and reports whether a quantile may have changed.
func (r *reservoir) add(v float64) bool {
	moved := false
	if v > r.max {
		r.max, moved = v, true
	}
	if v < r.min {
		r.min, moved = v, true
	}
	r.count++
	if math.IsNaN(v) {
		r.nan = true
	}
	if len(r.values) < sampleMax {
		if r.values = append(r.values, v); len(r.values) == sampleMax {
			r.accept = sampleMax
			r.advance()
		}
		return true
	}
	i := r.draw()
	if i >= sampleMax {
		return moved
	}
	if len(r.sorted) < sampleMax {
		r.sorted = r.sorted[:0] // sorted before the sample was full
	} else if len(r.changes) <= changesMax {
		r.changes = append(r.changes, change{r.values[i], v})
	}
	r.values[i] = v
	return true
}

// quantiles sets dst to the values of the wanted quantiles; to NaN if the reservoir is empty.
func (r *reservoir) quantiles(dst []float64, wanted []quantile) {
	r.sort()
	for i, q := range wanted {
		switch {
		case len(r.sorted) == 0 || math.IsNaN(q.phi):
			dst[i] = math.NaN()
		case q.phi <= 0:
			dst[i] = r.min
		case q.phi >= 1:
			dst[i] = r.max
		default:
			dst[i] = r.sorted[int(q.phi*float64(len(r.sorted)-1)+0.5)]
		}
	}
}

// sort updates sorted: with few changes it moves single values, with more it merges, and
// with many it sorts all values.
func (r *reservoir) sort() {
	added := r.values[min(len(r.sorted), len(r.values)):]
	switch n := len(r.changes) + len(added); {
	case n > changesMax || r.nan && n > movesMax: // NaN equals nothing
		r.sorted = append(r.sorted[:0], r.values...)
		slices.Sort(r.sorted)
	case n > movesMax:
		r.merge(added)
	default:
		for _, v := range added {
			at, _ := slices.BinarySearch(r.sorted, v)
			r.sorted = slices.Insert(r.sorted, at, v)
		}
		for _, c := range r.changes {
			move(r.sorted, c.from, c.to)
		}
	}
	r.changes = r.changes[:0]
}

// merge updates sorted: it removes the replaced values and inserts the added ones.
func (r *reservoir) merge(added []float64) {
	var scratch [2 * changesMax]float64
	in := append(scratch[:0:changesMax], added...)
	out := scratch[changesMax:changesMax]
	for _, c := range r.changes {
		in, out = append(in, c.to), append(out, c.from)
	}
	slices.Sort(in)
	slices.Sort(out)
	in, out = withoutCommon(in, out) // drops values that were added and replaced since the last sort
	r.sorted = mergeSorted(without(r.sorted, out), in)
}

// withoutCommon removes the common values of two sorted lists from both, in place.
func withoutCommon(a, b []float64) (onlyA, onlyB []float64) {
	onlyA, onlyB = a[:0], b[:0]
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0] < b[0]:
			onlyA, a = append(onlyA, a[0]), a[1:]
		case a[0] > b[0]:
			onlyB, b = append(onlyB, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return append(onlyA, a...), append(onlyB, b...)
}

// without removes the values of out from sorted, in place. Both are sorted, and sorted has
// all values of out.
func without(sorted, out []float64) []float64 {
	if len(out) == 0 {
		return sorted
	}
	kept := 0
	for i, v := range sorted {
		if v == out[0] {
			if out = out[1:]; len(out) == 0 {
				return append(sorted[:kept], sorted[i+1:]...)
			}
			continue
		}
		sorted[kept] = v
		kept++
	}
	return sorted[:kept]
}

// mergeSorted merges two sorted lists, from their ends. It appends to the first list.
func mergeSorted(sorted, in []float64) []float64 {
	i := len(sorted) - 1
	sorted = append(sorted, in...)
	for at := len(sorted) - 1; len(in) > 0; at-- {
		if last := in[len(in)-1]; i < 0 || sorted[i] <= last {
			sorted[at], in = last, in[:len(in)-1]
		} else {
			sorted[at] = sorted[i]
			i--
		}
	}
	return sorted
}

// move replaces from with to in sorted and shifts the values in between.
func move(sorted []float64, from, to float64) {
	i, _ := slices.BinarySearch(sorted, from)
	j, _ := slices.BinarySearch(sorted, to)
	if j > i {
		j--
		copy(sorted[i:j], sorted[i+1:j+1])
	} else {
		copy(sorted[j+1:i+1], sorted[j:i])
	}
	sorted[j] = to
}
