// Package splice merges the responses of the parts of one request.
//
// In: streams of JSON in order of time, or, for labels and series, whole lists. Out: one
// response, equal to the one that Prometheus returns for the whole request. promjson
// merges the streams; this package pools its scanners, sets the time window of each
// part, and merges lists. There are no requests and no cache here: parts are io.Readers,
// the response is an io.Writer.
package splice

import (
	"io"
	"math"

	"github.com/ferula-io/ferula/promjson"
)

// Part is the response of one part of a query.
type Part struct {
	Body io.Reader
	// Cut drops points outside [StartMS, EndMS]. It is for a response of a longer range.
	Cut            bool
	StartMS, EndMS int64
	// StepMS: points are expected at StartMS plus multiples of StepMS. StepAligned reports whether
	// they were. 0: not checked.
	StepMS int64
}

// Options are the limits and buffer sizes of a Splice. Zero values take the defaults.
type Options struct {
	FirstReadBytes int // size of the first reads from a part; 0: 64 KiB
	ReadBytes      int // size of later reads, from a part that fills its reads; 0: 1 MiB
	WriteBytes     int // size of writes, if the response is as long; 0: 1088 KiB
	ObjectBytesMax int // maximum size of one metric object or histogram; 0: 4 MiB
}

func (o Options) withDefaults() Options {
	if o.FirstReadBytes == 0 {
		o.FirstReadBytes = 64 << 10
	}
	if o.ReadBytes == 0 {
		o.ReadBytes = 1 << 20
	}
	if o.WriteBytes == 0 {
		// More than the longest response that identical requests share: the frontend does not copy a longer one first.
		o.WriteBytes = 1<<20 + 64<<10
	}
	if o.ObjectBytesMax == 0 {
		o.ObjectBytesMax = 4 << 20
	}
	return o
}

// Splice merges the parts of one request after the other, and reuses its scanners and
// buffers. It is not safe for concurrent use.
type Splice struct {
	opts     Options
	splicer  promjson.Splicer // merges the streams
	scanners []*promjson.Scanner
}

// New returns a Splice.
func New(opts Options) *Splice {
	opts = opts.withDefaults()
	return &Splice{opts: opts, splicer: promjson.Splicer{WriteBytes: opts.WriteBytes}}
}

// unknownBytes is the maximum size of the members of a response that Prometheus does not
// define. Members beyond it are dropped.
const unknownBytes = 4 << 10

// Annotations are the warnings of all parts, and whether a part is incomplete.
type Annotations struct {
	Warnings []string
	// Partial means that a part has isPartial, which VictoriaMetrics sets when a storage
	// node is missing.
	Partial bool
}

func annotationsOf(e *promjson.Envelope) Annotations {
	a := Annotations{Warnings: e.Warnings}
	for _, m := range e.Unknown {
		a.Partial = a.Partial || isPartial(m)
	}
	return a
}

// isPartial reports whether a member is isPartial with any value but false and null.
func isPartial(m promjson.Member) bool {
	return m.Name == "isPartial" && !m.InData && string(m.Value) != "false" && string(m.Value) != "null"
}

// Write merges the parts, in order of time, into w. It writes nothing before every part
// has begun. After a later error, the bytes in w are an incomplete response. An error of
// a part is a promjson.PartError.
func (s *Splice) Write(w io.Writer, parts []Part) (annotations Annotations, err error) {
	for len(s.scanners) < len(parts) {
		s.scanners = append(s.scanners, promjson.NewScanner(nil, promjson.Options{
			InitialBufferBytes: s.opts.FirstReadBytes, BufferBytes: s.opts.ReadBytes, MaxBufferBytes: s.opts.ObjectBytesMax,
			MaxUnknownBytes: unknownBytes,
		}))
	}
	for i, p := range parts {
		s.scanners[i].Reset(p.Body)
		if p.Cut {
			s.scanners[i].SetWindow(promjson.Window{StartMS: p.StartMS, EndMS: p.EndMS, StepMS: p.StepMS})
		} else if p.StepMS > 0 {
			// The window begins at a step in the distant past, so it drops no point.
			s.scanners[i].SetWindow(promjson.Window{StartMS: p.StartMS - (p.StartMS-math.MinInt64/2)/p.StepMS*p.StepMS,
				EndMS: math.MaxInt64, StepMS: p.StepMS})
		}
	}
	envelope, err := s.splicer.Splice(w, s.scanners[:len(parts)]...)
	if err != nil {
		return Annotations{}, err
	}
	return annotationsOf(envelope), nil
}

// StepAligned reports, after Write, whether the series of a part began at its steps. They do not if
// the downstream moves the start of a query, for example to a multiple of the step.
func (s *Splice) StepAligned(part int) bool { return s.scanners[part].StepAligned() }
