package columns

import (
	"math"
	"slices"

	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/promql"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
)

// decoded has the points of a series. A summary is two points: the first value at the first sample, and the last value
// at the last sample. Every function that uses summaries thereby gets the same result from these points as from all
// samples, except where it counts.
type decoded struct {
	points    []promql.FPoint
	stretches []stretch // the summaries among the points
}

// stretch is the second of two points that stand for more samples. It has totals of the series up to this point.
type stretch struct {
	at      int32 // index of the point
	more    int32 // samples that are not points
	changes int32 // in stretches
	kept    bool  // a filter keeps all its samples; otherwise it keeps none
}

func (d *decoded) reset() { d.points, d.stretches = d.points[:0], d.stretches[:0] }

// stretch returns the index of the first stretch's point, or the greatest one.
func (d *decoded) stretch() int {
	if len(d.stretches) == 0 {
		return math.MaxInt
	}
	return int(d.stretches[0].at)
}

// within returns the points from mint to maxt. All stretches are in this range.
func (d *decoded) within(mint, maxt int64) decoded {
	points := series.Within(d.points, mint, maxt)
	from := cap(d.points) - cap(points) // Within has cut so many points at the beginning
	for i := range d.stretches {
		d.stretches[i].at -= int32(from)
	}
	return decoded{points: points, stretches: d.stretches}
}

// withoutStale removes stale markers, in place.
func (d decoded) withoutStale() decoded {
	if !slices.ContainsFunc(d.points, func(p promql.FPoint) bool { return value.IsStaleNaN(p.F) }) {
		return d // as a rule: the loop below takes four times as long
	}
	kept, next := 0, 0
	for i, p := range d.points {
		if value.IsStaleNaN(p.F) {
			continue
		}
		if kept < i {
			d.points[kept] = p
			if next < len(d.stretches) && int(d.stretches[next].at) == i {
				d.stretches[next].at = int32(kept)
			}
		}
		if next < len(d.stretches) && int(d.stretches[next].at) == kept {
			next++
		}
		kept++
	}
	d.points = d.points[:kept]
	return d
}

// counter counts samples, from one point to later ones.
type counter struct {
	stretches []stretch // that are not passed
	more      int       // samples before that are not points
}

// before returns the number of samples before point i.
func (c *counter) before(i int) int {
	for len(c.stretches) > 0 && int(c.stretches[0].at) < i {
		c.more, c.stretches = int(c.stretches[0].more), c.stretches[1:]
	}
	return i + c.more
}

// use states how a consumer of a selection can use summaries.
type use struct {
	whole    bool // summaries are enough for chunks in windows
	starts   bool // the start of a window counts, not only its end
	rising   bool // a chunk with a value less than the one before is needed
	extremes bool // the least and greatest values are needed, not the first and the last
	lasts    bool // the last two samples of each window are needed
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
	"irate":   {whole: true, starts: true, lasts: true}, "idelta": {whole: true, starts: true, lasts: true},
}

func (w *windowNode) use() use {
	if w.vs.Anchored || w.vs.Smoothed {
		return use{}
	}
	return uses[w.call.Func.Name]
}

// gapLeastMS is the least time without start or end of a window in which a selection looks for chunks that need not be
// decoded: most chunks have 120 samples.
const gapLeastMS = 10 * 60_000

// cover knows the windows of a selection, and so which of its chunks need not be decoded.
type cover struct {
	use
	series.Windows
	gaps   bool    // there may be chunks that no window touches
	filter *filter // if set, Whole and Starts are unused, and Ends has only the last one
}

// cover returns the cover of a selection, or nil if the windows are too short or too close to each other.
func (s *selector) cover(ev *evaluation, work perSeries) *cover {
	steps, between := int64(ev.steps), ev.interval
	if work.fixed || steps == 1 {
		steps, between = 1, 0
	}
	least := ev.engine.gapLeastMS
	gaps := between-work.rangeMS >= least
	if !gaps && work.filter != nil {
		return work.filter.coverOf(ev, s)
	}
	if !gaps && !(work.use.whole && max(between, work.rangeMS-(steps-1)*between) >= least) {
		return nil
	}
	if gaps && work.use.lasts {
		work.use = use{} // what is in windows is the last samples
	}
	first := ev.start - work.offset
	c := &cover{use: work.use, gaps: gaps, Windows: series.Windows{
		Ends:    series.Steps{FirstMS: first, LastMS: first + (steps-1)*ev.interval, StepMS: ev.interval},
		RangeMS: work.rangeMS, MinMS: s.hints.Start, MaxMS: s.hints.End, Whole: work.use.whole, Starts: work.use.starts}}
	if !c.lasts {
		c.join()
		c.Singles = c.Starts && !c.extremes
	}
	return c
}

// join makes one sequence of the starts and the ends of windows if the range is a multiple of the step: chunks are then
// compared with one sequence, which halves the time for it.
func (c *cover) join() {
	if c.Ends.FirstMS == c.Ends.LastMS {
		c.Ends.StepMS = c.RangeMS
	}
	start := c.Ends.FirstMS - c.RangeMS
	if c.Starts && c.RangeMS%c.Ends.StepMS == 0 && c.MinMS <= start+1 && c.MaxMS >= c.Ends.LastMS {
		c.Ends.FirstMS, c.RangeMS, c.Starts, c.gaps = start, 0, false, false
	}
}

// summaries returns which chunks of the selection may be summaries.
func (c *cover) summaries() *series.Summaries {
	if c == nil {
		return nil
	}
	if c.filter != nil {
		return c.filterSummaries()
	}
	if c.lasts {
		all := func(*series.Summary) bool { return true }
		return &series.Summaries{Windows: c.Windows, Lasts: true, Fits: all}
	}
	return &series.Summaries{Windows: c.Windows, Rising: c.rising}
}

// add appends a summary, or returns false if the chunk must be decoded. It appends nothing for a chunk that no window
// touches.
func (c *cover) add(to *decoded, chunk *series.Chunk) (done bool, err error) {
	if c == nil {
		return false, nil
	}
	if c.filter != nil {
		if chunk.Encoding == series.Summarized {
			return true, c.addStretch(to, chunk)
		}
		return false, nil
	}
	if chunk.Encoding != series.Summarized {
		return c.gaps && c.Untouched(chunk.MinMS, chunk.MaxMS), nil
	}
	if invariant.Enabled {
		invariant.Check(c.enough(chunk), "the chunk from %d to %d is a summary", chunk.MinMS, chunk.MaxMS)
	}
	single := c.Singles && chunk.MinMS < c.MinMS // only the last sample may be in the selection's range
	if !c.Whole || chunk.MinMS < c.MinMS && !single || chunk.MaxMS > c.MaxMS {
		return true, nil // no window needs it
	}
	if n := len(to.points); n > 0 && to.points[n-1].T >= chunk.MinMS {
		return false, errNeedSamples
	}
	s, err := chunk.Summary()
	if err != nil {
		return false, err
	}
	if single {
		to.points = append(to.points, promql.FPoint{T: chunk.MaxMS, F: s.Last})
		return true, nil
	}
	return true, to.add(chunk, &s, c.extremes)
}

// enough reports whether a chunk may be a summary, as far as its times tell.
func (c *cover) enough(s *series.Chunk) bool { return c.EnoughOf(s.MinMS, s.MaxMS, s.MinMS, s.MaxMS) }

// add appends the points of a summary. With extremes, the least and the greatest value replace the first and the last.
func (d *decoded) add(chunk *series.Chunk, s *series.Summary, extremes bool) error {
	if extremes {
		s.First, s.Last = s.Min, s.Max
	}
	d.points = append(d.points, promql.FPoint{T: chunk.MinMS, F: s.First})
	if s.Count == 1 {
		return nil
	}
	var last stretch
	if m := len(d.stretches); m > 0 {
		last = d.stretches[m-1]
	}
	if int(last.more)+s.Count > math.MaxInt32 {
		return errNeedSamples
	}
	last.at, last.more, last.changes = int32(len(d.points)), last.more+int32(s.Count-2), last.changes+int32(s.Changes)
	d.points = append(d.points, promql.FPoint{T: chunk.MaxMS, F: s.Last})
	d.stretches = append(d.stretches, last)
	return nil
}

// hasLasts reports whether no window ends with a summary.
func (w *windows) hasLasts() bool {
	stretches := w.stretches
	for _, s := range w.spans {
		for len(stretches) > 0 && int(stretches[0].at) < s.to-1 {
			stretches = stretches[1:]
		}
		if len(stretches) > 0 && int(stretches[0].at) == s.to-1 {
			return false
		}
	}
	return true
}

// changesWindows computes changes().
func changesWindows(w *windows, r *row, points []promql.FPoint) error {
	upTo := make([]int32, len(points)) // by point: the number of changes up to it
	stretches, before := w.stretches, int32(0)
	for i := 1; i < len(points); i++ {
		upTo[i] = upTo[i-1]
		if len(stretches) > 0 && int(stretches[0].at) == i {
			upTo[i] += stretches[0].changes - before
			before, stretches = stretches[0].changes, stretches[1:]
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
			r.values[i] = float64(s.samples)
			r.has.set(i)
		}
	}
	return nil
}
