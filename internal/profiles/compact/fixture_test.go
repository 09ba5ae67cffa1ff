package compact

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/thanos-io/objstore"
	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/bucket"
	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet = slog.New(slog.DiscardHandler)
	day   = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC) // the first day of the profiles
)

// numbered is a profile at a time. Its ID is its number n, and its value is n+1.
func numbered(n int, at time.Time) profiles.RawProfile {
	e := pprof.NewEncoder()
	e.SampleType("cpu", "nanoseconds")
	e.Period("cpu", "nanoseconds", 1)
	e.Sample([]uint64{e.Location(e.Function(fmt.Sprint("f", n%7), "", "", 0), 1)}, int64(n)+1)
	p := profiles.RawProfile{TimeNS: at.UnixNano(), Raw: e.Append(nil)}
	binary.BigEndian.PutUint64(p.ID[:], uint64(n)+1)
	p.Labels = labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", string(rune('a'+n%3)))
	return p
}

// profilesOf returns n profiles of a day, evenly spread, of which the first has the number first.
func profilesOf(first, n, dayNumber int) []profiles.RawProfile {
	var all []profiles.RawProfile
	for i := range n {
		all = append(all, numbered(first+i, day.Add(time.Duration(dayNumber)*daySpan+time.Duration(i)*daySpan/time.Duration(n))))
	}
	return all
}

// ship writes each profile as a block of its own, and uploads the blocks.
func ship(t *testing.T, to objstore.Bucket, tenant string, all ...profiles.RawProfile) {
	t.Helper()
	dir, ctx := t.TempDir(), context.Background()
	s, err := store.New(store.Options{Dir: dir, Retention: -1, BlockBytes: 1}, quiet, nil) // of one byte: nothing is compacted
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if err := errors.Join(s.Append(ctx, tenant, []profiles.RawProfile{p}), s.Flush(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := bucket.NewProfileShipper(to, bucket.ShipOptions{Dir: filepath.Join(dir, "profiles")}, quiet, metrics.NewSet()).Sync(ctx); err != nil {
		t.Fatal(err)
	}
}

// read returns the sum of the samples of each profile of a tenant, as a server reads them from the bucket, and the
// warnings.
func read(t *testing.T, from objstore.Bucket, tenant string) (map[int]int64, []error) {
	t.Helper()
	ctx := context.Background()
	reader := bucket.NewProfileReader(from, bucket.ProfileReaderOptions{Dir: t.TempDir(), PagesBytes: 1 << 20, Timeout: time.Minute})
	defer reader.Close()
	s, err := store.New(store.Options{
		Dir: t.TempDir(), Retention: -1, Remote: reader,
		RemoteDeleteDelay: math.MaxInt64, // its clock is not that of the test
	}, quiet, nil)
	if err == nil {
		err = s.Open()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var v *store.View
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if v, err = s.View(ctx, tenant, 0, day.AddDate(10, 0, 0).UnixNano()); err != nil {
			t.Fatal(err)
		}
		if len(v.Warnings) == 0 || !strings.Contains(v.Warnings[0].Error(), "not listed yet") {
			break
		}
		if v.Close(); time.Now().After(deadline) {
			t.Fatal(v.Warnings)
		}
	}
	defer v.Close()
	sums := map[int]int64{}
	for _, src := range v.Sources {
		rows := make([]int, src.Rows())
		for row := range rows {
			rows[row] = row
		}
		err := src.Samples(ctx, rows, func(row int, _ []uint32, values []int64) error {
			id, err := src.ID(row)
			for _, v := range values {
				sums[int(binary.BigEndian.Uint64(id[:]))-1] += v
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return sums, v.Warnings
}

// exact fails unless a reader of the bucket gets the profiles of these numbers, once each.
func exact(t *testing.T, from objstore.Bucket, tenant, when string, numbers int) {
	t.Helper()
	sums, _ := read(t, from, tenant)
	for n := range numbers {
		if sums[n] != int64(n)+1 {
			t.Errorf("%s: profile %d has the sum %d", when, n, sums[n])
		}
		delete(sums, n)
	}
	if len(sums) > 0 {
		t.Errorf("%s: %v", when, sums)
	}
}

// newCompactor returns a compactor whose clock is at a time.
func newCompactor(t *testing.T, in objstore.Bucket, dir string, now time.Time, change func(*Options)) *Compactor {
	t.Helper()
	o := Options{Dir: dir, Now: func() time.Time { return now }}
	if change != nil {
		change(&o)
	}
	c, err := New(in, o, quiet, metrics.NewSet())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// iterate runs one iteration of a new compactor.
func iterate(t *testing.T, in objstore.Bucket, now time.Time, change func(*Options)) *Compactor {
	t.Helper()
	c := newCompactor(t, in, t.TempDir(), now, change)
	if err := errors.Join(c.Iterate(context.Background()), c.Close()); err != nil {
		t.Fatal(err)
	}
	return c
}

// blocks returns the directories of a bucket that have an index.
func blocks(t *testing.T, in objstore.Bucket) (dirs []string) {
	t.Helper()
	for _, name := range names(t, in) {
		if path.Base(name) == "index" {
			dirs = append(dirs, path.Dir(name))
		}
	}
	slices.Sort(dirs)
	return dirs
}

func names(t *testing.T, in objstore.Bucket) (all []string) {
	t.Helper()
	if err := in.Iter(context.Background(), "", func(name string) error { all = append(all, name); return nil }, objstore.WithRecursiveIter()); err != nil {
		t.Fatal(err)
	}
	return all
}

// copyOf copies a bucket.
func copyOf(t *testing.T, from objstore.Bucket) objstore.Bucket {
	t.Helper()
	to := objstore.NewInMemBucket()
	for _, name := range names(t, from) {
		text := object(t, from, name)
		if err := to.Upload(context.Background(), name, bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

func object(t *testing.T, from objstore.Bucket, name string) []byte {
	t.Helper()
	body, err := from.Get(context.Background(), name)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(body)
	if err := errors.Join(err, body.Close()); err != nil {
		t.Fatal(err)
	}
	return text
}

var errKilled = errors.New("killed")

// killed is a bucket of a process that is killed at operation number at: this operation and all later operations fail. With
// half set, the upload at which the process is killed writes half of its object.
type killed struct {
	objstore.Bucket
	at   int
	half bool

	mu   sync.Mutex
	done int
	ops  []string
}

// step counts an operation. now reports whether the process is killed at this operation. err is errKilled for this operation
// and for later ones.
func (k *killed) step(what string) (now bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.done++
	k.ops = append(k.ops, what)
	if k.done >= k.at {
		return k.done == k.at, errKilled
	}
	return false, nil
}

func (k *killed) Upload(ctx context.Context, name string, r io.Reader, o ...objstore.ObjectUploadOption) error {
	now, err := k.step("upload " + path.Base(name))
	if now && k.half {
		text, readErr := io.ReadAll(r)
		return errors.Join(err, readErr, k.Bucket.Upload(ctx, name, bytes.NewReader(text[:len(text)/2]), o...))
	}
	if err != nil {
		return err
	}
	return k.Bucket.Upload(ctx, name, r, o...)
}

func (k *killed) Delete(ctx context.Context, name string) error {
	if _, err := k.step("delete " + path.Base(name)); err != nil {
		return err
	}
	return k.Bucket.Delete(ctx, name)
}

func (k *killed) Attributes(ctx context.Context, name string) (objstore.ObjectAttributes, error) {
	if _, err := k.step("attributes"); err != nil {
		return objstore.ObjectAttributes{}, err
	}
	return k.Bucket.Attributes(ctx, name)
}

func (k *killed) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	if _, err := k.step("get range"); err != nil {
		return nil, err
	}
	return k.Bucket.GetRange(ctx, name, off, length)
}

func (k *killed) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if _, err := k.step("get"); err != nil {
		return nil, err
	}
	return k.Bucket.Get(ctx, name)
}

func (k *killed) Iter(ctx context.Context, dir string, f func(string) error, o ...objstore.IterOption) error {
	if _, err := k.step("iter"); err != nil {
		return err
	}
	return k.Bucket.Iter(ctx, dir, f, o...)
}
