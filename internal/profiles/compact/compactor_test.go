package compact

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/metrics"
)

// later is a time at which the profiles of the first days are old enough to be compacted.
var later = day.AddDate(0, 0, 5)

func TestIterate_MergesDaysThenMarksThenDeletes(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", append(profilesOf(0, 6, 0), profilesOf(6, 6, 1)...)...)
	ship(t, in, ".b", profilesOf(0, 3, 0)...)
	now := later
	c := newCompactor(t, in, t.TempDir(), now, nil)
	defer c.Close()
	c.opts.Now = func() time.Time { return now }
	for _, step := range []struct {
		after         time.Duration
		blocks, marks int
	}{{0, 15 + 3, 15}, {47 * time.Hour, 18, 15}, {48 * time.Hour, 3, 0}, {100 * time.Hour, 3, 0}} {
		now = later.Add(step.after)
		if err := c.Iterate(context.Background()); err != nil {
			t.Fatal(err)
		}
		marks := 0
		for _, name := range names(t, in) {
			if path.Base(name) == "deletion-mark.json" {
				marks++
			}
		}
		if n := len(blocks(t, in)); n != step.blocks || marks != step.marks {
			t.Errorf("after %s: %d blocks and %d marks, want %d and %d", step.after, n, marks, step.blocks, step.marks)
		}
		exact(t, in, "a", fmt.Sprint(step.after), 12)
		exact(t, in, ".b", fmt.Sprint(step.after), 3)
	}
	if len(names(t, in)) != 3*2+1 { // and the index
		t.Errorf("%v is left", names(t, in))
	}
	if m := c.metrics; m.compactions.Get() != 3 || m.cleaned.Get() != 15 || m.marked.With("deletion-mark.json", replacedReason).Get() != 15 || m.iterations.Get() != 4 || m.failures.Get() != 0 {
		t.Errorf("%d compactions, %d deleted, %d iterations", m.compactions.Get(), m.cleaned.Get(), m.iterations.Get())
	}
}

// The process may be killed at each operation on the bucket. The next process continues its work. At no time does a
// reader miss a profile or get a profile twice.
func TestIterate_KilledAtAnyOperationLosesAndDoublesNothing(t *testing.T) {
	in := objstore.NewInMemBucket()
	const numbers = 4
	ship(t, in, "a", append(profilesOf(0, 2, 0), profilesOf(2, 2, 1)...)...)
	for _, half := range []bool{false, true} {
		seen := map[string]bool{}
		for at := 1; ; at++ {
			state := copyOf(t, in)
			k := &killed{Bucket: state, at: at, half: half}
			dir := t.TempDir()
			var err error
			// The second iteration deletes.
			for _, now := range []time.Time{later, later.Add(48 * time.Hour)} {
				c := newCompactor(t, k, dir, now, nil)
				err = errors.Join(c.Iterate(context.Background()), c.Close())
				if err != nil {
					break
				}
			}
			if err == nil {
				for _, op := range []string{"upload profiles.parquet", "upload index", "upload deletion-mark.json", "delete index", "delete profiles.parquet", "delete deletion-mark.json", "upload bucket-index.json.gz"} {
					if !seen[op] {
						t.Errorf("not killed at %s", op)
					}
				}
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			when := fmt.Sprintf("killed at operation %d, %s, half %v", at, k.ops[at-1], half)
			if strings.HasPrefix(k.ops[at-1], "attributes") || strings.HasPrefix(k.ops[at-1], "get range") {
				if at%5 != 0 {
					continue // reads change nothing: a sample of them is enough
				}
			}
			seen[k.ops[at-1]] = true
			exact(t, state, "a", when, numbers)
			for _, after := range []time.Duration{0, 48 * time.Hour, 120 * time.Hour} {
				iterate(t, state, later.Add(after), nil)
				exact(t, state, "a", fmt.Sprintf("%s, %s later", when, after), numbers)
			}
			if n := len(blocks(t, state)); n != 2 && (!half || n > 3) { // a broken index stays until it is old
				t.Errorf("%s: %d blocks are left: %v", when, n, names(t, state))
			}
		}
	}
}

// paused calls a function once, before an upload.
type paused struct {
	objstore.Bucket
	before func()
}

func (p *paused) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if f := p.before; f != nil {
		p.before = nil
		f()
	}
	return p.Bucket.Upload(ctx, name, r, o...)
}

// Two compactors run at the same time. One of them is suspended for days before an upload.
func TestIterate_TwoCompactorsLoseAndDoubleNothing(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 6, 0)...)
	slow := &paused{Bucket: in, before: func() {
		iterate(t, in, later, nil)
		ship(t, in, "a", numbered(6, day.Add(time.Hour))) // a late block
		iterate(t, in, later.Add(48*time.Hour), nil)
		exact(t, in, "a", "in between", 7)
		if n := len(blocks(t, in)); n != 3 { // the union, and the two blocks that it replaces
			t.Errorf("%d blocks are in the bucket", n)
		}
	}}
	iterate(t, slow, later, nil)
	exact(t, in, "a", "both have merged", 7)
	for _, after := range []time.Duration{72 * time.Hour, 240 * time.Hour} {
		iterate(t, in, later.Add(after), nil)
		exact(t, in, "a", fmt.Sprint(after), 7)
	}
	if n := len(blocks(t, in)); n != 1 {
		t.Errorf("%d blocks are left", n)
	}
}

// Blocks that were compacted from partly the same blocks are merged, whatever their age is.
func TestIterate_MergesBlocksWithProfilesInCommon(t *testing.T) {
	all := objstore.NewInMemBucket()
	ship(t, all, "a", profilesOf(0, 3, 0)...)
	in := copyOf(t, all)
	dirs := blocks(t, all)
	for _, without := range []int{0, 2} { // each compactor sees two of the three blocks
		some := copyOf(t, all)
		remove(t, some, dirs[without])
		iterate(t, some, later, nil)
		for _, dir := range dirs {
			remove(t, some, dir)
		}
		for _, name := range names(t, some) {
			if err := in.Upload(context.Background(), name, bytes.NewReader(object(t, some, name))); err != nil {
				t.Fatal(err)
			}
		}
	}
	if sums, warnings := read(t, in, "a"); len(warnings) != 2 || sums[1] != 4 {
		t.Errorf("before: %v %v", sums, warnings)
	}
	c := iterate(t, in, day, nil)
	exact(t, in, "a", "merged", 3)
	if _, warnings := read(t, in, "a"); len(warnings) != 0 || c.metrics.vertical.Get() != 1 {
		t.Error(warnings)
	}
}

func remove(t *testing.T, in objstore.Bucket, dir string) {
	t.Helper()
	for _, name := range names(t, in) {
		if path.Dir(name) == dir {
			if err := in.Delete(context.Background(), name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestIterate_YoungBlocksAreLeftToTheServer(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	iterate(t, in, day.Add(daySpan+30*time.Hour-time.Second), nil)
	if n := len(blocks(t, in)); n != 3 {
		t.Errorf("%d blocks", n)
	}
	iterate(t, in, day.Add(daySpan+30*time.Hour+time.Second), nil)
	if n := len(blocks(t, in)); n != 4 {
		t.Errorf("%d blocks", n)
	}
}

func TestIterate_DaysAreNotMerged(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", append(profilesOf(0, 1, 0), profilesOf(1, 1, 1)...)...)
	if c := iterate(t, in, later, nil); c.metrics.compactions.Get() != 0 || len(blocks(t, in)) != 2 {
		t.Error(blocks(t, in))
	}
}

func TestDivide_LimitsSizeRangeAndParents(t *testing.T) {
	of := func(fromHour, toHour int, bytes int64, parents int) *stored {
		return &stored{meta: block.Meta{MinNS: int64(fromHour) * int64(time.Hour), MaxNS: int64(toHour) * int64(time.Hour), Parents: make([][16]byte, parents)}, bytes: bytes}
	}
	for name, c := range map[string]struct {
		all  []*stored
		want string // number of blocks of each group
	}{
		"all":                    {[]*stored{of(0, 6, 10, 0), of(6, 12, 10, 0), of(12, 24, 80, 0)}, "[3]"},
		"one byte more":          {[]*stored{of(0, 6, 10, 0), of(6, 12, 10, 0), of(12, 24, 81, 0)}, "[2]"},
		"two groups":             {[]*stored{of(0, 1, 50, 0), of(1, 2, 50, 0), of(2, 3, 50, 0), of(3, 4, 50, 0), of(4, 5, 50, 0)}, "[2 2]"},
		"a block over the limit": {[]*stored{of(0, 1, 50, 0), of(1, 2, 101, 0), of(2, 3, 50, 0), of(3, 4, 50, 0)}, "[2]"},
		"beyond a day":           {[]*stored{of(0, 1, 1, 0), of(1, 2, 1, 0), of(23, 25, 1, 0)}, "[2]"},
		"a long one first":       {[]*stored{of(0, 24, 1, 0), of(1, 2, 1, 0)}, "[2]"},
		"parents":                {[]*stored{of(0, 1, 1, parentsMax-2), of(1, 2, 1, 0), of(2, 3, 1, 0)}, "[2]"},
		"one":                    {[]*stored{of(0, 1, 1, 0)}, "[]"},
		"none":                   {nil, "[]"},
	} {
		sizes := []int{}
		for _, g := range divide(c.all, 100, 200) {
			sizes = append(sizes, len(g.blocks))
		}
		if got := fmt.Sprint(sizes); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestIterate_RetentionMarksAndDeletesWholeBlocks(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", append(profilesOf(0, 2, 3), profilesOf(2, 2, 0)...)...)
	retain := func(o *Options) { o.Retention = 3 * daySpan }
	at := day.Add(4 * daySpan) // day 0 ended 3 days ago, and day 3 ends now
	iterate(t, in, at.Add(-daySpan), retain)
	if n := len(blocks(t, in)); n != 5 { // the two of day 0 and their union
		t.Fatalf("%d blocks: %v", n, names(t, in))
	}
	iterate(t, in, at, retain)
	exact(t, copyOf(t, in), "a", "marked", 4)
	iterate(t, in, at.Add(48*time.Hour), retain)
	exact(t, in, "a", "deleted", 2)
	if n := len(blocks(t, in)); n < 2 {
		t.Errorf("%d blocks are left", n)
	}
	// A longer retention removes the mark.
	iterate(t, in, day.Add(10*daySpan), retain)
	iterate(t, in, day.Add(13*daySpan), nil)
	exact(t, in, "a", "retained", 2)
	for _, name := range names(t, in) {
		if path.Base(name) == "deletion-mark.json" {
			text := string(object(t, in, name))
			if !strings.Contains(text, `"details":"compacted"`) {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

func TestIterate_BrokenBlocksAreSkippedAndNamed(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 4, 0)...)
	dirs := blocks(t, in)
	change := func(name string, f func([]byte) []byte) {
		t.Helper()
		if err := in.Upload(context.Background(), name, bytes.NewReader(f(object(t, in, name)))); err != nil {
			t.Fatal(err)
		}
	}
	change(dirs[0]+"/index", func(b []byte) []byte { return b[:len(b)-1] })
	change(dirs[1]+"/profiles.parquet", func(b []byte) []byte { b[len(b)-1] ^= 1; return b })
	if err := in.Delete(context.Background(), dirs[2]+"/index"); err != nil { // an upload in progress
		t.Fatal(err)
	}
	ship(t, in, "b", profilesOf(0, 2, 0)...)
	c := iterate(t, in, later, nil)
	exact(t, in, "b", "the other tenant", 2)
	if c.metrics.broken.Get() != 2 || c.metrics.compactions.Get() != 1 || len(blocks(t, in)) != 3+2+1 {
		t.Errorf("%v broken, %d compactions, %v", c.metrics.broken.Get(), c.metrics.compactions.Get(), blocks(t, in))
	}
	for _, dir := range dirs {
		if !strings.Contains(strings.Join(names(t, in), " "), dir) {
			t.Errorf("%s was deleted", dir)
		}
	}
}

// A compactor that is older than a server keeps the server's blocks and merges the others.
func TestIterate_NewerBlocksAreKept(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 4, 0)...)
	dirs := blocks(t, in)
	for i, change := range []func([]byte) []byte{
		func(b []byte) []byte { b[7]++; return b }, // the version
		func(b []byte) []byte { // a further section before the last one
			end := len(b) - block.TailBytes
			return slices.Concat(b[:end], []byte{0xFF}, b[end+1:], b[end:])
		},
	} {
		if err := in.Upload(context.Background(), dirs[i]+"/index", bytes.NewReader(change(object(t, in, dirs[i]+"/index")))); err != nil {
			t.Fatal(err)
		}
	}
	for _, after := range []time.Duration{0, 48 * time.Hour, 120 * time.Hour} {
		if c := iterate(t, in, later.Add(after), nil); c.metrics.broken.Get() != 2 && after == 0 {
			t.Errorf("%v broken", c.metrics.broken.Get())
		}
	}
	if left := blocks(t, in); len(left) != 3 || !slices.Contains(left, dirs[0]) || !slices.Contains(left, dirs[1]) {
		t.Errorf("%v are left of %v", left, dirs)
	}
}

// S3 cannot request a range of 0 bytes: for an empty object its client requests the last byte, which is an error.
type ranges struct{ objstore.Bucket }

func (r ranges) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if a, err := r.Attributes(ctx, name); err == nil && (length <= 0 || off >= a.Size) {
		return nil, fmt.Errorf("%s: the requested range cannot be satisfied", name)
	}
	return r.Bucket.GetRange(ctx, name, off, length)
}

// An object without content must not stop the compaction of its tenant.
func TestIterate_AnEmptyIndexIsABrokenBlock(t *testing.T) {
	in := ranges{objstore.NewInMemBucket()}
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	dirs := blocks(t, in)
	if err := in.Upload(context.Background(), dirs[0]+"/index", bytes.NewReader(nil)); err != nil {
		t.Fatal(err)
	}
	if c := iterate(t, in, later, nil); c.metrics.broken.Get() != 1 || c.metrics.compactions.Get() != 1 {
		t.Errorf("%v broken, %d compactions", c.metrics.broken.Get(), c.metrics.compactions.Get())
	}
}

// vanishing is a bucket in which a block is deleted before its rows are downloaded.
type vanishing struct {
	objstore.Bucket
	t   *testing.T
	dir string
}

func (v *vanishing) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if path.Base(name) == "profiles.parquet" && v.dir != "" {
		dir := v.dir
		v.dir = ""
		remove(v.t, v.Bucket, dir)
	}
	return v.Bucket.GetRange(ctx, name, off, length)
}

func TestIterate_ABlockThatVanishesIsNoError(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	v := &vanishing{Bucket: in, t: t, dir: blocks(t, in)[2]}
	c := newCompactor(t, v, t.TempDir(), later, nil)
	defer c.Close()
	if err := c.Iterate(context.Background()); err != nil {
		t.Fatal(err)
	}
	exact(t, in, "a", "vanished", 2)
	if err := c.Iterate(context.Background()); err != nil || c.metrics.failures.Get() != 0 {
		t.Fatal(err)
	}
	exact(t, in, "a", "merged", 2)
	if c.metrics.compactions.Get() != 1 {
		t.Errorf("%d compactions", c.metrics.compactions.Get())
	}
}

func TestIterate_AFailedListIsAnErrorAndDeletesNothing(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 2, 0)...)
	c := newCompactor(t, &killed{Bucket: in, at: 1}, t.TempDir(), later, nil)
	defer c.Close()
	if err := c.Iterate(context.Background()); !errors.Is(err, errKilled) || c.metrics.iterations.Get() != 0 {
		t.Error(err)
	}
	exact(t, in, "a", "failed", 2)
}

func TestIterate_MarksOfOthersAreObeyed(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 3, 0)...)
	s := bucket.NewProfileStore(in)
	listed, err := s.List(context.Background())
	if err != nil || len(listed) != 3 {
		t.Fatal(err, len(listed))
	}
	if _, err := s.Mark(context.Background(), "a", listed[2].ID, later, "by hand"); err != nil {
		t.Fatal(err)
	}
	iterate(t, in, later, nil)
	if len(blocks(t, in)) != 4 {
		t.Fatal(blocks(t, in))
	}
	iterate(t, in, later.Add(48*time.Hour), nil)
	exact(t, in, "a", "deleted by hand", 2)
	if len(blocks(t, in)) != 1 {
		t.Error(blocks(t, in))
	}
}

func TestNew_OneProcessForEachDirectory(t *testing.T) {
	dir, in := t.TempDir(), objstore.NewInMemBucket()
	c := newCompactor(t, in, dir, later, nil)
	if _, err := New(in, Options{Dir: dir}, quiet, metrics.NewSet()); err == nil {
		t.Error("two compactors use one directory")
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// A compactor removes what is left in its own directory, and nothing in directories that its name matches as a pattern.
func TestNew_NamesLikePatternsAreNoPatterns(t *testing.T) {
	in := objstore.NewInMemBucket()
	for _, name := range []string{"[ab]", "[a", "*"} {
		parent := t.TempDir()
		own, other := filepath.Join(parent, name, groupDir+"1"), filepath.Join(parent, "a", groupDir+"1")
		if err := errors.Join(os.MkdirAll(own, 0o755), os.MkdirAll(other, 0o755)); err != nil {
			t.Fatal(err)
		}
		c := newCompactor(t, in, filepath.Dir(own), later, nil)
		if _, err := os.Stat(own); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: its own directory: %v", name, err)
		}
		if _, err := os.Stat(other); err != nil {
			t.Errorf("%s: the directory of another process: %v", name, err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

const indexName = "profiles/bucket-index.json.gz"

// requests counts the requests of a reader that starts, by kind.
func requests(t *testing.T, from objstore.Bucket) map[string]int {
	t.Helper()
	k := &killed{Bucket: from, at: math.MaxInt}
	if sums, _ := read(t, k, "no-such-tenant"); len(sums) > 0 {
		t.Fatal(sums)
	}
	counts := map[string]int{}
	for _, op := range k.ops {
		counts[op]++
	}
	return counts
}

// The index saves two HEAD and one GET for each block, and two more HEAD by the second list.
func TestIndex_AReaderStartsWithFewRequests(t *testing.T) {
	in := objstore.NewInMemBucket()
	const n = 20
	ship(t, in, "a", profilesOf(0, n, 0)...)
	before := requests(t, in)
	iterate(t, in, day, nil) // nothing is old enough to be compacted
	with := requests(t, in)
	ship(t, in, "a", numbered(n, day))
	newer := requests(t, in)
	t.Log("without an index:", before, "with one:", with, "with a further block:", newer)
	if before["attributes"] != 2*n || before["get range"] != n {
		t.Errorf("without an index: %v", before)
	}
	if with["attributes"] != 0 || with["get range"] != 0 || with["get"] != 1 || with["iter"] != 1 {
		t.Errorf("with an index: %v", with)
	}
	if newer["attributes"] != 2 || newer["get range"] != 1 || newer["get"] != 1 || newer["iter"] != 1 {
		t.Errorf("with a further block: %v", newer)
	}
	exact(t, in, "a", "with an index", n+1)
	iterate(t, in, later, nil)
	exact(t, in, "a", "compacted", n+1)
}

// The index is only a cache: whatever its content is, readers see the blocks that exist.
func TestIndex_ABrokenOrStaleIndexChangesNoResult(t *testing.T) {
	ctx := context.Background()
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 4, 0)...)
	iterate(t, in, later, nil)
	good := object(t, in, indexName)
	for name, text := range map[string][]byte{"empty": nil, "half": good[:len(good)/2], "text": []byte("{}"), "good": good} {
		state := copyOf(t, in)
		if err := state.Upload(ctx, indexName, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		exact(t, state, "a", name, 4)
		iterate(t, state, later, nil)
		exact(t, state, "a", name, 4)
	}
	// Blocks that the index lists are deleted, and others are uploaded.
	for _, dir := range blocks(t, in) {
		if exists(t, in, dir+"/deletion-mark.json") {
			remove(t, in, dir)
		}
	}
	ship(t, in, "b", profilesOf(0, 2, 0)...)
	exact(t, in, "a", "stale", 4)
	exact(t, in, "b", "stale", 2)
}

func TestIndex_IsWrittenWhenTheBlocksHaveChanged(t *testing.T) {
	in := objstore.NewInMemBucket()
	ship(t, in, "a", profilesOf(0, 2, 0)...)
	k := &killed{Bucket: in, at: math.MaxInt}
	c := newCompactor(t, k, t.TempDir(), day, nil)
	defer c.Close()
	for i, want := range []int{1, 1, 2} {
		if i == 2 {
			ship(t, in, "a", numbered(2, day))
		}
		if err := c.Iterate(context.Background()); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, op := range k.ops {
			if op == "upload "+path.Base(indexName) {
				n++
			}
		}
		if n != want {
			t.Errorf("iteration %d: the index was written %d times, want %d", i, n, want)
		}
	}
}

func exists(t *testing.T, in objstore.Bucket, name string) bool {
	t.Helper()
	ok, err := in.Exists(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}
