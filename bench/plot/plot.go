// Package plot draws the figures of RESULTS.md as SVG: cost against size, a file for each wire and kind of cost.
//
// The input is RESULTS.md and the table of plots in plots.go. The output are the files in docs/perf. A plot contains no figure
// that RESULTS.md does not have, and is the same for the same RESULTS.md: a test draws all plots again and compares them with
// the files. A row without a figure is an error, so that a renamed row cannot leave a plot with an older figure. What is NOT
// here: plots over time, which have more readings than RESULTS.md (areas/remoteread).
package plot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ferula-io/ferula/bench/report"
)

// File is a drawn plot.
type File struct {
	Name string // in docs/perf
	Text string
}

// Draw returns all plots of the text of RESULTS.md. The error names all rows that are missing; the plots that have their rows
// are returned all the same.
func Draw(text string) ([]File, error) {
	r := report.Parse(text)
	var files []File
	var errs []error
	for _, c := range charts() {
		drawn, err := c.draw(r)
		if err != nil {
			errs = append(errs, fmt.Errorf("plot %s: %w", c.name(), err))
			continue
		}
		files = append(files, File{c.name() + ".svg", drawn})
	}
	return files, errors.Join(errs...)
}

// Write draws all plots of the repository in root.
func Write(root string) error {
	text, err := os.ReadFile(filepath.Join(root, "bench", "RESULTS.md"))
	if err != nil {
		return err
	}
	files, missing := Draw(string(text))
	dir := filepath.Join(root, "docs", "perf")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), []byte(f.Text), 0o644); err != nil {
			return err
		}
	}
	return missing
}

// chart is a plot that can be drawn: lines or bars.
type chart interface {
	name() string
	draw(r report.Results) (string, error)
}
