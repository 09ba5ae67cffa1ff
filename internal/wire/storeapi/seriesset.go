package storeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/codec/storepb"
	"github.com/ferula-io/ferula/internal/series"
)

// SeriesSet is the answer to Series: a series.Set that receives as it goes. It is
// used by one goroutine.
//
// A series that its server split is joined, so one series is decoded ahead. What
// was decoded aliases the frame that it came in; frames are used again when
// nothing given away or decoded ahead is in them, and few are needed: one for the
// current series, one for the next, more only for a series longer than a message.
type SeriesSet struct {
	stream   grpc.ClientStream
	cancel   context.CancelFunc
	bytesMax int // of the messages that the current series and the one ahead lie in; 0: none

	frames []*inFrame // of the current series and the one ahead; the last is being read
	spare  []*inFrame
	keep   bool
	kept   []*inFrame // all that were read, if they are to be kept
	batch  []byte     // rest of the frame's batch
	coded  bool       // whose labels are numbers
	table  storepb.SymbolReader
	one    []byte // the frame's only series, not yet decoded; nil: none
	used   bool   // something that is held lies in the last frame

	labels   []byte
	chunks   []series.Chunk
	aggr     []AggrChunk
	ahead    []byte // labels of the series decoded ahead
	decoded  []storepb.Chunk
	hasAhead bool
	given    bool // a series was
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

// next returns io.EOF at the end.
func (s *SeriesSet) next() error {
	if !s.hasAhead {
		order, err := s.decode()
		if err != nil {
			return err
		}
		if s.given && order <= 0 {
			return s.disorder()
		}
	}
	s.labels, s.hasAhead, s.given = s.ahead, false, true
	s.chunks, s.aggr = s.chunks[:0], s.aggr[:0]
	s.take()
	s.release()
	for {
		order, err := s.decode()
		switch {
		case errors.Is(err, io.EOF):
			return nil // the next call will find it too
		case err != nil:
			return err
		case order > 0:
			s.hasAhead = true
			return nil
		case order < 0:
			return s.disorder()
		}
		s.take()
	}
}

func (s *SeriesSet) disorder() error {
	return fmt.Errorf("%w: series are not in order: %s came after %s", ErrCorrupt, textOf(s.ahead), textOf(s.labels))
}

// take adds the chunks decoded ahead to the current series.
func (s *SeriesSet) take() {
	for i := range s.decoded {
		c := &s.decoded[i]
		chunk := series.Chunk{MinMS: c.MinMS, MaxMS: c.MaxMS, Encoding: chunkenc.Encoding(c.Encoding), Data: c.Data}
		if c.Aggr == Raw {
			s.chunks = append(s.chunks, chunk)
		} else {
			s.aggr = append(s.aggr, AggrChunk{c.Aggr, chunk})
		}
	}
}

// Keep makes labels and chunks valid until Close instead of until Next, without a
// copy: what was received stays in memory as it came. It is called before the
// first Next, by who holds all of an answer anyway.
func (s *SeriesSet) Keep() { s.keep = true }

// release takes all frames but the one being read back.
func (s *SeriesSet) release() {
	if last := len(s.frames) - 1; last > 0 {
		if s.keep {
			s.kept = append(s.kept, s.frames[:last]...)
		} else {
			s.spare = append(s.spare, s.frames[:last]...)
		}
		s.frames[0] = s.frames[last]
		s.frames = s.frames[:1]
	}
	if len(s.spare) > spareFrames {
		clear(s.spare[spareFrames:])
		s.spare = s.spare[:spareFrames]
	}
}

// spareFrames is how many frames are kept beyond the one that is read.
const spareFrames = 2

// decode decodes the next series ahead, receiving until there is one, and says
// how it stands to the current one: > 0 behind it, 0 the same; io.EOF at the end.
func (s *SeriesSet) decode() (order int, err error) {
	for s.one == nil {
		if len(s.batch) == 0 {
			if err := s.receive(); err != nil {
				return 0, err
			}
			continue
		}
		if s.coded {
			s.one, s.batch, err = s.table.Next(s.batch)
		} else {
			s.one, s.batch, err = storepb.NextSeries(s.batch)
		}
		if err != nil {
			return 0, err
		}
	}
	body := s.one
	s.one, s.used = nil, true
	if s.coded {
		frame := s.frames[len(s.frames)-1]
		s.ahead, frame.labels, s.decoded, err = s.table.DecodeSeries(body, frame.labels, s.decoded[:0])
		if err == nil {
			order, err = labelenc.Follows(s.labels, s.ahead)
		}
		return order, s.named(err)
	}
	size, order, err := labelenc.CutAfter(s.labels, body)
	if err != nil {
		return 0, err
	}
	apart := false
	s.ahead = body[:size:size]
	s.decoded, apart, err = storepb.DecodeChunks(body[size:], s.decoded[:0])
	if apart && err == nil {
		if s.ahead, _, s.decoded, err = storepb.DecodeSeries(body, nil, s.decoded[:0]); err == nil {
			order, err = labelenc.Follows(s.labels, s.ahead)
		}
	}
	return order, s.named(err)
}

// named says which series and chunk could not be decoded.
func (s *SeriesSet) named(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("series %s: chunk %d: %w", textOf(s.ahead), len(s.decoded), err)
}

// receive takes the next message into a frame.
func (s *SeriesSet) receive() error {
	if s.ended {
		return io.EOF
	}
	// A message without a series leaves nothing to be held.
	if last := len(s.frames) - 1; last >= 0 && !s.used && !s.keep {
		s.spare = append(s.spare, s.frames[last])
		s.frames = s.frames[:last]
	}
	held := 0
	for _, frame := range s.frames {
		held += len(frame.buf)
	}
	if s.bytesMax > 0 && len(s.frames) > 1 && held > s.bytesMax {
		return fmt.Errorf("%w: series %s has more than %d", ErrBytesMax, textOf(s.labels), s.bytesMax)
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
			if status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "larger than max") { // gRPC has no other sign of it
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
		case storepb.Batch, storepb.SymbolBatch:
			s.batch, s.coded, s.used, received = body, kind == storepb.SymbolBatch, false, true
			s.table.Begin()
			s.frames = append(s.frames, frame)
			return nil
		}
	}
}

// What is kept of warnings.
const (
	warningsMax      = 1000
	warningsBytesMax = 1 << 20
)

// warn keeps a warning, or says that there are more than are kept.
func (s *SeriesSet) warn(text []byte) {
	if len(s.warnings) >= warningsMax || s.warned+len(text) > warningsBytesMax {
		s.warnings.Add(errWarnings)
		return
	}
	s.warned += len(text)
	s.warnings.Add(errors.New(string(text)))
}

var errWarnings = errors.New("there are further warnings, which are left out")

// fail ends the set; io.EOF is a good end.
func (s *SeriesSet) fail(err error) {
	s.err = err
	s.cancel()
	s.batch, s.one, s.ahead, s.decoded = nil, nil, nil, nil
	s.labels, s.chunks, s.aggr = nil, nil, nil
	if s.keep {
		s.kept = append(s.kept, s.frames...)
		s.frames = nil
	}
	for _, frame := range slices.Concat(s.frames, s.spare) {
		frame.free()
	}
	s.frames, s.spare = nil, nil
}

// Labels implements series.Set.
func (s *SeriesSet) Labels() []byte { return s.labels }

// Chunks implements series.Set: the raw ones only.
func (s *SeriesSet) Chunks() []series.Chunk { return s.chunks }

// AggrChunks are the downsampled chunks of the series, borrowed until Next.
func (s *SeriesSet) AggrChunks() []AggrChunk { return s.aggr }

// Warnings implements series.Set.
func (s *SeriesSet) Warnings() annotations.Annotations { return s.warnings }

// Err implements series.Set.
func (s *SeriesSet) Err() error {
	if errors.Is(s.err, io.EOF) {
		return nil
	}
	return s.err
}

// Close ends the call; what was not received is not waited for.
func (s *SeriesSet) Close() error {
	if s.err == nil {
		s.fail(errClosed)
	}
	for _, frame := range s.kept {
		frame.free()
	}
	s.kept = nil
	return nil
}

var errClosed = errors.New("series set is closed")
