package localdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/prometheus/prometheus/tsdb/wlog"
)

// head is the replayed logs of a database. Prometheus opens a head only together with the
// blocks of its directory, so a directory is created for it:
//
//	wal, wbl, chunks_head   links to those of the database; the last one is a copy if
//	                        the database is on another file system
//	ULID/                   an empty block that ends where the database's blocks end
//
// The replay skips samples before the end of the empty block, because the database's blocks
// have them.
type head struct {
	dir     string
	db      *tsdb.DBReadOnly
	querier storage.ChunkQuerier // over the whole range
	minMS   int64                // minimum timestamp
}

// openHead replays the logs of the database in dir. All in-order samples before afterMS are in
// blocks; math.MinInt64: no block is known to have them. late is true if the logs may have
// out-of-order samples older than afterMS.
func openHead(ctx context.Context, dir, sandbox string, afterMS int64, late bool, logger *slog.Logger) (_ *head, err error) {
	h := &head{minMS: afterMS}
	if h.dir, err = os.MkdirTemp(sandbox, "ferula_read_"); err != nil {
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
	if err := checkReferences(dir); err != nil {
		return nil, err
	}
	for _, name := range []string{"wal", wlog.WblDirName, "chunks_head"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		link := os.Symlink
		if name == "chunks_head" && !sameFileSystem(dir, h.dir) {
			link = copyDirectory // Prometheus links its files into a directory in h.dir
		}
		if err := link(filepath.Join(dir, name), filepath.Join(h.dir, name)); err != nil {
			return nil, err
		}
	}
	if afterMS != math.MinInt64 {
		if err := emptyBlock(ctx, h.dir, afterMS); err != nil {
			return nil, err
		}
	}
	if err := h.replay(logger); err != nil {
		return nil, err
	}
	if late {
		h.minMS, err = h.oldest(ctx)
	}
	return h, err
}

// replay replays the logs. After a replay that fails because the last record of a log is incomplete, it replays the records
// before it. After damage at another place it tries once more, because the server may be writing there.
func (h *head) replay(logger *slog.Logger) (err error) {
	const tries = 4 // each of the two logs may end with an incomplete record
	again := true
	for range tries {
		if h.db, err = tsdb.OpenDBReadOnly(h.dir, h.dir, logger); err != nil {
			return err
		}
		h.querier, err = h.db.ChunkQuerier(math.MinInt64, math.MaxInt64)
		var damage *wlog.CorruptionErr
		if !errors.As(err, &damage) {
			return err
		}
		cut, cutErr := h.cutTornRecord(damage, logger)
		if cutErr != nil || !cut && !again {
			return errors.Join(err, cutErr)
		}
		again = again && cut
		closeErr := h.db.Close()
		if h.db = nil; closeErr != nil {
			return errors.Join(err, closeErr)
		}
	}
	return err
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
		if err := copyFile(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name()), wholeFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// emptyBlock writes a block without series that ends at endMS, exclusive.
func emptyBlock(ctx context.Context, parent string, endMS int64) error {
	id, err := ulid.New(ulid.Now(), rand.Reader)
	if err != nil {
		return err
	}
	dir := filepath.Join(parent, id.String())
	if err := os.MkdirAll(filepath.Join(dir, "chunks"), 0o777); err != nil {
		return err
	}
	w, err := index.NewWriter(ctx, filepath.Join(dir, "index"))
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	meta := fmt.Sprintf(`{"ulid":%q,"minTime":%d,"maxTime":%d,"compaction":{"level":1,"sources":[%q]},"version":1}`, id, endMS-1, endMS, id)
	return os.WriteFile(filepath.Join(dir, "meta.json"), []byte(meta), 0o666)
}

// oldest returns the lowest timestamp, so that windows before it are not read.
func (h *head) oldest(ctx context.Context) (int64, error) {
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

func (h *head) close() error {
	var errs []error
	if h.querier != nil {
		errs = append(errs, h.querier.Close())
	}
	if h.db != nil {
		errs = append(errs, h.db.Close())
	}
	return errors.Join(append(errs, os.RemoveAll(h.dir))...)
}

// headWindow is a head restricted to a range, inclusive. Closing it does not close the head.
type headWindow struct {
	storage.ChunkQuerier
	mint, maxt int64
}

// Select implements storage.ChunkQuerier.
func (w headWindow) Select(ctx context.Context, sorted bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return w.ChunkQuerier.Select(ctx, sorted, &storage.SelectHints{Start: w.mint, End: w.maxt}, matchers...)
}

// Close implements storage.ChunkQuerier.
func (headWindow) Close() error { return nil }
