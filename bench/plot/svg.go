package plot

import (
	"fmt"
	"html"
	"strings"

	"github.com/ferula-io/ferula/bench/report"
)

// The size of every plot in pixels; the height of bars depends on their number.
const (
	width      = 560
	lineHeight = 350
)

// colour is a colour on a light and on a dark background.
type colour struct{ class, light, dark string }

// background is that of each plot, which does not depend on the colour of the page around it.
var background = colour{"bg", "#ffffff", "#0d1117"}

// Classes of lines and bars.
const (
	peer  = "peer"  // the program or library that ferula replaces
	other = "other" // a second one
	floor = "floor" // the least that such work can cost
	own   = "own"   // ferula
	text  = "text"
	muted = "muted"
	grid  = "grid"
)

var palette = []colour{
	{peer, "#c4320a", "#ff8f66"}, {other, "#6639ba", "#c69bff"}, {floor, "#6e7781", "#9ea7b3"}, {own, "#116329", "#4ac26b"},
	{text, "#1f2328", "#e6edf3"}, {muted, "#59636e", "#9ea7b3"}, {grid, "#d1d9e0", "#30363d"},
}

// svg builds a file.
type svg struct{ strings.Builder }

// begin writes the head with the colours, the title and the line below it.
func (s *svg) begin(height int, title, note string) {
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(s, "<title>%s</title>\n<style>\n", html.EscapeString(title))
	s.colours(func(c colour) string { return c.light })
	s.WriteString("@media (prefers-color-scheme: dark) {\n")
	s.colours(func(c colour) string { return c.dark })
	s.WriteString("}\n</style>\n")
	fmt.Fprintf(s, `<rect class="%s" width="%d" height="%d"/>`+"\n", background.class, width, height)
	s.text(12, 22, text, ` font-size="14" font-weight="bold"`, title)
	s.text(12, 40, muted, "", note)
}

func (s *svg) colours(of func(colour) string) {
	for _, c := range append([]colour{background}, palette...) {
		fmt.Fprintf(s, ".%s { fill: %s; }\n.%s-line { fill: none; stroke: %s; }\n", c.class, of(c), c.class, of(c))
	}
}

// end writes the last lines: the runs that the figures are of.
func (s *svg) end(height int, runs []string) string {
	for i, run := range runs {
		s.text(12, float64(height-8-12*(len(runs)-1-i)), muted, ` font-size="10"`, run)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func (s *svg) text(x, y float64, class, attributes, content string) {
	fmt.Fprintf(s, `<text class="%s" x="%s" y="%s"%s>%s</text>`+"\n", class, at(x), at(y), attributes, html.EscapeString(content))
}

func (s *svg) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(s, `<line class="%s-line" x1="%s" y1="%s" x2="%s" y2="%s"/>`+"\n", class, at(x1), at(y1), at(x2), at(y2))
}

// at formats a coordinate.
func at(v float64) string { return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") }

// runsOf returns a line for each area: its run and machine.
func runsOf(r report.Results, areas []string) (runs []string) {
	for _, name := range areas {
		runs = append(runs, fmt.Sprintf("%s: %s; %s", name, r[name].Run, r[name].ShortMachine()))
	}
	return runs
}
