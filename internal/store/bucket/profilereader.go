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

	"github.com/ferula-io/ferula/internal/series/profiles"
)

// ProfileObjects is a profile block in the bucket: two objects, read by ranges.
type ProfileObjects struct {
	Tenant      string
	ID          ulid.ULID
	Index, Rows io.ReaderAt
	IndexBytes  int64
	RowsBytes   int64
}

// ProfileReader lists profile blocks in a bucket. Rows are read through a cache of pages.
// Indexes are not cached, since their readers hold them in memory.
type ProfileReader struct {
	from    objstore.BucketReader
	cache   *Cache
	timeout time.Duration // of one read

	mu    sync.Mutex               // one list at a time
	known map[string]*knownProfile // by folder
}

type knownProfile struct {
	index, rows *Object
	confirmed   bool // a second look found the same sizes
}

// NewProfileReader returns a reader with a cache of cacheBytes. Each read is cancelled
// after timeout.
func NewProfileReader(from objstore.BucketReader, cacheBytes int64, timeout time.Duration) *ProfileReader {
	return &ProfileReader{from: from, cache: NewCache(cacheBytes), timeout: timeout}
}

// CacheBytes returns the size of the cached pages.
func (r *ProfileReader) CacheBytes() int64 { return r.cache.Bytes() }

// Blocks lists the blocks of all tenants that have both files. A block that had the same
// sizes twice is not looked up again.
func (r *ProfileReader) Blocks(ctx context.Context) ([]ProfileObjects, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []ProfileObjects
	known := map[string]*knownProfile{}
	err := r.from.Iter(ctx, profilesDir+"/", func(folder string) error {
		base := path.Base(folder)
		tenant, ok := profiles.TenantOfFolder(base)
		if !ok || !strings.HasSuffix(folder, "/") {
			return nil
		}
		return r.from.Iter(ctx, folder, func(name string) error {
			id, err := ulid.ParseStrict(path.Base(name))
			if err != nil || !strings.HasSuffix(name, "/") {
				return nil // not a block
			}
			name = ProfileBlock(base, id)
			k, err := r.look(ctx, name)
			if err != nil || k == nil {
				return err
			}
			known[name] = k
			found = append(found, ProfileObjects{
				Tenant: tenant, ID: id, IndexBytes: k.index.Size(), RowsBytes: k.rows.Size(),
				Index: limitedAt{r, k.index, false}, Rows: limitedAt{r, k.rows, true},
			})
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", profilesDir, err)
	}
	r.known = known
	return found, nil
}

// look looks up the files of a block; nil unless both exist.
func (r *ProfileReader) look(ctx context.Context, name string) (*knownProfile, error) {
	old := r.known[name]
	if old != nil && old.confirmed {
		return old, nil
	}
	k := &knownProfile{}
	for file, object := range map[string]**Object{profileFiles[0]: &k.rows, profileFiles[1]: &k.index} {
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

// limitedAt reads an object with a timeout for each read.
type limitedAt struct {
	reader *ProfileReader
	object *Object
	cached bool
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
