package columns

import (
	"math"

	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
)

// decoded has the points of a series. The summary of a chunk is a point with its first value at its first sample, and
// a point with its last value at its last sample. Every function that uses summaries thereby gets the same result from
// these two points as from all samples, except where it counts.
type decoded struct {
	points []promql.FPoint
	tally  []tally // by point; empty if each point is a sample
}

// tally has totals of a series up to a point.
type tally struct {
	samples int32
	changes int32 // in the chunks of summaries
}

func (d *decoded) reset() { d.points, d.tally = d.points[:0], d.tally[:0] }

// within returns the points from mint to maxt. No summary reaches beyond one of them.
func (d *decoded) within(mint, maxt int64) decoded {
	points := series.Within(d.points, mint, maxt)
	if len(d.tally) == 0 {
		return decoded{points: points}
	}
	from := cap(d.points) - cap(points) // Within has cut so many points at the beginning
	return decoded{points, d.tally[from : from+len(points)]}
}

// samples returns the number of samples of points[from:to], whose first point is a sample or begins a summary.
func (d *decoded) samples(from, to int) int {
	if len(d.tally) == 0 || from == to {
		return to - from
	}
	return int(d.tally[to-1].samples-d.tally[from].samples) + 1
}

// addSamples extends the tally to points that were appended.
func (d *decoded) addSamples() {
	for n := len(d.tally); n > 0 && n < len(d.points); n++ {
		next := d.tally[n-1]
		next.samples++
		d.tally = append(d.tally, next)
	}
}

// addSummary appends the points of a summary; with extremes, the least and the greatest value replace the first and the
// last one.
func (d *decoded) addSummary(c *series.Chunk, extremes bool) error {
	s, err := c.Summary()
	if err != nil {
		return err
	}
	if len(d.tally) == 0 {
		for i := range d.points {
			d.tally = append(d.tally, tally{samples: int32(i + 1)})
		}
	}
	var last tally
	if n := len(d.tally); n > 0 {
		last = d.tally[n-1]
	}
	if last.samples > math.MaxInt32-math.MaxUint16 {
		return errNeedSamples
	}
	if extremes {
		s.First, s.Last = s.Min, s.Max
	}
	d.points = append(d.points, promql.FPoint{T: c.MinMS, F: s.First})
	d.tally = append(d.tally, tally{last.samples + 1, last.changes})
	if s.Count > 1 {
		d.points = append(d.points, promql.FPoint{T: c.MaxMS, F: s.Last})
		d.tally = append(d.tally, tally{last.samples + int32(s.Count), last.changes + int32(s.Changes)})
	}
	return nil
}

// use states how a consumer of a selection can use summaries.
type use struct {
	whole    bool // summaries are enough for chunks in windows
	starts   bool // the start of a window counts, not only its end
	rising   bool // a chunk with a value less than the one before is needed
	extremes bool // the least and greatest values are needed, not the first and the last
}

// ofLast is the use of consumers that need only the last sample of each window.
var ofLast = use{whole: true}

// uses are the functions of range selectors that can use summaries.
var uses = map[string]use{
	"rate": {whole: true, starts: true, rising: true}, "increase": {whole: true, starts: true, rising: true},
	"resets": {whole: true, starts: true, rising: true}, "delta": {whole: true, starts: true},
	"min_over_time":     {whole: true, starts: true, extremes: true},
	"max_over_time":     {whole: true, starts: true, extremes: true},
	"count_over_time":   {whole: true, starts: true},
	"last_over_time":    {whole: true, starts: true}, // the statistics count all samples of a window
	"first_over_time":   {whole: true, starts: true},
	"present_over_time": {whole: true, starts: true}, "absent_over_time": {whole: true, starts: true},
	"ts_of_first_over_time": {whole: true, starts: true}, "ts_of_last_over_time": {whole: true, starts: true},
	"changes": {whole: true, starts: true},
}

// gapLeastMS is the least time without start or end of a window in which a selection looks for chunks that need not be
// decoded: most chunks have 120 samples.
const gapLeastMS = 10 * 60_000

// cover knows the windows of a selection, and so which of its chunks need not be decoded.
type cover struct {
	use
	ends       series.Steps // of the windows, inclusive
	rangeMS    int64        // length of a window, whose start is exclusive
	mint, maxt int64        // of the selection
	gaps       bool         // there may be chunks that no window touches
}

// cover returns the cover of a selection, or nil if the windows are too short or too close to each other.
func (s *selector) cover(ev *evaluation, work perSeries) *cover {
	steps, between := int64(ev.steps), ev.interval
	if work.fixed || steps == 1 {
		steps, between = 1, 0
	}
	least := ev.engine.gapLeastMS
	gaps := between-work.rangeMS >= least
	if !gaps && !(work.use.whole && max(between, work.rangeMS-(steps-1)*between) >= least) {
		return nil
	}
	first := ev.start - s.offset(ev)
	return &cover{use: work.use, rangeMS: work.rangeMS, mint: s.hints.Start, maxt: s.hints.End, gaps: gaps,
		ends: series.Steps{FirstMS: first, LastMS: first + (steps-1)*ev.interval, StepMS: ev.interval}}
}

// summaries returns which chunks of the selection may be summaries.
func (c *cover) summaries() *series.Summaries {
	if c == nil {
		return nil
	}
	return &series.Summaries{Whole: c.enough, Rising: c.rising}
}

// enough reports whether a summary is enough of a chunk: no window touches the chunk, or each window that touches it
// covers it whole.
func (c *cover) enough(minMS, maxMS int64) bool {
	end := c.ends.NotBefore(max(minMS, c.mint))
	if end > c.ends.LastMS || end-c.rangeMS >= min(maxMS, c.maxt) {
		return true
	}
	if !c.whole || end < maxMS || minMS < c.mint || maxMS > c.maxt {
		return false
	}
	if !c.starts {
		return true
	}
	start := c.ends.NotBefore(minMS+c.rangeMS) - c.rangeMS
	return start >= maxMS || start > c.ends.LastMS-c.rangeMS
}

// untouched reports whether no window touches a chunk.
func (c *cover) untouched(minMS, maxMS int64) bool {
	end := c.ends.NotBefore(max(minMS, c.mint))
	return end > c.ends.LastMS || end-c.rangeMS >= min(maxMS, c.maxt)
}

// add appends a summary, or returns false if the chunk must be decoded. It appends nothing for a chunk that no window
// touches.
func (c *cover) add(to *decoded, chunk *series.Chunk) (done bool, err error) {
	if c == nil {
		return false, nil
	}
	if chunk.Encoding != series.Summarized {
		return c.gaps && c.untouched(chunk.MinMS, chunk.MaxMS), nil
	}
	if invariant.Enabled {
		invariant.Check(c.enough(chunk.MinMS, chunk.MaxMS), "the chunk from %d to %d is a summary", chunk.MinMS, chunk.MaxMS)
	}
	if !c.whole {
		return true, nil
	}
	if n := len(to.points); n > 0 && to.points[n-1].T >= chunk.MinMS {
		return false, errNeedSamples
	}
	return true, to.addSummary(chunk, c.extremes)
}

// changesWindows computes changes().
func changesWindows(w *windows, r *row, points []promql.FPoint) error {
	upTo := make([]int32, len(points)) // by point: the number of changes up to it
	for i := 1; i < len(points); i++ {
		upTo[i] = upTo[i-1]
		if len(w.tally) > 0 && w.tally[i].samples-w.tally[i-1].samples > 1 {
			upTo[i] += w.tally[i].changes - w.tally[i-1].changes
		} else if a, b := points[i-1].F, points[i].F; a != b && !(math.IsNaN(a) && math.IsNaN(b)) {
			upTo[i]++
		}
	}
	for i, s := range w.spans {
		if s.from < s.to {
			r.values[i] = float64(upTo[s.to-1] - upTo[s.from])
			r.has.set(i)
		}
	}
	return nil
}

// countWindows computes count_over_time().
func countWindows(w *windows, r *row, _ []promql.FPoint) error {
	for i, s := range w.spans {
		if s.from < s.to {
			r.values[i] = float64(w.samples(s.from, s.to))
			r.has.set(i)
		}
	}
	return nil
}
