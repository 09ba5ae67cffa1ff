package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/metrics"
)

// Sizes come from the index of the bucket and are not requested. After a doubt, the next list must request them.
func TestProfileReader_DoubtedSizesAreRequestedAgain(t *testing.T) {
	in, right, wrong := &away{Bucket: objstore.NewInMemBucket()}, ulid.Make(), ulid.Make()
	err := NewProfileStore(in).WriteIndex(t.Context(), []ProfileEntry{{"a", right, 10, 10, []byte("h")}, {"a", wrong, 11, 10, []byte("h")}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []ulid.ULID{right, wrong} {
		upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
	}
	r := newReader(t, in)
	list := func() map[ulid.ULID]profiles.BucketBlock {
		t.Helper()
		found, err := r.Blocks(t.Context())
		if err != nil || len(found) != 2 {
			t.Fatal(found, err)
		}
		return map[ulid.ULID]profiles.BucketBlock{found[0].ID: found[0], found[1].ID: found[1]}
	}
	first := list()
	if first[wrong].IndexBytes != 11 || in.attributes.Load() != 0 {
		t.Fatalf("%+v", first)
	}
	if _, err := readAll(first[right].Index, 10); err != nil {
		t.Fatal(err)
	}
	first[wrong].Doubt()
	first[right].Doubt()
	for step, want := range []int64{4, 6, 6} { // of both blocks, of the one whose size has changed, of none
		if found := list(); found[wrong].IndexBytes != 10 || found[right].IndexBytes != 10 || in.attributes.Load() != want {
			t.Errorf("list %d: %+v, %d requests for sizes", step, found, in.attributes.Load())
		}
	}
}

// Without the index a start requests the sizes and metas of all blocks. The log must have the reason why the index is not used.
func TestProfileReader_UnusedIndexIsLoggedAndCounted(t *testing.T) {
	entry := func(id ulid.ULID, indexBytes, rowsBytes int64, head string) string {
		return fmt.Sprintf(`{"tenant":"a","id":%q,"index_bytes":%d,"rows_bytes":%d,"head":%q}`, id, indexBytes, rowsBytes, head)
	}
	id := ulid.Make()
	for name, tt := range map[string]struct {
		text string // of the index; "": there is none
		want string // in the log; "": nothing
		head bool   // the entry is used
	}{
		"none":              {"", "", false},
		"good":              {`{"version":1,"blocks":[` + entry(id, 10, 10, "aGVhZA==") + `]}`, "", true},
		"cut":               {`{"version":1,"blocks":[`, "The index of the profile blocks in the bucket is not used", false},
		"other version":     {`{"version":2,"blocks":[]}`, "version 2 is not known", false},
		"an index of 0":     {`{"version":1,"blocks":[` + entry(id, 0, 10, "aGVhZA==") + `]}`, ProfileBlock("a", id), false},
		"rows of less":      {`{"version":1,"blocks":[` + entry(id, 10, -1, "aGVhZA==") + `]}`, ProfileBlock("a", id), false},
		"without a head":    {`{"version":1,"blocks":[` + entry(id, 10, 10, "") + `]}`, ProfileBlock("a", id), false},
		"a size of 2^63":    {`{"version":1,"blocks":[{"index_bytes":9223372036854775808}]}`, "cannot unmarshal number 9223372036854775808", false},
		"a head of no text": {`{"version":1,"blocks":[{"head":"*"}]}`, "illegal base64", false},
	} {
		var in objstore.Bucket = objstore.NewInMemBucket()
		if tt.text != "" {
			in = uploadIndex(t, tt.text)
		}
		upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
		var log bytes.Buffer
		set := metrics.NewSet()
		r := NewProfileReader(in, ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil)), Metrics: set})
		b := only(t, r)
		if b.IndexBytes != 10 || b.RowsBytes != 10 || (b.Head != nil) != tt.head {
			t.Errorf("%s: %+v", name, b)
		}
		counted := map[bool]uint64{true: 1}[tt.want != ""]
		if logged := strings.Count(log.String(), "level=WARN"); uint64(logged) != counted || !strings.Contains(log.String(), tt.want) || r.indexErrors.Get() != counted {
			t.Errorf("%s: %d are counted, log %q", name, r.indexErrors.Get(), log.String())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// crowded is a bucket with n profile blocks of a tenant, which have other objects, too.
type crowded struct {
	objstore.Bucket
	n, others int
}

func (c crowded) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	recursive := objstore.ApplyIterOptions(o...).Recursive
	if dir == profilesDir+"/" && !recursive {
		return f(profilesDir + "/a/")
	}
	for i := range c.n {
		name := ProfileBlock("a", ulid.MustNew(uint64(i), zeros{}))
		if !recursive {
			if err := f(name + "/"); err != nil {
				return err
			}
			continue
		}
		for j := range c.others {
			if err := f(path.Join(name, fmt.Sprint(j))); err != nil {
				return err
			}
		}
		for _, file := range profileObjects {
			if err := f(path.Join(name, file)); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The memory of the lists of a bucket must have a limit.
func TestProfileLists_HaveALimitOfBlocks(t *testing.T) {
	for n, want := range map[int]error{blocksMax: nil, blocksMax + 1: profiles.ErrLimit} {
		in := crowded{objstore.NewInMemBucket(), n, 0}
		r := newReader(t, in)
		dirs, err := r.List(t.Context())
		if !errors.Is(err, want) || want == nil && len(dirs) != n || err != nil && (len(dirs) > 0 || !strings.Contains(err.Error(), "more than 100000 ")) {
			t.Errorf("%d blocks: %d directories, %v", n, len(dirs), err)
		}
		if want != nil {
			if found, err := r.Blocks(t.Context()); len(found) > 0 || !errors.Is(err, want) {
				t.Errorf("%d blocks: %d, %v", n, len(found), err)
			}
		}
	}
	p := NewProfileStore(crowded{objstore.NewInMemBucket(), 1, 5000})
	if p.blocksMax != 1_000_000 {
		t.Errorf("a compactor lists %d blocks", p.blocksMax)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || len(all[0].files) != namesMax+len(profileObjects) || !all[0].Complete() || !all[0].Marked() {
		t.Errorf("%+v, %v", all, err)
	}
}
