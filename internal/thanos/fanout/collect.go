package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/blocks/summaries"
	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/thanos/dedup"
)

// Sizes of the slabs that collected series are copied into.
const (
	slabBytes      = 256 << 10
	labelSlabBytes = 64 << 10
	slabChunks     = 1024
)

// collected has the series of one store, or of all stores of a selection, in memory. Labels and
// chunks are copied into slabs, which are written once. The slabs of chunk data return to their
// pool when the querier is closed. Labels remain valid afterwards, because results of a query keep
// them.
type collected struct {
	read     []rawSeries    // in the order of the store, until unite
	series   []storedSeries // merged and sorted, after unite
	labels   []byte         // the current slab
	data     []byte         // the current slab
	chunks   []series.Chunk // the current slab
	lent     []*[]byte      // data slabs, to be released
	budget   *budget        // of all queries; it granted the bytes below
	granted  int64          // bytes taken from budget, to be released
	unspent  int64          // bytes of granted that are not used yet
	counted  int64          // bytes that count against BytesMax of the query
	steps    lacking        // what the stores may have left out
	buffers  int64          // bytes of granted for unread messages of the stream, until the stream ends
	view     *view
	warnings annotations.Annotations
}

// view determines how all series of a selection are read.
type view struct {
	minMS, maxMS int64  // samples outside are skipped
	coarse       bool   // downsampled chunks may have a resolution of 1h
	average      bool   // divide the sums of downsampled chunks by their counts
	counters     bool   // read the counter aggregate of downsampled chunks
	function     string // around the selector, from SelectHints
	replicas     bool   // deduplicate
	chain        bool   // Options.Chain
	isCounter    bool   // deduplication adjusts the counter resets of each replica
}

// rawSeries is one series of one store.
type rawSeries struct {
	labels []byte
	chunks []series.Chunk
}

// storedSeries is one series of a selection, with the chunks of all stores.
type storedSeries struct {
	labels labels.Labels
	chunks []series.Chunk
	view   *view
}

// slabs is the pool of slabs for chunk data.
var slabs = bufpool.New(slabBytes, slabBytes)

// ownLabels copies labels to memory that is never reused.
func (k *collected) ownLabels(b []byte) []byte {
	if cap(k.labels)-len(k.labels) < len(b) {
		k.labels = make([]byte, 0, max(labelSlabBytes, len(b)))
	}
	start := len(k.labels)
	k.labels = append(k.labels, b...)
	return k.labels[start:len(k.labels):len(k.labels)]
}

// ownData copies a chunk to memory that is valid until release.
func (k *collected) ownData(b []byte) []byte {
	if cap(k.data)-len(k.data) < len(b) {
		if len(b) > slabBytes {
			return slices.Clone(b)
		}
		slab := slabs.Get()
		k.lent = append(k.lent, slab)
		k.data = *slab
	}
	start := len(k.data)
	k.data = append(k.data, b...)
	return k.data[start:len(k.data):len(k.data)]
}

// release releases the chunks' bytes. Labels stay valid.
func (k *collected) release() {
	for _, slab := range k.lent {
		slabs.Put(slab)
	}
	k.lent, k.data, k.read, k.series = nil, nil, nil, nil
	k.budget.release(k.granted)
	k.granted, k.unspent, k.buffers = 0, 0, 0
}

// add adds a series, or appends its chunks to the last series if the labels are equal. It returns the number of
// added series, 0 or 1, and the bytes of the added labels and chunks.
func (k *collected) add(lset []byte, chunks []series.Chunk) (added, size int64) {
	if n := len(k.read); n == 0 || !bytes.Equal(k.read[n-1].labels, lset) {
		k.read = append(k.read, rawSeries{labels: k.ownLabels(lset)})
		added, size = 1, int64(len(lset))
	}
	s := &k.read[len(k.read)-1]
	k.extend(s.chunks, len(chunks))
	start := len(k.chunks) - len(s.chunks)
	for _, c := range chunks {
		c.Data = k.ownData(c.Data)
		size += int64(len(c.Data)) + chunkBytes
		k.chunks = append(k.chunks, c)
	}
	s.chunks = k.chunks[start:len(k.chunks):len(k.chunks)]
	return added, size
}

// chunkBytes is the memory of a chunk in addition to its data.
const chunkBytes = int64(unsafe.Sizeof(series.Chunk{}))

// contextEvery is the number of series between two checks of the context.
const contextEvery = 128

// collect reads the responses of all stores of a request, each in its own goroutine. If it read them one after the
// other, a response would occupy a slot of its store while another store is read. The first failure cancels all
// requests.
func collect(ctx context.Context, q *querier, all *fanoutStreams, v *view) (*collected, error) {
	parts := make([]*collected, len(all.streams))
	var reading sync.WaitGroup
	for i, g := range all.streams {
		k := &collected{view: v, budget: &q.q.f.budget}
		parts[i] = k
		reading.Go(func() {
			if err := k.drain(q, g); err != nil {
				all.cancel(err)
			}
		})
	}
	reading.Wait()
	whole := &collected{view: v, budget: &q.q.f.budget}
	if err := context.Cause(all.ctx); err != nil {
		for _, k := range parts {
			k.release()
		}
		return nil, err
	}
	for _, err := range all.missing {
		whole.warnings.Add(err)
	}
	for i, k := range parts {
		whole.warnings.Merge(all.streams[i].Warnings())
		whole.lent, whole.granted = append(whole.lent, k.lent...), whole.granted+k.granted
		whole.counted += k.counted
	}
	if len(whole.warnings) > 0 {
		q.q.f.endpoints.metrics.partial.With(selections).Inc()
	}
	if err := whole.unite(ctx, q, parts); err != nil {
		whole.release()
		return nil, err
	}
	return whole, nil
}

// drain reads the response of one store.
func (k *collected) drain(q *querier, from *storeStream) (err error) {
	defer q.q.f.endpoints.recovered(&err, from.store.address)
	for n := 0; from.Next(); n++ {
		added, size := k.add(from.Labels(), from.Chunks())
		now := from.stream.BufferedBytes()
		k.unspent, k.buffers = k.unspent-(now-k.buffers), now
		if err := q.spend(from, k, added, size); err != nil {
			return from.named(err)
		}
		if n%contextEvery == 0 && from.call.ctx.Err() != nil {
			return context.Cause(from.call.ctx)
		}
	}
	if err := from.Err(); err != nil {
		return err
	}
	k.returnUnspent()
	if from.replica.unsorted {
		if err := k.sort(from.call.ctx); err != nil {
			return err
		}
	}
	k.labels, k.data, k.chunks = nil, nil, nil // the rest of the slabs is not used
	return nil
}

// returnUnspent returns the bytes that were granted and are not used, including the stream's buffers.
func (k *collected) returnUnspent() {
	if k.unspent += k.buffers; k.unspent > 0 {
		k.budget.release(k.unspent)
		k.granted -= k.unspent
	}
	k.unspent, k.buffers = 0, 0
}

// recovered converts a panic to an error. It must be deferred.
func (e *Endpoints) recovered(err *error, address string) {
	if p := recover(); p != nil {
		*err = e.panicked(address, p)
	}
}

// panicked counts and logs a panic, and returns an error that names the store.
func (e *Endpoints) panicked(address string, p any) error {
	e.metrics.panics.Inc()
	e.opts.Logger.Error("Panic while reading a store", "store", address, "panic", p, "stack", string(debug.Stack()))
	return fmt.Errorf("store %s: %w: %v", address, errPanicked, p)
}

var errPanicked = errors.New("internal error: panic while reading it")

// unite merges the sorted series of all parts. It drops the encoded labels, which are not
// needed afterwards.
func (k *collected) unite(ctx context.Context, q *querier, parts []*collected) error {
	builder := labels.NewScratchBuilder(16)
	lists, longest := heapOf(parts)
	k.series = make([]storedSeries, 0, longest)
	var last []byte
	for n := 0; len(lists) > 0; n++ {
		s := &lists[0][0]
		if n > 0 && labelenc.Compare(last, s.labels) == 0 {
			k.join(&k.series[len(k.series)-1], s.chunks)
		} else {
			lset, err := labelenc.Labels(s.labels, &builder)
			if err != nil {
				return err
			}
			k.series = append(k.series, storedSeries{labels: lset, chunks: s.chunks, view: k.view})
			last = s.labels
		}
		lists = advance(lists)
		if n%contextEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	for i := range k.series {
		k.series[i].chunks = withoutSummarized(series.Tidy(k.series[i].chunks))
	}
	for _, part := range parts {
		part.read = nil
	}
	k.chunks = nil
	if n := q.count(&q.q.series, &q.series, int64(len(k.series))); q.q.f.opts.SeriesMax > 0 && n > q.q.f.opts.SeriesMax {
		return q.q.tooManySeries()
	}
	return nil
}

// heapOf returns a heap of the series of all parts, ordered by the first series of each part, and the length of the
// longest part.
func heapOf(parts []*collected) (lists [][]rawSeries, longest int) {
	for _, part := range parts {
		if len(part.read) > 0 {
			lists, longest = append(lists, part.read), max(longest, len(part.read))
		}
	}
	for i := len(lists)/2 - 1; i >= 0; i-- {
		sink(lists, i)
	}
	return lists, longest
}

// advance pops the least series of a heap.
func advance(lists [][]rawSeries) [][]rawSeries {
	if lists[0] = lists[0][1:]; len(lists[0]) == 0 {
		lists[0] = lists[len(lists)-1]
		lists = lists[:len(lists)-1]
	}
	sink(lists, 0)
	return lists
}

// sink moves list i down in a heap until no child has a lesser first series.
func sink(lists [][]rawSeries, i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(lists); child++ {
			if labelenc.Compare(lists[child][0].labels, lists[least][0].labels) < 0 {
				least = child
			}
		}
		if least == i {
			return
		}
		lists[i], lists[least] = lists[least], lists[i]
		i = least
	}
}

// join appends chunks to a series. Their data are in slabs already.
func (k *collected) join(s *storedSeries, chunks []series.Chunk) {
	k.extend(s.chunks, len(chunks))
	start := len(k.chunks) - len(s.chunks)
	k.chunks = append(k.chunks, chunks...)
	s.chunks = k.chunks[start:len(k.chunks):len(k.chunks)]
}

// extend moves the chunks of a series to the end of the slab, with capacity for n more.
func (k *collected) extend(have []series.Chunk, n int) {
	if room := cap(k.chunks) - len(k.chunks); room < len(have)+n {
		k.chunks = make([]series.Chunk, 0, max(slabChunks, len(have)+n))
		k.chunks = append(k.chunks, have...)
	} else if len(have) > 0 && (len(k.chunks) == 0 || &k.chunks[len(k.chunks)-1] != &have[len(have)-1]) {
		k.chunks = append(k.chunks, have...)
	}
}

// sort sorts series that are out of order, and merges equal ones. It returns an error if the context has ended.
func (k *collected) sort(ctx context.Context) error {
	compared, ended := 0, false
	slices.SortStableFunc(k.read, func(a, b rawSeries) int {
		if compared%contextEvery == 0 && ctx.Err() != nil {
			ended = true
		}
		if compared++; ended {
			return 0 // the remaining comparisons take no time
		}
		return labelenc.Compare(a.labels, b.labels)
	})
	if ended {
		return context.Cause(ctx)
	}
	joined := k.read[:0]
	for _, s := range k.read {
		if n := len(joined); n > 0 && labelenc.Compare(joined[n-1].labels, s.labels) == 0 {
			joined[n-1].chunks = append(joined[n-1].chunks, s.chunks...)
			continue
		}
		joined = append(joined, s)
	}
	k.read = joined
	return nil
}

// Labels implements storage.Series.
func (s *storedSeries) Labels() labels.Labels { return s.labels }

// Iterator implements storage.Series. First, distinct leaves out the samples that a coarser aggregate of any replica
// contains. What is done with chunks that still overlap depends on the request and the chunks:
//
//	deduplication                          the chunks are distributed to replicas (split), which are deduplicated
//	no deduplication, raw chunks only      the samples are merged by timestamp
//	no deduplication, downsampled chunks   the chunks are read one after the other, and a sample that is not later
//	                                       than the previous sample is skipped: merged aggregates of different
//	                                       replicas would mix different values
func (s *storedSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	chunks, cut, err := s.view.distinct(s.chunks)
	if err != nil {
		return failedIterator{chunkenc.NewNopIterator(), err}
	}
	if !overlap(chunks) || !s.view.replicas && slices.ContainsFunc(chunks, isAggregated) {
		return s.view.track(chunks, cut, false, reuse)
	}
	tracks, err := split(chunks)
	if err != nil {
		return failedIterator{chunkenc.NewNopIterator(), err}
	}
	its := make([]chunkenc.Iterator, 0, len(tracks))
	for _, chunks := range tracks {
		its = append(its, s.view.track(chunks, cut, s.view.replicas, nil))
	}
	if s.view.replicas && !s.view.chain {
		return dedup.Penalty(its, s.view.function)
	}
	return dedup.Chain(its)
}

// mixed reports whether a series has summaries beside chunks that are not of floats, which are read through iterators.
func (k *collected) mixed() bool {
	return slices.ContainsFunc(k.series, func(s storedSeries) bool {
		return slices.ContainsFunc(s.chunks, series.IsSummarized) && slices.ContainsFunc(s.chunks, func(c series.Chunk) bool {
			return c.Encoding != chunkenc.EncXOR && !series.IsSummarized(c)
		})
	})
}

// overlapping reports whether a series has chunks that overlap, or raw chunks in the time of an aggregate: it
// replaces their samples, but not the last one before, which stores leave out if no step is between the two.
func (k *collected) overlapping() bool {
	return slices.ContainsFunc(k.series, func(s storedSeries) bool {
		return overlap(s.chunks) || slices.ContainsFunc(s.chunks, isAggregated) && k.view.mayMix(s.chunks)
	})
}

// withoutSummarized removes the summaries of sorted chunks that are there as well, from another store with the same
// data, in place.
func withoutSummarized(chunks []series.Chunk) []series.Chunk {
	if len(chunks) < 2 || !slices.ContainsFunc(chunks, series.IsSummarized) {
		return chunks
	}
	var decoder summaries.Decoder
	return slices.CompactFunc(chunks, func(c, whole series.Chunk) bool {
		if !series.IsSummarized(c) || whole.MinMS != c.MinMS || whole.MaxMS != c.MaxMS {
			return false
		}
		s := decoder.Summary(whole)
		return s.Count > 0 && bytes.Equal(series.AppendSummary(nil, s), c.Data)
	})
}

// overlap reports whether sorted chunks overlap in time.
func overlap(chunks []series.Chunk) bool {
	for i := 1; i < len(chunks); i++ {
		if chunks[i-1].MaxMS >= chunks[i].MinMS {
			return true
		}
	}
	return false
}

// tracksMax limits the chunks of one series that overlap at the same time: chunks of replicas, and of overlapping
// blocks of one replica. Each track is a level of the deduplication, and is searched for each chunk.
const tracksMax = 1000

// split distributes sorted chunks to tracks, which are lists of chunks that do not overlap. Each
// chunk is added to the first track whose last chunk ends before it begins. For two replicas
// with chunks of equal length the tracks are the replicas.
func split(chunks []series.Chunk) (tracks [][]series.Chunk, err error) {
	for _, c := range chunks {
		i := slices.IndexFunc(tracks, func(t []series.Chunk) bool { return t[len(t)-1].MaxMS < c.MinMS })
		if i < 0 {
			if i = len(tracks); i == tracksMax {
				return nil, fmt.Errorf("%w: more than %d chunks overlap at %d", series.ErrCorrupt, tracksMax, c.MinMS)
			}
			tracks = append(tracks, nil)
		}
		tracks[i] = append(tracks[i], c)
	}
	return tracks, nil
}

// failedIterator has no samples, and its Err returns err.
type failedIterator struct {
	chunkenc.Iterator
	err error
}

// Err implements chunkenc.Iterator.
func (f failedIterator) Err() error { return f.err }

// collectedSet is a storage.SeriesSet over series in memory.
type collectedSet struct {
	k *collected
	i int
}

func (s *collectedSet) Next() bool                        { s.i++; return s.i <= len(s.k.series) }
func (s *collectedSet) At() storage.Series                { return s.current() }
func (s *collectedSet) current() *storedSeries            { return &s.k.series[s.i-1] }
func (s *collectedSet) Err() error                        { return nil }
func (s *collectedSet) Warnings() annotations.Annotations { return s.k.warnings }
