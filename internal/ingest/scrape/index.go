package scrape

import (
	"bytes"
	"strings"
)

// index finds the series and comments of a layout in any order: some targets print families in the order of a hash map.
type index struct {
	texts    []string // of the lines up to the values, in the order of the layout
	series   map[string]int32
	comments map[string]int32 // lines, numbered after the series
	seen     []bool           // series and comments of the current page
	ended    bool             // the last line is the end of an OpenMetrics page
}

const endOfPage = "# EOF"

// newIndex returns nil if the order of the lines matters: a line is there twice, a family has two descriptions, or the
// last line has no line feed.
func (l *layout) newIndex() *index {
	x := &index{series: map[string]int32{}, comments: map[string]int32{}}
	described := map[string]bool{}
	for chunk := range l.chunks() {
		for line := range strings.Lines(strings.TrimPrefix(chunk, "\n")) {
			comment, whole := strings.CutSuffix(line, "\n")
			if !whole {
				x.series[line] = int32(len(x.texts))
				x.texts = append(x.texts, line)
				continue
			}
			if _, again := x.comments[comment]; again || comment == "" || comment[0] != '#' {
				return nil
			}
			if words := strings.Fields(comment[1:]); len(words) > 1 { // such as HELP and a name
				about := words[0] + " " + words[1]
				if described[about] {
					return nil
				}
				described[about] = true
			}
			x.comments[comment] = int32(l.values + len(x.comments))
		}
	}
	if len(x.texts) != l.values || len(x.series) != l.values {
		return nil
	}
	x.seen = make([]bool, l.values+len(x.comments))
	_, x.ended = x.comments[endOfPage]
	return x
}

// read is like layout.read for a page whose lines are in another order. It also appends which series of the layout each
// value belongs to.
func (x *index) read(dst []float64, order []int32, body []byte) ([]float64, []int32, bool) {
	if x.ended && !bytes.HasSuffix(body, []byte(endOfPage+"\n")) {
		return dst, order, false
	}
	clear(x.seen)
	lines, next := 0, 0
	for len(body) > 0 {
		if body[0] == '#' {
			end := bytes.IndexByte(body, '\n')
			if end < 0 {
				return dst, order, false
			}
			i, ok := x.comments[string(body[:end])]
			if !ok || x.seen[i] {
				return dst, order, false
			}
			x.seen[i] = true
			lines, body = lines+1, body[end+1:]
			continue
		}
		i, size := x.find(body, next)
		if i < 0 || x.seen[i] {
			return dst, order, false
		}
		v, n := number(body[size:])
		if n == 0 {
			return dst, order, false
		}
		x.seen[i] = true
		dst, order, next, body = append(dst, v), append(order, int32(i)), i+1, body[size+n+1:]
		lines++
	}
	return dst, order, lines == len(x.seen)
}

// find returns the series with which the body begins, -1 if there is none, and the length of its text. Lines of one
// family keep their order mostly, so find first looks at the series that would be next.
func (x *index) find(body []byte, next int) (series, size int) {
	if next < len(x.texts) {
		text := x.texts[next]
		if n := len(text); n < len(body) && string(body[:n]) == text {
			return next, n
		}
	}
	line := body
	if end := bytes.IndexByte(body, '\n'); end >= 0 {
		line = body[:end]
	}
	text := line[:bytes.LastIndexAny(line, " \t")+1]
	if i, ok := x.series[string(text)]; ok {
		return int(i), len(text)
	}
	return -1, 0
}
