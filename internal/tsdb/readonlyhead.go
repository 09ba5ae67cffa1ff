package tsdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/record"
	"github.com/prometheus/prometheus/tsdb/wlog"
	"github.com/prometheus/prometheus/util/compression"
)

// replayedHead is the replayed logs of a database. The replay may write, so it works in a directory of its own:
//
//	wal, wbl           directories of links to the segments and checkpoints of the database, and a new segment
//	chunk_snapshot.*   directory of links to the files of the last snapshot of the head, if there is one
//	chunks_head        hard links to the mapped chunks, or copies of them if the database is on another file system
//
// A server that keeps a snapshot at its shutdown (memory-snapshot-on-shutdown) starts from it, and replays only the
// records behind it. The log alone is then not enough: its checkpoints may lack series that were in the head at the
// shutdown.
type replayedHead struct {
	dir     string
	opts    *tsdb.HeadOptions
	head    *tsdb.Head
	querier storage.ChunkQuerier // over the whole range
	minMS   int64                // minimum timestamp
}

// openHead replays the logs of the database in dir. All in-order samples before afterMS are in
// blocks; math.MinInt64: no block is known to have them. late is true if the logs may have
// out-of-order samples older than afterMS.
func openHead(ctx context.Context, dir, sandbox string, afterMS int64, late bool,
	logger *slog.Logger) (_ *replayedHead, err error) {
	h := &replayedHead{minMS: afterMS}
	if h.dir, err = os.MkdirTemp(sandbox, "head"); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, h.close())
		}
	}()
	if dir, err = filepath.Abs(dir); err != nil {
		return nil, err
	}
	if err := h.replay(dir, afterMS, logger); err != nil {
		return nil, err
	}
	if late {
		h.minMS, err = h.oldest(ctx)
	}
	return h, err
}

// replay replays the logs. After a replay that fails because the last record of a log is incomplete, it replays the
// records before it. After damage at another place it tries once more, because the server may be writing there. If a
// file is missing, the server has deleted it since it was linked: another try links what is there then.
func (h *replayedHead) replay(dir string, afterMS int64, logger *slog.Logger) (err error) {
	const tries = 10
	linked, again := false, true
	for range tries {
		if err = nil; !linked {
			err = h.link(dir)
		}
		if err == nil {
			err = h.load(afterMS, logger)
		}
		if err == nil {
			h.querier, err = tsdb.NewBlockChunkQuerier(wholeHead{h.head}, math.MinInt64, math.MaxInt64)
			return err
		}
		var damage *wlog.CorruptionErr
		cut, missing := false, errors.Is(err, fs.ErrNotExist)
		if errors.As(err, &damage) {
			var cutErr error
			if cut, cutErr = h.cutTornRecord(damage, logger); cutErr != nil {
				return errors.Join(err, cutErr)
			}
		} else if !missing {
			return err
		}
		if !cut && !missing && !again {
			return err
		}
		linked, again = cut, again && (cut || missing)
	}
	return err
}

// link fills h.dir with links to the files of the database in dir. Each kind of file is linked before those that
// repeat its data.
func (h *replayedHead) link(dir string) error {
	old, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	for _, entry := range old {
		if err := os.RemoveAll(filepath.Join(h.dir, entry.Name())); err != nil {
			return err
		}
	}
	snapshot, _, _, err := tsdb.LastChunkSnapshot(dir)
	if err == nil {
		err = linkFiles(snapshot, filepath.Join(h.dir, filepath.Base(snapshot)))
	}
	if err != nil && !errors.Is(err, record.ErrNotFound) {
		return err
	}
	const mapped = "chunks_head"
	if sameFileSystem(dir, h.dir) {
		err = chunks.HardLinkChunkFiles(filepath.Join(dir, mapped), filepath.Join(h.dir, mapped))
	} else if err = copyDirectory(filepath.Join(dir, mapped), filepath.Join(h.dir, mapped)); errors.Is(err,
		fs.ErrNotExist) {
		err = nil // there are none
	}
	if err != nil {
		return err
	}
	for _, log := range []string{"wal", wlog.WblDirName} {
		if err := linkFiles(filepath.Join(dir, log), filepath.Join(h.dir, log)); err != nil &&
			(log == "wal" || !errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	if err := checkReferences(h.dir); err != nil {
		return err
	}
	// A snapshot that lacks references of out-of-order samples is not used: the whole log has them.
	lacks, err := snapshotLacks(h.dir)
	if err != nil || lacks == 0 {
		return err
	}
	return os.RemoveAll(filepath.Join(h.dir, filepath.Base(snapshot)))
}

// load replays the linked files.
func (h *replayedHead) load(afterMS int64, logger *slog.Logger) (err error) {
	var logs []*wlog.WL
	h.opts = tsdb.DefaultHeadOptions()
	h.opts.ChunkDirRoot = h.dir
	h.opts.EnableMemorySnapshotOnShutdown = true // to read one
	for _, log := range []string{"wal", wlog.WblDirName} {
		path := filepath.Join(h.dir, log)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			logs = append(logs, nil)
			continue
		}
		w, err := wlog.New(logger, nil, path, compression.None)
		if err != nil {
			return errors.Join(err, closeLogs(logs))
		}
		logs = append(logs, w)
	}
	if h.head, err = tsdb.NewHead(nil, logger, logs[0], logs[1], h.opts, tsdb.NewHeadStats()); err != nil {
		return errors.Join(err, closeLogs(logs))
	}
	if err := h.head.Init(afterMS); err != nil {
		return errors.Join(err, h.unload())
	}
	return nil
}

// unload closes the head, if there is one.
func (h *replayedHead) unload() error {
	if h.head == nil {
		return nil
	}
	h.opts.EnableMemorySnapshotOnShutdown = false // the head must not write one
	err := h.head.Close()
	h.head = nil
	return err
}

func closeLogs(logs []*wlog.WL) error {
	var errs []error
	for _, w := range logs {
		if w != nil {
			errs = append(errs, w.Close())
		}
	}
	return errors.Join(errs...)
}

// wholeHead reads the in-order and the out-of-order samples of a head that nothing is appended to.
type wholeHead struct{ *tsdb.Head }

// Index implements tsdb.BlockReader.
func (h wholeHead) Index() (tsdb.IndexReader, error) {
	return tsdb.NewHeadAndOOOIndexReader(h.Head, h.MinTime(), math.MinInt64, math.MaxInt64, 0), nil
}

// Chunks implements tsdb.BlockReader.
func (h wholeHead) Chunks() (tsdb.ChunkReader, error) {
	return tsdb.NewHeadAndOOOChunkReader(h.Head, math.MinInt64, math.MaxInt64, nil, nil, 0), nil
}

// copyDirectory copies the files of a directory. A file that vanishes during the call was
// truncated: its samples are in a block.
func copyDirectory(from, to string) error {
	if err := os.Mkdir(to, 0o777); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := copyFile(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name()), wholeFile); err != nil &&
			!errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// wholeFile is the limit of copyFile without a limit.
const wholeFile = math.MaxInt64

// copyFile copies the first limit bytes of a file. It is an error if the file has fewer, unless limit is wholeFile.
func copyFile(from, to string, limit int64) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	n, err := io.Copy(out, io.LimitReader(in, limit))
	if err == nil && limit != wholeFile && n < limit {
		err = fmt.Errorf("copy %d bytes of %s: %w", limit, from, io.ErrUnexpectedEOF)
	}
	return err
}

// oldest returns the lowest timestamp, so that windows before it are not read.
func (h *replayedHead) oldest(ctx context.Context) (int64, error) {
	oldest := int64(math.MaxInt64)
	set := h.querier.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchEqual, "", ""))
	var it chunks.Iterator
	for set.Next() {
		it = set.At().Iterator(it)
		for it.Next() {
			oldest = min(oldest, it.At().MinTime)
		}
		if err := it.Err(); err != nil {
			return 0, fmt.Errorf("series %s: %w", set.At().Labels(), err)
		}
	}
	return oldest, set.Err()
}

func (h *replayedHead) close() error {
	var errs []error
	if h.querier != nil {
		errs = append(errs, h.querier.Close())
	}
	return errors.Join(append(errs, h.unload(), os.RemoveAll(h.dir))...)
}

// headWindow is a head restricted to a range, inclusive. Closing it does not close the head.
type headWindow struct {
	storage.ChunkQuerier
	mint, maxt int64
}

// Select implements storage.ChunkQuerier.
func (w headWindow) Select(ctx context.Context, sorted bool, _ *storage.SelectHints,
	matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return w.ChunkQuerier.Select(ctx, sorted, &storage.SelectHints{Start: w.mint, End: w.maxt}, matchers...)
}

// Close implements storage.ChunkQuerier.
func (headWindow) Close() error { return nil }
