package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/thanos-io/objstore"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/test/chunksample"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var quiet = slog.New(slog.DiscardHandler)

// newReader returns a reader with the smallest cache, closed when the test ends.
func newReader(t testing.TB, from objstore.Bucket) *ProfileReader {
	t.Helper()
	r := NewProfileReader(from, ProfileReaderOptions{Dir: filepath.Join(t.TempDir(), "cache"), PagesBytes: 1 << 20, Timeout: time.Minute})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

var external = labels.FromStrings("cluster", "eu", "replica", "<0>")

// makeBlock writes a real block of two hours, the nth since the epoch of data.
func makeBlock(t *testing.T, dir string, n int) ulid.ULID {
	t.Helper()
	const span = int64(2 * time.Hour / time.Millisecond)
	start := 1_700_006_400_000 + int64(n)*span
	var list []storage.Series
	for i := range 5 {
		var points []chunks.Sample
		for ts := start; ts < start+span; ts += 60_000 {
			points = append(points, chunksample.Float{MS: ts, Value: float64(i)})
		}
		list = append(list, storage.NewListSeries(labels.FromStrings("__name__", "m", "i", string(rune('a'+i))), points))
	}
	path, err := tsdb.CreateBlock(list, dir, span, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return ulid.MustParse(filepath.Base(path))
}

func newShipper(t *testing.T, to objstore.Bucket, dir string, change func(*ShipOptions)) *Shipper {
	t.Helper()
	opts := ShipOptions{Dir: dir, Labels: func() labels.Labels { return external }, RetryMin: time.Millisecond, RetryMax: 4 * time.Millisecond, Interval: 5 * time.Millisecond, Stall: time.Minute}
	if change != nil {
		change(&opts)
	}
	s, err := NewShipper(to, opts, quiet, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// trusted lists the blocks of a bucket that a reader would serve. It fails unless each of
// them has exactly the bytes of the block on disk.
func trusted(t *testing.T, from objstore.Bucket, dir string) []ulid.ULID {
	t.Helper()
	var ids []ulid.ULID
	for name := range objects(t, from) {
		id, err := ulid.ParseStrict(path.Dir(name))
		if err != nil || path.Base(name) != metaFile {
			continue
		}
		m, err := parseMeta(objects(t, from)[name])
		if err != nil {
			continue // a reader does not serve it
		}
		if m.ID != id || !labels.Equal(m.Labels, external) {
			t.Errorf("%s is of %s with labels %s", name, m.ID, m.Labels)
		}
		ids = append(ids, id)
		for _, f := range m.files {
			if f.name == metaFile {
				continue
			}
			want, err := os.ReadFile(filepath.Join(dir, id.String(), f.name))
			if err != nil {
				t.Fatal(err)
			}
			if got := objects(t, from)[path.Join(id.String(), f.name)]; !bytes.Equal(got, want) || f.size != int64(len(want)) {
				t.Errorf("block %s is trusted and its %s has %d bytes, %d in meta.json, %d on the disk", id, f.name, len(got), f.size, len(want))
			}
		}
	}
	slices.SortFunc(ids, ulid.ULID.Compare)
	return ids
}

func objects(t *testing.T, from objstore.Bucket) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := from.Iter(context.Background(), "", func(name string) error {
		r, err := from.Get(context.Background(), name)
		if err != nil {
			return err
		}
		all[name], err = io.ReadAll(r)
		return errors.Join(err, r.Close())
	}, objstore.WithRecursiveIter())
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var errFault = errors.New("injected fault")

// faulty is a bucket of which one operation fails. With half set, an upload that fails writes
// half of the object. All later operations fail, as those of a killed program would.
type faulty struct {
	objstore.Bucket
	at, done int // operations
	half     bool
	once     bool // works again after the fault
}

func (f *faulty) fails() bool {
	f.done++
	return f.done == f.at || f.done > f.at && !f.once
}

func (f *faulty) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	if f.fails() {
		if f.half && f.done == f.at {
			text, err := io.ReadAll(r)
			if err != nil {
				return err
			}
			return errors.Join(errFault, f.Bucket.Upload(ctx, name, bytes.NewReader(text[:len(text)/2])))
		}
		return errFault
	}
	return f.Bucket.Upload(ctx, name, r, o...)
}

func (f *faulty) Exists(ctx context.Context, name string) (bool, error) {
	if f.fails() {
		return false, errFault
	}
	return f.Bucket.Exists(ctx, name)
}

func (f *faulty) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	if f.fails() {
		return objstore.ObjectAttributes{}, errFault
	}
	return f.Bucket.Attributes(ctx, name)
}

func (f *faulty) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if f.fails() {
		return nil, errFault
	}
	return f.Bucket.Get(ctx, name)
}

func (f *faulty) Iter(ctx context.Context, dir string, do func(string) error, o ...objstore.IterOption) error {
	if f.fails() {
		return errFault
	}
	return f.Bucket.Iter(ctx, dir, do, o...)
}

func never(b objstore.Bucket) *faulty { return &faulty{Bucket: b, at: math.MaxInt} }

func names(all map[string][]byte) string {
	var list []string
	for name := range all {
		list = append(list, name)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}
