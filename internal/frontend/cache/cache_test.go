package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stores returns a local and a remote store, for tests of both.
func stores(t *testing.T) map[string]func() Store {
	return map[string]func() Store{
		"local":  func() Store { return newMemory(t, MemoryOptions{}) },
		"remote": func() Store { return newFakeStore() },
	}
}

func TestCache_ReturnsTheBytesWritten(t *testing.T) {
	responses := map[string][]byte{
		"small": response("mix", 1, 3), "a block": response("mix", 24, 161), "parts": response("rate", 400, 161),
		"noise": noise(1<<20 + 77), "one byte": {'x'}, "labels": []byte(`{"status":"success","data":["a","b"]}`),
	}
	for kind, store := range stores(t) {
		for _, codec := range []Codec{CodecPacked, CodecS2, CodecNone} {
			c := newCache(t, store(), Options{Codec: codec, PartBytes: 200 << 10})
			for name, want := range responses {
				put(t, c, name, 0, 100, 10, want)
				found := c.Lookup(context.Background(), name, 0, 100)
				check(t, len(found) == 1 && found[0].whole(), "%s, codec %d, %s: found %d", kind, codec, name, len(found))
				got, err := readAll(found[0])
				check(t, err == nil && bytes.Equal(got, want), "%s, codec %d, %s: %d bytes instead of %d, %v", kind, codec, name, len(got), len(want), err)
				check(t, found[0].Bytes == int64(len(want)), "%s: length %d", name, found[0].Bytes)
			}
		}
	}
}

func TestReader_ReadsInPiecesOfAnySize(t *testing.T) {
	want := response("mix", 200, 100)
	for kind, store := range stores(t) {
		for _, prefetch := range []int64{1, 1 << 30} {
			c := newCache(t, store(), Options{PartBytes: 32 << 10, PrefetchBytes: prefetch})
			put(t, c, "k", 0, 100, 10, want)
			for _, size := range []int{1, 7, 100, 4096, blockBytes - 1, blockBytes, blockBytes + 1, 1 << 20} {
				if size == 1 && testing.Short() {
					continue
				}
				found := c.Lookup(context.Background(), "k", 0, 100)
				check(t, len(found) == 1, "%s: found %d", kind, len(found))
				check(t, found[0].whole() == (prefetch > 1 || c.local), "whole: %v", found[0].whole())
				r, err := found[0].Open(context.Background())
				check(t, err == nil, "open: %v", err)
				var got []byte
				buf := make([]byte, size)
				for {
					n, err := r.Read(buf)
					got = append(got, buf[:n]...)
					if err == io.EOF {
						break
					}
					check(t, err == nil && n > 0, "read %d: %v", n, err)
				}
				check(t, bytes.Equal(got, want), "%s in pieces of %d: %d bytes instead of %d", kind, size, len(got), len(want))
				n, err := r.Read(buf)
				check(t, n == 0 && err == io.EOF, "after the end: %d, %v", n, err)
				check(t, r.Close() == nil && r.Close() == nil, "close")
				_, err = r.Read(buf)
				check(t, err != nil && err != io.EOF, "after closing: %v", err)
			}
		}
	}
}

func TestReader_WriteTo(t *testing.T) {
	want := response("mix", 200, 100)
	for _, codec := range []Codec{CodecPacked, CodecNone} {
		c := newCache(t, newFakeStore(), Options{PartBytes: 32 << 10, PrefetchBytes: 1, Codec: codec})
		put(t, c, "k", 0, 100, 10, want)
		r, err := c.Lookup(context.Background(), "k", 0, 100)[0].Open(context.Background())
		check(t, err == nil, "open: %v", err)
		first := make([]byte, 1000)
		_, err = io.ReadFull(r, first)
		check(t, err == nil, "read: %v", err)
		var rest bytes.Buffer
		n, err := io.Copy(&rest, r)
		check(t, err == nil && n == int64(len(want)-1000), "copied %d: %v", n, err)
		check(t, bytes.Equal(append(first, rest.Bytes()...), want), "other bytes")
		check(t, r.Close() == nil, "close")
	}
}

func TestReader_CloseInMidStream(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{PartBytes: 8 << 10, PrefetchBytes: 1})
	put(t, c, "k", 0, 100, 10, noise(200<<10))
	for i := range 10 {
		r, err := c.Lookup(context.Background(), "k", 0, 100)[0].Open(context.Background())
		check(t, err == nil, "open: %v", err)
		_, err = io.CopyN(io.Discard, r, int64(i)*10_000)
		check(t, err == nil, "read: %v", err)
		check(t, r.Close() == nil, "close") // goleak detects leaked goroutines
	}
}

func TestLookup_FindsExtentsByRange(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{ExtentsMax: 10})
		put(t, c, "k", 0, 100, 10, []byte("a"))
		put(t, c, "k", 200, 300, 10, []byte("b"))
		put(t, c, "other", 0, 1000, 10, []byte("z"))
		for _, q := range []struct {
			start, end int64
			want       string
		}{
			{0, 300, "0-100:a 200-300:b"}, {0, 100, "0-100:a"}, {50, 60, "50-60:a"}, {100, 200, "100-100:a 200-200:b"},
			{101, 199, ""}, {-50, 1000, "0-100:a 200-300:b"}, {301, 400, ""}, {50, 40, ""}, {-9e18, 9e18, "0-100:a 200-300:b"},
		} {
			got := strings.Join(get(t, c, "k", q.start, q.end), " ")
			check(t, got == q.want, "%s: %d-%d: %q instead of %q", kind, q.start, q.end, got, q.want)
		}
	}
}

func TestLookup_OverlappingExtentsAreSplitAtSteps(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{ExtentsMax: 10})
	put(t, c, "k", 5, 105, 10, []byte("left"))    // 5, 15, …, 105
	put(t, c, "k", 95, 305, 10, []byte("long"))   // 95, …, 305
	put(t, c, "k", 285, 405, 10, []byte("right")) // 285, …, 405
	got := strings.Join(get(t, c, "k", 0, 1000), " ")
	check(t, got == "5-85:left 95-305:long 315-405:right", "got %q", got)
	got = strings.Join(get(t, c, "k", 100, 320), " ")
	check(t, got == "100-305:long 315-320:right", "got %q", got)
}

func TestCommit_NewExtentReplacesThoseItCovers(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{ExtentsMax: 10})
		put(t, c, "k", 0, 50, 10, []byte("old"))
		put(t, c, "k", 60, 100, 10, []byte("old"))
		put(t, c, "k", 0, 200, 10, []byte("new"))
		put(t, c, "k", 20, 30, 10, []byte("within the new one"))
		got := strings.Join(get(t, c, "k", 0, 1000), " ")
		check(t, got == "0-200:new", "%s: got %q", kind, got)
		put(t, c, "k", 0, 200, 10, []byte("again"))
		got = strings.Join(get(t, c, "k", 0, 1000), " ")
		check(t, got == "0-200:again", "%s: got %q", kind, got)
	}
}

func TestCommit_WithoutMergeDropsTheShortestExtents(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{ExtentsMax: 3})
	for _, r := range [][2]int64{{0, 50}, {100, 110}, {200, 290}, {300, 340}, {400, 401}} {
		put(t, c, "k", r[0], r[1], 1, []byte("x"))
	}
	got := strings.Join(get(t, c, "k", 0, 1000), " ")
	check(t, got == "0-50:x 200-290:x 400-401:x", "got %q", got)
}

func TestLookup_AbortedAndEmptyResponsesAreMisses(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 8 << 10})
	w := c.Writer("aborted", 0, 1, 1)
	_, _ = w.Write(noise(100 << 10))
	w.Abort()
	w.Commit() // too late
	c.Writer("empty", 0, 1, 1).Commit()
	w = c.Writer("turned round", 1, 0, 1)
	_, _ = w.Write([]byte("x"))
	w.Commit()
	flush(t, c)
	check(t, len(store.keys()) == 0, "left: %v", store.keys())
}

func TestLookup_IsAMissBeforeCommit(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 8 << 10})
		w := c.Writer("k", 0, 1, 1)
		for range 30 {
			_, _ = w.Write(noise(10 << 10))
			check(t, len(get(t, c, "k", 0, 1)) == 0, "%s: found", kind)
		}
		w.Commit()
		flush(t, c)
		check(t, len(get(t, c, "k", 0, 1)) == 1, "%s: not found", kind)
	}
}

func TestLookup_ExpiredExtentIsAMiss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, newFakeStore(), Options{TTL: time.Minute})
		put(t, c, "k", 0, 10, 10, []byte("old"))
		time.Sleep(40 * time.Second)
		put(t, c, "k", 20, 30, 10, []byte("new"))
		check(t, len(get(t, c, "k", 0, 100)) == 2, "both are young")
		time.Sleep(20 * time.Second)
		got := strings.Join(get(t, c, "k", 0, 100), " ")
		check(t, got == "20-30:new", "got %q", got)
		time.Sleep(10 * time.Minute)
		check(t, len(get(t, c, "k", 0, 100)) == 0, "both are old")
	})
}

func TestLookup_ExtentFromTheFutureExpires(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, q := range []struct {
		writtenMS int64
		ttl       time.Duration
		want      bool
	}{
		{1_700_000_000_000, time.Minute, true}, {1_699_999_941_000, time.Minute, true}, {1_699_999_940_000, time.Minute, false},
		{1_700_000_059_000, time.Minute, true}, {1_700_000_060_000, time.Minute, false}, {0, 0, true}, {1 << 50, 0, true},
	} {
		e := extent{writtenMS: q.writtenMS}
		check(t, e.valid(now, q.ttl) == q.want, "written at %d, for %s: %v", q.writtenMS, q.ttl, !q.want)
	}
}

func TestLookup_HashCollisionIsAMiss(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{})
	put(t, c, "tenant a", 0, 10, 10, []byte("secret"))
	store.mu.Lock()
	store.values[storeKey("tenant b")] = store.values[storeKey("tenant a")] // as if the hashes were equal
	store.mu.Unlock()
	check(t, len(get(t, c, "tenant b", 0, 10)) == 0, "found another key's response")
	put(t, c, "tenant b", 0, 10, 10, []byte("own"))
	got := strings.Join(get(t, c, "tenant b", 0, 10), " ")
	check(t, got == "0-10:own", "got %q", got)
}

func TestWriter_KeyAboveTheLimitIsNotCached(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{KeyBytesMax: 100})
	put(t, c, strings.Repeat("k", 101), 0, 10, 10, []byte("x"))
	check(t, len(get(t, c, strings.Repeat("k", 101), 0, 10)) == 0 && len(store.ops) == 0, "cached: %v", store.ops)
	put(t, c, strings.Repeat("k", 100), 0, 10, 10, []byte("x"))
	check(t, len(get(t, c, strings.Repeat("k", 100), 0, 10)) == 1, "not cached")
}

func TestWriter_PartsDoNotExceedPartBytes(t *testing.T) {
	for _, size := range []int{partBytesMin, 10_000, 100_000, 512 << 10} {
		for _, text := range [][]byte{noise(1 << 20), response("rate", 300, 161)} {
			store := newFakeStore()
			c := newCache(t, store, Options{PartBytes: size})
			put(t, c, "k", 0, 10, 10, text)
			for key, v := range store.values {
				check(t, len(v) <= size || key == storeKey("k"), "a part of %d bytes instead of %d", len(v), size)
			}
			check(t, len(get(t, c, "k", 0, 10)) == 1, "not found")
		}
	}
}

func TestWriter_ResponseLargerThanAnEntryIsAborted(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 16 << 10, EntryBytesMax: 100 << 10})
	put(t, c, "k", 0, 10, 10, noise(200<<10))
	check(t, len(store.keys()) == 0, "left: %d", len(store.keys()))
	for i := range int64(10) { // together too large: the oldest are dropped
		put(t, c, "k", 100*i, 100*i+10, 10, noise(30<<10))
	}
	found := get(t, c, "k", 0, 10_000)
	check(t, len(found) == 3 && strings.HasPrefix(found[2], "900-910"), "found %d", len(found))
}

// Every stored byte is damaged, and every value is truncated and removed. Each is a miss,
// or the stream ends with ErrGone; no reader gets wrong bytes.
func TestLookup_DamagedValueIsAMiss(t *testing.T) {
	want := response("mix", 10, 30)
	for _, opts := range []Options{{InlineBytes: 1, PartBytes: 5000}, {InlineBytes: 1, PartBytes: 5000, PrefetchBytes: 1}, {}} {
		store := newFakeStore()
		opts.BreakerFailures = 1 << 30
		c := newCache(t, store, opts)
		put(t, c, "key", 0, 100, 10, want)
		whole := map[string][]byte{}
		for key, v := range store.values {
			whole[key] = v
		}
		check(t, (len(whole) > 1) == (opts.InlineBytes > 0), "%d values", len(whole))
		try := func(what string) {
			t.Helper()
			for _, e := range c.Lookup(context.Background(), "key", 0, 100) {
				got, err := readAll(e)
				switch {
				case err == nil:
					check(t, false, "%s: found", what)
				case !errors.Is(err, ErrGone):
					check(t, false, "%s: %v", what, err)
				default:
					check(t, bytes.HasPrefix(want, got), "%s: wrong bytes before the end", what)
				}
			}
			flush(t, c) // the extent is forgotten
			store.mu.Lock()
			for key, v := range whole {
				store.values[key] = v
			}
			store.mu.Unlock()
		}
		for key, v := range whole {
			for i := range v {
				bad := bytes.Clone(v)
				bad[i] ^= 1 << (i % 8)
				store.values[key] = bad
				try(fmt.Sprintf("byte %d of %s", i, key))
			}
			for _, cut := range []int{0, 1, len(v) / 2, len(v) - 1} {
				store.values[key] = v[:cut]
				try(fmt.Sprintf("%s cut to %d", key, cut))
			}
			store.values[key] = append(bytes.Clone(v), 0)
			try("one byte more")
			delete(store.values, key)
			try("removed")
		}
		got, err := readAll(c.Lookup(context.Background(), "key", 0, 100)[0])
		check(t, err == nil && bytes.Equal(got, want), "afterwards: %v", err)
	}
}

func TestLookup_PartOfAnotherExtentIsRejected(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1})
	put(t, c, "k", 0, 10, 10, noise(20_000))
	var keys []string
	for key := range store.values {
		if key != storeKey("k") {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	check(t, len(keys) > 2, "%d parts", len(keys))
	store.values[keys[0]], store.values[keys[1]] = store.values[keys[1]], store.values[keys[0]]
	check(t, len(get(t, c, "k", 0, 10)) == 0, "found")
}

func TestLookup_ExtentWithoutAPartIsReplaced(t *testing.T) {
	for _, prefetch := range []int64{1, 1 << 20} {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, PrefetchBytes: prefetch})
		put(t, c, "k", 0, 100, 10, noise(20_000))
		for _, key := range store.keys() {
			if strings.HasSuffix(key, ":2") {
				delete(store.values, key)
			}
		}
		check(t, len(get(t, c, "k", 0, 100)) == 0, "prefetch %d: found", prefetch)
		flush(t, c)
		put(t, c, "k", 50, 60, 10, []byte("a piece of it"))
		got := strings.Join(get(t, c, "k", 0, 100), " ")
		check(t, got == "50-60:a piece of it", "prefetch %d: got %q", prefetch, got)
	}
}

func TestWriter_ConcurrentWritersOfOneEntry(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 8 << 10, ExtentsMax: 16, WriterWait: time.Minute})
		var wait sync.WaitGroup
		for i := range int64(16) {
			wait.Go(func() {
				w := c.Writer("k", 100*i, 100*i+99, 1)
				for range 20 {
					_, _ = w.Write(bytes.Repeat([]byte{byte('a' + i)}, 3000))
					_, _ = w.Write(noise(500))
				}
				w.Commit()
			})
			wait.Go(func() {
				for _, e := range c.Lookup(context.Background(), "k", 0, 1600) {
					got, err := readAll(e)
					check(t, err == nil, "read: %v", err)
					check(t, got[0] == byte('a'+e.StoredStartMS/100), "%s: another writer's bytes", kind)
				}
			})
		}
		wait.Wait()
		flush(t, c)
		found := c.Lookup(context.Background(), "k", 0, 1600)
		check(t, len(found) == 16, "%s: found %d", kind, len(found))
		for i, e := range found {
			got, err := readAll(e)
			check(t, err == nil && len(got) == 70_000 && got[0] == byte('a'+i), "%s: extent %d: %d bytes, %v", kind, i, len(got), err)
		}
	}
}

func TestLookup_RandomExtentsMatchAModel(t *testing.T) {
	r := random()
	for range 30 {
		c := newCache(t, newFakeStore(), Options{ExtentsMax: 16})
		truth := map[int64]int{} // which writes cover a time
		for i := range 1 + r.IntN(12) {
			start := 10 * r.Int64N(50)
			end := start + 10*r.Int64N(20)
			put(t, c, "k", start, end, 10, []byte(fmt.Sprint(i)))
			for at := start; at <= end; at += 10 {
				truth[at]++
			}
		}
		for range 20 {
			modelCheck(t, c, truth, r)
		}
	}
}

// modelCheck looks up a random range: it returns every step that an extent covers once,
// and no other step.
func modelCheck(t *testing.T, c *Cache, truth map[int64]int, r *rand.Rand) {
	t.Helper()
	start := 10 * r.Int64N(60)
	end := start + 10*r.Int64N(30)
	seen := map[int64]bool{}
	last := int64(-1)
	for _, e := range c.Lookup(context.Background(), "k", start, end) {
		check(t, e.StartMS > last && e.StartMS >= start && e.EndMS <= end && e.StartMS >= e.StoredStartMS && e.EndMS <= e.StoredEndMS,
			"extent %d-%d of %d-%d after %d in %d-%d", e.StartMS, e.EndMS, e.StoredStartMS, e.StoredEndMS, last, start, end)
		last = e.EndMS
		for at := e.StartMS; at <= e.EndMS; at += 10 {
			seen[at] = true
		}
	}
	for at := start; at <= end; at += 10 {
		check(t, seen[at] == (truth[at] > 0), "%d: seen %v, written %d times", at, seen[at], truth[at])
	}
}

func TestCoverage_IsAHitOnlyIfNoStepIsMissing(t *testing.T) {
	of := func(bounds ...int64) (all []Extent) {
		for i := 0; i < len(bounds); i += 2 {
			all = append(all, Extent{StartMS: bounds[i], EndMS: bounds[i+1], StepMS: 10})
		}
		return all
	}
	for _, tt := range []struct {
		extents []Extent
		want    string
	}{
		{nil, "miss"},
		{of(0, 100), "hit"}, {of(0, 91), "hit"}, {of(0, 90), "partial"}, {of(1, 100), "partial"},
		{of(0, 40, 50, 100), "hit"}, {of(0, 39, 50, 100), "partial"}, {of(0, 40, 50, 80), "partial"},
		{[]Extent{{StartMS: 0, EndMS: 99}}, "partial"}, {[]Extent{{StartMS: 0, EndMS: 99}, {StartMS: 100, EndMS: 100}}, "hit"},
	} {
		got := coverage(tt.extents, 0, 100)
		check(t, got == tt.want, "%+v: %s, want %s", tt.extents, got, tt.want)
	}
}
