package metrics

import (
	"errors"
	"io"
	"log"
	"slices"
	"strings"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// renderer writes the scrape response of several sets in one format. It merges their families,
// so that each occurs once. If two metrics have the same name, it writes the metric of the
// first set.
type renderer struct {
	enc   exposition.Encoder
	sums  exposition.Encoder // of name_sum of a vmrange histogram
	count exposition.Encoder // of name_count of a vmrange histogram
	m     exposition.Metric
	lines exposition.Lines
	names exposition.Rewriter
	views []view
	sinks []*Sink // one for each set; nil for a set without collectors
	sets  []*Set
	extra page     // buffer of text output; OpenMetrics and protobuf convert it
	open  []string // families whose names are prefixes of the current name, see begin
	text  []byte

	process bool     // the response has process metrics
	taken   []string // families of the sets whose names begin with one of processPrefixes

	suffixed []byte            // a family name with a suffix
	one      exposition.Metric // one line of a vmrange histogram
}

// view is the state of a scrape within one set, or within the metrics of its collectors.
type view struct {
	set     *Set
	entries []entry
	page    *page // nil for the metrics of collectors
	at      int   // the next entry
}

var renderers spares[renderer]

// rendererMax is the maximum size of the buffers of a renderer that is put back for reuse. A larger
// one is dropped. Protobuf needs a whole family in memory: 64 MiB are about 400,000 metrics.
const rendererMax = 64 << 20

// rendererSmall is the maximum size of the buffers of a renderer that outlives garbage
// collections.
const rendererSmall = 256 << 10

func getRenderer() *renderer { return renderers.get() }

func putRenderer(r *renderer) {
	size := cap(r.enc.Page) + cap(r.sums.Page) + cap(r.count.Page)
	if size > rendererMax || cap(r.extra.b) > rendererMax {
		return
	}
	clear(r.views[:cap(r.views)])
	clear(r.sets[:cap(r.sets)])
	clear(r.open[:cap(r.open)])
	clear(r.sinks[:cap(r.sinks)])
	clear(r.taken[:cap(r.taken)])
	r.views, r.sets, r.open, r.taken, r.extra.b = r.views[:0], r.sets[:0], r.open[:0], r.taken[:0], r.extra.b[:0]
	r.names.W = nil
	renderers.put(r, size+cap(r.extra.b) <= rendererSmall)
}

// render writes the response of a handler without the output of WriteExtra and without EndOfPage.
func (r *renderer) render(w io.Writer, form exposition.Form, o *HandlerOptions) error {
	r.enc.Form, r.enc.Created, r.enc.Page = form, o.CreatedLines, r.enc.Page[:0]
	r.sums.Form, r.count.Form, r.m.LeBuckets = form, form, o.LeBuckets
	r.process = o.ProcessMetrics || o.OpenFiles
	if o.Sets != nil {
		r.sets = append(r.sets, o.Sets...)
	} else {
		r.sets = append(r.sets, registeredSets.load()...)
	}
	own := len(r.sets)
	if o.ProcessMetrics {
		r.sets = append(r.sets, &pushSet)
	}
	if form.Strict() {
		return r.renderFamilies(w, own, o)
	}
	return r.renderText(w, own, o)
}

// renderText writes the text formats. r.sets[:own] are the sets of the handler; only their
// registered writers run.
func (r *renderer) renderText(w io.Writer, own int, o *HandlerOptions) error {
	r.names.W, r.names.Scheme = w, r.enc.Form.Scheme
	if err := r.renderTextSets(w, o.Metadata || exposeMetadata.Load()); err != nil {
		return err
	}
	r.extra.described = o.Metadata || exposeMetadata.Load()
	r.appendProcess(o)
	if err := r.extra.flush(w); err != nil {
		return err
	}
	for _, s := range r.sets[:own] {
		s.runWriters(&r.names)
	}
	return nil
}

func (r *renderer) renderTextSets(w io.Writer, described bool) error {
	defer r.leave()
	if err := r.enter(); err != nil {
		return err
	}
	p, family, last, lastQuantiles := &r.extra, "", "", ""
	for s, m := r.next(); s != nil; s, m = r.next() {
		// Two sets may have a metric of the same name: the second one is omitted. The quantile lines of
		// a summary have the name of the summary, and are compared with quantile lines only.
		if name := m.fullName(); len(r.views) > 1 {
			before := &last
			if _, quantiles := m.metric.(*quantileLines); quantiles {
				before = &lastQuantiles
			}
			if name == *before {
				continue
			}
			*before = name
		}
		before := len(p.b)
		if described {
			p.b, family = s.appendDescribed(p.b, m.metric, family, nil)
		} else {
			p.b = m.appendTo(p.b)
		}
		if s.hasNonClassic.Load() && !exposition.IsClassicName(m.fullName()) {
			r.text = append(r.text[:0], p.b[before:]...)
			plain, _ := exposition.Split(m.fullName())
			p.b = r.names.Append(p.b[:before], r.text, plain)
		}
		if len(p.b) >= pageFlush {
			if err := p.flush(w); err != nil {
				return err
			}
		}
	}
	return p.flush(w)
}

// renderFamilies writes OpenMetrics or protobuf, which need whole families with a type. own is as
// in renderText.
func (r *renderer) renderFamilies(w io.Writer, own int, o *HandlerOptions) error {
	if err := r.renderFamilySets(w); err != nil {
		return err
	}
	r.extra.described = true
	r.appendProcess(o)
	for _, s := range r.sets[:own] {
		s.runWriters(&r.extra)
	}
	r.lines.Encode(&r.enc, r.extra.b)
	return r.flush(w)
}

// appendProcess appends the process metrics to r.extra, which is empty.
func (r *renderer) appendProcess(o *HandlerOptions) {
	if o.ProcessMetrics {
		r.extra.appendGoMetrics()
		r.extra.appendProcMetrics()
	}
	if o.OpenFiles {
		r.extra.appendFDMetrics()
	}
	r.extra.omitFamilies(r.taken)
}

// Write appends the output of registered writers.
func (p *page) Write(text []byte) (int, error) {
	p.b = append(p.b, text...)
	return len(text), nil
}

func (r *renderer) flush(w io.Writer) error {
	_, err := w.Write(r.enc.Page)
	r.enc.Page = r.enc.Page[:0]
	return err
}

func (r *renderer) renderFamilySets(w io.Writer) error {
	defer r.leave()
	if err := r.enter(); err != nil {
		return err
	}
	family, last, begun, kind := "", "", false, exposition.Unknown
	end := func() error {
		if begun {
			begun = false
			r.end(kind)
		}
		if len(r.enc.Page) >= pageFlush {
			return r.flush(w)
		}
		return nil
	}
	for s, m := r.next(); s != nil; s, m = r.next() {
		name := m.fullName()
		if name == last || !m.read(&r.m) {
			continue
		}
		if f := exposition.Family(name); f != family {
			if err := end(); err != nil {
				return err
			}
			family = f
		}
		if !begun {
			begun, kind = true, r.m.Type
			r.begin(s.descriptionFor(m.metric, family), name, kind)
		} else if r.m.Type != kind {
			if mixedFamilies.first(family) {
				log.Printf("ERROR: metrics: %q has another type than its family and is omitted from OpenMetrics and protobuf", name)
			}
			continue
		}
		last = name
		_, labels := exposition.Split(name)
		if r.m.Labels = append(r.m.Labels, labels...); r.m.CreatedMS == 0 { // else it is the time of the last reset
			r.m.CreatedMS = m.createdMS
		}
		if kind == exposition.Ranges {
			r.addRanges(labels)
		} else {
			r.enc.Add(&r.m)
		}
		if len(r.enc.Page) >= pageFlush && r.enc.Form.Format != exposition.Protobuf { // protobuf needs a family as one piece
			if err := r.flush(w); err != nil {
				return err
			}
		}
	}
	if err := end(); err != nil {
		return err
	}
	return r.flush(w)
}

// mixedFamilies has the logged families with metrics of several types.
var mixedFamilies = loggedNames{}

// begin begins the family of the metric name. Families are sorted, so r.open is a stack of the
// families whose names are prefixes of this name. begin searches r.open for a family that has this
// name without _total, because OpenMetrics would give both families the same name.
func (r *renderer) begin(d description, name string, kind exposition.Type) {
	plain, _ := exposition.Split(name)
	for len(r.open) > 0 && !strings.HasPrefix(plain, r.open[len(r.open)-1]) {
		r.open = r.open[:len(r.open)-1]
	}
	base, total := strings.CutSuffix(plain, "_total")
	taken := total && slices.Contains(r.open, base)
	r.open = append(r.open, plain)
	// r.text has the name, the help and the unit; the name ends at n and the help at h.
	r.text = append(append(append(r.text[:0], plain...), d.help...), d.unit...)
	n, h := len(plain), len(plain)+len(d.help)
	if name[0] == '{' {
		r.text = append(exposition.AppendUnescaped(r.text[:0], r.text[:n]), r.text[n:]...)
		n, h = len(r.text)-len(d.help)-len(d.unit), len(r.text)-len(d.unit)
	}
	if kind == exposition.Ranges {
		r.beginRanges(r.text[:n], r.text[n:h], r.text[h:])
	} else {
		r.enc.Begin(r.text[:n], r.text[n:h], r.text[h:], kind, taken)
	}
}

// end ends a family.
func (r *renderer) end(kind exposition.Type) {
	r.enc.End()
	if kind == exposition.Ranges {
		for _, e := range [...]*exposition.Encoder{&r.sums, &r.count} {
			e.End()
			r.enc.Page = append(r.enc.Page, e.Page...)
		}
	}
}

// beginRanges begins the three families of a vmrange histogram, each with its own encoder.
func (r *renderer) beginRanges(name, help, unit []byte) {
	r.sums.Page, r.count.Page = r.sums.Page[:0], r.count.Page[:0]
	for _, f := range [...]struct {
		e      *exposition.Encoder
		suffix string
	}{{&r.enc, "_bucket"}, {&r.sums, "_sum"}, {&r.count, "_count"}} {
		r.suffixed = append(append(r.suffixed[:0], name...), f.suffix...)
		f.e.Begin(r.suffixed, help, unit, exposition.Unknown, false)
	}
}

// addRanges adds the vmrange buckets, the sum and the count of r.m to the three families.
func (r *renderer) addRanges(labels string) {
	one := &r.one
	for _, x := range r.m.Ranges {
		one.Reset(exposition.Unknown)
		one.Labels, one.Value = append(one.Labels, labels...), float64(x.Count)
		if len(labels) > 0 {
			one.Labels = append(one.Labels, ',')
		}
		one.Labels = append(append(append(one.Labels, `vmrange="`...), x.VMRange...), '"')
		r.enc.Add(one)
	}
	one.Reset(exposition.Unknown)
	one.Labels, one.Value = append(one.Labels, labels...), r.m.Sum
	r.sums.Add(one)
	one.Value = float64(r.m.Count)
	r.count.Add(one)
}

// enter runs the collectors, returns their errors and locks all sets, which leave unlocks. enter
// cannot deadlock with other scrapes, because Set.enter does not wait for a scrape.
func (r *renderer) enter() error {
	for _, s := range r.sets {
		r.sinks = append(r.sinks, s.collect())
	}
	for _, s := range r.sets {
		entries, p := s.enter()
		r.views = append(r.views, view{s, entries, p, 0})
	}
	var err error
	for i, sink := range r.sinks {
		if sink == nil {
			continue
		}
		collected, e := sink.finish(r.views[i].entries)
		r.views = append(r.views, view{r.sets[i], collected, nil, 0})
		if e != nil {
			logCollected(e)
			err = errors.Join(err, e)
		}
	}
	if r.process {
		for i := range r.views {
			r.taken = appendProcessNames(r.taken, r.views[i].entries)
		}
	}
	return err
}

func (r *renderer) leave() {
	for _, v := range r.views {
		if v.page != nil {
			v.set.leave(v.page)
		}
	}
	clear(r.views)
	r.views = r.views[:0]
	for i, sink := range r.sinks {
		if sink != nil {
			r.sets[i].release(sink)
		}
	}
	clear(r.sinks)
	r.sinks = r.sinks[:0]
}

// next returns the first remaining metric, in the order of compare, and its set; nil at the end.
func (r *renderer) next() (*Set, entry) {
	least := -1
	for i := range r.views {
		v := &r.views[i]
		if v.at < len(v.entries) && (least < 0 || compare(v.entries[v.at].metric,
			r.views[least].entries[r.views[least].at].metric) < 0) {
			least = i
		}
	}
	if least < 0 {
		return nil, entry{}
	}
	v := &r.views[least]
	v.at++
	return v.set, v.entries[v.at-1]
}

// errPanicked is the error of scrapes that share a response body whose rendering panicked.
var errPanicked = errors.New("rendering the page panicked")
