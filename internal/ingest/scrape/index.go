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

	exemplars bool // lines may have one
}

const endOfPage = "# EOF"

// newIndex returns nil if the order of the lines matters: a line is there twice, a family has two descriptions, its name
// may go on in the next line, or the last line has no line feed.
func (l *layout) newIndex() *index {
	x := &index{exemplars: l.exemplars, series: map[string]int32{}, comments: map[string]int32{}}
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
				quoted := words[1][0] == '"'
				open := quoted && (strings.Count(comment, `"`) == 1 || strings.Contains(comment, `\`))
				if open || described[about] {
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

// read is like layout.read for a page whose lines are in another order.
func (x *index) read(v *pageValues, body []byte) bool {
	if x.ended && !bytes.HasSuffix(body, []byte(endOfPage+"\n")) {
		return false
	}
	clear(x.seen)
	lines, next := 0, 0
	for len(body) > 0 {
		if body[0] == '#' {
			end := bytes.IndexByte(body, '\n')
			if end < 0 {
				return false
			}
			i, ok := x.comments[string(body[:end])]
			if !ok || x.seen[i] {
				return false
			}
			x.seen[i] = true
			lines, body = lines+1, body[end+1:]
			continue
		}
		i, size := x.find(body, next)
		if i < 0 || x.seen[i] {
			return false
		}
		n := v.read(body[size:], x.exemplars)
		if n == 0 {
			return false
		}
		x.seen[i] = true
		v.order, next, body = append(v.order, int32(i)), i+1, body[size+n+1:]
		lines++
	}
	return lines == len(x.seen)
}

func begins(b []byte, text string) bool { return len(b) >= len(text) && string(b[:len(text)]) == text }

// find returns the series with which the body begins, -1 if there is none, and the length of its text. Lines of one
// family keep their order mostly, so find first looks at the series that would be next.
func (x *index) find(body []byte, next int) (series, size int) {
	if next < len(x.texts) {
		if text := x.texts[next]; begins(body, text) {
			return next, len(text)
		}
	}
	line := body
	if end := bytes.IndexByte(body, '\n'); end >= 0 {
		line = body[:end]
	}
	if x.exemplars {
		line, _, _ = bytes.Cut(line, []byte(" # {"))
	}
	text := line[:bytes.LastIndexAny(line, " \t")+1]
	if i, ok := x.series[string(text)]; ok {
		return int(i), len(text)
	}
	return -1, 0
}
