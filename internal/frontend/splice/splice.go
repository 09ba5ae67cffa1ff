// Package splice lays the answers to the parts of one range query end to end.
//
// Each part's answer comes in as a stream of JSON, series in label order; out
// goes one answer, as Prometheus would have written it for the whole range, while
// the parts are still arriving: k scanners are merged by decoded labels, and of
// each series the bytes of its points are copied. No sample is decoded and no
// series is ever whole in memory; of a part there are its scanner's buffer and
// one metric object.
//
// Nothing is fetched and nothing cached here: parts are io.Readers, the answer is
// an io.Writer. What must hold is checked: parts that are not sorted, or whose
// points do not follow each other, are errors, never a wrong answer.
package splice

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/ferula-io/ferula/promjson"
)

var (
	// ErrUnsorted says that a part's series do not come in label order: its query
	// can be streamed through whole, but not spliced.
	ErrUnsorted = errors.New("series are not in label order")
	// ErrNotMatrix says that a part is an answer, but not one to a range query.
	ErrNotMatrix = errors.New("answer is not a matrix")
	// ErrOverlap says that a part has points that do not follow the part before.
	ErrOverlap = errors.New("points of parts overlap")
)

// PartError is a failure of one part.
type PartError struct {
	Part int // index in the parts given to Open
	Err  error
}

func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap gives the cause.
func (e *PartError) Unwrap() error { return e.Err }

// AnswerError is a part whose body says {"status":"error"}.
type AnswerError struct {
	Type, Text string
}

func (e *AnswerError) Error() string { return e.Type + ": " + e.Text }

// Part is one part's answer as it arrives, in the order of time.
type Part struct {
	Body io.Reader
	// Cut drops points outside [FromMS, ToMS], for an answer that covers more.
	Cut          bool
	FromMS, ToMS int64
	// StepMS and PhaseMS are the grid that the points should stand on; OnGrid tells
	// whether they did. A step of 0 asks for nothing.
	StepMS, PhaseMS int64
}

// Options are the limits and sizes of a splice. Zero values take the defaults.
type Options struct {
	ReadBytes  int // size of reads from a part; 0: 256 KiB
	WriteBytes int // size of writes; 0: 256 KiB
	HoldBytes  int // of one metric object or histogram at most; 0: 4 MiB
}

func (o Options) withDefaults() Options {
	if o.ReadBytes == 0 {
		o.ReadBytes = 256 << 10
	}
	if o.WriteBytes == 0 {
		o.WriteBytes = 256 << 10
	}
	if o.HoldBytes == 0 {
		o.HoldBytes = 4 << 20
	}
	return o
}

// Splice is one answer being put together. It is not safe for concurrent use.
// Scanners and buffers are kept for the next Open.
type Splice struct {
	opts  Options
	parts []part
	out   []byte
	last  []byte // metric of the series written last
	equal []int  // parts whose next series is the one being written
	notes notes
}

type part struct {
	Part
	scanner *promjson.Scanner
	metric  []byte // of the part's next series; nil at its end. Until Next
	onGrid  bool
}

// New makes a Splice.
func New(opts Options) *Splice { return &Splice{opts: opts.withDefaults()} }

// Open reads the beginning of every part, which waits until all have begun. An
// error in any of them is returned now, while another answer can still be given.
func (s *Splice) Open(parts []Part) error {
	for len(s.parts) < len(parts) {
		s.parts = append(s.parts, part{scanner: promjson.NewScanner(nil, promjson.Options{BufferBytes: s.opts.ReadBytes, HoldBytes: s.opts.HoldBytes})})
	}
	s.parts = s.parts[:len(parts)]
	s.out, s.last, s.notes = s.out[:0], nil, notes{}
	for i := range parts {
		p := &s.parts[i]
		p.Part, p.onGrid = parts[i], true
		p.scanner.Reset(parts[i].Body)
		if err := s.advance(i); err != nil {
			return err
		}
	}
	return nil
}

// advance goes to a part's next series. At its end, what it had to say beside its
// data is kept.
func (s *Splice) advance(i int) error {
	p := &s.parts[i]
	if p.scanner.Next() {
		p.metric = p.scanner.Metric()
		return nil
	}
	p.metric = nil
	if err := p.scanner.Err(); err != nil {
		return &PartError{i, err}
	}
	e := p.scanner.Envelope()
	switch {
	case e.Status == "error":
		return &PartError{i, &AnswerError{e.ErrorType, e.Error}}
	case e.Status != "success":
		return &PartError{i, fmt.Errorf("status %q", e.Status)}
	case e.ResultType != "matrix":
		return &PartError{i, fmt.Errorf("%w but %q", ErrNotMatrix, e.ResultType)}
	}
	s.notes.add(e)
	return nil
}

// WriteTo writes the whole answer. An error of a part comes as a PartError, one
// of w as it is. What was written before an error must not pass for an answer.
func (s *Splice) WriteTo(w io.Writer) (written int64, err error) {
	out := output{w: w, b: s.out, full: s.opts.WriteBytes}
	defer func() { s.out = out.b[:0] }()
	out.text(`{"status":"success","data":{"resultType":"matrix","result":[`)
	first := true
	for {
		if err := s.nextSeries(); err != nil {
			return out.written, err
		}
		if len(s.equal) == 0 {
			break
		}
		some, err := s.series(&out, first)
		if out.err != nil {
			return out.written, out.err
		}
		if err != nil {
			return out.written, err
		}
		first = first && !some
		for _, i := range s.equal {
			if err := s.advance(i); err != nil {
				return out.written, err
			}
		}
	}
	out.text(`]}`)
	s.notes.append(&out)
	out.text(`}`)
	out.flush()
	return out.written, out.err
}

// OnGrid tells, once WriteTo has returned, whether the series of a part began on
// its grid. A server that moves a query's times to its liking gives others.
func (s *Splice) OnGrid(part int) bool { return s.parts[part].onGrid }

// nextSeries finds the parts that have the least series next. That every series
// comes after the one written last proves that no part is out of order.
func (s *Splice) nextSeries() error {
	s.equal = s.equal[:0]
	for i := range s.parts {
		m := s.parts[i].metric
		if m == nil {
			continue
		}
		order := -1
		if len(s.equal) > 0 {
			order = compare(m, s.parts[s.equal[0]].metric)
		}
		switch {
		case order < 0:
			s.equal = append(s.equal[:0], i)
		case order == 0:
			s.equal = append(s.equal, i)
		}
	}
	if len(s.equal) == 0 {
		return nil
	}
	least := s.equal[0]
	if s.last != nil && promjson.CompareMetrics(s.last, s.parts[least].metric) >= 0 {
		return &PartError{least, ErrUnsorted}
	}
	s.last = append(s.last[:0], s.parts[least].metric...)
	return nil
}

// compare orders metric objects; mostly all parts have the same series next,
// spelled alike.
func compare(a, b []byte) int {
	if bytes.Equal(a, b) {
		return 0
	}
	return promjson.CompareMetrics(a, b)
}

// series writes one series from all parts that have it: first the values of all,
// then the histograms of all. It reports whether there was any point.
func (s *Splice) series(out *output, first bool) (some bool, err error) {
	run := run{out: out, metric: s.last, first: first, before: math.MinInt64}
	for _, i := range s.equal {
		p := &s.parts[i]
		for piece := p.scanner.NextValues(); piece != nil; piece = p.scanner.NextValues() {
			if err := run.piece(p, piece, `,"values":[`); err != nil {
				return false, &PartError{i, err}
			}
		}
		if err := p.scanner.Err(); err != nil {
			return false, &PartError{i, err}
		}
	}
	run.end()
	run.before = math.MinInt64
	for _, i := range s.equal {
		p := &s.parts[i]
		for piece := p.scanner.NextHistograms(); piece != nil; piece = p.scanner.NextHistograms() {
			if err := run.piece(p, piece, `,"histograms":[`); err != nil {
				return false, &PartError{i, err}
			}
		}
		if err := p.scanner.Err(); err != nil {
			return false, &PartError{i, err}
		}
	}
	run.end()
	if run.some {
		out.text("}")
	}
	return run.some, nil
}

// run is one series being written, and within it one array.
type run struct {
	out    *output
	metric []byte
	first  bool  // no series has been written before
	some   bool  // a point has been written
	open   bool  // the array is open
	before int64 // time of the last point written to the array, in ms
}

// piece writes the points of a piece, or those within the part's bounds.
func (r *run) piece(p *part, points []byte, key string) error {
	if p.Cut {
		var err error
		if points, err = cut(points, p.FromMS, p.ToMS); err != nil || len(points) == 0 {
			return err
		}
	}
	from, err := promjson.FirstTime(points)
	if err != nil {
		return err
	}
	if p.StepMS > 0 && (from-p.PhaseMS)%p.StepMS != 0 {
		p.onGrid = false
	}
	if from <= r.before {
		return fmt.Errorf("%w: %d ms after %d ms", ErrOverlap, from, r.before)
	}
	if r.before, err = promjson.LastTime(points); err != nil {
		return err
	}
	if !r.some {
		r.some = true
		if !r.first {
			r.out.text(",")
		}
		r.out.text(`{"metric":`)
		r.out.bytes(r.metric)
	}
	if r.open {
		r.out.text(",")
	} else {
		r.open = true
		r.out.text(key)
	}
	r.out.bytes(points)
	return nil
}

func (r *run) end() {
	if r.open {
		r.out.text("]")
		r.open = false
	}
}

// output gathers writes worth a call.
type output struct {
	w       io.Writer
	b       []byte
	full    int
	written int64
	err     error
}

func (o *output) text(t string) { o.b = append(o.b, t...) }

func (o *output) bytes(p []byte) {
	if len(o.b)+len(p) > o.full {
		o.flush()
	}
	if len(p) >= o.full {
		o.write(p)
		return
	}
	o.b = append(o.b, p...)
}

func (o *output) flush() {
	o.write(o.b)
	o.b = o.b[:0]
}

func (o *output) write(p []byte) {
	if o.err != nil || len(p) == 0 {
		return
	}
	n, err := o.w.Write(p)
	o.written += int64(n)
	o.err = err
}
