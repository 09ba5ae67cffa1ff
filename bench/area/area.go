// Package area is what all areas of the bench share: their input and result, the programs that are measured, and the
// Recorder that records every reading.
//
// An Area gets a Bench: its Env (rounds, directories, programs) and the Outcome that it fills with the readings of all sides,
// in the order in which they were taken, and one figure per goal computed from them. A Bench starts the programs, compares
// their responses, and measures them in turn. The areas are in areas/; the table in cmd/bench lists them. Package goal holds
// the limits, package report the output.
package area

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/ferula-io/ferula/bench/peer"
)

// Errors that invalidate a bench run.
var (
	ErrUnequal = errors.New("responses differ")
	ErrEmpty   = errors.New("response is empty")
)

// Area is one area of goals and the bench that measures it.
type Area struct {
	Name  string   // first part of the names of its goals, before the slash
	Also  []string // further first parts of names of goals that it measures
	About string   // description in one line

	Sides []string // the columns of its table: the first is the peer, the last ferula
	Run   func(ctx context.Context, b *Bench) error
}

// Measures reports whether goals whose names begin with name and a slash belong to the area.
func (a Area) Measures(name string) bool { return a.Name == name || slices.Contains(a.Also, name) }

// Env is the input of an area.
type Env struct {
	Rounds   int           // readings of each kind and side; their median is the result
	Cache    string        // absolute directory for data that is expensive to create
	Programs peer.Programs // the programs under test
	Log      io.Writer     // progress messages
	Short    bool          // areas that take minutes run less and for less time, only to show that they run
}

// Logf writes one line of progress.
func (e Env) Logf(format string, args ...any) {
	fmt.Fprintf(e.Log, time.Now().Format("15:04:05 ")+format+"\n", args...)
}

// Reading is one measured figure.
type Reading struct {
	What  string  `json:"what"`
	Side  string  `json:"side"`
	Unit  string  `json:"unit"`
	Round int     `json:"round"` // from 1; 0 is a figure computed from others
	Value float64 `json:"value"`
}

// Units of readings. Figures are stored in these units and printed in larger or smaller ones.
const (
	Seconds = "s"
	Bytes   = "bytes"
	Count   = "count"
	Ratio   = "ratio"
)

// Recorder records readings in the order in which they were taken.
type Recorder struct{ Readings []Reading }

// Add records a reading.
func (rec *Recorder) Add(round int, side, what, unit string, value float64) {
	rec.Readings = append(rec.Readings, Reading{What: what, Side: side, Unit: unit, Round: round, Value: value})
}

// Median returns the median of the readings named what on a side, or NaN if there is none.
func (rec *Recorder) Median(side, what string) float64 {
	values := rec.values(side, what)
	if len(values) == 0 {
		return math.NaN()
	}
	half := len(values) / 2
	if len(values)%2 == 0 {
		return (values[half-1] + values[half]) / 2
	}
	return values[half]
}

// values returns the readings named what on a side in ascending order.
func (rec *Recorder) values(side, what string) []float64 {
	var values []float64
	for _, r := range rec.Readings {
		if r.Side == side && r.What == what && !math.IsNaN(r.Value) {
			values = append(values, r.Value)
		}
	}
	slices.Sort(values)
	return values
}

// Spread returns the greatest distance of a reading named what on a side from the median of these readings, as a share of
// the median. It is 0 for a single reading, and NaN without readings or if the median is 0.
func (rec *Recorder) Spread(side, what string) float64 {
	values, median := rec.values(side, what), rec.Median(side, what)
	if len(values) == 0 || median == 0 {
		return math.NaN()
	}
	return max(median-values[0], values[len(values)-1]-median) / math.Abs(median)
}

// Over returns the median of the readings named what on one side, divided by the median on another side; NaN if a median is
// missing or the divisor is 0.
func (rec *Recorder) Over(side, other, what string) float64 {
	return Over(rec.Median(side, what), rec.Median(other, what))
}

// Over returns a / b, and NaN if b is 0.
func Over(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// Worst returns the greatest of several figures, and NaN if one of them is NaN.
func Worst(figures ...float64) float64 {
	worst := math.Inf(-1)
	for _, v := range figures {
		worst = math.Max(worst, v)
	}
	return worst
}

// Kinds returns the names of the recorded readings, in the order of their first appearance.
func (rec *Recorder) Kinds() []string {
	var kinds []string
	for _, r := range rec.Readings {
		if !slices.Contains(kinds, r.What) {
			kinds = append(kinds, r.What)
		}
	}
	return kinds
}

// Measured is the figure that is compared with a goal's limit.
type Measured struct {
	Goal  string   // its name
	Value float64  // in the goal's unit
	From  []string // names of the readings from which it is computed
}

// Outcome is the result of an area.
type Outcome struct {
	Sides    []string // the columns of the table; the last one is compared with the first
	Versions []string // of the programs and libraries measured
	Recorder
	Measured []Measured
	Notes    []string // for the reader of the table
}

// Measure records the figure of a goal.
func (o *Outcome) Measure(goal string, value float64, from ...string) {
	o.Measured = append(o.Measured, Measured{Goal: goal, Value: value, From: from})
}

// Ratio records the figure of a goal: the worst ratio of the last side to the first one.
func (o *Outcome) Ratio(goal string, whats ...string) { o.RatioTo(goal, o.Sides[0], whats...) }

// RatioTo records the figure of a goal: the worst ratio of the last side to another one.
func (o *Outcome) RatioTo(goal, other string, whats ...string) {
	o.measureWorst(goal, whats, func(what string) float64 { return o.Over(o.Sides[len(o.Sides)-1], other, what) })
}

// Own records the figure of a goal: the greatest median of the last side, in a multiple of its unit.
func (o *Outcome) Own(goal string, unit float64, whats ...string) {
	o.measureWorst(goal, whats, func(what string) float64 { return o.Median(o.Sides[len(o.Sides)-1], what) / unit })
}

func (o *Outcome) measureWorst(goal string, whats []string, of func(what string) float64) {
	figures := make([]float64, len(whats))
	for i, what := range whats {
		figures[i] = of(what)
	}
	o.Measure(goal, Worst(figures...), whats...)
}

// Note adds notes for the reader of the table.
func (o *Outcome) Note(notes ...string) { o.Notes = append(o.Notes, notes...) }

// Figure returns the measured figure of a goal, or NaN if it was not measured.
func (o *Outcome) Figure(goal string) float64 {
	for _, m := range o.Measured {
		if m.Goal == goal {
			return m.Value
		}
	}
	return math.NaN()
}

// SameBytes returns an error that shows where two responses begin to differ. Empty responses are an error, too.
func SameBytes(what string, a, b []byte) error {
	if len(a) == 0 || len(b) == 0 {
		return fmt.Errorf("%s: %w: %d and %d bytes", what, ErrEmpty, len(a), len(b))
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return fmt.Errorf("%s: %w at byte %d of %d and %d: %q, %q",
				what, ErrUnequal, i, len(a), len(b), around(a, i), around(b, i))
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("%s: %w: one ends after %d bytes, the other after %d: %q, %q",
			what, ErrUnequal, len(a), len(b), around(a, n), around(b, n))
	}
	return nil
}

func around(b []byte, i int) []byte {
	return b[max(0, i-40):min(len(b), i+40)]
}
