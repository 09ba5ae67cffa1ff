package fanout

import (
	"bytes"
	"context"
	"slices"
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
	series   []storedSeries
	labels   []byte         // the slab that is being filled
	data     []byte         // as well
	chunks   []series.Chunk // as well
	lent     []*[]byte      // of data
	unsorted bool
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

// storedSeries is one series in memory.
type storedSeries struct {
	labels labels.Labels
	raw    []byte
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
	k.lent, k.data, k.series = nil, nil, nil
}

// add keeps a series, or joins its chunks to the last one if that has the same labels.
func (k *kept) add(lset []byte, chunks []series.Chunk) (added, size int64) {
	if n := len(k.series); n == 0 || !bytes.Equal(k.series[n-1].raw, lset) {
		k.series = append(k.series, storedSeries{raw: k.ownLabels(lset), view: k.view})
		added, size = 1, int64(len(lset))
	}
	s := &k.series[len(k.series)-1]
	if room := cap(k.chunks) - len(k.chunks); room < len(s.chunks)+len(chunks) {
		k.chunks = make([]series.Chunk, 0, max(slabChunks, len(s.chunks)+len(chunks)))
		k.chunks = append(k.chunks, s.chunks...)
	} else if len(s.chunks) > 0 && &k.chunks[len(k.chunks)-1] != &s.chunks[len(s.chunks)-1] {
		k.chunks = append(k.chunks, s.chunks...)
	}
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

// collect reads a whole answer.
func (k *kept) collect(ctx context.Context, q *Query, m *merged) error {
	for n := 0; m.Next(); n++ {
		if err := q.spend(k.add(m.Labels(), m.Chunks())); err != nil {
			return err
		}
		if n%contextEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if err := m.Err(); err != nil {
		return err
	}
	k.warnings.Merge(m.Warnings())
	if m.unsorted() {
		k.sort()
	}
	builder := labels.NewScratchBuilder(16)
	for i := range k.series {
		s := &k.series[i]
		var err error
		if s.labels, err = ownedLabels(s.raw, &builder); err != nil {
			return err
		}
		s.chunks = tidy(s.chunks)
	}
	return nil
}

// sort puts series in order that have come out of it, and joins equal ones.
func (k *kept) sort() {
	slices.SortStableFunc(k.series, func(a, b storedSeries) int { return labelenc.Compare(a.raw, b.raw) })
	joined := k.series[:0]
	for _, s := range k.series {
		if n := len(joined); n > 0 && bytes.Equal(joined[n-1].raw, s.raw) {
			joined[n-1].chunks = append(joined[n-1].chunks, s.chunks...)
			continue
		}
		joined = append(joined, s)
	}
	k.series = joined
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
