package metrics

import (
	"errors"
	"io"
	"log"
	"slices"
	"strings"
	"sync"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// renderer writes one page of several sets in one format. Their families are merged,
// so that each stands there once; of two metrics of one name the first set's is shown.
type renderer struct {
	enc   exposition.Encoder
	m     exposition.Metric
	lines exposition.Lines
	names exposition.Rewriter
	views []view
	sets  []*Set
	extra page     // what is text by origin, on its way to another format
	open  []string // families whose names the coming ones may begin with
	text  []byte
}

// view is what a scrape holds of a set.
type view struct {
	entries []entry
	page    *page
	at      int // how far the walk over several sets has come
}

var renderers sync.Pool

const rendererMax = 4 << 20 // bytes of a family in protobuf; one that met a bigger one is not kept

func takeRenderer() *renderer {
	if r, ok := renderers.Get().(*renderer); ok {
		return r
	}
	return &renderer{}
}

func giveRenderer(r *renderer) {
	if cap(r.enc.Page) > rendererMax || cap(r.extra.b) > rendererMax {
		return
	}
	clear(r.views[:cap(r.views)])
	clear(r.sets[:cap(r.sets)])
	clear(r.open[:cap(r.open)])
	r.views, r.sets, r.open, r.extra.b = r.views[:0], r.sets[:0], r.open[:0], r.extra.b[:0]
	r.names.W = nil
	renderers.Put(r)
}

// render writes the page of a handler, without what ends it.
func (r *renderer) render(w io.Writer, form exposition.Form, o *HandlerOptions) error {
	r.enc.Form, r.enc.Created, r.enc.Page = form, o.CreatedLines, r.enc.Page[:0]
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
		return r.strict(w, own, o.ProcessMetrics)
	}
	return r.plain(w, own, o)
}

// plain writes text.
func (r *renderer) plain(w io.Writer, own int, o *HandlerOptions) error {
	r.names.W, r.names.Scheme = w, r.enc.Form.Scheme
	if err := r.plainSets(w, o.Metadata || exposeMetadata.Load()); err != nil {
		return err
	}
	if o.ProcessMetrics {
		r.extra.described = o.Metadata || exposeMetadata.Load()
		r.extra.appendGoMetrics()
		r.extra.appendProcMetrics()
		if err := r.extra.flush(w); err != nil {
			return err
		}
	}
	for _, s := range r.sets[:own] {
		s.writeMore(&r.names)
	}
	return nil
}

func (r *renderer) plainSets(w io.Writer, described bool) error {
	r.enter()
	defer r.leave()
	p, family, last := &r.extra, "", ""
	for s, m := r.next(); s != nil; s, m = r.next() {
		if name := m.fullName(); len(r.sets) > 1 {
			if _, first := m.metric.(*quantileLines); !first && name == last {
				continue
			} else if !first {
				last = name
			}
		}
		before := len(p.b)
		if described {
			p.b, family = s.appendDescribed(p.b, m.metric, family, nil)
		} else {
			p.b = m.appendTo(p.b)
		}
		if s.odd.Load() && !exposition.IsClassicName(m.fullName()) {
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

// strict writes families with all that the format wants to know of them.
func (r *renderer) strict(w io.Writer, own int, processMetrics bool) error {
	if err := r.strictSets(w); err != nil {
		return err
	}
	r.extra.described = true
	if processMetrics {
		r.extra.appendGoMetrics()
		r.extra.appendProcMetrics()
	}
	for _, s := range r.sets[:own] {
		s.writeMore(&r.extra)
	}
	r.lines.Encode(&r.enc, r.extra.b)
	return r.flush(w)
}

// Write makes a page take what writers of users write.
func (p *page) Write(text []byte) (int, error) {
	p.b = append(p.b, text...)
	return len(text), nil
}

func (r *renderer) flush(w io.Writer) error {
	_, err := w.Write(r.enc.Page)
	r.enc.Page = r.enc.Page[:0]
	return err
}

func (r *renderer) strictSets(w io.Writer) error {
	r.enter()
	defer r.leave()
	family, last, begun, kind := "", "", false, exposition.Unknown
	end := func() error {
		if begun {
			begun = false
			r.enc.End()
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
			r.begin(s, name, family, kind)
		} else if r.m.Type != kind {
			mixedFamilies.Do(func() {
				log.Printf("ERROR: metrics: %q is of another type than its family, and left out of formats that forbid it", name)
			})
			continue
		}
		last = name
		_, labels := exposition.Split(name)
		r.m.Labels, r.m.CreatedMS = append(r.m.Labels, labels...), m.madeMS
		r.enc.Add(&r.m)
		if len(r.enc.Page) >= pageFlush && r.enc.Form.Format != exposition.Protobuf { // whose families are one piece
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

// mixedFamilies are told of once, for it will not go away.
var mixedFamilies = sync.Once{}

func (r *renderer) begin(s *Set, name, family string, kind exposition.Type) {
	plain, _ := exposition.Split(name)
	for len(r.open) > 0 && !strings.HasPrefix(plain, r.open[len(r.open)-1]) {
		r.open = r.open[:len(r.open)-1]
	}
	base, total := strings.CutSuffix(plain, "_total")
	taken := total && slices.Contains(r.open, base)
	r.open = append(r.open, plain)
	d := s.describes(family)
	r.text = append(append(append(r.text[:0], plain...), d.help...), d.unit...)
	n, h := len(plain), len(plain)+len(d.help)
	if name[0] == '{' {
		r.text = append(exposition.AppendUnescaped(r.text[:0], r.text[:n]), r.text[n:]...)
		n, h = len(r.text)-len(d.help)-len(d.unit), len(r.text)-len(d.unit)
	}
	r.enc.Begin(r.text[:n], r.text[n:h], r.text[h:], kind, taken)
}

// enter and leave hold all sets at once; nobody waits for one while holding another.
func (r *renderer) enter() {
	for _, s := range r.sets {
		entries, p := s.enter()
		r.views = append(r.views, view{entries, p, 0})
	}
}

func (r *renderer) leave() {
	for i, s := range r.sets {
		s.leave(r.views[i].page)
	}
	clear(r.views)
	r.views = r.views[:0]
}

// next is the least metric that was not seen yet, and its set; nil at the end.
func (r *renderer) next() (*Set, entry) {
	least := -1
	for i := range r.views {
		v := &r.views[i]
		if v.at < len(v.entries) && (least < 0 || compare(v.entries[v.at].metric, r.views[least].entries[r.views[least].at].metric) < 0) {
			least = i
		}
	}
	if least < 0 {
		return nil, entry{}
	}
	v := &r.views[least]
	v.at++
	return r.sets[least], v.entries[v.at-1]
}

// errPanicked is the answer to who shared a rendering that did not come to its end.
var errPanicked = errors.New("what renders the page panicked")
