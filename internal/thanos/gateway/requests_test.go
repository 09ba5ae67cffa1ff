package gateway

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// counting is a bucket that counts requests by kind and object, and the bytes read.
type counting struct {
	objstore.BucketReader
	mu    sync.Mutex
	kinds map[string]int
	bytes int64
}

func newCounting(b objstore.BucketReader) *counting {
	return &counting{BucketReader: b, kinds: map[string]int{}}
}

func (c *counting) count(kind, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, file, ok := strings.Cut(name, "/"); ok {
		name = filepath.Dir(file) + "/" + filepath.Base(file)
		name = strings.TrimPrefix(name, "./")
	}
	c.kinds[kind+" "+name]++
}

// take returns the requests since the last call.
func (c *counting) take() (kinds map[string]int, total int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kinds, bytes = c.kinds, c.bytes
	c.kinds, c.bytes = map[string]int{}, 0
	for _, n := range kinds {
		total += n
	}
	return kinds, total, bytes
}

func text(kinds map[string]int) (s string) {
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		s += fmt.Sprintf("\n  %3d %s", kinds[kind], kind)
	}
	return s
}

func (c *counting) body(r io.ReadCloser, err error) (io.ReadCloser, error) {
	if err != nil {
		return nil, err
	}
	return &countingBody{r, c}, nil
}

func (c *counting) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	c.count("get", name)
	return c.body(c.BucketReader.Get(ctx, name))
}

func (c *counting) GetRange(ctx context.Context, name string, off, n int64) (io.ReadCloser, error) {
	c.count("range", name)
	return c.body(c.BucketReader.GetRange(ctx, name, off, n))
}

func (c *counting) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	c.count("attributes", name)
	return c.BucketReader.Attributes(ctx, name)
}

func (c *counting) Iter(ctx context.Context, dir string, f func(string) error, opts ...objstore.IterOption) error {
	c.count("iter", dir)
	return c.BucketReader.Iter(ctx, dir, f, opts...)
}

type countingBody struct {
	io.ReadCloser
	to *counting
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.to.mu.Lock()
	defer b.to.mu.Unlock()
	b.to.bytes += int64(n)
	return n, err
}

// Requests to a bucket cost money. A cold selection of a whole block sends the fewest
// requests that its parts permit and reads no byte twice. A warm selection sends none.
func TestSelect_SendsFewRequests(t *testing.T) {
	b, dir := newBucket(t)
	id := writeBlock(t, dir, 0, 4*hourMS, 400, map[string]string{"cluster": "a"})
	size := func(name string) int64 {
		info, err := os.Stat(filepath.Join(dir, id, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	index, chunks := size("index"), size("chunks/000001")
	editMeta(t, dir, id, func(meta map[string]any) {
		meta["thanos"].(map[string]any)["files"] = []any{
			map[string]any{"rel_path": "index", "size_bytes": index}, map[string]any{"rel_path": "chunks/000001", "size_bytes": chunks},
		}
	})
	c := newCounting(b)
	s := openStore(t, c, Options{CacheBytes: 16 << 20})
	if kinds, n, _ := c.take(); n != 3 { // the list, meta.json, deletion-mark.json
		t.Errorf("%d requests list one block:%s", n, text(kinds))
	}
	r := storeapi.SeriesRequest{MaxMS: 4 * hourMS, Matchers: match(t, "cluster=a", "job=~.+")}
	s.all(t, r)
	kinds, _, bytes := c.take()
	// Of the index: table of contents, symbols, postings table, postings, series. Some of
	// them may be in the same page.
	if kinds["range chunks/000001"] != 1 || kinds["range index"] > 5 || len(kinds) != 2 {
		t.Errorf("a block of %d bytes of chunks is read by:%s", chunks, text(kinds))
	}
	if bytes > index+chunks {
		t.Errorf("%d bytes are read of an index of %d and chunks of %d", bytes, index, chunks)
	}
	s.all(t, r)
	if kinds, n, _ := c.take(); n != 0 {
		t.Errorf("a warm selection sends:%s", text(kinds))
	}
}

// Each window is one request, and a page that two windows share is not read twice.
func TestSelect_AWindowIsOneRequest(t *testing.T) {
	b, dir := newBucket(t)
	id := writeBlock(t, dir, 0, 8*hourMS, 400, map[string]string{"cluster": "a"})
	info, err := os.Stat(filepath.Join(dir, id, "chunks", "000001"))
	if err != nil {
		t.Fatal(err)
	}
	c := newCounting(b)
	s := openStore(t, c, Options{CacheBytes: 4 << 20})
	r := storeapi.SeriesRequest{MaxMS: 8 * hourMS, Matchers: match(t, "job=~.+")}
	block := s.blocks[ulid.MustParse(id)]
	o, err := s.openBlock(t.Context(), r, opening{block, r.Matchers})
	if err != nil {
		t.Fatal(err)
	}
	const window = 128 << 10
	o.producer.ahead.bytes = func() int64 { return window }
	c.take()
	o.start()
	got := collect(t, o)
	o.close()
	same(t, "whole", got, expected(t, dir, []string{id}, nil, r))
	kinds, _, bytes := c.take()
	if n, windows := kinds["range chunks/000001"], int(info.Size()/(window-2*pages.Bytes))+1; windows < 4 || n < 3 || n > windows {
		t.Errorf("%d requests for %d bytes of chunks:%s", n, info.Size(), text(kinds))
	}
	if bytes > info.Size()+block.index.Size() {
		t.Errorf("%d bytes are read", bytes)
	}
}

// Chunks of series that do not match by a matcher that is applied to labels are not read.
func TestSelect_ReadsNoChunksOfSeriesThatDoNotMatch(t *testing.T) {
	b, dir := newBucket(t)
	id := writeBlock(t, dir, 0, 8*hourMS, 400, map[string]string{"cluster": "a"})
	c := newCounting(b)
	s := openStore(t, c, Options{CacheBytes: 16 << 20})
	h, err := s.blocks[ulid.MustParse(id)].acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.blocks[ulid.MustParse(id)].release()
	all, _ := h.find("", "")
	c.take()
	o, err := s.openBlock(t.Context(), storeapi.SeriesRequest{MaxMS: 8 * hourMS}, opening{s.blocks[ulid.MustParse(id)], match(t, "job=~.+")})
	if err != nil {
		t.Fatal(err)
	}
	o.producer.onLabels = match(t, "instance=host-0399", "__name__=up")
	o.producer.postings.release()
	postings, err := openRefs(t.Context(), o.producer.block.index, all)
	if err != nil {
		t.Fatal(err)
	}
	o.producer.postings = refs{postings, []*pageRefs{postings}}
	o.start()
	n := 0
	for o.Next() {
		n++
	}
	o.close()
	if n != 1 || o.warning != nil || o.err != nil {
		t.Fatalf("%d series, warning %v, error %v", n, o.warning, o.err)
	}
	if kinds, _, bytes := c.take(); bytes > 1<<20 {
		t.Errorf("%d bytes are read for one series:%s", bytes, text(kinds))
	}
}

// A missing deletion mark is not counted as a failure of the bucket: alerts use this counter.
func TestSync_AMissingMarkIsNotCountedAsAFailure(t *testing.T) {
	b, dir := newBucket(t)
	writeBlock(t, dir, 0, hourMS, 1, nil)
	reg := prometheus.NewRegistry()
	openStore(t, objstore.WrapWithMetrics(b, reg, "test"), Options{})
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	requests := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch f.GetName() {
			case "objstore_bucket_operations_total":
				requests += m.GetCounter().GetValue()
			case "objstore_bucket_operation_failures_total":
				if n := m.GetCounter().GetValue(); n > 0 {
					t.Errorf("%v failures of %v", n, m.GetLabel())
				}
			}
		}
	}
	if requests < 3 {
		t.Errorf("%v requests are counted", requests)
	}
}
