package tsdb

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/fileutil"
	"github.com/prometheus/prometheus/tsdb/index"

	"github.com/ferula-io/ferula/internal/blocks"
	"github.com/ferula-io/ferula/internal/blocks/summaries"
	"github.com/ferula-io/ferula/internal/files"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/metrics"
)

const (
	// summariesDir is in the directory of the database. Prometheus and Thanos ignore it.
	summariesDir = "summaries"
	// temporarySuffix is the end of the name of a file that files.WriteFileWith is writing.
	temporarySuffix = ".tmp"

	// A pass over the blocks begins after summariesEvery. After a pass that failed, the next begins after summariesRetry.
	summariesEvery = time.Minute
	summariesRetry = time.Hour
	// summariesRest is how long the background rests after work, in multiples of the work.
	summariesRest = 3
	// summariesShare is the part of a block's size for which the disk must have space, at least.
	summariesShare = 8
)

// sideFiles makes a file of package summaries for each block, one after the other, and deletes it after its block. Any
// of them can be deleted at any time: without a valid file, chunks of its block are read instead.
type sideFiles struct {
	store *Store
	fs    files.FS
	dir   string

	made, failures *metrics.Counter
	bytes          atomic.Int64
	outdated       atomic.Bool // a file of another version was logged

	passing sync.Mutex // held for a pass
	cancel  context.CancelFunc
	done    chan struct{}
}

func (f *sideFiles) register(set *metrics.Set) {
	f.made = process.Counter(set, "ferula_tsdb_summaries_made_total",
		"Files with summaries of the chunks of a block that were made.")
	f.failures = process.Counter(set, "ferula_tsdb_summaries_failures_total", "Files with summaries that could not be "+
		"made, or were damaged, of another block or of another version. Their blocks are read without summaries.")
	process.Gauge(set, "ferula_tsdb_summaries_bytes", "Size of the files with summaries, which no retention size counts.",
		func() float64 { return float64(f.bytes.Load()) })
}

func (f *sideFiles) start() {
	var ctx context.Context
	ctx, f.cancel = context.WithCancel(context.Background())
	f.done = make(chan struct{})
	go f.run(ctx)
}

func (f *sideFiles) stop() {
	if f.done != nil { // a test has opened the database
		f.cancel()
		<-f.done
	}
}

func (f *sideFiles) run(ctx context.Context) {
	defer close(f.done)
	for wait := summariesEvery; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = summariesEvery
		if err := f.pass(ctx, summariesRest); err != nil && ctx.Err() == nil && !errors.Is(err, ErrNotReady) {
			f.store.logger.Warn("Long ranges are read without summaries of chunks until their files can be made", "err", err,
				"retry", summariesRetry)
			wait = summariesRetry
		}
	}
}

// Summarize makes the missing files with summaries of chunks now, for all blocks, and deletes those whose blocks are
// gone. A store also does both in the background, slowly.
func (s *Store) Summarize(ctx context.Context) error { return s.sides.pass(ctx, 0) }

// pass is Summarize. rest is how long it rests after work, in multiples of the work.
func (f *sideFiles) pass(ctx context.Context, rest int) error {
	f.passing.Lock()
	defer f.passing.Unlock()
	db := f.store.db.Load()
	if db == nil {
		return ErrNotReady
	}
	served := db.Blocks()
	existing, err := f.sweep(served)
	errs := []error{err}
	for _, b := range served {
		if existing[b.Meta().ULID] {
			continue
		}
		err := f.make(ctx, b, rest)
		if errors.Is(err, tsdb.ErrClosing) || errors.Is(err, errForeign) {
			continue // the block is gone, or read by Prometheus' querier
		}
		if err != nil && ctx.Err() == nil {
			f.failures.Inc()
			errs = append(errs, fmt.Errorf("summaries of block %s: %w", b.Meta().ULID, err))
		}
		if ctx.Err() != nil || errors.Is(err, ErrNoSpace) {
			break
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// sweep deletes the files of blocks that are gone, and incomplete files. It returns the blocks that have files.
func (f *sideFiles) sweep(served []*tsdb.Block) (existing map[ulid.ULID]bool, err error) {
	entries, err := os.ReadDir(f.dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	wanted := map[ulid.ULID]bool{}
	for _, b := range served {
		wanted[b.Meta().ULID] = true
	}
	existing = map[ulid.ULID]bool{}
	bytes := int64(0)
	for _, entry := range entries {
		name, incomplete := strings.CutSuffix(entry.Name(), temporarySuffix)
		id, e := ulid.ParseStrict(name)
		if e != nil {
			continue // not a file of ours
		}
		if incomplete || !wanted[id] {
			err = errors.Join(err, f.fs.Remove(filepath.Join(f.dir, entry.Name())))
			continue
		}
		existing[id] = true
		if info, e := entry.Info(); e == nil {
			bytes += info.Size()
		}
	}
	f.bytes.Store(bytes)
	return existing, err
}

func (f *sideFiles) make(ctx context.Context, b *tsdb.Block, rest int) (err error) {
	spare, err := f.store.guard.spare()
	if err == nil && spare < b.Size()/summariesShare {
		err = fmt.Errorf("%w: %d bytes are free above those that are reserved (--storage.tsdb.min-free)", ErrNoSpace, spare)
	}
	if err != nil {
		return err
	}
	r, err := f.store.openRawBlock(b, math.MinInt64, math.MaxInt64)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := files.MakeDir(f.fs, f.dir); err != nil {
		return err
	}
	id := b.Meta().ULID
	var w *summaries.Writer
	if err := files.WriteFileWith(f.fs, filepath.Join(f.dir, id.String()), func(to files.File) (err error) {
		if w, err = summaries.NewWriter(to, r.files.identity(id)); err != nil {
			return err
		}
		return r.files.summarize(ctx, w, &pace{rest: rest, since: time.Now()})
	}); err != nil {
		return err
	}
	f.made.Inc()
	f.bytes.Add(w.Bytes())
	f.store.mappings.attach(b.Dir())
	return nil
}

// pace slows work down.
type pace struct {
	rest  int
	steps int
	since time.Time // the begin of the work
}

// step is called after each chunk.
func (p *pace) step(ctx context.Context) error {
	if p.steps++; p.steps%256 != 0 {
		return nil
	}
	if p.rest == 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Since(p.since) * time.Duration(p.rest)):
		p.since = time.Now()
		return nil
	}
}

func (m *mapped) identity(id ulid.ULID) summaries.Block {
	sizes := make([]uint64, 0, len(m.segments))
	for _, s := range m.segments {
		sizes = append(sizes, uint64(len(s)))
	}
	return summaries.NewBlock(id, uint64(len(m.index.bytes)), m.index.bytes, sizes...)
}

// summarize writes the summaries of the block. A chunk that cannot be read has none, as have all chunks of a series
// whose chunks overlap: their readers find out.
func (m *mapped) summarize(ctx context.Context, w *summaries.Writer, pace *pace) error {
	name, value := index.AllPostingsKey()
	all, err := m.postings.Postings(ctx, name, value)
	if err != nil {
		return err
	}
	var parts entryParts
	var decoder summaries.Decoder
	for all.Next() {
		ref := uint64(all.At())
		if err := m.index.series(ref, math.MinInt64, math.MaxInt64, &parts); err != nil {
			return fmt.Errorf("series %d: %w", ref, err)
		}
		if chunksOverlap(parts.metas) {
			continue
		}
		if err := w.Series(ref); err != nil {
			return err
		}
		for _, meta := range parts.metas {
			var s series.Summary
			if encoding, data, err := m.segments.chunk(meta.Ref); err == nil {
				s = decoder.Summary(chunkOf(meta, encoding, data))
			}
			w.Chunk(s)
			if err := pace.step(ctx); err != nil {
				return err
			}
		}
	}
	if err := all.Err(); err != nil {
		return err
	}
	return w.Close()
}

func chunksOverlap(metas []blocks.Chunk) bool {
	for i := 1; i < len(metas); i++ {
		if metas[i].MinMS <= metas[i-1].MaxMS {
			return true
		}
	}
	return false
}

// attach opens the file with summaries of a mapped block. Without a valid file, the block is read without it.
// The caller holds the lock of the mappings.
func (f *sideFiles) attach(dir string, m *mapped) {
	id, err := ulid.ParseStrict(filepath.Base(dir))
	if f == nil || err != nil || m.summaries.Load() != nil {
		return
	}
	path := filepath.Join(f.dir, id.String())
	file, err := fileutil.OpenMmapFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		var r *summaries.Reader
		if r, err = summaries.Open(file.Bytes(), m.identity(id)); err == nil {
			m.files = append(m.files, file)
			m.summaries.Store(r)
			return
		}
		err = errors.Join(err, file.Close())
	}
	f.discard(path, err)
}

// discard deletes an unusable file. The next pass makes it again.
func (f *sideFiles) discard(path string, err error) {
	if f.failures.Inc(); !errors.Is(err, summaries.ErrVersion) || !f.outdated.Swap(true) {
		f.store.logger.Warn("Long ranges are read without summaries of the chunks of a block, until their file is made again",
			"file", path, "err", err)
	}
	if err := f.fs.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		f.store.logger.Warn("Cannot delete an unusable file of summaries", "file", path, "err", err)
	}
}

// seriesSummaries appends summaries to the chunks of a set, of one series after the other.
type seriesSummaries struct {
	summaries.Picker
	data []byte // of the chunks that were appended

	edges   []uint64 // what touch touched
	touched byte
}

// open begins a set. It uses no summaries if the block has none, or none are wanted.
func (s *seriesSummaries) open(set *rawSet) {
	b := set.block
	file := b.files.summaries.Load()
	if s.Opts = set.opts.Summaries; file == nil || s.Opts == nil {
		return
	}
	s.Cursor, s.MinMS, s.MaxMS = file.Cursor(), b.mint, b.maxt
	s.Read = func(c blocks.Chunk) (series.Chunk, error) {
		encoding, data, err := b.files.segments.chunk(c.Ref)
		return chunkOf(c, encoding, data), err
	}
	s.Emit = func(one *series.Summary, minMS, maxMS int64) {
		from := len(s.data)
		s.data = series.AppendSummary(s.data, *one)
		set.chunks = append(set.chunks, series.Chunk{MinMS: minMS, MaxMS: maxMS, Encoding: series.Summarized,
			Kept: s.Opts.Keeps != nil && s.Opts.Keeps(one), Data: s.data[from:]})
	}
	s.Damaged = func(err error) { // ends the use of the file by everybody
		if b.files.summaries.CompareAndSwap(file, nil) {
			f := b.mappings.sides
			f.discard(filepath.Join(f.dir, filepath.Base(b.dir)), err)
		}
	}
}

const (
	touchBytes     = 512
	cacheLineBytes = 64
)

// touch touches the chunks of a series that must be split, up to the next chunk but at most touchBytes of each.
func (s *seriesSummaries) touch(segments segments, metas []blocks.Chunk) {
	if s.Cursor == nil || !s.Opts.Joined() {
		return
	}
	s.edges = s.edges[:0]
	untilMS := s.Opts.Until(metas[0].MinMS)
	for i := 0; i < len(metas)-1; i++ {
		if c := &metas[i]; c.MaxMS > untilMS {
			untilMS = s.Opts.Until(c.MaxMS)
			for ref := c.Ref; ref < min(metas[i+1].Ref, c.Ref+touchBytes); ref += cacheLineBytes {
				s.edges = append(s.edges, ref)
			}
		}
	}
	s.touched += segments.touch(s.edges)
}
