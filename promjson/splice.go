package promjson

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// Splicer merges the responses to one range query over consecutive time ranges into
// the response to the query over the whole range. The output equals, byte for byte,
// the response that Prometheus would write. Values are not decoded, and timestamps only
// in the first and the last points. The zero Splicer is ready for use. It keeps its memory
// for the next call of Splice.
type Splicer struct {
	// WriteBytes is the approximate size of writes; 0: 64 KiB. Larger writes to a
	// socket cost less CPU. The buffer has 64 KiB at first, and grows up to WriteBytes
	// with the response.
	WriteBytes int

	out     output
	parts   []part
	current []*part     // The parts that have the next series, in the order of time.
	order   metricOrder // Of the series written so far.
}

type part struct {
	*Scanner
	n    int
	done bool
}

func (p *part) fail(err error) error { return &PartError{p.n, err} }

// defaultWriteBytes is the default of Splicer.WriteBytes.
const defaultWriteBytes = 64 << 10

// Splice reads parts, the responses in the order of their time ranges, and writes the
// merged response to w in writes of about WriteBytes. It returns the merged envelope. An
// error of a part is a PartError.
//
// The series of every part must be sorted by their labels, as Prometheus sorts them
// (else ErrUnsorted). If several parts have a series, its first point in each part must be
// later than its last point in the previous one (else ErrOverlap).
//
// Warnings and infos of all parts are deduplicated. At most ten PromQL annotations of
// each kind are written and the others counted, as Prometheus does. An unknown member
// of the response object is written if it is equal in all parts that have it. An unknown
// member that is true in some parts and false in others is written as true. Other unknown
// members that differ, and all unknown members of "data", are dropped. To keep unknown
// members, set Options.MaxUnknownBytes of the Scanners.
//
// Splice writes nothing before it has read every part up to its first series. So nearly always
// a part that cannot be read, or is an error response, is found before the first byte is
// written. After a later error the response in w is incomplete.
func (sp *Splicer) Splice(w io.Writer, parts ...*Scanner) (*Envelope, error) {
	sp.out.reset(w, sp.WriteBytes)
	sp.parts = sp.parts[:0]
	sp.order.reset()
	for i, s := range parts {
		sp.parts = append(sp.parts, part{Scanner: s, n: i})
	}
	defer clear(sp.parts) // Release the Scanners.
	for i := range sp.parts {
		if err := sp.parts[i].advance(); err != nil {
			return nil, err
		}
	}
	sp.out.string(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for n := 0; ; n++ {
		if err := sp.selectNext(); err != nil {
			return nil, err
		}
		if len(sp.current) == 0 {
			break
		}
		if n > 0 {
			sp.out.string(",")
		}
		if err := sp.series(); err != nil {
			return nil, err
		}
		for _, p := range sp.current {
			if err := p.advance(); err != nil {
				return nil, err
			}
		}
	}
	e := mergeEnvelopes(parts)
	sp.out.string("]}")
	sp.out.envelope(e)
	sp.out.string("}")
	sp.out.flush()
	return e, sp.out.err
}

// advance reads the next series of a part.
func (p *part) advance() error {
	more := p.next()
	if p.err != nil {
		return p.fail(p.err)
	}
	e := &p.envelope
	if !more {
		p.done = true
	}
	if e.Status != "success" && (p.done || e.Status != "") {
		return p.fail(&APIError{e.Status, e.ErrorType, e.Error})
	}
	if e.ResultType != "matrix" && (p.done || e.ResultType != "") {
		return p.fail(&Error{Offset: p.base + int64(p.pos), Reason: "the result is not a matrix", Err: ErrSyntax})
	}
	return nil
}

// selectNext sets current to the parts whose current series sorts first, and checks that this
// series sorts after the last one that was written.
func (sp *Splicer) selectNext() error {
	sp.current = sp.current[:0]
	for i := range sp.parts {
		p := &sp.parts[i]
		if p.done {
			continue
		}
		if len(sp.current) > 0 {
			c, err := compareParts(p, sp.current[0])
			if err != nil {
				return err
			}
			if c > 0 {
				continue
			}
			if c < 0 {
				sp.current = sp.current[:0]
			}
		}
		sp.current = append(sp.current, p)
	}
	if len(sp.current) == 0 {
		return nil
	}
	first := sp.current[0]
	form, c, at, wrong := sp.order.compareNext(first.metric)
	if form == formBad {
		return first.fail(first.badMetric(at, wrong))
	}
	first.form = form
	if c <= 0 && len(sp.parts) > 1 { // The order of one part does not matter.
		return first.fail(&Error{Offset: first.metricAt, Reason: string(first.metric), Err: ErrUnsorted})
	}
	return nil
}

// compareParts compares the metric objects of the current series of two parts, and checks them
// unless they are equal. selectNext checks the first one.
func compareParts(p, q *part) (int, error) {
	if bytes.Equal(p.metric, q.metric) {
		p.form = max(p.form, q.form)
		q.form = p.form
		return 0, nil
	}
	for _, x := range [2]*part{p, q} {
		if !x.checkMetric() {
			return 0, x.fail(x.err)
		}
	}
	return compareMetrics(p.metric, q.metric, p.form, q.form), nil
}

// series writes one series with the points of all parts in current.
func (sp *Splicer) series() error {
	sp.out.string(`{"metric":`)
	sp.out.bytes(sp.current[0].metric)
	if err := sp.array(`,"values":[`, (*Scanner).NextValues); err != nil {
		return err
	}
	if err := sp.array(`,"histograms":[`, (*Scanner).NextHistograms); err != nil {
		return err
	}
	sp.out.string("}")
	return sp.out.err
}

// array writes one array of the series if any part has points for it.
func (sp *Splicer) array(open string, next func(*Scanner) []byte) error {
	before := open
	end := int64(0) // The last timestamp of the previous parts, valid once before is a comma.
	for i, p := range sp.current {
		resumes := before == ","
		for piece := next(p.Scanner); piece != nil; piece = next(p.Scanner) {
			if resumes {
				if err := checkStartsAfter(piece, end); err != nil {
					return p.fail(fmt.Errorf("series %s: %w", p.metric, p.locate(piece, err)))
				}
				resumes = false
			}
			sp.out.string(before)
			sp.out.bytes(piece)
			before = ","
			if i < len(sp.current)-1 {
				var err error
				if end, err = LastTime(piece); err != nil {
					return p.fail(fmt.Errorf("series %s: %w", p.metric, p.locate(piece, err)))
				}
			}
		}
		if p.err != nil {
			return p.fail(p.err)
		}
		if sp.out.err != nil {
			return sp.out.err
		}
	}
	if before == "," {
		sp.out.string("]")
	}
	return nil
}

// checkStartsAfter returns ErrOverlap unless the piece begins after the time end.
func checkStartsAfter(piece []byte, end int64) error {
	start, err := FirstTime(piece)
	if err == nil && start <= end {
		err = fmt.Errorf("%w: %s after %s", ErrOverlap, AppendTimestamp(nil, start), AppendTimestamp(nil, end))
	}
	return err
}

// mergeEnvelopes returns the envelope of the merged response.
func mergeEnvelopes(parts []*Scanner) *Envelope {
	merged := &Envelope{Status: "success", ResultType: "matrix"}
	warnings, infos := make([][]string, len(parts)), make([][]string, len(parts))
	var differ []string // Names of members that differ between parts.
	for n, s := range parts {
		e := &s.envelope
		warnings[n], infos[n] = e.Warnings, e.Infos
		for _, m := range e.Unknown {
			if m.InData {
				continue
			}
			i := slices.IndexFunc(merged.Unknown, func(have Member) bool { return have.Name == m.Name })
			switch {
			case i < 0:
				merged.Unknown = append(merged.Unknown, m)
			case bytes.Equal(merged.Unknown[i].Value, m.Value):
			case isBool(merged.Unknown[i].Value) && isBool(m.Value):
				merged.Unknown[i].Value = []byte("true")
			default:
				differ = append(differ, m.Name)
			}
		}
	}
	merged.Unknown = slices.DeleteFunc(merged.Unknown, func(m Member) bool { return slices.Contains(differ, m.Name) })
	merged.Warnings, merged.Infos = dedupStrings(warnings...), dedupStrings(infos...)
	if len(parts) > 1 {
		merged.Warnings = limitAnnotations(merged.Warnings, " more warning annotations omitted")
		merged.Infos = limitAnnotations(merged.Infos, " more info annotations omitted")
	}
	return merged
}

func isBool(value []byte) bool { return string(value) == "true" || string(value) == "false" }

// dedupStrings returns every string of the lists once, in the order of first
// occurrence.
func dedupStrings(lists ...[]string) []string {
	var all []string
	var seen map[string]bool
	for _, list := range lists {
		for _, s := range list {
			if seen[s] {
				continue
			}
			if seen == nil {
				seen = map[string]bool{}
			}
			seen[s] = true
			all = append(all, s)
		}
	}
	return all
}

// maxAnnotations is the number of PromQL warnings, or infos, that Prometheus writes in
// one response.
const maxAnnotations = 10

// limitAnnotations keeps maxAnnotations PromQL annotations and appends the count of
// the omitted ones. The count is a lower bound: parts may have omitted different ones.
func limitAnnotations(texts []string, omitted string) []string {
	named, more, before := 0, 0, 0
	texts = slices.DeleteFunc(texts, func(text string) bool {
		if count, ok := strings.CutSuffix(text, omitted); ok {
			if n, err := strconv.Atoi(count); err == nil {
				before = max(before, n)
				return true
			}
		}
		if !strings.HasPrefix(text, "PromQL ") {
			return false
		}
		if named++; named > maxAnnotations {
			more++
		}
		return named > maxAnnotations
	})
	if more += before; more > 0 {
		texts = append(texts, strconv.Itoa(more)+omitted)
	}
	return texts
}

// output buffers bytes into large writes. After the first error it writes nothing.
type output struct {
	w    io.Writer
	buf  []byte
	size int // up to which buf grows
	err  error
}

func (o *output) reset(w io.Writer, size int) {
	if size <= 0 {
		size = defaultWriteBytes
	}
	if cap(o.buf) == 0 || cap(o.buf) > size {
		o.buf = make([]byte, 0, min(size, defaultWriteBytes))
	}
	*o = output{w: w, buf: o.buf[:0], size: size}
}

// reserve makes room for n bytes, unless they are more than the buffer may have: it enlarges the buffer up to its
// size, and then writes it.
func (o *output) reserve(n int) {
	for n > cap(o.buf)-len(o.buf) {
		if cap(o.buf) >= o.size {
			o.flush()
			return
		}
		o.buf = append(make([]byte, 0, min(4*cap(o.buf), o.size)), o.buf...)
	}
}

func (o *output) flush() {
	o.write(o.buf)
	o.buf = o.buf[:0]
}

func (o *output) write(p []byte) {
	if o.err != nil || len(p) == 0 {
		return
	}
	n, err := o.w.Write(p)
	if err == nil && n < len(p) {
		err = io.ErrShortWrite
	}
	if err != nil {
		o.err = fmt.Errorf("promjson: splice: %w", err)
	}
}

func (o *output) string(s string) {
	if len(s) > cap(o.buf)-len(o.buf) {
		o.reserve(len(s))
	}
	o.buf = append(o.buf, s...)
}

func (o *output) bytes(p []byte) {
	if len(p) > cap(o.buf)-len(o.buf) {
		o.reserve(len(p))
		if len(p) > cap(o.buf) {
			o.write(p)
			return
		}
	}
	o.buf = append(o.buf, p...)
}

// envelope writes the members that follow "data".
func (o *output) envelope(e *Envelope) {
	var b []byte
	for _, list := range []struct {
		name    string
		strings []string
	}{{"warnings", e.Warnings}, {"infos", e.Infos}} {
		for i, s := range list.strings {
			if i == 0 {
				b = append(b, `,"`+list.name+`":[`...)
			} else {
				b = append(b, ',')
			}
			b = AppendString(b, s)
		}
		if len(list.strings) > 0 {
			b = append(b, ']')
		}
	}
	for _, m := range e.Unknown {
		b = append(b, ',')
		b = AppendString(b, m.Name)
		b = append(b, ':')
		b = append(b, m.Value...)
	}
	o.bytes(b)
}
