package bucket

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"path"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/profiles"
)

func uploadIndex(t *testing.T, text string) objstore.Bucket {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	in := objstore.NewInMemBucket()
	if err := in.Upload(context.Background(), profilesDir+"/"+profileIndexFile, &b); err != nil {
		t.Fatal(err)
	}
	return in
}

// An object of some kilobytes must not take gigabytes: an empty entry has three bytes of text, and a hundred in memory.
func TestProfileIndex_ManyEntriesInFewBytesAreCorrupt(t *testing.T) {
	for name, text := range map[string]string{
		"entries": `{"version":1,"blocks":[` + strings.Repeat("{},", 5_000_000) + `{}]}`,
		"a head":  `{"version":1,"blocks":[{"head":"` + strings.Repeat("AAAA", 22_000) + `"}]}`,
	} {
		in := uploadIndex(t, text)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		entries, err := readProfileIndex(context.Background(), in)
		runtime.ReadMemStats(&after)
		if !errors.Is(err, ErrCorrupt) || len(entries) > 0 {
			t.Errorf("%s: %d entries, %v", name, len(entries), err)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
			t.Errorf("%s: %d MiB were allocated", name, used>>20)
		}
	}
}

func TestProfileIndex_OtherTextsAreCorrupt(t *testing.T) {
	for _, text := range []string{
		"", "{", "[]", "null", "{}", `{"version":2,"blocks":[]}`, `{"blocks":[]}`, `{"version":"1","blocks":[]}`, `{"version":1,"blocks":{}}`,
		`{"version":1,"blocks":[}`, `{"version":1,"blocks":[{"id":"x"}]}`, `{"version":1,"blocks":[]`, `{"version":1,"other":[]}`,
	} {
		if entries, err := readProfileIndex(context.Background(), uploadIndex(t, text)); !errors.Is(err, ErrCorrupt) || len(entries) > 0 {
			t.Errorf("%s: %v, %v", text, entries, err)
		}
	}
	in, id := objstore.NewInMemBucket(), ulid.MustNewDefault(ulid.Time(1))
	if err := NewProfileStore(in).WriteIndex(context.Background(), []ProfileEntry{{"a", id, 1, 2, []byte("h")}}); err != nil {
		t.Fatal(err)
	}
	if got, err := readProfileIndex(context.Background(), in); err != nil || len(got) != 1 || got[0].ID != id || got[0].Tenant != "a" || got[0].IndexBytes != 1 || got[0].RowsBytes != 2 || string(got[0].Head) != "h" {
		t.Error(got, err)
	}
}

// A reader refuses an index beyond its limits as a whole, so the writer leaves out what exceeds them.
func TestProfileIndex_TheWriterKeepsTheLimitsOfReaders(t *testing.T) {
	entries := make([]ProfileEntry, profileEntriesMax+2)
	for i := range entries {
		entries[i] = ProfileEntry{"a", ulid.MustNewDefault(ulid.Time(uint64(i))), 1, 2, []byte("h")}
	}
	entries[0].Head = make([]byte, profileHeadMax+1)
	in := objstore.NewInMemBucket()
	for n, want := range map[int]int{1: 0, 2: 1, profileEntriesMax + 1: profileEntriesMax, profileEntriesMax + 2: profileEntriesMax} {
		if err := NewProfileStore(in).WriteIndex(t.Context(), entries[:n]); err != nil {
			t.Fatal(err)
		}
		got, err := readProfileIndex(t.Context(), in)
		if err != nil || len(got) != want || want > 0 && got[0].ID != entries[1].ID {
			t.Errorf("%d entries: %d, %v", n, len(got), err)
		}
	}
	var b bytes.Buffer
	if err := encodeProfileIndex(&b, entries[1:], 1000); err != nil || b.Len() > 1000 {
		t.Fatal(b.Len(), err)
	}
	if got, err := decodeProfileIndex(&b); err != nil || len(got) < 5 {
		t.Errorf("%d entries, %v", len(got), err)
	}
}

// away is a bucket that cannot be reached while it is set. It counts requests for attributes.
type away struct {
	objstore.Bucket
	set        bool
	attributes atomic.Int64
}

var errAway = errors.New("the bucket cannot be reached")

func (a *away) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if a.set {
		return nil, errAway
	}
	return a.Bucket.Get(ctx, name)
}

func (a *away) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if a.set {
		return errAway
	}
	return a.Bucket.Iter(ctx, dir, f, o...)
}

func (a *away) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	a.attributes.Add(1)
	return a.Bucket.Attributes(ctx, name)
}

// A server may start while the bucket cannot be reached. A later list must then read the index: otherwise the server would request
// the sizes and metas of all blocks.
func TestProfileReader_TheIndexIsReadOnceTheBucketCanBeReached(t *testing.T) {
	in, id := &away{Bucket: objstore.NewInMemBucket()}, ulid.MustNewDefault(ulid.Time(1))
	dir := ProfileBlock(profiles.TenantDir("a"), id)
	err := NewProfileStore(in).WriteIndex(t.Context(), []ProfileEntry{{"a", id, 5, 4, []byte("head")}})
	for file, text := range map[string]string{indexFile: "index", profileFiles[0]: "rows"} {
		err = errors.Join(err, in.Upload(t.Context(), path.Join(dir, file), strings.NewReader(text)))
	}
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t, in)
	in.set = true
	if _, err := r.Blocks(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	in.set = false
	found, err := r.Blocks(t.Context())
	if err != nil || len(found) != 1 || string(found[0].Head) != "head" || in.attributes.Load() != 0 {
		t.Errorf("%+v, %d requests, %v", found, in.attributes.Load(), err)
	}
}
