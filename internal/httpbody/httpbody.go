// Package httpbody writes the bodies of HTTP answers, compressed if the client
// accepts it and the answer is worth it.
//
// An answer's bytes come in, in large pieces; they leave through zstd, gzip or as
// they are, and the header that says so goes out with the first of them, so that
// until then another answer can still be given. Compressors are pooled. There is
// no buffering of identity bytes here: the caller gathers pieces worth a write.
package httpbody

import (
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// The fastest levels: on answers of numbers the better ones save a few percent of
// the bytes for several times the time.
const gzipLevel = gzip.BestSpeed

// A pooled compressor keeps its window, some hundred KiB; sync.Pool drops idle
// ones with the garbage.
var (
	gzipWriters sync.Pool
	zstdWriters sync.Pool
)

// Body is where one answer's bytes go. Use New; in the end call Close and then
// Release, or Release alone to give the answer up.
type Body struct {
	w           http.ResponseWriter
	contentType string
	status      int
	encoding    string
	begun       bool
	gz          *gzip.Writer
	zs          *zstd.Encoder

	control *http.ResponseController
	stall   time.Duration
	http2   bool
}

// stallTimeout is how long one write to the client may take: who reads nothing
// for so long does not hold an answer's memory and its place for ever.
const stallTimeout = time.Minute

// smallBytes is below what compressing costs more than it saves.
const smallBytes = 512

// New prepares a body of the given type, compressed as r's client accepts.
func New(w http.ResponseWriter, r *http.Request, contentType string) *Body {
	return &Body{w: w, contentType: contentType, status: http.StatusOK, encoding: Accepted(r.Header.Values("Accept-Encoding")),
		control: http.NewResponseController(w), stall: stallTimeout, http2: r.ProtoMajor == 2}
}

// SetStatus makes the answer's status another than 200.
func (b *Body) SetStatus(status int) { b.status = status }

// Begun tells whether the header is out.
func (b *Body) Begun() bool { return b.begun }

// Whole says before the first Write that n bytes are all there is.
func (b *Body) Whole(n int) {
	if n < smallBytes {
		b.encoding = ""
	}
	if b.encoding == "" {
		b.w.Header().Set("Content-Length", strconv.Itoa(n))
	}
}

func (b *Body) begin() {
	b.begun = true
	h := b.w.Header()
	h.Set("Content-Type", b.contentType)
	switch b.encoding {
	case "gzip":
		b.gz = borrow(&gzipWriters, func() *gzip.Writer {
			gz, _ := gzip.NewWriterLevel(nil, gzipLevel) // the level is a valid constant
			return gz
		})
		b.gz.Reset(b.w)
	case "zstd":
		b.zs = borrow(&zstdWriters, func() *zstd.Encoder {
			zs, _ := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<20))
			return zs
		})
		b.zs.Reset(b.w)
	}
	if b.encoding != "" {
		h.Set("Content-Encoding", b.encoding)
	}
	b.w.WriteHeader(b.status)
}

func borrow[T any](pool *sync.Pool, make func() T) T {
	if v, ok := pool.Get().(T); ok {
		return v
	}
	return make()
}

// Write implements io.Writer.
func (b *Body) Write(p []byte) (int, error) {
	if !b.begun {
		b.begin()
	}
	b.extend()
	defer b.rest()
	return b.sink().Write(p)
}

// extend gives the client time for another piece. A writer that has no deadline,
// as in tests, waits as it does.
func (b *Body) extend() {
	_ = b.control.SetWriteDeadline(time.Now().Add(b.stall))
}

// rest ends that time where the producer of the next piece may take longer: HTTP/2
// resets the stream at the deadline although nothing waits to be written. HTTP/1 only
// looks at it when something is written.
func (b *Body) rest() {
	if b.http2 {
		_ = b.control.SetWriteDeadline(time.Time{})
	}
}

// SetStallTimeout changes how long one write to the client may take.
func (b *Body) SetStallTimeout(d time.Duration) { b.stall = d }

func (b *Body) sink() io.Writer {
	switch {
	case b.gz != nil:
		return b.gz
	case b.zs != nil:
		return b.zs
	default:
		return b.w
	}
}

// Close ends the compressed stream.
func (b *Body) Close() error {
	b.extend() // what the server still buffers is written under this deadline, too
	switch {
	case b.gz != nil:
		return b.gz.Close()
	case b.zs != nil:
		return b.zs.Close()
	default:
		return nil
	}
}

// Release gives the compressor back. The body is not used afterwards.
func (b *Body) Release() {
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

// Accepted picks zstd before gzip before none among what the client
// accepts; a weight of 0 refuses, other weights only break the tie.
func Accepted(headers []string) string {
	best, bestWeight := "", 0.0
	for _, header := range headers {
		for clause := range strings.SplitSeq(header, ",") {
			name, params, _ := strings.Cut(clause, ";")
			name = strings.ToLower(strings.TrimSpace(name))
			if name != "gzip" && name != "zstd" {
				continue
			}
			weight := weightOf(params)
			if weight > bestWeight || (weight == bestWeight && weight > 0 && name == "zstd") {
				best, bestWeight = name, weight
			}
		}
	}
	return best
}

// weightOf reads q=0.5; a missing or malformed one counts as 1.
func weightOf(params string) float64 {
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
