package gateway

import (
	"context"
	"sync"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/blocks/pages"
)

const (
	refsMax     = 16 << 10 // series whose entries are fetched together
	windowMin   = 2 << 20  // minimum bytes of the window of one block
	windowMax   = 32 << 20 // maximum bytes of the window of one block
	chunkGuess  = 1 << 10  // assumed bytes of a chunk whose end is not known
	releaseEach = 256      // entries that are read before their pages are released
)

// window is the read-ahead of a block: the series whose chunks were requested together. Every
// request to the bucket costs money and a round trip, so a window is as large as the page cache
// permits: the open blocks share half of the cache, but each window has windowMin to windowMax
// bytes. A page can be read as soon as it has arrived. A page is requested only if it has space in
// the cache, so it arrives even if the client does not read.
type window struct {
	bytes   func() int64   // returns the size of the next window
	end     int            // index in producer.refs after the last series of the window
	running sync.WaitGroup // requests that have not ended
	batch   batch          // for series that are decoded to see whether they match
}

// fetchEntries takes the next series from the postings and fetches their entries.
func (p *producer) fetchEntries(ctx context.Context) error {
	p.refs, p.at, p.ahead.end = p.refs[:0], 0, 0
	for len(p.refs) < refsMax && !p.ended {
		if p.ended = !p.postings.Next(); !p.ended {
			p.refs = append(p.refs, uint32(p.postings.At()))
		}
	}
	if err := p.postings.Err(); err != nil { // a list of excluded series that cannot be read excludes none
		return err
	}
	p.postings.release()
	p.spans = p.spans[:0]
	for i, ref := range p.refs {
		n := int64(entryBytes)
		if i+1 < len(p.refs) {
			n = min(max(n, int64(p.refs[i+1]-ref)*seriesAlign), pages.Bytes)
		}
		p.spans = appendSpan(p.spans, pages.Span{Off: int64(ref) * seriesAlign, Len: n})
	}
	return p.block.index.Fetch(ctx, p.spans)
}

// appendSpan appends a span, or extends the last span if less than a page lies between them.
func appendSpan(spans []pages.Span, s pages.Span) []pages.Span {
	if n := len(spans); n > 0 {
		last := &spans[n-1]
		if gap := s.Off - last.Off - last.Len; s.Off >= last.Off && gap < pages.Bytes {
			last.Len = max(last.Len, s.Off+s.Len-last.Off)
			return spans
		}
	}
	return append(spans, s)
}

// lookAhead requests the chunks of the next window, unless the next series is still within the
// current window. It returns how many of the next n series are within the window.
func (p *producer) lookAhead(ctx context.Context, n int) int {
	w := &p.ahead
	if w.end > p.at {
		return min(n, w.end-p.at)
	}
	var list spanList
	bytesMax, end := w.bytes(), len(p.refs)
	if p.side != nil {
		end = p.fetchGroups(ctx, bytesMax)
	}
	for w.end = p.at; w.end < end && list.bytes < bytesMax; w.end++ {
		if w.end%releaseEach == 0 {
			p.reader.Release()
		}
		if !p.look(ctx, p.refs[w.end], &list) { // the batch with this series returns the error
			w.end++
			break
		}
	}
	for number, spans := range list.bySegment {
		object, err := p.block.segment(uint64(number))
		if err != nil || len(spans) == 0 {
			continue // for an error: the batch with these series returns it
		}
		wait := object.Ahead(ctx, spans)
		p.slot.hold()
		w.running.Go(func() {
			defer p.slot.release()
			_ = wait() // a reader that misses a page requests it again, and gets the error
		})
	}
	return min(n, w.end-p.at)
}

// spanList has the spans of the chunks of a window, by segment.
type spanList struct {
	bySegment [][]pages.Span
	bytes     int64 // of their pages
}

func (l *spanList) add(c blocks.Chunk, bytes int64) {
	segment := int(c.Ref >> 32)
	for len(l.bySegment) <= segment {
		l.bySegment = append(l.bySegment, nil)
	}
	list := l.bySegment[segment]
	span := pages.Span{Off: int64(uint32(c.Ref)), Len: bytes}
	counted := span.Off/pages.Bytes - 1 // the last page that is counted
	if n := len(list); n > 0 && list[n-1].Off <= span.Off {
		counted = max(counted, (list[n-1].Off+list[n-1].Len-1)/pages.Bytes)
	}
	l.bytes += max((span.Off+span.Len-1)/pages.Bytes-counted, 0) * pages.Bytes
	l.bySegment[segment] = appendSpan(list, span)
}

// look adds the chunks of a series to a list. It reports whether it could read the series.
func (p *producer) look(ctx context.Context, ref uint32, into *spanList) bool {
	if len(p.onLabels) > 0 || p.side != nil { // most series may not match: their chunks are not requested
		b := &p.ahead.batch
		b.reset()
		if p.decode(ctx, ref, b) != nil {
			return false
		}
		for i, c := range b.chunks {
			next := uint64(0)
			if i+1 < len(b.chunks) {
				next = b.chunks[i+1].ref
			}
			p.lookAt(blocks.Chunk{Ref: c.ref}, next, into)
		}
		return true
	}
	body, err := p.entry(ctx, ref)
	if err != nil {
		return false
	}
	r := blocks.Varints{Src: body}
	r.SkipLabels()
	list := blocks.NewChunks(r)
	var last blocks.Chunk
	for some := false; ; some = true {
		more := list.Next()
		c := list.At()
		if some && last.MaxMS >= p.minMS && last.MinMS <= p.maxMS {
			next := uint64(0)
			if more {
				next = c.Ref
			}
			p.lookAt(last, next, into)
		}
		if !more || c.MinMS > p.maxMS {
			return list.Err() == nil
		}
		last = c
	}
}

// lookAt adds chunk c to a list. next is the reference of the chunk after c, which begins where
// c ends; 0: unknown.
func (p *producer) lookAt(c blocks.Chunk, next uint64, into *spanList) {
	if c.Ref>>32 >= uint64(len(p.block.segments)) {
		return // a summary, or corrupt: the batch returns the error
	}
	n := int64(chunkGuess)
	if gap := next - c.Ref; next > c.Ref && gap < pages.Bytes { // a summary is far behind all chunks
		n = int64(gap)
	}
	into.add(c, n)
}

// slot is the right of a producer to read. The capacity of gate limits the number of blocks
// that are read concurrently. A slot is held while a batch is read, and until requested
// chunks have arrived.
type slot struct {
	gate chan struct{} // nil: no limit
	mu   sync.Mutex
	uses int
}

// take adds a use to the slot. If the slot is not held, take waits until gate has capacity. If ctx
// is done first, take returns the cause of ctx.
func (s *slot) take(ctx context.Context) error {
	if s.gate == nil || s.hold() {
		return nil
	}
	select {
	case s.gate <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses++
	return nil
}

// hold adds a use to the slot if it is held. It reports whether the slot is held.
func (s *slot) hold() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses > 0 {
		s.uses++
	}
	return s.uses > 0
}

func (s *slot) release() {
	if s.gate == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.uses--; s.uses == 0 {
		<-s.gate
	}
}
