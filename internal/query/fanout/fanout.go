// Package fanout reads many StoreAPIs as if they were one storage.
//
// Endpoints finds the stores, by address, file or DNS, and asks each every few
// seconds what it holds. A request comes in as a storage.Queryable made for it, or as
// a StoreAPI request through Source; the stores that may hold something are asked at
// once, what they stream is merged on encoded labels as it arrives, and goes out as
// series in memory (for PromQL, which wants them so) or as a stream (for a further
// querier). A store that fails, stalls or is known to be down costs a warning that
// names it, or the whole answer, as the request says: nothing is left out silently.
// Replicas and overlapping chunks are untangled where samples are read.
//
// There is no gRPC here but storeapi's requests and sets, no evaluation and no HTTP;
// what makes one series of replicas is given by options.
//
//	Select ── gate ── stores that match ── Series ×n ── guard ×n ── merge ── slabs ── iterators
package fanout

import (
	"context"
	"errors"
	"fmt"
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
}

func (o Options) withDefaults() Options {
	if o.SelectsMax <= 0 {
		o.SelectsMax = 4
	}
	if o.BytesMax == 0 {
		o.BytesMax = 4 << 30
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
}

// New makes a Fanout.
func New(endpoints *Endpoints, opts Options) *Fanout {
	return &Fanout{endpoints: endpoints, opts: opts.withDefaults()}
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

// spend counts what a query holds in memory.
func (q *Query) spend(series, bytes int64) error {
	if n := q.bytes.Add(bytes); n > q.f.opts.BytesMax {
		return fmt.Errorf("%w: more than %d bytes of chunks and labels", ErrLimit, q.f.opts.BytesMax)
	}
	if n := q.series.Add(series); q.f.opts.SeriesMax > 0 && n > q.f.opts.SeriesMax {
		return fmt.Errorf("%w: more than %d series", ErrLimit, q.f.opts.SeriesMax)
	}
	return nil
}
