package fanout

import (
	"context"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/invariant"
	"github.com/ferula-io/ferula/internal/series"
)

// Sizes of the read-ahead of one store. A page is a batch of series.
const (
	aheadPages     = 64
	aheadPageBytes = 64 << 10
	aheadSeries    = 1024    // of a page
	aheadChunks    = 4096    // of a page; a chunk without data takes 48 bytes
	smallPageBytes = 4 << 10 // a page that grows beyond it is replaced by a pooled one

	neededPages = 2         // the page that is filled and the page that is consumed; only further pages are ahead
	neededBytes = 512 << 10 // usual size of neededPages pages and of the messages of a store
)

// pagePool has pages of the full size. Without the pool each page would grow from nothing, and a querier of many
// stores would allocate several times the bytes that it forwards. Pages of small responses are not from the pool, so
// that a request to hundreds of stores with a few series each does not hold a full page for each store.
var pagePool = sync.Pool{New: func() any {
	return &page{pooled: true, bytes: make([]byte, 0, aheadPageBytes+aheadPageBytes/4)}
}}

// readAheadSet is a set that a goroutine reads ahead: up to aheadPages batches of series wait for
// the consumer. The labels and chunks of the current series are valid until the consumer takes the
// next page, because then the current page is reused.
type readAheadSet struct {
	pages chan *page    // filled, in order; closed when the set has ended
	free  chan *page    // consumed, for reuse
	done  chan struct{} // closed when the goroutine has ended
	set   series.Set    // belongs to the goroutine until done is closed

	budget   *budget
	granted  atomic.Int64  // bytes of all pages
	counted  atomic.Int64  // pages for which the budget has granted bytes
	returned chan struct{} // has an element once the consumer has returned the bytes of a page

	page *page // that the consumer reads; nil: none, or the end
	i    int   // index of the current series in page
	err  error // set before pages is closed
}

type page struct {
	bytes   []byte // labels and chunks; slices of it stay valid if it is reallocated
	chunks  []series.Chunk
	series  []pageSeries
	granted int64 // bytes that the budget has granted
	pooled  bool  // it is from pagePool
}

type pageSeries struct {
	labels []byte
	chunks []series.Chunk
}

const pageSeriesBytes = int64(unsafe.Sizeof(pageSeries{}))

// readAhead starts a goroutine that reads a set until the end of the set or of ctx. named adds the name of the store
// to an error, panicked makes an error from a panic. The pages count against the budget until close. Until the goroutine ends, takeFree leaves neededBytes
// of the budget free for this set.
func readAhead(ctx context.Context, set series.Set, budget *budget, named func(error) error,
	panicked func(p any) error) *readAheadSet {
	a := &readAheadSet{pages: make(chan *page, aheadPages), free: make(chan *page, aheadPages+2),
		done: make(chan struct{}), returned: make(chan struct{}, 1), set: set, budget: budget}
	budget.keepFree(neededBytes)
	go func() {
		defer close(a.done)
		defer budget.keepFree(-neededBytes)
		defer close(a.pages)
		defer func() {
			if p := recover(); p != nil {
				a.err = panicked(p)
			}
		}()
		a.err = a.read(ctx, named)
	}()
	return a
}

// close waits for the goroutine, whose context has ended, and releases the pages. The current series must not be
// used any more.
func (a *readAheadSet) close() {
	<-a.done
	a.page.release()
	a.page = nil
	for p := range a.pages {
		p.release()
	}
	for len(a.free) > 0 {
		(<-a.free).release()
	}
	a.budget.release(a.granted.Swap(0))
}

// grant takes the memory of page p from the budget.
//
// If the set has fewer than neededPages other pages, the merge may be waiting for p, so grant waits until other queries
// release memory. If the set has more pages, it is ahead of the merge. Then grant takes memory only if it is free.
// Otherwise it waits until the merge has read an earlier page of this set, and reuses the memory of this earlier page.
//
// If a set that is ahead waited for the budget, too, the sets that are ahead could take all memory. The merge would
// then wait for a page of another set, which could get no memory before the merge continues.
func (a *readAheadSet) grant(ctx context.Context, p *page) error {
	for {
		n := p.size() - p.granted
		if n <= 0 {
			return nil
		}
		others := a.counted.Load()
		if p.granted > 0 {
			others--
		}
		if others < neededPages {
			if err := a.budget.take(ctx, n); err != nil {
				return err
			}
			a.count(p, n)
			return nil
		}
		if a.budget.takeFree(n) {
			a.count(p, n)
			return nil
		}
		select {
		case free := <-a.free:
			a.replace(free, p)
		case <-a.returned:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// count records n bytes that the budget has granted for a page.
func (a *readAheadSet) count(p *page, n int64) {
	if p.granted == 0 {
		a.counted.Add(1)
	}
	p.granted += n
	a.granted.Add(n)
}

// uncount returns n bytes of a page to the budget.
func (a *readAheadSet) uncount(p *page, n int64) {
	if n <= 0 {
		return
	}
	if p.granted -= n; p.granted == 0 {
		a.counted.Add(-1)
	}
	a.granted.Add(-n)
	a.budget.release(n)
}

// replace moves the granted bytes of the page free to page p, and returns the bytes that p does not need to the budget.
func (a *readAheadSet) replace(free, p *page) {
	if free.granted > 0 && p.granted > 0 {
		a.counted.Add(-1)
	}
	p.granted, free.granted = p.granted+free.granted, 0
	free.release()
	a.uncount(p, p.granted-p.size())
}

// read copies the series of a.set into pages and sends the pages to a.pages. It waits while a.pages is full, or
// while there is no memory for a page. It returns the error of the set or of ctx.
func (a *readAheadSet) read(ctx context.Context, named func(error) error) error {
	p := &page{}
	for n := 0; a.set.Next(); n++ {
		p = p.add(a.set.Labels(), a.set.Chunks())
		// The first series is sent in a page of its own, because the merge waits for the first series of every store.
		if n > 0 && len(p.bytes) < aheadPageBytes && len(p.series) < aheadSeries && len(p.chunks) < aheadChunks {
			continue
		}
		if err := a.grant(ctx, p); err != nil {
			return named(err)
		}
		select {
		case a.pages <- p:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case free := <-a.free:
			p = free
			p.clear()
		default:
			p = p.next()
		}
	}
	if len(p.series) > 0 {
		select {
		case a.pages <- p:
			return a.set.Err()
		case <-ctx.Done():
			a.free <- p
			if err := a.set.Err(); err != nil {
				return err
			}
			return named(context.Cause(ctx)) // the series of p are lost, although the store has sent them all
		}
	}
	a.free <- p // the channel has capacity for all pages
	return a.set.Err()
}

// add appends a copy of a series. It returns p, or a page from the pool with the same series if p has become too
// large for a small page. Slices of p stay valid.
func (p *page) add(lset []byte, chunks []series.Chunk) *page {
	size := len(p.bytes) + len(lset)
	for i := range chunks {
		size += len(chunks[i].Data)
	}
	if size > smallPageBytes && size > cap(p.bytes) && !p.pooled {
		large := pagePool.Get().(*page)
		large.bytes, large.chunks, large.series = append(large.bytes, p.bytes...), append(large.chunks, p.chunks...),
			append(large.series, p.series...)
		large.granted = p.granted
		p = large
	}
	own := func(b []byte) []byte {
		start := len(p.bytes)
		p.bytes = append(p.bytes, b...)
		return p.bytes[start:len(p.bytes):len(p.bytes)]
	}
	s := pageSeries{labels: own(lset)}
	start := len(p.chunks)
	for _, c := range chunks {
		c.Data = own(c.Data)
		p.chunks = append(p.chunks, c)
	}
	s.chunks = p.chunks[start:len(p.chunks):len(p.chunks)]
	p.series = append(p.series, s)
	return p
}

// size returns the bytes that a page takes.
func (p *page) size() int64 {
	return int64(cap(p.bytes)) + int64(cap(p.chunks))*chunkBytes + int64(cap(p.series))*pageSeriesBytes
}

// next returns an empty page. It is from the pool if p is from the pool.
func (p *page) next() *page {
	if p.pooled {
		return pagePool.Get().(*page)
	}
	return &page{bytes: make([]byte, 0, smallPageBytes)}
}

// clear empties the page for reuse. With -tags invariants it overwrites the bytes, so that tests detect slices that
// are used after their page was reused.
func (p *page) clear() {
	if invariant.Enabled {
		for i := range p.bytes {
			p.bytes[i] = 0xDB
		}
	}
	clear(p.chunks) // a chunk may alias an array that p.bytes has outgrown
	clear(p.series)
	p.bytes, p.chunks, p.series = p.bytes[:0], p.chunks[:0], p.series[:0]
}

// large reports whether a page has grown far beyond aheadPageBytes, because one series was long. Such a page is not
// reused.
func (p *page) large() bool {
	return cap(p.bytes) > 4*aheadPageBytes || cap(p.chunks) > 4*aheadChunks
}

// release returns the page to the pool unless it is small or large.
func (p *page) release() {
	if p == nil || !p.pooled || p.large() {
		return
	}
	p.clear()
	p.granted = 0
	pagePool.Put(p)
}

// Next implements series.Set.
func (a *readAheadSet) Next() bool {
	if a.i++; a.page != nil && a.i < len(a.page.series) {
		return true
	}
	if a.page != nil {
		if !a.page.large() {
			a.free <- a.page // the channel has capacity for all pages
		} else {
			a.uncount(a.page, a.page.granted)
			select {
			case a.returned <- struct{}{}:
			default:
			}
		}
		a.page = nil
	}
	var more bool
	a.page, more = <-a.pages
	a.i = 0
	return more
}

// Labels implements series.Set.
func (a *readAheadSet) Labels() []byte { return a.page.series[a.i].labels }

// Chunks implements series.Set.
func (a *readAheadSet) Chunks() []series.Chunk { return a.page.series[a.i].chunks }

// ended reports whether the goroutine has ended; before that the set must not be used.
func (a *readAheadSet) ended() bool {
	select {
	case <-a.done:
		return true
	default:
		return false
	}
}

// Err implements series.Set.
func (a *readAheadSet) Err() error {
	if a.page == nil { // a.err is set before pages is closed
		return a.err
	}
	return nil
}

// Warnings implements series.Set. There are none while the goroutine still reads.
func (a *readAheadSet) Warnings() annotations.Annotations {
	if a.page == nil {
		<-a.done
	}
	if !a.ended() {
		return nil
	}
	return a.set.Warnings()
}
