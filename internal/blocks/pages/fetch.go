package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/bufpool"
)

// Span is a range of bytes of an object.
type Span struct{ Off, Len int64 }

// Fetch reads the missing pages of the spans into the cache before they are needed. Missing
// pages near each other are read by one request, and the requests run in parallel. Fetch does
// not wait for slots: a page for which there is no slot is read when a Reader needs it.
func (o *Object) Fetch(ctx context.Context, spans []Span) error {
	return o.Ahead(ctx, spans)()
}

// Ahead starts the requests of Fetch and returns a function that waits for their end. A page
// can be read as soon as it has arrived. If a request fails, a Reader of its pages sends
// another one.
func (o *Object) Ahead(ctx context.Context, spans []Span) (wait func() error) {
	runs := o.cache.plan(o, o.numbers(spans))
	if len(runs) == 0 {
		return ctx.Err
	}
	errs := make([]error, len(runs))
	next := make(chan int, len(runs))
	for i := range runs {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range min(len(runs), o.cache.opts.Parallel) {
		all.Go(func() {
			for i := range next {
				errs[i] = o.read(ctx, runs[i])
			}
		})
	}
	return func() error {
		all.Wait()
		for _, err := range errs {
			if err != nil {
				return err
			}
		}
		return nil
	}
}

// tailMax is the number of cached pages at the end of a copy that are not requested again.
const tailMax = 8

// Copy writes n bytes of the object, from offset off on, to w. It copies the cached pages at the beginning of the
// range, and up to tailMax cached pages at its end, from the cache. One request reads all pages between them, also
// those that are cached. A page that this request reads is cached only if it has bytes outside the range, because
// reads of the neighbouring ranges need it. At most the first and the last page of the range have such bytes.
func (o *Object) Copy(ctx context.Context, w io.Writer, off, n int64) error {
	if n <= 0 || off < 0 || off > o.size || n > o.size-off {
		return fmt.Errorf("object %s: %w: bytes %d to %d of %d", o.name, ErrShort, off, off+n, o.size)
	}
	first, last := off/Bytes, (off+n-1)/Bytes
	part := func(number int64) Span { // the bytes of a page that are copied
		from, to := max(off-number*Bytes, 0), min(off+n-number*Bytes, int64(o.pageSize(number)))
		return Span{from, to - from}
	}
	held := o.Reader()
	defer held.Release()
	// shared reports whether a page has bytes outside the range.
	shared := func(number int64) bool { return part(number).Len < int64(o.pageSize(number)) }
	write := func(number int64, page []byte) error {
		p := part(number)
		_, err := w.Write(page[p.Off : p.Off+p.Len])
		return err
	}
	for ; first <= last; first++ {
		page := held.cached(o, first)
		if page == nil {
			break
		}
		if err := write(first, page); err != nil {
			return err
		}
		held.Release()
	}
	var tail [][]byte // last page first
	for ; first <= last && len(tail) < tailMax; last-- {
		page := held.cached(o, last)
		if page == nil {
			break
		}
		tail = append(tail, page)
	}
	if first <= last {
		r := o.cache.planCopy(o, first, last, shared)
		r.sink = write
		if err := o.read(ctx, r); err != nil {
			return err
		}
	}
	for i, page := range slices.Backward(tail) {
		if err := write(last+int64(len(tail)-i), page); err != nil {
			return err
		}
	}
	return nil
}

// planCopy returns the run of the pages from first to last. It reserves slots for the missing pages for which keep
// returns true.
func (c *Cache) planCopy(o *Object, first, last int64, keep func(number int64) bool) run {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := run{first: first}
	for number := first; number <= last; number++ {
		i := int32(-1)
		if _, there := c.byKey[o.key(number)]; !there && keep(number) {
			i = c.reserve(o.key(number), o.pageSize(number))
		}
		r.slots = append(r.slots, i)
	}
	return r
}

// numbers returns the numbers of the pages that the spans touch, ascending.
func (o *Object) numbers(spans []Span) []int64 {
	var all []int64
	last := int64(-1)
	sorted := true
	for _, s := range spans {
		if s.Len <= 0 || s.Off < 0 || s.Off >= o.size {
			continue
		}
		to := (min(s.Off+s.Len, o.size) - 1) / Bytes
		for number := s.Off / Bytes; number <= to; number++ {
			if number == last {
				continue
			}
			sorted = sorted && number > last
			all, last = append(all, number), number
		}
	}
	if !sorted {
		slices.Sort(all)
		all = slices.Compact(all)
	}
	return all
}

// run is a range of pages that are read by one request.
type run struct {
	first int64
	slots []int32                               // -1: the page is not kept
	sink  func(number int64, page []byte) error // gets every page, in order; may be nil
}

// plan joins the missing pages into runs of up to RunBytes and reserves slots for them. A run also reads the pages of
// gaps of up to GapBytes, because that is cheaper than another request, but does not cache them. Once there is no slot,
// plan leaves out the remaining pages.
func (c *Cache) plan(o *Object, numbers []int64) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	var runs []run
	gapMax, runMax := c.opts.GapBytes/Bytes, max(c.opts.RunBytes/Bytes, 1)
	for _, number := range numbers {
		key := o.key(number)
		if i, ok := c.byKey[key]; ok {
			if s := &c.slots[i]; s.loading == nil && s.pins == 0 { // used soon, so evicted last
				c.recent.remove(c.slots, i)
				c.recent.push(c.slots, i)
			}
			continue
		}
		i := c.reserve(key, o.pageSize(number))
		if i < 0 {
			break
		}
		c.counts.misses.Inc()
		if n := len(runs); n > 0 {
			r := &runs[n-1]
			gap := number - r.first - int64(len(r.slots))
			if gap <= gapMax && number-r.first < runMax {
				for range gap {
					r.slots = append(r.slots, -1)
				}
				r.slots = append(r.slots, i)
				continue
			}
		}
		runs = append(runs, run{first: number, slots: []int32{i}})
	}
	return runs
}

// read reads a run into its slots, and repeats failed requests. If it returns an error, it has freed the slots of the
// pages that were not read.
func (o *Object) read(ctx context.Context, r run) error {
	c := o.cache
	done := 0 // pages that were read
	var err error
	pause := c.opts.Pause
	for attempt := 1; ; attempt++ {
		before := done
		if err = o.attempt(ctx, r, &done); err == nil {
			c.retries.earn()
			return nil
		}
		if done > before { // a long body may be cut off more often than there are attempts
			attempt, pause = 1, c.opts.Pause
		}
		if ctx.Err() != nil || attempt >= c.opts.Attempts || errors.Is(err, ErrShort) || errors.Is(err, errLocal) ||
			c.opts.Permanent(err) || !c.retries.spend() {
			break
		}
		c.counts.repeated.Inc()
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause *= 2
	}
	c.counts.failed.Inc()
	if errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrShort) {
		err = fmt.Errorf("%w: %w", ErrShort, err) // the object's actual size may differ from its known size
	}
	for _, i := range r.slots[done:] {
		if i >= 0 {
			c.loaded(i, err)
		}
	}
	return err
}

// attempt sends one request for the pages of a run that were not read yet, beginning with page number *done of the run.
// It increments *done for each page that it has read, also if it returns an error later.
func (o *Object) attempt(ctx context.Context, r run, done *int) (err error) {
	c := o.cache
	from := (r.first + int64(*done)) * Bytes
	to := min((r.first+int64(len(r.slots)))*Bytes, o.size)
	c.counts.requests.Inc()
	defer func() {
		if err != nil {
			err = fmt.Errorf("object %s: bytes %d to %d: %w", o.name, from, to, err)
		}
	}()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stalled := fmt.Errorf("%w: nothing has arrived for %s", ErrStalled, c.opts.Stall)
	arrived := time.AfterFunc(c.opts.Stall, func() { cancel(stalled) })
	defer arrived.Stop()
	body, err := o.from.GetRange(ctx, o.name, from, to-from)
	if err != nil {
		return stallOr(ctx, err)
	}
	defer body.Close()
	buf := buffers.Get()
	defer buffers.Put(buf)
	page := (*buf)[:Bytes]
	for ; *done < len(r.slots); *done++ {
		part := page[:o.pageSize(r.first+int64(*done))]
		n := 0
		for n < len(part) && err == nil {
			var some int
			some, err = body.Read(part[n:])
			n += some
			arrived.Reset(c.opts.Stall)
		}
		c.counts.fetched.Add(n)
		switch {
		case n == len(part):
			err = c.keep(r, *done, part)
		case errors.Is(err, io.EOF):
			// The object ends here: the bucket has sent the whole body. A body that is cut off ends
			// with another error, such as io.ErrUnexpectedEOF.
			err = fmt.Errorf("%w: %w", ErrShort, err)
		default:
			err = stallOr(ctx, err)
		}
		if err != nil {
			return err
		}
		if i := r.slots[*done]; i >= 0 {
			c.loaded(i, nil)
		}
	}
	return nil
}

// stallOr returns the cause of the cancellation if the request was canceled because it stalled, else err.
func stallOr(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, ErrStalled) {
		return cause
	}
	return err
}

// errLocal marks errors of the file of the cache and of a sink. Such a request is not repeated.
var errLocal = errors.New("local file")

// keep writes page n of a run to its slot and passes it to the sink, if it has them.
func (c *Cache) keep(r run, n int, page []byte) error {
	if i := r.slots[n]; i >= 0 {
		if _, err := c.file.WriteAt(page, int64(i)*Bytes); err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
	}
	if r.sink != nil {
		if err := r.sink(r.first+int64(n), page); err != nil {
			return fmt.Errorf("%w: %w", errLocal, err)
		}
	}
	return nil
}

var buffers = bufpool.New(Bytes, Bytes)

// budget limits repeated requests to a fraction of the successful ones, so that retries do
// not multiply the load of an overloaded bucket.
type budget struct {
	mu    sync.Mutex
	cents int // hundredths of a repeated request
}

// A success adds a tenth of a repeated request to the budget, which holds at most a hundred repeated
// requests.
const (
	budgetMax = 10_000
	retryCost = 100
	earned    = 10
)

func (b *budget) init() { b.cents = budgetMax }

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cents = min(b.cents+earned, budgetMax)
}

func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.cents < retryCost {
		return false
	}
	b.cents -= retryCost
	return true
}
