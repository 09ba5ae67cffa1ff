package downstream

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"sync"

	"github.com/ferula-io/ferula/internal/bufpool"
)

var errClosed = errors.New("downstream: the body is closed")

// skip reads into the buffer of the caller, or into a buffer of skipBytes if the caller's is smaller than skipMinBytes.
const (
	skipBytes    = 64 << 10
	skipMinBytes = 16 << 10
)

// castagnoli is the table of CRC-32C. Of two different beginnings of the same length one in 2^32 pairs has the same CRC.
// xxhash would miss fewer, but costs three times as much CPU: every byte of every response is hashed, and hashes are
// compared only after a broken connection.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var skipBuffers = bufpool.New(skipBytes, skipBytes)

// Body is the decoded body of a response. When the connection breaks off, Body sends the request
// again and continues at the same byte. One goroutine reads; another may call Close.
type Body struct {
	cancel   context.CancelCauseFunc // ends call.ctx, and with it a blocked Read
	status   int                     // of the response
	bytesMax int64                   // limit of n
	hashing  bool                    // keep sum, so that the response can be resumed after a break

	mu   sync.Mutex
	call *call
	try  *try   // nil once ended
	sum  uint32 // CRC-32C of the bytes returned
	n    int64  // bytes returned
	next error  // the error after the bytes that were returned last; not yet handled
	err  error  // final: every further Read returns it

	noStore bool // a response that resumed the first one has Cache-Control: no-store
}

var _ io.ReadCloser = (*Body)(nil)

// Read returns decoded bytes as they arrive, up to len(p). It never returns bytes and an error
// together, and it may overwrite p behind the bytes returned. It returns io.EOF at the end, and
// otherwise ErrChanged, ErrLimit, ErrUnavailable (also as ErrTimeout), ErrCorrupt or the cause of
// the context. The bytes returned before ErrCorrupt may be wrong, because the checksum of gzip
// follows its data. The bytes returned before any other error are correct.
func (b *Body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.err == nil && len(p) > 0 {
		if b.next != nil {
			b.settle(p)
			continue
		}
		var n int
		left := b.bytesMax - b.n
		n, b.next = b.try.Read(p[:min(int64(len(p)), left+1)]) // one byte beyond the limit, to detect that it is exceeded
		if int64(n) > left {
			n, b.next = int(left), fmt.Errorf("%w of %d bytes", ErrLimit, b.bytesMax)
		}
		if n > 0 {
			b.n += int64(n)
			if b.hashing {
				b.sum = crc32.Update(b.sum, castagnoli, p[:n])
			}
			b.call.client.metrics.decoded.AddInt64(int64(n))
			return n, nil
		}
	}
	return 0, b.err
}

// settle handles b.next. It clears b.next if the response can be resumed, and else sets b.err.
func (b *Body) settle(scratch []byte) {
	err := b.next
	var broken *brokenError
	if errors.As(err, &broken) {
		if err = b.resume(broken, scratch); err == nil {
			b.next = nil
			return
		}
	}
	b.end(err)
}

// resume sends the request again and reads the response up to where the last one
// broke off. It overwrites scratch.
func (b *Body) resume(broken *brokenError, scratch []byte) error {
	if b.try != nil {
		b.try.release()
		b.try = nil
	}
	outcome := b.call.client.metrics.resumes
	for {
		cause := fmt.Errorf("response broke off after %d bytes: %w", b.n, broken.err)
		wait := b.call.nextBackoff()
		if !b.hashing || !b.call.mayRepeat(wait) {
			outcome.With("failed").Inc()
			return cause
		}
		err := b.call.repeat("broken", wait)
		if err == nil {
			err = b.again(scratch)
		}
		switch {
		case err == nil:
			outcome.With("continued").Inc()
			return nil
		case errors.As(err, &broken):
			continue
		case errors.Is(err, ErrChanged):
			outcome.With("changed").Inc()
		default:
			outcome.With("failed").Inc()
		}
		return err
	}
}

// again sends the request once more, and skips the bytes of the response that the caller already
// has.
func (b *Body) again(scratch []byte) error {
	t, err := b.call.response()
	if err != nil {
		return err
	}
	switch {
	case t.status == b.status:
		err = b.skip(t, scratch)
	case t.status >= 500 || t.status == 429:
		err = fmt.Errorf("%w: response broke off after %d bytes, then status %d", ErrUnavailable, b.n, t.status)
	default:
		err = fmt.Errorf("%w: status %d, then %d", ErrChanged, b.status, t.status)
	}
	if err != nil {
		t.release()
		return err
	}
	b.try = t
	b.noStore = b.noStore || HasNoStore(t.header)
	return nil
}

// skip reads the bytes of t that the caller already has, and returns ErrChanged if they differ.
func (b *Body) skip(t *try, scratch []byte) error {
	if len(scratch) < skipMinBytes {
		borrowed := skipBuffers.Get()
		defer skipBuffers.Put(borrowed)
		scratch = (*borrowed)[:cap(*borrowed)]
	}
	sum := uint32(0)
	for done := int64(0); done < b.n; {
		n, err := t.Read(scratch[:min(int64(len(scratch)), b.n-done)])
		sum = crc32.Update(sum, castagnoli, scratch[:n])
		switch done += int64(n); {
		case err == nil, done == b.n: // the next read returns the same error again
		case errors.Is(err, io.EOF) && !t.delimited:
			return &brokenError{fmt.Errorf("%w: %w", ErrUnavailable, errEarly)}
		case errors.Is(err, io.EOF):
			return fmt.Errorf("%w: the retried response ends after %d bytes, not %d", ErrChanged, done, b.n)
		default:
			return err
		}
	}
	if sum != b.sum {
		return fmt.Errorf("%w, within its first %d bytes", ErrChanged, b.n)
	}
	return nil
}

// end releases the try; every further Read returns err.
func (b *Body) end(err error) {
	if b.err == nil {
		b.call.client.metrics.inFlight.Dec()
	}
	b.err = err
	if b.try != nil {
		b.try.release()
		b.try = nil
	}
}

// Close ends the response at once, however much of it was read. The connection is
// reused if the body was read to its end, and closed otherwise.
func (b *Body) Close() error {
	b.cancel(errClosed)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(errClosed)
	return nil
}
