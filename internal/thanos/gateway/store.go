package gateway

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/thanos/gateway/metas"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// Options of a Store. Zero values take the defaults.
type Options struct {
	Dir         string // local directory of pages, headers and the snapshot of the metas
	CacheBytes  int64  // of pages; 0: 250 MiB
	Rules       Rules
	Concurrency int // requests for metas at once; 0: 32
	// --block-discovery-strategy=recursive: list all objects instead of looking for each block's files
	Recursive     bool
	ReadsMax      int           // limit of blocks that all requests together read at once; 0: no limit
	PostingsBytes int64         // limit of the postings of one matcher that selects several values; 0: 256 MiB
	Idle          time.Duration // after which the header of an unused block is unmapped; 0: 5 min
	Logger        *slog.Logger  // may be nil
	Metrics       *metrics.Set  // may be nil
	Flags         hint.Flags    // the flag that sets CacheBytes, named in errors
	Ready         func() bool   // Info fails until it returns true; nil: ready
}

func (o Options) withDefaults() Options {
	o.PostingsBytes = cmp.Or(o.PostingsBytes, 256<<20)
	o.Idle = cmp.Or(o.Idle, 5*time.Minute)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = metrics.NewSet()
	}
	return o
}

// Store serves series of the blocks in a bucket, as a StoreAPI. Open creates it, and Sync lists the blocks. It is
// safe for concurrent use.
type Store struct {
	storeapi.NoServices
	opts   Options
	from   objstore.BucketReader
	cache  *pages.Cache
	lister *metas.Lister
	gate   chan struct{} // of capacity ReadsMax; nil: no limit
	counts storeCounts

	outdated atomic.Bool // summaries of another version were logged

	syncing sync.Mutex // one Sync at a time
	mu      sync.RWMutex
	blocks  map[ulid.ULID]*block
	groups  []*group  // by external labels
	synced  time.Time // end of the last listing of the bucket; zero before the first
	syncErr error     // of the last listing
	closed  bool
	using   sync.WaitGroup // running requests
	reading atomic.Int64   // open blocks of all requests
}

// group has the blocks with the same external labels.
type group struct {
	labels labels.Labels
	blocks [len(resolutions)][]*block // by resolution, each sorted by start
}

// resolutions are the resolutions of blocks in ms, the coarsest first.
var resolutions = [...]int64{bucket.Hour, bucket.Fine, bucket.Raw}

type storeCounts struct {
	syncs, syncFailures, drops, blockErrors, sideErrors *metrics.Counter
	states                                              *metrics.GaugeVec
}

// Open opens the local directory. It sends no request.
func Open(from objstore.BucketReader, opts Options) (*Store, error) {
	opts = opts.withDefaults()
	if err := os.MkdirAll(filepath.Join(opts.Dir, "headers"), 0o777); err != nil {
		return nil, err
	}
	cache, err := pages.Open(opts.Dir, pages.Options{BytesMax: opts.CacheBytes, Permanent: from.IsObjNotFoundErr,
		Metrics: opts.Metrics, Flags: hint.Flags{"BytesMax": opts.Flags["CacheBytes"]}})
	if err != nil {
		return nil, fmt.Errorf("page cache: %w", err)
	}
	counter := func(name, help string) *metrics.Counter { return process.Counter(opts.Metrics, name, help) }
	s := &Store{
		opts: opts, from: from, cache: cache, blocks: map[ulid.ULID]*block{},
		lister: metas.NewLister(from, metas.Options{
			Rules: opts.Rules, Concurrency: opts.Concurrency, Recursive: opts.Recursive, Dir: opts.Dir, Logger: opts.Logger,
		}),
		counts: storeCounts{
			syncs: counter("thanos_blocks_meta_syncs_total", "Listings of the bucket, failed ones included."),
			syncFailures: counter("thanos_blocks_meta_sync_failures_total",
				"Listings of the bucket that failed. The blocks of the last successful listing are served."),
			drops:       counter("thanos_bucket_store_block_drops_total", "Blocks that are no longer served."),
			blockErrors: counter("ferula_store_block_errors_total", "Blocks that could not be read for a request."),
			sideErrors: counter("ferula_store_summaries_failures_total",
				"Objects with summaries that could not be used. Their blocks are read without."),
			states: opts.Metrics.NewGaugeVec("thanos_blocks_meta_synced", "Number of blocks of the last sync, by state.",
				"state"),
		},
	}
	if opts.ReadsMax > 0 {
		s.gate = make(chan struct{}, opts.ReadsMax)
	}
	process.Gauge(opts.Metrics, "thanos_bucket_store_blocks_loaded", "Number of blocks that are served.",
		func() float64 { return float64(len(s.Blocks())) })
	return s, nil
}

// Sync lists the bucket and serves the listed blocks. After a failure the blocks of the last
// successful Sync are still served.
func (s *Store) Sync(ctx context.Context) error {
	s.syncing.Lock()
	defer s.syncing.Unlock()
	s.counts.syncs.Inc()
	list, err := s.lister.List(ctx, time.Now())
	s.mu.Lock()
	s.synced, s.syncErr = time.Now(), err
	s.mu.Unlock()
	if err != nil {
		s.counts.syncFailures.Inc()
		return err
	}
	for id, err := range list.Corrupt {
		s.opts.Logger.Warn("A block is not served", "block", id, "err", err)
	}
	for state, n := range list.States {
		s.counts.states.With(state).Set(float64(n))
	}
	first := s.replace(list.Blocks)
	if first {
		s.tidyHeaders(list.Blocks)
	}
	return nil
}

// replace serves exactly the found blocks. It reports whether no block was served before.
func (s *Store) replace(found map[ulid.ULID]*bucket.Meta) (first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first = len(s.blocks) == 0
	for id, b := range s.blocks {
		if found[id] != b.meta { // it is gone, or its meta.json was read again
			delete(s.blocks, id)
			b.remove()
			if found[id] == nil {
				s.counts.drops.Inc()
			}
		}
	}
	byLabels := map[string]*group{}
	for id, m := range found {
		key := string(m.Labels.Bytes(nil))
		g := byLabels[key]
		if g == nil {
			g = &group{labels: m.Labels}
			byLabels[key] = g
		}
		b := s.blocks[id]
		if b == nil {
			m.Labels = g.labels // equal labels share one copy; not set for known blocks, whose labels requests may be reading
			b = newBlock(m, s.from, s.cache, s.opts.Dir)
			s.blocks[id] = b
		}
		i := slices.Index(resolutions[:], m.ResolutionMS)
		g.blocks[i] = append(g.blocks[i], b)
	}
	s.groups = s.groups[:0:0]
	for _, g := range byLabels {
		for _, list := range g.blocks {
			slices.SortFunc(list, func(a, b *block) int {
				return cmp.Or(cmp.Compare(a.meta.MinMS, b.meta.MinMS), cmp.Compare(a.meta.MaxMS, b.meta.MaxMS),
					a.meta.ID.Compare(b.meta.ID))
			})
		}
		s.groups = append(s.groups, g)
	}
	slices.SortFunc(s.groups, func(a, b *group) int { return labels.Compare(a.labels, b.labels) })
	return first
}

// tidyHeaders removes the headers of blocks that are no longer in the bucket.
func (s *Store) tidyHeaders(found map[ulid.ULID]*bucket.Meta) {
	dir := filepath.Join(s.opts.Dir, "headers")
	entries, err := os.ReadDir(dir)
	if err != nil {
		s.opts.Logger.Warn("Listing local headers failed", "err", err)
		return
	}
	for _, e := range entries {
		if id, err := ulid.ParseStrict(e.Name()); err != nil || found[id] == nil {
			_ = os.Remove(filepath.Join(dir, e.Name())) // the next start tries again
		}
	}
}

// Sweep unmaps the headers of idle blocks. It must be called periodically.
func (s *Store) Sweep(now time.Time) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, b := range s.blocks {
		b.sweep(now.Add(-s.opts.Idle))
	}
}

// LastSync returns when the last listing of the bucket ended, and its error. The time is zero before the first listing.
func (s *Store) LastSync() (at time.Time, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.synced, s.syncErr
}

// Blocks returns the metas of the blocks that are served, in no particular order.
func (s *Store) Blocks() []*bucket.Meta {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make([]*bucket.Meta, 0, len(s.blocks))
	for _, b := range s.blocks {
		all = append(all, b.meta)
	}
	return all
}

// Spans returns the external label sets of the blocks, and for each set the time ranges that its blocks cover without
// a gap; their ends are exclusive. Both are sorted by labels.
func (s *Store) Spans() (sets []labels.Labels, spans []storeapi.TSDBInfo) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, g := range s.groups {
		sets = append(sets, g.labels)
		all := slices.Concat(g.blocks[:]...)
		slices.SortFunc(all, func(a, b *block) int { return cmp.Compare(a.meta.MinMS, b.meta.MinMS) })
		for i, b := range all {
			if last := len(spans) - 1; i == 0 || b.meta.MinMS > spans[last].MaxMS {
				covered := storeapi.TimeRange{MinMS: b.meta.MinMS, MaxMS: b.meta.MaxMS}
				spans = append(spans, storeapi.TSDBInfo{Labels: g.labels, TimeRange: covered})
			} else {
				spans[last].MaxMS = max(spans[last].MaxMS, b.meta.MaxMS)
			}
		}
	}
	return sets, spans
}

// Range returns the time range of all blocks, within the rules' limits. Without blocks maxMS
// is less than minMS.
func (s *Store) Range() (minMS, maxMS int64) {
	minMS, maxMS = math.MaxInt64, math.MinInt64
	for _, m := range s.Blocks() {
		minMS, maxMS = min(minMS, m.MinMS), max(maxMS, m.MaxMS)
	}
	lowest, highest := s.opts.Rules.Range()
	return max(minMS, lowest), min(maxMS, highest)
}

// Close waits for running requests and closes the local files.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.using.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.blocks {
		b.sweep(time.Now().Add(time.Hour))
	}
	return s.cache.Close()
}

// choose returns the blocks of a group that cover a time range: blocks of the coarsest
// acceptable resolution, and finer blocks where that resolution has none.
func (g *group) choose(minMS, maxMS, resolutionMS int64) []*block {
	i := 0
	for resolutions[i] > resolutionMS && i < len(resolutions)-1 {
		i++
	}
	chosen := g.cover(nil, i, minMS, maxMS)
	// A fine block that fills two gaps was found twice.
	seen := make(map[*block]bool, len(chosen))
	return slices.DeleteFunc(chosen, func(b *block) bool {
		was := seen[b]
		seen[b] = true
		return was
	})
}

// cover appends the blocks of resolution i in the time range, and finer blocks for the gaps
// between them.
func (g *group) cover(into []*block, i int, minMS, maxMS int64) []*block {
	if i == len(resolutions) || minMS > maxMS {
		return into
	}
	start := minMS
	for _, b := range g.blocks[i] {
		if b.meta.MaxMS <= minMS {
			continue
		}
		if b.meta.MinMS > maxMS {
			break
		}
		into = append(g.cover(into, i+1, start, b.meta.MinMS-1), b)
		start = b.meta.MaxMS
	}
	return g.cover(into, i+1, start, maxMS)
}

// begin counts a request. The caller must call s.using.Done at the end of the request.
func (s *Store) begin() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.closed {
		return ErrClosed
	}
	s.using.Add(1)
	return nil
}
