package tsdb

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"path/filepath"
	"reflect"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/series"
)

// clonesMax is the number of mapped chunks for which a view uses the head's clones: to map a file takes about as long.
const clonesMax = 64

// mapped returns a chunk of a series from the files of mapped chunks. They stay mapped until the view is closed, also if
// the database deletes them. ok is false if the chunk is not at this place, such as before it was written.
//
//	chunk  series, min, max: 8 bytes each | encoding | uvarint(len) data | crc32 of these
func (h *rawHead) mapped(place chunks.ChunkDiskMapperRef, ref storage.SeriesRef,
	meta chunks.Meta) (c series.Chunk, ok bool) {
	if h.cloned++; h.cloned <= clonesMax {
		return c, false
	}
	sequence, at := place.Unpack()
	file, known := h.files[sequence]
	if !known {
		opened, err := fileutil.OpenMmapFile(filepath.Join(h.store.opts.Dir, "chunks_head", fmt.Sprintf("%06d", sequence)))
		if err == nil {
			h.closeLater(opened)
			file = opened.Bytes()
		}
		h.files[sequence] = file
	}
	const head = 3*8 + 1
	if at > len(file)-head-chunkLengthMax {
		return c, false
	}
	file = file[at:]
	size, n := binary.Uvarint(file[head : head+chunkLengthMax])
	if n <= 0 || size > math.MaxInt32 || head+n+int(size)+crc32.Size > len(file) {
		return c, false
	}
	end := head + n + int(size)
	c = series.Chunk{MinMS: int64(binary.BigEndian.Uint64(file[8:])), MaxMS: int64(binary.BigEndian.Uint64(file[16:])),
		Encoding: chunkenc.Encoding(file[head-1]), Data: file[head+n : end], Mapped: true}
	return c, storage.SeriesRef(binary.BigEndian.Uint64(file)) == ref && c.MinMS == meta.MinTime &&
		c.MaxMS == meta.MaxTime && chunkenc.IsValidEncoding(c.Encoding) &&
		crc32.Checksum(file[:end], castagnoli) == binary.BigEndian.Uint32(file[end:])
}

// seriesFields are the fields of the head's series that locked reads, since no call returns them. A process with a head
// that has other fields does not start.
var seriesFields = func() (f struct {
	mapped, newest            int
	ref, mappedMin, mappedMax int // of a mapped chunk
	chunk, newestMax          int // of a chunk in memory
}) {
	find := func(in reflect.Type, name string) (index int, elem reflect.Type) {
		field, ok := in.FieldByName(name)
		if elem = field.Type; !ok {
			panic(fmt.Sprintf("%s of Prometheus' head has no field %s", in, name))
		}
		for elem.Kind() == reflect.Pointer || elem.Kind() == reflect.Slice || elem.Kind() == reflect.Map {
			elem = elem.Elem()
		}
		return field.Index[0], elem
	}
	_, stripes := find(reflect.TypeFor[tsdb.Head](), "series")
	_, series := find(stripes, "series")
	var mapped, chunk reflect.Type
	f.mapped, mapped = find(series, "mmappedChunks")
	f.ref, _ = find(mapped, "ref")
	f.mappedMin, _ = find(mapped, "minTime")
	f.mappedMax, _ = find(mapped, "maxTime")
	f.newest, chunk = find(series, "headChunks")
	f.chunk, _ = find(chunk, "chunk")
	f.newestMax, _ = find(chunk, "maxTime")
	return f
}()

// locked stands for a chunk of the head until the head calls NumSamples. The head calls it with the lock of the series,
// when it makes an iterator. So NumSamples can read what appends change, without the clone that the head makes.
type locked struct {
	chunkenc.Chunk
	series reflect.Value
	metas  []chunks.Meta

	places []chunks.ChunkDiskMapperRef // of the first of metas, as far as they are mapped
	newest bool                        // the head appends to the chunk
	maxMS  int64                       // of the newest chunk
	data   []byte                      // of the newest chunk
}

// wrap makes l stand for a chunk that the head has returned, and that has the chunk itself and its series as its first
// fields. metas are those of the series.
func (l *locked) wrap(chunk chunkenc.Chunk, metas []chunks.Meta) {
	of := reflect.ValueOf(chunk).Elem()
	l.Chunk, l.series, l.metas = of.Field(0).Interface().(chunkenc.Chunk), of.Field(1).Elem(), metas
	l.places, l.newest = l.places[:0], false
	of.Field(0).Set(reflect.ValueOf(l))
}

// NumSamples implements chunkenc.Chunk.
func (l *locked) NumSamples() int {
	f := &seriesFields
	mapped := l.series.Field(f.mapped)
	for i := 0; i < mapped.Len() && len(l.places) < len(l.metas); i++ {
		c, meta := mapped.Index(i).Elem(), l.metas[len(l.places)]
		if c.Field(f.mappedMin).Int() == meta.MinTime && c.Field(f.mappedMax).Int() == meta.MaxTime {
			l.places = append(l.places, chunks.ChunkDiskMapperRef(c.Field(f.ref).Uint()))
		}
	}
	newest := l.series.Field(f.newest).Elem() // none: all chunks are mapped
	if newest.IsValid() && newest.Field(f.chunk).Elem().Pointer() == reflect.ValueOf(l.Chunk).Pointer() {
		l.newest, l.maxMS, l.data = true, newest.Field(f.newestMax).Int(), append(l.data[:0], l.Bytes()...)
	}
	return l.Chunk.NumSamples()
}
