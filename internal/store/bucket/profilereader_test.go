package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
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
	c.ranges, c.bytes = c.ranges+1, c.bytes+length
	if c.failing {
		return nil, io.ErrUnexpectedEOF
	}
	return c.Bucket.GetRange(ctx, name, off, length)
}

func TestProfileReader_ListsCompleteBlocksAndCachesRanges(t *testing.T) {
	ctx, in := context.Background(), &countedBucket{Bucket: objstore.NewInMemBucket()}
	one, two, half := ulid.Make(), ulid.Make(), ulid.Make()
	rows := bytes.Repeat([]byte("0123456789abcdef"), pageBytes) // sixteen pages
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
	r := NewProfileReader(in, 1<<20, time.Minute)
	list := func() []ProfileObjects {
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
		if _, err := found[0].Rows.ReadAt(b, 3*pageBytes+8); err != nil || !bytes.Equal(b, rows[3*pageBytes+8:][:100]) {
			t.Fatal(err)
		}
	}
	if in.ranges != 1 || in.bytes != pageBytes || r.CacheBytes() != pageBytes {
		t.Errorf("%d reads of %d bytes, %d in the cache", in.ranges, in.bytes, r.CacheBytes())
	}
	index := make([]byte, 20)
	if _, err := found[0].Index.ReadAt(index, 4); err != nil || !bytes.Equal(index, rows[4:24]) || r.CacheBytes() != pageBytes {
		t.Errorf("%q, %v", index, err)
	}
	span := fmt.Sprintf("bytes %d to %d: ", len(rows)-3, len(rows)+17)
	if n, err := found[0].Index.ReadAt(index, int64(len(rows))-3); n != 3 || err == nil || !strings.Contains(err.Error(), span) {
		t.Errorf("%d, %v, not %s", n, err, span)
	}
	in.failing = true
	if n, err := found[0].Index.ReadAt(index, 4); n != 0 || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "bytes 4 to 24: ") {
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
	r := NewProfileReader(in, 1<<20, time.Minute)
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
		if err := DeleteProfile(ctx, watched, ".a", id); err != nil {
			t.Fatal(err)
		}
	}
	if len(in.Objects()) != 0 || len(order) != 6 || path.Base(order[0]) != "index" {
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
	r := NewProfileReader(unlistable{objstore.NewInMemBucket()}, 1<<20, time.Minute)
	if found, err := r.Blocks(context.Background()); len(found) > 0 || !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "list profiles") {
		t.Errorf("%+v, %v", found, err)
	}
}
