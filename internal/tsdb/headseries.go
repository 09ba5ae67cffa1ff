package tsdb

import (
	"fmt"
	"math"
	"reflect"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
)

// memSeries is a series of Prometheus' head. The head's readers look it up by its reference, twice in a read, and
// clone its chunks. A read of a series that nothing has read for some seconds is mostly waiting for memory, so a
// repeated selection, as that of a rule, reads the series that it has found before in place.
//
// The head has no call that returns a series, so this file finds the private fields by names and types. It can go once
// the head has such a call.
type memSeries struct{ _ byte }

// fields are the offsets of the fields. A process with a head that has other fields does not start.
var fields = func() (f struct {
	lock, lset, mapped, open, txs uintptr // of a series
	state                         uintptr // its highest bit: it was removed from the head
	ref, mappedMin, mappedMax     uintptr // of a mapped chunk
	chunk, minMS, maxMS, prev     uintptr // of a chunk in memory
	stream                        uintptr // of an XOR chunk; its first word points to the bytes
	ids, first, count             uintptr // of the IDs of the last appends to a series
	last, incomplete, appends     uintptr // of what a view contains
	appendsLock, newest, id       uintptr // of the appends to the head
}) {
	field := func(of reflect.Type, name, is string, at *uintptr) reflect.Type {
		found, ok := of.FieldByName(name)
		if !ok || found.Type.String() != is {
			panic(fmt.Sprintf("%s of Prometheus' head has no field %s %s", of, name, is))
		}
		if at != nil {
			*at = found.Offset
		}
		of = found.Type
		for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice || of.Kind() == reflect.Map {
			of = of.Elem()
		}
		return of
	}
	head := reflect.TypeFor[tsdb.Head]()
	series := field(field(head, "series", "*tsdb.stripeSeries", nil), "series",
		"[]map[chunks.HeadSeriesRef]*tsdb.memSeries", nil)
	field(series, "Mutex", "sync.Mutex", &f.lock)
	field(series, "lset", "labels.Labels", &f.lset)
	mapped := field(series, "mmappedChunks", "[]*tsdb.mmappedChunk", &f.mapped)
	field(mapped, "ref", "chunks.ChunkDiskMapperRef", &f.ref)
	field(mapped, "minTime", "int64", &f.mappedMin)
	field(mapped, "maxTime", "int64", &f.mappedMax)
	field(series, "state", "uint32", &f.state)
	open := field(series, "headChunks", "*tsdb.memChunk", &f.open)
	field(open, "chunk", "chunkenc.Chunk", &f.chunk)
	field(open, "minTime", "int64", &f.minMS)
	field(open, "maxTime", "int64", &f.maxMS)
	field(open, "prev", "*tsdb.memChunk", &f.prev)
	txs := field(series, "txs", "*tsdb.txRing", &f.txs)
	field(txs, "txIDs", "[]uint64", &f.ids)
	field(txs, "txIDFirst", "uint32", &f.first)
	field(txs, "txIDCount", "uint32", &f.count)
	appends := field(head, "iso", "*tsdb.isolation", nil)
	field(appends, "appendMtx", "sync.RWMutex", &f.appendsLock)
	field(field(appends, "appendsOpenList", "*tsdb.isolationAppender", &f.newest), "appendID", "uint64", &f.id)
	view := field(appends, "readsOpen", "*tsdb.isolationState", nil)
	field(view, "maxAppendID", "uint64", &f.last)
	field(view, "incompleteAppends", "map[uint64]struct {}", &f.incomplete)
	field(view, "isolation", "*tsdb.isolation", &f.appends)
	var stream uintptr
	field(field(reflect.TypeFor[chunkenc.XORChunk](), "b", "chunkenc.bstream", &f.stream), "stream", "[]uint8", &stream)
	f.stream += stream
	return f
}()

// viewOf returns what a reader of the head contains.
func viewOf(r tsdb.ChunkReader) unsafe.Pointer {
	return reflect.ValueOf(r).Elem().FieldByName("isoState").UnsafePointer()
}

// at returns a field of an object of the head.
func at[T any](object unsafe.Pointer, offset uintptr) T { return *(*T)(unsafe.Add(object, offset)) }

// openChunk is a copy of the chunk to which the head appends.
type openChunk struct {
	metric       labels.Labels // of the series; shared immutable
	minMS, maxMS int64
	beforeMS     int64 // end of the last mapped chunk
	data         []byte
}

// read copies the chunk to which the head appends. It returns false if there is no such XOR chunk, if a view does not
// contain all its samples, if the chunk before it is not mapped, or if the series was removed, as its tombstones are.
func (s *memSeries) read(view unsafe.Pointer, c *openChunk) bool {
	series := unsafe.Pointer(s)
	lock := (*sync.Mutex)(unsafe.Add(series, fields.lock))
	lock.Lock()
	defer lock.Unlock()
	open := at[unsafe.Pointer](series, fields.open)
	if open == nil || at[unsafe.Pointer](open, fields.prev) != nil || at[uint32](series, fields.state)>>31 != 0 ||
		!contains(view, series) {
		return false
	}
	chunk, ok := at[chunkenc.Chunk](open, fields.chunk).(*chunkenc.XORChunk)
	if !ok {
		return false
	}
	*c = openChunk{at[labels.Labels](series, fields.lset), at[int64](open, fields.minMS), at[int64](open, fields.maxMS),
		math.MinInt64, append(c.data[:0], chunk.Bytes()...)}
	if mapped := at[[]unsafe.Pointer](series, fields.mapped); len(mapped) > 0 {
		c.beforeMS = at[int64](mapped[len(mapped)-1], fields.mappedMax)
	}
	return true
}

// locked stands for a chunk of the head until the head calls NumSamples. The head calls it with the lock of the series,
// when it makes an iterator. So NumSamples can read what appends change, without the clone that the head makes.
type locked struct {
	chunkenc.Chunk
	series *memSeries
	metas  []chunks.Meta

	places []chunks.ChunkDiskMapperRef // of the first of metas, as far as they are mapped
	newest bool                        // the head appends to the chunk
	open   openChunk                   // the end and the data of the newest chunk
}

// wrap makes l stand for a chunk that the head has returned, and that has the chunk itself and its series as its first
// fields. metas are those of the series.
func (l *locked) wrap(chunk chunkenc.Chunk, metas []chunks.Meta) {
	of := reflect.ValueOf(chunk).Elem()
	l.Chunk, l.series, l.metas = of.Field(0).Interface().(chunkenc.Chunk), (*memSeries)(of.Field(1).UnsafePointer()), metas
	l.places, l.newest = l.places[:0], false
	of.Field(0).Set(reflect.ValueOf(l))
}

// NumSamples implements chunkenc.Chunk.
func (l *locked) NumSamples() int {
	series := unsafe.Pointer(l.series)
	for _, c := range at[[]unsafe.Pointer](series, fields.mapped) {
		if n := len(l.places); n < len(l.metas) && at[int64](c, fields.mappedMin) == l.metas[n].MinTime &&
			at[int64](c, fields.mappedMax) == l.metas[n].MaxTime {
			l.places = append(l.places, at[chunks.ChunkDiskMapperRef](c, fields.ref))
		}
	}
	newest := at[unsafe.Pointer](series, fields.open) // nil: all chunks are mapped
	if newest != nil && at[chunkenc.Chunk](newest, fields.chunk) == l.Chunk {
		l.newest, l.open.maxMS, l.open.data = true, at[int64](newest, fields.maxMS), append(l.open.data[:0], l.Bytes()...)
	}
	return l.Chunk.NumSamples()
}

// contains reports whether a view contains the last appends to a series, and so all. Mostly no append has begun since
// the view was opened.
func contains(view, series unsafe.Pointer) bool {
	last, incomplete := at[uint64](view, fields.last), at[map[uint64]struct{}](view, fields.incomplete)
	if len(incomplete) == 0 && lastAppend(at[unsafe.Pointer](view, fields.appends)) == last {
		return true
	}
	txs := at[unsafe.Pointer](series, fields.txs)
	if txs == nil { // nothing is hidden
		return true
	}
	ids, first := at[[]uint64](txs, fields.ids), int(at[uint32](txs, fields.first))
	for i := range int(at[uint32](txs, fields.count)) {
		id := ids[(first+i)%len(ids)]
		if _, hidden := incomplete[id]; hidden || id > last {
			return false
		}
	}
	return true
}

func lastAppend(appends unsafe.Pointer) uint64 {
	lock := (*sync.RWMutex)(unsafe.Add(appends, fields.appendsLock))
	lock.RLock()
	defer lock.RUnlock()
	return at[uint64](at[unsafe.Pointer](appends, fields.newest), fields.id)
}

// touchSeries is the number of series whose memory is waited for together.
const touchSeries = 32

// touch reads what read will read of some series. The processor waits for the memory of all of them at once, not for
// each when it is read. The result has no meaning. No lock is held, so each word that may change is read alone.
//
//go:norace
func touch(known []atomic.Pointer[memSeries]) (sum byte) {
	var series, next [touchSeries]unsafe.Pointer
	for i := range known {
		if series[i] = unsafe.Pointer(known[i].Load()); series[i] != nil {
			sum += *(*byte)(series[i])
			next[i] = at[unsafe.Pointer](series[i], fields.open)
		}
	}
	for i, open := range next {
		if next[i] = nil; open != nil {
			if chunk, ok := at[chunkenc.Chunk](open, fields.chunk).(*chunkenc.XORChunk); ok {
				next[i] = unsafe.Pointer(chunk)
			}
			if at[labels.Labels](series[i], fields.lset).Has("\x00") {
				sum++
			}
		}
	}
	for i, chunk := range next {
		if chunk != nil {
			next[i] = at[unsafe.Pointer](chunk, fields.stream)
		}
	}
	for _, stream := range next {
		if stream != nil {
			sum += *(*byte)(stream)
		}
	}
	return sum
}
