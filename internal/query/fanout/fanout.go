// Package fanout reads many StoreAPIs as if they were one storage.
//
// Endpoints finds the stores, by address, file or DNS, and asks each every few
// seconds what it holds. A request comes in as a storage.Queryable made for it, or as
// a StoreAPI request through Source; the stores that may hold something are asked at
// once, each by a goroutine. For PromQL, which wants all in memory, what each sends is
// read to its end and then merged on encoded labels; for a further querier it is merged
// as it arrives, each store being read some megabytes ahead. A store that fails, stalls or is known to be down costs a warning that
// names it, or the whole answer, as the request says: nothing is left out silently.
// Replicas and overlapping chunks are untangled where samples are read.
//
// There is no gRPC here but storeapi's requests and sets, no evaluation and no HTTP;
// what makes one series of replicas is given by options.
//
//	Select ── gate ── stores that match ── (Series ── guard ── slabs) ×n ── merge ── iterators
//	Source ── stores that match ── (Series ── guard ── read-ahead) ×n ── merge ── stream
package fanout

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"

	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// What a query ends with.
var (
	ErrLimit    = errors.New("limit of the query exceeded")
	ErrStalled  = errors.New("sent nothing for too long")
	ErrNoStores = errors.New("there are no stores")
)

// Client asks one store. It is safe for concurrent use.
type Client interface {
	Info(ctx context.Context) (storeapi.Info, error)
	// Series never returns nil; what went wrong is in the stream.
	Series(ctx context.Context, r storeapi.SeriesRequest) storeapi.Stream
	LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error)
	LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error)
	storeapi.ExemplarSource
	Close() error
}

// Options of a Fanout. Zero limits are the defaults that are named.
type Options struct {
	// Dedup makes one iterator of replicas, for the named function. It gets two or
	// more.
	Dedup func(replicas []chunkenc.Iterator, function string) chunkenc.Iterator
	// IsCounter says for which functions resets are to be made good before that.
	IsCounter func(function string) bool
	// Counter makes them good.
	Counter func(chunkenc.Iterator) chunkenc.Iterator

	SelectsMax      int           // of one query at once; 0: 4
	ResponseTimeout time.Duration // for a store to send something; 0: none
	SeriesMax       int64         // of one query; 0: none
	BytesMax        int64         // of one query's chunks and labels; 0: 4 GiB
	SortBytesMax    int64         // of one store's series that have to be sorted here; 0: 256 MiB
	TotalBytesMax   int64         // of the chunks and labels of all queries; 0: none
	TotalWait       time.Duration // how long a query waits for others to free some; 0: 10 s
}

func (o Options) withDefaults() Options {
	if o.SelectsMax <= 0 {
		o.SelectsMax = 4
	}
	if o.BytesMax == 0 {
		o.BytesMax = 4 << 30
	}
	if o.TotalWait <= 0 {
		o.TotalWait = 10 * time.Second
	}
	if o.SortBytesMax == 0 {
		o.SortBytesMax = 256 << 20
	}
	return o
}

// Fanout asks the stores of Endpoints. It owns no goroutine that outlives a request.
type Fanout struct {
	endpoints *Endpoints
	opts      Options
	budget    budget
}

// New makes a Fanout.
func New(endpoints *Endpoints, opts Options) *Fanout {
	opts = opts.withDefaults()
	return &Fanout{endpoints: endpoints, opts: opts, budget: budget{max: opts.TotalBytesMax, wait: opts.TotalWait}}
}

// Request is how one query wants its series.
type Request struct {
	ReplicaLabels   []string // series that differ in these only are replicas; none: no de-duplication
	AbortOnPartial  bool     // fail rather than warn when a store is missing
	MaxResolutionMS int64    // the coarsest downsampling that will do; 0: raw samples
	// Stores picks stores by the label __address__: one set of matchers must match.
	// None picks all.
	Stores [][]*labels.Matcher
}

// Queryable makes the storage of one query: its limits are counted there.
func (f *Fanout) Queryable(r Request) *Query {
	return &Query{f: f, r: r, gate: make(chan struct{}, f.opts.SelectsMax)}
}

// Query is the storage that one query reads.
type Query struct {
	f      *Fanout
	r      Request
	gate   chan struct{}
	bytes  atomic.Int64
	series atomic.Int64
}

var (
	_ storage.Queryable         = (*Query)(nil)
	_ storage.ExemplarQueryable = (*Query)(nil)
)

// Querier implements storage.Queryable. mint and maxt are inclusive; samples outside
// are not shown.
func (q *Query) Querier(mint, maxt int64) (storage.Querier, error) {
	ctx, cancel := context.WithCancel(context.Background())
	return &querier{q: q, minMS: mint, maxMS: maxt, closed: ctx, close: cancel}, nil
}

// spend counts what a query holds in memory: bytes as they come, and series of one
// store, which are at most those of the query. While it waits for memory the store is
// not taken for silent.
func (q *Query) spend(g *guarded, k *kept, series, bytes int64) error {
	if n := q.bytes.Add(bytes); n > q.f.opts.BytesMax {
		return fmt.Errorf("%w: more than %d bytes of chunks and labels", ErrLimit, q.f.opts.BytesMax)
	}
	if most := q.f.opts.SeriesMax; most > 0 && series > 0 && len(g.strip) == 0 && q.series.Load()+int64(len(k.read)) > most {
		return q.tooManySeries()
	}
	if k.unspent -= bytes; k.unspent >= 0 {
		return nil
	}
	step := max(budgetStep, -k.unspent)
	if err := k.budget.take(g.ctx, step); err != nil {
		return err
	}
	k.granted, k.unspent = k.granted+step, k.unspent+step
	return nil
}

func (q *Query) tooManySeries() error {
	return fmt.Errorf("%w: more than %d series", ErrLimit, q.f.opts.SeriesMax)
}

// budgetStep is what is taken from the budget at once.
const budgetStep = 256 << 10

// budget bounds the memory of all queries together.
type budget struct {
	max  int64 // 0: none
	wait time.Duration

	mu    sync.Mutex
	used  int64
	freed chan struct{} // closed when something is given back; nil: nothing waits
}

// take waits until there is room for n bytes, but not for long: queries that wait hold
// memory that others wait for.
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
		}
		select {
		case <-freed:
		case <-late:
			return fmt.Errorf("%w: all queries together hold %d bytes of chunks and labels, and none became free within %s", ErrLimit, b.max, b.wait)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

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
