package scrape

import (
	"bytes"
	"encoding/binary"
	"iter"
	"math"
	"strconv"
	"strings"
	"sync"
	"unique"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/storage"
)

// A layout is a page without its values. A page of the same layout is appended without a parser, without labels and
// without a map: its bytes between the values are compared, and only the values are read. The text of a layout is
//
//	n uint16 | n bytes up to the next value | … | n uint16 | n bytes after the last value
//
// so comments belong to the text before a value. Targets with equal pages share the text. An exemplar between a value
// and the line feed after it does not belong to the layout: exemplars come, change and go.
type layout struct {
	contentType string
	exemplars   bool // lines may have one
	text        unique.Handle[string]
	values      int     // in a page
	kept        int     // of them, not dropped by metric relabeling
	series      []known // one for each value
	distinct    bool    // no two series are one after metric relabeling
	aging       bool    // there is metadata of families that the page does not have
	used        bool    // a page had it
	index       *index  // nil before a page has its lines in another order
}

// layoutBuilder collects the samples that the parser finds in a page.
type layoutBuilder struct {
	refused   bool
	exemplars bool // lines may have one that pageValues.read reads
	samples   []layoutSample
}

type layoutSample struct {
	text []byte // in the page
	v    float64
	s    *known
}

// refuse says that the page has something that a layout does not describe.
func (b *layoutBuilder) refuse() { b.refused, b.samples = true, nil }

func (b *layoutBuilder) add(text []byte, v float64, s *series) {
	if !b.refused {
		b.samples = append(b.samples, layoutSample{text, v, &s.known})
	}
}

// build returns the layout of a page whose samples were added in order; nil if a walk over the layout would not
// find exactly these samples. It is without series.
func (b *layoutBuilder) build(body []byte, contentType string) *layout {
	if b.refused || len(b.samples) == 0 {
		return nil
	}
	l := &layout{contentType: contentType, exemplars: b.exemplars, values: len(b.samples)}
	text := make([]byte, 0, len(body))
	rest := body
	var v pageValues
	for _, sample := range b.samples {
		at := seriesLine(rest)
		after, ok := bytes.CutPrefix(rest[at:], sample.text)
		if !ok || bytes.IndexByte(sample.text, '\n') >= 0 {
			return nil
		}
		from := len(rest) - len(bytes.TrimLeft(after, " \t"))
		v.reset()
		n := v.read(rest[from:], l.exemplars)
		if n == 0 || math.Float64bits(v.values[0]) != math.Float64bits(sample.v) || from > math.MaxUint16 {
			return nil
		}
		text = append(binary.LittleEndian.AppendUint16(text, uint16(from)), rest[:from]...)
		rest = rest[from+n:]
	}
	if len(rest) > math.MaxUint16 || seriesLine(rest) != len(rest) {
		return nil
	}
	text = append(binary.LittleEndian.AppendUint16(text, uint16(len(rest))), rest...)
	l.text = unique.Make(string(text))
	return l
}

// seriesLine returns where the first line begins that is neither blank nor a comment.
func seriesLine(b []byte) (at int) {
	for at < len(b) {
		line := b[at:]
		if end := bytes.IndexByte(line, '\n'); end >= 0 {
			line = line[:end+1]
		}
		if trimmed := bytes.TrimLeft(line, " \t\n"); len(trimmed) > 0 && trimmed[0] != '#' {
			return at
		}
		at += len(line)
	}
	return at
}

// read reads the values of a page. It reports false if the page has another layout, or a value that is not a plain
// number: the parser decides then.
func (l *layout) read(v *pageValues, body []byte) bool {
	text := l.text.Value()
	for i := 0; ; i++ {
		n := int(text[0]) | int(text[1])<<8
		if len(body) < n || string(body[:n]) != text[2:2+n] {
			return false
		}
		body, text = body[n:], text[2+n:]
		if i == l.values {
			return len(body) == 0
		}
		if n = v.read(body, l.exemplars); n == 0 {
			return false
		}
		body = body[n:]
	}
}

var powersOfTen = [...]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
	1e16, 1e17, 1e18, 1e19}

// number reads the number before the space or line feed at which a value ends, and returns its length. The length is 0
// if there is neither, or if the text before it is not a number that a page may have.
func number(b []byte) (v float64, n int) {
	i, negative := 0, false
	if len(b) > 0 && b[0] == '-' {
		i, negative = 1, true
	}
	// Both the digits as an integer below 2^53 and the power of ten are exact, so one division rounds correctly.
	var digits uint64
	first, point := i, -1
	for ; i < len(b); i++ {
		if c := b[i] - '0'; c <= 9 {
			digits = digits*10 + uint64(c)
		} else if b[i] == '.' && point < 0 {
			point = i
		} else {
			break
		}
	}
	count, decimals := i-first, 0
	if point >= 0 {
		count, decimals = count-1, i-point-1
	}
	plain := i < len(b) && (b[i] == '\n' || b[i] == ' ')
	if plain && count > 0 && count <= 19 && digits < 1<<53 { // 19 digits are below 2^64
		if v = float64(digits) / powersOfTen[decimals]; negative {
			v = -v
		}
		return v, i
	}
	end := i
	if !plain {
		if end = bytes.IndexAny(b, " \n"); end <= 0 || bytes.ContainsAny(b[i:end], "pP_") {
			return 0, 0
		}
	}
	v, err := strconv.ParseFloat(string(b[:end]), 64)
	if err != nil {
		return 0, 0
	}
	if math.IsNaN(v) {
		v = math.Float64frombits(value.NormalNaN)
	}
	return v, end
}

// pageValues are the values of a page, and the series that they belong to if they are not in the order of the layout.
type pageValues struct {
	values    []float64
	order     []int32
	exemplars []exemplar.Exemplar
	of        []int // the value that has the exemplar
	next      int   // exemplar
	builder   labels.ScratchBuilder
}

func (v *pageValues) reset() {
	clear(v.exemplars)
	v.values, v.order, v.exemplars, v.of = v.values[:0], v.order[:0], v.exemplars[:0], v.of[:0]
	v.next = 0
}

func (v *pageValues) series(i int) int {
	if len(v.order) > 0 {
		return int(v.order[i])
	}
	return i
}

// read reads a value, its exemplar if lines may have one, and returns their length. The length is 0 if no line feed
// follows, or if the parser must decide.
func (v *pageValues) read(b []byte, exemplars bool) int {
	value, n := number(b)
	if n == 0 {
		return 0
	}
	v.values = append(v.values, value)
	if b[n] == '\n' {
		return n
	}
	if !exemplars {
		return 0
	}
	size := v.readExemplar(b[n:])
	if size == 0 {
		return 0
	}
	return n + size
}

// readExemplar reads the exemplar of the last value, such as ` # {trace_id="7"} 0.5 1700000000.5`, and returns its
// length. The length is 0 if the text is not as simple: there is an escape or another name, or a byte is not ASCII.
func (v *pageValues) readExemplar(b []byte) int {
	const begin = " # {"
	if !bytes.HasPrefix(b, []byte(begin)) {
		return 0
	}
	end := bytes.IndexByte(b, '\n')
	text := string(b[:max(end, 0)]) // the builder copies
	v.builder.Reset()
	at := len(begin)
	for at < len(text) && text[at] != '}' {
		name := at
		for at < len(text) && (text[at]|0x20 >= 'a' && text[at]|0x20 <= 'z' || text[at] == '_' ||
			at > name && text[at] >= '0' && text[at] <= '9') {
			at++
		}
		if at == name || !strings.HasPrefix(text[at:], `="`) {
			return 0
		}
		of := at + 2
		for at = of; at < len(text) && text[at] >= ' ' && text[at] <= '~' && text[at] != '"' && text[at] != '\\'; at++ {
		}
		if at+1 >= len(text) || text[at] != '"' || text[at+1] != '}' && text[at+1] != ',' {
			return 0
		}
		v.builder.Add(text[name:of-2], text[of:at])
		if at++; text[at] == ',' {
			at++
		}
	}
	if !strings.HasPrefix(text[min(at, len(text)):], "} ") {
		return 0
	}
	at += len("} ")
	var x exemplar.Exemplar
	var n int
	if x.Value, n = number(b[at:]); n == 0 {
		return 0
	}
	if at += n; b[at] == ' ' {
		seconds, n := number(b[at+1:])
		if n == 0 || math.IsNaN(seconds) || math.IsInf(seconds, 0) {
			return 0
		}
		x.Ts, x.HasTs = int64(seconds*1000), true
		at += 1 + n
	}
	if at != end {
		return 0
	}
	v.builder.Sort()
	x.Labels = v.builder.Labels()
	v.exemplars, v.of = append(v.exemplars, x), append(v.of, len(v.values)-1)
	return end
}

var valueBuffers = sync.Pool{New: func() any { return new(pageValues) }}

// maxValueBuffer is the largest number of values in a buffer that is kept.
const maxValueBuffer = 1 << 20

// readKnown reads a page that has the layout of the page before, or its lines in another order.
func (c *cache) readKnown(body []byte, v *pageValues) bool {
	l := c.layout
	if l.index == nil {
		if l.read(v, body) {
			return true
		}
		v.reset()
		if c.vain == 0 && !c.shuffled {
			return false
		}
		if l.index = l.newIndex(); l.index == nil {
			return false
		}
	}
	if !l.index.read(v, body) {
		return false
	}
	c.shuffled = true
	return true
}

// appendKnown appends the samples of a page that has the layout of the page before. It reports false if the page has
// another layout, or if the storage refuses a sample.
func (p *page) appendKnown(body []byte, contentType string) bool {
	l := p.cache.layout
	if l == nil || l.contentType != contentType || p.app.maxSamples > 0 && l.kept > p.app.maxSamples {
		return false
	}
	v := valueBuffers.Get().(*pageValues)
	defer func() {
		if v.reset(); cap(v.values) <= maxValueBuffer {
			valueBuffers.Put(v)
		}
	}()
	if !p.cache.readKnown(body, v) {
		return false
	}
	l.used = true
	p.total = l.values
	for i := range v.values {
		if ref, err := p.appendValue(&l.series[v.series(i)], v, i); err != nil {
			p.appendAgain(ref, err)
			return false
		}
	}
	p.cache.lastOK = p.cache.count()
	if l.aging {
		l.aging = p.cache.meta.age(&p.cache.scrape)
	}
	return true
}

// appendValue appends a value of a page to its series.
func (p *page) appendValue(k *known, v *pageValues, i int) (storage.SeriesRef, error) {
	var opts storage.AOptions
	if v.next < len(v.of) && v.of[v.next] == i {
		if opts.Exemplars = v.exemplars[v.next : v.next+1]; !opts.Exemplars[0].HasTs {
			opts.Exemplars[0].Ts = p.t
		}
		v.next++
	}
	if k.dropped() {
		return 0, nil
	}
	ref, err := p.app.AppenderV2.Append(k.ref, k.labels, 0, p.t, v.values[i], nil, nil, opts)
	if err != nil {
		return ref, err
	}
	if ref != 0 {
		k.ref = ref
	}
	p.kept++
	return ref, nil
}

// appendAgain lets the parser path go through the page once more, which decides about the error of the last append.
// Series that were added stay.
func (p *page) appendAgain(ref storage.SeriesRef, err error) {
	for _, s := range p.cache.series {
		s.seen--
	}
	p.app.AppenderV2, p.app.samples = &replay{p.app.AppenderV2, p.kept, ref, err}, 0
	p.total, p.kept, p.labelLimit = 0, 0, false
}

// replay is an appender for a page of which some samples are appended already.
type replay struct {
	storage.AppenderV2
	done int               // samples that were appended
	ref  storage.SeriesRef // of the append of the next sample
	err  error             // of the same append
}

func (r *replay) Append(ref storage.SeriesRef, l labels.Labels, st, t int64, v float64, h *histogram.Histogram,
	fh *histogram.FloatHistogram, opts storage.AOptions) (storage.SeriesRef, error) {
	if r.done > 0 {
		r.done--
		return ref, nil
	}
	if err := r.err; err != nil {
		r.err = nil
		return r.ref, err
	}
	return r.AppenderV2.Append(ref, l, st, t, v, h, fh, opts)
}

// chunks returns the texts between the values.
func (l *layout) chunks() iter.Seq[string] {
	return func(yield func(string) bool) {
		for text := l.text.Value(); len(text) > 0; {
			n := 2 + (int(text[0]) | int(text[1])<<8)
			if !yield(text[2:n]) {
				return
			}
			text = text[n:]
		}
	}
}

// texts returns the text of each line of a layout up to the value.
func (l *layout) texts() []string {
	texts := make([]string, 0, l.values+1)
	for chunk := range l.chunks() {
		texts = append(texts, chunk[strings.LastIndexByte(chunk, '\n')+1:])
	}
	return texts[:l.values]
}

// maxVain limits the pause after layouts in vain to 2^maxVain-1 pages.
const maxVain = 6

// wantsLayout says whether to make a layout of the current page. Layouts of pages that change each time only cost.
func (c *cache) wantsLayout() bool {
	if c.pause > 0 {
		c.pause--
		return false
	}
	return true
}

// enterLayout moves the series of the last page, which had no error, into its layout.
func (c *cache) enterLayout(l *layout, samples []layoutSample) {
	if l == nil {
		return
	}
	l.series = make([]known, 0, len(samples))
	for _, sample := range samples {
		l.series = append(l.series, *sample.s)
		if !sample.s.dropped() {
			l.kept++
		}
	}
	l.distinct = l.kept == len(c.before)
	l.aging = c.meta.aging(c.scrape - 1)
	c.reset()
	c.layout = l
}

// leaveLayout moves the series of a layout back into the maps.
func (c *cache) leaveLayout() {
	l := c.layout
	if l == nil {
		return
	}
	c.layout = nil
	if l.used {
		c.vain, c.pause = 0, 0
	} else {
		c.vain = min(c.vain+1, maxVain)
		c.pause = 1<<(c.vain-1) - 1
	}
	for i, text := range l.texts() {
		s := c.add(strings.TrimRight(text, " \t"), l.series[i].ref, l.series[i].labels)
		s.seen = c.scrape - 1
		if !s.dropped() && s.ref != 0 {
			c.before[s.ref] = s
		}
	}
}

// aging says whether a family was not in the page of the given scrape.
func (m *metadataStore) aging(scrape uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, f := range m.families {
		if f.seen != scrape {
			return true
		}
	}
	return false
}

// age counts a scrape whose page had the families of the page before. Without families that are older there is
// nothing to count: age returns whether there are.
func (m *metadataStore) age(scrape *uint64) bool {
	m.mu.Lock()
	for _, f := range m.families {
		if f.seen == *scrape-1 {
			f.seen++
		}
	}
	m.mu.Unlock()
	m.expire(*scrape)
	*scrape++
	return m.aging(*scrape - 1)
}
