package fanout

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"go.opentelemetry.io/otel/attribute"

	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// querier implements storage.Querier for one time range. Select starts a selection in the background, so stores respond
// to several selectors of a query at the same time. The selection waits for a slot, and then reads all series.
// Close, and the end of the context of Select, cancel it.
type querier struct {
	q            *Query
	minMS, maxMS int64
	closed       context.Context
	close        context.CancelFunc
	running      sync.WaitGroup
	bytes        atomic.Int64 // this querier's share of Query.bytes
	series       atomic.Int64 // this querier's share of Query.series

	mu       sync.Mutex
	selected []*selected
	latest   map[string]*selected // the latest selection, by the arguments of Select
}

// selected is a selection that may still be running. Equal selections of a querier share it.
type selected struct {
	until <-chan struct{} // Done of the context that Select got
	done  chan struct{}
	kept  *collected // the result, valid once done is closed; nil after an error
	err   error
}

var (
	_ storage.Querier       = (*querier)(nil)
	_ series.FloatsSelector = (*querier)(nil)
)

// count adds n to all, the count of the query, and to own, the share of this querier. It returns the new
// count of the query.
func (*querier) count(all, own *atomic.Int64, n int64) int64 {
	own.Add(n)
	return all.Add(n)
}

// forSeries is the function hint of the series API, which needs labels only.
const forSeries = "series"

// Select implements storage.Querier. The set is always sorted. Its first Next waits for the responses. If the latest
// selection with equal arguments had the same context, Select returns the series of that selection.
func (q *querier) Select(ctx context.Context, _ bool, hints *storage.SelectHints,
	matchers ...*labels.Matcher) storage.SeriesSet {
	return q.SelectFloats(ctx, series.Needs{}, hints, matchers...)
}

// SelectFloats implements series.FloatsSelector. Stores of ferula leave out samples that are not needed, unless the
// samples of several replicas must be merged.
func (q *querier) SelectFloats(ctx context.Context, need series.Needs, hints *storage.SelectHints,
	matchers ...*labels.Matcher) series.FloatsSet {
	start, end, function, limit, rangeMS := q.minMS, q.maxMS, "", 0, int64(0)
	if hints != nil {
		start, end, function, limit, rangeMS = hints.Start, hints.End, hints.Func, hints.Limit, hints.Range
	}
	key := fmt.Sprintf("%d %d %s %d %d %q", start, end, function, limit, rangeMS, fmt.Sprint(matchers))
	if need != (series.Needs{}) {
		key = fmt.Sprintf("%+v %+v %s", need.Steps, need.Summaries, key)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if earlier := q.latest[key]; earlier != nil && earlier.until == ctx.Done() {
		return &asyncSeriesSet{selected: earlier}
	}
	sr := storeapi.SeriesRequest{
		MinMS: start, MaxMS: end, Matchers: q.q.r.enforced(matchers), Limit: int64(limit),
		SkipChunks:           function == forSeries,
		WithoutReplicaLabels: q.q.r.ReplicaLabels,
		MaxResolutionMS:      q.q.resolution(function, rangeMS),
		Aggregates:           aggregatesFor(function),
		Shard:                q.q.r.Shard,
		Steps:                need.Steps,
		JoinMS:               storeapi.JoinAny,
	}
	if s := need.Summaries; s != nil && s.Fits == nil && s.MinMS == start && s.MaxMS == end {
		sr.Summaries = s
	}
	if sr.SkipChunks { // a series may be in downsampled blocks only
		sr.MaxResolutionMS = math.MaxInt64
	}
	opts := q.q.f.opts
	v := &view{minMS: q.minMS, maxMS: q.maxMS, coarse: sr.MaxResolutionMS >= coarseMS, average: len(sr.Aggregates) == 2,
		counters: sr.Aggregates[0] == series.Counter, function: function,
		replicas: len(sr.WithoutReplicaLabels) > 0, chain: opts.Chain, isCounter: !opts.Chain && dedup.IsCounter(function)}
	now := &selected{until: ctx.Done(), done: make(chan struct{})}
	if q.latest == nil {
		q.latest = map[string]*selected{}
	}
	q.selected, q.latest[key] = append(q.selected, now), now
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(q.closed, cancel)
	q.running.Go(func() {
		defer close(now.done)
		defer stop()
		defer cancel()
		defer q.q.f.endpoints.recovered(&now.err, "all")
		now.kept, now.err = q.selection(ctx, sr, v)
	})
	return &asyncSeriesSet{selected: now}
}

// selection waits for a slot and reads all series.
func (q *querier) selection(ctx context.Context, sr storeapi.SeriesRequest, v *view) (k *collected, err error) {
	select {
	case q.q.gate <- struct{}{}:
		defer func() { <-q.q.gate }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, span := startSpan(ctx, "select", attribute.String("matchers", fmt.Sprint(sr.Matchers)),
		attribute.Int64("mint", sr.MinMS), attribute.Int64("maxt", sr.MaxMS))
	defer func() {
		if k != nil {
			span.SetAttributes(attribute.Int("series", len(k.series)), attribute.Int("warnings", len(k.warnings)))
		}
		endSpan(span, err)
	}()
	for {
		if k, err = q.read(ctx, sr, v); err != nil || !k.steps.samples {
			return k, err
		}
		overlaps := k.overlapping()
		if !overlaps && !k.mixed() {
			return k, nil
		}
		if overlaps {
			q.q.f.noteOverlap(k.steps)
		} else {
			q.q.f.unsummarized.begin()
		}
		q.discard(k)
		if sr.Steps = nil; !overlaps || !k.steps.borders { // otherwise each summary is of one chunk now
			sr.Summaries = nil
		}
	}
}

// read reads all series of the stores.
func (q *querier) read(ctx context.Context, sr storeapi.SeriesRequest, v *view) (*collected, error) {
	sr.BytesMax = max(1, q.q.f.opts.BytesMax-q.q.bytes.Load())
	all, err := q.q.f.fan(ctx, q.q.r, sr)
	if err != nil {
		return nil, err
	}
	defer all.close()
	k, err := collect(ctx, q, all, v)
	if k != nil {
		k.steps = all.steps
	}
	return k, err
}

// discard releases a result that is not used, which then no longer counts against the query's limits.
func (q *querier) discard(k *collected) {
	q.count(&q.q.bytes, &q.bytes, -k.counted)
	q.count(&q.q.series, &q.series, -int64(len(k.series)))
	k.release()
}

// asyncSeriesSet is the set of a selection that may still be running.
type asyncSeriesSet struct {
	*selected
	set *collectedSet
}

// Next implements storage.SeriesSet. It waits until the selection has ended. The end of the context, or Close of the
// querier, cancels the selection.
func (p *asyncSeriesSet) Next() bool {
	if p.set == nil {
		<-p.done
		if p.err != nil {
			return false
		}
		p.set = &collectedSet{k: p.kept}
	}
	return p.set.Next()
}

// At implements storage.SeriesSet.
func (p *asyncSeriesSet) At() storage.Series { return p.set.At() }

// Err implements storage.SeriesSet.
func (p *asyncSeriesSet) Err() error { <-p.done; return p.err }

// Warnings implements storage.SeriesSet.
func (p *asyncSeriesSet) Warnings() annotations.Annotations {
	<-p.done
	if p.kept == nil {
		return nil
	}
	return maps.Clone(p.kept.warnings) // several sets may share a selection, and callers change the map
}

// Close implements storage.Querier. It cancels running selections and releases the memory of the series, so
// iterators are invalid afterwards. The bytes and series of this querier no longer count against the query's limits,
// because the query may continue with another querier: if package columns cannot finish a query, Prometheus' engine
// evaluates it again.
func (q *querier) Close() error {
	q.close()
	q.running.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.selected {
		if s.kept != nil {
			s.kept.release()
		}
	}
	q.selected, q.latest = nil, nil
	q.q.bytes.Add(-q.bytes.Swap(0))
	q.q.series.Add(-q.series.Swap(0))
	return nil
}

// aggregatesFor returns the aggregates of downsampled data that a function needs.
func aggregatesFor(function string) []series.Aggr {
	is := func(name string) bool { return function == name || strings.HasPrefix(function, name+"_") }
	switch {
	case is("min"):
		return []series.Aggr{series.Min}
	case is("max"):
		return []series.Aggr{series.Max}
	case is("count"):
		return []series.Aggr{series.Count}
	case strings.HasPrefix(function, "sum_"): // not sum, which adds up the averages of several series at a step
		return []series.Aggr{series.Sum}
	case function == "rate" || function == "irate" || function == "increase":
		return []series.Aggr{series.Counter}
	}
	return []series.Aggr{series.Count, series.Sum}
}

// needTwoSamples are functions that need two samples in their range.
var needTwoSamples = []string{"rate", "irate", "increase", "delta", "idelta", "deriv", "predict_linear",
	"double_exponential_smoothing"}

// resolution returns the coarsest resolution, in ms, that a function over a range may read.
// Downsampled counters have no resets, so resets() gets raw samples. Functions that need two samples
// get a resolution of at most half their range.
func (q *Query) resolution(function string, rangeMS int64) int64 {
	switch {
	case function == "resets":
		return 0
	case rangeMS > 0 && slices.Contains(needTwoSamples, function):
		return min(q.r.MaxResolutionMS, rangeMS/2)
	}
	return q.r.MaxResolutionMS
}

// LabelNames implements storage.Querier.
func (q *querier) LabelNames(ctx context.Context, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return q.list(ctx, "", hints, matchers, Client.LabelNames)
}

// LabelValues implements storage.Querier.
func (q *querier) LabelValues(ctx context.Context, name string, hints *storage.LabelHints,
	matchers ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	if slices.Contains(q.q.r.ReplicaLabels, name) {
		return nil, nil, nil // no series has it after deduplication
	}
	return q.list(ctx, name, hints, matchers, Client.LabelValues)
}

func (q *querier) list(ctx context.Context, name string, hints *storage.LabelHints, matchers []*labels.Matcher,
	call listCall) ([]string, annotations.Annotations, error) {
	r := storeapi.LabelsRequest{Label: name, MinMS: q.minMS, MaxMS: q.maxMS, Matchers: q.q.r.enforced(matchers),
		WithoutReplicaLabels: q.q.r.ReplicaLabels}
	if hints != nil {
		r.Limit = int64(hints.Limit)
	}
	return q.q.f.list(ctx, q.q.r, r, call)
}

type listCall func(c Client, ctx context.Context, r storeapi.LabelsRequest) (found, warnings []string, err error)

// list lists label names or values, sorted.
func (f *Fanout) list(ctx context.Context, r Request, lr storeapi.LabelsRequest,
	call listCall) ([]string, annotations.Annotations, error) {
	var ok bool
	if lr.Matchers, ok = f.endpoints.opts.Selector.restrict(lr.Matchers); !ok {
		return nil, nil, nil
	}
	c, err := f.endpoints.chooseData(r, func(info *storeapi.Info) bool {
		return mayHold(info, lr.MinMS, lr.MaxMS, lr.Matchers)
	})
	if err != nil {
		return nil, nil, err
	}
	defer c.release()
	lr.AbortOnPartial = r.AbortOnPartial
	found := make([][]string, len(c.stores))
	warnings, err := each(ctx, f, r, c, func(ctx context.Context, i int) ([]string, error) {
		var warnings []string
		var err error
		one := lr
		one.Matchers = both(lr.Matchers, c.matchers[i])
		found[i], warnings, err = call(c.stores[i].client, ctx, one)
		return warnings, err
	})
	if err != nil {
		return nil, nil, err
	}
	all := slices.Concat(found...)
	slices.Sort(all)
	all = slices.Compact(all)
	all = slices.DeleteFunc(all, func(name string) bool {
		return lr.Label == "" && slices.Contains(lr.WithoutReplicaLabels, name)
	})
	if lr.Limit > 0 && int64(len(all)) > lr.Limit {
		all = all[:lr.Limit]
	}
	return all, warnings, nil
}

// each calls all chosen stores concurrently. Failures become warnings. If the request aborts on partial responses, the
// first failure or warning cancels all calls and is returned. At the deadline of the context, the error names the
// stores that have not responded.
func each(ctx context.Context, f *Fanout, r Request, c *chosen,
	call func(ctx context.Context, i int) ([]string, error)) (all annotations.Annotations, err error) {
	ctx, cancel := context.WithCancelCause(storeapi.WithTenant(ctx, r.Tenant))
	defer cancel(nil)
	warned := make([][]error, len(c.stores))
	pending := make([]string, len(c.stores)) // addresses of stores that had not responded when the context ended
	var wg sync.WaitGroup
	for i, s := range c.stores {
		wg.Go(func() {
			var one []error
			warnings, err := callOne(ctx, f, s.address, i, call)
			if err != nil {
				awaitDeadline(ctx, err)
				f.endpoints.metrics.failure(s.address, err)
				if ctx.Err() != nil {
					pending[i] = s.address
				}
				one = append(one, err)
			}
			for _, w := range warnings {
				one = append(one, errors.New(w))
			}
			for i := range one {
				one[i] = fmt.Errorf("store %s: %w", s.address, one[i])
			}
			if warned[i] = one; len(one) > 0 && r.AbortOnPartial {
				cancel(one[0])
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		err := context.Cause(ctx)
		pending = slices.DeleteFunc(pending, func(address string) bool { return address == "" })
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && len(pending) > 0 {
			err = fmt.Errorf("%w: waiting for %s", err, strings.Join(pending, ", "))
		}
		return nil, err
	}
	for _, err := range slices.Concat(c.missing, slices.Concat(warned...)) {
		all.Add(err)
	}
	if len(all) > 0 {
		f.endpoints.metrics.partial.With(listings).Inc()
	}
	return all, nil
}

// callOne calls one store, with the response timeout.
func callOne(ctx context.Context, f *Fanout, address string, i int,
	call func(ctx context.Context, i int) ([]string, error)) (warnings []string, err error) {
	if f.opts.ResponseTimeout > 0 {
		var done context.CancelFunc
		ctx, done = context.WithTimeoutCause(ctx, f.opts.ResponseTimeout, ErrStalled)
		defer done()
	}
	ctx, span := startSpan(ctx, "store", attribute.String("store", address))
	defer func() { endSpan(span, err) }()
	defer f.endpoints.recovered(&err, address)
	warnings, err = call(ctx, i)
	if err != nil && errors.Is(context.Cause(ctx), ErrStalled) {
		err = fmt.Errorf("%w: %s", ErrStalled, f.opts.ResponseTimeout)
	}
	return warnings, err
}
