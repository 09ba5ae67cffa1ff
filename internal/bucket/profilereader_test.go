package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/profiles"
)

// countedBucket counts requests to a bucket.
type countedBucket struct {
	objstore.Bucket
	mu                 sync.Mutex
	attributes, ranges int
	attributesMax      int // further ones fail; 0: none fails
	bytes              int64
	failing            bool // every read of a range fails
}

func (c *countedBucket) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	c.mu.Lock()
	c.attributes++
	failing := c.attributesMax > 0 && c.attributes > c.attributesMax
	c.mu.Unlock()
	if failing {
		return objstore.ObjectAttributes{}, io.ErrUnexpectedEOF
	}
	return c.Bucket.Attributes(ctx, name)
}

func (c *countedBucket) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	c.mu.Lock()
	c.ranges, c.bytes = c.ranges+1, c.bytes+length
	failing := c.failing
	c.mu.Unlock()
	if failing {
		return nil, io.ErrUnexpectedEOF
	}
	return c.Bucket.GetRange(ctx, name, off, length)
}

func TestProfileReader_ListsCompleteBlocksAndCachesRanges(t *testing.T) {
	ctx, in := context.Background(), &countedBucket{Bucket: objstore.NewInMemBucket()}
	one, two, half := ulid.Make(), ulid.Make(), ulid.Make()
	rows := bytes.Repeat([]byte("0123456789abcdef"), rowsWindow) // sixteen windows
	put := func(name string, b []byte) {
		t.Helper()
		if err := in.Upload(ctx, name, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	for dir, files := range map[string][]string{
		ProfileBlock("a", one): profileFiles, ProfileBlock("b", two): profileFiles, ProfileBlock("b", half): profileFiles[:1], "profiles/b/other": profileFiles,
	} {
		for _, file := range files {
			put(path.Join(dir, file), rows)
		}
	}
	r := newReader(t, in)
	list := func() []profiles.BucketBlock {
		t.Helper()
		found, err := r.Blocks(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	found := list()
	if len(found) != 2 || found[0].Tenant != "a" || found[0].ID != one || found[1].ID != two || found[1].RowsBytes != int64(len(rows)) {
		t.Fatalf("%+v", found)
	}
	put(path.Join(ProfileBlock("b", half), profileFiles[1]), rows[:5])
	if found := list(); len(found) != 3 {
		t.Fatalf("%+v", found)
	}
	list()
	before := in.attributes
	if list(); in.attributes != before {
		t.Error("unchanged blocks are looked up repeatedly")
	}
	for range 3 {
		b := make([]byte, 100)
		if _, err := found[0].Rows.ReadAt(b, 3*rowsWindow+8); err != nil || !bytes.Equal(b, rows[3*rowsWindow+8:][:100]) {
			t.Fatal(err)
		}
	}
	if in.ranges != 1 || in.bytes != rowsWindow || r.cache.Cached() != rowsWindow {
		t.Errorf("%d reads of %d bytes, %d in the cache", in.ranges, in.bytes, r.cache.Cached())
	}
	index := make([]byte, 20)
	for range 2 {
		if _, err := found[0].Index.ReadAt(index, 4); err != nil || !bytes.Equal(index, rows[4:24]) || in.ranges != 2 || r.cache.Cached() != rowsWindow+pages.Bytes {
			t.Errorf("%q, %v, %d reads", index, err, in.ranges)
		}
	}
	if n, err := found[0].Index.ReadAt(index, int64(len(rows))-3); n != 3 || !errors.Is(err, io.EOF) {
		t.Errorf("%d, %v", n, err)
	}
	in.failing = true
	if n, err := found[0].Index.ReadAt(index, pages.Bytes); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "index: bytes 16384 to 32768: ") {
		t.Errorf("%d, %v", n, err)
	}
}

func TestProfileReader_AListThatFailedGoesOnWhereItEnded(t *testing.T) {
	ctx, in := context.Background(), &countedBucket{Bucket: objstore.NewInMemBucket()}
	const blocks = 50
	for range blocks {
		dir := ProfileBlock("a", ulid.Make())
		for _, file := range profileFiles {
			if err := in.Upload(ctx, path.Join(dir, file), strings.NewReader("x")); err != nil {
				t.Fatal(err)
			}
		}
	}
	r := newReader(t, in)
	for try := 1; ; try++ {
		in.attributes, in.attributesMax = 0, blocks
		found, err := r.Blocks(ctx)
		if err == nil {
			if len(found) != blocks || try == 1 {
				t.Errorf("list %d found %d blocks", try, len(found))
			}
			return
		}
		if try > 20 {
			t.Fatal("the list starts again every time: ", err)
		}
	}
}

// The providers of FILESYSTEM and S3 recognize only unwrapped errors of missing objects. An upload
// in progress, or a rest of a deletion, must not hide the other blocks.
func TestProfileReader_IncompleteBlockInADirectoryHidesNoOther(t *testing.T) {
	ctx := context.Background()
	in, err := Open([]byte("type: FILESYSTEM\nconfig: {directory: "+t.TempDir()+"}\n"), "test", quiet, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	whole, half := ulid.Make(), ulid.Make()
	for _, name := range []string{path.Join(ProfileBlock("a", whole), "index"), path.Join(ProfileBlock("a", whole), "profiles.parquet"), path.Join(ProfileBlock("a", half), "profiles.parquet")} {
		if err := in.Upload(ctx, name, strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	found, err := newReader(t, in).Blocks(ctx)
	if err != nil || len(found) != 1 || found[0].ID != whole {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestDeleteProfile_DeletesTheIndexFirst(t *testing.T) {
	ctx, in := context.Background(), objstore.NewInMemBucket()
	id := ulid.Make()
	for _, file := range profileFiles {
		if err := in.Upload(ctx, path.Join(ProfileBlock("%2Ea", id), file), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	var order []string
	watched := &deletions{Bucket: in, deleted: &order}
	for range 2 { // the second finds nothing to delete
		if err := NewProfileStore(watched).Delete(ctx, ".a", id); err != nil {
			t.Fatal(err)
		}
	}
	if len(in.Objects()) != 0 || len(order) != 8 || path.Base(order[0]) != "index" || path.Base(order[3]) != "deletion-mark.json" {
		t.Errorf("%d objects left, deleted %v", len(in.Objects()), order)
	}
}

type deletions struct {
	objstore.Bucket
	deleted *[]string
}

func (d *deletions) Delete(ctx context.Context, name string) error {
	*d.deleted = append(*d.deleted, name)
	return d.Bucket.Delete(ctx, name)
}

// unlistable is a bucket whose lists fail.
type unlistable struct{ objstore.Bucket }

func (unlistable) Iter(context.Context, string, func(string) error, ...objstore.IterOption) error {
	return io.ErrUnexpectedEOF
}

// An empty list would be taken for a bucket without blocks.
func TestProfileReader_FailedListIsAnError(t *testing.T) {
	r := newReader(t, unlistable{objstore.NewInMemBucket()})
	if found, err := r.Blocks(context.Background()); len(found) > 0 || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "list profiles") {
		t.Errorf("%+v, %v", found, err)
	}
}

// gets counts the objects that are read whole.
type gets struct {
	objstore.Bucket
	names []string
	fails bool
}

func (g *gets) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	g.names = append(g.names, path.Base(name))
	if g.fails {
		return nil, io.ErrUnexpectedEOF
	}
	return g.Bucket.Get(ctx, name)
}

func TestProfileReader_ListsDeletionMarks(t *testing.T) {
	ctx, in, id := context.Background(), &gets{Bucket: objstore.NewInMemBucket()}, ulid.Make()
	for _, file := range profileFiles {
		if err := in.Upload(ctx, path.Join(ProfileBlock("a", id), file), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	r, at := NewProfileReader(in, ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20}), time.Unix(1_700_000_000, 0)
	t.Cleanup(func() { _ = r.Close() })
	list := func(want time.Time, reason string) {
		t.Helper()
		found, err := r.Blocks(ctx)
		if err != nil || len(found) != 1 || !found[0].Marked.Equal(want) || found[0].MarkReason != reason {
			t.Fatalf("%+v, %v, want a mark of %s", found, err, want)
		}
	}
	list(time.Time{}, "")
	if _, err := NewProfileStore(in).Mark(ctx, "a", id, at, "by hand"); err != nil {
		t.Fatal(err)
	}
	in.names, in.fails = nil, true
	if found, err := r.Blocks(ctx); err != nil || len(found) != 1 || !found[0].MarkUnread || !found[0].Marked.IsZero() {
		t.Errorf("a mark that cannot be read: %+v, %v", found, err)
	}
	in.names, in.fails = nil, false
	for range 4 {
		list(at, "by hand")
	}
	if len(in.names) != 1 || in.names[0] != MarkFile {
		t.Errorf("%v were read", in.names)
	}
	for range 2 { // the second finds no mark
		if err := NewProfileStore(in).Unmark(ctx, "a", id); err != nil {
			t.Fatal(err)
		}
	}
	list(time.Time{}, "")
	in.names, in.fails = nil, false
	invalid := []string{
		"", "{", `{"id":"` + ulid.Make().String() + `","version":1,"deletion_time":1}`, `{"id":"` + id.String() + `","version":1}`,
		`{"id":"` + id.String() + `","version":2,"deletion_time":1}`,
	}
	now := time.Now()
	r.now = func() time.Time { return now }
	for i, text := range invalid {
		if err := in.Upload(ctx, path.Join(ProfileBlock("a", id), MarkFile), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			list(time.Time{}, "")
		}
		now = now.Add(markInvalidFor - 1)
		if list(time.Time{}, ""); len(in.names) != i+1 {
			t.Errorf("%s: %v were read, want one mark an hour", text, in.names)
		}
		now = now.Add(1)
	}
	if err := in.Upload(ctx, path.Join(ProfileBlock("a", id), MarkFile), strings.NewReader(`{"id":"`+id.String()+`","deletion_time":1700000000}`)); err != nil {
		t.Fatal(err)
	}
	list(at, "")
}
