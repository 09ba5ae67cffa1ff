package downstream

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
)

// The encodings that can be requested, as named in Options.Encodings.
const (
	Identity = "identity"
	Gzip     = "gzip"
	Zstd     = "zstd"
	Snappy   = "snappy" // framed
)

const (
	decoderReadBytes    = 64 << 10 // compressed bytes read at once
	zstdWindowMaxBytes  = 8 << 20  // RFC 9659: no more in HTTP
	snappyBlockMaxBytes = 1 << 20  // the snappy format allows 64 KiB, its extension S2 more
)

// Decoders hold up to some MiB of decoded data. sync.Pool frees idle ones at garbage collection.
var (
	gzipDecoders   sync.Pool
	zstdDecoders   sync.Pool
	snappyDecoders sync.Pool
)

// decoder is one pooled decoder with its input buffer.
type decoder struct {
	in  *bufio.Reader
	out interface {
		io.Reader
		Reset(src io.Reader) error
	}
}

type snappyReader struct{ *s2.Reader }

func (d snappyReader) Reset(src io.Reader) error { d.Reader.Reset(src); return nil }

func makeGzip() *decoder { return &decoder{out: &gzip.Reader{}} }

func makeSnappy() *decoder {
	return &decoder{out: snappyReader{s2.NewReader(nil, s2.ReaderMaxBlockSize(snappyBlockMaxBytes),
		s2.ReaderAllocBlock(decoderReadBytes))}}
}

// makeZstd makes a decoder without goroutines: the responses of one query are
// decoded concurrently already.
func makeZstd() *decoder {
	d, _ := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), // valid options
		zstd.WithDecoderMaxWindow(zstdWindowMaxBytes))
	return &decoder{out: d}
}

// decoding decodes one body. It takes a decoder from the pool at the first read and
// puts it back in release.
type decoding struct {
	pool *sync.Pool
	make func() *decoder
	src  io.Reader
	d    *decoder
}

// newDecoding returns the decoding of a Content-Encoding; nil for identity.
func newDecoding(encoding string, src io.Reader) (*decoding, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", Identity:
		return nil, nil // no decoder is needed
	case Gzip, "x-gzip":
		return &decoding{pool: &gzipDecoders, make: makeGzip, src: src}, nil
	case Zstd:
		return &decoding{pool: &zstdDecoders, make: makeZstd, src: src}, nil
	case Snappy, "x-snappy-framed":
		return &decoding{pool: &snappyDecoders, make: makeSnappy, src: src}, nil
	default:
		return nil, fmt.Errorf("%w: Content-Encoding %q is not known", ErrCorrupt, encoding)
	}
}

func (d *decoding) Read(p []byte) (int, error) {
	if d.d == nil {
		if err := d.begin(); err != nil {
			return 0, err
		}
	}
	return d.d.out.Read(p)
}

// begin waits for the first byte. A body without bytes is accepted in every encoding, because many
// servers send one with an error status.
func (d *decoding) begin() error {
	borrowed, ok := d.pool.Get().(*decoder)
	if !ok {
		borrowed = d.make()
		borrowed.in = bufio.NewReaderSize(nil, decoderReadBytes)
	}
	borrowed.in.Reset(d.src)
	if _, err := borrowed.in.Peek(1); err != nil {
		d.put(borrowed)
		return err
	}
	if err := borrowed.out.Reset(borrowed.in); err != nil {
		d.put(borrowed)
		return err
	}
	d.d = borrowed
	return nil
}

// put drops the connection and puts the decoder back. The decoder's state does not
// matter, because the next begin resets it.
func (d *decoding) put(borrowed *decoder) {
	borrowed.in.Reset(nil)
	d.pool.Put(borrowed)
}

// release puts the decoder back; nothing may be read afterwards.
func (d *decoding) release() {
	if d.d != nil {
		d.put(d.d)
		d.d = nil
	}
}

// early reports whether a decoder's error may mean that the body ended too early.
func early(err error) bool {
	return errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) || errors.Is(err, s2.ErrCorrupt)
}
