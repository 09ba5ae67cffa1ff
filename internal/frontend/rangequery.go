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
func (f *Frontend) queryRange(x *exchange) error {
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
	shape, ok := split.ShapeOf(f.parser, q.params.Get("query"))
	if !ok || shape.Whole || !cuttable(q) || f.sorted.isUnsorted(q.key()) {
		return f.passThrough(x, q)
	}
	if q, ok = q.asJSON(); !ok {
		return f.passThrough(x, q)
	}
	useCache := f.opts.Cache != nil && !hasNoStore(x.r.Header)
	err = f.answerParts(x, q, r, shape, useCache)
	if errors.Is(err, errCacheLost) && !x.answer.begun() {
		f.opts.Logger.Warn("a kept answer could not be read; asking for everything", "err", err)
		err = f.answerParts(x, q, r, shape, false)
	}
	return err
}

// errCacheLost says that a kept answer could not be read to its end.
var errCacheLost = errors.New("kept answer is lost")

// answerParts plans, fetches and puts together.
func (f *Frontend) answerParts(x *exchange, q query, r split.Range, shape split.Shape, useCache bool) error {
	plan := f.plan(x, q, r, shape, useCache)
	if len(plan.parts) == 1 && plan.parts[0].cached == nil && plan.parts[0].keep == nil {
		// One part that nobody keeps: nothing to put together.
		return f.passThrough(x, q)
	}
	err := f.fetchAndSplice(x, plan)
	if errors.Is(err, promjson.ErrUnsorted) {
		// The downstream's order is not known here: this query is not cut again.
		f.sorted.remember(q.key())
		f.opts.Logger.Info("downstream answers are not sorted; the query is no longer split", "query", q.params.Get("query"))
		if !x.answer.begun() {
			return f.passThrough(x, q)
		}
	}
	return err
}

// cuttable tells whether a request wants nothing that parts could not give: the
// first N series of the whole, or how the whole was evaluated.
func cuttable(q query) bool {
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
	keep   Keeper
}

// opened is a part whose answer has begun.
type opened struct {
	part splice.Part
	body io.Closer
	keep Keeper
	resp *downstream.Response // nil for a cached part
}

// fetchAndSplice opens all parts at once and lays them end to end.
func (f *Frontend) fetchAndSplice(x *exchange, p plan) error {
	ctx, cancel := context.WithCancel(x.r.Context())
	defer cancel()
	since := f.opts.Now()
	parts, err := f.openAll(ctx, cancel, p)
	defer closeAll(parts)
	x.stage("fetch", since)
	if err != nil {
		return err
	}
	for _, o := range parts {
		if o.resp != nil && o.resp.Status != http.StatusOK {
			return f.relay(x, o.resp)
		}
	}
	s := f.splices.get(f.opts)
	defer f.splices.put(s)
	list := make([]splice.Part, len(parts))
	for i, o := range parts {
		list[i] = o.part
	}
	notes, err := s.Write(x.answer, list)
	if err != nil {
		return f.partFailed(err)
	}
	if err := x.answer.close(); err != nil {
		return err
	}
	if keepable(notes) {
		for i, o := range parts {
			if o.keep != nil && s.OnGrid(i) && !noStore(o.resp) {
				o.keep.Commit()
				parts[i].keep = nil
			}
		}
	}
	return nil
}

func noStore(resp *downstream.Response) bool {
	return resp != nil && hasNoStore(resp.Header)
}

// openAll asks for all parts at once and waits until each answer has begun. When
// one fails the others are given up.
func (f *Frontend) openAll(ctx context.Context, giveUp context.CancelFunc, p plan) ([]opened, error) {
	all := make([]opened, len(p.parts))
	errs := make([]error, len(p.parts))
	var wg sync.WaitGroup
	for i, part := range p.parts {
		wg.Go(func() {
			if all[i], errs[i] = f.openPart(ctx, p.query, part); errs[i] != nil {
				giveUp()
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			return all, err
		}
	}
	return all, errors.Join(errs...)
}

func (f *Frontend) openPart(ctx context.Context, q query, p planPart) (opened, error) {
	if p.cached != nil {
		kept, err := p.cached.Open(ctx)
		if err != nil {
			return opened{}, fmt.Errorf("%w: %w", errCacheLost, err)
		}
		body := keptBody{kept}
		return opened{part: splice.Part{Body: body, Cut: true, FromMS: p.StartMS, ToMS: p.EndMS}, body: body}, nil
	}
	resp, err := f.opts.Downstream.Open(ctx, q.over(p.StartMS, p.EndMS).request(f.opts.RangeRetries))
	if err != nil {
		if p.keep != nil {
			p.keep.Abort()
		}
		return opened{}, err
	}
	o := opened{part: splice.Part{Body: resp.Body}, body: resp.Body, keep: p.keep, resp: resp}
	if p.keep != nil {
		o.part.Body = io.TeeReader(resp.Body, p.keep)
		o.part.FromMS, o.part.StepMS = p.StartMS, p.StepMS
	}
	return o, nil
}

// keptBody marks failures of a kept answer as the cache's.
type keptBody struct{ io.ReadCloser }

func (b keptBody) Read(p []byte) (int, error) {
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

func closeAll(parts []opened) {
	for _, o := range parts {
		if o.keep != nil {
			o.keep.Abort()
		}
		if o.body != nil {
			_ = o.body.Close() // what is left of it is not wanted
		}
	}
}

// partFailed turns a failure of a splice into what the client is told: an
// answer's own error keeps its kind and text.
func (f *Frontend) partFailed(err error) error {
	var said *promjson.AnswerError
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

func (p *splicePool) get(o Options) *splice.Splice {
	if s, ok := p.pool.Get().(*splice.Splice); ok {
		return s
	}
	return splice.New(splice.Options{})
}

func (p *splicePool) put(s *splice.Splice) { p.pool.Put(s) }
