package httpapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/promjson"
)

// flushBytes is the size at which the buffer is written out. net/http makes two system calls for
// each Write to a chunked body: a smaller buffer would cost more CPU time than its memory is worth.
const flushBytes = 256 << 10

var buffers = bufpool.New(flushBytes+flushBytes/4, 2<<20)

// stream appends JSON to one pooled buffer and writes it out when it is full. Code that
// appends a list calls flushIfFull between elements. err is the first error of a write;
// later writes are skipped.
type stream struct {
	b    []byte
	w    io.Writer
	err  error
	text int // where the content of an open sectionText begins in b; 0: none

	ended func() error // of the response; may be nil
}

// flushIfFull writes the buffer out if it is full. It reports false after a failed write:
// further output is useless.
func (s *stream) flushIfFull() bool {
	if len(s.b) >= flushBytes {
		s.flush()
	}
	return s.err == nil
}

// flush writes the buffer out. It closes an open section of text first, and opens a new one afterwards.
func (s *stream) flush() {
	inText := s.text > 0
	if inText {
		s.closeSection(s.text)
	}
	if s.ended != nil {
		if err := s.ended(); err != nil {
			s.fail(err)
		}
	}
	if s.err == nil && len(s.b) > 0 {
		_, s.err = s.w.Write(s.b)
	}
	s.b = s.b[:0]
	if inText {
		s.text = s.openSection(sectionText)
	}
}

// fail ends the response with an error of the server: as an error response, or with an aborted
// connection if bytes were already sent.
func (s *stream) fail(err error) {
	if s.err == nil {
		s.err = &midStreamError{err}
	}
}

// midStreamError is an error of the server while the response is being written.
type midStreamError struct{ err error }

func (e *midStreamError) Error() string { return e.err.Error() }
func (e *midStreamError) Unwrap() error { return e.err }

func (s *stream) raw(text string)    { s.b = append(s.b, text...) }
func (s *stream) str(text string)    { s.b = promjson.AppendString(s.b, text) }
func (s *stream) integer(n int64)    { s.b = strconv.AppendInt(s.b, n, 10) }
func (s *stream) number(v float64)   { s.b = promjson.AppendFloat(s.b, v) }
func (s *stream) quoted(v float64)   { s.raw(`"`); s.number(v); s.raw(`"`) }
func (s *stream) timestamp(ms int64) { s.b = promjson.AppendTimestamp(s.b, ms) }
func (s *stream) boolean(v bool)     { s.b = strconv.AppendBool(s.b, v) }
func (s *stream) rfc3339(t time.Time) {
	s.raw(`"`)
	s.b = t.AppendFormat(s.b, time.RFC3339Nano)
	s.raw(`"`)
}
func (s *stream) field(key, v string) { s.raw(key); s.str(v) }

// comma appends the separator before element i, none before the first.
func (s *stream) comma(i int) {
	if i > 0 {
		s.b = append(s.b, ',')
	}
}

// strings appends a list of strings.
func (s *stream) strings(list []string) { each(s, list, func(text *string) { s.str(*text) }) }

// each appends a list. It sends the buffer whenever it is full.
func each[T any](s *stream, list []T, element func(*T)) {
	s.raw("[")
	for i := range list {
		s.comma(i)
		element(&list[i])
		if !s.flushIfFull() {
			return
		}
	}
	s.raw("]")
}

// value appends v with reflection, which is too slow for the result of a query. Texts are escaped as in str.
func (s *stream) value(v any) {
	text, err := json.Marshal(v)
	if err != nil {
		s.fail(err)
	}
	s.b = append(s.b, text...)
	s.flushIfFull()
}

// values appends a list with reflection.
func values[T any](s *stream, list []T) { each(s, list, func(v *T) { s.value(v) }) }

// labels appends a label set as an object, sorted by name.
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

// histogram appends a native histogram without its empty buckets.
func (s *stream) histogram(h *histogram.FloatHistogram) {
	s.b = promjson.AppendHistogramStart(s.b, h.Count, h.Sum)
	found := false
	for it := h.AllBucketIterator(); it.Next(); {
		b := it.At()
		if b.Count == 0 {
			continue
		}
		s.b = promjson.AppendBucket(s.b, !found, promjson.Boundaries(b.LowerInclusive, b.UpperInclusive), b.Lower,
			b.Upper, b.Count)
		found = true
	}
	s.b = promjson.AppendHistogramEnd(s.b, found)
}

// responseAnnotations are the warnings and infos of a response, which follow its data.
type responseAnnotations struct {
	list  annotations.Annotations
	query string // the expression, to compute the line and column that an annotation names
}

const (
	annotationsMax = 10   // maximum of warnings, and of infos, in a response, as in Prometheus
	missingMax     = 1000 // in a response of Stores, so many warnings of missing data do not count towards annotationsMax
)

// append appends the lists "warnings" and "infos", of at most ten entries each, as Prometheus
// does; an empty list has no key. Warnings of missing data come first. With ofStores up to
// missingMax of them do not count towards the ten, so that each missing store is named.
func (n *responseAnnotations) append(s *stream, ofStores bool) {
	if n == nil || len(n.list) == 0 {
		return
	}
	missing, ofEngine := n.split()
	warnings, infos := ofEngine.AsStrings(n.query, 0, annotationsMax)
	slices.Sort(warnings)
	most := annotationsMax
	if ofStores {
		most += min(len(missing), missingMax)
	}
	warnings = append(missing, warnings...)
	if more := len(warnings) - most; more > 0 {
		warnings = append(warnings[:most], fmt.Sprintf("%d more warning annotations omitted", more))
	}
	if len(warnings) > 0 {
		s.raw(`,"warnings":`)
		s.strings(warnings)
	}
	if len(infos) > 0 {
		s.raw(`,"infos":`)
		s.strings(infos)
	}
}

// split returns the warnings that may mean missing data, sorted, and the annotations of the
// engine, which come from the evaluation.
func (n *responseAnnotations) split() (missing []string, ofEngine annotations.Annotations) {
	for _, err := range n.list {
		if isOfEngine(err) {
			ofEngine.Add(err)
		} else {
			missing = append(missing, err.Error())
		}
	}
	slices.Sort(missing)
	return missing, ofEngine
}

func isOfEngine(err error) bool {
	return errors.Is(err, annotations.PromQLInfo) || errors.Is(err, annotations.PromQLWarning)
}

// forbidStoring sets Cache-Control: no-store on a response of Stores that is an error or may be
// partial, as Thanos does: a query frontend does not cache it.
func (a *API) forbidStoring(h http.Header) {
	if a.opts.Stores != nil {
		h.Set("Cache-Control", "no-store")
	}
}

const jsonType = "application/json"

// contentType returns the media type of a response, and notes in its header what it depends on.
func (resp *response) contentType(h http.Header) string {
	if resp.negotiated {
		h.Add("Vary", "Accept")
	}
	if resp.columns != nil {
		return columnsType
	}
	return jsonType
}

// respond streams a successful response. The status line is sent with the first full
// buffer or at the end.
func (a *API) respond(w http.ResponseWriter, r *http.Request, resp response) {
	if resp.engine != "" {
		w.Header().Set(engineHeader, resp.engine)
	}
	if n := resp.annotations; n != nil &&
		slices.ContainsFunc(n.list.AsErrors(), func(err error) bool { return !isOfEngine(err) }) {
		a.forbidStoring(w.Header())
	}
	body := httpbody.NewResponse(w, r, resp.contentType(w.Header()))
	buffer := buffers.Get()
	s := &stream{b: *buffer, w: body, ended: resp.ended}
	if resp.columns != nil {
		resp.columns.begin(s)
	}
	s.raw(`{"status":"success","data":`)
	resp.write(s)
	resp.annotations.append(s, a.opts.Stores != nil)
	s.raw(`}`)
	if resp.columns != nil {
		resp.columns.end(s)
	}
	if failure, ok := s.err.(*midStreamError); ok && !body.HeaderSent() { //lint:ignore errorlint set here, never wrapped
		s.b, s.err = s.b[:0], nil
		*buffer = s.b
		buffers.Put(buffer)
		a.respondError(w, queryError(failure.err))
		return
	}
	if s.err == nil && !body.HeaderSent() {
		body.SetLength(len(s.b))
	}
	s.flush()
	if s.err == nil {
		s.err = body.Close()
	}
	*buffer = s.b
	buffers.Put(buffer)
	body.Release()
	if s.err != nil {
		level := slog.LevelInfo                     // the client has disconnected
		if _, own := s.err.(*midStreamError); own { //lint:ignore errorlint set here, never wrapped
			level = slog.LevelError
		}
		a.opts.Logger.Log(r.Context(), level, "Failed to write response", "path", r.URL.Path, "err", s.err)
		// A truncated response must not look complete: abort the connection.
		panic(http.ErrAbortHandler)
	}
}

func (a *API) respondError(w http.ResponseWriter, e *apiError) {
	buffer := buffers.Get()
	s := stream{b: *buffer, w: w}
	s.field(`{"status":"error","errorType":`, string(e.kind))
	s.field(`,"error":`, e.err.Error())
	s.raw(`}`)
	a.forbidStoring(w.Header())
	w.Header().Set("Content-Type", jsonType)
	w.WriteHeader(statusOf[e.kind])
	s.flush()
	if s.err != nil {
		a.opts.Logger.Debug("Failed to write error response", "err", s.err)
	}
	*buffer = s.b
	buffers.Put(buffer)
}
