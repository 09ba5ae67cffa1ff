package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"

	"github.com/klauspost/compress/s2"
)

// codec is how a response is compressed in the store.
type codec uint32

const (
	codecNone codec = iota // in the memory of this process: a hit then copies the response, and does nothing else
	codecS2                // in a store outside of it
)

const blockBytes = 256 << 10 // of a response in one block of S2

// A writer or reader holds some hundred kilobytes, mostly for one block.
var (
	s2Writers = sync.Pool{New: func() any {
		return s2.NewWriter(nil, s2.WriterConcurrency(1), s2.WriterBlockSize(blockBytes))
	}}
	s2Readers = sync.Pool{New: func() any { return s2.NewReader(nil, s2.ReaderMaxBlockSize(blockBytes)) }}
)

// Reader streams a response. All its bytes are in this process. Extent.Open returns it. It is not safe for
// concurrent use.
type Reader struct {
	extent *Extent
	src    io.Reader
	s2     *s2.Reader // src, to be put back into the pool; nil: the response is not compressed
	left   int64      // bytes of the response that are not read yet
	err    error
}

func newReader(e *Extent) *Reader {
	r := &Reader{extent: e, src: parts(e.data), left: e.head.rawBytes}
	if e.head.codec == codecS2 {
		r.s2 = s2Readers.Get().(*s2.Reader)
		r.s2.Reset(r.src)
		r.src = r.s2
	}
	return r
}

// Read reads at least one byte, or returns ErrGone if the stored bytes are no response.
func (r *Reader) Read(p []byte) (int, error) {
	if r.err != nil || len(p) == 0 {
		return 0, r.err
	}
	n, err := r.src.Read(p)
	if r.left -= int64(n); r.left < 0 || (err != nil && (err != io.EOF || r.left > 0)) {
		if err == nil || err == io.EOF {
			err = fmt.Errorf("the length differs by %d bytes", r.left)
		}
		n, err = 0, r.extent.gone(context.Background(), fmt.Errorf("%w: %w", errCorrupt, err))
	}
	r.err = err
	return n, err
}

// WriteTo writes the rest of an uncompressed response part by part, without a copy.
func (r *Reader) WriteTo(w io.Writer) (int64, error) {
	src, ok := r.src.(*net.Buffers)
	if !ok || r.err != nil {
		return io.Copy(w, struct{ io.Reader }{r})
	}
	written, err := src.WriteTo(w)
	if r.left -= written; err == nil && r.left != 0 {
		err = r.extent.gone(context.Background(), fmt.Errorf("%w: the length differs by %d bytes", errCorrupt, r.left))
	}
	return written, err
}

// Close releases the extent.
func (r *Reader) Close() error {
	if r.s2 != nil {
		r.s2.Reset(nil)
		s2Readers.Put(r.s2)
	}
	r.s2, r.src, r.err = nil, nil, os.ErrClosed
	r.extent.Release()
	return nil
}

// parts returns a reader of parts, which are shared and immutable. The reader changes its list of them.
func parts(data [][]byte) *net.Buffers {
	buffers := net.Buffers(slices.Clone(data))
	return &buffers
}

// gone counts why the extent cannot be used, and removes it from the store unless the cause lies elsewhere. A store
// that is too slow for this reader is too slow for the next one.
func (e *Extent) gone(ctx context.Context, err error) error {
	e.cache.met.unused.of(reason(err)).Inc()
	if ctx.Err() == nil && !errors.Is(err, ErrUnavailable) {
		e.cache.remove(e.base, e.head.id)
	}
	return fmt.Errorf("%w: %w", ErrGone, err)
}
