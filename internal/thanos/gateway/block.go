package gateway

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/bucket"
)

// block is one block of the bucket. The requests that use it share one mapped header, which stays
// mapped until the block has been idle for Options.Idle.
type block struct {
	meta  *bucket.Meta
	from  objstore.BucketReader
	cache *pages.Cache
	dir   string

	loading chan struct{} // has a value while a request loads the block
	index   *pages.Object // set by the first load, as are the segments
	// segments are the chunk files by number; nil where there is none.
	segments []*pages.Object

	mu      sync.Mutex
	header  *header   // nil: not mapped
	side    *side     // nil: no summaries of chunks are known
	sideAt  time.Time // from when on they are looked for again
	refused error     // why the header cannot be used
	retryAt time.Time // from when on the header is fetched again
	users   int       // requests between acquire and release
	idleAt  time.Time // time at which users last became 0
	removed bool      // the store no longer has the block: the last user drops the header
}

func newBlock(m *bucket.Meta, from objstore.BucketReader, cache *pages.Cache, dir string) *block {
	return &block{meta: m, from: from, cache: cache, dir: dir, loading: make(chan struct{}, 1)}
}

func (b *block) external() labels.Labels { return b.meta.Labels }
func (b *block) indexName() string       { return b.meta.ID.String() + "/index" }

// overlaps reports whether the block may have samples within a range of time.
func (b *block) overlaps(minMS, maxMS int64) bool {
	return b.meta.MinMS <= maxMS && minMS < b.meta.MaxMS
}

// acquire opens the block for one user and returns its header. The user must call release.
func (b *block) acquire(ctx context.Context) (*header, error) {
	if h := b.use(); h != nil {
		return h, nil
	}
	select {
	case b.loading <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-b.loading }()
	if h := b.use(); h != nil {
		return h, nil
	}
	if err := b.refusal(); err != nil {
		return nil, err
	}
	if b.index == nil {
		if err := b.find(ctx); err != nil {
			return nil, err
		}
	}
	h, err := openHeader(ctx, headerPath(b.dir, b), b.index)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		if errors.Is(err, ErrCorrupt) {
			b.refused, b.retryAt = err, time.Now().Add(refusedFor)
		}
		return nil, err
	}
	b.header = h
	b.users++
	return h, nil
}

// refusedFor is the time for which a corrupt header is not fetched again. A header may have a gigabyte,
// so it must not be fetched for every request.
const refusedFor = time.Minute

// refusal returns the error of a block that was found to be corrupt less than refusedFor ago.
func (b *block) refusal() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refused != nil && time.Now().Before(b.retryAt) {
		return b.refused
	}
	return nil
}

// use counts a user and returns the header, if it is mapped; nil otherwise.
func (b *block) use() *header {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.header != nil {
		b.users++
	}
	return b.header
}

func (b *block) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users--; b.users == 0 {
		b.idleAt = time.Now()
		if b.removed {
			b.drop()
		}
	}
}

// drop unmaps the header. b.mu is held.
func (b *block) drop() {
	if b.header != nil {
		_ = b.header.close() // it was only read
		b.header, b.side = nil, nil
	}
	if b.removed {
		_ = os.Remove(headerPath(b.dir, b)) // if this fails, the next start removes the file
	}
}

// sweep unmaps the header if it has been idle since before. It reports whether the header
// is still mapped.
func (b *block) sweep(before time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.header != nil && b.users == 0 && b.idleAt.Before(before) {
		b.drop()
	}
	return b.header != nil
}

// remove is called when the store no longer has the block. It removes the header and its file, at
// once or after the last user's release.
func (b *block) remove() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.removed = true
	if b.users == 0 {
		b.drop()
	}
}

// find sets the index and the segments of the block. It requests the names and sizes that
// meta.json does not have.
func (b *block) find(ctx context.Context) error {
	segments := slices.Clone(b.meta.Segments)
	if len(segments) == 0 {
		if err := b.from.Iter(ctx, b.meta.ID.String()+"/chunks/", func(name string) error {
			segments = append(segments, bucket.Segment{Name: path.Base(name)})
			return nil
		}); err != nil {
			return fmt.Errorf("list the chunks: %w", err)
		}
	}
	size := func(known int64, name string) (int64, error) {
		if known > 0 {
			return known, nil
		}
		attributes, err := b.from.Attributes(ctx, name)
		if err != nil {
			return 0, fmt.Errorf("object %s: %w", name, err)
		}
		return attributes.Size, nil
	}
	b.segments = b.segments[:0]
	for _, s := range segments {
		number, err := strconv.ParseUint(s.Name, 10, 16)
		if err != nil || number == 0 {
			return fmt.Errorf("%w: segment %q", ErrCorrupt, s.Name)
		}
		name := b.meta.ID.String() + "/chunks/" + s.Name
		n, err := size(s.Bytes, name)
		if err != nil {
			return err
		}
		for uint64(len(b.segments)) < number {
			b.segments = append(b.segments, nil)
		}
		b.segments[number-1] = b.cache.Object(b.from, name, n)
	}
	n, err := size(b.meta.Index, b.indexName())
	if err != nil {
		return err
	}
	b.index = b.cache.Object(b.from, b.indexName(), n)
	return nil
}

// wrap adds the name of the block to an error.
func (b *block) wrap(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("block %s: %w", b.meta.ID, err)
}
