package plot

import (
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ferula-io/ferula/bench/area"
	"github.com/ferula-io/ferula/bench/report"
)

// lines is a plot of cost against size. The horizontal axis is logarithmic.
type lines struct {
	file, title, note string
	area              string
	x, y              string // titles of the axes
	logY              bool   // else the axis begins at 0
	lines             []line
}

// line is one side, or one kind of request to it.
type line struct {
	name, class string
	side        string // the column of its figures
	dashed      bool
	points      []point
}

// point is a size and the rows whose figures are added up.
type point struct {
	x    float64
	rows []string
}

// drawnPoint is a point with its figure.
type drawnPoint struct {
	x float64
	report.Figure
}

// The area of the lines within a plot; their names are to the right of it.
const (
	linesLeft, linesRight = 70, 380
	linesTop, linesBottom = 56, 276
	labelHeight           = 26
)

func (c lines) name() string { return c.file }

func (c lines) draw(r report.Results) (string, error) {
	drawn := make([][]drawnPoint, len(c.lines))
	var all []drawnPoint
	for i, l := range c.lines {
		for _, p := range l.points {
			f, err := r.Figure(c.area, l.side, p.rows...)
			if err != nil {
				return "", err
			}
			drawn[i] = append(drawn[i], drawnPoint{p.x, f})
		}
		all = append(all, drawn[i]...)
	}
	sx, sy := c.scales(all)
	s := &svg{}
	s.begin(lineHeight, c.title, c.note)
	c.axes(s, sx, sy, all)
	for i, l := range c.lines {
		s.polyline(l, drawn[i], sx, sy)
	}
	c.labels(s, drawn, sy)
	return s.end(lineHeight, runsOf(r, []string{c.area})), nil
}

// scale maps a value to a coordinate.
type scale struct {
	from, to   float64 // of the values
	start, end float64 // of the coordinates
	log        bool
	ticks      []float64
}

func (s scale) at(v float64) float64 {
	from, to := s.from, s.to
	if s.log {
		v, from, to = math.Log(max(v, s.from)), math.Log(from), math.Log(to)
	}
	if to == from {
		return (s.start + s.end) / 2
	}
	return s.start + (s.end-s.start)*(v-from)/(to-from)
}

func (c lines) scales(all []drawnPoint) (sx, sy scale) {
	least, most := math.Inf(1), 0.0
	for _, p := range all {
		if !slices.Contains(sx.ticks, p.x) {
			sx.ticks = append(sx.ticks, p.x)
		}
		if p.Value > 0 {
			least = min(least, p.Value)
		}
		most = max(most, p.Value)
	}
	slices.Sort(sx.ticks)
	sx.from, sx.to, sx.log = sx.ticks[0], sx.ticks[len(sx.ticks)-1], true
	sx.start, sx.end = linesLeft+16, linesRight-10
	if most == 0 {
		least, most = 1, 1
	}
	if c.logY {
		sy.ticks = logTicks(least, most, all[0].Unit)
	} else {
		sy.ticks = linearTicks(most)
	}
	sy.from, sy.to, sy.log = sy.ticks[0], sy.ticks[len(sy.ticks)-1], c.logY
	sy.start, sy.end = linesBottom, linesTop
	return sx, sy
}

// logTicks returns powers of ten, or of two for bytes, around the values; at most eight.
func logTicks(least, most float64, unit string) (ticks []float64) {
	base := 10.0
	if unit == area.Bytes {
		base = 2
	}
	power := func(v float64) float64 { return math.Log(v) / math.Log(base) }
	from, to := int(math.Floor(power(least)+1e-9)), int(math.Ceil(power(most)-1e-9))
	step := (to-from)/8 + 1
	for e := from; ; e += step {
		ticks = append(ticks, math.Pow(base, float64(e)))
		if e >= to && len(ticks) > 1 {
			return ticks
		}
	}
}

// linearTicks returns multiples of 1, 2 or 5 times a power of ten, from 0 to at least most.
func linearTicks(most float64) (ticks []float64) {
	power := math.Pow(10, math.Floor(math.Log10(most/4)))
	step := power
	for _, factor := range []float64{1, 2, 5, 10} {
		if step = factor * power; step*5 >= most {
			break
		}
	}
	for i := 0; ; i++ {
		ticks = append(ticks, float64(i)*step)
		if float64(i)*step >= most {
			return ticks
		}
	}
}

func (c lines) axes(s *svg, sx, sy scale, all []drawnPoint) {
	for _, v := range sy.ticks {
		y := sy.at(v)
		s.line(linesLeft, y, linesRight, y, grid)
		s.text(linesLeft-6, y+4, muted, ` text-anchor="end"`, tick(v, all[0].Unit))
	}
	last := math.Inf(-1)
	for _, v := range sx.ticks {
		x := sx.at(v)
		s.line(x, linesBottom, x, linesBottom+4, muted)
		if x-last > 44 {
			s.text(x, linesBottom+18, muted, ` text-anchor="middle"`, size(v))
			last = x
		}
	}
	s.text((linesLeft+linesRight)/2, linesBottom+36, text, ` text-anchor="middle"`, c.x+", logarithmic")
	y := c.y
	if c.logY {
		y += ", logarithmic"
	}
	fmt.Fprintf(s, `<text class="text" transform="translate(14 %d) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (linesTop+linesBottom)/2, html.EscapeString(y))
}

func (s *svg) polyline(l line, points []drawnPoint, sx, sy scale) {
	dash := ""
	if l.dashed {
		dash = ` stroke-dasharray="6 4"`
	}
	fmt.Fprintf(s, `<polyline class="%s-line" stroke-width="2"%s points="`, l.class, dash)
	for i, p := range points {
		if i > 0 {
			s.WriteByte(' ')
		}
		s.WriteString(at(sx.at(p.x)) + "," + at(sy.at(p.Value)))
	}
	s.WriteString(`"/>` + "\n")
	for _, p := range points {
		fmt.Fprintf(s, `<circle class="%s" cx="%s" cy="%s" r="3.5"><title>%s: %s at %s</title></circle>`+"\n",
			l.class, at(sx.at(p.x)), at(sy.at(p.Value)), html.EscapeString(l.name), html.EscapeString(p.Text), size(p.x))
	}
}

// labels writes the name of each line and its figure at its greatest size, in the order of the ends of the lines.
func (c lines) labels(s *svg, drawn [][]drawnPoint, sy scale) {
	order := make([]int, len(c.lines))
	for i := range order {
		order[i] = i
	}
	end := func(i int) float64 { return sy.at(drawn[i][len(drawn[i])-1].Value) }
	slices.SortStableFunc(order, func(a, b int) int {
		switch ya, yb := end(a), end(b); {
		case ya < yb:
			return -1
		case ya > yb:
			return 1
		}
		return 0
	})
	ys := make([]float64, len(order))
	for n, i := range order {
		ys[n] = end(i)
		if n > 0 {
			ys[n] = max(ys[n], ys[n-1]+labelHeight)
		}
	}
	for n := len(ys) - 1; n >= 0; n-- { // back up from the bottom
		most := float64(linesBottom - labelHeight*(len(ys)-1-n))
		ys[n] = min(ys[n], most)
	}
	for n, i := range order {
		l, p := c.lines[i], drawn[i][len(drawn[i])-1]
		s.line(linesRight-6, end(i), linesRight+8, ys[n], grid)
		name := l.name
		if l.dashed {
			name += " (dashed)"
		}
		s.text(linesRight+12, ys[n]-1, l.class, ` font-size="11" font-weight="bold"`, name)
		s.text(linesRight+12, ys[n]+11, text, ` font-size="11"`, p.Text+" at "+size(p.x))
	}
}

// size formats a number of series or lines.
func size(v float64) string {
	if v >= 1e6 {
		return strconv.FormatFloat(v/1e6, 'g', 3, 64) + " M"
	}
	digits := strconv.FormatFloat(v, 'f', -1, 64)
	if len(digits) > 3 && !strings.Contains(digits, ".") {
		return digits[:len(digits)-3] + "," + digits[len(digits)-3:]
	}
	return digits
}

// tick formats a value of the vertical axis.
func tick(v float64, unit string) string {
	type multiple struct {
		factor float64
		name   string
	}
	var multiples []multiple
	switch unit {
	case area.Seconds:
		multiples = []multiple{{1, " s"}, {1e-3, " ms"}, {1e-6, " µs"}, {1e-9, " ns"}}
	case area.Bytes:
		multiples = []multiple{{1 << 30, " GiB"}, {1 << 20, " MiB"}, {1 << 10, " KiB"}, {1, " B"}}
	default:
		return size(v)
	}
	for _, m := range multiples {
		if v >= m.factor*(1-1e-9) {
			return strconv.FormatFloat(math.Round(v/m.factor*1000)/1000, 'g', -1, 64) + m.name
		}
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
