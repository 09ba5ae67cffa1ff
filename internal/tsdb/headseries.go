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

	"github.com/ferula-io/ferula/internal/series"
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
	series, view                  reflect.Type // pointers to a series, and to what a view contains
	lock, lset, mapped, open, txs uintptr      // of a series
	state                         uintptr      // its highest bit: it was removed from the head
	ref, mappedMin, mappedMax     uintptr      // of a mapped chunk
	chunk, minMS, maxMS, prev     uintptr      // of a chunk in memory
	stream                        uintptr      // of an XOR chunk; its first word points to the bytes
	ids, first, count             uintptr      // of the IDs of the last appends to a series
	last, incomplete, appends     uintptr      // of what a view contains
	appendsLock, newest, id       uintptr      // of the appends to the head
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
	f.series, f.view = reflect.PointerTo(series), reflect.PointerTo(view)
	return f
}()

// viewOf returns what a reader of the head contains.
func viewOf(r tsdb.ChunkReader) unsafe.Pointer {
	return pointer(reflect.ValueOf(r).Elem().FieldByName("isoState"), fields.view)
}

// object returns the address of an object of the head.
//
//lint:ignore gosec the names and types of all fields that are read were compared
func object[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// in returns the address of a field of an object of the head.
func in[T any](of unsafe.Pointer, offset uintptr) *T { return (*T)(unsafe.Add(of, offset)) }

// at returns a field of an object of the head.
func at[T any](of unsafe.Pointer, offset uintptr) T { return *in[T](of, offset) }

// openChunk is a copy of the chunk to which the head appends, and what else is read with the lock of its series.
type openChunk struct {
	metric       labels.Labels     // of the series; shared immutable
	removed      bool              // from the head, as its tombstones are
	encoding     chunkenc.Encoding // 0: all chunks are mapped
	minMS, maxMS int64
	samples      int
	hidden       int   // of the last samples of the series: those that the view does not contain
	beforeMS     int64 // end of the chunk before it
	data         []byte
	places       []chunks.ChunkDiskMapperRef // of the first of metas, as far as they are mapped
}

func (c *openChunk) chunk() series.Chunk {
	return series.Chunk{MinMS: c.minMS, MaxMS: c.maxMS, Encoding: c.encoding, Data: c.data}
}

// read reads the chunk to which the head appends, and the places of the series' chunks, which are metas.
func (s *memSeries) read(view unsafe.Pointer, metas []chunks.Meta, c *openChunk) {
	series := object(s)
	lock := in[sync.Mutex](series, fields.lock)
	lock.Lock()
	defer lock.Unlock()
	*c = openChunk{metric: at[labels.Labels](series, fields.lset), removed: at[uint32](series, fields.state)>>31 != 0,
		hidden: hidden(view, series), beforeMS: math.MinInt64, data: c.data[:0], places: c.places[:0]}
	for _, m := range at[[]unsafe.Pointer](series, fields.mapped) {
		c.beforeMS = at[int64](m, fields.mappedMax)
		if n := len(c.places); n < len(metas) && at[int64](m, fields.mappedMin) == metas[n].MinTime &&
			c.beforeMS == metas[n].MaxTime {
			c.places = append(c.places, at[chunks.ChunkDiskMapperRef](m, fields.ref))
		}
	}
	open := at[unsafe.Pointer](series, fields.open)
	if open == nil {
		return
	}
	if prev := at[unsafe.Pointer](open, fields.prev); prev != nil {
		c.beforeMS = at[int64](prev, fields.maxMS)
	}
	chunk := at[chunkenc.Chunk](open, fields.chunk)
	c.encoding, c.minMS, c.maxMS = chunk.Encoding(), at[int64](open, fields.minMS), at[int64](open, fields.maxMS)
	c.samples, c.data = chunk.NumSamples(), append(c.data, chunk.Bytes()...)
}

// seriesOf returns the series of a chunk that the head has returned, which has the series as its second field.
func seriesOf(chunk chunkenc.Chunk) *memSeries {
	return (*memSeries)(pointer(reflect.ValueOf(chunk).Elem().Field(1), fields.series))
}

func pointer(field reflect.Value, is reflect.Type) unsafe.Pointer {
	if field.Type() != is {
		panic(fmt.Sprintf("what Prometheus' head returns has a %s, not a %s", field.Type(), is))
	}
	return field.UnsafePointer()
}

// hidden returns how many of the last samples of a series a view does not contain. Mostly no append has begun since the
// view was opened.
func hidden(view, series unsafe.Pointer) int {
	last, incomplete := at[uint64](view, fields.last), at[map[uint64]struct{}](view, fields.incomplete)
	if len(incomplete) == 0 && lastAppend(at[unsafe.Pointer](view, fields.appends)) == last {
		return 0
	}
	txs := at[unsafe.Pointer](series, fields.txs)
	if txs == nil {
		return 0
	}
	ids, first := at[[]uint64](txs, fields.ids), int(at[uint32](txs, fields.first))
	count := int(at[uint32](txs, fields.count))
	for i := range count {
		id := ids[(first+i)%len(ids)]
		if _, open := incomplete[id]; open || id > last {
			return count - i
		}
	}
	return 0
}

func lastAppend(appends unsafe.Pointer) uint64 {
	lock := in[sync.RWMutex](appends, fields.appendsLock)
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
		if series[i] = object(known[i].Load()); series[i] != nil {
			sum += *(*byte)(series[i])
			next[i] = at[unsafe.Pointer](series[i], fields.open)
		}
	}
	for i, open := range next {
		if next[i] = nil; open != nil {
			if chunk, ok := at[chunkenc.Chunk](open, fields.chunk).(*chunkenc.XORChunk); ok {
				next[i] = object(chunk)
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
