package scrape

import (
	"bytes"
	"strings"
)

// index finds the series and comments of a layout in any order: some targets print families in the order of a hash map.
type index struct {
	texts    []string // of the series, in the order of the layout
	series   map[string]int32
	comments map[string]bool // lines
	seen     []bool          // series of the current page
	ended    bool            // the last line is the end of an OpenMetrics page
}

const endOfPage = "# EOF"

// newIndex returns nil if the order of the lines matters: a line is there twice, or a family has two descriptions.
func (l *layout) newIndex() *index {
	x := &index{texts: l.texts(), series: map[string]int32{}, comments: map[string]bool{}, seen: make([]bool, l.values)}
	for i, text := range x.texts {
		x.series[text] = int32(i)
	}
	if len(x.series) != l.values {
		return nil
	}
	described := map[string]bool{}
	for chunk := range l.chunks() {
		for line := range strings.Lines(strings.TrimPrefix(chunk, "\n")) {
			comment, whole := strings.CutSuffix(line, "\n")
			if !whole {
				continue // the text of a series
			}
			if comment == "" || comment[0] != '#' || x.comments[comment] {
				return nil
			}
			if words := strings.Fields(comment[1:]); len(words) > 1 { // such as HELP and a name
				about := words[0] + " " + words[1]
				if described[about] {
					return nil
				}
				described[about] = true
			}
			x.comments[comment] = true
		}
	}
	x.ended = x.comments[endOfPage]
	return x
}

// read is like layout.read for a page whose lines are in another order. It also appends which series of the layout each
// value belongs to.
func (x *index) read(dst []float64, order []int32, body []byte) ([]float64, []int32, bool) {
	if x.ended && !bytes.HasSuffix(body, []byte(endOfPage+"\n")) {
		return dst, order, false
	}
	clear(x.seen)
	comments, next := 0, 0
	for len(body) > 0 {
		if body[0] == '#' {
			end := bytes.IndexByte(body, '\n')
			if end < 0 || !x.comments[string(body[:end])] {
				return dst, order, false
			}
			comments++
			body = body[end+1:]
			continue
		}
		i, size := x.find(body, next)
		if i < 0 || x.seen[i] {
			return dst, order, false
		}
		after := bytes.TrimLeft(body[size:], " \t")
		v, n := number(after)
		if n == 0 {
			return dst, order, false
		}
		x.seen[i] = true
		dst, order, next, body = append(dst, v), append(order, int32(i)), i+1, after[n+1:]
	}
	return dst, order, len(dst) == len(x.texts) && comments == len(x.comments)
}

// find returns the series with which the body begins, -1 if there is none, and the length of its text. Lines of one
// family keep their order mostly, so find first looks at the series that would be next.
func (x *index) find(body []byte, next int) (series, size int) {
	if next < len(x.texts) {
		text := x.texts[next]
		if n := len(text); n < len(body) && (body[n] == ' ' || body[n] == '\t') && string(body[:n]) == text {
			return next, n
		}
	}
	line := body
	if end := bytes.IndexByte(body, '\n'); end >= 0 {
		line = body[:end]
	}
	text := bytes.TrimRight(line[:bytes.LastIndexAny(line, " \t")+1], " \t")
	if i, ok := x.series[string(text)]; ok {
		return int(i), len(text)
	}
	return -1, 0
}
