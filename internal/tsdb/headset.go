package tsdb

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// headSet iterates over the series of a head.
type headSet struct {
	head     *rawHead
	ctx      context.Context
	opts     series.SelectOptions
	matchers []*labels.Matcher
	order    *headOrder

	at      int // the next series in order
	seen    int // series returned
	labels  []byte
	own     [2][]byte // labels of the previous and the current series, if the order has no labels
	chunks  []series.Chunk
	builder labels.ScratchBuilder
	metas   []chunks.Meta
	cuts
	open    openChunk // of the current series
	touched byte      // without a meaning
	err     error
}

// next moves to the next series. lost reports that the head may have lost data of this series
// and of those that follow.
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
			if !s.order.sorted && s.seen > 0 { // the rest of another view has no place at which it would go on
				s.err = fmt.Errorf("head: series %d: %w while series are read in the head's order", s.order.refs[s.at], errGone)
				return false, false
			}
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

// read reads series i of the order. ok is false if the series has no chunks in the range.
func (s *headSet) read(i int) (ok bool, err error) {
	h, ref := s.head, s.order.refs[i]
	h.reading.Lock()
	defer h.reading.Unlock()
	deleted, err := h.deleted.Get(ref) // before the series is read: the head removes a series before its tombstones
	if err != nil {
		return false, err
	}
	known := len(deleted) == 0 && s.readKnown(i)
	if !known {
		if err := h.index.Series(ref, &s.builder, &s.metas); err != nil {
			if errors.Is(err, storage.ErrNotFound) {
				return false, errGone
			}
			return false, err
		}
		s.metas = undeleted(s.metas, deleted, func(m chunks.Meta) (minMS, maxMS int64) { return m.MinTime, m.MaxTime })
		if len(s.metas) == 0 {
			return false, nil
		}
	}
	if s.labels = nil; s.order.sorted {
		s.setLabels(i)
	}
	s.begin(deleted, h.mint, h.maxt, h.mint > math.MinInt64 && !(s.opts.Uncut && h.alone),
		h.maxt < math.MaxInt64 && !s.opts.Uncut)
	s.chunks = s.chunks[:0]
	switch {
	case s.opts.LabelsOnly:
		return true, nil
	case known:
		return true, s.add(s.open.chunk(), true, nil)
	}
	return true, s.readChunks()
}

// readKnown reads series i of the order, if it was read before and only the chunk to which the head appends is in the
// range. It reads the labels and the open chunk.
func (s *headSet) readKnown(i int) bool {
	h, known := s.head, s.order.known
	if !s.opts.Uncut || s.opts.LabelsOnly {
		return false
	}
	if i%touchSeries == 0 {
		s.touched += touch(known[i:min(i+touchSeries, len(known))])
	}
	from, open := known[i].Load(), &s.open
	if from == nil {
		return false
	}
	if from.read(h.view, nil, open); open.removed || open.encoding == chunkenc.EncNone || open.hidden > 0 ||
		open.beforeMS >= h.mint || open.minMS > h.maxt || open.maxMS < h.mint {
		return false
	}
	s.builder.Assign(open.metric)
	return true
}

// setLabels takes the labels from the order, or encodes them.
func (s *headSet) setLabels(i int) {
	var ok bool
	if s.labels, ok = s.order.at(i); !ok {
		s.own[0], s.own[1] = s.own[1], labelenc.Append(s.own[0][:0], s.builder.Labels())
		s.labels = s.own[1]
	}
}

// ahead returns the labels of the next series of the order, nil if the order does not keep
// them. That series may have no samples in the range, and is then not returned.
func (s *headSet) ahead() []byte {
	lset, _ := s.order.at(s.at)
	return lset
}

// readChunks reads the chunks of the current series. In a series all visible samples precede the hidden samples, so the
// search for hidden ones begins at the last chunk, and ends at the first that has a visible sample.
func (s *headSet) readChunks() error {
	open, n := &s.open, len(s.metas)
	last, err := s.head.chunk(s.metas[n-1])
	if err != nil {
		return err
	}
	from := seriesOf(last)
	if s.opts.Uncut {
		s.order.known[s.at].Store(from)
	}
	from.read(s.head.view, s.metas, open)
	newest := open.encoding != chunkenc.EncNone && open.minMS == s.metas[n-1].MinTime // last is the open chunk

	var visible chunkenc.Iterator // of chunk n-1, if it may have hidden samples
	for hides := open.hidden > open.samples || open.hidden > 0 && newest; hides && visible == nil && n > 0; {
		chunk, err := s.head.chunk(s.metas[n-1])
		if err != nil {
			return err
		}
		if chunk.Iterator(nil).Next() == chunkenc.ValNone {
			n--
		} else {
			visible = chunk.Iterator(nil)
		}
	}
	for i, meta := range s.metas[:n] {
		isLast := i == len(s.metas)-1
		c, ok := open.chunk(), isLast && newest
		if !isLast && i < len(open.places) {
			c, ok = s.head.mapped(open.places[i], s.order.refs[s.at], meta)
		}
		if !ok {
			chunk := last
			if !isLast {
				if chunk, err = s.head.chunk(meta); err != nil {
					return err
				}
			}
			c = series.Chunk{MinMS: meta.MinTime, MaxMS: meta.MaxTime, Encoding: chunk.Encoding(), Data: chunk.Bytes()}
			if c.MaxMS == math.MaxInt64 { // the head has begun another chunk since metas were read
				for all := chunk.Iterator(nil); all.Next() != chunkenc.ValNone; {
					c.MaxMS = all.AtT()
				}
			}
		}
		of := visible
		if i < n-1 {
			of = nil
		}
		if err := s.add(c, meta.MaxTime == math.MaxInt64, of); err != nil {
			return fmt.Errorf("chunk %d: %w", meta.Ref, err)
		}
	}
	return nil
}

// add appends a chunk without what the range and deletions remove. open means that the head still appends to it.
// visible has its visible samples; nil: all are.
func (s *headSet) add(c series.Chunk, open bool, visible chunkenc.Iterator) (err error) {
	ok := true
	switch overlapped := s.overlapping(c, open); {
	case visible != nil:
		c, ok, err = s.cutIterator(visible, c)
	case overlapped:
		c, ok, err = s.cut(c)
	}
	if ok && err == nil {
		s.chunks = append(s.chunks, c)
	}
	return err
}

// chunk returns a chunk of the head. The head may append to the last one of a series.
func (h *rawHead) chunk(meta chunks.Meta) (chunkenc.Chunk, error) {
	chunk, iterable, err := h.chunks.ChunkOrIterable(meta)
	if err == nil && (chunk == nil || iterable != nil) {
		err = errors.New("samples in order are not in one chunk")
	}
	if err != nil {
		err = fmt.Errorf("chunk %d: %w", meta.Ref, err)
	}
	return chunk, err
}

// overlapping collects the intervals that overlap a chunk, and reports whether there are any.
// open means that the head still appends to the chunk. For Prometheus such a chunk has no
// end, so Prometheus always re-encodes it. An XOR chunk has the same bytes afterwards. Chunks
// of other encodings may differ in hints, so overlapping treats them as Prometheus does.
func (s *headSet) overlapping(c series.Chunk, open bool) bool {
	if open && c.Encoding != chunkenc.EncXOR {
		c.MaxMS = math.MaxInt64
	}
	return s.overlap(c)
}
