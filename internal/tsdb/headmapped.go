package tsdb

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"path/filepath"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/fileutil"

	"github.com/ferula-io/ferula/internal/series"
)

// clonesMax is the number of mapped chunks for which a view uses the head's clones: to map a file takes about as long.
const clonesMax = 64

// mapped returns a chunk of a series from the files of mapped chunks. They stay mapped until the view is closed, also
// if the database deletes them. ok is false if the chunk is not at this place, such as before it was written.
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
