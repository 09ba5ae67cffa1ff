package frontend

import (
	"io"
	"math"

	"github.com/ferula-io/ferula/promjson"
)

// splicePart is the response of one part of a query.
type splicePart struct {
	Body io.Reader
	// Cut drops points outside [StartMS, EndMS]. It is for a response of a longer range.
	Cut            bool
	StartMS, EndMS int64
	// StepMS: points are expected at StartMS plus multiples of StepMS. StepAligned reports whether
	// they were. 0: not checked.
	StepMS int64
}

// Sizes of the buffers of a splicing.
const (
	spliceFirstReadBytes = 64 << 10 // of the first reads from a part
	spliceReadBytes      = 1 << 20  // of later reads, from a part that fills its reads
	// spliceWriteBytes is the size of writes, if the response is as long. It is more than the longest response that
	// identical requests share: a longer one is not copied first.
	spliceWriteBytes = sharedResponseMaxBytes + 64<<10
	objectBytesMax   = 4 << 20 // maximum size of one metric object or histogram
)

// splicing merges the parts of one request after the other, and reuses its scanners and
// buffers. It is not safe for concurrent use.
type splicing struct {
	readBytes int
	splicer   promjson.Splicer // merges the streams
	scanners  []*promjson.Scanner
}

func newSplicing() *splicing {
	return &splicing{readBytes: spliceReadBytes, splicer: promjson.Splicer{WriteBytes: spliceWriteBytes}}
}

// unknownBytes is the maximum size of the members of a response that Prometheus does not
// define. Members beyond it are dropped.
const unknownBytes = 4 << 10

// partAnnotations are the warnings of all parts, and whether a part is incomplete.
type partAnnotations struct {
	Warnings []string
	// Partial means that a part has isPartial, which VictoriaMetrics sets when a storage
	// node is missing.
	Partial bool
}

func annotationsOf(e *promjson.Envelope) partAnnotations {
	a := partAnnotations{Warnings: e.Warnings}
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
func (s *splicing) Write(w io.Writer, parts []splicePart) (annotations partAnnotations, err error) {
	for len(s.scanners) < len(parts) {
		s.scanners = append(s.scanners, promjson.NewScanner(nil, promjson.Options{
			InitialBufferBytes: spliceFirstReadBytes, BufferBytes: s.readBytes, MaxBufferBytes: objectBytesMax,
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
		return partAnnotations{}, err
	}
	return annotationsOf(envelope), nil
}

// StepAligned reports, after Write, whether the series of a part began at its steps. They do not if
// the downstream moves the start of a query, for example to a multiple of the step.
func (s *splicing) StepAligned(part int) bool { return s.scanners[part].StepAligned() }
