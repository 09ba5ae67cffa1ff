package promjson

import "io"

// Options are the buffer sizes and limits of a Scanner, in bytes. The zero value has
// the defaults.
type Options struct {
	// BufferBytes is the size of reads and the maximum size of a piece of points, which
	// Scanner.NextValues returns. The default is 64 KiB; for a socket 1 MiB costs less CPU.
	BufferBytes int
	// InitialBufferBytes, if less than BufferBytes, is the size of the first reads. It
	// saves memory for short responses. Reads that fill the buffer enlarge it, up to
	// BufferBytes. The result for invalid JSON may then depend on the sizes of the reads.
	InitialBufferBytes int
	// MaxBufferBytes is the limit of the buffer for input that must be in memory at once:
	// a metric object, a point (such as a histogram), and a whole series if its members
	// are in an unusual order. Larger input is ErrLimit. The default is 1 MiB.
	MaxBufferBytes int
	// MaxTextBytes is the limit of the total size of the strings of the Envelope, such as
	// warnings, and of Scanner.Result. The default is 1 MiB.
	MaxTextBytes int
	// MaxUnknownBytes is the limit of the total size of Envelope.Unknown. Members that do
	// not fit are skipped. The default is 0: all are skipped.
	MaxUnknownBytes int
	// Validate makes the Scanner check every point, too, which costs as much as decoding.
	// An invalid point ends the scan before its piece is returned. See the function Validate.
	Validate bool
}

func (o Options) withDefaults() Options {
	if o.BufferBytes <= 0 {
		o.BufferBytes = 64 << 10
	}
	o.BufferBytes = max(o.BufferBytes, 16)
	if o.InitialBufferBytes <= 0 {
		o.InitialBufferBytes = o.BufferBytes
	}
	o.InitialBufferBytes = min(max(o.InitialBufferBytes, 16), o.BufferBytes)
	if o.MaxBufferBytes <= 0 {
		o.MaxBufferBytes = 1 << 20
	}
	o.MaxBufferBytes = max(o.MaxBufferBytes, o.BufferBytes)
	if o.MaxTextBytes <= 0 {
		o.MaxTextBytes = 1 << 20
	}
	return o
}

// Envelope holds all members of a response except the result. It is complete once
// Next has returned false, or an iterator such as Strings has ended, because any member
// may follow the result.
type Envelope struct {
	Status     string // "success" or "error".
	ErrorType  string
	Error      string
	ResultType string // "matrix", "vector", "scalar" or "string".
	Warnings   []string
	Infos      []string
	Unknown    []Member // See Options.MaxUnknownBytes.
}

// Member is a member without a field in Envelope, such as "isPartial" or "stats".
type Member struct {
	Name   string
	InData bool   // It is a member of "data", not of the response object.
	Value  []byte // JSON, owned by the caller.
}

// Scanner reads a response to a query or a range query and returns its series one by one,
// each as the encoded bytes of its metric object and of pieces of its points. It can read
// other responses element by element, see Strings. Its memory does not depend on the number
// or size of series:
//
//	for s.Next() {
//		use(s.Metric())
//		for p := s.NextValues(); p != nil; p = s.NextValues() {
//			use(p)
//		}
//		for p := s.NextHistograms(); p != nil; p = s.NextHistograms() {
//			use(p)
//		}
//	}
//	if s.Err() != nil || s.Envelope().Status != "success" { ...
//
// The caller may skip any piece. The Scanner owns all bytes it returns; they are valid
// until the next call of Next, NextValues or NextHistograms.
//
// The Scanner accepts any JSON encoding; Prometheus' encoding is the fastest. It checks the
// envelope, members, metric objects, and the start and end of arrays. It does not check the
// points inside an array unless Options.Validate is set; the Decode functions do. If the JSON
// inside an array is invalid, the Scanner may find the wrong end of the array. The result
// never depends on the sizes of the reads, except with Options.InitialBufferBytes.
//
// A Scanner is not safe for concurrent use.
type Scanner struct {
	buffer
	o     Options
	level level
	first bool // No member or element of this level has been read.
	seen  struct{ data, result, series bool }
	err   error

	envelope     Envelope
	result       []byte // Of a scalar or string query.
	textBytes    int    // The rest of MaxTextBytes.
	unknownBytes int    // The rest of MaxUnknownBytes.

	metric     []byte
	form       metricForm
	metricAt   int64  // The offset of metric in the input.
	ownMetric  []byte // Holds the metric once the buffer moves.
	ownsMetric bool   // metric is ownMetric, not a part of the buffer.

	series seriesState
	window window
	name   []byte // The unescaped name of the current member.

	left      int            // upper bound of the number of points in the current piece of Points
	histogram HistogramPoint // used by checked; kept for its memory
}

// level is the position of the Scanner in the nesting of a response.
type level uint8

const (
	levelStart  level = iota
	levelTop          // The members of the response object.
	levelData         // The members of "data".
	levelResult       // The elements of the result.
	levelSeries       // A series that has not been read to its end.
	levelEnd
)

// NewScanner returns a Scanner of the response in r. It buffers input. A complete scan reads r
// to its end.
func NewScanner(r io.Reader, o Options) *Scanner {
	s := &Scanner{}
	s.beforeMove = s.saveMetric
	s.o = o.withDefaults()
	s.Reset(r)
	return s
}

// Reset makes s read another response, from r, with the same options and memory.
func (s *Scanner) Reset(r io.Reader) {
	if r == nil {
		s.ResetBytes(nil)
		return
	}
	buf := s.buf
	if s.r == nil || len(buf) < s.o.InitialBufferBytes || len(buf) > s.o.BufferBytes {
		buf = make([]byte, s.o.InitialBufferBytes) // the old buffer belongs to the caller, or has grown
	}
	s.reset(buffer{r: r, buf: buf})
}

// ResetBytes makes s read a response that is in memory, without a copy and with each
// series in one piece. The caller must not change response until s is reset again.
func (s *Scanner) ResetBytes(response []byte) {
	s.reset(buffer{buf: response, end: len(response), readErr: io.ErrUnexpectedEOF, eof: true})
}

func (s *Scanner) reset(b buffer) {
	b.mark, b.beforeMove, b.growable, b.maxBuf, b.maxReadBuf = -1, s.beforeMove, true, s.o.MaxBufferBytes, s.o.BufferBytes
	*s = Scanner{
		buffer: b, o: s.o, ownMetric: s.ownMetric, name: s.name, histogram: s.histogram,
		textBytes: s.o.MaxTextBytes, unknownBytes: s.o.MaxUnknownBytes,
	}
}

// Err returns the error that has ended the scan, an *Error, or nil.
func (s *Scanner) Err() error { return s.err }

// Envelope returns the members of the response that were read so far. The Envelope is valid
// until s is reset; the caller owns the strings and values in it.
func (s *Scanner) Envelope() *Envelope { return &s.envelope }

// Result returns the result of a scalar or string query, [t,"v"], once Next has
// returned false, and nil for other results. The caller owns it.
func (s *Scanner) Result() []byte { return s.result }

// Metric returns the metric object of the current series, {"name":"value",...}, as
// it is encoded in the input.
func (s *Scanner) Metric() []byte { return s.metric }

// Next advances to the next series. It returns false at the end of the response and
// on an error, see Err.
func (s *Scanner) Next() bool {
	return s.next() && s.checkMetric()
}

// checkMetric checks the metric object of the current series. A Splicer does not call it for an
// object that equals a checked one.
func (s *Scanner) checkMetric() bool {
	if s.form != formUnknown {
		return true
	}
	form, at, wrong := metricFormOf(s.metric)
	if form == formBad {
		s.err = s.badMetric(at, wrong)
		return false
	}
	s.form = form
	return true
}

func (s *Scanner) badMetric(at int, wrong string) error {
	return &Error{Offset: s.metricAt + int64(at), Reason: "metric: " + wrong, Err: ErrSyntax}
}

// locate turns the offset of an error in a piece into an offset in the input.
func (s *Scanner) locate(piece []byte, err error) error {
	//lint:ignore errorlint a hot path; the error is set in this package and never wrapped
	if e, ok := err.(*Error); ok {
		// The piece is a slice of the buffer, and both capacities end at the same byte.
		return &Error{Offset: s.base + int64(cap(s.buf)-cap(piece)) + e.Offset, Reason: e.Reason, Err: e.Err}
	}
	return err
}

// next is Next without the check of the metric object.
func (s *Scanner) next() bool {
	if s.err != nil {
		return false
	}
	for s.err == nil && s.level != levelEnd {
		if s.level == levelSeries {
			for s.rawHistograms() != nil {
			}
			s.leave(levelResult)
			if s.err != nil {
				return false
			}
		}
		found, err := s.step()
		if err != nil {
			s.stop(err)
		}
		if found && s.err == nil && (!s.window.on || s.findPointInWindow()) {
			return s.err == nil
		}
	}
	return false
}

// stop ends the scan with err.
func (s *Scanner) stop(err error) {
	//lint:ignore errorlint a hot path; the error is set in this package and never wrapped
	if err == errBufferFull {
		err = s.fail(s.pos, "more than MaxBufferBytes in memory at once", ErrLimit)
	}
	s.err = err
	s.metric = nil
	s.series = seriesState{}
}

// saveMetric copies the metric out of the buffer before the buffer moves.
func (s *Scanner) saveMetric() {
	if s.metric != nil && !s.ownsMetric {
		s.ownMetric = append(s.ownMetric[:0], s.metric...)
		s.metric, s.ownsMetric = s.ownMetric, true
	}
}

// step reads one member or element of the current level and reports whether it is a
// series.
func (s *Scanner) step() (found bool, err error) {
	switch s.level {
	case levelStart:
		s.enter(levelTop)
		return false, s.expect('{')
	case levelTop:
		name, more, err := s.member()
		if err != nil {
			return false, err
		}
		if !more {
			s.level = levelEnd
			return false, s.finish()
		}
		return false, s.topMember(name)
	case levelData:
		name, more, err := s.member()
		if err != nil {
			return false, err
		}
		if !more {
			s.leave(levelTop)
			return false, nil
		}
		return false, s.dataMember(name)
	default:
		return s.element()
	}
}

func (s *Scanner) enter(l level) { s.level, s.first = l, true }
func (s *Scanner) leave(l level) { s.level, s.first = l, false }

// finish checks that the result matches resultType and that no input follows.
func (s *Scanner) finish() error {
	switch kind := s.envelope.ResultType; kind {
	case "matrix", "vector":
		if s.result != nil {
			return s.syntax("the result is not a " + kind)
		}
	case "scalar", "string":
		if s.seen.series {
			return s.syntax("the result is not a " + kind)
		}
	}
	if err := s.checkResult(); err != nil {
		return err
	}
	_, err := s.space()
	if err != nil && s.eof {
		return nil
	}
	if err == nil {
		err = s.syntax("expected the end")
	}
	return err
}

// member reads the name of the next member of an object and the colon. The name is
// valid until the next member. more is false at the end of the object.
func (s *Scanner) member() (name []byte, more bool, err error) {
	c, err := s.space()
	if err != nil {
		return nil, false, err
	}
	if c == '}' {
		s.pos++
		return nil, false, nil
	}
	if !s.first {
		if err := s.expect(','); err != nil {
			return nil, false, err
		}
	}
	s.first = false
	raw, err := s.rawString()
	if err != nil {
		return nil, false, err
	}
	known := false
	if s.name, known = appendUnescaped(s.name[:0], raw); !known {
		return nil, false, s.syntax("an unknown escape in a name")
	}
	if err := s.expect(':'); err != nil {
		return nil, false, err
	}
	return s.name, true, nil
}
