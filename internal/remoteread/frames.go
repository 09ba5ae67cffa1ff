package remoteread

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// frameSource reads a response of chunks. It joins the frames of a series that was split. To
// find the end of a series it reads one frame ahead, into a second buffer. The two frames
// swap; their data is not copied.
type frameSource struct {
	body           io.Closer
	from           *bufio.Reader
	mint, maxt     int64 // of the query, inclusive
	frameBytesMax  int
	seriesBytesMax int

	current   frame
	following frame   // the frame after the current series, if have is set
	more      []frame // further frames of the current series; only their buffers matter
	free      [][]byte
	have      bool // following is set
	decoded   []series.Chunk

	checksum [4]byte // a field, so that it is not allocated for every frame
}

// frame is a decoded frame. labels is a copy, chunks alias buf.
type frame struct {
	buf    []byte
	labels []byte
	chunks []series.Chunk
}

// freeFramesMax is how many buffers are cached for the next series that is split.
const freeFramesMax = 4

// next reads the next series. It returns io.EOF at the end.
func (f *frameSource) next() error {
	for _, joined := range f.more {
		if len(f.free) < freeFramesMax {
			f.free = append(f.free, joined.buf)
		}
	}
	clear(f.more)
	f.more = f.more[:0]
	if f.have {
		f.current, f.following, f.have = f.following, f.current, false
	} else if err := f.read(&f.current); err != nil {
		return err
	}
	bytesOf := len(f.current.buf)
	for {
		if err := f.read(&f.following); errors.Is(err, io.EOF) {
			return nil // the next call returns io.EOF
		} else if err != nil {
			return err
		}
		if !bytes.Equal(f.following.labels, f.current.labels) {
			f.have = true
			return nil
		}
		if bytesOf += len(f.following.buf); bytesOf > f.seriesBytesMax {
			return fmt.Errorf("%w: series %s: more than %d bytes of chunks", ErrLimit, labelenc.Text(f.current.labels),
				f.seriesBytesMax)
		}
		f.current.chunks = append(f.current.chunks, f.following.chunks...)
		f.more = append(f.more, frame{buf: f.following.buf})
		f.following.buf = nil
		if n := len(f.free); n > 0 {
			f.following.buf, f.free = f.free[n-1], f.free[:n-1]
		}
	}
}

// read reads and decodes the next frame. It returns io.EOF between frames only.
func (f *frameSource) read(to *frame) error {
	size, err := binary.ReadUvarint(f.from)
	if errors.Is(err, io.EOF) {
		return io.EOF
	} else if err != nil {
		return fmt.Errorf("read a frame: %w", err)
	}
	if size > uint64(f.frameBytesMax) {
		return fmt.Errorf("%w: a frame has %d bytes, more than the limit of %d", ErrCorrupt, size, f.frameBytesMax)
	}
	if _, err := io.ReadFull(f.from, f.checksum[:]); err != nil {
		return fmt.Errorf("read a frame: %w", unexpectedEOF(err))
	}
	to.buf = to.buf[:0]
	// The buffer grows as bytes arrive, so that a wrong length allocates little.
	for left := int(size); left > 0; {
		n, at := min(left, max(64<<10, len(to.buf))), len(to.buf)
		to.buf = slices.Grow(to.buf, n)[:at+n]
		if _, err := io.ReadFull(f.from, to.buf[at:]); err != nil {
			return fmt.Errorf("read a frame: %w", unexpectedEOF(err))
		}
		left -= n
	}
	if err := checkFrame(to.buf, binary.BigEndian.Uint32(f.checksum[:])); err != nil {
		return err
	}
	return f.decode(to)
}

// unexpectedEOF turns io.EOF into io.ErrUnexpectedEOF, for reads within a message.
func unexpectedEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode decodes the frame's buffer into its labels and chunks, cut to the query's range.
func (f *frameSource) decode(to *frame) error {
	var err error
	if _, to.labels, f.decoded, err = decodeFrame(to.buf, to.labels[:0], f.decoded[:0]); err != nil {
		return err
	}
	if err := labelenc.Validate(to.labels); err != nil {
		return err
	}
	to.chunks = to.chunks[:0]
	for _, c := range f.decoded {
		switch {
		case c.MinMS >= f.mint && c.MaxMS <= f.maxt:
			to.chunks = append(to.chunks, c)
		case c.MinMS <= f.maxt && c.MaxMS >= f.mint:
			if to.chunks, err = appendCut(to.chunks, c, f.mint, f.maxt); err != nil {
				return fmt.Errorf("series %s: %w", labelenc.Text(to.labels), err)
			}
		}
	}
	return nil
}

// appendCut appends the samples of a chunk that are in the range, encoded as new
// chunks. Prometheus and ferula cut on the server; other servers send whole chunks.
func appendCut(dst []series.Chunk, c series.Chunk, mint, maxt int64) ([]series.Chunk, error) {
	chunk, err := c.Decoder()
	if err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	cut := storage.NewSeriesToChunkEncoder(&storage.SeriesEntry{
		SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
			outside := tombstones.Intervals{{Mint: math.MinInt64, Maxt: mint - 1}, {Mint: maxt + 1, Maxt: math.MaxInt64}}
			return &tsdb.DeletedIterator{Iter: chunk.Iterator(nil), Intervals: outside}
		},
	}).Iterator(nil)
	for cut.Next() {
		one := cut.At()
		dst = append(dst, series.Chunk{MinMS: one.MinTime, MaxMS: one.MaxTime, Encoding: one.Chunk.Encoding(),
			Data: one.Chunk.Bytes()})
	}
	if err := cut.Err(); err != nil {
		return dst, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return dst, nil
}

func (f *frameSource) Labels() []byte         { return f.current.labels }
func (f *frameSource) Chunks() []series.Chunk { return f.current.chunks }

func (f *frameSource) ahead() []byte {
	if !f.have {
		return nil
	}
	return f.following.labels
}

func (f *frameSource) close() error { return f.body.Close() }
