package api

import (
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/promjson"
)

// flushBytes is how much of an answer is gathered before it is written out.
// net/http turns one Write of a chunked body into two write calls, so that
// smaller pieces cost more than memory saves.
const flushBytes = 256 << 10

var buffers = bufpool.New(flushBytes+flushBytes/4, 2<<20)

// stream appends JSON into one pooled buffer and writes it out when it is full.
// Everything that may be long calls room between its parts. After the first
// failed write all further ones are skipped; err tells.
type stream struct {
	b   []byte
	w   io.Writer
	err error
}

// room writes the buffer out if it is full. It reports whether going on makes
// sense, which it does not once the client has gone.
func (s *stream) room() bool {
	if len(s.b) >= flushBytes {
		s.flush()
	}
	return s.err == nil
}

func (s *stream) flush() {
	if s.err == nil && len(s.b) > 0 {
		_, s.err = s.w.Write(s.b)
	}
	s.b = s.b[:0]
}

// fail ends the answer with an error that is not the client's: bytes already
// sent cannot be taken back, so the connection will be cut.
func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = &midStreamError{err}
	}
}

// midStreamError is a failure of our own after the answer has begun.
type midStreamError struct{ err error }

func (e *midStreamError) Error() string { return e.err.Error() }
func (e *midStreamError) Unwrap() error { return e.err }

func (s *stream) raw(text string)    { s.b = append(s.b, text...) }
func (s *stream) str(text string)    { s.b = promjson.AppendString(s.b, text) }
func (s *stream) integer(n int64)    { s.b = strconv.AppendInt(s.b, n, 10) }
func (s *stream) unsigned(n uint64)  { s.b = strconv.AppendUint(s.b, n, 10) }
func (s *stream) number(v float64)   { s.b = promjson.AppendFloat(s.b, v) }
func (s *stream) quoted(v float64)   { s.raw(`"`); s.number(v); s.raw(`"`) }
func (s *stream) timestamp(ms int64) { s.b = promjson.AppendTimestamp(s.b, ms) }
func (s *stream) boolean(v bool)     { s.b = strconv.AppendBool(s.b, v) }
func (s *stream) moment(t time.Time) {
	s.raw(`"`)
	s.b = t.AppendFormat(s.b, time.RFC3339Nano)
	s.raw(`"`)
}
func (s *stream) field(key, v string) { s.raw(key); s.str(v) }

// comma separates elements: nothing before the first.
func (s *stream) comma(i int) {
	if i > 0 {
		s.b = append(s.b, ',')
	}
}

// strings appends an array of strings.
func (s *stream) strings(list []string) {
	s.raw("[")
	for i, text := range list {
		s.comma(i)
		s.str(text)
		if !s.room() {
			return
		}
	}
	s.raw("]")
}

// labels appends a label set as an object, names in their order.
func (s *stream) labels(ls labels.Labels) {
	s.b = append(s.b, '{')
	first := true
	ls.Range(func(l labels.Label) {
		if !first {
			s.b = append(s.b, ',')
		}
		first = false
		s.b = promjson.AppendLabelString(s.b, l.Name)
		s.b = append(s.b, ':')
		s.b = promjson.AppendLabelString(s.b, l.Value)
	})
	s.b = append(s.b, '}')
}

// histogram appends a native histogram; empty buckets are left out.
func (s *stream) histogram(h *histogram.FloatHistogram) {
	s.b = promjson.AppendHistogramStart(s.b, h.Count, h.Sum)
	found := false
	for it := h.AllBucketIterator(); it.Next(); {
		b := it.At()
		if b.Count == 0 {
			continue
		}
		s.b = promjson.AppendBucket(s.b, !found, promjson.Boundaries(b.LowerInclusive, b.UpperInclusive), b.Lower, b.Upper, b.Count)
		found = true
	}
	s.b = promjson.AppendHistogramEnd(s.b, found)
}

// notes are the warnings and infos that follow the data.
type notes struct {
	list  annotations.Annotations
	query string // in which a note's position is found
}

// append writes them as Prometheus does: at most ten of each, and no key where
// there are none.
func (n *notes) append(s *stream) {
	if n == nil {
		return
	}
	warnings, infos := n.list.AsStrings(n.query, 10, 10)
	if len(warnings) > 0 {
		s.raw(`,"warnings":`)
		s.strings(warnings)
	}
	if len(infos) > 0 {
		s.raw(`,"infos":`)
		s.strings(infos)
	}
}

// respond streams a success. The status line goes out with the first full
// buffer, or at the end.
func (a *API) respond(w http.ResponseWriter, r *http.Request, ans answer) {
	body := httpbody.New(w, r, "application/json")
	buffer := buffers.Get()
	s := &stream{b: *buffer, w: body}
	s.raw(`{"status":"success","data":`)
	ans.write(s)
	ans.notes.append(s)
	s.raw(`}`)
	if failure, ok := s.err.(*midStreamError); ok && !body.Begun() { //nolint:errorlint // set here, never wrapped
		s.b, s.err = s.b[:0], nil
		*buffer = s.b
		buffers.Put(buffer)
		a.respondError(w, queryError(failure.err))
		return
	}
	if s.err == nil && !body.Begun() {
		body.Whole(len(s.b))
	}
	s.flush()
	if s.err == nil {
		s.err = body.Close()
	}
	*buffer = s.b
	buffers.Put(buffer)
	body.Release()
	if s.err != nil {
		level := slog.LevelInfo                     // the client has gone
		if _, own := s.err.(*midStreamError); own { //nolint:errorlint // set here, never wrapped
			level = slog.LevelError
		}
		a.opts.Logger.Log(r.Context(), level, "answer not fully written", "path", r.URL.Path, "err", s.err)
		// A half answer must not look complete: cut the connection.
		panic(http.ErrAbortHandler)
	}
}

func (a *API) respondError(w http.ResponseWriter, e *apiError) {
	buffer := buffers.Get()
	s := stream{b: *buffer, w: w}
	s.field(`{"status":"error","errorType":`, string(e.kind))
	s.field(`,"error":`, e.err.Error())
	s.raw(`}`)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(statusOf[e.kind])
	s.flush()
	if s.err != nil {
		a.opts.Logger.Debug("error answer not written", "err", s.err)
	}
	*buffer = s.b
	buffers.Put(buffer)
}
