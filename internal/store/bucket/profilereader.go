package bucket

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
	"golang.org/x/sync/errgroup"

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// ProfileObjects is a profile block in the bucket. Its objects are read by ranges.
type ProfileObjects struct {
	Tenant      string
	ID          ulid.ULID
	Index, Rows io.ReaderAt
	Spans       io.ReaderAt // reads fail if the block has no such object
	IndexBytes  int64       // size of Index
	RowsBytes   int64       // size of Rows
}

// lookupsMax is the number of sizes that a list requests concurrently.
const lookupsMax = 16

// ProfileReader lists profile blocks in a bucket. Rows are read through a cache of pages.
// Indexes are not cached, since their readers hold them in memory.
type ProfileReader struct {
	from    objstore.BucketReader
	cache   *Cache
	timeout time.Duration // of one read

	mu    sync.Mutex               // one list at a time
	known map[string]*knownProfile // by directory
}

type knownProfile struct {
	index, rows *Object
	confirmed   bool // two lists in a row found the same sizes: the upload is complete
}

// NewProfileReader returns a reader with a cache of cacheBytes. Each read is cancelled
// after timeout.
func NewProfileReader(from objstore.BucketReader, cacheBytes int64, timeout time.Duration) *ProfileReader {
	return &ProfileReader{from: from, cache: NewCache(cacheBytes), timeout: timeout}
}

// CacheBytes returns the size of the cached pages.
func (r *ProfileReader) CacheBytes() int64 { return r.cache.Bytes() }

// listed is a directory of the bucket that has the name of a block.
type listed struct {
	tenant string
	id     ulid.ULID
	name   string
}

// Blocks lists the blocks of all tenants that have an index and rows. It requests the sizes of
// a block's index and rows until two calls in a row have found the same sizes: before that the
// block may still be uploaded. A failed call keeps the sizes that it has found. So repeated
// calls succeed in the end, however large the bucket is.
func (r *ProfileReader) Blocks(ctx context.Context) ([]ProfileObjects, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dirs, err := r.dirs(ctx)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", profilesDir, err)
	}
	looked, err := r.lookAll(ctx, dirs)
	if err != nil {
		if r.known == nil {
			r.known = map[string]*knownProfile{}
		}
		for i, k := range looked {
			if k != nil {
				r.known[dirs[i].name] = k
			}
		}
		return nil, fmt.Errorf("list %s: %w", profilesDir, err)
	}
	found, known := make([]ProfileObjects, 0, len(dirs)), make(map[string]*knownProfile, len(dirs))
	for i, k := range looked {
		if k == nil {
			continue
		}
		known[dirs[i].name] = k
		found = append(found, ProfileObjects{
			Tenant: dirs[i].tenant, ID: dirs[i].id, IndexBytes: k.index.Size(), RowsBytes: k.rows.Size(),
			Index: limitedAt{r, k.index, false}, Rows: limitedAt{r, k.rows, true},
			Spans: limitedAt{r, &Object{name: path.Join(dirs[i].name, spansFile)}, false},
		})
	}
	r.known = known
	return found, nil
}

// dirs lists the directories that have the name of a block.
func (r *ProfileReader) dirs(ctx context.Context) (all []listed, err error) {
	err = r.from.Iter(ctx, profilesDir+"/", func(dir string) error {
		base := path.Base(dir)
		tenant, ok := profiles.TenantOfDir(base)
		if !ok || !strings.HasSuffix(dir, "/") {
			return nil
		}
		return r.from.Iter(ctx, dir, func(name string) error {
			if id, err := ulid.ParseStrict(path.Base(name)); err == nil && strings.HasSuffix(name, "/") {
				all = append(all, listed{tenant, id, ProfileBlock(base, id)})
			}
			return nil
		})
	})
	return all, err
}

// lookAll looks up the files of all blocks, at most lookupsMax concurrently. If a lookup
// fails, the results of the successful lookups are returned with the error.
func (r *ProfileReader) lookAll(ctx context.Context, dirs []listed) ([]*knownProfile, error) {
	looked := make([]*knownProfile, len(dirs))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(lookupsMax)
	for i := range dirs {
		if old := r.known[dirs[i].name]; old != nil && old.confirmed {
			looked[i] = old
			continue
		}
		group.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			looked[i], err = r.look(ctx, dirs[i].name)
			return err
		})
	}
	err := group.Wait()
	return looked, err
}

// look requests the sizes of a block's index and rows. It returns nil unless both exist.
func (r *ProfileReader) look(ctx context.Context, name string) (*knownProfile, error) {
	old, k := r.known[name], &knownProfile{}
	for file, object := range map[string]**Object{profileFiles[0]: &k.rows, indexFile: &k.index} {
		o, err := r.cache.Object(ctx, r.from, path.Join(name, file))
		if err != nil {
			if r.from.IsObjNotFoundErr(err) {
				return nil, nil
			}
			return nil, err
		}
		*object = o
	}
	k.confirmed = old != nil && old.index.Size() == k.index.Size() && old.rows.Size() == k.rows.Size()
	return k, nil
}

// DeleteProfile deletes a block from the bucket. It deletes the index first: if it fails later,
// the remaining files are not listed as a block. A file that does not exist is no error.
func DeleteProfile(ctx context.Context, from objstore.Bucket, tenant string, id ulid.ULID) error {
	dir := ProfileBlock(profiles.TenantDir(tenant), id)
	for _, file := range []string{indexFile, spansFile, profileFiles[0]} {
		if err := from.Delete(ctx, path.Join(dir, file)); err != nil && !from.IsObjNotFoundErr(err) {
			return fmt.Errorf("delete %s of %s: %w", file, dir, err)
		}
	}
	return nil
}

// limitedAt reads an object with a timeout for each read.
type limitedAt struct {
	reader *ProfileReader
	object *Object
	cached bool // read through the cache of pages
}

// ReadAt implements io.ReaderAt.
func (l limitedAt) ReadAt(p []byte, off int64) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), l.reader.timeout)
	defer cancel()
	if l.cached {
		return l.object.At(ctx).ReadAt(p, off)
	}
	body, err := l.reader.from.GetRange(ctx, l.object.name, off, int64(len(p)))
	if err != nil {
		return 0, fmt.Errorf("object %s: bytes %d to %d: %w", l.object.name, off, off+int64(len(p)), err)
	}
	defer body.Close()
	n, err := io.ReadFull(body, p)
	if err != nil {
		return n, fmt.Errorf("object %s: bytes %d to %d: %w", l.object.name, off, off+int64(len(p)), err)
	}
	return n, nil
}
