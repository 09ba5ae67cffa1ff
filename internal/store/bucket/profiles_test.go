package bucket

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/oklog/ulid/v2"
	"github.com/thanos-io/objstore"

	"github.com/ferula-io/ferula/metrics"
)

// profileBlocks creates directories that look like profile blocks.
func profileBlocks(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		for _, file := range profileFiles {
			path := filepath.Join(dir, name, file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name+file), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestProfileShipper_KilledAtAnyStepShipsEveryBlock(t *testing.T) {
	one, two := "anonymous/"+ulid.Make().String(), "team-a/"+ulid.Make().String()
	for _, half := range []bool{false, true} {
		for step := 1; ; step++ {
			dir, to := t.TempDir(), objstore.NewInMemBucket()
			profileBlocks(t, dir, one, two, "anonymous/tmp-1")
			_, err := NewProfileShipper(&faulty{Bucket: to, at: step, half: half}, ProfileShipOptions{Dir: dir}, quiet, metrics.NewSet()).Sync(context.Background())
			if err == nil {
				if step < 8 {
					t.Fatalf("only %d steps", step)
				}
				break
			}
			if !errors.Is(err, errFault) {
				t.Fatal(err)
			}
			s := NewProfileShipper(to, ProfileShipOptions{Dir: dir}, quiet, metrics.NewSet())
			if _, err := s.Sync(context.Background()); err != nil {
				t.Fatal(err)
			}
			if n, err := s.Sync(context.Background()); n != 0 || err != nil {
				t.Errorf("%d blocks are uploaded again, %v", n, err)
			}
			all := objects(t, to)
			if len(all) != 4 {
				t.Fatalf("step %d: %s", step, names(all))
			}
			for name, text := range all {
				rest, ok := strings.CutPrefix(name, "profiles/")
				if want := filepath.Dir(rest) + filepath.Base(rest); !ok || string(text) != want {
					t.Errorf("step %d: %s is %q", step, name, text)
				}
			}
		}
	}
}

func TestProfileShipper_WithoutProfilesShipsNothing(t *testing.T) {
	s := NewProfileShipper(objstore.NewInMemBucket(), ProfileShipOptions{Dir: filepath.Join(t.TempDir(), "none")}, quiet, metrics.NewSet())
	if n, err := s.Sync(context.Background()); n != 0 || err != nil {
		t.Error(n, err)
	}
}

// counting counts requests for ranges.
type counting struct {
	objstore.Bucket
	mu     sync.Mutex
	ranges int
	fail   bool
}

func (c *counting) GetRange(ctx context.Context, name string, off, length int64) (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ranges++
	if c.fail {
		return nil, errFault
	}
	return c.Bucket.GetRange(ctx, name, off, length)
}

func TestObject_ReadsRangesThroughTheCache(t *testing.T) {
	ctx, random := context.Background(), rand.New(rand.NewPCG(1, 2))
	text := make([]byte, 5*pageBytes+123)
	for i := range text {
		text[i] = byte(random.Uint32())
	}
	from := &counting{Bucket: objstore.NewInMemBucket()}
	if err := from.Upload(ctx, "o", bytes.NewReader(text)); err != nil {
		t.Fatal(err)
	}
	cache := NewCache(3 * pageBytes)
	o, err := cache.Object(ctx, from, "o")
	if err != nil || o.Size() != int64(len(text)) {
		t.Fatal(o, err)
	}
	at := o.At(ctx)
	var wait sync.WaitGroup
	for worker := range 4 {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(3, uint64(worker)))
			for range 200 {
				off, p := random.Int64N(int64(len(text))+10), make([]byte, random.IntN(2*pageBytes))
				n, err := at.ReadAt(p, off)
				want := text[min(off, int64(len(text))):min(off+int64(len(p)), int64(len(text)))]
				if !bytes.Equal(p[:n], want) || (n < len(p)) != errors.Is(err, io.EOF) || err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes at %d: %d, %v", len(p), off, n, err)
					return
				}
				if cache.Bytes() > 3*pageBytes {
					t.Errorf("the cache holds %d bytes", cache.Bytes())
				}
			}
		})
	}
	wait.Wait()
	whole := make([]byte, len(text))
	from.ranges = 0
	fresh, err := NewCache(1<<30).Object(ctx, from, "o")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if n, err := fresh.At(ctx).ReadAt(whole, 0); n != len(text) || err != nil || !bytes.Equal(whole, text) {
			t.Fatal(n, err)
		}
	}
	if from.ranges != 1 {
		t.Errorf("%d requests to read adjacent pages", from.ranges)
	}
	from.fail = true
	broken, err := NewCache(0).Object(ctx, from, "o")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := broken.At(ctx).ReadAt(whole, 0); !errors.Is(err, errFault) {
		t.Error(err)
	}
	ended, stop := context.WithCancel(ctx)
	stop()
	if _, err := fresh.At(ended).ReadAt(whole, 0); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := cache.Object(ctx, from, "none"); err == nil {
		t.Error("opened a missing object")
	}
}

// A directory that cannot be listed is an error, not a directory without blocks. The tests may run
// as a user that may read everything, so the directory's path is longer than the system allows.
func TestProfileShipper_UnreadableTenantDirectoryIsAnError(t *testing.T) {
	dir := t.TempDir()
	for len(dir) < 4000 {
		dir = filepath.Join(dir, strings.Repeat("d", min(200, 4089-len(dir))))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Skip(err)
		}
	}
	t.Chdir(dir)
	if err := os.Mkdir("a-tenant-with-a-name-that-is-beyond-the-limit-of-paths-together-with-the-folders-it-is-in-"+strings.Repeat("x", 60), 0o700); err != nil {
		t.Fatal(err)
	}
	s := NewProfileShipper(objstore.NewInMemBucket(), ProfileShipOptions{Dir: dir}, quiet, metrics.NewSet())
	if found, err := s.blocks(); !errors.Is(err, syscall.ENAMETOOLONG) {
		t.Errorf("%d blocks, %v", len(found), err)
	}
}
