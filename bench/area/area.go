// Package area is what the areas of the bench have in common: what they are given, what they give back, and the tape on
// which they write every reading.
//
// In comes an Env (rounds, folders, programs), out goes an Outcome: the readings of all sides in the order they were
// taken, and for each goal the one figure that follows from them. The areas themselves live in areas/, each a value of
// type Area in the table of cmd/bench. What is not here: limits (package goal) and paper (package report).
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

// Errors of a bench that must not be believed.
var (
	ErrUnequal = errors.New("answers differ")
	ErrEmpty   = errors.New("answer is empty")
)

// Area is one area of goals and the bench that measures it.
type Area struct {
	Name  string   // as in the goals' names
	Also  []string // further names of goals that it measures
	About string   // one line
	Run   func(ctx context.Context, env Env) (*Outcome, error)
}

// Measures tells whether goals of this name are the area's.
func (a Area) Measures(name string) bool { return a.Name == name || slices.Contains(a.Also, name) }

// Env is what an area is given.
type Env struct {
	Rounds   int           // readings of each kind and side, of which the best counts
	Cache    string        // absolute folder for data that is dear to make
	Programs peer.Programs // the programs to run
	Log      io.Writer     // progress, for people
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
	Round int     `json:"round"` // from 1; 0 is a figure that was computed from the best of others
	Value float64 `json:"value"`
}

// Units of readings. Figures are kept in these and written in handier ones.
const (
	Seconds = "s"
	Bytes   = "bytes"
	Count   = "count"
	Ratio   = "ratio"
)

// Tape holds readings in the order they were taken.
type Tape struct {
	Readings []Reading
}

// Add writes a reading on the tape.
func (t *Tape) Add(round int, side, what, unit string, value float64) {
	t.Readings = append(t.Readings, Reading{What: what, Side: side, Unit: unit, Round: round, Value: value})
}

// Best is the smallest reading of what on a side, or NaN when there is none.
func (t *Tape) Best(side, what string) float64 {
	best := math.NaN()
	for _, r := range t.Readings {
		if r.Side == side && r.What == what && !(r.Value >= best) {
			best = r.Value
		}
	}
	return best
}

// Over is the best of what on one side over the best on another; NaN when one of them was never read or the other is 0.
func (t *Tape) Over(side, other, what string) float64 {
	return Over(t.Best(side, what), t.Best(other, what))
}

// Over is a over b, and NaN instead of an infinite figure.
func Over(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

// Whats are the kinds of reading on the tape, in the order of their first appearance.
func (t *Tape) Whats() []string {
	var whats []string
	for _, r := range t.Readings {
		if !slices.Contains(whats, r.What) {
			whats = append(whats, r.What)
		}
	}
	return whats
}

// Measured is the figure that is held against a goal.
type Measured struct {
	Goal  string   // its name
	Value float64  // in the goal's unit
	From  []string // the kinds of reading it follows from
}

// Outcome is what an area gives back.
type Outcome struct {
	Sides    []string // the columns of its table; the last one is held against the first
	Versions []string // of the programs and libraries that took part
	Tape     Tape
	Measured []Measured
	Notes    []string // what a reader of the table must know
}

// Measure says which figure is held against a goal.
func (o *Outcome) Measure(goal string, value float64, from ...string) {
	o.Measured = append(o.Measured, Measured{Goal: goal, Value: value, From: from})
}

// Figure is the measured figure of a goal, or NaN when nobody measured it.
func (o *Outcome) Figure(goal string) float64 {
	for _, m := range o.Measured {
		if m.Goal == goal {
			return m.Value
		}
	}
	return math.NaN()
}

// SameBytes says where two answers begin to differ; an empty answer equals none.
func SameBytes(what string, a, b []byte) error {
	if len(a) == 0 || len(b) == 0 {
		return fmt.Errorf("%s: %w: %d and %d bytes", what, ErrEmpty, len(a), len(b))
	}
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return fmt.Errorf("%s: %w at byte %d of %d and %d: %q, %q", what, ErrUnequal, i, len(a), len(b), around(a, i), around(b, i))
		}
	}
	if len(a) != len(b) {
		return fmt.Errorf("%s: %w: one ends after %d bytes, the other after %d: %q, %q", what, ErrUnequal, len(a), len(b), around(a, n), around(b, n))
	}
	return nil
}

func around(b []byte, i int) []byte {
	return b[max(0, i-40):min(len(b), i+40)]
}
