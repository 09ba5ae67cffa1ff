// Package fanout reads many StoreAPIs as one storage.
//
// Endpoints finds the stores by address, file or DNS, and polls the Info of each every few seconds. PromQL reads
// through a storage.Queryable that is created for one query, another querier through Source, a StoreAPI. The stores
// that may have data are queried concurrently, each by a goroutine. For PromQL, which needs all series in memory,
// responses are read completely and then merged by encoded labels. For another querier responses are merged while
// they are streamed, with some megabytes read ahead from each store. A store that fails, stalls or is down causes a
// warning that names it or, if the request aborts on partial responses, an error. A store whose address DNS has not
// returned for EndpointsOptions.UnhealthyTimeout is skipped without a warning. The iterators merge replicas and
// overlapping chunks.
//
// gRPC is used through storeapi's requests and sets only; evaluation and HTTP are elsewhere.
// Package dedup deduplicates replicas.
//
//	Select ── slot ── stores that match ── (Series ── deadline ── slabs) ×n ── merge ── iterators
//	Source ── stores that match ── (Series ── deadline ── read-ahead) ×n ── merge ── stream
package fanout

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// Errors of a query.
var (
	ErrLimit    = fmt.Errorf("query %w", storeapi.ErrLimit) // ResourceExhausted if the series are forwarded
	ErrStalled  = errors.New("response timeout")
	ErrNoStores = errors.New("no stores")
)

// Client sends requests to one store. It is safe for concurrent use.
type Client interface {
	storeapi.API
	Close() error
}

// Options of a Fanout. Zero limits are replaced by the defaults below.
type Options struct {
	// Chain returns the samples of all replicas (package dedup: Chain); false: those of one replica (Penalty).
	Chain bool

	SelectsMax      int           // concurrent selections of one PromQL query; 0: 4
	ResponseTimeout time.Duration // timeout for each message of a store; 0: none
	SeriesMax       int64         // limit of series of one PromQL query; 0: none
	BytesMax        int64         // limit of chunks and labels of one PromQL query; 0: 4 GiB
	SortBytesMax    int64         // limit of one store's series that are sorted here after labels were removed; 0: 256 MiB
	// limit of chunks and labels of all queries, including requests of other queriers; 0: none
	TotalBytesMax int64
	TotalWait     time.Duration // how long a query waits for others to release memory; 0: 10 s
	Flags         hint.Flags    // names of the flags that raise the limits, for errors
}

func (o Options) withDefaults() Options {
	if o.SelectsMax <= 0 {
		o.SelectsMax = 4
	}
	o.BytesMax, o.SortBytesMax = cmp.Or(o.BytesMax, 4<<30), cmp.Or(o.SortBytesMax, 256<<20)
	if o.TotalWait <= 0 {
		o.TotalWait = 10 * time.Second
	}
	return o
}

// Fanout queries the stores of Endpoints. None of its goroutines outlives a request.
type Fanout struct {
	endpoints *Endpoints
	opts      Options
	budget    budget

	apart, whole pause // chunks are not joined; no samples between steps are left out. See noteOverlap
	unsummarized pause // no summaries are requested: series had them beside histograms or aggregates
}

// New returns a Fanout.
func New(endpoints *Endpoints, opts Options) *Fanout {
	opts = opts.withDefaults()
	f := &Fanout{endpoints: endpoints, opts: opts, budget: budget{
		max: opts.TotalBytesMax, wait: opts.TotalWait, flag: opts.Flags.Of("TotalBytesMax"), waits: endpoints.metrics.waits,
		refused: endpoints.metrics.refused,
	}}
	if set := endpoints.opts.Metrics; set != nil {
		process.Gauge(set, "ferula_query_chunk_bytes", "Bytes of store responses that all queries hold.",
			func() float64 { return float64(f.budget.held()) })
		process.Gauge(set, "ferula_query_chunk_bytes_max", "Limit of ferula_query_chunk_bytes. 0 means no limit.",
			func() float64 { return float64(opts.TotalBytesMax) })
	}
	return f
}

// Request configures one query.
type Request struct {
	ReplicaLabels []string // series that differ only in these are replicas; none: no deduplication
	// partial response strategy ABORT: a store that fails or is down fails the query; false: it is a warning
	AbortOnPartial  bool
	MaxResolutionMS int64 // max_source_resolution: coarsest resolution allowed; 0: raw samples only
	// Stores selects stores by the label __address__: at least one set of matchers must match. No set selects all stores.
	Stores [][]*labels.Matcher
	Shard  *storeapi.Shard // only the series of this shard; nil: all
	Tenant string          // sent to the stores; "": none
	// Matchers are added to every selection, and replace its matchers of the same label names. They select rules and
	// targets, too. They do not select metric metadata, which have no labels.
	Matchers []*labels.Matcher
}

// enforced returns the matchers of a selection, changed by Request.Matchers.
func (r Request) enforced(matchers []*labels.Matcher) []*labels.Matcher {
	if len(r.Matchers) == 0 {
		return matchers
	}
	all := slices.DeleteFunc(slices.Clone(matchers), func(m *labels.Matcher) bool {
		return slices.ContainsFunc(r.Matchers, func(by *labels.Matcher) bool { return by.Name == m.Name })
	})
	return append(all, r.Matchers...)
}

// allows reports whether labels match the matchers of the request.
func (r Request) allows(set labels.Labels) bool {
	return !slices.ContainsFunc(r.Matchers, func(m *labels.Matcher) bool { return !m.Matches(set.Get(m.Name)) })
}

// Queryable returns the storage of one query. It counts the bytes and series of all its queriers
// against the query's limits.
func (f *Fanout) Queryable(r Request) *Query {
	return &Query{f: f, r: r, gate: make(chan struct{}, f.opts.SelectsMax)}
}

// Query is the storage of one query.
type Query struct {
	f      *Fanout
	r      Request
	gate   chan struct{} // slots of SelectsMax
	bytes  atomic.Int64  // of the open queriers; so is series
	series atomic.Int64
}

var _ storage.Queryable = (*Query)(nil)

// Querier implements storage.Queryable. mint and maxt are inclusive; samples outside are
// skipped.
func (q *Query) Querier(mint, maxt int64) (storage.Querier, error) {
	ctx, cancel := context.WithCancel(context.Background())
	return &querier{q: q, minMS: mint, maxMS: maxt, closed: ctx, close: cancel}, nil
}

// spend counts a series that has arrived. It returns ErrLimit in two cases: if the query has more than BytesMax
// bytes, or if the earlier selections and this store alone have more than SeriesMax series. If this querier removes
// replica labels itself, the second case is checked by unite only, because series of the store may become equal.
// spend may wait for memory that other queries hold. The response timeout does not run while it waits.
func (q *querier) spend(from *storeStream, k *collected, series, bytes int64) error {
	opts := &q.q.f.opts
	k.counted += bytes
	if n := q.count(&q.q.bytes, &q.bytes, bytes); n > opts.BytesMax {
		return fmt.Errorf("%w: more than %d bytes of chunks and labels%s", ErrLimit, opts.BytesMax, opts.Flags.Of("BytesMax"))
	}
	most, counted := opts.SeriesMax, series > 0 && len(from.replica.names) == 0
	if most > 0 && counted && q.q.series.Load()+int64(len(k.read)) > most {
		return q.q.tooManySeries()
	}
	if k.unspent -= bytes; k.unspent >= 0 {
		return nil
	}
	step := max(budgetStep, -k.unspent)
	if err := k.budget.take(from.call.ctx, step); err != nil {
		return err
	}
	k.granted, k.unspent = k.granted+step, k.unspent+step
	return nil
}

func (q *Query) tooManySeries() error {
	return fmt.Errorf("%w: more than %d series%s", ErrLimit, q.f.opts.SeriesMax, q.f.opts.Flags.Of("SeriesMax"))
}

// budgetStep is the number of bytes taken from the budget at once.
const budgetStep = 256 << 10

// budget limits the memory of all queries together.
type budget struct {
	max  int64 // 0: no limit
	wait time.Duration
	flag string // name of the flag that raises max, for errors

	waits, refused *metrics.Counter

	mu    sync.Mutex
	used  int64
	keep  int64         // bytes that must remain free after takeFree, for callers of take
	freed chan struct{} // closed when memory is released; nil: no query waits
}

// take takes n bytes, and waits until they are free. It fails after b.wait: two queries that hold memory and wait
// for each other's memory would otherwise wait forever.
func (b *budget) take(ctx context.Context, n int64) error {
	var late <-chan time.Time
	for {
		b.mu.Lock()
		if b.max == 0 || b.used+n <= b.max {
			b.used += n
			b.mu.Unlock()
			return nil
		}
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		freed := b.freed
		b.mu.Unlock()
		if late == nil {
			timer := time.NewTimer(b.wait)
			defer timer.Stop()
			late = timer.C
			b.waits.Inc()
		}
		select {
		case <-freed:
		case <-late:
			b.refused.Inc()
			return fmt.Errorf("%w: all queries together use %d bytes of chunks and labels, and none were released within %s%s",
				ErrLimit, b.max, b.wait, b.flag)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// takeFree takes n bytes if b.keep bytes remain free afterwards. It does not wait. It is used for reading ahead,
// which must not take the memory of stores for which a merge waits.
func (b *budget) takeFree(n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.max > 0 && b.used+b.keep+n > b.max {
		return false
	}
	b.used += n
	return true
}

// keepFree adds n, which may be negative, to the number of bytes that must remain free after takeFree.
func (b *budget) keepFree(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keep += n
}

func (b *budget) held() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// release returns n bytes, and lets all waiting calls of take try again.
func (b *budget) release(n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}
