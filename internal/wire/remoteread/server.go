// Package remoteread is Prometheus remote read over HTTP.
//
// A POST with a snappy block around a ReadRequest comes in; series come from a
// storage through the raw seam (package series) and leave in label order, either
// as frames of chunks just as they are stored, or as samples. Both forms go
// through one buffer of 512 KiB that is written whenever it is full: memory does
// not grow with the answer, but for samples of the head, which take 16 bytes a
// series. A failure before the first byte has a status, one
// after it cuts the connection, so that no client takes a part for the whole.
//
// The client asks for chunks and gives them through the raw seam and storage's
// interfaces, one series at a time in a buffer that is used again. Samples, from a
// server that has only those, are decompressed and walked as they come in, and
// made into chunks again; since they come in any order, a window of them is held
// and sorted. There is no storage here.
package remoteread

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"

	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/metrics"
)

// Options of a server. Zero limits are none.
type Options struct {
	ConcurrentMax   int           // requests answered at once, further ones wait
	SamplesMax      int           // of one query that is answered with samples
	FrameBytesMax   int           // a series beyond it is split into several frames
	WriteTimeout    time.Duration // of 512 KiB; 0: a minute
	ReaderWaitMax   time.Duration // that all writes of a response may wait for its reader
	MeasuredMax     int           // series of the head that samples are measured of; 0: 5,000,000
	BodyReadTimeout time.Duration
	ExternalLabels  func() labels.Labels // nil: none
}

func (o Options) withDefaults() Options {
	if o.WriteTimeout == 0 {
		o.WriteTimeout = time.Minute // for 512 KiB, after which a reader has stalled
	}
	if o.MeasuredMax == 0 {
		o.MeasuredMax = 5_000_000 // of 16 bytes
	}
	if o.BodyReadTimeout == 0 {
		o.BodyReadTimeout = time.Minute
	}
	if o.ExternalLabels == nil {
		o.ExternalLabels = labels.EmptyLabels
	}
	return o
}

// requestBytesMax bounds a request's body, compressed and not.
const requestBytesMax = 32 << 20

// smallBytes is a body that may be in memory while its request waits.
const smallBytes = 64 << 10

// Server answers remote read. Use NewServer.
type Server struct {
	opts    Options
	from    storage.ChunkQueryable
	logger  *slog.Logger
	places  chan struct{} // nil: no limit
	queries *metrics.Gauge
}

// NewServer makes a server; it owns no goroutine. set may be nil.
func NewServer(opts Options, from storage.ChunkQueryable, logger *slog.Logger, set *metrics.Set) *Server {
	if set == nil {
		set = metrics.NewSet()
	}
	const queries = "prometheus_remote_read_handler_queries"
	set.Describe(queries, "The current number of remote read queries that are either in execution or queued on the handler.", "")
	s := &Server{opts: opts.withDefaults(), from: from, logger: logger, queries: set.NewGauge(queries, nil)}
	if opts.ConcurrentMax > 0 {
		s.places = make(chan struct{}, opts.ConcurrentMax)
	}
	return s
}

// badRequest is an error of the client's making.
type badRequest struct{ error }

func (b badRequest) Unwrap() error { return b.error }

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "remote read is a POST", http.StatusMethodNotAllowed)
		return
	}
	s.queries.Inc()
	defer s.queries.Dec()
	// That a waiting reader has gone is only seen once its body is read, so small
	// bodies, which are nearly all, are read before the wait.
	body, err := []byte(nil), error(nil)
	small := r.ContentLength >= 0 && r.ContentLength <= smallBytes
	if small {
		body, err = s.read(w, r)
	}
	if s.places != nil && err == nil {
		select {
		case s.places <- struct{}{}:
			defer func() { <-s.places }()
		case <-r.Context().Done():
			return // the reader has gone
		}
	}
	if !small {
		body, err = s.read(w, r)
	}
	out := newSink(w, s.opts.WriteTimeout, s.opts.ReaderWaitMax)
	defer out.free()
	if err == nil {
		err = s.answer(r.Context(), body, out)
	}
	if err == nil {
		err = out.end()
	}
	if err != nil {
		s.fail(w, r, out, err)
	}
}

// fail answers an error, or cuts the connection if it is too late for that.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, out *sink, err error) {
	if r.Context().Err() == nil && !errors.As(err, &badRequest{}) {
		s.logger.Error("Remote read failed", "err", err, "after_bytes", out.written)
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
	}
	w.Header().Del("Content-Encoding")
	http.Error(w, err.Error(), status)
}

func (s *Server) answer(ctx context.Context, body []byte, out *sink) error {
	request, err := decode(body)
	if err != nil {
		return badRequest{err}
	}
	form, ok := request.ResponseType()
	if !ok {
		return badRequest{fmt.Errorf("none of the accepted response types %v is supported; supported are SAMPLES (0) and STREAMED_XOR_CHUNKS (1)", request.Accepted)}
	}
	queries := make([]query, len(request.Queries))
	for i, q := range request.Queries {
		if queries[i], err = newQuery(q); err != nil {
			return badRequest{fmt.Errorf("query %d: %w", i, err)}
		}
	}
	if form == codec.Samples {
		return s.samples(ctx, queries, out)
	}
	return s.chunks(ctx, queries, out)
}

// read reads the request's body. One that does not come in time fails.
func (s *Server) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(s.opts.BodyReadTimeout)) // a test's writer has none
	body, err := io.ReadAll(io.LimitReader(r.Body, requestBytesMax+1))
	if err == nil && len(body) > requestBytesMax {
		err = fmt.Errorf("the request has more than %d bytes", requestBytesMax)
	} else if err != nil {
		err = fmt.Errorf("read the request: %w", err)
	}
	if err != nil {
		// The deadline stays, and the connection ends: the server would wait for the
		// rest of the body otherwise, before it responds.
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		return nil, badRequest{err}
	}
	_ = control.SetReadDeadline(time.Time{})
	return body, nil
}

func decode(body []byte) (codec.Request, error) {
	size, err := snappy.DecodedLen(body)
	if err != nil {
		return codec.Request{}, fmt.Errorf("decompress the request: %w", err)
	}
	// A block cannot hold more than 64 bytes for 3 of its own.
	if size > requestBytesMax || size > 32*len(body) {
		return codec.Request{}, fmt.Errorf("the request says to have %d bytes decompressed, at most %d are read", size, min(requestBytesMax, 32*len(body)))
	}
	plain, err := snappy.Decode(nil, body)
	if err != nil {
		return codec.Request{}, fmt.Errorf("decompress the request: %w", err)
	}
	return codec.DecodeRequest(plain)
}

// query is one checked query.
type query struct {
	mint, maxt int64 // inclusive
	matchers   []*labels.Matcher
	labelsOnly bool // without samples, in the form that has any
}

func newQuery(q codec.Query) (query, error) {
	out := query{labelsOnly: q.Hints != nil && q.Hints.Func == "series"}
	if out.mint, out.maxt = q.Range(); out.mint > out.maxt {
		return out, fmt.Errorf("the range ends (%d) before it begins (%d)", out.maxt, out.mint)
	}
	if len(q.Matchers) == 0 {
		return out, errors.New("there is no matcher")
	}
	kinds := [...]labels.MatchType{labels.MatchEqual, labels.MatchNotEqual, labels.MatchRegexp, labels.MatchNotRegexp}
	for i, m := range q.Matchers {
		matcher, err := labels.NewMatcher(kinds[m.Type], m.Name, m.Value)
		if err != nil {
			return out, fmt.Errorf("matcher %d: %w", i, err)
		}
		out.matchers = append(out.matchers, matcher)
	}
	return out, nil
}

// chunks answers every query with frames of chunks.
func (s *Server) chunks(ctx context.Context, queries []query, out *sink) error {
	out.w.Header().Set("Content-Type", "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse")
	for i, q := range queries {
		if err := s.chunksOf(ctx, i, q, out); err != nil {
			return fmt.Errorf("query %d: %w", i, err)
		}
	}
	return nil
}

func (s *Server) chunksOf(ctx context.Context, index int, q query, out *sink) (err error) {
	querier, err := series.Open(ctx, s.from, q.mint, q.maxt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, querier.Close()) }()
	set := series.SelectWithExternalLabels(ctx, querier, s.opts.ExternalLabels(), q.matchers...)
	for set.Next() {
		if err := s.frames(index, set.Labels(), set.Chunks(), out); err != nil {
			return err
		}
	}
	if err := set.Err(); err != nil {
		return err
	}
	s.warn(set)
	return nil
}

func (s *Server) warn(set series.Set) {
	for _, warning := range set.Warnings() {
		s.logger.Warn("Remote read", "warning", warning)
	}
}

// frames writes one series: a frame, or several if it is too long for one. A
// series without chunks is not written: clients would read it as broken.
func (s *Server) frames(index int, lset []byte, chunks []series.Chunk, out *sink) error {
	for len(chunks) > 0 {
		size, n := 0, 0
		for n < len(chunks) && (n == 0 || s.opts.FrameBytesMax == 0 || len(lset)+size < s.opts.FrameBytesMax) {
			c := chunks[n]
			if c.Encoding == 0 || c.Encoding > codec.EncodingMax {
				return fmt.Errorf("a chunk has encoding %s, which remote read cannot carry", c.Encoding)
			}
			size += codec.ChunkSize(c.MinMS, c.MaxMS, uint8(c.Encoding), len(c.Data))
			n++
		}
		if err := out.room(codec.FrameSize(index, len(lset), size)); err != nil {
			return err
		}
		start := len(out.buf)
		buf := codec.AppendFrameHead(out.buf, index, lset, size)
		for _, c := range chunks[:n] {
			buf = codec.AppendChunk(buf, c.MinMS, c.MaxMS, uint8(c.Encoding), c.Data)
		}
		out.buf = codec.SealFrame(buf, start, index)
		chunks = chunks[n:]
	}
	return nil
}
