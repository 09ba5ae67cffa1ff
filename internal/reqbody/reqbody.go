// Package reqbody reads bodies of requests whole, so that a slow sender holds
// nothing but its own connection.
//
// A handler reads the body first and takes a slot for the work afterwards. While a
// body arrives its bytes count against one budget of the whole process; a body that
// finds no memory waits for a bounded time. A sender that falls behind a lowest rate
// is cut. There is no decoding here.
package reqbody

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"
)

// Options of a Reader. Zero values take the defaults.
type Options struct {
	BytesMax int64         // of all bodies in memory; 0: 256 MiB
	Wait     time.Duration // for memory or for a slot; 0: 10 s
	Grace    time.Duration // how long a sender may stall, or lag behind RateMin; 0: 15 s
	RateMin  int64         // bytes a second; 0: 4096
	Total    time.Duration // of one body; 0: 5 minutes
}

func (o Options) withDefaults() Options {
	if o.BytesMax == 0 {
		o.BytesMax = 256 << 20
	}
	if o.Wait == 0 {
		o.Wait = 10 * time.Second
	}
	if o.Grace == 0 {
		o.Grace = 15 * time.Second
	}
	if o.RateMin == 0 {
		o.RateMin = 4096
	}
	if o.Total == 0 {
		o.Total = 5 * time.Minute
	}
	return o
}

// The reasons for which a body is refused.
var (
	ErrTooLarge = errors.New("request body too large")
	ErrBusy     = errors.New("too many requests in flight")
	ErrSlow     = errors.New("request body too slow")
	ErrUnread   = errors.New("the rest of the request body was not read") // with one of the others, or alone
)

// Status is the HTTP status of an error of this package. A slow sender gets a 503:
// the request was sound, and senders drop what is refused with another 4xx.
func Status(err error) int {
	switch {
	case errors.Is(err, ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrBusy), errors.Is(err, ErrSlow):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// retryAfterSeconds is when a refused sender should try again.
const retryAfterSeconds = 5

// Prepare sets the headers of a response to a request that failed with err.
func Prepare(w http.ResponseWriter, r *http.Request, err error) {
	if Status(err) == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	if errors.Is(err, ErrUnread) && r.ProtoMajor == 1 {
		// The server would read the rest before it responds. In HTTP/2 the header
		// would end the other streams' connection too.
		w.Header().Set("Connection", "close")
	}
}

// Fail responds with an error of this package.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	Prepare(w, r, err)
	http.Error(w, err.Error(), Status(err))
}

// unreadError says that the rest of the body was left unread.
type unreadError struct{ error }

func (e *unreadError) Unwrap() error        { return e.error }
func (e *unreadError) Is(target error) bool { return target == ErrUnread }

// Reader reads bodies within one budget. Use New.
type Reader struct {
	opts Options
	free *semaphore.Weighted
}

// New makes a reader; it owns no goroutine.
func New(opts Options) *Reader {
	opts = opts.withDefaults()
	return &Reader{opts: opts, free: semaphore.NewWeighted(opts.BytesMax)}
}

// Body is a body in memory. Release gives its memory back.
type Body struct {
	from   *Reader
	chunks [][]byte
	size   int64
	held   int64
}

// Size is the number of bytes.
func (b *Body) Size() int64 { return b.size }

// Bytes is the whole body, valid until Release.
func (b *Body) Bytes() []byte {
	switch len(b.chunks) {
	case 0:
		return nil
	case 1:
	default:
		b.chunks = [][]byte{bytes.Join(b.chunks, nil)}
	}
	return b.chunks[0]
}

// NewReader reads the body from its beginning, until Release.
func (b *Body) NewReader() io.ReadCloser {
	parts := make([]io.Reader, len(b.chunks))
	for i, chunk := range b.chunks {
		parts[i] = bytes.NewReader(chunk)
	}
	return io.NopCloser(io.MultiReader(parts...))
}

// Release gives the memory back. It may be called again, and on nil.
func (b *Body) Release() {
	if b == nil || b.held == 0 {
		return
	}
	b.from.free.Release(b.held)
	b.held, b.chunks = 0, nil
}

// The first chunk of a body of unknown length is small, so that an idle connection
// costs little; the next ones double the body.
const (
	chunkBytesMin = 4 << 10
	chunkBytesMax = 256 << 10
	firstBytesMax = 64 << 10 // of a body that says how long it is
)

// Read reads the body of r, of at most bytesMax. The caller calls Release.
func (rd *Reader) Read(w http.ResponseWriter, r *http.Request, bytesMax int64) (*Body, error) {
	p := &pace{opts: rd.opts, control: http.NewResponseController(w), start: time.Now()}
	if r.ContentLength > bytesMax {
		return nil, rd.tooLarge(r, p, bytesMax)
	}
	b := &Body{from: rd}
	if err := b.read(r, p, bytesMax); err != nil {
		b.Release()
		if errors.Is(err, ErrTooLarge) {
			return nil, rd.tooLarge(r, p, bytesMax)
		}
		return nil, err
	}
	p.finish()
	return b, nil
}

// read appends chunks until the body's end.
func (b *Body) read(r *http.Request, p *pace, bytesMax int64) error {
	next := int64(chunkBytesMin)
	if r.ContentLength >= 0 {
		// One more than announced, so that the end is seen by the same read.
		next = min(r.ContentLength+1, firstBytesMax)
	}
	for {
		waited, err := b.from.acquire(r.Context(), min(next, bytesMax+1))
		if err != nil {
			return &unreadError{err}
		}
		p.start = p.start.Add(waited)
		b.held += min(next, bytesMax+1)
		chunk := make([]byte, 0, min(next, bytesMax+1))
		for len(chunk) < cap(chunk) {
			p.advance(b.size)
			n, err := r.Body.Read(chunk[len(chunk):cap(chunk)])
			chunk = chunk[:len(chunk)+n]
			b.size += int64(n)
			if b.size > bytesMax {
				return ErrTooLarge
			}
			if errors.Is(err, io.EOF) {
				b.chunks = append(b.chunks, chunk)
				return nil
			}
			if err != nil {
				return p.failed(err, b.size)
			}
		}
		b.chunks = append(b.chunks, chunk)
		next = min(max(b.size, chunkBytesMin), chunkBytesMax)
	}
}

// acquire takes n bytes of the budget, and says how long it waited for them.
func (rd *Reader) acquire(ctx context.Context, n int64) (time.Duration, error) {
	if rd.free.TryAcquire(n) {
		return 0, nil
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, rd.opts.Wait)
	defer cancel()
	if n > rd.opts.BytesMax || rd.free.Acquire(ctx, n) != nil {
		return 0, fmt.Errorf("%w: request bodies fill %d bytes of memory", ErrBusy, rd.opts.BytesMax)
	}
	return time.Since(begun), nil
}

// tooLarge reads on for a while, since a sender reads the response only once it has
// sent its body.
func (rd *Reader) tooLarge(r *http.Request, p *pace, bytesMax int64) error {
	err := fmt.Errorf("%w: it is larger than %d bytes", ErrTooLarge, bytesMax)
	buf := make([]byte, 32<<10)
	for read := int64(0); read <= 4*bytesMax; {
		p.advance(read)
		n, failed := r.Body.Read(buf)
		read += int64(n)
		if errors.Is(failed, io.EOF) {
			p.finish()
			return err
		}
		if failed != nil {
			break
		}
	}
	return &unreadError{err}
}

// Enter takes one of slots, and waits a bounded time for it. The caller receives
// from slots afterwards.
func (rd *Reader) Enter(ctx context.Context, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	timer := time.NewTimer(rd.opts.Wait)
	defer timer.Stop()
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return fmt.Errorf("%w: all %d slots are taken", ErrBusy, cap(slots))
	}
}

// pace sets the deadline of the next read of a body.
type pace struct {
	opts    Options
	control *http.ResponseController
	start   time.Time
	set     time.Time // the deadline in force
}

// advance allows the next read as long as the sender keeps its rate.
func (p *pace) advance(size int64) {
	due := time.Now().Add(p.opts.Grace)
	for _, t := range []time.Time{
		p.start.Add(p.opts.Grace + time.Duration(float64(size)/float64(p.opts.RateMin)*float64(time.Second))),
		p.start.Add(p.opts.Total),
	} {
		if t.Before(due) {
			due = t
		}
	}
	// What is in force may be a sixteenth of the grace too early, and is then not worth
	// another call.
	if step := due.Sub(p.set); step > p.opts.Grace/16 || step < 0 {
		p.set = due
		_ = p.control.SetReadDeadline(due) // a test's writer has none
	}
}

// finish lifts the deadline: the server watches the connection while it works.
func (p *pace) finish() { _ = p.control.SetReadDeadline(time.Time{}) }

// failed explains an error of a read. The deadline stays in force, so that the
// server does not wait for the rest either.
func (p *pace) failed(err error, size int64) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %d bytes came in %s, at least %d a second are expected",
			ErrSlow, size, time.Since(p.start).Round(time.Millisecond), p.opts.RateMin)
	} else {
		err = fmt.Errorf("read the request body: %w", err)
	}
	return &unreadError{err}
}
