package remoteread

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/ferula-io/ferula/bench/area"
)

// The plot's measures, in pixels; MiB are drawn from 8 to 4096.
const (
	width, height       = 760, 420
	left, right         = 70, 20
	top, bottom         = 50, 90
	leastLog2, mostLog2 = 3, 12
)

// line is the memory of a server over time.
type line struct {
	side, what string
	at         []time.Duration
	anon       []int64
}

func (l *line) add(at time.Duration, anon int64) {
	l.at, l.anon = append(l.at, at), append(l.anon, anon)
}

// svg draws memory over time, one line for each server and form. The axis of memory is logarithmic.
func svg(lines []line) string {
	longest := time.Millisecond
	for _, l := range lines {
		longest = max(longest, l.at[len(l.at)-1])
	}
	x := func(at time.Duration) float64 {
		return left + (width-left-right)*at.Seconds()/longest.Seconds()
	}
	y := func(bytes int64) float64 {
		log2 := min(mostLog2, max(leastLog2, math.Log2(float64(max(1, bytes))/(1<<20))))
		return height - bottom - (height-top-bottom)*(log2-leastLog2)/(mostLog2-leastLog2)
	}
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&out, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", width, height)
	fmt.Fprintf(&out, `<text x="%d" y="24" font-size="15">Anonymous memory of the server while one client reads 10,000 series x 8 h</text>`+"\n", left)
	for log2 := leastLog2; log2 <= mostLog2; log2++ {
		at := y(1 << (20 + log2))
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#dddddd"/><text x="%d" y="%.1f" text-anchor="end">%d MiB</text>`+"\n",
			left, width-right, at, at, left-6, at+4, 1<<log2)
	}
	for i := range 6 {
		at := longest * time.Duration(i) / 5
		fmt.Fprintf(&out, `<text x="%.1f" y="%d" text-anchor="middle">%.1f s</text>`+"\n", x(at), height-bottom+18, at.Seconds())
	}
	styles := map[string]string{"Prometheus": "#e6522c", "ferula": "#1f6f4a"}
	for i, l := range lines {
		dash := ""
		if strings.HasPrefix(l.what, "chunks") {
			dash = ` stroke-dasharray="6 4"`
		}
		fmt.Fprintf(&out, `<polyline fill="none" stroke="%s" stroke-width="2"%s points="`, styles[l.side], dash)
		for j := range l.at {
			fmt.Fprintf(&out, "%.1f,%.1f ", x(l.at[j]), y(l.anon[j]))
		}
		out.WriteString(`"/>` + "\n")
		keyX, keyY := left+(i%2)*340, height-bottom+46+(i/2)*20
		fmt.Fprintf(&out, `<line x1="%d" x2="%d" y1="%d" y2="%d" stroke="%s" stroke-width="2"%s/><text x="%d" y="%d">%s: %s, %.2f s</text>`+"\n",
			keyX, keyX+30, keyY-4, keyY-4, styles[l.side], dash, keyX+38, keyY, l.side, l.what, l.at[len(l.at)-1].Seconds())
	}
	fmt.Fprintf(&out, `<text x="%d" y="%d" font-size="10">%s</text>`+"\n", left, height-6, area.RunMark)
	out.WriteString("</svg>\n")
	return out.String()
}
