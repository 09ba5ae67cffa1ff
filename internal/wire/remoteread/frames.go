package remoteread

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// frameSource reads an answer with chunks. A series that was split over frames is
// joined, so one frame is read ahead: it waits behind the current ones in the same
// buffer, and is moved to its front by next.
type frameSource struct {
	body           io.Closer
	from           *bufio.Reader
	frameBytesMax  int
	seriesBytesMax int

	buf     []byte // payloads of the current series, and of the next one
	aheadAt int    // where the payload of the next series begins; -1: there is none
	labels  []byte
	other   []byte // labels of the frame read ahead
	decoded []codec.Chunk
	chunks  []series.Chunk

	checksum [4]byte // a field so that it is not allocated for every frame
}

// next brings the next series; io.EOF is the end.
func (f *frameSource) next() error {
	if f.aheadAt >= 0 {
		f.buf = append(f.buf[:0], f.buf[f.aheadAt:]...)
	} else {
		f.buf = f.buf[:0]
		if err := f.read(); err != nil {
			return err
		}
	}
	f.aheadAt, f.chunks = -1, f.chunks[:0]
	var err error
	if f.labels, err = f.decode(f.buf, f.labels); err != nil {
		return err
	}
	for {
		start, n := len(f.buf), len(f.chunks)
		if err := f.read(); errors.Is(err, io.EOF) {
			return nil // the next call will find it too
		} else if err != nil {
			return err
		}
		if f.other, err = f.decode(f.buf[start:], f.other); err != nil {
			return err
		}
		if !bytes.Equal(f.other, f.labels) {
			f.aheadAt, f.chunks = start, f.chunks[:n]
			return nil
		}
		if len(f.buf) > f.seriesBytesMax {
			return fmt.Errorf("%w: series %s: more than %d bytes (SeriesBytesMax) of chunks", ErrLimit, labelsText(f.labels), f.seriesBytesMax)
		}
	}
}

// read appends the payload of the next frame to buf; io.EOF is a clean end.
func (f *frameSource) read() error {
	size, err := binary.ReadUvarint(f.from)
	if errors.Is(err, io.EOF) {
		return io.EOF
	} else if err != nil {
		return fmt.Errorf("read a frame: %w", err)
	}
	if size > uint64(f.frameBytesMax) {
		return fmt.Errorf("%w: a frame of %d bytes, at most %d are read", codec.ErrCorrupt, size, f.frameBytesMax)
	}
	if _, err := io.ReadFull(f.from, f.checksum[:]); err != nil {
		return fmt.Errorf("read a frame: %w", unexpected(err))
	}
	start := len(f.buf)
	// The length is not believed before its bytes are there.
	for left := int(size); left > 0; {
		n := min(left, max(64<<10, len(f.buf)-start))
		at := len(f.buf)
		if cap(f.buf)-at < n {
			f.buf = append(f.buf, make([]byte, n)...)
		}
		f.buf = f.buf[:at+n]
		if _, err := io.ReadFull(f.from, f.buf[at:]); err != nil {
			return fmt.Errorf("read a frame: %w", unexpected(err))
		}
		left -= n
	}
	return codec.CheckFrame(f.buf[start:], binary.BigEndian.Uint32(f.checksum[:]))
}

// unexpected is the error of an end in the middle, which must not look clean.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode appends the chunks of a payload and returns its labels in dst.
func (f *frameSource) decode(payload, dst []byte) ([]byte, error) {
	var err error
	if _, dst, f.decoded, err = codec.DecodeFrame(payload, dst[:0], f.decoded[:0]); err != nil {
		return dst, err
	}
	if err := labelenc.Validate(dst); err != nil {
		return dst, err
	}
	for _, c := range f.decoded {
		f.chunks = append(f.chunks, series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: chunkenc.Encoding(c.Encoding), Data: c.Data})
	}
	return dst, nil
}

func (f *frameSource) Labels() []byte         { return f.labels }
func (f *frameSource) Chunks() []series.Chunk { return f.chunks }

// ahead implements source.
func (f *frameSource) ahead() []byte {
	if f.aheadAt < 0 {
		return nil
	}
	return f.other
}

func (f *frameSource) close() error { return f.body.Close() }
