package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/series"
)

// blockSet is the selected series of one block. A goroutine reads the next batch while the
// caller uses the current one. A blockSet is also a series.Querier, which
// series.SelectReplacingLabels requires.
type blockSet struct {
	producer producer
	ctx      context.Context // stored because a blockSet belongs to one request
	cancel   context.CancelFunc
	strict   bool // an error of the block fails the set; otherwise it is a warning

	ahead   chan *batch // receives the next batch once it is read
	reading bool        // a goroutine will send to ahead
	spare   *batch      // memory of the second batch
	current *batch
	i       int   // index of the current series in current
	began   parts // starts of the current series in the lists of current

	reader  *pages.Reader
	chunks  []series.Chunk
	parts   []series.Part // of a downsampled chunk, to check it
	copied  int           // bytes of the current series' chunks that were copied; see copiedMax
	err     error
	warning error
	closed  bool
	closing func() // called once the block is released; may be nil
}

// start begins to read the first batch.
func (s *blockSet) start() {
	s.ahead = make(chan *batch, 1)
	s.spare = &batch{}
	s.readAhead(&batch{})
}

func (s *blockSet) readAhead(b *batch) {
	s.reading = true
	go func() {
		s.producer.fill(s.ctx, b)
		s.ahead <- b
	}()
}

// close ends the reading and releases the block.
func (s *blockSet) close() {
	if s.closed {
		return
	}
	s.closed = true
	s.cancel()
	if s.reading {
		<-s.ahead
	}
	s.producer.ahead.running.Wait()
	s.reader.Release()
	s.producer.block.release()
	if s.closing != nil {
		s.closing()
	}
}

// Next implements series.Set.
func (s *blockSet) Next() bool {
	if s.err != nil || s.warning != nil || s.closed {
		return false
	}
	s.reader.Release()
	ok, err := s.next()
	if err != nil {
		s.fail(err)
		return false
	}
	return ok
}

func (s *blockSet) next() (bool, error) {
	for {
		if s.current == nil || s.i+1 >= len(s.current.entries) {
			if more, err := s.nextBatch(); err != nil || !more {
				return false, err
			}
			continue
		}
		s.began = parts{}
		if s.i++; s.i > 0 {
			s.began = s.current.entries[s.i-1]
		}
		s.chunks, s.copied = s.chunks[:0], 0
		if s.producer.labelsOnly {
			return true, nil
		}
		for _, at := range s.current.chunks[s.began.chunks:s.current.entries[s.i].chunks] {
			if at.ref >= inSums {
				from := at.ref &^ inSums >> 8
				s.chunks = append(s.chunks, series.Chunk{MinMS: at.minMS, MaxMS: at.maxMS, Encoding: series.Summarized,
					Data: s.current.sums[from : from+at.ref&0xff]})
			} else if err := s.chunk(at); err != nil {
				return false, fmt.Errorf("chunk %d: %w", at.ref, err)
			}
		}
		if len(s.chunks) > 0 {
			return true, nil
		}
	}
}

// nextBatch takes the batch that was read ahead, and begins to read the one after it.
func (s *blockSet) nextBatch() (bool, error) {
	if s.current != nil && s.current.last {
		return false, nil
	}
	select {
	case b := <-s.ahead:
		s.reading = false
		if b.err != nil {
			return false, b.err
		}
		was := s.current
		if s.current = b; was == nil {
			was = s.spare
		}
		s.i = -1
		if !b.last {
			s.readAhead(was)
		}
		return true, nil
	case <-s.ctx.Done():
		return false, context.Cause(s.ctx)
	}
}

// fail ends the set. An error that concerns only this block becomes a warning, unless the
// request is strict.
func (s *blockSet) fail(err error) {
	err = s.producer.block.wrap(err)
	if s.ctx.Err() != nil || errors.Is(err, ErrLimit) || errors.Is(err, pages.ErrBudget) {
		s.err = err
		return
	}
	if s.strict {
		s.err = fmt.Errorf("%w: %w", ErrBlock, err)
		return
	}
	s.warning = err
}

// copiedMax limits the bytes of one series' chunks that are copied. A chunk is copied only if it lies
// in several pages. Prometheus writes chunks of up to about a kilobyte, so few of them lie in two pages.
const copiedMax = 64 << 20

// chunk appends one chunk, as stored:
//
//	uvarint(len) | encoding | data | crc32 of encoding and data
func (s *blockSet) chunk(at place) error {
	object, err := s.producer.block.segment(at.ref >> 32)
	if err != nil {
		return err
	}
	off := int64(uint32(at.ref))
	if off < segmentHeader {
		return fmt.Errorf("%w: offset %d", ErrCorrupt, off)
	}
	src, err := s.reader.At(s.ctx, object, off)
	if err != nil {
		return err
	}
	size, n := binary.Uvarint(src[:min(chunkLengthMax, len(src))])
	if n == 0 { // the length lies in two pages
		if src, err = s.reader.Bytes(s.ctx, object, off, int(min(chunkLengthMax, object.Size()-off))); err != nil {
			return err
		}
		size, n = binary.Uvarint(src)
	}
	if n <= 0 || size > entryMax {
		return fmt.Errorf("%w: length of the chunk", ErrCorrupt)
	}
	end := n + 1 + int(size)
	if whole := end + crc32.Size; whole > len(src) {
		if s.copied += whole; s.copied > copiedMax {
			return fmt.Errorf("%w: more than %d bytes of chunks of one series in several pages", ErrCorrupt, copiedMax)
		}
		if src, err = s.reader.Bytes(s.ctx, object, off, whole); err != nil {
			return err
		}
	}
	if crc32.Checksum(src[n:end], castagnoli) != binary.BigEndian.Uint32(src[end:]) {
		return fmt.Errorf("%w: checksum of the chunk", ErrCorrupt)
	}
	c := series.Chunk{MinMS: at.minMS, MaxMS: at.maxMS, Encoding: chunkenc.Encoding(src[n]), Data: src[n+1 : end : end]}
	if c.Encoding == series.Aggregated {
		if s.parts, err = c.AppendParts(s.parts[:0]); err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
	} else if !chunkenc.IsValidEncoding(c.Encoding) || c.Encoding == chunkenc.EncNone {
		return fmt.Errorf("%w: unknown encoding %d", ErrCorrupt, c.Encoding)
	}
	s.chunks = append(s.chunks, c)
	return nil
}

// Labels implements series.Set.
func (s *blockSet) Labels() []byte {
	return s.current.labels[s.began.labels:s.current.entries[s.i].labels]
}

// Ahead returns the labels of the next series; nil if the current batch does not have it.
func (s *blockSet) Ahead() []byte {
	if s.i+1 >= len(s.current.entries) {
		return nil
	}
	return s.current.labels[s.current.entries[s.i].labels:s.current.entries[s.i+1].labels]
}

// Chunks implements series.Set.
func (s *blockSet) Chunks() []series.Chunk { return s.chunks }

// Err implements series.Set.
func (s *blockSet) Err() error { return s.err }

// Warnings implements series.Set.
func (s *blockSet) Warnings() annotations.Annotations {
	if s.warning == nil {
		return nil
	}
	var w annotations.Annotations
	w.Add(s.warning)
	return w
}

// Select implements series.Querier. The matchers were applied before.
func (s *blockSet) Select(context.Context, series.SelectOptions, ...*labels.Matcher) series.Set {
	return s
}

// LabelNames implements series.Querier.
func (s *blockSet) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return s.producer.header.labelNames, nil
}

// Capabilities implements series.Querier.
func (*blockSet) Capabilities() series.Capabilities { return series.Capabilities{} }

// Close implements series.Querier.
func (s *blockSet) Close() error { s.close(); return nil }
