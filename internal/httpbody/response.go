// Package httpbody reads the bodies of HTTP requests and writes the bodies of responses.
//
// Requests: a Reader reads a whole body before the request is processed, so that a slow client occupies no slot. A
// handler reads the body first and then takes a slot for the work. The bytes of all bodies count against one budget of
// the process. While the budget is used up, a body waits for a bounded time. A client below the minimum rate is
// disconnected. Nothing is decoded.
//
// Responses: the caller writes large pieces, which are sent as zstd, gzip or uncompressed, as the client accepts. The
// header is sent with the first piece; until then the caller can still send another response. Compressors are pooled.
// Uncompressed bytes are not buffered: the caller chooses the size of a write.
package httpbody

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/promjson/gzip"
)

// A pooled compressor holds its window of some hundred KiB. The garbage collector drops idle
// ones.
var (
	gzipWriters sync.Pool
	zstdWriters sync.Pool
)

// Response is the body of one response. Create it with NewResponse. At the end call Close and then
// Release, or only Release to abort the response.
type Response struct {
	w             http.ResponseWriter
	contentType   string
	status        int
	encoding      string
	headerWritten bool
	gz            *gzip.Writer
	zs            *zstd.Encoder

	control  *http.ResponseController
	stall    time.Duration
	deadline time.Time // of all writes; zero: none
	http2    bool

	tee io.Writer // also gets the bytes that are sent
}

// stallTimeout is the timeout of one write to the client. A client that reads nothing must
// not hold the memory and the slot of a response for ever.
const stallTimeout = time.Minute

// smallBytes is the minimum size of a compressed response. Below it compression costs more
// than it saves.
const smallBytes = 512

// NewResponse creates a body of the given content type in the encoding that r accepts.
func NewResponse(w http.ResponseWriter, r *http.Request, contentType string) *Response {
	return &Response{w: w, contentType: contentType, status: http.StatusOK,
		encoding: Accepted(r.Header.Values("Accept-Encoding")),
		control:  http.NewResponseController(w), stall: stallTimeout, http2: r.ProtoMajor == 2}
}

// SetStatus sets the status; the default is 200.
func (b *Response) SetStatus(status int) { b.status = status }

// Tee also writes the bytes that are sent, after compression, to w. Call it before the first Write. An error of w is
// an error of Write.
func (b *Response) Tee(w io.Writer) { b.tee = w }

// HeaderSent reports whether the header was sent.
func (b *Response) HeaderSent() bool { return b.headerWritten }

// SetLength declares before the first Write that the response has n bytes.
func (b *Response) SetLength(n int) {
	if n < smallBytes {
		b.encoding = ""
	}
	if b.encoding == "" {
		b.w.Header().Set("Content-Length", strconv.Itoa(n))
	}
}

func (b *Response) writeHeader() {
	switch b.encoding {
	case "gzip":
		b.gz = getOrNew(&gzipWriters, func() *gzip.Writer { return gzip.NewWriter(nil) })
		b.gz.Reset(b.plain())
	case "zstd":
		b.zs = getOrNew(&zstdWriters, func() *zstd.Encoder {
			zs, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
				zstd.WithWindowSize(1<<20))
			return zs
		})
		b.zs.Reset(b.plain())
	}
	b.sendHeader()
}

func (b *Response) sendHeader() {
	b.headerWritten = true
	h := b.w.Header()
	h.Set("Content-Type", b.contentType)
	if b.encoding != "" {
		h.Set("Content-Encoding", b.encoding)
	}
	b.w.WriteHeader(b.status)
}

func getOrNew[T any](pool *sync.Pool, make func() T) T {
	if v, ok := pool.Get().(T); ok {
		return v
	}
	return make()
}

// Write implements io.Writer.
func (b *Response) Write(p []byte) (int, error) {
	if !b.headerWritten {
		b.writeHeader()
	}
	b.setDeadline()
	defer b.clearDeadline()
	return b.sink().Write(p)
}

// Encoded returns a writer of a whole response of n bytes that is already compressed in the encoding that r accepts.
// Nothing else may be written.
func (b *Response) Encoded(n int64) io.Writer {
	b.w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	return encoded{b}
}

type encoded struct{ body *Response }

// Write implements io.Writer.
func (e encoded) Write(p []byte) (int, error) {
	b := e.body
	if !b.headerWritten {
		b.sendHeader()
	}
	b.setDeadline()
	defer b.clearDeadline()
	return b.w.Write(p)
}

// plain returns where the bytes go that are sent.
func (b *Response) plain() io.Writer {
	if b.tee != nil {
		return io.MultiWriter(b.w, b.tee)
	}
	return b.w
}

// setDeadline sets the deadline of the next write. A ResponseWriter without deadlines, as in
// tests, ignores it.
func (b *Response) setDeadline() {
	t := time.Now().Add(b.stall)
	if !b.deadline.IsZero() && b.deadline.Before(t) {
		t = b.deadline
	}
	_ = b.control.SetWriteDeadline(t)
}

// clearDeadline clears the deadline between writes on HTTP/2, which resets the stream at the
// deadline even if no write is pending. HTTP/1 checks it only during a write.
func (b *Response) clearDeadline() {
	if b.http2 {
		_ = b.control.SetWriteDeadline(time.Time{})
	}
}

// SetDeadline sets the time after which every write fails, however much the client reads; zero: none.
func (b *Response) SetDeadline(t time.Time) { b.deadline = t }

func (b *Response) sink() io.Writer {
	switch {
	case b.gz != nil:
		return b.gz
	case b.zs != nil:
		return b.zs
	default:
		return b.plain()
	}
}

// Close flushes and ends the compressed stream.
func (b *Response) Close() error {
	b.setDeadline() // also applies to the bytes that the server still buffers
	switch {
	case b.gz != nil:
		return b.gz.Close()
	case b.zs != nil:
		return b.zs.Close()
	default:
		return nil
	}
}

// Release returns the compressor to the pool. The body must not be used afterwards.
func (b *Response) Release() {
	if b.gz != nil {
		b.gz.Reset(nil)
		gzipWriters.Put(b.gz)
		b.gz = nil
	}
	if b.zs != nil {
		b.zs.Reset(nil)
		zstdWriters.Put(b.zs)
		b.zs = nil
	}
}

// Accepted returns "zstd", "gzip" or "" by the weights in Accept-Encoding; zstd is preferred
// for equal weights. A weight of 0 excludes an encoding.
func Accepted(headers []string) string {
	switch gz, zs := WeightOf(headers, "gzip"), WeightOf(headers, "zstd"); {
	case zs > 0 && zs >= gz:
		return "zstd"
	case gz > 0:
		return "gzip"
	}
	return ""
}

// WeightOf returns the greatest weight of a name in Accept or Accept-Encoding; 0 if the headers do not have it.
func WeightOf(headers []string, name string) (weight float64) {
	for _, header := range headers {
		for element := range strings.SplitSeq(header, ",") {
			if of, params, _ := strings.Cut(element, ";"); strings.EqualFold(strings.TrimSpace(of), name) {
				weight = max(weight, Weight(params))
			}
		}
	}
	return weight
}

// Weight returns the weight q among the parameters of an element of Accept or Accept-Encoding, "q=0.5" for example;
// 1 if it is missing or malformed.
func Weight(params string) float64 {
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(param, "=")
		if strings.TrimSpace(strings.ToLower(key)) != "q" {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 64); err == nil && q >= 0 && q <= 1 {
			return q
		}
	}
	return 1
}
