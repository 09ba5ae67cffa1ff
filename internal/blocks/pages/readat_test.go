package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
)

func TestReadAt_ReturnsTheBytesOfTheObject(t *testing.T) {
	data := content(3*slotsMin*Bytes + 123)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 1, Parallel: 2})
	o := c.Object(m, "a", int64(len(data)))
	var all sync.WaitGroup
	for seed := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(5, uint64(seed)))
			for range 150 {
				off, p := rng.Int64N(int64(len(data))+10), make([]byte, rng.IntN(1<<uint(8+rng.IntN(13))))
				want := data[min(off, int64(len(data))):min(off+int64(len(p)), int64(len(data)))]
				n, err := o.ReadAt(t.Context(), p, off, []int64{0, Bytes, 4 * Bytes, 100}[rng.IntN(4)])
				if !bytes.Equal(p[:n], want) || (n < len(p)) != errors.Is(err, io.EOF) || err != nil && !errors.Is(err, io.EOF) {
					t.Errorf("%d bytes at %d: %d, %v", len(p), off, n, err)
					return
				}
				if c.Cached() > c.BytesMax() {
					t.Errorf("%d bytes are cached", c.Cached())
				}
			}
		})
	}
	all.Wait()
	if n, err := o.ReadAt(t.Context(), make([]byte, 1), -1, 0); n != 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("%d, %v", n, err)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	if n, err := o.ReadAt(ended, make([]byte, 1), 0, 0); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d, %v", n, err)
	}
}

func TestReadAt_RequestsTheMissingPagesOfTheWindow(t *testing.T) {
	data := content(40*Bytes + 3)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 400 * Bytes, GapBytes: 1})
	o := c.Object(m, "a", int64(len(data)))
	const window = 4 * Bytes
	for _, tt := range []struct {
		name                 string
		off, n               int64
		window               int64
		requests, bytes      int64
		hits, misses, cached int
	}{
		{"a page", 5 * Bytes, 10, 0, 1, Bytes, 0, 1, 1},
		{"the same again", 5*Bytes + 7, 10, 0, 0, 0, 1, 0, 1},
		{"its window, of which it is there", 5 * Bytes, 10, window, 0, 0, 1, 0, 1},
		{"a page with its window", 9 * Bytes, 10, window, 1, window, 0, 4, 5},
		{"the window around a page that is there", 4 * Bytes, 10, window, 2, 3 * Bytes, 0, 3, 8},
		{"two windows", 15*Bytes + 5, Bytes, window, 1, 2 * window, 0, 8, 16},
		{"the end", 40*Bytes + 1, 2, window, 1, 3, 0, 1, 17},
		{"nothing", 41 * Bytes, 0, window, 0, 0, 0, 0, 17},
	} {
		requests, bytes := m.requests.Load(), m.bytes.Load()
		hits, misses := c.counts.hits.Get(), c.counts.misses.Get()
		if n, err := o.ReadAt(t.Context(), make([]byte, tt.n), tt.off, tt.window); int64(n) != tt.n || err != nil {
			t.Errorf("%s: %d, %v", tt.name, n, err)
		}
		if requests, bytes = m.requests.Load()-requests, m.bytes.Load()-bytes; requests != tt.requests || bytes != tt.bytes {
			t.Errorf("%s: %d bytes by %d requests, want %d by %d", tt.name, bytes, requests, tt.bytes, tt.requests)
		}
		if hits, misses = c.counts.hits.Get()-hits, c.counts.misses.Get()-misses; int(hits) != tt.hits || int(misses) != tt.misses || c.Cached() != int64(tt.cached)*Bytes {
			t.Errorf("%s: %d hits, %d misses, %d bytes cached", tt.name, hits, misses, c.Cached())
		}
	}
}

// While other readers pin all pages, ReadAt waits, and fails after WaitMax.
func TestReadAt_WaitsForAFreePageThenFails(t *testing.T) {
	data := content(2 * slotsMin * Bytes)
	m := &memory{objects: map[string][]byte{"a": data}}
	c := open(t, Options{BytesMax: 1, WaitMax: 20 * time.Millisecond})
	o := c.Object(m, "a", int64(len(data)))
	holder := c.Reader()
	for n := range int64(slotsMin) {
		if _, err := holder.At(t.Context(), o, n*Bytes); err != nil {
			t.Fatal(err)
		}
	}
	p := make([]byte, 10)
	if n, err := o.ReadAt(t.Context(), p, (slotsMin+3)*Bytes, 4*Bytes); n != 0 || !errors.Is(err, ErrBudget) {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := o.ReadAt(t.Context(), p, 3*Bytes, 4*Bytes); n != 10 || err != nil {
		t.Errorf("a page that is there: %d, %v", n, err)
	}
	holder.Release()
	if n, err := o.ReadAt(t.Context(), p, (slotsMin+3)*Bytes, 4*Bytes); n != 10 || err != nil || !bytes.Equal(p, data[(slotsMin+3)*Bytes:][:10]) {
		t.Errorf("%d, %v", n, err)
	}
}

// Objects can be created before Open, because an owner of a cache may know its directory only later.
func TestNew_ReadsFailUntilTheFileIsThere(t *testing.T) {
	m := &memory{objects: map[string][]byte{"a": content(10)}}
	c := New(Options{BytesMax: 1})
	o, p := c.Object(m, "a", 10), make([]byte, 10)
	if n, err := o.ReadAt(t.Context(), p, 0, 0); n != 0 || !errors.Is(err, ErrClosed) || c.Cached() != 0 {
		t.Errorf("%d, %v", n, err)
	}
	if err := c.Open("/dev/null/none"); err == nil {
		t.Error("a file in a file")
	}
	if err := c.Open(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	if n, err := o.ReadAt(t.Context(), p, 0, 0); n != 10 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if err := errors.Join(c.Close(), c.Close()); err != nil {
		t.Error(err)
	}
	if n, err := o.ReadAt(t.Context(), p, 0, 0); n != 0 || !errors.Is(err, ErrClosed) {
		t.Errorf("%d, %v", n, err)
	}
}

// A size that is far too large is an error and not the end of the process. It takes neither memory nor space.
func TestOpen_SizeBeyondTheLimitOrTheDiskIsAnErrorThatNamesTheFlag(t *testing.T) {
	dir := t.TempDir()
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	all := int64(disk.Blocks) * disk.Bsize / Bytes * Bytes // more than is free
	for size, want := range map[int64]string{
		min(all+Bytes, CacheBytesMax): " bytes: no space left on device", CacheBytesMax + Bytes: "larger than 1099511627776 (--cache)", 64 << 40: "larger than", math.MaxInt64: "larger than",
	} {
		if size == CacheBytesMax && all > size {
			continue // of a large disk
		}
		c := New(Options{BytesMax: size, Flags: hint.Flags{"BytesMax": "--cache"}})
		err := c.Open(dir)
		if err == nil {
			t.Errorf("%d bytes: no error", size)
			err = c.Close()
		}
		for _, part := range []string{want, strconv.FormatInt(size/Bytes*Bytes, 10), " (--cache)"} {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("%d bytes: %v does not contain %q", size, err, part)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%d bytes: %v are left, %v", size, left, err)
		}
	}
}
