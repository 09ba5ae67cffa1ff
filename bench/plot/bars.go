package plot

import (
	"fmt"
	"html"
	"slices"

	"github.com/ferula-io/ferula/bench/report"
)

// bars is a plot of kinds of requests. The longest bar of a kind has the full length, so that the bars of a kind are shares
// of it.
type bars struct {
	file, title, note string
	kinds             []kind
}

// kind is one kind of request, with a bar for each side.
type kind struct {
	name string
	area string
	rows []string // whose figures are added up
	bars []bar
}

type bar struct{ side, class string }

// Measures of bars, in pixels.
const (
	barsTop               = 58
	barsLeft, barsLongest = 120, 300
	barHeight, barStep    = 11, 15
	kindHeight            = 20 // of its name
	kindGap               = 6
)

func (c bars) name() string { return c.file }

func (c bars) draw(r report.Results) (string, error) {
	height, areas := barsTop, []string{}
	for _, k := range c.kinds {
		height += kindHeight + barStep*len(k.bars) + kindGap
		if !slices.Contains(areas, k.area) {
			areas = append(areas, k.area)
		}
	}
	height += 8 + 12*len(areas)
	s := &svg{}
	s.begin(height, c.title, c.note)
	y := float64(barsTop)
	for _, k := range c.kinds {
		figures := make([]report.Figure, len(k.bars))
		most := 0.0
		for i, b := range k.bars {
			var err error
			if figures[i], err = r.Figure(k.area, b.side, k.rows...); err != nil {
				return "", err
			}
			most = max(most, figures[i].Value)
		}
		s.text(12, y+12, text, ` font-weight="bold"`, k.name)
		y += kindHeight
		for i, b := range k.bars {
			long := 0.0
			if most > 0 {
				long = barsLongest * max(0, figures[i].Value) / most
			}
			s.text(barsLeft-6, y+10, muted, ` font-size="11" text-anchor="end"`, b.side)
			fmt.Fprintf(s, `<rect class="%s" x="%d" y="%s" width="%s" height="%d"><title>%s: %s: %s</title></rect>`+"\n",
				b.class, barsLeft, at(y), at(max(1, long)), barHeight, html.EscapeString(k.name), html.EscapeString(b.side), html.EscapeString(figures[i].Text))
			s.text(barsLeft+max(1, long)+6, y+10, text, ` font-size="11"`, figures[i].Text)
			y += barStep
		}
		y += kindGap
	}
	return s.end(height, runsOf(r, areas)), nil
}
