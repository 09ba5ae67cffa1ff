package remoteread

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// frameSet reads the frames of one query as series. A series that was split over
// frames is joined, so one frame is read ahead: it waits behind the current ones
// in the same buffer, and is moved to its front by Next.
type frameSet struct {
	open          func() (io.ReadCloser, error)
	frameBytesMax int

	body    io.ReadCloser
	from    *bufio.Reader
	buf     []byte // payloads of the current series, and of the next one
	ahead   int    // where the payload of the next series begins; -1: there is none
	labels  []byte
	other   []byte // labels of the frame read ahead
	decoded []codec.Chunk
	chunks  []series.Chunk
	err     error

	checksum [4]byte // a field so that it is not allocated for every frame
}

func (f *frameSet) Next() bool {
	if f.err == nil {
		f.err = f.next()
	}
	if f.err == nil {
		return true
	}
	if err := f.close(); err != nil && errors.Is(f.err, io.EOF) {
		f.err = err
	}
	return false
}

// next returns io.EOF at the end.
func (f *frameSet) next() error {
	if f.from == nil {
		body, err := f.open()
		if err != nil {
			return err
		}
		f.body, f.from, f.ahead = body, bufio.NewReaderSize(body, 64<<10), -1
	}
	previous := append(f.other[:0], f.labels...)
	f.other = nil
	if f.ahead >= 0 {
		f.buf = append(f.buf[:0], f.buf[f.ahead:]...)
	} else {
		f.buf = f.buf[:0]
		if err := f.read(); err != nil {
			return err
		}
	}
	f.ahead, f.chunks = -1, f.chunks[:0]
	var err error
	if f.labels, err = f.decode(f.buf, f.labels); err != nil {
		return err
	}
	if len(previous) > 0 && labelenc.Compare(previous, f.labels) >= 0 {
		return fmt.Errorf("%w: series are not in order", codec.ErrCorrupt)
	}
	f.other = previous
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
			f.ahead, f.chunks = start, f.chunks[:n]
			return nil
		}
	}
}

// read appends the payload of the next frame to buf; io.EOF is a clean end.
func (f *frameSet) read() error {
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
func (f *frameSet) decode(payload, dst []byte) ([]byte, error) {
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

// close ends the answer; one that was not read to its end cuts the connection.
func (f *frameSet) close() error {
	if f.err == nil {
		f.err = errClosed
	}
	if f.body == nil {
		return nil
	}
	err := f.body.Close()
	f.body = nil
	return err
}

var errClosed = errors.New("remote read querier is closed")

func (f *frameSet) Labels() []byte         { return f.labels }
func (f *frameSet) Chunks() []series.Chunk { return f.chunks }

func (f *frameSet) Err() error {
	if errors.Is(f.err, io.EOF) {
		return nil
	}
	return f.err
}

func (*frameSet) Warnings() annotations.Annotations { return nil }
