package limit

import (
	"io"
	"time"
)

// Query limits what one query may ask for. A zero field is no limit.
type Query struct {
	LengthMax      time.Duration // from start to end
	PointsMax      int64         // of each series; start and end count
	QueryBytesMax  int64         // of the expression's text
	AnswerBytesMax int64         // see Reader and Writer
}

// CheckText refuses an expression that is too long.
func (q Query) CheckText(expr string) error {
	if n := int64(len(expr)); q.QueryBytesMax > 0 && n > q.QueryBytesMax {
		return &Error{Limit: "length of the query's text", Value: n, Max: q.QueryBytesMax, Unit: "bytes"}
	}
	return nil
}

// CheckRange refuses a range that is too long or has too many points. startMS and
// endMS are inclusive. A range that ends before it starts, or a step that is not
// positive, is not checked: others find that out.
func (q Query) CheckRange(startMS, endMS, stepMS int64) error {
	if endMS < startMS {
		return nil
	}
	lengthMS := uint64(endMS) - uint64(startMS) // right even where the difference overflows
	if q.LengthMax > 0 && lengthMS > uint64(q.LengthMax.Milliseconds()) {
		return &Error{Limit: "range from start to end", Value: clamp(lengthMS), Max: q.LengthMax.Milliseconds(), Unit: "ms"}
	}
	if stepMS <= 0 {
		return nil
	}
	if points := lengthMS/uint64(stepMS) + 1; q.PointsMax > 0 && points > uint64(q.PointsMax) {
		return &Error{Limit: "points of each series, which are the range over the step", Value: clamp(points), Max: q.PointsMax}
	}
	return nil
}

func clamp(n uint64) int64 { return int64(min(n, 1<<63-1)) }

// Reader passes on at most AnswerBytesMax bytes of src; if there are more, the read
// after the last allowed one fails with ErrLimit.
func (q Query) Reader(src io.Reader) io.Reader {
	if q.AnswerBytesMax <= 0 {
		return src
	}
	return &reader{src: src, left: q.AnswerBytesMax, max: q.AnswerBytesMax}
}

// Writer passes on at most AnswerBytesMax bytes to dst. A write that would go beyond
// fails with ErrLimit and passes nothing on.
func (q Query) Writer(dst io.Writer) io.Writer {
	if q.AnswerBytesMax <= 0 {
		return dst
	}
	return &writer{dst: dst, left: q.AnswerBytesMax, max: q.AnswerBytesMax}
}

func tooManyBytes(limit int64) error {
	return &Error{Limit: "length of the answer", Max: limit, Unit: "bytes"}
}

type reader struct {
	src       io.Reader
	left, max int64
	err       error
}

func (r *reader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.src.Read(p[:min(int64(len(p)), r.left+1)]) // one more, to see that there is none
	if int64(n) > r.left {
		n, err = int(r.left), tooManyBytes(r.max)
	}
	r.left -= int64(n)
	r.err = err
	return n, err
}

type writer struct {
	dst       io.Writer
	left, max int64
	err       error
}

func (w *writer) Write(p []byte) (int, error) {
	if w.err == nil && int64(len(p)) > w.left {
		w.err = tooManyBytes(w.max)
	}
	if w.err != nil {
		return 0, w.err
	}
	w.left -= int64(len(p))
	n, err := w.dst.Write(p)
	w.err = err
	return n, err
}
