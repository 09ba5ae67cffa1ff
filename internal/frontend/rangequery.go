package frontend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/promjson"
)

// queryRange responds to a range query from its parts. A query that cannot be split is
// passed through.
func (f *Frontend) queryRange(x *requestContext) error {
	q := x.query
	if f.opts.PartialResponse != "" && !q.params.Has("partial_response") {
		q.params.Set("partial_response", f.opts.PartialResponse)
	}
	if err := q.checkRange(f.opts.Limits); err != nil {
		return err
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
	traits, ok := traitsOf(f.parser, q.params.Get("query"))
	if _, unsorted := f.unsorted.get(q.key()); !ok || traits.Unsplittable || !splittable(q) || unsorted {
		return f.passThrough(x, q)
	}
	if q, ok = q.asJSON(); !ok {
		return f.passThrough(x, q)
	}
	useCache := f.opts.Cache != nil && !downstream.HasNoStore(x.r.Header)
	err = f.respondFromParts(x, q, r, traits, useCache)
	if errors.Is(err, errCacheLost) && !x.response.begun() {
		f.opts.Logger.Warn("Failed to read from the cache: fetching all parts", "err", err)
		x.response.reset()
		x.cache = cacheState(0, 1)
		err = f.respondFromParts(x, q, r, traits, false)
	}
	return err
}

// errCacheLost means that a cached response could not be read to its end.
var errCacheLost = errors.New("cached response is lost")

// respondFromParts plans a range query, fetches its parts and splices them.
func (f *Frontend) respondFromParts(x *requestContext, q query, r stepRange, traits exprTraits,
	useCache bool) error {
	plan := f.plan(x, q, r, traits, useCache)
	if len(plan.parts) == 1 && plan.parts[0].cached == nil && plan.parts[0].writer == nil && !f.repeatsDownsampled(q) {
		// One part that is not cached: there is nothing to splice.
		return f.passThrough(x, q)
	}
	responded, err := f.respondFromCache(x, plan)
	if !responded {
		err = f.fetchAndSplice(x, plan)
	}
	if errors.Is(err, promjson.ErrUnsorted) || errors.Is(err, promjson.ErrOverlap) {
		// Parts that are not sorted by labels, or have points of other parts, cannot be
		// merged: do not split this query again.
		f.unsorted.put(q.key(), struct{}{})
		f.opts.Logger.Info("Downstream responses cannot be joined: this query is no longer split", "query",
			q.params.Get("query"), "err", err)
		if !x.response.begun() {
			x.response.reset()
			return f.passThrough(x, q)
		}
	}
	return err
}

// splittable reports whether the response can be built from parts. It cannot if the
// request limits the number of series, or requests statistics, an analysis or a trace of
// the whole evaluation.
func splittable(q query) bool {
	if limit := q.params.Get("limit"); limit != "" && limit != "0" {
		return false
	}
	for _, name := range []string{"analyze", "trace"} {
		if value := q.params.Get(name); value != "" && !isFalse(value) {
			return false
		}
	}
	return q.params.Get("stats") == "" // Prometheus returns statistics for any value
}

func isFalse(param string) bool {
	value, err := strconv.ParseBool(param)
	return err == nil && !value
}

// plan is the list of a range query's parts, in order of time.
type plan struct {
	parts []planPart
	query query
}

// planPart is one part of a plan. It is either cached, or fetched and, if writer is not
// nil, written to the cache.
type planPart struct {
	stepRange
	cached *cache.Extent
	writer *cache.Writer
}

// release aborts the cache writer and releases the extent, if the part still has them.
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

// openedPart is a part of a plan with its response.
type openedPart struct {
	planPart
	body io.ReadCloser        // nil until the response has begun
	resp *downstream.Response // nil for a cached part
	err  error

	empty   [][]byte // responses without points that resp replaces
	noStore bool     // one of these responses has no-store
}

// splicePart returns the part as Splice.Write takes it. Points outside the range of a cached part
// are cut off. The bytes of a part with a writer are also written to the cache as they are read.
func (o *openedPart) splicePart() splicePart {
	switch {
	case o.resp == nil:
		return splicePart{Body: o.body, Cut: true, StartMS: o.StartMS, EndMS: o.EndMS}
	case o.writer != nil:
		return splicePart{Body: io.TeeReader(o.body, o.writer), StartMS: o.StartMS, StepMS: o.StepMS}
	default:
		return splicePart{Body: o.body}
	}
}

// fetchAndSplice opens all parts at once and writes the spliced response.
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
	defer closeAll(parts) // close connections before their slots are released
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

// spliceParts splices parts whose responses have begun. Then it commits the cache writers of complete responses.
func (f *Frontend) spliceParts(x *requestContext, parts []openedPart) error {
	s := f.splices.Get().(*splicing)
	defer f.splices.Put(s)
	list := make([]splicePart, len(parts))
	for i := range parts {
		list[i] = parts[i].splicePart()
	}
	for i := range parts {
		for _, response := range parts[i].empty { // for their warnings
			list = append(list, splicePart{Body: bytes.NewReader(response)})
		}
	}
	x.splicing = f.opts.Now()
	annotations, err := s.Write(x.response, list)
	x.stage("splice", x.splicing)
	x.splicing = time.Time{}
	if x.response.begun() { // the header has the time until the first byte only
		x.w.Header().Set(http.TrailerPrefix+"Server-Timing", x.timing())
	}
	if err != nil {
		return f.partFailed(err)
	}
	if err := x.response.close(); err != nil {
		return err
	}
	if cacheable(annotations) {
		for i, o := range parts {
			if o.writer != nil && s.StepAligned(i) && !o.noStore && (o.resp == nil || !o.resp.NoStore()) {
				o.writer.Commit()
				parts[i].writer = nil
			}
		}
	}
	return nil
}

// slots waits for n downstream slots, all at once. Requests that hold some slots while
// they wait for others could deadlock.
func (f *Frontend) slots(x *requestContext, n int) (free func(int), err error) {
	if f.opts.Slots == nil || n == 0 {
		return func(int) {}, nil
	}
	since := f.opts.Now()
	free, err = f.opts.Slots.AcquireN(x.r.Context(), x.query.tenant, n)
	x.stage("slots", since)
	return free, err
}

// openCached opens the cached parts. A part that the cache has lost, or does not return in time, must be fetched.
// fetches is the number of all parts to fetch. lost is the number of cached parts among them.
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
			body, err := o.cached.Open(ctx)
			o.cached = nil
			if err != nil {
				f.opts.Logger.Warn("Failed to open a cached part: fetching it", "err", err)
				return
			}
			o.body = cachedBody{body}
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

// openAll sends the requests of all parts that are not open, all at once. It waits until every response has begun.
// Until then it reads ahead from the responses that have begun. When one part fails, openAll cancels the others and
// returns the failed part, with an error or with an error response.
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
		go func() { // Close of the readAheadBody waits until fill has returned
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

// openPart requests a part and returns when its response has begun. A success gets a
// readAheadBody.
func (f *Frontend) openPart(ctx context.Context, q query, o *openedPart, free func(int)) error {
	resp, err := f.opts.Downstream.Open(ctx, q.withRange(o.StartMS, o.EndMS).request(f.opts.RangeRetries))
	if err != nil {
		return err
	}
	o.resp, o.body = resp, resp.Body
	if f.repeatsDownsampled(q) {
		if err := f.repeatDownsampled(ctx, q, o); err != nil {
			return err
		}
	}
	if o.resp.Status == http.StatusOK {
		o.body = newReadAheadBody(o.body, f.readAheadBudget, func() { free(1) })
	}
	return nil
}

// cachedBody wraps read errors of a cached response in errCacheLost.
type cachedBody struct{ io.ReadCloser }

func (b cachedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: %w", errCacheLost, err)
	}
	return n, err
}

// request returns the downstream request of the query.
func (q query) request(retries int) downstream.Request {
	return downstream.Request{Path: q.path, Params: q.params, Header: q.header, Retries: retries}
}

// closeAll closes the bodies of parts and releases their cache writers and extents. It
// is idempotent.
func closeAll(parts []openedPart) {
	for i := range parts {
		o := &parts[i]
		o.planPart.release()
		if o.body != nil {
			_ = o.body.Close() // the rest of the response is not needed
			o.body = nil
		}
	}
}

// partFailed maps an error of a splice to the error that the client gets. An error response of the downstream keeps its
// errorType and message.
func (f *Frontend) partFailed(err error) error {
	var apiErr *promjson.APIError
	if !errors.As(err, &apiErr) || apiErr.Status != "error" {
		return err
	}
	status := map[string]int{
		"bad_data": http.StatusBadRequest, "execution": http.StatusUnprocessableEntity, "canceled": 499,
		"timeout": http.StatusServiceUnavailable, "not_found": http.StatusNotFound,
	}[apiErr.Type]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	return &statusError{status, apiErr.Type, errors.New(apiErr.Message)}
}
