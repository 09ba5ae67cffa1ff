package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

// concatenate is a MergeFunc that shows its sources.
func concatenate(_ context.Context, dst io.Writer, sources []Source) error {
	for _, s := range sources {
		if _, err := io.Copy(dst, s); err != nil {
			return err
		}
	}
	return nil
}

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
		"a full part": noise(200<<10 - headBytes - len("a full part")), "two full parts": noise(400<<10 - headBytes - headerBytes - len("two full parts")),
	}
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 200 << 10})
		for name, want := range responses {
			put(t, c, name, 0, 100, 10, want)
			got := get(t, c, name, 0, 100)
			check(t, got == "0-100:"+string(want), "%s, %s: %d bytes instead of %d", kind, name, len(got), len(want))
		}
	}
}

func TestReader_ReadsInPiecesOfAnySize(t *testing.T) {
	want := response("mix", 200, 100)
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 32 << 10})
		put(t, c, "k", 0, 100, 10, want)
		for _, size := range []int{1, 7, 100, 4096, blockBytes - 1, blockBytes, blockBytes + 1, 1 << 20} {
			if size == 1 && testing.Short() {
				continue
			}
			r, err := c.Lookup(context.Background(), "k", 0, 100).Open(context.Background())
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

func TestReader_WriteTo(t *testing.T) {
	want := response("mix", 200, 100)
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 32 << 10})
		put(t, c, "k", 0, 100, 10, want)
		r, err := c.Lookup(context.Background(), "k", 0, 100).Open(context.Background())
		check(t, err == nil, "open: %v", err)
		first := make([]byte, 1000)
		_, err = io.ReadFull(r, first)
		check(t, err == nil, "read: %v", err)
		var rest bytes.Buffer
		n, err := io.Copy(&rest, r)
		check(t, err == nil && n == int64(len(want)-1000), "%s: copied %d: %v", kind, n, err)
		check(t, bytes.Equal(append(first, rest.Bytes()...), want), "%s: other bytes", kind)
		check(t, r.Close() == nil, "close")
	}
}

func TestLookup_FindsTheResponseByRange(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{})
		put(t, c, "k", 0, 100, 10, []byte("a"))
		for _, q := range []struct {
			start, end int64
			found      bool
			counted    string
		}{
			{0, 100, true, "hit"}, {50, 60, true, "hit"}, {0, 109, true, "hit"}, {0, 110, true, "partial"}, {-9, 100, true, "hit"},
			{-10, 100, true, "partial"}, {100, 200, true, "partial"}, {101, 199, false, "miss"}, {-50, -1, false, "miss"},
			{50, 40, false, "miss"}, {-9e18, 9e18, true, "partial"},
		} {
			before := c.met.lookups.of(q.counted).Get()
			got := get(t, c, "k", q.start, q.end)
			check(t, (got == "0-100:a") == q.found && (got == "") == !q.found, "%s: %d-%d: %q", kind, q.start, q.end, got)
			check(t, c.met.lookups.of(q.counted).Get() == before+1, "%s: %d-%d is not a %s", kind, q.start, q.end, q.counted)
		}
	}
}

// The last response wins, unless the stored one has all its steps and more. Responses without a gap are joined.
func TestCommit_ExtendsOrReplacesTheStoredResponse(t *testing.T) {
	type written struct{ start, end, step int64 }
	for _, tt := range []struct {
		name string
		old  written
		next written
		want string
	}{
		{"the same range", written{0, 90, 10}, written{0, 90, 10}, "0-90:b"},
		{"a longer range", written{10, 80, 10}, written{0, 90, 10}, "0-90:b"},
		{"longer at the end", written{0, 80, 10}, written{0, 90, 10}, "0-90:b"},
		{"a shorter range", written{0, 90, 10}, written{10, 80, 10}, "0-90:a"},
		{"the next step", written{0, 90, 10}, written{100, 190, 10}, "0-190:0-90 a|100-190 b|"},
		{"overlapping at the end", written{0, 90, 10}, written{50, 190, 10}, "0-190:0-40 a|50-190 b|"},
		{"the step before", written{100, 190, 10}, written{0, 90, 10}, "0-190:0-90 b|100-190 a|"},
		{"overlapping at the start", written{50, 190, 10}, written{0, 90, 10}, "0-190:0-90 b|100-190 a|"},
		{"after a gap", written{0, 90, 10}, written{110, 190, 10}, "110-190:b"},
		{"before a gap", written{110, 190, 10}, written{0, 90, 10}, "0-90:b"},
		{"another step", written{0, 90, 10}, written{20, 40, 5}, "20-40:b"},
		{"without a step", written{0, 90, 0}, written{91, 99, 0}, "0-99:0-90 a|91-99 b|"},
		{"without a step, after a gap", written{0, 90, 0}, written{92, 99, 0}, "92-99:b"},
	} {
		for kind, store := range stores(t) {
			c := newCache(t, store(), Options{Merge: func(_ context.Context, dst io.Writer, sources []Source) error {
				for _, s := range sources {
					text, err := io.ReadAll(s)
					check(t, err == nil, "read: %v", err)
					fmt.Fprintf(dst, "%d-%d %s|", s.StartMS, s.EndMS, text)
				}
				return nil
			}})
			put(t, c, "k", tt.old.start, tt.old.end, tt.old.step, []byte("a"))
			put(t, c, "k", tt.next.start, tt.next.end, tt.next.step, []byte("b"))
			got := get(t, c, "k", -1000, 1000)
			check(t, got == tt.want, "%s, %s: %q, want %q", tt.name, kind, got, tt.want)
			check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "%s: bytes are in flight", tt.name)
			check(t, c.held.TryAcquire(c.opts.HeldBytesMax), "%s: bytes are held", tt.name)
		}
	}
}

func TestCommit_ResponsesThatCannotBeJoinedAreReplaced(t *testing.T) {
	for kind, store := range stores(t) {
		for name, opts := range map[string]Options{
			"no merge": {},
			"a failure": {Merge: func(_ context.Context, dst io.Writer, _ []Source) error {
				_, _ = io.WriteString(dst, "incomplete")
				return errors.New("not sorted")
			}},
			"an empty union": {Merge: func(context.Context, io.Writer, []Source) error { return nil }},
			"too large": {PartBytes: 5000, EntryBytesMax: 5000, Merge: func(_ context.Context, dst io.Writer, _ []Source) error {
				_, _ = dst.Write(noise(10_000))
				return nil
			}},
		} {
			c := newCache(t, store(), opts)
			put(t, c, "k", 0, 90, 10, []byte("a"))
			put(t, c, "k", 100, 190, 10, []byte("b"))
			got := get(t, c, "k", 0, 1000)
			check(t, got == "100-190:b", "%s, %s: %q", name, kind, got)
			check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax) && c.held.TryAcquire(c.opts.HeldBytesMax), "%s: bytes are held", name)
		}
	}
}

func TestCommit_TheUnionExpiresWithItsOldestResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, newFakeStore(), Options{Merge: concatenate, TTL: time.Hour})
		put(t, c, "k", 0, 90, 10, []byte("a"))
		time.Sleep(40 * time.Minute)
		put(t, c, "k", 100, 190, 10, []byte("b"))
		check(t, get(t, c, "k", 0, 1000) == "0-190:ab", "not joined")
		time.Sleep(20 * time.Minute)
		check(t, get(t, c, "k", 0, 1000) == "", "it lived longer than its oldest response")
		put(t, c, "k", 200, 290, 10, []byte("c"))
		got := get(t, c, "k", 0, 1000)
		check(t, got == "200-290:c", "an expired response is joined: %q", got)
	})
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
	check(t, c.inFlight.TryAcquire(c.opts.InFlightBytesMax), "bytes are in flight")
}

func TestLookup_IsAMissBeforeCommit(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 8 << 10})
		w := c.Writer("k", 0, 1, 1)
		for range 30 {
			_, _ = w.Write(noise(10 << 10))
			check(t, get(t, c, "k", 0, 1) == "", "%s: found", kind)
		}
		w.Commit()
		check(t, !c.local || found(t, c, "k", 0, 1), "%s: not found at once", kind)
		flush(t, c)
		check(t, found(t, c, "k", 0, 1), "%s: not found", kind)
	}
}

func TestLookup_ResponseFromTheFutureExpires(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	for _, q := range []struct {
		writtenMS int64
		ttl       time.Duration
		want      bool
	}{
		{1_700_000_000_000, time.Minute, true}, {1_699_999_941_000, time.Minute, true}, {1_699_999_940_000, time.Minute, false},
		{1_700_000_059_000, time.Minute, true}, {1_700_000_060_000, time.Minute, false}, {0, 0, true}, {1 << 50, 0, true},
	} {
		h := head{writtenMS: q.writtenMS}
		check(t, h.valid(now, q.ttl) == q.want, "written at %d, for %s: %v", q.writtenMS, q.ttl, !q.want)
	}
}

func TestLookup_HashCollisionIsAMiss(t *testing.T) {
	for _, other := range []string{"tenant b", "tenant", "tenant a and more"} {
		store := newFakeStore()
		c := newCache(t, store, Options{})
		put(t, c, "tenant a", 0, 10, 10, []byte("secret"))
		store.mu.Lock()
		store.values[storeKey(other)] = store.values[storeKey("tenant a")] // as if the hashes were equal
		store.mu.Unlock()
		check(t, get(t, c, other, 0, 10) == "", "found another key's response")
		put(t, c, other, 0, 10, 10, []byte("own"))
		got := get(t, c, other, 0, 10)
		check(t, got == "0-10:own", "got %q", got)
	}
}

func TestWriter_KeyAboveTheLimitIsNotCached(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 5000})
	put(t, c, strings.Repeat("k", 2501), 0, 10, 10, []byte("x"))
	check(t, get(t, c, strings.Repeat("k", 2501), 0, 10) == "" && len(store.ops) == 0, "cached: %v", store.ops)
	put(t, c, strings.Repeat("k", 2500), 0, 10, 10, []byte("x"))
	check(t, found(t, c, strings.Repeat("k", 2500), 0, 10), "not cached")
}

func TestWriter_PartsDoNotExceedPartBytes(t *testing.T) {
	for _, size := range []int{partBytesMin, 10_000, 100_000, 512 << 10} {
		for _, text := range [][]byte{noise(1 << 20), response("rate", 300, 161)} {
			store := newFakeStore()
			c := newCache(t, store, Options{PartBytes: size})
			put(t, c, "k", 0, 10, 10, text)
			for _, v := range store.values {
				check(t, len(v) <= size, "a part of %d bytes instead of %d", len(v), size)
			}
			check(t, found(t, c, "k", 0, 10), "not found")
		}
	}
}

// Every stored byte is damaged, and every value is truncated and removed. Each is a miss,
// or the response is gone; no reader gets wrong bytes.
func TestLookup_DamagedValueIsAMiss(t *testing.T) {
	want := response("mix", 40, 60)
	for _, opts := range []Options{{PartBytes: 5000}, {}} {
		store := newFakeStore()
		opts.BreakerFailures = 1 << 30
		c := newCache(t, store, opts)
		put(t, c, "key", 0, 100, 10, want)
		whole := map[string][]byte{}
		for key, v := range store.values {
			whole[key] = v
		}
		check(t, (len(whole) > 2) == (opts.PartBytes > 0), "%d values", len(whole))
		try := func(what string) {
			t.Helper()
			check(t, !found(t, c, "key", 0, 100), "%s: found", what)
			flush(t, c) // the response is removed
			store.mu.Lock()
			for key, v := range whole {
				store.values[key] = v
			}
			store.mu.Unlock()
		}
		for key, v := range whole {
			for i := 0; i < len(v); i += 1 + i/50 {
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
		check(t, get(t, c, "key", 0, 100) == "0-100:"+string(want), "it is not found afterwards")
	}
}

func TestLookup_PartsOfOtherPlacesAndWritersAreRejected(t *testing.T) {
	store := newFakeStore()
	c := newCache(t, store, Options{PartBytes: 5000})
	part := func(i int) string { return partKey(storeKey("k"), i) }
	put(t, c, "k", 0, 10, 10, noise(20_000))
	old := store.values[part(1)]
	store.values[part(1)], store.values[part(2)] = store.values[part(2)], store.values[part(1)]
	check(t, get(t, c, "k", 0, 10) == "gone", "parts in another order are found")
	put(t, c, "k", 0, 10, 10, noise(20_000))
	check(t, found(t, c, "k", 0, 10), "not found")
	store.values[part(1)] = old
	check(t, get(t, c, "k", 0, 10) == "gone", "a part of another writer is found")
}

func TestLookup_ResponseWithoutAPartIsReplaced(t *testing.T) {
	for _, store := range []func() *fakeStore{newFakeStore} {
		for _, local := range []bool{false, true} {
			s := store()
			c := newCache(t, map[bool]Store{false: s, true: localFake{s}}[local], Options{PartBytes: 5000, Merge: concatenate})
			put(t, c, "k", 0, 100, 10, noise(20_000))
			s.mu.Lock()
			delete(s.values, partKey(storeKey("k"), 2))
			s.mu.Unlock()
			check(t, get(t, c, "k", 0, 100) == "gone", "found")
			flush(t, c)
			check(t, get(t, c, "k", 0, 100) == "", "not removed")
			put(t, c, "k", 0, 100, 10, noise(20_000))
			s.mu.Lock()
			delete(s.values, partKey(storeKey("k"), 2))
			s.mu.Unlock()
			// No reader has found it yet. It covers the next response, but cannot be read.
			put(t, c, "k", 50, 60, 10, []byte("a piece of it"))
			got := get(t, c, "k", 0, 100)
			check(t, got == "50-60:a piece of it", "got %q", got)
		}
	}
}

// Concurrent writers append to one value. No reader gets the bytes of two responses under one range.
func TestWriter_ConcurrentWritersOfOneValue(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{PartBytes: 8 << 10})
		var wait sync.WaitGroup
		for i := range int64(16) {
			wait.Go(func() {
				w := c.Writer("k", 100*i, 100*i+99, 1)
				for range 20 {
					_, _ = w.Write(bytes.Repeat([]byte{byte('a' + i)}, 3000))
				}
				w.Commit()
			})
			wait.Go(func() {
				e := c.Lookup(context.Background(), "k", 0, 1600)
				if e == nil {
					return
				}
				letter := byte('a' + e.StartMS/100)
				if got, err := readAll(e); err == nil && !bytes.Equal(got, bytes.Repeat([]byte{letter}, 60_000)) {
					t.Errorf("%s: another writer's bytes", kind)
				}
			})
		}
		wait.Wait()
		flush(t, c)
		check(t, found(t, c, "k", 0, 1600), "%s: not found", kind)
	}
}

// A random history of writes against a model: a lookup finds exactly the steps that the model has.
func TestLookup_RandomHistoriesMatchAModel(t *testing.T) {
	r := random()
	for range 60 {
		for _, store := range stores(t) {
			c := newCache(t, store(), Options{Merge: mergeLines, PartBytes: partBytesMin})
			start, end := int64(-1), int64(-1) // of the model
			for range 1 + r.IntN(20) {
				from := 10 * r.Int64N(60)
				to := from + 10*r.Int64N(30)
				put(t, c, "k", from, to, 10, lines(from, to+10*r.Int64N(4))) // it may have more than its range
				switch {
				case start < 0 || from > end+10 || to < start-10:
					start, end = from, to
				default:
					start, end = min(start, from), max(end, to)
				}
				checkSteps(t, c, r, start, end)
			}
		}
	}
}

func checkSteps(t *testing.T, c *Cache, r *rand.Rand, start, end int64) {
	t.Helper()
	from := 10 * r.Int64N(90)
	to := from + 10*r.Int64N(30)
	e := c.Lookup(context.Background(), "k", from, to)
	check(t, (e != nil) == (from <= end && to >= start), "%d-%d of %d-%d: %v", from, to, start, end, e)
	if e == nil {
		return
	}
	check(t, e.StartMS == start && e.EndMS == end, "%d-%d, want %d-%d", e.StartMS, e.EndMS, start, end)
	text, err := readAll(e)
	check(t, err == nil && bytes.Equal(cutLines(text, start, end), lines(start, end)), "%d-%d: %v, other lines", start, end, err)
}
