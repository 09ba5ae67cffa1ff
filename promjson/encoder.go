package promjson

import (
	"errors"
	"fmt"
	"io"
	"iter"
)

// Errors of an Encoder.
var (
	// ErrOrder: a method of an Encoder was called where its bytes cannot follow, such as
	// Columns without Series.
	ErrOrder = errors.New("promjson: encoder method called out of order")
	// ErrPartlyWritten: a part of the response has been written, so that it can no longer
	// become an error response. The caller must abort the connection.
	ErrPartlyWritten = errors.New("promjson: a part of the response has been written")
)

// Encoder writes one whole response of the Prometheus HTTP API to an io.Writer, byte for
// byte as Prometheus' own codec does:
//
//	BeginMatrix     (Series (EncodeValues|Columns|ValueSeq)* Histogram*)* query_range
//	BeginVector     (Sample | HistogramSample)*                            query
//	Scalar, Text                                                           query
//	BeginLabelSets  LabelSet*                                              series
//	BeginStrings    AddString*                                             labels, label values
//	BeginExemplars  (ExemplarSeries Exemplar*)*                            query_exemplars
//	BeginMetadata   Metadata*                                              metadata
//
// Close must follow. Before Close, Member adds further members to the "data" of a response to
// a query. Close without a result writes a response without data.
//
// The memory of an Encoder is bounded by its buffer and the longest string: a full buffer is
// written between values only. After the first error, of the writer or ErrOrder, nothing is
// written, and every later call of Err, Flush and Close returns this error. An Encoder that
// is reused with Reset does not allocate. It is not safe for concurrent use.
type Encoder struct {
	w     io.Writer
	b     []byte
	limit int // b is written when it has this many bytes
	err   error
	begun bool // bytes were written to w

	place place
	n     int    // number of elements of the result so far
	inner int    // number of exemplars of the current series so far
	array kind   // the open array of the current series
	last  []byte // the family of the last Metadata

	steps  *Steps
	points [growPoints]Point
	queued int // number of values in points

	// The yield functions for iterators, created once because each creation allocates.
	yieldLabel  func(name, value string) bool
	yieldPoint  func(ms int64, v float64) bool
	yieldBucket func(b Bucket) bool
	parts       int // number of labels or buckets of the current object so far
}

// place is the position of an Encoder in a response.
type place uint8

const (
	placeStart place = iota
	placeMatrix
	placeSeries // in a series of a matrix
	placeVector
	placeLabelSets
	placeStrings
	placeExemplars
	placeExemplarSeries
	placeMetadata
	placeFamily // in a family of metadata
	placeData   // after the result, in "data"
	placeClosed
)

const (
	encoderBytes    = 64 << 10
	encoderBytesMin = 512
	keptBuffers     = 4 // Reset drops a buffer larger than this many times limit
)

// NewEncoder returns an Encoder that writes one response to w. It writes whenever its buffer
// has bufferBytes; 0: 64 KiB. Until the first write, Fail can replace the response.
func NewEncoder(w io.Writer, bufferBytes int) *Encoder {
	if bufferBytes <= 0 {
		bufferBytes = encoderBytes
	}
	e := &Encoder{limit: max(bufferBytes, encoderBytesMin)}
	e.yieldLabel, e.yieldPoint, e.yieldBucket = e.addLabel, e.addPoint, e.addBucket
	e.Reset(w)
	return e
}

// Reset makes e write another response, to w, with the same buffer. It removes the steps of
// SetSteps.
func (e *Encoder) Reset(w io.Writer) {
	b := e.b[:0]
	if cap(b) > keptBuffers*e.limit {
		b = nil
	}
	*e = Encoder{w: w, b: b, limit: e.limit, last: e.last[:0], yieldLabel: e.yieldLabel, yieldPoint: e.yieldPoint,
		yieldBucket: e.yieldBucket}
}

// SetSteps sets the steps of the range query. All series of the response then share the encoded
// timestamps of the steps. nil: every timestamp is encoded.
func (e *Encoder) SetSteps(g *Steps) { e.steps = g }

// Err returns the first error, or nil.
func (e *Encoder) Err() error { return e.err }

// Written reports whether bytes of the response were written to the writer. Before that,
// the caller may still choose the status and headers of the HTTP response.
func (e *Encoder) Written() bool { return e.begun }

// Flush writes the bytes that are encoded so far, and returns the first error.
func (e *Encoder) Flush() error {
	if e.err == nil && len(e.b) > 0 {
		e.begun = true
		var n int
		if n, e.err = e.w.Write(e.b); e.err == nil && n != len(e.b) {
			e.err = io.ErrShortWrite
		}
	}
	e.b = e.b[:0]
	return e.err
}

func (e *Encoder) flushIfFull() {
	if len(e.b) >= e.limit {
		_ = e.Flush() // kept in e.err
	}
}

func (e *Encoder) raw(text string) { e.b = append(e.b, text...) }

// misplaced sets the error, ErrOrder, of a call out of order.
func (e *Encoder) misplaced(method string) {
	if e.err == nil {
		e.err = fmt.Errorf("%w: %s", ErrOrder, method)
		e.b = e.b[:0]
	}
}

// begin begins the "data" of a response with text, and moves to the place to. It returns false
// after an error.
func (e *Encoder) begin(method, text string, to place) bool {
	if e.place != placeStart {
		e.misplaced(method)
	}
	if e.err != nil {
		return false
	}
	e.raw(`{"status":"success","data":`)
	e.raw(text)
	e.place = to
	return true
}

// element begins an element of the list whose place is in. It returns false after an error.
func (e *Encoder) element(method string, in place) bool {
	e.leave(in)
	if e.place != in {
		e.misplaced(method)
	}
	if e.err != nil {
		return false
	}
	e.flushIfFull()
	if e.n > 0 {
		e.b = append(e.b, ',')
	}
	e.n++
	return e.err == nil
}

// leave ends the open element of the list whose place is to.
func (e *Encoder) leave(to place) {
	if e.err != nil {
		return
	}
	switch {
	case e.place == placeSeries && to == placeMatrix:
		if e.array != kindNone {
			e.raw("]")
		}
		e.raw("}")
	case e.place == placeExemplarSeries && to == placeExemplars:
		e.raw("]}")
	case e.place == placeFamily && to == placeMetadata:
		e.raw("]")
	default:
		return
	}
	e.place = to
}

// end ends the result.
func (e *Encoder) end() {
	for _, outer := range [...]place{placeMatrix, placeExemplars, placeMetadata} {
		e.leave(outer)
	}
	switch e.place {
	case placeMatrix, placeVector:
		e.raw("]")
		e.place = placeData
	case placeLabelSets, placeStrings, placeExemplars:
		e.raw("]")
	case placeMetadata:
		e.raw("}")
	case placeStart:
		e.raw(`{"status":"success"`)
	}
}

// Member adds a member, such as "stats", to the "data" of a response to a query, after the
// result. value must be JSON; it is copied as it is.
func (e *Encoder) Member(name string, value []byte) {
	if e.err == nil && e.place != placeLabelSets && e.place != placeStrings && e.place != placeStart {
		e.leave(placeMatrix)
		if e.place == placeMatrix || e.place == placeVector {
			e.end()
		}
	}
	if e.place != placeData {
		e.misplaced("Member")
	}
	if e.err != nil {
		return
	}
	e.raw(",")
	e.b = AppendString(e.b, name)
	e.raw(":")
	e.b = append(e.b, value...)
	e.flushIfFull()
}

// Close ends the response, with its warnings and infos if there are any, and writes the
// remaining bytes. It does not close the writer. It returns the first error: the response
// is complete only if the error is nil.
func (e *Encoder) Close(warnings, infos []string) error {
	if e.place == placeClosed {
		e.misplaced("Close")
	}
	if e.err != nil {
		return e.err
	}
	e.end()
	if e.place == placeData {
		e.raw("}")
	}
	e.place = placeClosed
	e.texts(`,"warnings":[`, warnings)
	e.texts(`,"infos":[`, infos)
	e.raw("}")
	return e.Flush()
}

// texts adds a member that is a list of strings, if it is not empty.
func (e *Encoder) texts(key string, list []string) {
	for i, text := range list {
		if i == 0 {
			e.raw(key)
		} else {
			e.raw(",")
		}
		e.b = AppendString(e.b, text)
		e.flushIfFull()
	}
	if len(list) > 0 {
		e.raw("]")
	}
}

// Fail replaces the encoded bytes with an error response and writes it. errorType is for
// example "bad_data" or "execution". If a part of the response has been written, Fail writes
// nothing and returns ErrPartlyWritten, or the first error if there was one; the caller must
// then abort the connection. The caller sets the status of the HTTP response.
func (e *Encoder) Fail(errorType, message string) error {
	if e.begun || e.place == placeClosed {
		if e.err == nil {
			e.err = ErrPartlyWritten
		}
		e.b = e.b[:0]
		return e.err
	}
	e.err, e.place = nil, placeClosed
	e.b = AppendError(e.b[:0], errorType, message)
	return e.Flush()
}

// AppendError appends an error response: {"status":"error","errorType":"...","error":"..."}
func AppendError(dst []byte, errorType, message string) []byte {
	dst = append(dst, `{"status":"error"`...)
	if errorType != "" {
		dst = AppendString(append(dst, `,"errorType":`...), errorType)
	}
	if message != "" {
		dst = AppendString(append(dst, `,"error":`...), message)
	}
	return append(dst, '}')
}

// metric appends a metric object.
func (e *Encoder) metric(labels iter.Seq2[string, string]) {
	e.parts = 0
	e.b = append(e.b, '{')
	if labels != nil {
		labels(e.yieldLabel)
	}
	e.b = append(e.b, '}')
}

// addLabel is the yield function of an iterator over labels.
func (e *Encoder) addLabel(name, value string) bool {
	e.b = appendLabel(e.b, e.parts, name, value)
	e.parts++
	e.flushIfFull()
	return e.err == nil
}

// appendLabel appends label i of a metric object.
func appendLabel(dst []byte, i int, name, value string) []byte {
	if i > 0 {
		dst = append(dst, ',')
	}
	dst = AppendLabelString(dst, name)
	dst = append(dst, ':')
	return AppendLabelString(dst, value)
}
