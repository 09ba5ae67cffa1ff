package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unsafe"

	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/storepb"
)

// SeriesSet is the response to Series: a series.Set that receives messages as Next is
// called. It is not safe for concurrent use.
//
// A SeriesSet joins the parts of a series that the server has split. To know whether another part
// follows, it decodes one series ahead. Decoded series alias the frame of their message. A frame is
// reused when neither the current series nor the series ahead lies in it. So a set has at most one
// frame for each of these two series, and more only for a series longer than a message.
type SeriesSet struct {
	stream   grpc.ClientStream
	cancel   context.CancelFunc
	bytesMax int // limit of the bytes of frames: messages and decoded labels; 0: no limit

	frames  []*inFrame      // frames of the current series and of the series ahead; the last frame is being decoded
	spare   []*inFrame      // free frames, for reuse
	batch   []byte          // the rest of the batch in the last frame
	coded   bool            // the batch has deltas
	decoder storepb.Decoder // its arena belongs to the last frame
	one     []byte          // the next series in the last frame, not yet decoded; nil: none
	used    bool            // the current series or the series ahead lies in the last frame

	labels   []byte
	chunks   []series.Chunk
	ahead    []byte         // labels of the series that is decoded ahead
	decoded  []series.Chunk // chunks of the series that is decoded ahead
	hasAhead bool
	started  bool // there is a current series
	warnings annotations.Annotations
	warned   int  // bytes of warnings
	ended    bool // the last message was received
	err      error
}

var _ Stream = (*SeriesSet)(nil)

// Next implements series.Set.
func (s *SeriesSet) Next() bool {
	if s.err == nil {
		if err := s.next(); err != nil {
			s.fail(err)
		}
	}
	return s.err == nil
}

// next reads the next series. It returns io.EOF at the end.
func (s *SeriesSet) next() error {
	if !s.hasAhead {
		order, err := s.decode()
		if err != nil {
			return err
		}
		if s.started && order <= 0 {
			return s.orderError()
		}
	}
	s.labels, s.hasAhead, s.started = s.ahead, false, true
	s.chunks, s.decoded = s.decoded, s.chunks[:0]
	s.release()
	for {
		order, err := s.decode()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the next call returns io.EOF
		case err != nil:
			return err
		case order > 0:
			s.hasAhead = true
			return nil
		case order < 0:
			return s.orderError()
		}
		s.chunks = append(s.chunks, s.decoded...)
	}
}

func (s *SeriesSet) orderError() error {
	return fmt.Errorf("%w: series are out of order: %s follows %s", ErrCorrupt, labelenc.Text(s.ahead), labelenc.Text(s.labels))
}

// release reuses all frames except the last.
func (s *SeriesSet) release() {
	if last := len(s.frames) - 1; last > 0 {
		s.spare = append(s.spare, s.frames[:last]...)
		s.frames[0] = s.frames[last]
		s.frames = s.frames[:1]
	}
	if len(s.spare) > spareFrames {
		clear(s.spare[spareFrames:])
		s.spare = s.spare[:spareFrames]
	}
}

// spareFrames is the number of free frames that are cached.
const spareFrames = 2

// decode decodes the next series into ahead, and receives messages as needed. order is positive
// if that series sorts after the current one, and 0 if it has the same labels. decode returns
// io.EOF at the end.
func (s *SeriesSet) decode() (order int, err error) {
	for s.one == nil {
		if len(s.batch) == 0 {
			if err := s.receive(); err != nil {
				return 0, err
			}
			continue
		}
		if s.one, s.batch, err = storepb.NextSeries(s.batch); err != nil {
			return 0, err
		}
	}
	body := s.one
	s.one, s.used = nil, true
	if err := s.room(body); err != nil {
		return 0, err
	}
	frame := s.frames[len(s.frames)-1]
	s.decoder.Arena = frame.arena
	order, err = s.decodeSeries(body)
	frame.arena = s.decoder.Arena
	return order, s.withSeries(err)
}

// decodeSeries decodes a series into ahead. Its results are those of decode.
func (s *SeriesSet) decodeSeries(body []byte) (order int, err error) {
	if s.coded {
		s.ahead, s.decoded, err = s.decoder.DeltaSeries(body, s.decoded[:0])
		if err == nil {
			order, err = labelenc.Follows(s.labels, s.ahead)
		}
		return order, err
	}
	size, order, err := labelenc.CutAfter(s.labels, body)
	if err != nil {
		s.ahead = nil
		return 0, err
	}
	var apart []byte // a label after the chunks
	s.ahead = body[:size:size]
	s.decoded, apart, err = s.decoder.Chunks(body[size:], s.decoded[:0])
	if len(apart) > 0 && err == nil {
		if s.ahead, s.decoded, err = s.decoder.Series(body, s.decoded[:0]); err == nil {
			order, err = labelenc.Follows(s.labels, s.ahead)
		}
	}
	return order, err
}

const (
	// chunkBytes is the memory of a chunk in decoded and in chunks, without its data.
	chunkBytes = 2 * int(unsafe.Sizeof(series.Chunk{}))
	// emptyBytes is the length of a chunk without data in a message.
	emptyBytes = 2
)

// room returns ErrBytesMax if the decoded chunks of the series body and of the current series together take
// more than bytesMax bytes of memory. A chunk with little or no data takes far more memory than bytes of a message.
// room counts the chunks of body only if the body is long enough to have that many.
func (s *SeriesSet) room(body []byte) error {
	current := len(s.chunks)
	if s.bytesMax <= 0 || current+len(body)/emptyBytes <= s.bytesMax/chunkBytes {
		return nil
	}
	if n := current + storepb.CountChunks(body); n > s.bytesMax/chunkBytes {
		return fmt.Errorf("%w: after series %s: %d chunks take more than %d bytes", ErrBytesMax, labelenc.Text(s.labels), n,
			s.bytesMax)
	}
	return nil
}

// withSeries adds the series and the chunk that could not be decoded to an error.
func (s *SeriesSet) withSeries(err error) error {
	if err == nil {
		return nil
	}
	if s.ahead == nil { // its labels cannot be decoded
		return fmt.Errorf("series after %s: %w", labelenc.Text(s.labels), err)
	}
	return fmt.Errorf("series %s: chunk %d: %w", labelenc.Text(s.ahead), len(s.decoded), err)
}

// receive reads the next message into a frame.
func (s *SeriesSet) receive() error {
	if s.ended {
		return io.EOF
	}
	// A frame without a series is reused at once.
	if last := len(s.frames) - 1; last >= 0 && !s.used {
		s.spare = append(s.spare, s.frames[last])
		s.frames = s.frames[:last]
	}
	held := 0
	for _, frame := range s.frames {
		held += len(frame.buf) + len(frame.arena)
	}
	if s.bytesMax > 0 && len(s.frames) > 1 && held > s.bytesMax {
		return fmt.Errorf("%w: series %s has more than %d bytes", ErrBytesMax, labelenc.Text(s.labels), s.bytesMax)
	}
	var frame *inFrame
	if n := len(s.spare); n > 0 {
		frame, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		frame = inFrames.Get().(*inFrame)
	}
	received := false
	defer func() {
		if !received {
			frame.free()
		}
	}()
	for {
		if err := s.stream.RecvMsg(frame); errors.Is(err, io.EOF) {
			s.ended = true
			return io.EOF
		} else if err != nil {
			// gRPC has no other sign of this error
			if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") {
				return fmt.Errorf("%w: %w", ErrBytesMax, err)
			}
			return fromStatus(err)
		}
		kind, body, err := storepb.DecodeResponse(frame.buf)
		if err != nil {
			return err
		}
		switch kind {
		case storepb.Warning:
			s.warn(body)
		case storepb.OneSeries:
			s.one, s.coded, s.used, received = body, false, false, true
			s.frames = append(s.frames, frame)
			return nil
		case storepb.Batch, storepb.DeltaBatch:
			s.batch, s.coded, s.used, received = body, kind == storepb.DeltaBatch, false, true
			s.decoder.Begin()
			s.frames = append(s.frames, frame)
			return nil
		}
	}
}

// Limits of the warnings that are returned.
const (
	warningsMax      = 1000
	warningsBytesMax = 1 << 20
)

// warn adds a warning. Beyond the limits it adds errWarnings instead.
func (s *SeriesSet) warn(text []byte) {
	if len(s.warnings) >= warningsMax || s.warned+len(text) > warningsBytesMax {
		s.warnings.Add(errWarnings)
		return
	}
	s.warned += len(text)
	s.warnings.Add(errors.New(string(text)))
}

var errWarnings = errors.New("further warnings were omitted")

// fail ends the set. io.EOF is the regular end.
func (s *SeriesSet) fail(err error) {
	s.err = err
	s.cancel()
	s.batch, s.one, s.ahead, s.decoded = nil, nil, nil, nil
	s.labels, s.chunks = nil, nil
	s.decoder = storepb.Decoder{}
	for _, frame := range slices.Concat(s.frames, s.spare) {
		frame.free()
	}
	s.frames, s.spare = nil, nil
}

// Labels implements series.Set.
func (s *SeriesSet) Labels() []byte { return s.labels }

// Chunks implements series.Set.
func (s *SeriesSet) Chunks() []series.Chunk { return s.chunks }

// BufferedBytes returns the memory of the messages that the set holds, and of its lists of chunks. It may be called
// after every Next.
func (s *SeriesSet) BufferedBytes() int64 {
	n := int64(cap(s.decoded)+cap(s.chunks)) * int64(unsafe.Sizeof(series.Chunk{}))
	for _, list := range [...][]*inFrame{s.frames, s.spare} {
		for _, frame := range list {
			n += int64(cap(frame.buf) + cap(frame.arena))
		}
	}
	return n
}

// Warnings implements series.Set.
func (s *SeriesSet) Warnings() annotations.Annotations { return s.warnings }

// Err implements series.Set.
func (s *SeriesSet) Err() error {
	if errors.Is(s.err, io.EOF) {
		return nil
	}
	return s.err
}

// Close cancels the call if it has not ended.
func (s *SeriesSet) Close() error {
	if s.err == nil {
		s.fail(errClosed)
	}
	return nil
}

var errClosed = errors.New("series set is closed")
