package remoteread

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/prometheus/prometheus/prompb"

	codec "github.com/ferula-io/ferula/internal/remoteread/wire"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// messageBytesMax bounds a label or a histogram in a response of samples.
const messageBytesMax = 4 << 20

// sampleSource reads a response of samples and builds chunks from the samples. It
// decompresses and decodes the response as it arrives. In memory are the chunks of one
// series and the window of blockReader.
type sampleSource struct {
	body           io.Closer
	from           *bufio.Reader
	seriesBytesMax int
	holdBytesMax   int // window of the decompressed block

	begun     bool
	plain     blockReader
	results   int
	resultEnd uint64 // in bytes from the start of the decompressed block
	built     chunkBuilder
	labels    []byte
	chunks    []series.Chunk
	joined    []byte // a message longer than viewBytesMax
	histogram prompb.Histogram
}

// next reads the next series, in the order of the server. It returns io.EOF at the end.
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
			return s.readSeries(f.end)
		}
		if err := s.skipField(f); err != nil {
			return err
		}
	}
}

// result reads the header of the only result.
func (s *sampleSource) result() error {
	f, err := s.field(s.plain.total)
	if err != nil {
		return err
	}
	if f.number != 1 || f.wire != wireBytes {
		s.resultEnd = f.end
		return s.skipField(f)
	}
	if s.results++; s.results > 1 {
		return fmt.Errorf("%w: more than one result for one query", codec.ErrCorrupt)
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

// fieldHead is the tag of a field, and the offset of the field's end.
type fieldHead struct {
	number, wire int
	end          uint64
}

// field reads a tag, and the length of a field of type bytes. Fields of other types
// are not read further. A field that ends after end is an error.
func (s *sampleSource) field(end uint64) (fieldHead, error) {
	src, err := s.plain.atLeast(2 * binary.MaxVarintLen64)
	if err != nil {
		return fieldHead{}, err
	}
	if left := end - s.plain.taken; uint64(len(src)) > left {
		src = src[:left]
	}
	tag, n := binary.Uvarint(src)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<29-1 {
		return fieldHead{}, fmt.Errorf("%w: truncated or invalid field tag", codec.ErrCorrupt)
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

// skipField discards a field.
func (s *sampleSource) skipField(f fieldHead) error {
	for s.plain.taken < f.end {
		src, err := s.plain.atLeast(1)
		if err != nil {
			return err
		}
		s.plain.skip(int(min(uint64(len(src)), f.end-s.plain.taken)))
	}
	return nil
}

// message reads the bytes of a field. They are valid until the next call of any method.
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
		return nil, fmt.Errorf("%w: a label or histogram has %d bytes, more than the limit of %d", ErrLimit, size,
			messageBytesMax)
	}
	s.joined = s.joined[:0]
	for s.plain.taken < f.end {
		src, err := s.plain.atLeast(1)
		if err != nil {
			return nil, err
		}
		src = src[:min(uint64(len(src)), f.end-s.plain.taken)]
		s.joined = append(s.joined, src...)
		s.plain.skip(len(src))
	}
	return s.joined, nil
}

// readSeries reads a series that ends at offset end.
func (s *sampleSource) readSeries(end uint64) error {
	s.labels = s.labels[:0]
	s.built.reset()
	for s.plain.taken < end {
		if err := s.readFloats(end); err != nil {
			return s.withSeries(err)
		}
		if s.plain.taken == end {
			break
		}
		if err := s.seriesField(end); err != nil {
			return s.withSeries(err)
		}
		if size := s.built.bytes() + len(s.labels); size > s.seriesBytesMax {
			return s.withSeries(fmt.Errorf("%w: more than %d bytes of chunks", ErrLimit, s.seriesBytesMax))
		}
	}
	if err := labelenc.Validate(s.labels); err != nil {
		return err
	}
	var err error
	if s.chunks, err = s.built.finish(s.chunks[:0]); err != nil {
		return s.withSeries(err)
	}
	return nil
}

// withSeries adds the labels of the current series to an error.
func (s *sampleSource) withSeries(err error) error {
	return fmt.Errorf("series %s: %w", labelsText(s.labels), err)
}

// readFloats reads float samples that have the common encoding and are decompressed
// already. Nearly all samples of a response take this path.
func (s *sampleSource) readFloats(end uint64) error {
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
		return s.skipField(f)
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

// ahead implements source: the next series is unknown.
func (*sampleSource) ahead() []byte { return nil }

func (s *sampleSource) close() error { return s.body.Close() }
