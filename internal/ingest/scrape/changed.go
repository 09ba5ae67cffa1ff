package scrape

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/storage"
)

const (
	maxNew  = 64 // series of a page that the layout does not have
	maxGone = 64 // series in a row that only the layout has
)

// change is a page that has most lines of a layout, in its order.
type change struct {
	pageValues         // of the lines that the layout has
	lines      []int32 // of the page: the series in the layout, or -1 for a line of the rest
	rest       []byte  // a page of the other lines: comments and new series
	comments   int     // of them
	samples    []layoutSample
	next       *layout // of the page

	appended int // values
	ref      storage.SeriesRef
	err      error // of the last append
}

// compare returns nil if a page has more than a few new lines, or a value that the parser must read.
func (l *layout) compare(body []byte, texts []string) *change {
	n := l.values + maxNew
	d := &change{samples: make([]layoutSample, 0, n), lines: make([]int32, 0, 2*n)}
	d.values = make([]float64, 0, n)
	next, fresh := 0, 0
	for len(body) > 0 {
		i, end := next, min(next+maxGone+1, len(texts))
		if body[0] == '#' {
			end = next
		}
		for i < end && !begins(body, texts[i]) {
			i++
		}
		if i < end {
			text, after := body[:len(texts[i])], body[len(texts[i]):]
			n := d.read(after, l.exemplars)
			if n == 0 {
				return nil
			}
			d.lines = append(d.lines, int32(i))
			text = bytes.TrimRight(text, " \t")
			d.samples = append(d.samples, layoutSample{text, d.values[len(d.values)-1], &l.series[i]})
			next, body = i+1, after[n+1:]
			continue
		}
		if body[0] == '#' {
			d.comments++
		} else {
			if fresh++; fresh > maxNew {
				return nil
			}
			d.samples = append(d.samples, layoutSample{})
		}
		size := bytes.IndexByte(body, '\n') + 1
		if size == 0 {
			size = len(body)
		}
		d.lines, d.rest, body = append(d.lines, -1), append(d.rest, body[:size]...), body[size:]
	}
	return d
}

// check parses the rest and makes the next layout. It reports false if the parser must read the whole page: there is
// an error, a line is no entry of its own, or a series is there twice or has a timestamp.
func (p *page) check(d *change, texts []string, body []byte, contentType string) bool {
	parser, _ := p.parser(d.rest, contentType)
	if parser == nil {
		return false
	}
	_, open := parser.(*textparse.OpenMetricsParser)
	if open {
		if d.comments--; d.lines[len(d.lines)-1] >= 0 { // the end is the last line
			return false
		}
	}
	fresh := map[string]bool{}
	at, known := 0, len(d.values)
	for {
		kind, err := parser.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil || kind == textparse.EntryHistogram {
			return false
		}
		if kind != textparse.EntrySeries {
			d.comments--
			continue
		}
		for at < len(d.samples) && d.samples[at].text != nil {
			at++
		}
		text, t, v := parser.Series()
		if at == len(d.samples) || t != nil || fresh[string(text)] {
			return false
		}
		fresh[string(text)] = true
		d.samples[at] = layoutSample{text: text, v: v}
	}
	if d.comments != 0 || known+len(fresh) != len(d.samples) {
		return false
	}
	if len(fresh) > 0 {
		for _, text := range texts {
			if fresh[strings.TrimRight(text, " \t")] {
				return false
			}
		}
	}
	b := layoutBuilder{exemplars: open, samples: d.samples}
	d.next = b.build(body, contentType)
	return d.next != nil
}

// appendChanged appends a page that has most lines of the page before: the parser reads only comments and new lines.
// It reports false, as appendKnown does, if the parser must read the whole page.
func (p *page) appendChanged(body []byte, contentType string) bool {
	c, l := p.cache, p.cache.layout
	if _, refused := p.app.AppenderV2.(*replay); refused || l == nil || l.contentType != contentType || !l.distinct {
		return false
	}
	texts := l.texts()
	d := l.compare(body, texts)
	if d == nil || p.app.maxSamples > 0 && len(d.samples) > p.app.maxSamples || !p.check(d, texts, body, contentType) {
		return false
	}
	p.change = d
	err := p.parse(d.rest, contentType, &layoutBuilder{refused: true, exemplars: d.next.exemplars})
	p.change = nil
	if err == nil {
		p.markGone(d)
		err = p.finish(nil)
	}
	if err != nil {
		p.appendAgain(d.ref, d.err)
		return false
	}
	fresh, distinct := 0, true
	for i := range d.samples {
		switch s := &d.samples[i]; {
		case s.s == nil:
			if s.s = &c.series[string(s.text)].known; !s.s.dropped() {
				fresh++
			}
		case !s.s.dropped() && c.before[s.s.ref] != nil:
			distinct = false
		}
	}
	distinct = distinct && fresh == len(c.before)
	c.vain, c.pause = 0, 0
	c.enterLayout(d.next, d.samples)
	d.next.used, d.next.distinct = true, distinct
	return true
}

// appendUnchanged appends the values of the page before the next line of the rest.
func (p *page) appendUnchanged(d *change) error {
	for len(d.lines) > 0 {
		i := d.lines[0]
		if d.lines = d.lines[1:]; i < 0 {
			return nil
		}
		p.total++
		if d.ref, d.err = p.appendValue(&p.cache.layout.series[i], &d.pageValues, d.appended); d.err != nil {
			return d.err
		}
		d.appended++
	}
	return nil
}

// markGone moves the series that only the layout has to those of the page before. Both have the same order.
func (p *page) markGone(d *change) {
	gone, at := p.cache.layout.series, 0
	for i := range gone {
		for at < len(d.samples) && d.samples[at].s == nil {
			at++
		}
		if k := &gone[i]; at < len(d.samples) && d.samples[at].s == k {
			at++
		} else if !k.dropped() && k.ref != 0 {
			p.cache.before[k.ref] = &series{known: *k}
		}
	}
}
