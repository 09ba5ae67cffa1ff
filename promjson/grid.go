package promjson

import "encoding/binary"

// Grid holds what the series of one range query share: the times start,
// start+step, ... of its steps, as text. A caller keeps one Grid through a
// whole matrix. The text is made when a time is first met, so a grid costs
// nothing by itself. The zero Grid has no times. A Grid is not safe for
// concurrent use.
type Grid struct {
	start, step int64
	count       int
	stamps      []stamp // The times made so far, from the start on.
}

// stamp is a time as it stands between two values: "],[1700000000,"
// The last byte of the text is its length.
type stamp struct {
	t    int64
	text [3]uint64
}

// gridMax bounds a grid's memory at 512 KiB. Prometheus answers a query with
// 11,000 steps at most; later times are written one by one.
const gridMax = 1 << 14

// NewGrid returns the grid of count times from startMS in steps of stepMS.
func NewGrid(startMS, stepMS int64, count int) *Grid {
	g := new(Grid)
	g.Reset(startMS, stepMS, count)
	return g
}

// Reset gives g other times and keeps its memory.
func (g *Grid) Reset(startMS, stepMS int64, count int) {
	if stepMS <= 0 {
		count = min(count, 1)
	}
	*g = Grid{start: startMS, step: stepMS, count: min(count, gridMax), stamps: g.stamps[:0]}
}

// after returns the index of the time that follows ms, for which the grid then
// has the text, or -1 where the grid does not know it.
func (g *Grid) after(ms int64) int {
	if g == nil || g.step <= 0 || ms < g.start || ms-g.start < 0 {
		return -1
	}
	steps := (ms - g.start) / g.step
	if steps >= int64(g.count)-1 || g.start+steps*g.step != ms {
		return -1
	}
	next := int(steps) + 1
	for len(g.stamps) <= next {
		s, ok := makeStamp(g.start + int64(len(g.stamps))*g.step)
		if !ok {
			return -1
		}
		g.stamps = append(g.stamps, s)
	}
	return next
}

// makeStamp reports false where the text does not fit.
func makeStamp(ms int64) (stamp, bool) {
	var room [40]byte
	text := appendStamp(room[:0], ms)
	if len(text) > 23 {
		return stamp{}, false
	}
	clear(room[len(text):])
	room[23] = byte(len(text))
	s := stamp{t: ms}
	for i := range s.text {
		s.text[i] = binary.LittleEndian.Uint64(room[8*i:])
	}
	return s, true
}
