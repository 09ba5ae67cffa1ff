package report

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/bench/goal"
)

const heading = `# Results

The last full run of each area on each kind of CPU, as ` + "`make bench`" + ` writes it: see README.md for how a claim is made. Goals
are ratios within one run, or counts; the absolute figures say only what the ratios meant on that machine. Limits are those of
the commit of the run; goals.tsv has the current ones. Of an area that has several sections, the first one is that of the plots
and of the README of the repository.
`

// WriteResults replaces the area's section of this machine in the named file and leaves the other sections unchanged, those of
// other machines included. It reports whether the section is the first one of the area, whose figures the plots show.
func (r Run) WriteResults(name string) (first bool, err error) {
	text, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if len(text) == 0 {
		text = []byte(heading)
	}
	section := r.sectionName(Parse(string(text)))
	return section == r.Area.Name, os.WriteFile(name, []byte(place(string(text), r.Area.Name, section, r.section(section))), 0o644)
}

// onMachine separates an area and a machine in the name of a section that is not the first one of its area.
const onMachine = " on "

// sectionName returns the name of this run's section: the area, and the machine if the first section is that of another one.
func (r Run) sectionName(recorded Results) string {
	first, ok := recorded[r.Area.Name]
	if !ok || first.Machine == "" || r.Machine.is(first.Machine) {
		return r.Area.Name
	}
	return r.Area.Name + onMachine + r.Machine.Processor()
}

// place puts a section between its markers. A new section of an area that has others follows them.
func place(text, areaName, name, section string) string {
	begin, _ := markers(name)
	if strings.Contains(text, begin) {
		return Replace(text, name, section)
	}
	last := -1
	for at, line := 0, ""; at < len(text); at += len(line) {
		line = text[at:]
		if newline := strings.IndexByte(line, '\n'); newline >= 0 {
			line = line[:newline+1]
		}
		_, end := markers(areaName)
		if line == end || strings.HasPrefix(line, "<!-- end "+areaName+onMachine) {
			last = at + len(line)
		}
	}
	if last < 0 {
		return Replace(text, name, section)
	}
	return strings.TrimRight(Replace(text[:last], name, section), "\n") + "\n" + text[last:]
}

// markers returns the lines before and after a section.
func markers(name string) (begin, end string) {
	return "<!-- begin " + name + " -->\n", "<!-- end " + name + " -->\n"
}

// Replace puts section between the markers of its name, or at the end if there are no
// markers.
func Replace(text, name, section string) string {
	begin, end := markers(name)
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

// title names the run.
func (r Run) title() string {
	return fmt.Sprintf("%s, commit %s, median of %d", r.When.UTC().Format("2006-01-02"), r.Commit, r.Rounds)
}

func (r Run) section(name string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s.\n\n", name, r.Area.About)
	fmt.Fprintf(&b, "- %s\n- %s\n", r.title(), r.Machine)
	for i, v := range r.Outcome.Versions {
		if slices.Contains(r.Outcome.Versions[:i], v) {
			continue // an area may start a program several times
		}
		fmt.Fprintf(&b, "- %s\n", v)
	}
	if noisy := r.Noisy(); len(noisy) > 0 {
		fmt.Fprintf(&b, "- **not a steady run**: readings of a peer are far from their median: %s\n", strings.Join(noisy, "; "))
	}
	if r.Rounds == 1 {
		b.WriteString("- **one round**: it does not show how far readings are from each other\n")
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
