package fanout

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/bufpool"
	"github.com/ferula-io/ferula/internal/codec/labelenc"
	"github.com/ferula-io/ferula/internal/series"
)

// Sizes of the pieces that what is kept is laid into.
const (
	slabBytes      = 256 << 10
	labelSlabBytes = 64 << 10
	slabChunks     = 1024
)

// kept are series in memory: bytes and chunks in slabs that are written once. Those
// of the data go back to their pool when the querier is closed.
type kept struct {
	read     []rawSeries    // until they are united
	series   []storedSeries // afterwards
	labels   []byte         // the slab that is being filled
	data     []byte         // as well
	chunks   []series.Chunk // as well
	lent     []*[]byte      // of data
	budget   *budget        // that granted is of
	granted  int64
	unspent  int64 // of what was granted
	view     *view
	warnings annotations.Annotations
}

// view is what all series of a selection are read by.
type view struct {
	minMS, maxMS int64 // samples outside are not shown
	average      bool  // of downsampled chunks sums are divided by counts
	counters     bool  // of downsampled chunks counters are read
	function     string
	isCounter    bool // function is one of counters
	dedup        func([]chunkenc.Iterator, string) chunkenc.Iterator
	counter      func(chunkenc.Iterator) chunkenc.Iterator
}

// rawSeries is one series of one store.
type rawSeries struct {
	labels []byte
	chunks []series.Chunk
}

// storedSeries is one series in memory.
type storedSeries struct {
	labels labels.Labels
	chunks []series.Chunk
	view   *view
}

// slabs are lent to selections until their querier is closed.
var slabs = bufpool.New(slabBytes, slabBytes)

// ownLabels copies labels to where they may be kept for ever.
func (k *kept) ownLabels(b []byte) []byte {
	if cap(k.labels)-len(k.labels) < len(b) {
		k.labels = make([]byte, 0, max(labelSlabBytes, len(b)))
	}
	start := len(k.labels)
	k.labels = append(k.labels, b...)
	return k.labels[start:len(k.labels):len(k.labels)]
}

// ownData copies a chunk to where it may be kept until release, and read xorSlack
// bytes beyond; nobody appends to it.
func (k *kept) ownData(b []byte) []byte {
	need := len(b) + xorSlack
	if cap(k.data)-len(k.data) < need {
		if need > slabBytes {
			return append(make([]byte, 0, need), b...)
		}
		slab := slabs.Get()
		k.lent = append(k.lent, slab)
		k.data = *slab
	}
	start := len(k.data)
	k.data = append(k.data, b...)
	return k.data[start : len(k.data) : len(k.data)+xorSlack]
}

// release gives the chunks' bytes back. Labels stay valid.
func (k *kept) release() {
	for _, slab := range k.lent {
		slabs.Put(slab)
	}
	k.lent, k.data, k.read, k.series = nil, nil, nil, nil
	k.budget.release(k.granted)
	k.granted, k.unspent = 0, 0
}

// add keeps a series, or joins its chunks to the last one if that has the same labels.
func (k *kept) add(lset []byte, chunks []series.Chunk) (added, size int64) {
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

const chunkBytes = int64(unsafe.Sizeof(series.Chunk{}))

// contextEvery is how many series are taken between looks at the context.
const contextEvery = 128

// collect reads everything that the stores of a request send, each in a goroutine of
// its own: none holds a slot of its store while it waits for another store. The first
// failure ends all.
func collect(ctx context.Context, q *Query, all *fanned, v *view) (*kept, error) {
	parts := make([]*kept, len(all.streams))
	var reading sync.WaitGroup
	for i, g := range all.streams {
		k := &kept{view: v, budget: &q.f.budget}
		parts[i] = k
		reading.Go(func() {
			if err := k.drain(q, g); err != nil {
				all.cancel(err)
			}
		})
	}
	reading.Wait()
	whole := &kept{view: v, budget: &q.f.budget}
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
	}
	if err := whole.unite(ctx, q, parts); err != nil {
		whole.release()
		return nil, err
	}
	return whole, nil
}

// drain reads what one store sends.
func (k *kept) drain(q *Query, g *guarded) (err error) {
	defer recovered(&err, q.f.endpoints.opts.Logger, g.store.address)
	for n := 0; g.Next(); n++ {
		added, size := k.add(g.Labels(), g.Chunks())
		if err := q.spend(g, k, added, size); err != nil {
			return fmt.Errorf("store %s: %w", g.store.address, err)
		}
		if n%contextEvery == 0 && g.ctx.Err() != nil {
			return context.Cause(g.ctx)
		}
	}
	if err := g.Err(); err != nil {
		return err
	}
	if g.unsorted {
		k.sort()
	}
	k.labels, k.data, k.chunks = nil, nil, nil // their rest is not filled any more
	return nil
}

// recovered makes a panic an error that names the store, and logs where it was.
func recovered(err *error, logger *slog.Logger, address string) {
	if p := recover(); p != nil {
		logger.Error("panic while a store was read", "store", address, "panic", p, "stack", string(debug.Stack()))
		*err = fmt.Errorf("store %s: %w: %v", address, errPanicked, p)
	}
}

var errPanicked = errors.New("internal error: panic while it was read")

// unite makes of the series of all parts, which are each in order, what is read. Encoded
// labels are not needed any more then.
func (k *kept) unite(ctx context.Context, q *Query, parts []*kept) error {
	builder := labels.NewScratchBuilder(16)
	lists, longest := heapOf(parts)
	k.series = make([]storedSeries, 0, longest)
	var last []byte
	for n := 0; len(lists) > 0; n++ {
		s := &lists[0][0]
		if n > 0 && labelenc.Compare(last, s.labels) == 0 {
			k.join(&k.series[len(k.series)-1], s.chunks)
		} else {
			lset, err := ownedLabels(s.labels, &builder)
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
		k.series[i].chunks = tidy(k.series[i].chunks)
	}
	for _, part := range parts {
		part.read = nil
	}
	k.chunks = nil
	if n := q.series.Add(int64(len(k.series))); q.f.opts.SeriesMax > 0 && n > q.f.opts.SeriesMax {
		return q.tooManySeries()
	}
	return nil
}

// heapOf makes a heap of the parts' series that are not united yet, by the first of
// each.
func heapOf(parts []*kept) (lists [][]rawSeries, longest int) {
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

// advance takes the least series off a heap.
func advance(lists [][]rawSeries) [][]rawSeries {
	if lists[0] = lists[0][1:]; len(lists[0]) == 0 {
		lists[0] = lists[len(lists)-1]
		lists = lists[:len(lists)-1]
	}
	sink(lists, 0)
	return lists
}

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

// join adds chunks that are owned already.
func (k *kept) join(s *storedSeries, chunks []series.Chunk) {
	k.extend(s.chunks, len(chunks))
	start := len(k.chunks) - len(s.chunks)
	k.chunks = append(k.chunks, chunks...)
	s.chunks = k.chunks[start:len(k.chunks):len(k.chunks)]
}

// extend makes the chunks of a series the last ones of the slab, with room for n more.
func (k *kept) extend(have []series.Chunk, n int) {
	if room := cap(k.chunks) - len(k.chunks); room < len(have)+n {
		k.chunks = make([]series.Chunk, 0, max(slabChunks, len(have)+n))
		k.chunks = append(k.chunks, have...)
	} else if len(have) > 0 && (len(k.chunks) == 0 || &k.chunks[len(k.chunks)-1] != &have[len(have)-1]) {
		k.chunks = append(k.chunks, have...)
	}
}

// sort puts series in order that have come out of it, and joins equal ones.
func (k *kept) sort() {
	slices.SortStableFunc(k.read, func(a, b rawSeries) int { return labelenc.Compare(a.labels, b.labels) })
	joined := k.read[:0]
	for _, s := range k.read {
		if n := len(joined); n > 0 && labelenc.Compare(joined[n-1].labels, s.labels) == 0 {
			joined[n-1].chunks = append(joined[n-1].chunks, s.chunks...)
			continue
		}
		joined = append(joined, s)
	}
	k.read = joined
}

// tidy sorts chunks and takes repeated ones out, in place.
func tidy(chunks []series.Chunk) []series.Chunk {
	for i := 1; i < len(chunks); i++ {
		if compareChunks(chunks[i-1], chunks[i]) >= 0 {
			slices.SortStableFunc(chunks, compareChunks)
			return slices.CompactFunc(chunks, func(a, b series.Chunk) bool { return compareChunks(a, b) == 0 })
		}
	}
	return chunks
}

// ownedLabels makes labels of bytes that are never written again: the builder is
// given strings that alias them, so that it is the only one to copy, if it does.
func ownedLabels(set []byte, builder *labels.ScratchBuilder) (labels.Labels, error) {
	builder.Reset()
	for len(set) > 0 {
		name, value, rest, err := labelenc.Next(set)
		if err != nil {
			return labels.EmptyLabels(), err
		}
		builder.Add(unsafe.String(unsafe.SliceData(name), len(name)), unsafe.String(unsafe.SliceData(value), len(value)))
		set = rest
	}
	return builder.Labels(), nil
}

// Labels implements storage.Series.
func (s *storedSeries) Labels() labels.Labels { return s.labels }

// Iterator implements storage.Series. Where chunks overlap and replicas are not made
// one, raw chunks are chained sample by sample. Downsampled ones are not: they are
// other values of the same time. What lies before the end of the chunks before is left
// out then.
func (s *storedSeries) Iterator(reuse chunkenc.Iterator) chunkenc.Iterator {
	if !overlap(s.chunks) || s.view.dedup == nil && slices.ContainsFunc(s.chunks, isPacked) {
		return s.view.track(s.chunks, false, reuse)
	}
	tracks := split(s.chunks)
	its := make([]chunkenc.Iterator, 0, len(tracks))
	for _, chunks := range tracks {
		its = append(its, s.view.track(chunks, s.view.dedup != nil, nil))
	}
	if s.view.dedup != nil {
		return s.view.dedup(its, s.view.function)
	}
	return storage.ChainSampleIteratorFromIterators(nil, its)
}

// overlap says whether sorted chunks have samples of one time in more than one.
func overlap(chunks []series.Chunk) bool {
	for i := 1; i < len(chunks); i++ {
		if chunks[i-1].MaxMS >= chunks[i].MinMS {
			return true
		}
	}
	return false
}

// split lays sorted chunks into tracks without overlaps, each chunk into the first
// track where it fits.
func split(chunks []series.Chunk) [][]series.Chunk {
	var tracks [][]series.Chunk
	for _, c := range chunks {
		i := slices.IndexFunc(tracks, func(t []series.Chunk) bool { return t[len(t)-1].MaxMS < c.MinMS })
		if i < 0 {
			i = len(tracks)
			tracks = append(tracks, nil)
		}
		tracks[i] = append(tracks[i], c)
	}
	return tracks
}

// keptSet is a storage.SeriesSet over series in memory.
type keptSet struct {
	k *kept
	i int
}

func (s *keptSet) Next() bool                        { s.i++; return s.i <= len(s.k.series) }
func (s *keptSet) At() storage.Series                { return &s.k.series[s.i-1] }
func (s *keptSet) Err() error                        { return nil }
func (s *keptSet) Warnings() annotations.Annotations { return s.k.warnings }
