package httpbody

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/ferula-io/ferula/internal/hint"
)

// Options of a Reader. Zero values take the defaults.
type Options struct {
	BytesMax int64         // budget of all bodies in memory; 0: 256 MiB
	Wait     time.Duration // maximum wait for memory or for a slot; 0: 10 s
	Grace    time.Duration // how long a client may stall or be behind RateMin; 0: 15 s
	RateMin  int64         // bytes per second; 0: 4096
	Total    time.Duration // maximum duration of one body; 0: 5 minutes
	Flags    hint.Flags    // the flags that raise the limits, named in errors
}

func (o Options) withDefaults() Options {
	o.BytesMax = cmp.Or(o.BytesMax, 256<<20)
	o.Wait = cmp.Or(o.Wait, 10*time.Second)
	o.Grace = cmp.Or(o.Grace, 15*time.Second)
	o.RateMin = cmp.Or(o.RateMin, 4096)
	o.Total = cmp.Or(o.Total, 5*time.Minute)
	return o
}

// The errors of Reader.
var (
	ErrTooLarge = errors.New("request body too large")
	ErrBusy     = errors.New("too many requests in flight")
	ErrSlow     = errors.New("request body too slow")
	ErrUnread   = errors.New("the rest of the request body was not read") // joined with one of the others, or alone
)

// Status returns the HTTP status of an error of this package. ErrSlow is status 503: the
// request was valid, and clients drop data after most 4xx responses.
func Status(err error) int {
	switch {
	case errors.Is(err, ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrBusy), errors.Is(err, ErrSlow):
		return http.StatusServiceUnavailable
	}
	return http.StatusBadRequest
}

// retryAfterSeconds is the value of Retry-After in a 503 response.
const retryAfterSeconds = 5

// Prepare sets the headers of an error response.
func Prepare(w http.ResponseWriter, r *http.Request, err error) {
	if Status(err) == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(retryAfterSeconds))
	}
	if errors.Is(err, ErrUnread) && r.ProtoMajor == 1 {
		// Otherwise the server reads the rest of the body before it responds. In HTTP/2
		// the header would close the connection of other streams too.
		w.Header().Set("Connection", "close")
	}
}

// Fail sends the error response for an error of this package.
func Fail(w http.ResponseWriter, r *http.Request, err error) {
	Prepare(w, r, err)
	http.Error(w, err.Error(), Status(err))
}

// unreadError marks an error after which the rest of the body was not read.
type unreadError struct{ error }

func (e *unreadError) Unwrap() error        { return e.error }
func (e *unreadError) Is(target error) bool { return target == ErrUnread }

// Reader reads bodies within one budget. Create it with NewReader.
type Reader struct {
	opts Options
	free *semaphore.Weighted
}

// NewReader creates a reader. It owns no goroutine.
func NewReader(opts Options) *Reader {
	opts = opts.withDefaults()
	return &Reader{opts: opts, free: semaphore.NewWeighted(opts.BytesMax)}
}

// Body is a body in memory. Release returns its bytes to the budget.
type Body struct {
	from   *Reader
	chunks [][]byte
	size   int64
	held   int64 // bytes of the budget; Release returns them
}

// Size returns the number of bytes.
func (b *Body) Size() int64 { return b.size }

// Bytes returns the whole body, which is valid until Release.
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

// NewReader returns a reader of the whole body, which is valid until Release.
func (b *Body) NewReader() io.ReadCloser {
	parts := make([]io.Reader, len(b.chunks))
	for i, chunk := range b.chunks {
		parts[i] = bytes.NewReader(chunk)
	}
	return io.NopCloser(io.MultiReader(parts...))
}

// Release returns the bytes to the budget. It may be called twice and on nil.
func (b *Body) Release() {
	if b == nil || b.held == 0 {
		return
	}
	b.from.free.Release(b.held)
	b.held, b.chunks = 0, nil
}

// The first chunk of a body of unknown length is small, so that an idle connection needs little
// memory. Each further chunk is as large as all chunks before it, up to chunkBytesMax.
const (
	chunkBytesMin = 4 << 10
	chunkBytesMax = 256 << 10
	firstBytesMax = 64 << 10 // first chunk of a body with Content-Length
)

// Read reads the body of r, at most bytesMax bytes. The caller must call Release.
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

// read appends chunks until the end of the body.
func (b *Body) read(r *http.Request, p *pace, bytesMax int64) error {
	next := int64(chunkBytesMin)
	if r.ContentLength >= 0 {
		// One byte more than Content-Length, so that the same chunk detects the end.
		next = min(r.ContentLength+1, firstBytesMax)
	}
	for {
		waited, err := b.from.acquire(r.Context(), min(next, bytesMax+1))
		if err != nil {
			return &unreadError{err}
		}
		p.wait(waited)
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

// acquire takes n bytes of the budget and returns how long it waited.
func (rd *Reader) acquire(ctx context.Context, n int64) (time.Duration, error) {
	if rd.free.TryAcquire(n) {
		return 0, nil
	}
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, rd.opts.Wait)
	defer cancel()
	if n > rd.opts.BytesMax || rd.free.Acquire(ctx, n) != nil {
		return 0, rd.busy()
	}
	return time.Since(begun), nil
}

// Hold takes n bytes of the budget, until release is called, for a request that was received without Read. These
// bytes are in memory already, so Hold does not wait: without free budget it returns ErrBusy.
func (rd *Reader) Hold(n int64) (release func(), err error) {
	if !rd.free.TryAcquire(n) {
		return nil, rd.busy()
	}
	return func() { rd.free.Release(n) }, nil
}

func (rd *Reader) busy() error {
	return fmt.Errorf("%w: request bodies fill %d bytes of memory%s", ErrBusy, rd.opts.BytesMax,
		rd.opts.Flags.Of("BytesMax"))
}

// tooLarge returns the error for a body longer than bytesMax. It first discards up to four times
// bytesMax, since most clients read the response only after they have sent the body.
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

// TakeSlot waits for a slot, at most Options.Wait, and then returns ErrBusy. The caller releases the
// slot by receiving from slots.
func (rd *Reader) TakeSlot(ctx context.Context, slots chan struct{}) error {
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
		return fmt.Errorf("%w: all %d slots are in use", ErrBusy, cap(slots))
	}
}

// pace sets the read deadlines of a body.
type pace struct {
	opts    Options
	control *http.ResponseController
	start   time.Time
	due     time.Time // by which the next bytes must arrive
	size    int64     // at the last call of advance
	set     time.Time // the current deadline
}

// advance sets the deadline of the next read. Received bytes move the deadline forward by the
// time that they take at the required rate, but to at most Grace from now, even for a fast sender.
// The required rate grows with the received size. Otherwise a sender could send all of a large
// body except its end, and then hold that memory with one byte every few seconds. A sender at a
// constant rate of at least RateMin that ends the body within Total never exceeds a deadline.
func (p *pace) advance(size int64) {
	latest := time.Now().Add(p.opts.Grace)
	if p.due.IsZero() {
		p.due = p.start.Add(p.opts.Grace)
	}
	rate := p.rate(size)
	p.due = p.due.Add(time.Duration(float64(max(0, size-p.size)) / rate * float64(time.Second)))
	p.size = size
	if latest.Before(p.due) {
		p.due = latest
	}
	due := p.due
	if end := p.start.Add(p.opts.Total); end.Before(due) {
		due = end
	}
	// A deadline that is too early by at most a sixteenth of Grace is not worth another call.
	if step := due.Sub(p.set); step > p.opts.Grace/16 || step < 0 {
		p.set = due
		_ = p.control.SetReadDeadline(due) // writers of tests have no deadline
	}
}

// rate returns the bytes per second that a sender must reach after size received bytes.
func (p *pace) rate(size int64) float64 {
	return max(float64(p.opts.RateMin), float64(size)/p.opts.Total.Seconds())
}

// wait excludes a wait for memory from the sender's time.
func (p *pace) wait(d time.Duration) {
	p.start = p.start.Add(d)
	if !p.due.IsZero() {
		p.due = p.due.Add(d)
	}
}

// finish clears the deadline, since the server reads from the connection during the
// request to detect a disconnect.
func (p *pace) finish() { _ = p.control.SetReadDeadline(time.Time{}) }

// failed wraps the error of a read. The deadline stays set, so that the server does not
// wait for the rest of the body either.
func (p *pace) failed(err error, size int64) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: received %d bytes in %s, the minimum is %d a second%s",
			ErrSlow, size, time.Since(p.start).Round(time.Millisecond), int64(p.rate(size)), p.opts.Flags.Of("Grace"))
	} else {
		err = fmt.Errorf("read the request body: %w", err)
	}
	return &unreadError{err}
}
