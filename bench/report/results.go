package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ferula-io/ferula/bench/goal"
)

const heading = `# Results

The last full run of each area, as ` + "`make bench`" + ` writes it: see README.md for how a claim is made. Goals are ratios within
one run, or counts; the absolute figures say only what the ratios meant on that machine. Limits are those of the commit of the
run; goals.tsv has the current ones.
`

// WriteResults replaces the area's section in the named file and leaves the other sections unchanged.
func (r Run) WriteResults(name string) error {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if len(text) == 0 {
		text = []byte(heading)
	}
	return os.WriteFile(name, []byte(Replace(string(text), r.Area.Name, r.section())), 0o644)
}

// WriteFiles writes the further results of the area into the repository in root.
func (r Run) WriteFiles(root string) error {
	for _, f := range r.Outcome.Files {
		name := filepath.Join(root, filepath.FromSlash(f.Path))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(f.Text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Replace puts section between the markers of an area, or at the end if there are no
// markers.
func Replace(text, areaName, section string) string {
	begin, end := "<!-- begin "+areaName+" -->\n", "<!-- end "+areaName+" -->\n"
	section = begin + section + end
	before, rest, ok := strings.Cut(text, begin)
	if !ok {
		return strings.TrimRight(text, "\n") + "\n\n" + section
	}
	_, after, ok := strings.Cut(rest, end)
	if !ok {
		return before + section // a section without an end is the last
	}
	return before + section + after
}

func (r Run) section() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s.\n\n", r.Area.Name, r.Area.About)
	fmt.Fprintf(&b, "- %s, commit %s, median of %d\n- %s\n", r.When.UTC().Format("2006-01-02"), r.Commit, r.Rounds, r.Machine)
	for _, v := range r.Outcome.Versions {
		fmt.Fprintf(&b, "- %s\n", v)
	}
	if noisy := r.Noisy(); len(noisy) > 0 {
		fmt.Fprintf(&b, "- **not a steady run**: readings of a peer are far from their median: %s\n", strings.Join(noisy, "; "))
	}
	b.WriteString("\n")
	goals := [][]string{{"goal", "measured", "", "limit", ""}}
	for _, g := range r.Goals {
		figure := r.Outcome.Figure(g.Name)
		goals = append(goals, []string{g.Name, goal.Figure(figure), g.Op, goal.Figure(g.Limit), g.Verdict(figure)})
	}
	markdown(&b, goals)
	markdown(&b, r.table())
	for _, n := range r.Outcome.Notes {
		fmt.Fprintf(&b, "- %s\n", n)
	}
	return b.String()
}

// markdown writes a table whose first row is its header, and an empty line after it.
func markdown(b *strings.Builder, rows [][]string) {
	for i, row := range rows {
		b.WriteString("| " + strings.Join(row, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", len(row)) + "\n")
		}
	}
	b.WriteString("\n")
}
