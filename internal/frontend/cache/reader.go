package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/ferula-io/ferula/internal/invariant"
)

// Reader streams an extent's bytes. Extent.Open returns it. It is not safe for concurrent use.
type Reader struct {
	cache     *Cache
	base, key string
	ext       *extent
	parts     [][]byte // nil if not fetched
	// ctx is canceled by Close and ends the fetches of parts. It is a field because Read takes no context.
	ctx    context.Context
	cancel context.CancelFunc

	held    *heldBudget
	spilled []byte // buffer for the blocks of a part in the spill file

	number int    // number of the current part; -1 before the first
	blocks []byte // blocks of the current part that are not decoded yet
	left   int    // response bytes in these blocks
	rest   []byte // decoded bytes that Read has not returned yet; aliases buffer or a part
	// ahead gets the part after the current one; nil: no fetch is running.
	ahead chan fetched

	dec    *decoder
	buffer []byte
	err    error
}

// fetched is the result of fetching a part ahead.
type fetched struct {
	blocks []byte
	err    error
}

func newReader(ctx context.Context, e *Extent) *Reader {
	r := &Reader{cache: e.cache, base: e.base, key: e.key, ext: e.ext, parts: e.parts, held: e.held, number: -1,
		dec: decoders.Get().(*decoder)}
	r.ctx, r.cancel = context.WithCancel(ctx)
	if r.held.spilled() {
		return r
	}
	r.fetchAhead(0)
	return r
}

// Close ends the stream and the fetch that runs for it.
func (r *Reader) Close() error {
	if r.dec == nil {
		return nil
	}
	r.cancel()
	if r.ahead != nil {
		<-r.ahead
		r.ahead = nil
	}
	if invariant.Enabled {
		for i := range r.buffer {
			r.buffer[i] = 0xDB
		}
	}
	decoders.Put(r.dec)
	r.held.release()
	r.dec, r.rest, r.buffer, r.parts, r.spilled, r.err = nil, nil, nil, nil, nil, os.ErrClosed
	return nil
}

// Read waits for the first byte only. Then it fills p with the bytes that are available without
// waiting for the store.
func (r *Reader) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(r.rest) > 0 {
			k := copy(p[n:], r.rest)
			r.rest = r.rest[k:]
			n += k
			continue
		}
		if r.err != nil || (n > 0 && r.wouldWait()) {
			break
		}
		b, ok := r.block()
		switch {
		case !ok:
		case b.method == methodNone:
			r.rest = b.data
		case b.rawBytes <= len(p)-n: // into the caller's buffer, without a copy
			if r.fail(r.dec.decode(p[n:n+b.rawBytes], b)) {
				break
			}
			n += b.rawBytes
		default:
			r.decode(b)
		}
	}
	if n == 0 && len(p) > 0 {
		return 0, r.err
	}
	return n, nil
}

// WriteTo writes every decoded block to w.
func (r *Reader) WriteTo(w io.Writer) (written int64, err error) {
	for {
		if len(r.rest) > 0 {
			n, err := w.Write(r.rest)
			r.rest = r.rest[n:]
			written += int64(n)
			if err != nil {
				return written, err
			}
			continue
		}
		if r.err != nil {
			if r.err == io.EOF {
				return written, nil
			}
			return written, r.err
		}
		if b, ok := r.block(); ok && b.method == methodNone {
			r.rest = b.data
		} else if ok {
			r.decode(b)
		}
	}
}

// decode decodes b into the buffer.
func (r *Reader) decode(b block) {
	if cap(r.buffer) < b.rawBytes {
		r.buffer = make([]byte, max(b.rawBytes, blockBytes))
	}
	if out := r.buffer[:b.rawBytes]; !r.fail(r.dec.decode(out, b)) {
		r.rest = out
	}
}

// fail ends the stream if err is not nil.
func (r *Reader) fail(err error) bool {
	if err == nil {
		return false
	}
	if !errors.Is(err, context.Canceled) {
		r.cache.met.unused.of(reason(err)).Inc()
	}
	if errors.Is(err, errMissing) || errors.Is(err, errCorrupt) {
		r.cache.removeExtent(r.base, r.key, r.ext.id)
	}
	r.err = fmt.Errorf("%w: %w", ErrGone, err)
	return true
}

// wouldWait reports whether the next block is in a part that has not arrived.
func (r *Reader) wouldWait() bool {
	return len(r.blocks) == 0 && r.ahead != nil && len(r.ahead) == 0
}

// block returns the next block. At the end of the stream ok is false and r.err is the reason,
// io.EOF if all was read.
func (r *Reader) block() (b block, ok bool) {
	for len(r.blocks) == 0 {
		if r.left != 0 {
			r.fail(fmt.Errorf("part %d is %d bytes short: %w", r.number, r.left, errCorrupt))
			return b, false
		}
		if r.number+1 == len(r.ext.parts) {
			r.err = io.EOF
			return b, false
		}
		if !r.nextPart() {
			return b, false
		}
	}
	b, rest, err := cutBlock(r.blocks)
	if err == nil && b.rawBytes > r.left {
		err = errCorrupt
	}
	if err == nil && b.method == methodNone && len(b.data) != b.rawBytes {
		err = errCorrupt
	}
	if r.fail(err) {
		return b, false
	}
	r.blocks = rest
	r.left -= b.rawBytes
	return b, true
}

// nextPart moves to the next part and starts to fetch the one after it.
func (r *Reader) nextPart() bool {
	next := r.number + 1
	blocks := r.parts[next]
	if blocks == nil && r.held.spilled() {
		var err error
		if r.spilled, err = r.held.read(next, r.spilled); r.fail(err) {
			return false
		}
		r.number, r.blocks, r.left = next, r.spilled, r.ext.parts[next].rawBytes
		return true
	}
	if blocks == nil {
		var err error
		if r.ahead == nil {
			blocks, err = r.cache.part(r.ctx, r.base, r.ext, next)
		} else {
			got := <-r.ahead
			blocks, err = got.blocks, got.err
			r.ahead = nil
		}
		if r.fail(err) {
			return false
		}
	}
	r.number, r.blocks, r.left = next, blocks, r.ext.parts[next].rawBytes
	r.fetchAhead(next + 1)
	return true
}

// fetchAhead starts to fetch a part, unless it is fetched already, is in the spill file
// or does not exist. The goroutine ends with the fetch; nextPart or Close wait for it.
func (r *Reader) fetchAhead(number int) {
	if r.cache.local || number >= len(r.ext.parts) || r.parts[number] != nil {
		return
	}
	ahead := make(chan fetched, 1)
	r.ahead = ahead
	go func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.cache.opts.GetTimeout)
		defer cancel()
		blocks, err := r.cache.part(ctx, r.base, r.ext, number)
		ahead <- fetched{blocks, err}
	}()
}
