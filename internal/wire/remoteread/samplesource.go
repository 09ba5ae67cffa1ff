package remoteread

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/prompb"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// messageBytesMax bounds a label or a histogram of an answer with samples.
const messageBytesMax = 4 << 20

// sampleSource reads an answer with samples as series of chunks that it makes:
// the block is decompressed and the message is walked as they come in, and only
// the chunks of one series are kept.
type sampleSource struct {
	body           io.Closer
	from           *bufio.Reader
	seriesBytesMax int
	holdBytesMax   int // of what is decompressed

	begun     bool
	plain     blockReader
	results   int
	resultEnd uint64 // all ends count from the block's beginning
	built     rebuilder
	labels    []byte
	chunks    []series.Chunk
	whole     []byte // a message that no view can show
	histogram prompb.Histogram
}

// next brings the next series, in whatever order the server sends them; io.EOF
// is the end.
func (s *sampleSource) next() error {
	if !s.begun {
		s.begun = true
		if err := s.plain.begin(s.from, s.holdBytesMax); err != nil {
			return err
		}
	}
	for {
		if s.plain.taken == s.resultEnd {
			if s.plain.rest() == 0 {
				if err := s.plain.finish(); err != nil {
					return err
				}
				return io.EOF
			}
			if err := s.result(); err != nil {
				return err
			}
			continue
		}
		f, err := s.field(s.resultEnd)
		if err != nil {
			return err
		}
		if f.number == 1 && f.wire == wireBytes {
			return s.series(f.end)
		}
		if err := s.pass(f); err != nil {
			return err
		}
	}
}

// result enters the one result that there may be.
func (s *sampleSource) result() error {
	f, err := s.field(s.plain.total)
	if err != nil {
		return err
	}
	if f.number != 1 || f.wire != wireBytes {
		s.resultEnd = f.end
		return s.pass(f)
	}
	if s.results++; s.results > 1 {
		return fmt.Errorf("%w: more than one result of one query", codec.ErrCorrupt)
	}
	s.resultEnd = f.end
	return nil
}

// Wire types of protobuf.
const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
	wireFixed32 = 5
)

// fieldHead is a tag, and where its field ends.
type fieldHead struct {
	number, wire int
	end          uint64
}

// field takes a tag, and the length if it is of bytes; other fields are left
// whole. Nothing may go beyond end.
func (s *sampleSource) field(end uint64) (fieldHead, error) {
	src, err := s.plain.some(2 * binary.MaxVarintLen64)
	if err != nil {
		return fieldHead{}, err
	}
	if left := end - s.plain.taken; uint64(len(src)) > left {
		src = src[:left]
	}
	tag, n := binary.Uvarint(src)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return fieldHead{}, fmt.Errorf("%w: bad field", codec.ErrCorrupt)
	}
	f := fieldHead{number: int(tag >> 3), wire: int(tag & 7)}
	size, more := uint64(0), 0
	switch f.wire {
	case wireVarint:
		if _, more = binary.Uvarint(src[n:]); more > 0 {
			size, more = uint64(more), 0
		} else {
			more = -1
		}
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		if size, more = binary.Uvarint(src[n:]); more == 0 {
			more = -1
		}
	default:
		return fieldHead{}, fmt.Errorf("%w: field %d has wire type %d", codec.ErrCorrupt, f.number, f.wire)
	}
	if more < 0 || size > end || s.plain.taken+uint64(n+more)+size > end {
		return fieldHead{}, fmt.Errorf("%w: field %d is cut short", codec.ErrCorrupt, f.number)
	}
	s.plain.skip(n + more)
	f.end = s.plain.taken + size
	return f, nil
}

// pass leaves a field out.
func (s *sampleSource) pass(f fieldHead) error {
	for s.plain.taken < f.end {
		src, err := s.plain.some(1)
		if err != nil {
			return err
		}
		s.plain.skip(int(min(uint64(len(src)), f.end-s.plain.taken)))
	}
	return nil
}

// message takes the bytes of a field, borrowed until the next call of anything.
func (s *sampleSource) message(f fieldHead) ([]byte, error) {
	size := f.end - s.plain.taken
	if size <= viewBytesMax {
		view, err := s.plain.view(int(size))
		if err == nil {
			s.plain.skip(int(size))
		}
		return view, err
	}
	if size > messageBytesMax {
		return nil, fmt.Errorf("%w: a label or histogram of %d bytes, at most %d are read", ErrLimit, size, messageBytesMax)
	}
	s.whole = s.whole[:0]
	for s.plain.taken < f.end {
		src, err := s.plain.some(1)
		if err != nil {
			return nil, err
		}
		src = src[:min(uint64(len(src)), f.end-s.plain.taken)]
		s.whole = append(s.whole, src...)
		s.plain.skip(len(src))
	}
	return s.whole, nil
}

// series reads a series that ends at end.
func (s *sampleSource) series(end uint64) error {
	s.labels = s.labels[:0]
	s.built.reset()
	for s.plain.taken < end {
		if err := s.floats(end); err != nil {
			return s.blame(err)
		}
		if s.plain.taken == end {
			break
		}
		if err := s.seriesField(end); err != nil {
			return s.blame(err)
		}
		if size := s.built.bytes() + len(s.labels); size > s.seriesBytesMax {
			return s.blame(fmt.Errorf("%w: more than %d bytes (SeriesBytesMax) of chunks", ErrLimit, s.seriesBytesMax))
		}
	}
	if err := labelenc.Validate(s.labels); err != nil {
		return err
	}
	var err error
	if s.chunks, err = s.built.finish(s.chunks[:0]); err != nil {
		return s.blame(err)
	}
	return nil
}

// blame names the series that an error is about.
func (s *sampleSource) blame(err error) error {
	return fmt.Errorf("series %s: %w", labelsText(s.labels), err)
}

// floats takes float samples as long as they are spelled as every server does,
// and are decompressed: nearly all of an answer goes through here.
func (s *sampleSource) floats(end uint64) error {
	src := s.plain.window[s.plain.at:s.plain.end]
	if left := end - s.plain.taken; uint64(len(src)) > left {
		src = src[:left]
	}
	at := 0
	for len(src)-at > 2 && src[at] == 2<<3|wireBytes && src[at+1] < 0x80 && len(src)-at >= 2+int(src[at+1]) {
		size := int(src[at+1])
		t, v, err := codec.DecodeFloat(src[at+2 : at+2+size])
		if err != nil {
			return err
		}
		if err := s.built.float(t, v); err != nil {
			return err
		}
		at += 2 + size
	}
	s.plain.skip(at)
	return nil
}

func (s *sampleSource) seriesField(end uint64) error {
	f, err := s.field(end)
	if err != nil {
		return err
	}
	if f.number != 1 && f.number != 2 && f.number != 4 {
		return s.pass(f)
	}
	if f.wire != wireBytes {
		return fmt.Errorf("%w: field %d of a series has wire type %d", codec.ErrCorrupt, f.number, f.wire)
	}
	message, err := s.message(f)
	if err != nil {
		return err
	}
	switch f.number {
	case 1:
		name, value, err := codec.DecodeLabel(message)
		if err != nil {
			return err
		}
		s.labels = labelenc.AppendLabel(s.labels, string(name), string(value))
		return nil
	case 2:
		t, v, err := codec.DecodeFloat(message)
		if err != nil {
			return err
		}
		return s.built.float(t, v)
	default:
		s.histogram.Reset()
		if err := s.histogram.Unmarshal(message); err != nil {
			return fmt.Errorf("%w: histogram: %w", codec.ErrCorrupt, err)
		}
		return s.built.histogram(&s.histogram)
	}
}

func (s *sampleSource) Labels() []byte         { return s.labels }
func (s *sampleSource) Chunks() []series.Chunk { return s.chunks }

// ahead implements source: what comes next is not known.
func (*sampleSource) ahead() []byte { return nil }

func (s *sampleSource) close() error { return s.body.Close() }
