package bucket

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"
)

// observed is a bucket that keeps the contexts of its requests. It fails requests by their names, such as "Get index".
type observed struct {
	objstore.Bucket
	fail map[string]error

	mu       sync.Mutex
	contexts map[string]context.Context // of the latest request of a name
}

func observe(in objstore.Bucket) *observed {
	return &observed{Bucket: in, fail: map[string]error{}, contexts: map[string]context.Context{}}
}

func (o *observed) request(ctx context.Context, op, name string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	key := op + " " + path.Base(name)
	o.contexts[key] = ctx
	return o.fail[key]
}

func (o *observed) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	if err := o.request(ctx, "Attributes", name); err != nil {
		return objstore.ObjectAttributes{}, err
	}
	return o.Bucket.Attributes(ctx, name)
}

func (o *observed) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := o.request(ctx, "Get", name); err != nil {
		return nil, err
	}
	return o.Bucket.Get(ctx, name)
}

func (o *observed) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if err := o.request(ctx, "GetRange", name); err != nil {
		return nil, err
	}
	return o.Bucket.GetRange(ctx, name, off, length)
}

func (o *observed) Upload(ctx context.Context, name string, r io.Reader, opts ...objstore.ObjectUploadOption) error {
	if err := o.request(ctx, "Upload", name); err != nil {
		return err
	}
	return o.Bucket.Upload(ctx, name, r, opts...)
}

func (o *observed) Delete(ctx context.Context, name string) error {
	if err := o.request(ctx, "Delete", name); err != nil {
		return err
	}
	return o.Bucket.Delete(ctx, name)
}

func (o *observed) Iter(ctx context.Context, dir string, f func(string) error, opts ...objstore.IterOption) error {
	if err := o.request(ctx, "Iter", dir); err != nil {
		return err
	}
	return o.Bucket.Iter(ctx, dir, f, opts...)
}

// storedBlock uploads a block of ten bytes each to a new bucket.
func storedBlock(t *testing.T) (*observed, *ProfileStore, *StoredProfile) {
	t.Helper()
	in, id := observe(objstore.NewInMemBucket()), ulid.Make()
	upload(t, in, "a", id, func(file string) []byte { return []byte((file + "0123456789")[:10]) })
	p := NewProfileStore(in)
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || !all[0].Complete() || !all[0].HasIndex() || all[0].Marked() || all[0].Name() != "profiles/a/"+id.String() {
		t.Fatal(all, err)
	}
	return in, p, all[0]
}

// A timer that runs on after the request would hold its memory for minutes.
func TestProfileStore_EveryRequestHasATimeoutThatItReleases(t *testing.T) {
	in, p, s := storedBlock(t)
	dir := t.TempDir()
	id := ulid.Make()
	profileBlocks(t, dir, id.String())
	for _, one := range []struct {
		request string
		call    func() error
		timeout bool // other requests end if there is no progress
	}{
		{"Iter profiles", func() error { _, err := p.List(t.Context()); return err }, false},
		{"Attributes index", func() error { _, _, err := p.Sizes(t.Context(), s); return err }, true},
		{"GetRange index", func() error { _, err := p.ReadIndex(t.Context(), s, 0, 5); return err }, true},
		{"Upload deletion-mark.json", func() error { _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); return err }, true},
		{"Get deletion-mark.json", func() error { _, err := p.ReadMark(t.Context(), s); return err }, true},
		{"Delete deletion-mark.json", func() error { return p.Unmark(t.Context(), s.Tenant, s.ID) }, true},
		{"Upload index", func() error { _, err := p.Upload(t.Context(), "a", id, filepath.Join(dir, id.String())); return err }, false},
		{"Upload bucket-index.json.gz", func() error { return p.WriteIndex(t.Context(), nil) }, true},
		{"Delete index", func() error { return p.Delete(t.Context(), s.Tenant, s.ID) }, true},
	} {
		delete(in.contexts, one.request)
		if err := one.call(); err != nil {
			t.Fatal(one.request, err)
		}
		ctx := in.contexts[one.request]
		if ctx == nil {
			t.Fatalf("no %s", one.request)
		}
		end, ok := ctx.Deadline()
		if ok != one.timeout || ok && time.Until(end) > profileReadTimeout || ok && time.Until(end) < profileReadTimeout/2 {
			t.Errorf("%s: ends in %s, %v", one.request, time.Until(end), ok)
		}
		if ctx.Err() == nil {
			t.Errorf("%s: its context outlives it", one.request)
		}
	}
}

func TestProfileStore_ErrorsNameTheObject(t *testing.T) {
	in, p, s := storedBlock(t)
	for request, call := range map[string]func() error{
		"Iter profiles":               func() error { _, err := p.List(t.Context()); return err },
		"Attributes index":            func() error { _, _, err := p.Sizes(t.Context(), s); return err },
		"Attributes profiles.parquet": func() error { _, _, err := p.Sizes(t.Context(), s); return err },
		"GetRange index":              func() error { _, err := p.ReadIndex(t.Context(), s, 0, 5); return err },
		"Upload deletion-mark.json":   func() error { _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); return err },
		"Get deletion-mark.json":      func() error { _, err := p.ReadMark(t.Context(), s); return err },
		"Delete deletion-mark.json":   func() error { return p.Unmark(t.Context(), s.Tenant, s.ID) },
		"Upload bucket-index.json.gz": func() error { return p.WriteIndex(t.Context(), nil) },
		"Delete index":                func() error { return p.Delete(t.Context(), s.Tenant, s.ID) },
	} {
		in.fail = map[string]error{request: errFault}
		_, file, _ := strings.Cut(request, " ")
		err := call()
		if request == "Delete deletion-mark.json" {
			file = "deletion mark"
		} else if request == "Upload deletion-mark.json" {
			file = "for deletion"
		}
		if !errors.Is(err, errFault) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "profiles") {
			t.Errorf("%s: %v", request, err)
		}
		if s.Marked() {
			t.Errorf("%s: the block is marked", request)
		}
	}
}

func TestProfileStore_ReadIndexReadsARange(t *testing.T) {
	in := &bodies{Bucket: objstore.NewInMemBucket()}
	id := ulid.Make()
	upload(t, in, "a", id, func(string) []byte { return []byte("0123456789") })
	p, s := NewProfileStore(in), &StoredProfile{Tenant: "a", ID: id}
	if b, err := p.ReadIndex(t.Context(), s, 2, 5); string(b) != "23456" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if b, err := p.ReadIndex(t.Context(), s, 2, 0); b == nil || len(b) != 0 || err != nil || len(in.ranges) != 1 {
		t.Errorf("no bytes: %q, %v, %d requests", b, err, len(in.ranges))
	}
	in.cut = 1
	want := "profiles/a/" + id.String() + "/index: bytes 2 to 7: unexpected EOF"
	if _, err := p.ReadIndex(t.Context(), s, 2, 5); err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
	if in.open != 0 {
		t.Errorf("%d bodies are open", in.open)
	}
}

func TestProfileStore_SizesAndTimes(t *testing.T) {
	in, p, s := storedBlock(t)
	if err := in.Upload(t.Context(), path.Join(s.Name(), indexFile), strings.NewReader("123")); err != nil {
		t.Fatal(err)
	}
	if index, rows, err := p.Sizes(t.Context(), s); index != 3 || rows != 10 || err != nil {
		t.Errorf("%d, %d, %v", index, rows, err)
	}
	last, err := p.Modified(t.Context(), s)
	if err != nil || time.Since(last).Abs() > time.Minute {
		t.Errorf("%s, %v", last, err)
	}
	newest, err := in.Bucket.Attributes(t.Context(), path.Join(s.Name(), indexFile)) // uploaded again, last
	if err != nil || !last.Equal(newest.LastModified) {
		t.Errorf("%s, the newest object is of %s, %v", last, newest.LastModified, err)
	}
	in.fail["Attributes index"] = errFault
	if _, err := p.Modified(t.Context(), s); !errors.Is(err, errFault) {
		t.Error(err)
	}
	in.fail = nil
	for _, file := range append([]string{spansFile}, profileFiles...) { // another process deletes the block
		if err := in.Bucket.Delete(t.Context(), path.Join(s.Name(), file)); err != nil {
			t.Fatal(err)
		}
	}
	if last, err := p.Modified(t.Context(), s); !last.IsZero() || err != nil {
		t.Errorf("a block that is gone: %s, %v", last, err)
	}
	_, _, err = p.Sizes(t.Context(), s)
	if !p.IsNotFound(err) || p.IsNotFound(errFault) || p.IsNotFound(nil) {
		t.Error(err)
	}
}

func TestProfileStore_ListKeepsFewNamesOfADirectory(t *testing.T) {
	in, p, s := storedBlock(t)
	for i := range 20 { // before the names of a block
		if err := in.Upload(t.Context(), path.Join(s.Name(), fmt.Sprintf("a%02d", i)), strings.NewReader("x")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); err != nil {
		t.Fatal(err)
	}
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 || !all[0].Complete() || !all[0].Marked() || len(all[0].files) != namesMax+4 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestProfileStore_DownloadWritesTheFiles(t *testing.T) {
	const large = profilePartBytes + 5
	in := &bodies{Bucket: objstore.NewInMemBucket()}
	id, content := ulid.Make(), map[string][]byte{profileFiles[0]: bytes.Repeat([]byte("ab5"), large/3+1)[:large], indexFile: []byte("index"), spansFile: []byte("spans")}
	upload(t, in, "a", id, func(file string) []byte { return content[file] })
	p := NewProfileStore(in)
	all, err := p.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	dir := filepath.Join(t.TempDir(), "deep", "block")
	if err := p.Download(t.Context(), all[0], dir); err != nil {
		t.Fatal(err)
	}
	for file, want := range content {
		if got, err := os.ReadFile(filepath.Join(dir, file)); !bytes.Equal(got, want) {
			t.Errorf("%s: %d bytes, %v", file, len(got), err)
		}
	}
	if len(in.ranges) != 4 || in.ranges[0] != spanOf(0, profilePartBytes) || in.ranges[1] != spanOf(profilePartBytes, 5) || in.open != 0 {
		t.Errorf("requests %q, %d bodies are open", in.ranges, in.open)
	}
	all[0].files = slices.DeleteFunc(all[0].files, func(file string) bool { return file == spansFile })
	without := t.TempDir()
	if err := p.Download(t.Context(), all[0], without); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(without, spansFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("spans that were not listed: %v", err)
	}
	if names := openBelow(t, filepath.Dir(dir)); len(names) > 0 {
		t.Errorf("open: %q", names)
	}
}

func TestProfileStore_FailedDownloadIsReturned(t *testing.T) {
	in, p, s := storedBlock(t)
	root := t.TempDir()
	writeFile(t, filepath.Join(root, "file"), "x")
	if err := p.Download(t.Context(), s, filepath.Join(root, "file", "dir")); err == nil {
		t.Error("a directory below a file")
	}
	mkdir(t, filepath.Join(root, "taken"))
	mkdir(t, filepath.Join(root, "taken", profileFiles[0]))
	if err := p.Download(t.Context(), s, filepath.Join(root, "taken")); err == nil {
		t.Error("a file in place of a directory")
	}
	for _, request := range []string{"Attributes profiles.parquet", "GetRange profiles.parquet", "Attributes index", "GetRange index"} {
		in.fail = map[string]error{request: errFault}
		if err := p.Download(t.Context(), s, filepath.Join(root, "to")); !errors.Is(err, errFault) {
			t.Errorf("%s: %v", request, err)
		}
		if names := openBelow(t, root); len(names) > 0 {
			t.Errorf("%s: open %q", request, names)
		}
	}
	if _, err := os.Stat("/dev/full"); err == nil {
		in.fail = nil
		mkdir(t, filepath.Join(root, "full"))
		if err := os.Symlink("/dev/full", filepath.Join(root, "full", profileFiles[0])); err != nil {
			t.Fatal(err)
		}
		if err := p.Download(t.Context(), s, filepath.Join(root, "full")); err == nil {
			t.Error("a full disk")
		}
	}
}

func TestProfileStore_UploadChecksTheObjects(t *testing.T) {
	dir, id := t.TempDir(), ulid.Make()
	profileBlocks(t, dir, "block")
	block := filepath.Join(dir, "block")
	in := observe(objstore.NewInMemBucket())
	s, err := NewProfileStore(in).Upload(t.Context(), "a", id, block)
	if err != nil || !s.Complete() || s.has(spansFile) || s.Tenant != "a" || s.ID != id || len(objects(t, in.Bucket)) != 2 {
		t.Errorf("%+v, %v, %s", s, err, names(objects(t, in.Bucket)))
	}
	writeFile(t, filepath.Join(block, spansFile), "spans")
	order := &uploadOrder{Bucket: objstore.NewInMemBucket()}
	if s, err := NewProfileStore(order).Upload(t.Context(), "a", id, block); err != nil || !s.has(spansFile) || strings.Join(order.names, " ") != "profiles.parquet spans index" {
		t.Errorf("%+v, %v, %q", s, err, order.names)
	}
	for _, request := range []string{"Upload index", "Attributes index", "Upload spans", "Attributes profiles.parquet"} {
		in.fail = map[string]error{request: errFault}
		if s, err := NewProfileStore(in).Upload(t.Context(), "a", id, block); s != nil || !errors.Is(err, errFault) || !strings.Contains(err.Error(), id.String()) {
			t.Errorf("%s: %+v, %v", request, s, err)
		}
	}
	cut := &short{Bucket: objstore.NewInMemBucket(), file: indexFile}
	if s, err := NewProfileStore(cut).Upload(t.Context(), "a", id, block); s != nil || !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "bytes in the bucket, want") {
		t.Errorf("an object that is cut: %+v, %v", s, err)
	}
	for _, file := range []string{spansFile, indexFile, profileFiles[0]} {
		writeFile(t, filepath.Join(block, file), "") // spans are left out if there are none, not if they are damaged
		if _, err := NewProfileStore(observe(objstore.NewInMemBucket())).Upload(t.Context(), "a", id, block); !errors.Is(err, ErrCorrupt) {
			t.Errorf("an empty %s: %v", file, err)
		}
		writeFile(t, filepath.Join(block, file), "whole")
	}
	for _, file := range profileFiles {
		removeAll(t, filepath.Join(block, file))
		if _, err := NewProfileStore(observe(objstore.NewInMemBucket())).Upload(t.Context(), "a", id, block); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("without %s: %v", file, err)
		}
		writeFile(t, filepath.Join(block, file), "whole")
	}
	if names := openBelow(t, dir); len(names) > 0 {
		t.Errorf("open: %q", names)
	}
}

func TestProfileStore_MarksAreReadAndRemoved(t *testing.T) {
	in, p, s := storedBlock(t)
	mark, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1_700_000_000, 5e8), "retention")
	want := DeletionMark{ID: s.ID, Version: 1, Details: "retention", DeletionTime: 1_700_000_000}
	if err != nil || mark != want {
		t.Errorf("%+v, %v", mark, err)
	}
	text := string(objects(t, in.Bucket)[path.Join(s.Name(), MarkFile)])
	if text != `{"id":"`+s.ID.String()+`","version":1,"details":"retention","deletion_time":1700000000}` {
		t.Error(text)
	}
	if got, err := p.ReadMark(t.Context(), s); got != want || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	in.fail["Delete deletion-mark.json"] = errFault
	if err := p.Unmark(t.Context(), s.Tenant, s.ID); !errors.Is(err, errFault) {
		t.Error(err)
	}
	in.fail = nil
	for range 2 { // the second time there is none
		if err := p.Unmark(t.Context(), s.Tenant, s.ID); err != nil {
			t.Error(err)
		}
	}
	if _, err := p.ReadMark(t.Context(), s); !p.IsNotFound(err) {
		t.Error(err)
	}
	for _, text := range []string{"", "{", `{"id":"` + someULID + `","version":1,"deletion_time":5}`} {
		if err := in.Upload(t.Context(), path.Join(s.Name(), MarkFile), strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if _, err := p.ReadMark(t.Context(), s); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), s.Name()+"/deletion-mark.json") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// brokenBodies is a bucket whose bodies fail to be read or closed.
type brokenBodies struct {
	objstore.Bucket
	read, close error
}

func (b brokenBodies) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	body, err := b.Bucket.Get(ctx, name)
	return brokenBody{body, b.read, b.close}, err
}

func (b brokenBodies) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	body, err := b.Bucket.GetRange(ctx, name, off, length)
	return brokenBody{body, b.read, b.close}, err
}

type brokenBody struct {
	io.ReadCloser
	read, close error
}

func (b brokenBody) Read(p []byte) (int, error) {
	if b.read != nil {
		return 0, b.read
	}
	return b.ReadCloser.Read(p)
}

func (b brokenBody) Close() error { return errors.Join(b.close, b.ReadCloser.Close()) }

func TestProfileStore_BodiesThatFailAreErrors(t *testing.T) {
	in, p, s := storedBlock(t)
	if _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); err != nil {
		t.Fatal(err)
	}
	if err := p.WriteIndex(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	for _, broken := range []brokenBodies{{in.Bucket, errFault, nil}, {in.Bucket, nil, errFault}} {
		p := NewProfileStore(broken)
		_, err1 := p.ReadMark(t.Context(), s)
		_, err2 := p.ReadIndex(t.Context(), s, 0, 3)
		_, err3 := readProfileIndex(t.Context(), broken)
		for i, err := range []error{err1, err2, err3} {
			if !errors.Is(err, errFault) {
				t.Errorf("%d: %v", i, err)
			}
		}
	}
}

func TestReadProfileIndex_BodyIsClosed(t *testing.T) {
	for _, text := range []string{`{"version":1,"blocks":[]}`, "{"} {
		in := &bodies{Bucket: uploadIndex(t, text)}
		if _, err := readProfileIndex(t.Context(), in); in.open != 0 || (err == nil) == (text == "{") {
			t.Errorf("%s: %d bodies are open, %v", text, in.open, err)
		}
	}
	in := &bodies{Bucket: objstore.NewInMemBucket()}
	if err := in.Upload(t.Context(), profilesDir+"/"+profileIndexFile, strings.NewReader("not gzip")); err != nil {
		t.Fatal(err)
	}
	if _, err := readProfileIndex(t.Context(), in); !errors.Is(err, ErrCorrupt) || in.open != 0 {
		t.Errorf("%v, %d bodies are open", err, in.open)
	}
}

// fullWriter fails after some bytes.
type fullWriter struct{ left int }

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errFault
	}
	return len(p), nil
}

func TestEncodeProfileIndex_FailedWriteIsReturned(t *testing.T) {
	entries := []ProfileEntry{{"a", ulid.Make(), 1, 2, []byte("h")}, {"a", ulid.Make(), 1, 2, []byte("h")}}
	var whole bytes.Buffer
	if err := encodeProfileIndex(&whole, entries, 1<<20); err != nil {
		t.Fatal(err)
	}
	for n := range whole.Len() {
		if err := encodeProfileIndex(&fullWriter{n}, entries, 1<<20); !errors.Is(err, errFault) {
			t.Fatalf("after %d of %d bytes: %v", n, whole.Len(), err)
		}
	}
	for size, want := range map[int]int{whole.Len(): 2, whole.Len() - 1: 1} {
		var b bytes.Buffer
		if err := encodeProfileIndex(&b, entries, size); err != nil {
			t.Fatal(err)
		}
		if got, err := decodeProfileIndex(&b); len(got) != want || err != nil {
			t.Errorf("%d bytes: %d entries, %v", size, len(got), err)
		}
	}
}

func TestProfileReader_RequestsEndWithTheirCalls(t *testing.T) {
	in, p, s := storedBlock(t)
	if _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, in)
	clear(in.contexts)
	found, err := r.Blocks(t.Context())
	if err != nil || len(found) != 1 || found[0].Marked.Unix() != 1 {
		t.Fatal(found, err)
	}
	if _, err := found[0].Index.ReadAt(make([]byte, 5), 0); err != nil {
		t.Fatal(err)
	}
	for request, timeout := range map[string]bool{
		"Iter profiles": false, "Get bucket-index.json.gz": true, "Get deletion-mark.json": true, "Attributes index": true, "GetRange index": true,
	} {
		ctx := in.contexts[request]
		if ctx == nil {
			t.Fatalf("no %s", request)
		}
		if end, ok := ctx.Deadline(); ok != timeout || ok && time.Until(end) > time.Minute {
			t.Errorf("%s: ends at %s, %v", request, end, ok)
		}
		if ctx.Err() == nil {
			t.Errorf("%s: its context outlives it", request)
		}
	}
}

func TestProfileReader_InvalidEntriesOfTheIndexAreLookedUp(t *testing.T) {
	for name, e := range map[string]ProfileEntry{
		"no index": {IndexBytes: 0, RowsBytes: 10, Head: []byte("h")}, "no rows": {IndexBytes: 10, RowsBytes: 0, Head: []byte("h")}, "no head": {IndexBytes: 10, RowsBytes: 10},
		"negative": {IndexBytes: -1, RowsBytes: 10, Head: []byte("h")}, "": {IndexBytes: 1, RowsBytes: 1, Head: []byte("h")},
	} {
		in, p, s := storedBlock(t)
		e.Tenant, e.ID = s.Tenant, s.ID
		if err := p.WriteIndex(t.Context(), []ProfileEntry{e, e}); err != nil {
			t.Fatal(err)
		}
		clear(in.contexts)
		r := newReader(t, in)
		found, err := r.Blocks(t.Context())
		want, counted := int64(10), uint64(1)
		if name == "" {
			want, counted = 1, 0
		}
		if err != nil || len(found) != 1 || found[0].IndexBytes != want || found[0].RowsBytes != want || r.indexErrors.Get() != counted || (in.contexts["Attributes index"] == nil) != (name == "") {
			t.Errorf("%s: %+v, %d errors, %v", name, found, r.indexErrors.Get(), err)
		}
	}
}

func TestProfileReader_BlockWithAFailedMarkIsListedAsOneWithoutItsMark(t *testing.T) {
	in, p, s := storedBlock(t)
	if _, err := p.Mark(t.Context(), s.Tenant, s.ID, time.Unix(1, 0), ""); err != nil {
		t.Fatal(err)
	}
	r := newReader(t, in)
	in.fail["Get deletion-mark.json"] = errFault
	if found, err := r.Blocks(t.Context()); err != nil || len(found) != 1 || !found[0].MarkUnread || !found[0].Marked.IsZero() || r.unread.Get() != 1 {
		t.Errorf("%+v, %v", found, err)
	}
	in.fail = nil
	if found, err := r.Blocks(t.Context()); err != nil || len(found) != 1 || found[0].Marked.IsZero() || found[0].MarkUnread {
		t.Errorf("%+v, %v", found, err)
	}
}

func TestShipper_RequestsEndWithTheirCalls(t *testing.T) {
	dir, in := t.TempDir(), observe(objstore.NewInMemBucket())
	makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, in, dir, nil), 1)
	removeAll(t, filepath.Join(dir, "thanos.shipper.json"))
	mustSync(t, newShipper(t, in, dir, nil), 0)
	for _, request := range []string{"Get meta.json", "Upload meta.json", "Upload index"} {
		if ctx := in.contexts[request]; ctx == nil || ctx.Err() == nil {
			t.Errorf("%s: its context outlives it: %v", request, ctx)
		}
	}
	if _, ok := in.contexts["Get meta.json"].Deadline(); !ok {
		t.Error("a body that stalls is no error")
	}
}

func TestShipper_ErrorsOfTheBucketAreReturned(t *testing.T) {
	for _, request := range []string{"Get meta.json", "Attributes 000001"} {
		dir, in := t.TempDir(), observe(objstore.NewInMemBucket())
		makeBlock(t, dir, 0)
		mustSync(t, newShipper(t, in, dir, nil), 1)
		removeAll(t, filepath.Join(dir, "thanos.shipper.json"))
		in.fail[request] = errFault
		if n, err := newShipper(t, in, dir, nil).Sync(t.Context()); n != 0 || !errors.Is(err, errFault) {
			t.Errorf("%s: %d, %v", request, n, err)
		}
	}
	dir, in := t.TempDir(), objstore.NewInMemBucket()
	makeBlock(t, dir, 0)
	mustSync(t, newShipper(t, in, dir, nil), 1)
	removeAll(t, filepath.Join(dir, "thanos.shipper.json"))
	if n, err := newShipper(t, brokenBodies{Bucket: in, read: errFault}, dir, nil).Sync(t.Context()); n != 0 || !errors.Is(err, errFault) {
		t.Errorf("a body that fails: %d, %v", n, err)
	}
}
