// Package report prints an area's outcome: goal lines and a table for the terminal, raw readings as JSON, and a section of
// RESULTS.md.
//
// It takes an Outcome with the goals of its area and writes text and files. A section of RESULTS.md is replaced between its
// markers, so that areas can be run one by one.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/goal"
)

// Run is the outcome of an area with the metadata of its report.
type Run struct {
	Area    area.Area
	Goals   []goal.Goal // of the area
	Outcome *area.Outcome
	Machine Machine
	Commit  string
	Rounds  int
	When    time.Time
}

// Lines writes one line for each goal and returns how many fall short or are missing.
func (r Run) Lines(w io.Writer) (short int) {
	for _, g := range r.Goals {
		figure := r.Outcome.Figure(g.Name)
		fmt.Fprintln(w, g.Line(figure))
		if !g.Met(figure) {
			short++
		}
	}
	return short
}

// maxSpread is the maximum distance of a peer's reading from the median of the readings of the same name, as a share of the
// median. A run with a greater distance is not recorded.
const maxSpread = 0.2

// Noisy returns the names of the peers' CPU and wall times from which goals are computed and of which a reading is more than
// 20 % from the median.
func (r Run) Noisy() []string {
	var noisy []string
	sides := r.Outcome.Sides
	for _, m := range r.Outcome.Measured {
		for _, what := range m.From {
			if !isTime(r.unit(what)) {
				continue
			}
			for _, side := range sides[:len(sides)-1] {
				if spread := r.Outcome.Recorder.Spread(side, what); spread > maxSpread {
					if line := fmt.Sprintf("%s of %s: %.0f %%", what, side, 100*spread); !slices.Contains(noisy, line) {
						noisy = append(noisy, line)
					}
				}
			}
		}
	}
	return noisy
}

// isTime reports whether a unit is one of time: seconds, or nanoseconds, also those of a sample or of a series.
func isTime(unit string) bool {
	return unit == area.Seconds || unit == "ns" || strings.HasPrefix(unit, "ns/")
}

// table returns a row for every name of readings: the median on each side, the ratio of the last side to the first, and the
// spread of the side whose readings differ most.
func (r Run) table() [][]string {
	sides := r.Outcome.Sides
	last, first := sides[len(sides)-1], sides[0]
	heading := last + " / " + first
	if len(sides) == 1 {
		heading = "" // nothing is compared
	}
	rows := [][]string{append(append([]string{"median of " + fmt.Sprint(r.Rounds)}, sides...), heading, "spread")}
	for _, what := range r.Outcome.Recorder.Kinds() {
		row := []string{what}
		for _, side := range sides {
			row = append(row, Amount(r.Outcome.Recorder.Median(side, what), r.unit(what)))
		}
		ratio := r.Outcome.Recorder.Over(last, first, what)
		if math.IsNaN(ratio) || len(sides) == 1 {
			row = append(row, "")
		} else {
			row = append(row, goal.Figure(ratio))
		}
		row = append(row, r.spread(what))
		rows = append(rows, row)
	}
	return rows
}

// spread returns the greatest spread, over the sides, of the readings of a name, in percent; "" for a single reading.
func (r Run) spread(what string) string {
	widest := 0.0
	for _, side := range r.Outcome.Sides {
		if s := r.Outcome.Recorder.Spread(side, what); s > widest {
			widest = s
		}
	}
	if widest == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*widest)
}

func (r Run) unit(what string) string {
	for _, reading := range r.Outcome.Recorder.Readings {
		if reading.What == what {
			return reading.Unit
		}
	}
	return ""
}

// Table writes the table for a terminal, after a line that names the run and its CPU.
func (r Run) Table(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s: %s; %s\n", r.Area.Name, r.title(), r.Machine); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range r.table() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

// Amount formats a figure in a suitable multiple of its unit, such as MiB for bytes.
func Amount(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return ""
	case unit == area.Seconds && math.Abs(v) < 1:
		return goal.Figure(v*1e3) + " ms"
	case unit == area.Bytes && math.Abs(v) >= 1<<20:
		return goal.Figure(v/(1<<20)) + " MiB"
	case unit == area.Bytes && math.Abs(v) >= 1<<10:
		return goal.Figure(v/(1<<10)) + " KiB"
	case unit == area.Count, unit == area.Ratio:
		return goal.Figure(v)
	}
	return goal.Figure(v) + " " + unit
}

// raw is the content of a file in the output directory.
type raw struct {
	Goal     goal.Goal      `json:"goal"`
	Measured *float64       `json:"measured"` // null if not measured
	Verdict  string         `json:"verdict"`
	Readings []area.Reading `json:"readings"`
	Rounds   int            `json:"rounds"`
	Machine  Machine        `json:"machine"`
	Commit   string         `json:"commit"`
	Versions []string       `json:"versions"`
	When     time.Time      `json:"when"`
}

// FileName returns the file name of a goal: its name with - for /.
func FileName(goalName string) string { return strings.ReplaceAll(goalName, "/", "-") + ".json" }

// WriteRaw writes a file for each goal of the area into dir: the figure and the readings it is computed from.
func (r Run) WriteRaw(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, g := range r.Goals {
		figure := r.Outcome.Figure(g.Name)
		content := raw{
			Goal: g, Verdict: g.Verdict(figure), Readings: r.readings(g.Name), Rounds: r.Rounds,
			Machine: r.Machine, Commit: r.Commit, Versions: r.Outcome.Versions, When: r.When,
		}
		if !math.IsNaN(figure) {
			content.Measured = &figure
		}
		text, err := json.MarshalIndent(content, "", "\t")
		if err != nil {
			return fmt.Errorf("%s: %w", g.Name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, FileName(g.Name)), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// readings returns the readings from which a goal's figure is computed.
func (r Run) readings(goalName string) []area.Reading {
	found := []area.Reading{}
	for _, m := range r.Outcome.Measured {
		if m.Goal != goalName {
			continue
		}
		for _, from := range m.From {
			for _, reading := range r.Outcome.Recorder.Readings {
				if reading.What == from {
					found = append(found, reading)
				}
			}
		}
	}
	return found
}
