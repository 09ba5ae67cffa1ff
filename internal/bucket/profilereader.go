package bucket

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/metrics"
)

const (
	blocksMax = 100_000 // of all tenants, as in profiles/store

	// rowsWindow is the size of the ranges that are requested of the object of rows. An object store needs about as
	// long for a few KiB, one column, as for the whole window. The same query usually reads the neighbouring columns, too.
	rowsWindow = 256 << 10
)

// ProfileReaderOptions configure a ProfileReader. Zero values take the defaults.
type ProfileReaderOptions struct {
	Dir        string        // directory of the file of pages; the first list creates both
	PagesBytes int64         // size of that file, at least 1 MiB; 0: 128 MiB
	Timeout    time.Duration // of one read; 0: 30 s
	Logger     *slog.Logger  // may be nil
	Metrics    *metrics.Set  // may be nil
	Flags      hint.Flags    // the flag that sets PagesBytes, named in errors
}

// ProfileReader lists profile blocks in a bucket and reads them through a cache of pages. The file of the cache is the
// budget of all reads of all tenants together.
type ProfileReader struct {
	*ProfileStore
	opts    ProfileReaderOptions
	cache   *pages.Cache
	ctx     context.Context // of all reads, stored because an io.ReaderAt has no context; done after Close
	cancel  context.CancelFunc
	reading sync.RWMutex // held by reads and lists; Close waits for them

	mu     sync.Mutex               // one list at a time
	opened bool                     // the cache has its file
	known  map[string]*knownProfile // by directory

	doubting sync.Mutex
	doubted  map[string]bool // directories of blocks for which Doubt was called since the last list
	remarked map[string]bool // directories of blocks that Mark has marked since the last list

	now         func() time.Time // replaced by tests
	indexErrors *metrics.Counter
	unread      *metrics.Counter
}

type knownProfile struct {
	index, rows *pages.Object
	spans       *spansAt
	confirmed   bool         // two lists in a row found the same sizes: the upload is complete
	head        []byte       // Head in the bucket's index; nil after the first successful list
	mark        DeletionMark // zero: the block is not marked, or its mark was not read yet
	markUnread  bool         // the block is marked, and the mark cannot be read
	markInvalid time.Time    // when an invalid mark was read; zero: the mark is valid, or was not read yet
	unread      error        // why the sizes cannot be read; index, rows and spans are nil then
}

// NewProfileReader returns a reader. It creates no file and sends no request. The caller calls Close before it
// closes the bucket.
func NewProfileReader(from objstore.Bucket, opts ProfileReaderOptions) *ProfileReader {
	opts.PagesBytes = cmp.Or(opts.PagesBytes, 128<<20)
	opts.Timeout = cmp.Or(opts.Timeout, 30*time.Second)
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	opts.Metrics = cmp.Or(opts.Metrics, metrics.NewSet())
	r := &ProfileReader{
		ProfileStore: &ProfileStore{bucket: from, timeout: opts.Timeout, stall: profileReadTimeout, blocksMax: blocksMax},
		opts:         opts, doubted: map[string]bool{}, remarked: map[string]bool{}, now: time.Now,
		indexErrors: process.Counter(opts.Metrics, "ferula_profiles_bucket_index_errors_total", "Number of failures to "+
			"read the index of profile blocks in the bucket. Without it the size and the meta of each block are requested."),
		unread: process.Counter(opts.Metrics, "ferula_profiles_bucket_unread_objects_total", "Number of failures to read "+
			"the sizes or the deletion mark of one profile block in the bucket. Without its sizes a block is not read, and "+
			"queries get a warning; without its mark it is not deleted."),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.cache = pages.New(pages.Options{
		BytesMax: opts.PagesBytes, Permanent: func(err error) bool { return isNotFound(from, err) }, Metrics: opts.Metrics,
		Flags: hint.Flags{"BytesMax": opts.Flags["PagesBytes"]},
	})
	return r
}

// Close cancels the running reads, waits for them and removes the file of pages. Later reads fail.
func (r *ProfileReader) Close() error {
	r.cancel()
	r.reading.Lock()
	defer r.reading.Unlock()
	return r.cache.Close()
}

// open creates the file of pages. After a failure the next list tries again. r.mu is held.
func (r *ProfileReader) open() error {
	if r.opened {
		return nil
	}
	if err := os.MkdirAll(r.opts.Dir, 0o777); err != nil {
		return fmt.Errorf("page cache: %w", err)
	}
	if err := r.cache.Open(r.opts.Dir); err != nil {
		return fmt.Errorf("page cache: %w", err)
	}
	r.opened = true
	return nil
}

// Blocks lists the blocks of all tenants that have an index and rows.
//
// Sizes: Blocks requests the sizes of a block's index and rows until two calls in a row have found the same sizes.
// Before that the upload of the block may still be running. Blocks does not request the sizes of blocks that are in
// the index of the bucket. The first call reads this index. Further calls read it again only if all calls before
// could neither read it nor list the directories.
//
// Deletion marks: Blocks reads a mark when it is listed for the first time. It reads a mark that is not valid once
// an hour.
//
// Errors: Blocks succeeds if the sizes or marks of a few blocks cannot be read, or if access to them is denied:
// Unread or MarkUnread is then set in these blocks. A failed call keeps the sizes that it has found. So repeated calls
// succeed in the end, even if one call has not enough time for all blocks of a large bucket.
func (r *ProfileReader) Blocks(ctx context.Context) ([]profiles.BucketBlock, error) {
	r.reading.RLock()
	defer r.reading.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx.Err() != nil {
		return nil, pages.ErrClosed
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	if err := r.open(); err != nil {
		return nil, err
	}
	if r.known == nil {
		r.known = r.fromIndex(ctx)
	}
	r.forget()
	dirs, err := r.List(ctx)
	if errors.Is(err, profiles.ErrLimit) {
		err = fmt.Errorf("%w; ferula profiles compact reduces their number", err)
	}
	if err != nil {
		return nil, err
	}
	dirs = slices.DeleteFunc(dirs, func(s *StoredProfile) bool { return !s.Complete() && s.Unread == nil })
	looked, err := r.lookAll(ctx, dirs)
	if err != nil {
		if r.known == nil {
			r.known = map[string]*knownProfile{}
		}
		for i, k := range looked {
			if k != nil {
				r.known[dirs[i].Name()] = k
			}
		}
		return nil, fmt.Errorf("list %s: %w", profilesDir, err)
	}
	found, known := make([]profiles.BucketBlock, 0, len(dirs)), make(map[string]*knownProfile, len(dirs))
	for i, k := range looked {
		if k == nil {
			continue
		}
		name := dirs[i].Name()
		known[name] = k
		o := profiles.BucketBlock{Tenant: dirs[i].Tenant, ID: dirs[i].ID, Head: k.head,
			MarkUnread: k.markUnread, Unread: k.unread, Doubt: func() { r.doubt(name) }}
		if k.unread == nil {
			o.IndexBytes, o.RowsBytes = k.index.Size(), k.rows.Size()
			o.Index, o.Rows, o.Spans = objectAt{r, k.index, 0}, objectAt{r, k.rows, rowsWindow}, k.spans
		}
		if k.mark.DeletionTime > 0 {
			o.Marked, o.MarkReason = time.Unix(k.mark.DeletionTime, 0), k.mark.Details
		}
		found = append(found, o)
		k.head = nil
	}
	r.known = known
	return found, nil
}

// doubt makes the next list request the sizes of a block's objects.
func (r *ProfileReader) doubt(name string) {
	r.doubting.Lock()
	defer r.doubting.Unlock()
	r.doubted[name] = true
}

// Mark marks a block for deletion. The next list reads the mark even if an invalid mark was read less than an hour
// ago. Otherwise lists would show no mark for up to an hour, and the caller would write the mark after every list.
func (r *ProfileReader) Mark(ctx context.Context, tenant string, id ulid.ULID, at time.Time, details string) error {
	_, err := r.ProfileStore.Mark(ctx, tenant, id, at, details)
	if err == nil {
		r.doubting.Lock()
		defer r.doubting.Unlock()
		r.remarked[ProfileBlock(profiles.TenantDir(tenant), id)] = true
	}
	return err
}

// forget applies the calls of Doubt and Mark since the last list: the sizes of doubted blocks are requested
// again, and the marks of remarked blocks are read again. r.mu is held.
func (r *ProfileReader) forget() {
	r.doubting.Lock()
	defer r.doubting.Unlock()
	for name := range r.doubted {
		if k := r.known[name]; k != nil {
			k.confirmed = false
		}
	}
	for name := range r.remarked {
		if k := r.known[name]; k != nil {
			k.markInvalid = time.Time{}
		}
	}
	clear(r.doubted)
	clear(r.remarked)
}

// newKnown returns a block of the given sizes. It creates new pages.Objects, so that the cached pages of an object
// that was replaced are not used.
func (r *ProfileReader) newKnown(name string, indexBytes, rowsBytes int64) *knownProfile {
	return &knownProfile{
		index: r.cache.Object(r.bucket, path.Join(name, indexFile), indexBytes),
		rows:  r.cache.Object(r.bucket, path.Join(name, profileFiles[0]), rowsBytes),
		spans: &spansAt{reader: r, name: path.Join(name, spansFile)},
	}
}

// objectAt reads an object through the cache, with a timeout for each read.
type objectAt struct {
	reader *ProfileReader
	object *pages.Object
	window int64 // as in pages.Object.ReadAt
}

// ReadAt implements io.ReaderAt.
func (o objectAt) ReadAt(p []byte, off int64) (int, error) {
	o.reader.reading.RLock()
	defer o.reader.reading.RUnlock()
	ctx, cancel := context.WithTimeout(o.reader.ctx, o.reader.opts.Timeout)
	defer cancel()
	if ctx.Err() != nil {
		return 0, pages.ErrClosed
	}
	return o.object.ReadAt(ctx, p, off, o.window)
}

// spansAt reads the object of spans of a block. Lists do not request its size. Each reader of the spans takes the
// size from the index of the block and reads the whole object, so the end of the first read is the size.
type spansAt struct {
	reader *ProfileReader
	name   string

	mu     sync.Mutex
	object *pages.Object // nil: not read yet
}

// ReadAt implements io.ReaderAt.
func (s *spansAt) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	if end := off + int64(len(p)); s.object == nil || s.object.Size() < end {
		s.object = s.reader.cache.Object(s.reader.bucket, s.name, end)
	}
	object := s.object
	s.mu.Unlock()
	return objectAt{s.reader, object, 0}.ReadAt(p, off)
}
