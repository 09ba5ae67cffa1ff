package promjson

import "io"

// Options are the limits of a Scanner. The zero value has sensible ones.
type Options struct {
	// BufferBytes is the size of reads, and of what a series is handed out in.
	// The default is 64 KiB; from a socket 1 MiB is cheaper.
	BufferBytes int
	// InitialBufferBytes, if less than BufferBytes, is the size of the first reads: a short
	// answer needs no more. The buffer grows to BufferBytes where reads fill it.
	// Where the input is not valid JSON, what becomes of it may then depend on how
	// the reader cuts it.
	InitialBufferBytes int
	// MaxBufferBytes is what may have to be in memory at once: the largest metric
	// object, the largest point (a histogram), and a whole series where its
	// members stand in an unusual order. The default is 1 MiB.
	MaxBufferBytes int
	// MaxTextBytes bounds the strings of the envelope, all together: warnings,
	// infos, error and so on. It also bounds Result. The default is 1 MiB.
	MaxTextBytes int
	// MaxUnknownBytes is how much of the members that are not known is kept in the
	// Envelope. What does not fit is skipped, as is everything by default.
	MaxUnknownBytes int
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

// Envelope is what an answer says beside its data. It is complete once Next has
// returned false, since any of it may stand behind the data.
type Envelope struct {
	Status     string // "success" or "error".
	ErrorType  string
	Error      string
	ResultType string // "matrix", "vector", "scalar" or "string".
	Warnings   []string
	Infos      []string
	Unknown    []Member // See Options.MaxUnknownBytes.
}

// Member is a member of the answer, or of its data, that has no place of its
// own in the Envelope, such as "stats" or "isPartial".
type Member struct {
	Name   string
	InData bool
	Value  []byte // Its JSON, owned.
}

// Scanner reads an answer to query_range or query and hands out its series one
// by one, in memory that does not depend on their number or size:
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
// What is not wanted of a series need not be read. All bytes handed out are the
// Scanner's and valid until its next call that begins with Next.
//
// Any spelling that JSON allows is understood; what Prometheus writes is read
// at the speed of a search for one byte. The structure is checked: envelope,
// members, metric objects, where arrays begin and end. What stands inside an
// array of values or histograms is not: that is for whoever decodes it. Where
// the input is not valid JSON there, the end of the array may be misjudged, but
// an answer never depends on how the reader cuts the input.
//
// A Scanner is not safe for concurrent use.
type Scanner struct {
	buffer
	o     Options
	level level
	first bool // No member or element of this level has been read yet.
	seen  struct{ data, result, series bool }
	err   error

	envelope     Envelope
	result       []byte
	textBytes    int // What is left of the budget.
	unknownBytes int

	metric     []byte
	form       metricForm
	metricAt   int64  // Its offset.
	ownMetric  []byte // Room for the metric once the buffer moves.
	ownsMetric bool

	series seriesState
	window window
	name   []byte // Room for the name of a member.
}

// level is what is being read.
type level uint8

const (
	levelStart  level = iota
	levelTop          // The members of the answer.
	levelData         // The members of its data.
	levelResult       // The elements of the result.
	levelSeries       // A series that has not been read to its end.
	levelEnd
)

// NewScanner returns a Scanner that reads from r. It reads ahead, and to the
// end of r unless it fails.
func NewScanner(r io.Reader, o Options) *Scanner {
	s := &Scanner{}
	s.beforeMove = s.saveMetric
	s.o = o.withDefaults()
	s.Reset(r)
	return s
}

// Reset makes s read another answer, from r, and keeps its options and memory.
func (s *Scanner) Reset(r io.Reader) {
	if r == nil {
		s.ResetBytes(nil)
		return
	}
	buf := s.buf
	if s.r == nil || len(buf) < s.o.InitialBufferBytes || len(buf) > s.o.BufferBytes {
		buf = make([]byte, s.o.InitialBufferBytes) // It was another's, or has grown.
	}
	s.reset(buffer{r: r, buf: buf})
}

// ResetBytes makes s read an answer that is in memory. It is borrowed until s
// is reset again: every series is handed out in one piece, without a copy.
func (s *Scanner) ResetBytes(answer []byte) {
	s.reset(buffer{buf: answer, end: len(answer), readErr: io.ErrUnexpectedEOF, eof: true})
}

func (s *Scanner) reset(b buffer) {
	b.mark, b.beforeMove, b.growable, b.maxBuf, b.maxReadBuf = -1, s.beforeMove, true, s.o.MaxBufferBytes, s.o.BufferBytes
	*s = Scanner{
		buffer: b, o: s.o, ownMetric: s.ownMetric, name: s.name,
		textBytes: s.o.MaxTextBytes, unknownBytes: s.o.MaxUnknownBytes,
	}
}

// Err returns what has ended the series, if it was not the end of the answer.
func (s *Scanner) Err() error { return s.err }

// Envelope returns what the answer has said so far beside its data. It is valid
// until s is reset; the strings in it are the caller's.
func (s *Scanner) Envelope() *Envelope { return &s.envelope }

// Result returns the result of a scalar or string query, [t,"v"], once Next has
// returned false, and nil for others. It is the caller's.
func (s *Scanner) Result() []byte { return s.result }

// Metric returns the metric object of the series, {"name":"value",...}, as it
// is spelled.
func (s *Scanner) Metric() []byte { return s.metric }

// Next goes on to the next series. It returns false at the end of the answer
// and on an error.
func (s *Scanner) Next() bool {
	return s.next() && s.checkMetric()
}

// checkMetric sees whether the metric object is one. A merge leaves it out for
// objects that are equal to a checked one.
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

// locate makes an error in a piece one in the answer.
func (s *Scanner) locate(piece []byte, err error) error {
	if e, ok := err.(*Error); ok {
		// The piece is part of the buffer and reaches as far.
		return &Error{Offset: s.base + int64(cap(s.buf)-cap(piece)) + e.Offset, Reason: e.Reason, Err: e.Err}
	}
	return err
}

// next is Next without a look into the metric object.
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

// stop makes err the answer's.
func (s *Scanner) stop(err error) {
	if err == errBufferFull {
		err = s.fail(s.pos, "more than MaxBufferBytes at once", ErrLimit)
	}
	s.err = err
	s.metric = nil
	s.series = seriesState{}
}

// saveMetric takes the metric out of the buffer before the buffer moves.
func (s *Scanner) saveMetric() {
	if s.metric != nil && !s.ownsMetric {
		s.ownMetric = append(s.ownMetric[:0], s.metric...)
		s.metric, s.ownsMetric = s.ownMetric, true
	}
}

// step reads one thing of the present level and reports whether it is a series.
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

// finish sees that the result was of its type and that nothing follows.
func (s *Scanner) finish() error {
	switch kind := s.envelope.ResultType; kind {
	case "matrix", "vector":
		if s.result != nil {
			return s.syntax("the result is no " + kind)
		}
	case "scalar", "string":
		if s.seen.series {
			return s.syntax("the result is no " + kind)
		}
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

// member reads the name of the next member of an object, and the colon. The
// name is valid until the next member. It returns false at the end of the object.
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
	raw, err := s.text()
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
