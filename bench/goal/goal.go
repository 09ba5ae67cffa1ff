// Package goal parses the goals: the limit of a figure that an area measures.
//
// The input is bench/goals.tsv, one goal per line with tabs between its fields
//
//	name	op	limit	unit	against, and how
//
// The output is the goals of one area and the verdict on a measured figure. A name is area/what. The verdict applies to
// the figure before it is rounded.
package goal

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
)

// ErrMalformed means that a line of the goals does not parse.
var ErrMalformed = errors.New("malformed goal")

// Goal is one line of the goals.
type Goal struct {
	Name  string  // area/what
	Op    string  // <= or >=
	Limit float64 // limit of the measured figure
	Unit  string
	How   string // what it is compared with, and how it is measured
}

// Area returns the part of the name before the slash.
func (g Goal) Area() string {
	area, _, _ := strings.Cut(g.Name, "/")
	return area
}

// Met reports whether the figure measured reaches the goal. NaN does not.
func (g Goal) Met(measured float64) bool {
	if math.IsNaN(measured) {
		return false
	}
	if g.Op == ">=" {
		return measured >= g.Limit
	}
	return measured <= g.Limit
}

// Verdict returns the verdict on a measured figure: ok or SHORT.
func (g Goal) Verdict(measured float64) string {
	if g.Met(measured) {
		return "ok"
	}
	return "SHORT"
}

// Line returns the line that reports a goal. NaN stands for a goal that was not measured.
func (g Goal) Line(measured float64) string {
	figure := Figure(measured)
	if !g.Met(measured) && figure == Figure(g.Limit) {
		figure = strconv.FormatFloat(measured, 'g', -1, 64) // unrounded, so that a narrow miss does not print as met
	}
	return fmt.Sprintf("goal %s %s %s %s %s", g.Name, figure, g.Op, Figure(g.Limit), g.Verdict(measured))
}

// Figure formats a figure to four digits; NaN is "missing".
func Figure(v float64) string {
	if math.IsNaN(v) {
		return "missing"
	}
	if math.Abs(v) >= 1000 && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}

// Read parses goals. It skips empty lines and lines that begin with #.
func Read(r io.Reader) ([]Goal, error) {
	var goals []Goal
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := lines.Text()
		if strings.TrimSpace(text) == "" || strings.HasPrefix(text, "#") {
			continue
		}
		g, err := parse(text)
		if err == nil && seen[g.Name] {
			err = fmt.Errorf("%w: duplicate goal %s", ErrMalformed, g.Name)
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		seen[g.Name] = true
		goals = append(goals, g)
	}
	return goals, lines.Err()
}

// ReadFile parses the goals of the named file.
func ReadFile(name string) ([]Goal, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	goals, err := Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return goals, nil
}

// Of returns the goals of one area in the order of the file.
func Of(goals []Goal, area string) []Goal {
	var of []Goal
	for _, g := range goals {
		if g.Area() == area {
			of = append(of, g)
		}
	}
	return of
}

func parse(line string) (Goal, error) {
	fields := strings.Split(line, "\t")
	if len(fields) != 5 {
		return Goal{}, fmt.Errorf("%w: %d fields, want 5", ErrMalformed, len(fields))
	}
	g := Goal{Name: fields[0], Op: fields[1], Unit: fields[3], How: fields[4]}
	if area, what, _ := strings.Cut(g.Name, "/"); area == "" || what == "" {
		return Goal{}, fmt.Errorf("%w: the name %q is not area/what", ErrMalformed, g.Name)
	}
	if g.Op != "<=" && g.Op != ">=" {
		return Goal{}, fmt.Errorf("%w: operator %q", ErrMalformed, g.Op)
	}
	limit, err := strconv.ParseFloat(fields[2], 64)
	if err != nil || math.IsNaN(limit) || math.IsInf(limit, 0) {
		return Goal{}, fmt.Errorf("%w: limit %q", ErrMalformed, fields[2])
	}
	g.Limit = limit
	return g, nil
}
