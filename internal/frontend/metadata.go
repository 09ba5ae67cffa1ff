package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/promjson"
)

// metadata responds to requests for label names, label values and series. It splits the
// range at the multiples of an interval, reads each part from the cache or the
// downstream, and writes the union. Parts are lists of strings or metric objects; all
// of them are held in memory, up to a limit.
func (f *Frontend) metadata(x *requestContext) error {
	o := f.opts.Labels
	q := x.query
	if o.PartialResponse != "" && !q.params.Has("partial_response") {
		q.params.Set("partial_response", o.PartialResponse)
	}
	startMS, endMS, err := q.bounds(f.opts.Now(), o.DefaultRange)
	if err != nil {
		return f.passThrough(x, x.query) // the downstream returns the error
	}
	q = q.withRange(startMS, endMS)
	useCache := f.opts.LabelCache != nil && !downstream.HasNoStore(x.r.Header)
	parts := f.listParts(startMS, endMS, useCache)
	if len(parts) == 1 && !parts[0].cached || !splittable(q) {
		return f.passThrough(x, q)
	}
	q, ok := q.asJSON()
	if !ok {
		return f.passThrough(x, q)
	}
	lists, hits, err := f.fetchLists(x, q, parts)
	if useCache {
		x.cache = cacheState(hits, len(parts)-hits)
	}
	var failed *downstreamError
	if errors.As(err, &failed) {
		return failed.statusError
	}
	if err != nil {
		return err
	}
	if err := writeUnion(x.response, lists); err != nil {
		return err
	}
	return x.response.close()
}

// listPart is one part of a request for labels or series.
type listPart struct {
	stepRange
	cached bool // look it up in the cache, and store it after a miss
}

// listParts splits [startMS, endMS], both inclusive, at the multiples of the interval. A part is
// cached if its list can no longer change and another request can have a part with the same bounds.
// With WholeIntervals, a part is extended to its whole interval if all data of the interval are
// older than MaxFreshness, so that it can be cached.
func (f *Frontend) listParts(startMS, endMS int64, useCache bool) []listPart {
	o := f.opts.Labels
	whole := stepRange{StartMS: startMS, EndMS: endMS, StepMS: 1}
	if o.Interval <= 0 {
		return []listPart{{stepRange: whole}}
	}
	unchangedMS := f.opts.Now().Add(-o.MaxFreshness).UnixMilli()
	interval := widen(whole, o.Interval, o.Parallelism)
	var parts []listPart
	for _, part := range splitAt(whole, interval) {
		p := listPart{stepRange: part.stepRange}
		if first := part.Index * interval.Milliseconds(); useCache && o.WholeIntervals && interval > 0 &&
			first+interval.Milliseconds()-1 <= unchangedMS {
			p.StartMS, p.EndMS = first, first+interval.Milliseconds()-1
		}
		p.cached = useCache && p.EndMS <= unchangedMS && f.requestedAgain(p.stepRange)
		parts = append(parts, p)
	}
	return parts
}

// requestedAgain reports whether another request may have a part with the same bounds. It returns true if each bound
// is the bound of a split interval or of a minute. Other bounds come from the time of the request and do not recur.
func (f *Frontend) requestedAgain(part stepRange) bool {
	const minute = 60_000
	length := f.opts.Labels.Interval.Milliseconds()
	atStart := part.StartMS%minute == 0 || part.StartMS%length == 0
	atEnd := part.EndMS%minute == 0 || (part.EndMS+1)%minute == 0 || (part.EndMS+1000)%minute == 0 ||
		(part.EndMS+1)%length == 0
	return atStart && atEnd
}

// downstreamError is an error response of the downstream. The client gets its status.
type downstreamError struct{ *statusError }

// fetchLists reads the lists of all parts at once. hits is the number of cached ones.
func (f *Frontend) fetchLists(x *requestContext, q query, parts []listPart) (lists []elementList, hits int, err error) {
	since := f.opts.Now()
	defer func() { x.stage("fetch", since) }()
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	budget := &byteBudget{flag: f.opts.Limits.Flags.Of("LabelBytesMax"), max: f.opts.Labels.BytesMax}
	lists = make([]elementList, len(parts))
	errs := make([]error, len(parts))
	cached := make([]bool, len(parts))
	var wg sync.WaitGroup
	for i, part := range parts {
		wg.Go(func() {
			lists[i], cached[i], errs[i] = f.fetchList(ctx, q, part, budget)
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for i := range parts {
		if cached[i] {
			hits++
		}
		if errs[i] != nil && !errors.Is(errs[i], context.Canceled) {
			return nil, hits, errs[i]
		}
	}
	return lists, hits, errors.Join(errs...)
}

// fetchList reads the list of one part, from the cache or else from the downstream.
func (f *Frontend) fetchList(ctx context.Context, q query, part listPart,
	budget *byteBudget) (list elementList, cached bool, err error) {
	if part.cached {
		if list, cached = f.lookupList(ctx, q, part.stepRange, budget); cached {
			return list, true, nil
		}
	}
	if f.opts.Slots != nil { // one slot at a time: each response is read to its end
		free, err := f.opts.Slots.AcquireN(ctx, q.tenant, 1)
		if err != nil {
			return elementList{}, false, err
		}
		defer free(1)
	}
	resp, err := f.opts.Downstream.Open(ctx, q.withRange(part.StartMS, part.EndMS).request(f.opts.Labels.Retries))
	if err != nil {
		return elementList{}, false, err
	}
	defer resp.Body.Close()
	body, err := budget.readAll(resp.Body)
	if err != nil {
		return elementList{}, false, err
	}
	list, err = readList(body)
	var apiErr *promjson.APIError
	switch {
	case errors.As(err, &apiErr):
		status := resp.Status
		if status == http.StatusOK {
			status = http.StatusInternalServerError
		}
		return elementList{}, false, &downstreamError{&statusError{status, apiErr.Type, errors.New(apiErr.Message)}}
	case err != nil && resp.Status != http.StatusOK:
		message := strings.TrimSpace(string(body[:min(len(body), 300)]))
		return elementList{}, false, &downstreamError{&statusError{resp.Status, "internal",
			fmt.Errorf("downstream returned status %d: %s", resp.Status, message)}}
	case err != nil:
		return elementList{}, false, err
	}
	if part.cached && cacheable(list.partAnnotations) && !resp.NoStore() {
		writer := f.opts.LabelCache.Writer(listKey(q, part.stepRange), part.StartMS, part.EndMS, 1)
		if _, err := writer.Write(body); err != nil {
			writer.Abort()
		} else {
			writer.Commit()
		}
	}
	return list, false, nil
}

// listKey is the cache key of one part's list.
func listKey(q query, part stepRange) string {
	return fmt.Sprintf("%s|%d|%d", q.key(), part.StartMS, part.EndMS)
}

// lookupList reads a part's list from the cache entry with these bounds.
func (f *Frontend) lookupList(ctx context.Context, q query, bounds stepRange,
	budget *byteBudget) (list elementList, found bool) {
	e := f.opts.LabelCache.Lookup(ctx, listKey(q, bounds), bounds.StartMS, bounds.EndMS)
	if e == nil {
		return list, false
	}
	r, err := e.Open(ctx)
	if err != nil {
		return list, false
	}
	//lint:ignore errcheck the list was read
	defer r.Close()
	body, err := budget.readAll(r)
	if err != nil {
		return list, false
	}
	list, err = readList(body)
	return list, err == nil
}

// byteBudget limits the bytes that all parts of one request hold in memory.
type byteBudget struct {
	flag string // that raises max, for the error
	max  int64
	used atomic.Int64
}

func (b *byteBudget) readAll(r io.Reader) ([]byte, error) { return io.ReadAll(budgeted{r, b}) }

// budgeted is a reader that takes the bytes it returns from a budget.
type budgeted struct {
	io.Reader
	*byteBudget
}

func (b budgeted) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if b.used.Add(int64(n)) > b.max {
		err = &limit.Error{Limit: "all parts of one request for labels or series", Max: b.max, Unit: "bytes", Flag: b.flag}
	}
	return n, err
}
