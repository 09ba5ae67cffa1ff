package metas

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/bucket"
)

// counting counts the requests for meta.json files.
type counting struct {
	objstore.Bucket
	metas atomic.Int64
}

func (c *counting) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if path.Base(name) == metaFile {
		c.metas.Add(1)
	}
	return c.Bucket.Get(ctx, name)
}

// manyMetas returns metas that differ in each field, and two that are equal but for their ids.
func manyMetas() []*bucket.Meta {
	uploaded := time.Date(2026, 2, 3, 4, 5, 6, 7, time.UTC)
	return []*bucket.Meta{
		{ID: ulid.Make()},
		{ID: ulid.Make(), MinMS: -5, MaxMS: 1 << 50, ResolutionMS: bucket.Fine, Labels: labels.FromStrings("a", "b", "replica", "é\n"), Sources: []ulid.ULID{ulid.Make(), ulid.Make()}, Level: 3,
			Source: "compactor", Uploaded: uploaded, Index: 7, Segments: []bucket.Segment{{Name: "000001", Bytes: 9}, {Name: "000002", Bytes: 0}}, Series: 1, Samples: 1 << 40, Chunks: 2, Tombstones: 3},
		{ID: ulid.Make(), ResolutionMS: bucket.Hour, Labels: labels.FromStrings("a", "b"), Source: "sidecar"},
		{ID: ulid.Make(), ResolutionMS: bucket.Hour, Labels: labels.FromStrings("a", "b"), Source: "sidecar"},
	}
}

func snapshotOf(all []*bucket.Meta) []byte {
	text, err := encodeSnapshot(slices.Values(all))
	if err != nil {
		panic(err)
	}
	return text
}

func TestSnapshot_KeepsEveryField(t *testing.T) {
	want := manyMetas()
	got, err := decodeSnapshot(snapshotOf(want))
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d metas, %v", len(got), err)
	}
	for i := range want {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	fields := reflect.ValueOf(*want[1])
	for i := range fields.NumField() {
		if fields.Field(i).IsZero() {
			t.Errorf("the test has no value of %s", fields.Type().Field(i).Name)
		}
	}
}

func TestSnapshot_ChangedByteIsCorrupt(t *testing.T) {
	text := snapshotOf(manyMetas())
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 0x41
		if _, err := decodeSnapshot(changed); !errors.Is(err, errSnapshot) {
			t.Errorf("byte %d: %v", i, err)
		}
		if _, err := decodeSnapshot(text[:i]); !errors.Is(err, errSnapshot) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// The values index other data: a resolution that does not exist would panic.
func TestSnapshot_RefusesWhatParseRefuses(t *testing.T) {
	for name, m := range map[string]*bucket.Meta{
		"resolution":      {ResolutionMS: 1},
		"times":           {MinMS: 1},
		"index":           {Index: 1<<46 + 1},
		"negative index":  {Index: -1},
		"segment":         {Segments: []bucket.Segment{{Name: "../a", Bytes: 1}}},
		"size of segment": {Segments: []bucket.Segment{{Name: "000001", Bytes: -1}}},
		"label":           {Labels: labels.FromStrings("", "x")},
	} {
		if _, err := decodeSnapshot(snapshotOf([]*bucket.Meta{m})); !errors.Is(err, errSnapshot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The error of a corrupt snapshot, a local file, must not name a meta.json: an operator would look for it in the bucket.
func TestSnapshot_ErrorsDoNotNameAMetaJSON(t *testing.T) {
	for _, text := range [][]byte{nil, []byte("{}\n"), append(snapshotOf(manyMetas()), 0), appendChecksum([]byte(snapshotMagic + "x")), snapshotOf([]*bucket.Meta{{MinMS: 1}})} {
		_, err := decodeSnapshot(text)
		if err == nil || errors.Is(err, ErrCorrupt) || strings.Contains(err.Error(), metaFile) || !strings.Contains(err.Error(), "corrupt snapshot") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestLister_SnapshotSavesTheMetas(t *testing.T) {
	b, dir := newBucket(t)
	from, local, ids := &counting{Bucket: b}, t.TempDir(), []ulid.ULID{}
	for i := range 5 {
		id := ulid.Make()
		putMeta(t, dir, id, fmt.Sprintf(`{"ulid":%q,"version":1,"minTime":0,"maxTime":1000,"compaction":{"level":1,"sources":[%q]},"thanos":{"labels":{"n":"%d"}}}`, id, id, i))
		ids = append(ids, id)
	}
	list := func() Result {
		t.Helper()
		from.metas.Store(0)
		r, err := NewLister(from, Options{Dir: local}).List(t.Context(), time.Now())
		if err != nil || len(r.Blocks) != len(ids) {
			t.Fatalf("%d blocks, %v", len(r.Blocks), err)
		}
		return r
	}
	before := list()
	check := func(what string, want int64) {
		t.Helper()
		if after := list(); !reflect.DeepEqual(after.Blocks, before.Blocks) || from.metas.Load() != want {
			t.Errorf("%s: %d requests for metas, want %d; %v, want %v", what, from.metas.Load(), want, after.Blocks, before.Blocks)
		}
	}
	check("a second process", 0)
	file := filepath.Join(local, snapshotFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, broken := range [][]byte{nil, text[:len(text)-1], []byte("{}\n"), append(bytes.Clone(text), 0)} {
		if err := os.WriteFile(file, broken, 0o600); err != nil {
			t.Fatal(err)
		}
		check("a broken snapshot", int64(len(ids)))
		check("a snapshot that was written again", 0)
	}
	if left, err := filepath.Glob(filepath.Join(local, "*")); err != nil || !slices.Equal(left, []string{file}) {
		t.Errorf("files %q, %v", left, err)
	}
}

// Bytes with a valid checksum are an error or metas that are written as they were read.
func FuzzSnapshot(f *testing.F) {
	for _, m := range manyMetas() {
		text := snapshotOf([]*bucket.Meta{m})
		f.Add(text[len(snapshotMagic) : len(text)-crc32.Size])
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		all, err := decodeBlocks(text)
		if err != nil {
			if !errors.Is(err, errSnapshot) {
				t.Fatal(err)
			}
			return
		}
		again, err := decodeSnapshot(snapshotOf(all))
		if err != nil || !reflect.DeepEqual(again, all) {
			t.Fatalf("%+v, %v; want %+v", again, err, all)
		}
	})
}

func BenchmarkDecodeSnapshot(b *testing.B) {
	var all []*bucket.Meta
	for i := range 10_000 {
		id := ulid.Make()
		all = append(all, &bucket.Meta{ID: id, MaxMS: 1000, Labels: labels.FromStrings("number", fmt.Sprint(i%100), "prometheus", "bench", "replica", "a"), Sources: []ulid.ULID{id},
			Source: "sidecar", Index: 1 << 20, Segments: []bucket.Segment{{Name: "000001", Bytes: 1 << 20}}})
	}
	text := snapshotOf(all)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decodeSnapshot(text); err != nil {
			b.Fatal(err)
		}
	}
}

// A disk that is full for a while must not leave a store without a snapshot until its blocks change.
func TestLister_SnapshotThatCouldNotBeWrittenIsWrittenByTheNextList(t *testing.T) {
	b, dir := newBucket(t)
	id := ulid.Make()
	putMeta(t, dir, id, metaOf(id))
	local := filepath.Join(t.TempDir(), "local")
	from := &counting{Bucket: b}
	l := NewLister(from, Options{Dir: local})
	list := func(l *Lister, want int64) {
		t.Helper()
		from.metas.Store(0)
		if r, err := l.List(t.Context(), time.Now()); err != nil || r.Blocks[id] == nil || from.metas.Load() != want {
			t.Errorf("%v, %v, %d metas are read, want %d", r.Blocks, err, from.metas.Load(), want)
		}
	}
	list(l, 1) // nothing can be written
	if err := os.Mkdir(local, 0o700); err != nil {
		t.Fatal(err)
	}
	list(l, 0)
	list(NewLister(from, Options{Dir: local}), 0)
	if err := os.Remove(filepath.Join(local, snapshotFile)); err != nil {
		t.Fatal(err)
	}
	list(l, 0)
	if _, err := os.Stat(filepath.Join(local, snapshotFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the snapshot of unchanged blocks is written again: %v", err)
	}
}

// A process that is killed while it writes the snapshot leaves a temporary file. The next snapshot replaces it.
func TestLister_ReplacesTheTemporaryFileOfAKilledProcess(t *testing.T) {
	b, dir := newBucket(t)
	id := ulid.Make()
	putMeta(t, dir, id, metaOf(id))
	local := t.TempDir()
	if err := os.WriteFile(filepath.Join(local, snapshotFile+".tmp"), []byte(snapshotMagic), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewLister(b, Options{Dir: local}).List(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(local); err != nil || len(left) != 1 || left[0].Name() != snapshotFile {
		t.Errorf("%v, %v", left, err)
	}
}
