package block

import (
	"bytes"
	"fmt"
	"io"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/parquet-go/parquet-go"

	"github.com/ferula-io/ferula/internal/profiles"
)

const (
	nearColumns = 8       // cached columns of a remote block
	checkBytes  = 4 << 20 // size of the reads of a column whose checksum is verified
)

// HeadBytes is the number of bytes from the beginning of an index that are enough for MetaOf,
// even if the block has a thousand parents.
const HeadBytes = 64 << 10

// IndexMax is the size of the largest index that a server reads from a bucket.
const IndexMax = 256 << 20

// MetaOf decodes a block's meta from the beginning of its index.
func MetaOf(head []byte) (Meta, error) {
	s, err := firstSection(head)
	if err != nil {
		return Meta{}, err
	}
	body, err := s.open(sectionMeta)
	if err != nil {
		return Meta{}, err
	}
	return decodeMeta(body)
}

// remote reads the rows of a remote block. Columns of fixed width are read whole. The last
// nearColumns of them are cached.
type remote struct {
	rows  io.ReaderAt
	spans io.ReaderAt // SpansFile; nil: not readable

	mu   sync.Mutex
	near [nearColumns]nearColumn
	next int // index in near of the column that store replaces next
}

type nearColumn struct {
	place extent
	bytes []byte
}

// OpenAt opens a block from its index, which the reader owns from then on, and its rows,
// which are read by ranges. Failed reads return profiles.ErrUnavailable. Checksums of columns
// are verified as for a local block.
func OpenAt(name string, index []byte, rows io.ReaderAt, size int64) (*Reader, error) {
	r := &Reader{name: "block " + name, remote: &remote{rows: rows}, indexBytes: int64(len(index))}
	if err := r.read(index, uint64(size)); err != nil {
		return nil, fmt.Errorf("%s: %w", r.name, err)
	}
	r.spansBytes = int64(r.meta.SpansBytes)
	return r, nil
}

// ReadAt implements io.ReaderAt.
func (m *remote) ReadAt(b []byte, at int64) (int, error) {
	n, err := m.rows.ReadAt(b, at)
	if n < len(b) {
		return n, fmt.Errorf("%w: %s: %d bytes at %d: %w", profiles.ErrUnavailable, RowsFile, len(b), at, err)
	}
	return n, nil
}

// cached returns a cached column, nil if it is not cached.
func (m *remote) cached(p extent) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.near {
		if n := &m.near[i]; n.bytes != nil && n.place == p {
			return n.bytes
		}
	}
	return nil
}

// store caches a verified column.
func (m *remote) store(p extent, b []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := range m.near {
		if m.near[i].bytes != nil && m.near[i].place == p {
			return
		}
	}
	m.near[m.next] = nearColumn{p, b}
	m.next = (m.next + 1) % nearColumns
}

// drop drops the cached columns.
func (m *remote) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.near[:])
}

// sum returns the checksum of an extent of RowsFile. The bytes are not cached.
func (r *Reader) sum(p extent) (uint64, error) {
	if r.remote == nil {
		return xxhash.Sum64(r.rows.Bytes()[p.offset : p.offset+p.size]), nil
	}
	digest := xxhash.New()
	b := make([]byte, min(p.size, checkBytes))
	for at, end := p.offset, p.offset+p.size; at < end; at += uint64(len(b)) {
		b = b[:min(uint64(len(b)), end-at)]
		if _, err := r.remote.ReadAt(b, int64(at)); err != nil {
			return 0, err
		}
		_, _ = digest.Write(b) // it never fails
	}
	return digest.Sum64(), nil
}

// openParquet opens the rows as a Parquet file.
func (r *Reader) openParquet() (*parquet.File, error) {
	sum, err := r.sum(extent{offset: r.meta.TailAt, size: r.meta.RowsBytes - r.meta.TailAt})
	if err != nil {
		return nil, err
	}
	if sum != r.meta.TailSum {
		return nil, corruptf("%s: wrong checksum from byte %d", RowsFile, r.meta.TailAt)
	}
	size := int64(r.meta.RowsBytes)
	var from io.ReaderAt
	if r.remote != nil {
		from = io.NewSectionReader(r.remote, 0, size)
	} else {
		from = bytes.NewReader(r.rows.Bytes())
	}
	file, err := parquet.OpenFile(from, size, parquet.SkipBloomFilters(true))
	switch {
	case err != nil && readFailed(err):
		return nil, err
	case err != nil:
		return nil, corruptf("%s: %v", RowsFile, err)
	case len(file.RowGroups()) != len(r.chunks):
		return nil, corruptf("%s has %d row groups, want %d", RowsFile, len(file.RowGroups()), len(r.chunks))
	}
	return file, nil
}
