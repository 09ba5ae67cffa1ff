package compact

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles/block"
)

// A server reads indexes of at most block.IndexMax bytes. A merged block with a larger index would replace its parents,
// and no server could read it.
func TestDivide_LimitsTheIndexes(t *testing.T) {
	of := func(hour int, index int64) *stored {
		return &stored{meta: block.Meta{MinNS: int64(hour), MaxNS: int64(hour), RowsBytes: 1000}, bytes: 1000 + index}
	}
	groups := divide([]*stored{of(0, 100), of(1, 100), of(2, 1), of(3, 199)}, 1<<20, 200)
	if len(groups) != 2 || len(groups[0].blocks) != 2 || len(groups[1].blocks) != 2 {
		t.Errorf("%+v", groups)
	}
}

// The number of parents of a merged block is limited, also if its parents overlap. With too many parents the meta would be
// larger than servers and compactors can read, and each iteration would fail.
func TestPlan_LimitsParentsAndIndexesOfOverlappingBlocks(t *testing.T) {
	id := func(n int) (id [16]byte) { binary.BigEndian.PutUint32(id[12:], uint32(n)); return id }
	of := func(n, from, to int, index int64) *stored {
		s := &stored{StoredProfile: &bucket.StoredProfile{ID: id(n)}, bytes: index}
		for i := from; i < to; i++ {
			s.meta.Parents = append(s.meta.Parents, id(i))
		}
		s.meta.ULID = s.ID
		return s
	}
	plan := func(all ...*stored) (sizes []int) {
		c := newCompactor(t, objstore.NewInMemBucket(), t.TempDir(), later, nil)
		defer c.Close()
		c.indexMax = 100
		x := &tenant{Compactor: c, blocks: all}
		x.relate()
		for _, g := range x.plan() {
			if g.vertical {
				sizes = append(sizes, len(g.blocks))
			}
		}
		return sizes
	}
	half := parentsMax / 2
	if got := plan(of(90001, 0, half, 1), of(90002, half-1, parentsMax-2, 1)); len(got) != 1 || got[0] != 2 {
		t.Errorf("as many parents as a meta may have: %v", got)
	}
	if got := plan(of(90001, 0, half, 1), of(90002, half-1, parentsMax-1, 1)); len(got) != 0 {
		t.Errorf("one more: %v", got)
	}
	if got := plan(of(90001, 0, 2, 50), of(90002, 1, 3, 51), of(90003, 1, 4, 50)); len(got) != 1 || got[0] != 2 {
		t.Errorf("indexes: %v", got)
	}
}

// full is a bucket to which no block can be uploaded.
type full struct{ objstore.Bucket }

var errFull = errors.New("no space left")

func (f full) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if path.Base(name) == block.RowsFile {
		return errFull
	}
	return f.Bucket.Upload(ctx, name, r, o...)
}

// If merges fail, for example because the disk is full, the retention still deletes blocks of the tenant.
func TestIterate_TheRetentionHoldsAlthoughAMergeFails(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", append(profilesOf(0, 2, 0), profilesOf(2, 2, 20)...)...)
	c := newCompactor(t, full{in}, t.TempDir(), day.AddDate(0, 0, 30), func(o *Options) { o.Retention, o.DeleteDelay = 20*daySpan, -1 })
	defer c.Close()
	if err := c.Iterate(context.Background()); !errors.Is(err, errFull) {
		t.Errorf("%v", err)
	}
	if left := blocks(t, in); len(left) != 2 {
		t.Errorf("%d blocks are left, want the 2 of day 20: %v", len(left), left)
	}
}

// A mark that was written with a clock years ahead must not keep its block for years.
func TestIterate_AMarkFromTheFutureIsWrittenAgain(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 2, 0)...)
	iterate(t, in, later.AddDate(5, 0, 0), nil) // merges and marks
	iterate(t, in, later, nil)
	marks := 0
	for _, name := range names(t, in) {
		if path.Base(name) != "deletion-mark.json" {
			continue
		}
		var mark bucket.DeletionMark
		if err := json.Unmarshal(object(t, in, name), &mark); err != nil || mark.DeletionTime != later.Unix() {
			t.Errorf("%+v %v", mark, err)
		}
		marks++
	}
	if marks != 2 {
		t.Errorf("%d marks", marks)
	}
	iterate(t, in, later.Add(49*time.Hour), nil)
	if left := blocks(t, in); len(left) != 1 {
		t.Error(left)
	}
	exact(t, in, "a", "after the clock was set", 2)
}

// A mark with other details than those of this package is obeyed, as the documents describe.
func TestIterate_AMarkWhoseTextBeginsLikeAReasonIsObeyed(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", numbered(0, day))
	dir := blocks(t, in)[0]
	text, err := json.Marshal(map[string]any{"id": path.Base(dir), "version": 1, "details": "retention by hand", "deletion_time": later.Add(-49 * time.Hour).Unix()})
	if err == nil {
		err = in.Upload(t.Context(), dir+"/deletion-mark.json", bytes.NewReader(text))
	}
	if err != nil {
		t.Fatal(err)
	}
	iterate(t, in, later, nil)
	if left := names(t, in); len(left) > 0 && strings.Contains(strings.Join(left, " "), "index ") || len(blocks(t, in)) != 0 {
		t.Error(left)
	}
}

// fullAfter20 is a bucket to which at most 20 blocks can be uploaded.
type fullAfter20 struct {
	objstore.Bucket
	uploads *int
}

func (f fullAfter20) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if path.Base(name) == block.RowsFile {
		if *f.uploads++; *f.uploads > 20 {
			return errFull
		}
	}
	return f.Bucket.Upload(ctx, name, r, o...)
}

// A merged block does not replace a block whose meta has a longer range than its rows. Both blocks must not be merged and
// uploaded again in each iteration.
func TestIterate_ABlockWithAWrongRangeIsNotMerged(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	dir := blocks(t, in)[2]
	id, err := ulid.ParseStrict(path.Base(dir))
	if err != nil {
		t.Fatal(err)
	}
	index := object(t, in, dir+"/"+block.IndexFile)
	meta, err := block.MetaOf(index)
	at := bytes.Index(index, id[:])
	if err != nil || at < 0 {
		t.Fatal(at, err)
	}
	le := binary.LittleEndian
	le.PutUint64(index[at+24:], uint64(meta.MaxNS+1))
	le.PutUint64(index[at-8:], xxhash.Sum64(index[at:at+int(le.Uint64(index[at-24:]))]))
	if changed, err := block.MetaOf(index); err != nil || changed.MaxNS != meta.MaxNS+1 {
		t.Fatal(changed, err)
	}
	if err := in.Upload(t.Context(), dir+"/"+block.IndexFile, bytes.NewReader(index)); err != nil {
		t.Fatal(err)
	}
	uploads := 0
	c := iterate(t, fullAfter20{in, &uploads}, later, func(o *Options) { o.DeleteDelay = -1 })
	if left := blocks(t, in); uploads != 1 || len(left) != 2 || !slices.Contains(left, dir) {
		t.Errorf("%d uploads, %v", uploads, left)
	}
	if got := c.metrics.broken.Get(); got != 1 {
		t.Errorf("%v broken blocks", got)
	}
	exact(t, in, "a", "after the iteration", 3)
}

// denied is a bucket in which objects of some names cannot be read.
type denied struct {
	objstore.Bucket
	suffix string
	reads  int
}

func (d *denied) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if strings.HasSuffix(name, d.suffix) {
		d.reads++
		return nil, errors.New("403 Forbidden: " + name)
	}
	return d.Bucket.Get(ctx, name)
}

// A mark that cannot be read must not end the marking and the deletion of the blocks after it.
func TestIterate_MarkThatCannotBeReadConcernsItsBlockOnly(t *testing.T) {
	in := &denied{Bucket: objstore.NewInMemBucket()}
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	iterate(t, in, later, nil) // merges and marks
	all := blocks(t, in)
	if len(all) != 4 {
		t.Fatal(all)
	}
	in.suffix = all[1] + "/deletion-mark.json" // all[0] is the merged block
	c := newCompactor(t, in, t.TempDir(), later.Add(49*time.Hour), nil)
	if err := c.Iterate(t.Context()); err == nil || !strings.Contains(err.Error(), "403 Forbidden") {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	exact(t, in.Bucket, "a", "one mark was refused", 3)
	if left := blocks(t, in); !slices.Equal(left, all[:2]) {
		t.Errorf("%v are left of %v", left, all)
	}
}

func TestMark_EndsWhenTheBucketIsAtFault(t *testing.T) {
	in := &denied{Bucket: objstore.NewInMemBucket()}
	ship(t, in, "a", profilesOf(0, failuresMax+4, 0)...)
	iterate(t, in, later, nil)
	in.suffix = "/deletion-mark.json"
	c := newCompactor(t, in, t.TempDir(), later.Add(49*time.Hour), nil)
	if err := c.Iterate(t.Context()); err == nil || in.reads != failuresMax || len(c.known) != failuresMax+5 {
		t.Errorf("%d marks were requested, %d blocks are known, %v", in.reads, len(c.known), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// unlisted is a bucket in which the directory of one block must not be listed.
type unlisted struct {
	objstore.Bucket
	dir string
}

var errUnlisted = errors.New("permission denied")

func (u unlisted) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if strings.TrimSuffix(dir, "/") == u.dir {
		return errUnlisted
	}
	if err := f(u.dir + "/"); err != nil {
		return err
	}
	return u.Bucket.Iter(ctx, dir, func(name string) error {
		if path.Dir(name) == u.dir {
			return nil
		}
		return f(name)
	}, o...)
}

func (unlisted) IsAccessDeniedErr(err error) bool { return errors.Is(err, errUnlisted) }

// If the directory of a merged block cannot be listed, the blocks that the merged block has replaced must keep their marks.
func TestIterate_DirectoryThatMustNotBeListedConcernsItsTenantOnly(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	iterate(t, in, later, nil) // merges and marks
	before := names(t, in)
	merged := blocks(t, in)[0]
	ship(t, in, "b", profilesOf(0, 3, 0)...)
	c := newCompactor(t, unlisted{in, merged}, t.TempDir(), later.Add(49*time.Hour), nil)
	if err := c.Iterate(t.Context()); !errors.Is(err, errUnlisted) || !strings.Contains(err.Error(), merged) {
		t.Error(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	var left []string
	others := 0
	for _, name := range names(t, in) {
		if strings.HasPrefix(name, "profiles/a/") {
			left = append(left, name)
		} else if path.Base(name) == "index" {
			others++
		}
	}
	if !slices.Equal(left, slices.DeleteFunc(before, func(name string) bool { return !strings.HasPrefix(name, "profiles/a/") })) || others != 4 {
		t.Errorf("%q of %q are left, and the other tenant has %d blocks", left, before, others)
	}
}
