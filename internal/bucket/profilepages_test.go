package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/metrics"
)

// gated is a bucket that counts requests for ranges, lets them wait, and fails some of them.
type gated struct {
	objstore.Bucket
	mu       sync.Mutex
	ranges   int
	failures int           // of the next requests
	gate     chan struct{} // requests wait for it; nil: they do not wait
}

func (g *gated) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	g.mu.Lock()
	g.ranges++
	failing := g.failures > 0
	if failing {
		g.failures--
	}
	g.mu.Unlock()
	if g.gate != nil {
		select {
		case <-g.gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if failing {
		return nil, errFault
	}
	return g.Bucket.GetRange(ctx, name, off, length)
}

func (g *gated) requests() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.ranges
}

// random returns n bytes that differ for every seed.
func random(seed uint64, n int) []byte {
	rng, b := rand.New(rand.NewPCG(seed, 9)), make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// upload uploads the files of a profile block, each with the content that the function returns.
func upload(t *testing.T, to objstore.Bucket, tenant string, id ulid.ULID, content func(file string) []byte) {
	t.Helper()
	for _, file := range []string{profileFiles[0], spansFile, indexFile} {
		if err := to.Upload(t.Context(), path.Join(ProfileBlock(tenant, id), file), bytes.NewReader(content(file))); err != nil {
			t.Fatal(err)
		}
	}
}

// only returns the only block that a list finds.
func only(t *testing.T, r *ProfileReader) profiles.BucketBlock {
	t.Helper()
	found, err := r.Blocks(t.Context())
	if err != nil || len(found) != 1 {
		t.Fatalf("%+v, %v", found, err)
	}
	return found[0]
}

func readAll(at io.ReaderAt, n int) ([]byte, error) {
	b := make([]byte, n)
	n, err := at.ReadAt(b, 0)
	return b[:n], err
}

// Concurrent queries of a block that is not cached must share their requests.
func TestProfileReader_ConcurrentReadsOfAPageShareOneRequest(t *testing.T) {
	in, text := &gated{Bucket: objstore.NewInMemBucket(), gate: make(chan struct{})}, random(1, 100)
	upload(t, in, "a", ulid.Make(), func(string) []byte { return text })
	b := only(t, newReader(t, in))
	for _, at := range []io.ReaderAt{b.Rows, b.Index, b.Spans} {
		before := in.requests()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if got, err := readAll(at, len(text)); err != nil || !bytes.Equal(got, text) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			})
		}
		in.gate <- struct{}{}
		all.Wait()
		if n := in.requests() - before; n != 1 {
			t.Errorf("%d requests", n)
		}
	}
}

// A refused request (503 SlowDown) is sent again, so that the response does not lack a block.
func TestProfileReader_FailedRequestsAreRepeated(t *testing.T) {
	in, text := &gated{Bucket: objstore.NewInMemBucket()}, random(1, 3*rowsWindow)
	upload(t, in, "a", ulid.Make(), func(string) []byte { return text })
	set := metrics.NewSet()
	r := NewProfileReader(in, ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 8 << 20, Metrics: set})
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	b := only(t, r)
	in.failures = 3
	if got, err := readAll(b.Rows, len(text)); err != nil || !bytes.Equal(got, text) || in.requests() != 4 {
		t.Errorf("%d bytes by %d requests, %v", len(got), in.requests(), err)
	}
	in.failures = 1 << 30
	if _, err := readAll(b.Index, 10); !errors.Is(err, errFault) || !strings.Contains(err.Error(), path.Join(ProfileBlock("a", b.ID), indexFile)) || in.requests() != 8 {
		t.Errorf("%d requests, %v", in.requests(), err)
	}
	if got, err := readAll(b.Rows, len(text)); err != nil || !bytes.Equal(got, text) || in.requests() != 8 {
		t.Errorf("cached: %d bytes by %d requests, %v", len(got), in.requests(), err)
	}
	var page bytes.Buffer
	set.WritePrometheus(&page)
	for _, line := range []string{
		"ferula_pages_hits_total 48", "ferula_pages_misses_total 49", "ferula_pages_requests_total 8", "ferula_pages_repeated_requests_total 6",
		"ferula_pages_failed_requests_total 1", "ferula_pages_fetched_bytes_total 786432", "ferula_pages_cached_bytes 786432",
	} {
		if !strings.Contains("\n"+page.String(), "\n"+line+"\n") {
			t.Errorf("%s is not in\n%s", line, page.String())
		}
	}
}

func TestProfileReader_DeletedBlockIsNotRequestedRepeatedly(t *testing.T) {
	in, text := &gated{Bucket: objstore.NewInMemBucket()}, random(1, 2*rowsWindow)
	upload(t, in, "a", ulid.Make(), func(string) []byte { return text })
	r := newReader(t, in)
	b := only(t, r)
	if _, err := readAll(b.Rows, 10); err != nil {
		t.Fatal(err)
	}
	if err := NewProfileStore(in).Delete(t.Context(), "a", b.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(b.Rows, rowsWindow); err != nil || !bytes.Equal(got, text[:rowsWindow]) {
		t.Errorf("cached pages: %d bytes, %v", len(got), err)
	}
	before := in.requests()
	if got, err := readAll(b.Rows, rowsWindow+1); len(got) != rowsWindow || !isNotFound(in, err) || !strings.Contains(err.Error(), "object "+ProfileBlock("a", b.ID)) || in.requests() != before+1 {
		t.Errorf("%d bytes by %d requests, %v", len(got), in.requests()-before, err)
	}
	if found, err := r.Blocks(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}
}

// The second upload of a block may have other bytes than the first, which was not complete.
func TestProfileReader_PagesOfAnEarlierUploadAreNotRead(t *testing.T) {
	in, id := &gated{Bucket: objstore.NewInMemBucket()}, ulid.Make()
	r := newReader(t, in)
	for n, size := range []int{pages.Bytes + 5, pages.Bytes + 6, 7} {
		text := random(uint64(n), size)
		upload(t, in, "a", id, func(string) []byte { return text })
		b := only(t, r)
		for name, at := range map[string]io.ReaderAt{"rows": b.Rows, "index": b.Index, "spans": b.Spans} {
			if got, err := readAll(at, size); err != nil || !bytes.Equal(got, text) {
				t.Errorf("%s of %d bytes: %d bytes, %v", name, size, len(got), err)
			}
		}
	}
	b := only(t, r)
	before := in.requests()
	if _, err := readAll(b.Rows, 7); err != nil || in.requests() != before {
		t.Errorf("a block whose size is confirmed is requested again: %v", err)
	}
	long := random(9, 3*pages.Bytes)
	upload(t, in, "a", id, func(string) []byte { return long })
	r.known[ProfileBlock("a", id)].confirmed = false
	b = only(t, r)
	upload(t, in, "a", id, func(string) []byte { return long[:10] })
	if got, err := readAll(b.Rows, len(long)); len(got) != 0 || !errors.Is(err, pages.ErrShort) || !strings.Contains(err.Error(), ProfileBlock("a", id)) {
		t.Errorf("a block that became shorter: %d bytes, %v", len(got), err)
	}
}

// A range of more than a quarter of the cache would evict the pages of many other reads.
func TestProfileReader_LargeRangesAreNotKept(t *testing.T) {
	in, text := &gated{Bucket: objstore.NewInMemBucket()}, random(1, 4<<20)
	upload(t, in, "a", ulid.Make(), func(string) []byte { return text })
	r := newReader(t, in)
	b := only(t, r)
	for _, tt := range []struct {
		n, requests int
		kept        int64
	}{{1 << 18, 1, 1 << 18}, {1<<18 + 1, 1, 1<<18 + pages.Bytes}, {4 << 20, 1, 1<<18 + pages.Bytes}, {1 << 18, 0, 1<<18 + pages.Bytes}} {
		before := in.requests()
		if got, err := readAll(b.Index, tt.n); err != nil || !bytes.Equal(got, text[:tt.n]) || in.requests()-before != tt.requests || r.cache.Cached() != tt.kept {
			t.Errorf("%d bytes: %d bytes by %d requests, %d are kept, %v", tt.n, len(got), in.requests()-before, r.cache.Cached(), err)
		}
	}
	if got, err := readAll(b.Rows, 4<<20); err != nil || !bytes.Equal(got, text) || r.cache.Cached() > 1<<20 {
		t.Errorf("%d bytes, %d are kept, %v", len(got), r.cache.Cached(), err)
	}
}

// A killed process leaves its file. The pages in it are of objects that no reader knows any more.
func TestProfileReader_FileOfAnEarlierProcessIsReplaced(t *testing.T) {
	in, text, dir := &gated{Bucket: objstore.NewInMemBucket()}, random(1, 1<<20), t.TempDir()
	upload(t, in, "a", ulid.Make(), func(string) []byte { return text })
	file := filepath.Join(dir, "pages")
	for _, left := range []int{0, 7, 3 << 20} {
		if err := os.WriteFile(file, random(2, left), 0o600); err != nil {
			t.Fatal(err)
		}
		r := NewProfileReader(in, ProfileReaderOptions{Dir: dir, PagesBytes: 1 << 20})
		b := only(t, r)
		if got, err := readAll(b.Rows, 1<<18); err != nil || !bytes.Equal(got, text[:1<<18]) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if info, err := os.Stat(file); err != nil || info.Size() != 1<<20 {
			t.Errorf("%v, %v", info, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestProfileReader_TenantsDoNotReadEachOthersPages(t *testing.T) {
	in, id := &gated{Bucket: objstore.NewInMemBucket()}, ulid.Make()
	texts := map[string][]byte{}
	for n, tenant := range []string{"a", "b", "c"} {
		texts[tenant] = random(uint64(n), 1<<20)
		upload(t, in, tenant, id, func(string) []byte { return texts[tenant] })
	}
	r := newReader(t, in) // of a third of the rows
	found, err := r.Blocks(t.Context())
	if err != nil || len(found) != 3 {
		t.Fatal(found, err)
	}
	var all sync.WaitGroup
	for _, b := range found {
		for seed := range uint64(3) {
			all.Go(func() {
				rng, text := rand.New(rand.NewPCG(seed, 1)), texts[b.Tenant]
				for range 100 {
					off := rng.IntN(len(text))
					p := make([]byte, min(rng.IntN(rowsWindow), len(text)-off))
					if n, err := b.Rows.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, text[off:off+n]) {
						t.Errorf("tenant %s: %d bytes at %d, %v", b.Tenant, n, off, err)
						return
					}
				}
			})
		}
	}
	all.Wait()
	if r.cache.Cached() > 1<<20 {
		t.Errorf("%d bytes are kept", r.cache.Cached())
	}
}

func TestProfileReader_CloseEndsStalledReads(t *testing.T) {
	in := &gated{Bucket: objstore.NewInMemBucket(), gate: make(chan struct{})}
	upload(t, in, "a", ulid.Make(), func(string) []byte { return random(1, 10) })
	r := NewProfileReader(in, ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20, Timeout: time.Hour})
	b := only(t, r)
	ended := make(chan error, 1)
	go func() {
		_, err := readAll(b.Rows, 10)
		ended <- err
	}()
	for in.requests() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n, err := readAll(b.Rows, 10); len(n) != 0 || !errors.Is(err, pages.ErrClosed) {
		t.Error(n, err)
	}
	if found, err := r.Blocks(t.Context()); len(found) != 0 || !errors.Is(err, pages.ErrClosed) {
		t.Error(found, err)
	}
	if err := r.Close(); err != nil {
		t.Error("closed twice: ", err)
	}
}

// A disk that is full at the start may have space later.
func TestProfileReader_FileThatCannotBeCreatedIsTriedAgain(t *testing.T) {
	in, dir := objstore.NewInMemBucket(), filepath.Join(t.TempDir(), "cache")
	upload(t, in, "a", ulid.Make(), func(string) []byte { return random(1, 10) })
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // not a directory
		t.Fatal(err)
	}
	r := NewProfileReader(in, ProfileReaderOptions{Dir: dir, PagesBytes: 1 << 20})
	for range 2 {
		if found, err := r.Blocks(t.Context()); len(found) != 0 || err == nil || !strings.Contains(err.Error(), "page cache: ") {
			t.Error(found, err)
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(only(t, r).Rows, 10); err != nil || len(got) != 10 {
		t.Error(got, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	r = NewProfileReader(in, ProfileReaderOptions{Dir: dir})
	if r.cache.BytesMax() != 128<<20 || r.opts.Timeout != 30*time.Second {
		t.Errorf("defaults: %d, %s", r.cache.BytesMax(), r.opts.Timeout)
	}
	if err := r.Close(); err != nil {
		t.Error(fmt.Errorf("never opened: %w", err))
	}
}
