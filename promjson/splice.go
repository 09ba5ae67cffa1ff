package promjson

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// AnswerError is an answer whose status is not "success".
type APIError struct {
	Status, Type, Message string
}

// Error repeats what the answer says.
func (e *APIError) Error() string {
	return fmt.Sprintf("promjson: the answer's status is %q: %s: %s", e.Status, e.Type, e.Message)
}

// PartError says which part of a splice went wrong, counted from 0.
type PartError struct {
	Part int
	Err  error
}

// Error names the part before what went wrong with it.
func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap returns e.Err.
func (e *PartError) Unwrap() error { return e.Err }

// Splicer merges answers to the same range query over consecutive times into
// the answer to the query over all of them, byte for byte as Prometheus would
// have written it, without decoding a sample. The zero Splicer is ready, and
// keeps its memory from one splice to the next.
type Splicer struct {
	// WriteBytes is about how much is written at once; 0: 64 KiB. To a socket more
	// is cheaper.
	WriteBytes int

	out     output
	parts   []part
	current []*part     // Those that have the series to be written, in order.
	order   metricOrder // The series that have been written.
}

type part struct {
	*Scanner
	n    int
	done bool
}

func (p *part) fail(err error) error { return &PartError{p.n, err} }

// spliceBytes is how much is written at once by default.
const spliceBytes = 64 << 10

// Splice reads parts, which are in the order of their times, and writes the
// merged answer to w in pieces of about WriteBytes. It returns the merged envelope.
//
// The series of every part must be in the order of their labels (ErrUnsorted
// otherwise), as those of Prometheus are, and where parts share a series, each
// must go on strictly after the one before has ended (ErrOverlap). Warnings and
// infos are those of all parts, each once; of annotations of PromQL the first ten
// are named and the others counted, as Prometheus does. Of unknown members of the
// answer, if the Scanners keep them, those count that are the same in all parts
// that have them, and true where some parts say true and others false; any other
// is about one part only and is dropped, as are those of the data.
//
// Nothing is written before every part has come to its first series: a part
// that cannot be read, or is an AnswerError, is known by then in all but odd
// cases. After that, w has part of an answer when an error is returned.
func (sp *Splicer) Splice(w io.Writer, parts ...*Scanner) (*Envelope, error) {
	sp.out.reset(w, sp.WriteBytes)
	sp.parts = sp.parts[:0]
	sp.order.reset()
	for i, s := range parts {
		sp.parts = append(sp.parts, part{Scanner: s, n: i})
	}
	defer clear(sp.parts) // Do not keep the Scanners.
	for i := range sp.parts {
		if err := sp.parts[i].advance(); err != nil {
			return nil, err
		}
	}
	sp.out.text(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for n := 0; ; n++ {
		if err := sp.selectNext(); err != nil {
			return nil, err
		}
		if len(sp.current) == 0 {
			break
		}
		if n > 0 {
			sp.out.text(",")
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
	sp.out.text("]}")
	sp.out.envelope(e)
	sp.out.text("}")
	sp.out.flush()
	return e, sp.out.err
}

// advance goes to the next series of a part.
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
		return p.fail(&Error{Offset: p.base + int64(p.pos), Reason: "the result is no matrix", Err: ErrSyntax})
	}
	return nil
}

// choose finds the parts that have the next series, which is the least of those
// they have come to, and sees that it follows the one written last.
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

// compareParts orders two parts by the series they have come to. Where one is
// known to have a good metric object, an equal one needs no look.
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

// series writes the series that the parts in same have come to.
func (sp *Splicer) series() error {
	sp.out.text(`{"metric":`)
	sp.out.bytes(sp.current[0].metric)
	if err := sp.array(`,"values":[`, (*Scanner).NextValues); err != nil {
		return err
	}
	if err := sp.array(`,"histograms":[`, (*Scanner).NextHistograms); err != nil {
		return err
	}
	sp.out.text("}")
	return sp.out.err
}

// array writes one array of the series, if any part has points for it.
func (sp *Splicer) array(open string, next func(*Scanner) []byte) error {
	before := open
	end := int64(0) // The last time written, once before is a comma.
	for i, p := range sp.current {
		resumes := before == ","
		for piece := next(p.Scanner); piece != nil; piece = next(p.Scanner) {
			if resumes {
				if err := checkStartsAfter(piece, end); err != nil {
					return p.fail(fmt.Errorf("series %s: %w", p.metric, p.locate(piece, err)))
				}
				resumes = false
			}
			sp.out.text(before)
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
		sp.out.text("]")
	}
	return nil
}

// begins sees that a piece begins after the time end.
func checkStartsAfter(piece []byte, end int64) error {
	start, err := FirstTime(piece)
	if err == nil && start <= end {
		err = fmt.Errorf("%w: %s after %s", ErrOverlap, AppendTimestamp(nil, start), AppendTimestamp(nil, end))
	}
	return err
}

// mergeEnvelopes makes one of those of all parts.
func mergeEnvelopes(parts []*Scanner) *Envelope {
	merged := &Envelope{Status: "success", ResultType: "matrix"}
	warnings, infos := make([][]string, len(parts)), make([][]string, len(parts))
	var differ []string // Names of members that are about one part.
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

// union is every string of the lists once, in the order in which they come.
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

// annotationsMax is how many warnings, or infos, Prometheus names in one answer.
const maxAnnotations = 10

// countOmitted leaves as many annotations of PromQL as Prometheus names, and says
// how many more there are at least: the parts may have omitted different ones.
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

// output gathers bytes into writes of spliceBytes.
type output struct {
	w   io.Writer
	buf []byte
	err error
}

func (o *output) reset(w io.Writer, size int) {
	if size <= 0 {
		size = spliceBytes
	}
	if cap(o.buf) != size {
		o.buf = make([]byte, 0, size)
	}
	*o = output{w: w, buf: o.buf[:0]}
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

func (o *output) text(s string) {
	if len(s) > cap(o.buf)-len(o.buf) {
		o.flush()
	}
	o.buf = append(o.buf, s...)
}

func (o *output) bytes(p []byte) {
	if len(p) > cap(o.buf)-len(o.buf) {
		o.flush()
		if len(p) > cap(o.buf) {
			o.write(p)
			return
		}
	}
	o.buf = append(o.buf, p...)
}

// envelope writes what follows the data.
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
