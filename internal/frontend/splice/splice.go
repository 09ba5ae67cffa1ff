// Package splice lays the answers to the parts of one request end to end.
//
// Parts come in as streams of JSON in the order of time, or, of labels and
// series, as whole lists; out goes one answer, as Prometheus would have given it
// for the whole. The merging itself is promjson's; this package lends its
// scanners, sets what of a part is wanted, and unites lists. Nothing is fetched
// and nothing cached here: parts are io.Readers, the answer is an io.Writer.
package splice

import (
	"io"
	"math"

	"github.com/ferula-io/ferula/promjson"
)

// Part is one part's answer as it arrives, in the order of time.
type Part struct {
	Body io.Reader
	// Cut drops points outside [FromMS, ToMS], for an answer that covers more.
	Cut          bool
	FromMS, ToMS int64
	// StepMS, counted from FromMS, is the grid that the points should stand on;
	// OnGrid tells whether they did. 0 asks for nothing.
	StepMS int64
}

// Options are the limits and sizes of a splice. Zero values take the defaults.
type Options struct {
	StartBytes int // size of the first reads from a part; 0: 64 KiB
	ReadBytes  int // size of reads from a part that fills them; 0: 1 MiB
	WriteBytes int // size of writes; 0: 256 KiB
	HoldBytes  int // of one metric object or histogram at most; 0: 4 MiB
}

func (o Options) withDefaults() Options {
	if o.StartBytes == 0 {
		o.StartBytes = 64 << 10
	}
	if o.ReadBytes == 0 {
		o.ReadBytes = 1 << 20
	}
	if o.WriteBytes == 0 {
		o.WriteBytes = 256 << 10
	}
	if o.HoldBytes == 0 {
		o.HoldBytes = 4 << 20
	}
	return o
}

// Splice puts answers together, one after the other; its scanners and buffers are
// kept in between. It is not safe for concurrent use.
type Splice struct {
	opts     Options
	splicer  promjson.Splicer
	scanners []*promjson.Scanner
}

// New makes a Splice.
func New(opts Options) *Splice {
	opts = opts.withDefaults()
	return &Splice{opts: opts, splicer: promjson.Splicer{WriteBytes: opts.WriteBytes}}
}

// unknownBytes is how much is kept of the members of a response that Prometheus
// does not have.
const unknownBytes = 4 << 10

// Notes is what parts said besides their data.
type Annotations struct {
	Warnings []string
	// Partial says that a part called itself incomplete, as VictoriaMetrics does.
	Partial bool
}

func annotationsOf(e *promjson.Envelope) Annotations {
	n := Annotations{Warnings: e.Warnings}
	for _, m := range e.Unknown {
		n.Partial = n.Partial || isPartial(m)
	}
	return n
}

// saysPartial takes anything but false for a yes.
func isPartial(m promjson.Member) bool {
	return m.Name == "isPartial" && !m.InData && string(m.Value) != "false" && string(m.Value) != "null"
}

// Write puts the parts together into w and returns what they said besides. Nothing
// is written before every part has begun; after that, what was written before an
// error must not pass for an answer. Errors of parts are promjson.PartErrors.
func (s *Splice) Write(w io.Writer, parts []Part) (notes Annotations, err error) {
	for len(s.scanners) < len(parts) {
		s.scanners = append(s.scanners, promjson.NewScanner(nil, promjson.Options{
			InitialBufferBytes: s.opts.StartBytes, BufferBytes: s.opts.ReadBytes, MaxBufferBytes: s.opts.HoldBytes, MaxUnknownBytes: unknownBytes,
		}))
	}
	for i, p := range parts {
		s.scanners[i].Reset(p.Body)
		if p.Cut {
			s.scanners[i].SetWindow(promjson.Window{StartMS: p.FromMS, EndMS: p.ToMS, StepMS: p.StepMS})
		} else if p.StepMS > 0 {
			// Everything is wanted: a bound far away that is on the grid.
			s.scanners[i].SetWindow(promjson.Window{StartMS: p.FromMS - (p.FromMS-math.MinInt64/2)/p.StepMS*p.StepMS, EndMS: math.MaxInt64, StepMS: p.StepMS})
		}
	}
	envelope, err := s.splicer.Splice(w, s.scanners[:len(parts)]...)
	if err != nil {
		return Annotations{}, err
	}
	return annotationsOf(envelope), nil
}

// OnGrid tells, once Write has returned, whether the series of a part began on
// its grid. A server that moves a query's times to its liking gives others.
func (s *Splice) StepAligned(part int) bool { return s.scanners[part].StepAligned() }
