package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/index"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/internal/blocks/pages"
	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/thanos/gateway/metas"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// objects is a bucket in memory.
type objects map[string][]byte

func (o objects) GetRange(_ context.Context, name string, off, n int64) (io.ReadCloser, error) {
	b, ok := o[name]
	if !ok || off > int64(len(b)) {
		return nil, os.ErrNotExist
	}
	return io.NopCloser(bytes.NewReader(b[off:min(off+n, int64(len(b)))])), nil
}

func (o objects) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	return o.GetRange(ctx, name, 0, 1<<40)
}

func (o objects) Attributes(_ context.Context, name string) (objstore.ObjectAttributes, error) {
	return objstore.ObjectAttributes{Size: int64(len(o[name]))}, nil
}
func (o objects) Exists(_ context.Context, name string) (bool, error) {
	_, ok := o[name]
	return ok, nil
}
func (objects) IsObjNotFoundErr(err error) bool { return errors.Is(err, os.ErrNotExist) }
func (objects) IsAccessDeniedErr(error) bool    { return false }
func (objects) Iter(context.Context, string, func(string) error, ...objstore.IterOption) error {
	return nil
}
func (objects) IterWithAttributes(context.Context, string, func(objstore.IterObjectAttributes) error, ...objstore.IterOption) error {
	return nil
}
func (objects) SupportedIterOptions() []objstore.IterOptionType { return nil }

// A block of arbitrary bytes yields an error or series, never a panic, and its header is
// the same when it is mapped again.
func FuzzBlock_ArbitraryIndexAndChunks(f *testing.F) {
	_, dir := newBucket(f)
	id := writeBlock(f, dir, 0, 600_000, 3, nil)
	index, err := os.ReadFile(filepath.Join(dir, id, "index"))
	if err != nil {
		f.Fatal(err)
	}
	chunks, err := os.ReadFile(filepath.Join(dir, id, "chunks", "000001"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(index, chunks, "instance")
	f.Add(index[:len(index)-1], chunks[:20], "job")
	for _, at := range []int{6, 20, len(index) / 3, len(index) / 2, len(index) - 60, len(index) - 20} {
		broken := bytes.Clone(index)
		broken[at] ^= 0x41
		f.Add(broken, chunks, "__name__")
	}
	cache, err := pages.Open(f.TempDir(), pages.Options{BytesMax: 1, Attempts: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = cache.Close() })
	f.Fuzz(func(t *testing.T, index, chunks []byte, name string) {
		m := &bucket.Meta{ID: ulid.ULID{}, MaxMS: hourMS, Labels: labels.EmptyLabels(), Segments: []bucket.Segment{{Name: "000001", Bytes: int64(len(chunks))}}, Index: int64(len(index))}
		from := objects{m.ID.String() + "/index": index, m.ID.String() + "/chunks/000001": chunks}
		s := &Store{opts: Options{PostingsBytes: 1 << 20}, cache: cache}
		b := newBlock(m, from, cache, t.TempDir())
		defer b.remove()
		matcher, err := labels.NewMatcher(labels.MatchNotEqual, "__name__", name)
		if err != nil {
			t.Skip()
		}
		for range 2 {
			set, err := s.openBlock(t.Context(), storeapi.SeriesRequest{MaxMS: hourMS}, opening{b, []*labels.Matcher{matcher}})
			if err != nil {
				return
			}
			set.start()
			for set.Next() {
				_ = set.Labels()
			}
			set.close()
			b.mu.Lock()
			b.drop()
			b.mu.Unlock()
		}
	})
}

// Postings in pages equal the postings in memory, whatever is sought.
func FuzzPostings_EqualThoseInMemory(f *testing.F) {
	f.Add([]byte{0, 0, 0, 9, 0, 0, 1, 0}, uint32(7))
	f.Add(bytes.Repeat([]byte{0, 0, 1, 1, 7, 0, 0, 0}, 10_000), uint32(3))
	cache, err := pages.Open(f.TempDir(), pages.Options{BytesMax: 1, Attempts: 1})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = cache.Close() })
	f.Fuzz(func(t *testing.T, text []byte, step uint32) {
		file, all := postingsOf(text)
		object := cache.Object(objects{"index": file}, "index", int64(len(file)))
		inPages, err := openRefs(t.Context(), object, list{3, uint64(len(file))})
		if err != nil {
			t.Fatal(err)
		}
		defer inPages.release()
		var memory []storage.SeriesRef
		for _, ref := range all {
			memory = append(memory, storage.SeriesRef(ref))
		}
		inMemory := index.NewListPostings(memory)
		for i := uint32(0); ; i++ {
			var ok, more bool
			if i%3 == 2 && step > 0 {
				to := storage.SeriesRef(step * i)
				ok, more = inPages.Seek(to), inMemory.Seek(to)
			} else {
				ok, more = inPages.Next(), inMemory.Next()
			}
			if ok != more || ok && inPages.At() != inMemory.At() {
				t.Fatalf("step %d: %d %v, want %d %v", i, inPages.At(), ok, inMemory.At(), more)
			}
			if i%5 == 4 {
				inPages.release()
			}
			if !ok {
				return
			}
		}
	})
}

// A meta.json of arbitrary bytes is an error or a meta that survives being written as JSON.
func FuzzMeta_SurvivesJSON(f *testing.F) {
	_, dir := newBucket(f)
	id := writeBlock(f, dir, 0, 60_000, 1, map[string]string{"a": "b"})
	text, err := os.ReadFile(filepath.Join(dir, id, "meta.json"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"ulid":"` + id + `","version":1,"minTime":1,"maxTime":2,"thanos":{"segment_files":["000001"],"files":[{"rel_path":"index","size_bytes":-1}]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := metas.Parse(ulid.MustParse(id), text)
		if err != nil {
			if !errors.Is(err, metas.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		encoded, err := m.AppendJSON(nil)
		if err != nil {
			return // a time that JSON cannot have
		}
		again, err := metas.Parse(m.ID, encoded)
		if err != nil || again.MinMS != m.MinMS || again.MaxMS != m.MaxMS || !labels.Equal(again.Labels, m.Labels) || len(again.Segments) != len(m.Segments) || again.Index != m.Index {
			t.Fatalf("%+v, %v; want %+v", again, err, m)
		}
	})
}
