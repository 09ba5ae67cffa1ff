package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/splice"
	"github.com/ferula-io/ferula/internal/frontend/split"
	"github.com/ferula-io/ferula/promjson"
)

// queryRange answers a range query from parts. What cannot be cut is passed
// through whole.
func (f *Frontend) queryRange(x *requestContext) error {
	q := x.query
	if f.opts.PartialResponse != "" && !q.params.Has("partial_response") {
		q.params.Set("partial_response", f.opts.PartialResponse)
	}
	r, err := q.rangeOf()
	if err != nil {
		return f.passThrough(x, q)
	}
	if f.opts.AlignWithStep {
		if q, r, err = q.aligned(r.StepMS); err != nil {
			return f.passThrough(x, x.query)
		}
	}
	if err := f.opts.Limits.CheckRange(r.StartMS, r.EndMS, r.StepMS); err != nil {
		return err
	}
	shape, ok := split.TraitsOf(f.parser, q.params.Get("query"))
	if !ok || shape.Unsplittable || !splittable(q) || f.unsorted.isUnsorted(q.key()) {
		return f.passThrough(x, q)
	}
	if q, ok = q.asJSON(); !ok {
		return f.passThrough(x, q)
	}
	useCache := f.opts.Cache != nil && !hasNoStore(x.r.Header)
	err = f.respondFromParts(x, q, r, shape, useCache)
	if errors.Is(err, errCacheLost) && !x.response.begun() {
		f.opts.Logger.Warn("a kept answer could not be read; asking for everything", "err", err)
		x.response.reset()
		x.cache = cacheState(0, 1)
		err = f.respondFromParts(x, q, r, shape, false)
	}
	return err
}

// errCacheLost says that a kept answer could not be read to its end.
var errCacheLost = errors.New("kept answer is lost")

// answerParts plans, fetches and puts together.
func (f *Frontend) respondFromParts(x *requestContext, q query, r split.Range, shape split.Traits, useCache bool) error {
	plan := f.plan(x, q, r, shape, useCache)
	if len(plan.parts) == 1 && plan.parts[0].cached == nil && plan.parts[0].writer == nil {
		// One part that nobody keeps: nothing to put together.
		return f.passThrough(x, q)
	}
	err := f.fetchAndSplice(x, plan)
	if errors.Is(err, promjson.ErrUnsorted) {
		// The downstream's order is not known here: this query is not cut again.
		f.unsorted.remember(q.key())
		f.opts.Logger.Info("downstream answers are not sorted; the query is no longer split", "query", q.params.Get("query"))
		if !x.response.begun() {
			x.response.reset()
			return f.passThrough(x, q)
		}
	}
	return err
}

// cuttable tells whether a request wants nothing that parts could not give: the
// first N series of the whole, or how the whole was evaluated.
func splittable(q query) bool {
	if limit := q.params.Get("limit"); limit != "" && limit != "0" {
		return false
	}
	for _, name := range []string{"analyze", "trace"} {
		if value := q.params.Get(name); value != "" && !isFalse(value) {
			return false
		}
	}
	return q.params.Get("stats") == "" // Prometheus gives them for any value
}

func isFalse(text string) bool {
	value, err := strconv.ParseBool(text)
	return err == nil && !value
}

// plan is how a range query is put together, in the order of time.
type plan struct {
	parts []planPart
	query query
}

// planPart is one part: cached, or to be fetched and maybe kept.
type planPart struct {
	split.Range
	cached Extent
	writer   CacheWriter
}

// giveUp lets go of what a part holds that is not opened or not kept.
func (p *planPart) release() {
	if p.writer != nil {
		p.writer.Abort()
		p.writer = nil
	}
	if p.cached != nil {
		p.cached.Release()
		p.cached = nil
	}
}

// opened is a part of a plan on its way into a splice.
type openedPart struct {
	planPart
	body io.ReadCloser        // nil until it has begun
	resp *downstream.Response // nil for a cached part
	err  error
}

// splicePart is an opened part as the splice takes it.
func (o *openedPart) splicePart() splice.Part {
	switch {
	case o.resp == nil:
		return splice.Part{Body: o.body, Cut: true, FromMS: o.StartMS, ToMS: o.EndMS}
	case o.writer != nil:
		return splice.Part{Body: io.TeeReader(o.body, o.writer), FromMS: o.StartMS, StepMS: o.StepMS}
	default:
		return splice.Part{Body: o.body}
	}
}

// fetchAndSplice opens all parts at once and lays them end to end.
func (f *Frontend) fetchAndSplice(x *requestContext, p plan) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	since := f.opts.Now()
	parts := make([]openedPart, len(p.parts))
	for i, part := range p.parts {
		parts[i].planPart = part
	}
	defer closeAll(parts)
	fetches, lost := f.openCached(ctx, parts)
	if lost > 0 {
		x.cache = cacheState(len(parts)-fetches, fetches)
	}
	if fetches > f.opts.Parallelism {
		return fmt.Errorf("%w, %d parts in all", errCacheLost, fetches)
	}
	free, err := f.slots(x, fetches)
	if err != nil {
		return err
	}
	defer free(fetches)
	defer closeAll(parts) // connections end before their slots do
	failed := f.openAll(ctx, p.query, parts, free)
	x.stage("fetch", since)
	if failed != nil && failed.err != nil {
		return failed.err
	}
	if failed != nil {
		return f.relay(x, failed.resp)
	}
	return f.spliceParts(x, parts)
}

// spliceParts lays parts end to end that have begun, and keeps what may be kept.
func (f *Frontend) spliceParts(x *requestContext, parts []openedPart) error {
	s := f.splices.get()
	defer f.splices.put(s)
	list := make([]splice.Part, len(parts))
	for i := range parts {
		list[i] = parts[i].splicePart()
	}
	notes, err := s.Write(x.response, list)
	if err != nil {
		return f.partFailed(err)
	}
	if err := x.response.close(); err != nil {
		return err
	}
	if cacheable(notes) {
		for i, o := range parts {
			if o.writer != nil && s.StepAligned(i) && !noStore(o.resp) {
				o.writer.Commit()
				parts[i].writer = nil
			}
		}
	}
	return nil
}

func noStore(resp *downstream.Response) bool {
	return resp != nil && hasNoStore(resp.Header)
}

// slots waits for n calls of the downstream, all at once: who holds some of them
// and waits for others would hold up those who do the same.
func (f *Frontend) slots(x *requestContext, n int) (free func(int), err error) {
	if f.opts.Slots == nil || n == 0 {
		return func(int) {}, nil
	}
	since := f.opts.Now()
	free, err = f.opts.Slots.AcquireN(x.r.Context(), x.query.tenant, n)
	x.stage("slots", since)
	return free, err
}

// openCached opens the parts that are cached. One that is lost, or does not come in
// time, is to be fetched like any other: fetches counts all that are to be fetched.
func (f *Frontend) openCached(ctx context.Context, parts []openedPart) (fetches, lost int) {
	var wg sync.WaitGroup
	cached := 0
	for i := range parts {
		o := &parts[i]
		if o.cached == nil {
			continue
		}
		cached++
		wg.Go(func() {
			kept, err := o.cached.Open(ctx)
			o.cached = nil
			if err != nil {
				f.opts.Logger.Warn("a cached part could not be read and is fetched", "err", err)
				return
			}
			o.body = cachedBody{kept}
		})
	}
	wg.Wait()
	for i := range parts {
		if parts[i].body == nil {
			fetches++
		}
	}
	return fetches, cached - (len(parts) - fetches)
}

// openAll asks for all parts that are not open at once, waits until each answer has
// begun, and reads ahead meanwhile. When one fails the others are given up at once,
// and it is returned: with an error, or with an answer that is not a success.
func (f *Frontend) openAll(ctx context.Context, q query, parts []openedPart, free func(int)) (failed *openedPart) {
	barrier := make(chan struct{})
	cancels := make([]context.CancelFunc, len(parts))
	ctxs := make([]context.Context, len(parts))
	var first sync.Once
	var begun sync.WaitGroup
	for i := range parts {
		if parts[i].body == nil {
			ctxs[i], cancels[i] = context.WithCancel(ctx)
		}
	}
	for i := range parts {
		o := &parts[i]
		if o.body != nil {
			continue
		}
		begun.Add(1)
		go func() { // ends before Close of the body it opens
			o.err = f.openPart(ctxs[i], q, o, free)
			ahead, ok := o.body.(*readAheadBody)
			if !ok {
				first.Do(func() {
					failed = o
					for other, cancel := range cancels {
						if other != i && cancel != nil {
							cancel()
						}
					}
				})
			}
			begun.Done()
			if ok {
				ahead.fill(barrier)
			}
		}()
	}
	begun.Wait()
	close(barrier)
	return failed
}

// openPart gets the beginning of a part's answer. Its body is read ahead if it is a
// success.
func (f *Frontend) openPart(ctx context.Context, q query, o *openedPart, free func(int)) error {
	resp, err := f.opts.Downstream.Open(ctx, q.withRange(o.StartMS, o.EndMS).request(f.opts.RangeRetries))
	if err != nil {
		return err
	}
	o.resp, o.body = resp, resp.Body
	if resp.Status == http.StatusOK {
		o.body = newReadAheadBody(resp.Body, f.readAheadBudget, func() { free(1) })
	}
	return nil
}

// keptBody marks failures of a kept answer as the cache's.
type cachedBody struct{ io.ReadCloser }

func (b cachedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCacheLost, err)
	}
	return n, err
}

// request is the query as the downstream client takes it.
func (q query) request(retries int) downstream.Request {
	return downstream.Request{Path: q.path, Params: q.params, Header: q.header, Retries: retries}
}

// closeAll lets go of all that parts hold. It may be called again.
func closeAll(parts []openedPart) {
	for i := range parts {
		o := &parts[i]
		o.planPart.release()
		if o.body != nil {
			_ = o.body.Close() // what is left of it is not wanted
			o.body = nil
		}
	}
}

// partFailed turns a failure of a splice into what the client is told: an
// answer's own error keeps its kind and text.
func (f *Frontend) partFailed(err error) error {
	var said *promjson.APIError
	if !errors.As(err, &said) || said.Status != "error" {
		return err
	}
	status := map[string]int{
		"bad_data": http.StatusBadRequest, "execution": http.StatusUnprocessableEntity, "canceled": 499,
		"timeout": http.StatusServiceUnavailable, "not_found": http.StatusNotFound,
	}[said.Type]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return &statusError{status, said.Type, errors.New(said.Message)}
}

// splicePool lends splices, whose scanners and buffers are worth keeping.
type splicePool struct{ pool sync.Pool }

func (p *splicePool) get() *splice.Splice {
	if s, ok := p.pool.Get().(*splice.Splice); ok {
		return s
	}
	return splice.New(splice.Options{})
}

func (p *splicePool) put(s *splice.Splice) { p.pool.Put(s) }
