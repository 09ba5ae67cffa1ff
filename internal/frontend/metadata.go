package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/frontend/splice"
	"github.com/ferula-io/ferula/internal/frontend/split"
	"github.com/ferula-io/ferula/promjson"
)

// metadata answers label names, label values and series: cut at the multiples of
// an interval, each piece fetched or taken from the cache, and united. Pieces are
// lists of strings or metric objects; they are held in memory, up to a limit.
func (f *Frontend) metadata(x *requestContext) error {
	o := f.opts.Labels
	q := x.query
	if o.PartialResponse != "" && !q.params.Has("partial_response") {
		q.params.Set("partial_response", o.PartialResponse)
	}
	startMS, endMS, err := q.bounds(f.opts.Now(), o.DefaultRange)
	if err != nil {
		return f.passThrough(x, x.query) // the downstream words what is wrong
	}
	q = q.withRange(startMS, endMS)
	pieces := splitLabelsRange(startMS, endMS, o.Interval, o.Parallelism)
	useCache := f.opts.LabelCache != nil && !hasNoStore(x.r.Header)
	if len(pieces) == 1 && !useCache || !splittable(q) {
		return f.passThrough(x, q)
	}
	q, ok := q.asJSON()
	if !ok {
		return f.passThrough(x, q)
	}
	lists, hits, err := f.fetchLists(x, q, pieces, useCache)
	if useCache {
		x.cache = cacheState(hits, len(pieces)-hits)
	}
	var said *downstreamError
	if errors.As(err, &said) {
		return said.statusError
	}
	if err != nil {
		return err
	}
	if err := splice.WriteUnion(x.response, lists); err != nil {
		return err
	}
	return x.response.close()
}

// piecesOf cuts [startMS, endMS], both inclusive, at the multiples of interval.
func splitLabelsRange(startMS, endMS int64, interval time.Duration, maxPieces int) []split.Range {
	whole := split.Range{StartMS: startMS, EndMS: endMS, StepMS: 1}
	if interval <= 0 {
		return []split.Range{whole}
	}
	var pieces []split.Range
	for _, part := range split.Plan(whole, split.Widen(whole, interval, maxPieces)) {
		pieces = append(pieces, part.Range)
	}
	return pieces
}

// saidError is an answer of the downstream that is not a success.
type downstreamError struct{ *statusError }

func (f *Frontend) fetchLists(x *requestContext, q query, pieces []split.Range, useCache bool) (lists []splice.List, hits int, err error) {
	since := f.opts.Now()
	defer func() { x.stage("fetch", since) }()
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	budget := &byteBudget{max: f.opts.Labels.BytesMax, left: f.opts.Labels.BytesMax}
	lists = make([]splice.List, len(pieces))
	errs := make([]error, len(pieces))
	cached := make([]bool, len(pieces))
	var wg sync.WaitGroup
	for i, piece := range pieces {
		wg.Go(func() {
			lists[i], cached[i], errs[i] = f.fetchList(ctx, q, piece, budget, useCache)
			if errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	for i := range pieces {
		if cached[i] {
			hits++
		}
		if errs[i] != nil && !errors.Is(errs[i], context.Canceled) {
			return nil, hits, errs[i]
		}
	}
	return lists, hits, errors.Join(errs...)
}

// fetchList gets one piece's list.
func (f *Frontend) fetchList(ctx context.Context, q query, piece split.Range, budget *byteBudget, useCache bool) (list splice.List, cached bool, err error) {
	key := fmt.Sprintf("%s|%d|%d", q.key(), piece.StartMS, piece.EndMS)
	if useCache {
		for _, e := range f.opts.LabelCache.Lookup(ctx, key, piece.StartMS, piece.EndMS) {
			if from, to := e.Bounds(); from != piece.StartMS || to != piece.EndMS || cached {
				e.Release()
				continue
			}
			kept, err := f.cachedList(ctx, e, budget)
			if err == nil {
				list, cached = kept, true
			}
		}
		if cached {
			return list, true, nil
		}
	}
	if f.opts.Slots != nil { // one after the other: each is read to its end
		free, err := f.opts.Slots.AcquireN(ctx, q.tenant, 1)
		if err != nil {
			return splice.List{}, false, err
		}
		defer free(1)
	}
	resp, err := f.opts.Downstream.Open(ctx, q.withRange(piece.StartMS, piece.EndMS).request(f.opts.Labels.Retries))
	if err != nil {
		return splice.List{}, false, err
	}
	defer resp.Body.Close()
	text, err := budget.readAll(resp.Body)
	if err != nil {
		return splice.List{}, false, err
	}
	list, err = splice.ReadList(text)
	var said *promjson.APIError
	switch {
	case errors.As(err, &said):
		status := resp.Status
		if status == http.StatusOK {
			status = http.StatusInternalServerError
		}
		return splice.List{}, false, &downstreamError{&statusError{status, said.Type, errors.New(said.Message)}}
	case err != nil && resp.Status != http.StatusOK:
		said := strings.TrimSpace(string(text[:min(len(text), 300)]))
		return splice.List{}, false, &downstreamError{&statusError{resp.Status, "internal", fmt.Errorf("downstream answered %d: %s", resp.Status, said)}}
	case err != nil:
		return splice.List{}, false, err
	}
	settled := piece.EndMS <= f.opts.Now().Add(-f.opts.Labels.MaxFreshness).UnixMilli()
	if useCache && settled && cacheable(list.Annotations) && !hasNoStore(resp.Header) {
		keep := f.opts.LabelCache.Keep(key, piece.StartMS, piece.EndMS, 1)
		if _, err := keep.Write(text); err != nil {
			keep.Abort()
		} else {
			keep.Commit()
		}
	}
	return list, false, nil
}

func (f *Frontend) cachedList(ctx context.Context, e Extent, budget *byteBudget) (splice.List, error) {
	body, err := e.Open(ctx)
	if err != nil {
		return splice.List{}, err
	}
	defer body.Close()
	text, err := budget.readAll(body)
	if err != nil {
		return splice.List{}, err
	}
	return splice.ReadList(text)
}

// byteBudget bounds what the pieces of one request hold together.
type byteBudget struct {
	max  int64
	mu   sync.Mutex
	left int64
}

func (b *byteBudget) readAll(r io.Reader) ([]byte, error) {
	var text []byte
	for {
		if cap(text)-len(text) < 4096 {
			text = append(make([]byte, 0, 2*cap(text)+32<<10), text...)
		}
		n, err := r.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		b.mu.Lock()
		b.left -= int64(n)
		spent := b.left < 0
		b.mu.Unlock()
		if spent {
			return nil, &limit.Error{Limit: "parts of a response of labels or series, together", Max: b.max, Unit: "bytes"}
		}
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
