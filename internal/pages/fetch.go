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

// Fetch makes the pages of the spans present, for reads that follow soon. Missing pages
// near each other are read by one request, and the requests run in parallel. It does not
// wait for free pages: what finds none is read when it is used.
func (o *Object) Fetch(ctx context.Context, spans []Span) error {
	runs := o.cache.plan(o, o.numbers(spans))
	if len(runs) == 0 {
		return ctx.Err()
	}
	if len(runs) == 1 {
		return o.read(ctx, runs[0])
	}
	slots := make(chan struct{}, o.cache.opts.Parallel)
	errs := make([]error, len(runs))
	var all sync.WaitGroup
	for i, r := range runs {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			errs[i] = o.read(ctx, r)
		})
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
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
	slots []int32 // -1: the page is not kept
}

// plan joins the missing pages into runs, for which it reserves slots. Reading the pages
// in a gap is cheaper than another request, up to GapBytes.
func (c *Cache) plan(o *Object, numbers []int64) []run {
	c.mu.Lock()
	defer c.mu.Unlock()
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
		runs = append(runs, run{number, []int32{i}})
	}
	return runs
}

// read reads a run into its slots. A page that could not be read is no longer present.
func (o *Object) read(ctx context.Context, r run) error {
	c := o.cache
	done := 0 // pages that were read
	var err error
	pause := c.opts.Pause
	for attempt := 1; ; attempt++ {
		if err = o.attempt(ctx, r, &done); err == nil {
			c.retries.earn()
			return nil
		}
		if ctx.Err() != nil || attempt >= c.opts.Attempts || errors.Is(err, ErrShort) || c.opts.Permanent(err) || !c.retries.spend() {
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
	for _, i := range r.slots[done:] {
		if i >= 0 {
			c.loaded(i, err)
		}
	}
	return err
}

// attempt reads the pages of a run from done on.
func (o *Object) attempt(ctx context.Context, r run, done *int) error {
	c := o.cache
	from := (r.first + int64(*done)) * Bytes
	to := min((r.first+int64(len(r.slots)))*Bytes, o.size)
	c.counts.requests.Inc()
	body, err := o.from.GetRange(ctx, o.name, from, to-from)
	if err != nil {
		return fmt.Errorf("object %s: bytes %d to %d: %w", o.name, from, to, err)
	}
	defer body.Close()
	buf := buffers.Get()
	defer buffers.Put(buf)
	page := (*buf)[:Bytes]
	for ; *done < len(r.slots); *done++ {
		part := page[:o.pageSize(r.first+int64(*done))]
		n, err := io.ReadFull(body, part)
		c.counts.fetched.Add(n)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = fmt.Errorf("%w: %w", ErrShort, err)
		}
		i := r.slots[*done]
		if err == nil && i >= 0 {
			_, err = c.file.WriteAt(part, int64(i)*Bytes)
		}
		if err != nil {
			return fmt.Errorf("object %s: bytes %d to %d: %w", o.name, from, to, err)
		}
		if i >= 0 {
			c.loaded(i, nil)
		}
	}
	return nil
}

var buffers = bufpool.New(Bytes, Bytes)

// budget limits repeated requests to a part of the successful ones, so that a bucket that
// is overloaded does not get a multiple of the load.
type budget struct {
	mu    sync.Mutex
	cents int
}

// A success earns a tenth of a repeated request, and hundred are kept at most.
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
