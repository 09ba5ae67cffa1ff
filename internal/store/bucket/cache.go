package bucket

import (
	"container/list"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/thanos-io/objstore"
)

// Objects are read in pages. A request for less than a page takes an object store as long as
// a request for a page.
const (
	pageBytes = 256 << 10
	runPages  = 16 // adjacent missing pages read by one request
)

// Cache caches pages of immutable objects. It is safe for concurrent use.
type Cache struct {
	bytesMax int64

	mu     sync.Mutex
	bytes  int64
	pages  map[pageKey]*list.Element // of *page
	recent *list.List                // least recently used last
}

type pageKey struct {
	name   string
	number int64
}

type page struct {
	key  pageKey
	data []byte
}

// NewCache returns a cache of at most bytesMax bytes, but at least one page.
func NewCache(bytesMax int64) *Cache {
	return &Cache{bytesMax: max(bytesMax, pageBytes), pages: map[pageKey]*list.Element{}, recent: list.New()}
}

// Bytes returns the size of the cached pages.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

// get returns a page, which is shared and immutable; nil if it is not cached.
func (c *Cache) get(key pageKey) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.pages[key]
	if e == nil {
		return nil
	}
	c.recent.MoveToFront(e)
	return e.Value.(*page).data
}

func (c *Cache) put(key pageKey, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pages[key] != nil {
		return // fetched twice concurrently
	}
	c.pages[key] = c.recent.PushFront(&page{key, data})
	for c.bytes += int64(len(data)); c.bytes > c.bytesMax; {
		last := c.recent.Remove(c.recent.Back()).(*page)
		delete(c.pages, last.key)
		c.bytes -= int64(len(last.data))
	}
}

// Object is an immutable object, read by ranges through a Cache.
type Object struct {
	cache *Cache
	from  objstore.BucketReader
	name  string
	size  int64
}

// Object requests the size of an object. Its bytes are read on demand.
func (c *Cache) Object(ctx context.Context, from objstore.BucketReader, name string) (*Object, error) {
	attributes, err := from.Attributes(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("object %s: %w", name, err)
	}
	return &Object{c, from, name, attributes.Size}, nil
}

// Size returns the size of the object.
func (o *Object) Size() int64 { return o.size }

// At returns the object as an io.ReaderAt whose reads fail once ctx is done.
func (o *Object) At(ctx context.Context) io.ReaderAt { return objectAt{o, ctx.Err, ctx} }

type objectAt struct {
	*Object
	ended func() error
	ctx   context.Context // stored because an objectAt belongs to one caller of At
}

// ReadAt implements io.ReaderAt.
func (o objectAt) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("object %s: read at %d", o.name, off)
	}
	for n < len(p) && off < o.size {
		if err := o.ended(); err != nil {
			return n, err
		}
		number := off / pageBytes
		data := o.cache.get(pageKey{o.name, number})
		if data == nil {
			if data, err = o.fetch(o.ctx, number, (off+int64(len(p)-n)-1)/pageBytes); err != nil {
				return n, err
			}
		}
		copied := copy(p[n:], data[off-number*pageBytes:])
		n, off = n+copied, off+int64(copied)
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fetch reads page first, which is missing, and the adjacent missing pages up to page last,
// with one request for at most runPages pages. It returns page first.
func (o *Object) fetch(ctx context.Context, first, last int64) ([]byte, error) {
	last = min(last, first+runPages-1, (o.size-1)/pageBytes)
	end := first
	for end < last && o.cache.get(pageKey{o.name, end + 1}) == nil {
		end++
	}
	from, to := first*pageBytes, min((end+1)*pageBytes, o.size)
	body, err := o.from.GetRange(ctx, o.name, from, to-from)
	if err != nil {
		return nil, fmt.Errorf("object %s: bytes %d to %d: %w", o.name, from, to, err)
	}
	defer body.Close()
	var one []byte
	for number := first; number <= end; number++ {
		data := make([]byte, min(pageBytes, o.size-number*pageBytes))
		if _, err := io.ReadFull(body, data); err != nil {
			return nil, fmt.Errorf("object %s: bytes %d to %d: %w", o.name, from, to, err)
		}
		o.cache.put(pageKey{o.name, number}, data)
		if number == first {
			one = data
		}
	}
	return one, nil
}
