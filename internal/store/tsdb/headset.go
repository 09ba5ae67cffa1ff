package tsdb

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// headSet iterates over the series of a head.
type headSet struct {
	head       *rawHead
	ctx        context.Context
	matchers   []*labels.Matcher
	order      *headOrder
	labelsOnly bool

	at        int // the next series in order
	seen      int // series returned
	labels    []byte
	own       [2][]byte // buffers of labels, if the order has none: of this series and of the one before
	chunks    []series.Chunk
	builder   labels.ScratchBuilder
	metas     []chunks.Meta
	intervals tombstones.Intervals // deleted, or out of range
	some      tombstones.Intervals // those that overlap the chunk
	sources   []chunkenc.Chunk     // of chunks, before they are cut
	cutter    cutter
	arena     []byte // re-encoded chunks of the current series
	iter      chunkenc.Iterator
	err       error
}

// next moves to the next series. lost reports that the head may have lost the rest.
func (s *headSet) next() (ok, lost bool) {
	if s.err != nil {
		return false, false
	}
	for s.at < len(s.order.refs) {
		if s.at%1024 == 0 && s.ctx.Err() != nil {
			s.err = s.ctx.Err()
			return false, false
		}
		labels := s.labels
		ok, err := s.read(s.at)
		if s.head.disturbed(errors.Is(err, storage.ErrNotFound)) {
			s.labels = labels
			return false, true
		}
		s.at++
		switch {
		case errors.Is(err, errGone):
		case err != nil:
			s.err = fmt.Errorf("head: series %d: %w", s.order.refs[s.at-1], err)
			return false, false
		case ok:
			s.seen++
			return true, false
		}
	}
	return false, false
}

// errGone is the error for a series that the head no longer has.
var errGone = fmt.Errorf("gone: %w", storage.ErrNotFound)

// read reads one series; ok is false if it has no chunks in the range.
func (s *headSet) read(i int) (ok bool, err error) {
	h, ref := s.head, s.order.refs[i]
	h.reading.Lock()
	defer h.reading.Unlock()
	deleted, err := h.deleted.Get(ref) // before the series: they go after it
	if err != nil {
		return false, err
	}
	if err := h.index.Series(ref, &s.builder, &s.metas); err != nil {
		if errors.Is(err, storage.ErrNotFound) {
			return false, errGone
		}
		return false, err
	}
	if len(s.metas) == 0 || len(deleted) > 0 && !s.keepUndeleted(deleted) {
		return false, nil
	}
	s.setLabels(i)
	s.setIntervals(deleted)
	s.chunks, s.arena = s.chunks[:0], s.arena[:0]
	if s.labelsOnly {
		return true, nil
	}
	return true, s.readChunks()
}

// setLabels takes the labels from the order, or encodes them.
func (s *headSet) setLabels(i int) {
	var ok bool
	if s.labels, ok = s.order.at(i); !ok {
		s.own[0], s.own[1] = s.own[1], labelenc.Append(s.own[0][:0], s.builder.Labels())
		s.labels = s.own[1]
	}
}

// ahead returns the labels of the next series, or of one before it that has no samples in
// the range.
func (s *headSet) ahead() []byte {
	lset, _ := s.order.at(s.at)
	return lset
}

// keepUndeleted drops the chunks that are deleted completely. It reports whether any is left.
func (s *headSet) keepUndeleted(deleted tombstones.Intervals) bool {
	kept := s.metas[:0]
	for _, meta := range s.metas {
		if !(tombstones.Interval{Mint: meta.MinTime, Maxt: meta.MaxTime}).IsSubrange(deleted) {
			kept = append(kept, meta)
		}
	}
	s.metas = kept
	return len(kept) > 0
}

// setIntervals collects the deleted intervals, and those out of range that must be cut, sorted by start.
func (s *headSet) setIntervals(deleted tombstones.Intervals) {
	h := s.head
	s.intervals = s.intervals[:0]
	if h.mint > math.MinInt64 && !h.uncutStart {
		s.intervals = append(s.intervals, tombstones.Interval{Mint: math.MinInt64, Maxt: h.mint - 1})
	}
	for _, interval := range deleted {
		if interval.Maxt >= h.mint && interval.Mint <= h.maxt {
			s.intervals = append(s.intervals, interval)
		}
	}
	if h.maxt < math.MaxInt64 && !h.uncutEnd {
		s.intervals = append(s.intervals, tombstones.Interval{Mint: h.maxt + 1, Maxt: math.MaxInt64})
	}
}

// readChunks reads the chunks of the current series.
func (s *headSet) readChunks() error {
	s.sources = s.sources[:0]
	for _, meta := range s.metas {
		chunk, iterable, maxt, err := s.head.chunks.ChunkOrIterableWithCopy(meta)
		if err == nil && (chunk == nil || iterable != nil) {
			err = errors.New("samples in order are not in one chunk")
		}
		if err != nil {
			return fmt.Errorf("chunk %d: %w", meta.Ref, err)
		}
		s.chunks = append(s.chunks, series.Chunk{MinMS: meta.MinTime, MaxMS: maxt, Encoding: chunk.Encoding(), Data: chunk.Bytes()})
		s.sources = append(s.sources, chunk)
	}
	whole, partial := s.committed()
	kept := s.chunks[:0]
	for i, c := range s.chunks[:whole] {
		if !s.overlapping(c, s.metas[i].MaxTime == math.MaxInt64) {
			kept = append(kept, c)
			continue
		}
		c, arena, ok, err := s.cutter.cut(c, s.some, s.arena)
		if s.arena = arena; err != nil {
			return fmt.Errorf("chunk %d: %w", s.metas[i].Ref, err)
		}
		if ok {
			kept = append(kept, c)
		}
	}
	if partial != nil {
		c := s.chunks[whole]
		s.overlapping(c, true)
		c, arena, ok, err := s.cutter.cutIterator(partial, c, s.some, s.arena)
		if s.arena = arena; err != nil {
			return fmt.Errorf("chunk %d: %w", s.metas[whole].Ref, err)
		}
		if ok {
			kept = append(kept, c)
		}
	}
	s.chunks = kept
	return nil
}

// overlapping collects the intervals that overlap a chunk. The open chunk of a series has no
// end for Prometheus, which therefore always encodes it again. The bytes of floats are the
// same then; those of others may differ in hints.
func (s *headSet) overlapping(c series.Chunk, open bool) bool {
	if open && c.Encoding != chunkenc.EncXOR {
		c.MaxMS = math.MaxInt64
	}
	s.some = s.some[:0]
	for _, interval := range s.intervals {
		if interval.Mint <= c.MaxMS && interval.Maxt >= c.MinMS {
			s.some = append(s.some, interval)
		}
	}
	return len(s.some) > 0
}

// committed returns how many of the chunks have only samples of appends that the view
// contains, and an iterator over such samples of the next chunk if it also has others. The
// samples of a series are visible up to the first that is not, so the last chunk with a
// visible one decides.
//
// The type of a chunk's iterator shows it: the head wraps the iterator if samples are hidden.
func (s *headSet) committed() (whole int, partial chunkenc.Iterator) {
	types := &s.head.store.iterators
	for i := len(s.sources) - 1; i >= 0; i-- {
		it := s.sources[i].Iterator(s.iter)
		switch reflect.TypeOf(it) {
		case types.all[s.chunks[i].Encoding]:
			s.iter = it
			return i + 1, nil
		case types.none:
		default:
			return i, it
		}
	}
	return 0, nil
}

// iteratorTypes are types of iterators over the samples of a chunk.
type iteratorTypes struct {
	all  map[chunkenc.Encoding]reflect.Type // returns all samples
	none reflect.Type                       // returns none
}

func newIteratorTypes() iteratorTypes {
	types := iteratorTypes{map[chunkenc.Encoding]reflect.Type{}, reflect.TypeOf(chunkenc.NewNopIterator())}
	for encoding := range chunkenc.Encoding(math.MaxUint8) {
		if c, err := chunkenc.NewEmptyChunk(encoding); err == nil {
			types.all[encoding] = reflect.TypeOf(c.Iterator(nil))
		}
	}
	return types
}
