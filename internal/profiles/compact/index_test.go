package compact

import (
	"bytes"
	"context"
	"math"
	"path"
	"testing"

	"github.com/thanos-io/objstore"
)

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
