package export

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/tombstones"

	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	storetsdb "github.com/ferula-io/ferula/internal/tsdb"
)

// blockWriter writes the series of one window as a TSDB block.
//
// Chunks are copied to the block's segments as they are, except that chunks which overlap or extend
// beyond the window are re-encoded. The index is written last: it begins with the sorted symbols,
// which are not known before the last series. Until then the label sets and chunk references are in
// a spill file:
//
//	series  uvarint(len) labels  uvarint(chunks)  (uvarint ref  uvarint mint  uvarint maxt-mint)*
//
// Memory holds the symbols, which are the distinct label names and values.
type blockWriter struct {
	dir, tmp   string
	id         ulid.ULID
	win        window
	chunks     *chunks.Writer
	file       *os.File
	spill      *bufio.Writer
	symbols    map[string]struct{}
	metas      []chunks.Meta
	entry      []byte
	series     uint64
	stats      blockStats
	chunkBytes int64
}

type blockStats struct{ samples, floats, histograms, chunks uint64 }

// unfinishedSuffix is the suffix of directories that Prometheus removes at startup.
const unfinishedSuffix = ".tmp-for-creation"

func newBlockWriter(dir string, id ulid.ULID, win window) (*blockWriter, error) {
	b := &blockWriter{dir: filepath.Join(dir, id.String()), id: id, win: win, symbols: map[string]struct{}{"": {}}}
	b.tmp = b.dir + unfinishedSuffix
	if err := os.MkdirAll(b.tmp, 0o777); err != nil {
		return nil, err
	}
	var err error
	if b.chunks, err = chunks.NewWriter(filepath.Join(b.tmp, "chunks")); err != nil {
		return nil, err
	}
	if b.file, err = os.Create(filepath.Join(b.tmp, "series")); err != nil {
		return nil, errors.Join(err, b.chunks.Close())
	}
	b.spill = bufio.NewWriterSize(b.file, bufferBytes)
	return b, nil
}

func (b *blockWriter) add(s *samples) error {
	b.metas = b.metas[:0]
	for rest := s.chunks; len(rest) > 0; {
		n := group(rest)
		if err := b.group(rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	if len(b.metas) == 0 {
		return nil
	}
	if err := b.chunks.WriteChunks(b.metas...); err != nil {
		return err
	}
	for set := s.labels; len(set) > 0; {
		name, value, rest, err := labelenc.Next(set)
		if err != nil {
			return err
		}
		b.symbol(name)
		b.symbol(value)
		set = rest
	}
	b.series++
	b.entry = appendPrefixed(b.entry[:0], s.labels)
	b.entry = binary.AppendUvarint(b.entry, uint64(len(b.metas)))
	for _, meta := range b.metas {
		b.entry = binary.AppendUvarint(b.entry, uint64(meta.Ref))
		b.entry = binary.AppendUvarint(b.entry, uint64(meta.MinTime)) // a negative one has ten bytes
		b.entry = binary.AppendUvarint(b.entry, uint64(meta.MaxTime-meta.MinTime))
		n := uint64(meta.Chunk.NumSamples())
		s.total += int64(n)
		b.stats.samples += n
		b.stats.chunks++
		b.chunkBytes += int64(len(meta.Chunk.Bytes()))
		if e := meta.Chunk.Encoding(); e == chunkenc.EncXOR || e == chunkenc.EncXOR2 {
			b.stats.floats += n
		} else {
			b.stats.histograms += n
		}
	}
	_, err := b.spill.Write(b.entry)
	return err
}

func (b *blockWriter) symbol(text []byte) {
	if _, ok := b.symbols[string(text)]; !ok {
		b.symbols[string(text)] = struct{}{}
	}
}

// group appends to b.metas the chunks of list: one chunk, or several that overlap. One chunk within
// the window is appended as it is. All others are merged and re-encoded, without the samples outside
// the window.
func (b *blockWriter) group(list []series.Chunk) error {
	if c := list[0]; len(list) == 1 && c.MinMS >= b.win.mint && c.MaxMS <= b.win.maxt {
		chunk, err := c.Decoder()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if chunk.NumSamples() > 0 {
			b.metas = append(b.metas, chunks.Meta{Chunk: chunk, MinTime: c.MinMS, MaxTime: c.MaxMS})
		}
		return nil
	}
	all, err := series.Iterator(list)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	encoded := storage.NewSeriesToChunkEncoder(&storage.SeriesEntry{Lset: labels.EmptyLabels(),
		SampleIteratorFn: func(chunkenc.Iterator) chunkenc.Iterator {
			return &within{Iterator: all, win: b.win} // it is called once
		}})
	it := encoded.Iterator(nil)
	for it.Next() {
		b.metas = append(b.metas, it.At())
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return nil
}

// within skips samples outside the window. Only its Next is used.
type within struct {
	chunkenc.Iterator
	win window
}

// Next implements chunkenc.Iterator.
func (w *within) Next() chunkenc.ValueType {
	for {
		kind := w.Iterator.Next()
		if kind == chunkenc.ValNone || w.AtT() > w.win.maxt {
			return chunkenc.ValNone
		}
		if w.AtT() >= w.win.mint {
			return kind
		}
	}
}

// finish completes the block and returns its size. It removes a block without samples and returns 0.
func (b *blockWriter) finish(ctx context.Context) (bytes int64, err error) {
	err = errors.Join(b.spill.Flush(), b.chunks.Close())
	b.chunks = nil
	if err != nil {
		return 0, err
	}
	if b.series == 0 {
		return 0, b.discard()
	}
	if err := b.index(ctx); err != nil {
		return 0, fmt.Errorf("index: %w", err)
	}
	err = errors.Join(b.file.Close(), os.Remove(b.file.Name()))
	b.file = nil
	if err != nil {
		return 0, err
	}
	if _, err := tombstones.WriteFile(slog.New(slog.DiscardHandler), b.tmp, tombstones.NewMemTombstones()); err != nil {
		return 0, err
	}
	if err := b.meta(); err != nil {
		return 0, err
	}
	if err := (files.Disk{}).SyncDir(b.tmp); err != nil {
		return 0, err
	}
	if err := fileutil.Replace(b.tmp, b.dir); err != nil {
		return 0, err
	}
	err = filepath.WalkDir(b.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	return bytes, errors.Join(err, files.Disk{}.SyncDir(filepath.Dir(b.dir)))
}

// index writes the index from the spill file.
func (b *blockWriter) index(ctx context.Context) (err error) {
	w, err := index.NewWriter(ctx, filepath.Join(b.tmp, "index"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	for _, symbol := range slices.Sorted(maps.Keys(b.symbols)) {
		if err := w.AddSymbol(symbol); err != nil {
			return err
		}
	}
	b.symbols = nil
	if _, err := b.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	from := &partReader{from: bufio.NewReaderSize(b.file, bufferBytes)}
	builder := labels.NewScratchBuilder(16)
	for ref := range b.series {
		lset, err := b.spilled(from, &builder)
		if err != nil {
			return err
		}
		if err := w.AddSeries(storage.SeriesRef(ref), lset, b.metas...); err != nil {
			return err
		}
	}
	return nil
}

// spilled reads one series from the spill file; its chunks are in b.metas.
func (b *blockWriter) spilled(from *partReader, builder *labels.ScratchBuilder) (_ labels.Labels, err error) {
	if from.labels, err = from.text(from.labels); err != nil {
		return labels.EmptyLabels(), err
	}
	n, err := from.size()
	b.metas = b.metas[:0]
	for ; n > 0 && err == nil; n-- {
		var ref, mint, length uint64
		for _, number := range []*uint64{&ref, &mint, &length} {
			if err == nil {
				*number, err = from.size()
			}
		}
		b.metas = append(b.metas, chunks.Meta{Ref: chunks.ChunkRef(ref), MinTime: int64(mint), MaxTime: int64(mint + length)})
	}
	if err != nil {
		return labels.EmptyLabels(), err
	}
	return labelenc.Labels(from.labels, builder)
}

// meta writes meta.json. The last block ends with the requested range, not at the next multiple of
// the block length: a Prometheus to which the blocks are added refuses samples before the end of its newest
// block.
func (b *blockWriter) meta() error {
	meta := tsdb.BlockMeta{ULID: b.id, MinTime: b.win.mint, MaxTime: b.win.maxt + 1, Version: 1,
		Stats: tsdb.BlockStats{NumSamples: b.stats.samples, NumFloatSamples: b.stats.floats,
			NumHistogramSamples: b.stats.histograms, NumSeries: b.series, NumChunks: b.stats.chunks},
		Compaction: tsdb.BlockMetaCompaction{Level: 1, Sources: []ulid.ULID{b.id}}}
	return storetsdb.WriteMeta(b.tmp, meta)
}

// discard removes the block's files.
func (b *blockWriter) discard() error {
	var errs []error
	if b.chunks != nil {
		errs = append(errs, b.chunks.Close())
		b.chunks = nil
	}
	if b.file != nil {
		errs = append(errs, b.file.Close())
		b.file = nil
	}
	return errors.Join(append(errs, os.RemoveAll(b.tmp))...)
}
