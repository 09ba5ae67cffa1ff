// Package remoteread is Prometheus remote read over HTTP: server, client and fan-out.
//
// Server: a POST carries a ReadRequest in a snappy block. The server reads series
// from a storage through the raw interface (package series). It returns them in label
// order, either as frames of chunks, as they are stored, or as samples. Both response
// types are written through one buffer of 512 KiB, so that memory does not grow with
// the response. There is an exception: a response of samples takes 24 bytes for each series that
// may grow (the range reaches into the head) or has histograms. An error before the first byte
// has a status code. A later error cuts the connection, so that no client takes a partial
// response for a complete one.
//
// Client: it requests chunks and returns them through the raw interface, one series at a time, in a buffer that is
// reused. A server that has only samples sends samples, which the client decodes as a whole, up to a limit. There is no
// storage here.
//
// On the wire:
//
//	request  ReadRequest{ queries=1: Query, accepted_response_types=2 }
//	frame    uvarint(len) | CRC-32C of payload, 4 bytes big endian | payload
//	payload  0x0A uvarint(len) series  [0x10 query index]
//	series   label set (as package labelenc encodes it)  (0x12 uvarint(len) chunk)*
//	chunk    [0x08 min] [0x10 max] [0x18 encoding] [0x22 uvarint(len) data]
//
// Requests are Prometheus' messages, decoded after their elements were counted. Frames are encoded straight from the
// storage's bytes, and decoded into slices that alias them.
package remoteread

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/metrics"
)

// Options are the options of a Server. A limit of zero means no limit unless noted.
type Options struct {
	ConcurrentMax int           // requests served at once; others wait
	SamplesMax    int           // of one query whose response type is SAMPLES
	FrameBytesMax int           // a series with more chunk bytes is split into several frames
	WriteTimeout  time.Duration // of one write of 512 KiB; 0: a minute
	ReaderWaitMax time.Duration // of all writes of a response together; 0: no limit
	// series that take 24 bytes each in a response of samples (package comment); 0: 5,000,000
	HeldSeriesMax   int
	BodyReadTimeout time.Duration        // of the whole request body; 0: a minute
	Flags           hint.Flags           // the flags that raise the limits, named in errors
	ExternalLabels  func() labels.Labels // nil: none
	Partial         bool                 // respond without the series of endpoints that fail; otherwise the request fails
}

func (o Options) withDefaults() Options {
	o.WriteTimeout = cmp.Or(o.WriteTimeout, time.Minute) // a client that takes longer for 512 KiB has stalled
	o.HeldSeriesMax = cmp.Or(o.HeldSeriesMax, 5_000_000) // at 24 bytes each
	o.BodyReadTimeout = cmp.Or(o.BodyReadTimeout, time.Minute)
	if o.ExternalLabels == nil {
		o.ExternalLabels = labels.EmptyLabels
	}
	return o
}

// requestBytesMax bounds a request's body, both compressed and decompressed.
const requestBytesMax = 32 << 20

// smallBytes is the longest body that is read before its request waits for a slot.
const smallBytes = 64 << 10

// Server is the HTTP handler of remote read. Use NewServer.
type Server struct {
	opts    Options
	from    storage.ChunkQueryable
	logger  *slog.Logger
	slots   chan struct{} // nil: no limit
	queries *metrics.Gauge
	partial *metrics.Counter
}

// NewServer returns a server, which owns no goroutine. set may be nil.
func NewServer(opts Options, from storage.ChunkQueryable, logger *slog.Logger, set *metrics.Set) *Server {
	set = cmp.Or(set, metrics.NewSet())
	s := &Server{opts: opts.withDefaults(), from: from, logger: logger,
		queries: process.Gauge(set, "prometheus_remote_read_handler_queries",
			"The current number of remote read queries that are either in execution or queued on the handler.", nil),
		partial: process.Counter(set, "ferula_remote_read_partial_total", "Remote read queries that lacked the series of a "+
			"remote_read endpoint. They failed, unless partial responses are allowed.")}
	if opts.ConcurrentMax > 0 {
		s.slots = make(chan struct{}, opts.ConcurrentMax)
	}
	return s
}

// badRequest is an error that the client caused.
type badRequest struct{ error }

func (b badRequest) Unwrap() error { return b.error }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "remote read requires POST", http.StatusMethodNotAllowed)
		return
	}
	s.queries.Inc()
	defer s.queries.Dec()
	// net/http notices that a waiting client disconnected only after the body was read.
	// So small bodies, which are nearly all, are read before the wait.
	body, err := []byte(nil), error(nil)
	small := r.ContentLength >= 0 && r.ContentLength <= smallBytes
	if small {
		body, err = s.readBody(w, r)
	}
	if s.slots != nil && err == nil {
		select {
		case s.slots <- struct{}{}:
			defer func() { <-s.slots }()
		case <-r.Context().Done():
			return // the client disconnected
		}
	}
	if !small {
		body, err = s.readBody(w, r)
	}
	out := newResponseWriter(w, s.opts.WriteTimeout, s.opts.ReaderWaitMax)
	defer out.free()
	if err == nil {
		err = s.respond(r.Context(), body, out)
	}
	if err == nil {
		err = out.end()
	}
	if err != nil {
		s.fail(w, r, out, err)
	}
}

// fail writes an error response. It cuts the connection if the status was written.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, out *responseWriter, err error) {
	if r.Context().Err() == nil && !errors.As(err, &badRequest{}) {
		s.logger.Error("Remote read request failed", "err", err, "after_bytes", out.written)
	}
	if out.begun {
		panic(http.ErrAbortHandler)
	}
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &badRequest{}):
		status = http.StatusBadRequest
	case errors.Is(err, tsdb.ErrNotReady):
		status = http.StatusServiceUnavailable
	case errors.As(err, new(*endpointError)):
		status = http.StatusBadGateway
	}
	w.Header().Del("Content-Encoding")
	http.Error(w, err.Error(), status)
}

func (s *Server) respond(ctx context.Context, body []byte, out *responseWriter) error {
	request, err := decode(body)
	if err != nil {
		return badRequest{err}
	}
	form, err := remote.NegotiateResponseType(request.AcceptedResponseTypes)
	if err != nil {
		return badRequest{err}
	}
	queries := make([]query, len(request.Queries))
	for i, q := range request.Queries {
		if queries[i], err = newQuery(q); err != nil {
			return badRequest{fmt.Errorf("query %d: %w", i, err)}
		}
	}
	if form == prompb.ReadRequest_SAMPLES {
		return s.samples(ctx, queries, out)
	}
	return s.chunks(ctx, queries, out)
}

// readBody reads the request's body within BodyReadTimeout.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opts.BodyReadTimeout)) // writers of tests have none
	body, err := io.ReadAll(io.LimitReader(r.Body, requestBytesMax+1))
	if err == nil && len(body) > requestBytesMax {
		err = fmt.Errorf("the request body exceeds %d bytes", requestBytesMax)
	} else if err != nil {
		err = fmt.Errorf("read the request: %w", err)
	}
	if err != nil {
		// The deadline stays and the connection closes: the server would otherwise wait for
		// the rest of the body before it responds.
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		return nil, badRequest{err}
	}
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

func decode(body []byte) (*prompb.ReadRequest, error) {
	size, err := snappy.DecodedLen(body)
	if err != nil {
		return nil, fmt.Errorf("decompress the request: %w", err)
	}
	// Snappy expands 3 bytes to at most 64.
	if size > requestBytesMax || size > 32*len(body) {
		return nil, fmt.Errorf("the request has a decompressed length of %d bytes, more than the limit of %d",
			size, min(requestBytesMax, 32*len(body)))
	}
	plain, err := snappy.Decode(nil, body)
	if err != nil {
		return nil, fmt.Errorf("decompress the request: %w", err)
	}
	return DecodeRequest(plain)
}

// query is a validated query.
type query struct {
	mint, maxt int64 // inclusive, in ms
	matchers   []*labels.Matcher
	labelsOnly bool // in a response of samples, return series without their samples
}

func newQuery(q *prompb.Query) (query, error) {
	out := query{labelsOnly: q.Hints.GetFunc() == "series"}
	if out.mint, out.maxt = rangeOf(q); out.mint > out.maxt {
		return out, fmt.Errorf("the end of the range (%d) is before its start (%d)", out.maxt, out.mint)
	}
	if len(q.Matchers) == 0 {
		return out, errors.New("no matcher in the query")
	}
	var err error
	if out.matchers, err = remote.FromLabelMatchers(q.Matchers); err != nil {
		return out, fmt.Errorf("matchers %v: %w", q.Matchers, err)
	}
	return out, nil
}

// chunks responds to every query with frames of chunks.
func (s *Server) chunks(ctx context.Context, queries []query, out *responseWriter) error {
	out.w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
	for i, q := range queries {
		if err := s.chunksOf(ctx, i, q, out); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
	}
	return nil
}

func (s *Server) chunksOf(ctx context.Context, index int, q query, out *responseWriter) (err error) {
	querier, err := series.Open(ctx, s.from, q.mint, q.maxt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, querier.Close()) }()
	set := series.SelectWithExternalLabels(ctx, querier, s.opts.ExternalLabels(), q.matchers...)
	for first := true; set.Next(); first = false {
		// The warnings of the first series name every endpoint that failed before it. An endpoint that fails
		// later ends the set with an error.
		if first {
			if err := s.missing(set, out); err != nil {
				return err
			}
		}
		if err := s.frames(index, set.Labels(), set.Chunks(), out); err != nil {
			return err
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	if err := s.missing(set, out); err != nil {
		return err
	}
	s.warn(set)
	return nil
}

func (s *Server) warn(set series.Set) {
	for _, warning := range set.Warnings() {
		s.logger.Warn("Remote read returned a warning", "warning", warning)
	}
}

// partialHeader names the endpoints whose series a response lacks. It is a trailer if the
// response has begun.
const partialHeader = "X-Ferula-Partial"

// missing returns the errors of the remote_read endpoints whose series the set lacks: a remote
// read response has no field for a warning. With Options.Partial it adds a header instead, and
// returns nil.
func (s *Server) missing(set series.Set, out *responseWriter) error {
	var failures []error
	for _, warning := range set.Warnings() {
		if failed := (*endpointError)(nil); errors.As(warning, &failed) && !failed.reported {
			failed.reported = true
			failures = append(failures, failed)
		}
	}
	if len(failures) == 0 {
		return nil
	}
	s.partial.Inc()
	if err := errors.Join(failures...); !s.opts.Partial {
		return err
	}
	name := partialHeader
	if out.begun {
		name = http.TrailerPrefix + partialHeader
	}
	for _, err := range failures {
		out.w.Header().Add(name, strconv.QuoteToASCII(err.Error()))
	}
	return nil
}

// frames writes one series as a frame, or as several if it exceeds FrameBytesMax. A
// series without chunks is not written: clients would read it as corrupt.
func (s *Server) frames(index int, lset []byte, chunks []series.Chunk, out *responseWriter) error {
	for len(chunks) > 0 {
		size, n := 0, 0
		for n < len(chunks) && (n == 0 || s.opts.FrameBytesMax == 0 || len(lset)+size < s.opts.FrameBytesMax) {
			c := chunks[n]
			if c.Encoding == 0 || c.Encoding > encodingMax {
				return fmt.Errorf("remote read does not support the chunk encoding %s", c.Encoding)
			}
			size += chunkSize(c.MinMS, c.MaxMS, uint8(c.Encoding), len(c.Data))
			n++
		}
		if err := out.reserve(frameSize(index, len(lset), size)); err != nil {
			return err
		}
		start := len(out.buf)
		buf := appendFrameHead(out.buf, index, lset, size)
		for _, c := range chunks[:n] {
			buf = appendChunk(buf, c.MinMS, c.MaxMS, uint8(c.Encoding), c.Data)
		}
		out.buf = sealFrame(buf, start, index)
		chunks = chunks[n:]
	}
	return nil
}
