package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
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

func TestMerge_JoinsAdjacentExtents(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{Merge: concatenate, PartBytes: 5000, InlineBytes: 100})
		var want bytes.Buffer
		for i := range int64(10) {
			text := noise(2000 + int(i))
			want.Write(text)
			put(t, c, "k", 100*i, 100*i+90, 10, text)
		}
		found := c.Lookup(context.Background(), "k", 0, 1000)
		check(t, len(found) <= 4, "%s: %d extents", kind, len(found))
		var got bytes.Buffer
		next := int64(0)
		for _, e := range found {
			check(t, e.StoredStartMS == next, "%s: a gap before %d", kind, e.StoredStartMS)
			next = e.StoredEndMS + 10
			b, err := readAll(e)
			check(t, err == nil, "read: %v", err)
			got.Write(b)
		}
		check(t, next == 1000 && bytes.Equal(got.Bytes(), want.Bytes()), "%s: other bytes", kind)
		check(t, c.met.merges.of("merged").Get() > 0, "%s: nothing was merged", kind)
	}
}

func TestMerge_SkipsExtentsThatAreNotAdjacent(t *testing.T) {
	c := newCache(t, newFakeStore(), Options{Merge: concatenate})
	put(t, c, "k", 0, 100, 10, []byte("a"))
	put(t, c, "k", 120, 200, 10, []byte("c")) // 110 is missing
	put(t, c, "k", 195, 300, 10, []byte("d")) // overlaps
	put(t, c, "other step", 0, 100, 10, []byte("a"))
	put(t, c, "other step", 105, 205, 5, []byte("b"))
	got := strings.Join(get(t, c, "k", 0, 1000), " ")
	check(t, got == "0-100:a 120-190:c 195-300:d", "got %q", got)
	put(t, c, "k", 110, 110, 10, []byte("b"))
	got = strings.Join(get(t, c, "k", 0, 1000), " ")
	check(t, got == "0-200:abc 205-300:d", "got %q", got)
	got = strings.Join(get(t, c, "other step", 0, 1000), " ")
	check(t, got == "105-205:b", "got %q", got)
}

func TestMerge_SourcesHaveTheirRanges(t *testing.T) {
	var ranges atomic.Value
	c := newCache(t, newFakeStore(), Options{Merge: func(ctx context.Context, dst io.Writer, sources []Source) error {
		text := ""
		for _, s := range sources {
			text += fmt.Sprintf("%d-%d ", s.StartMS, s.EndMS)
		}
		ranges.Store(text)
		return concatenate(ctx, dst, sources)
	}})
	put(t, c, "k", 0, 90, 10, []byte("a"))
	put(t, c, "k", 100, 190, 10, []byte("b"))
	check(t, ranges.Load() == "0-90 100-190 ", "got %q", ranges.Load())
}

// A large extent is rarely rewritten when small ones are appended.
func TestMerge_RarelyRewritesLargeExtents(t *testing.T) {
	var written atomic.Int64
	c := newCache(t, newFakeStore(), Options{ExtentsMax: 4, Merge: func(_ context.Context, dst io.Writer, sources []Source) error {
		for _, s := range sources {
			n, err := io.Copy(dst, s)
			written.Add(n)
			if err != nil {
				return err
			}
		}
		return nil
	}})
	put(t, c, "k", 0, 999_990, 10, noise(4<<20))
	const small = 50 << 10
	for i := range int64(40) {
		put(t, c, "k", 1_000_000+100*i, 1_000_000+100*i+90, 10, noise(small))
	}
	found := c.Lookup(context.Background(), "k", 0, 1<<40)
	check(t, len(found) <= 4 && found[len(found)-1].EndMS == 1_003_990, "%d extents", len(found))
	check(t, written.Load() < 16<<20, "%d bytes were written again for %d new ones", written.Load(), 40*small)
}

func TestMerge_FailureLeavesTheExtents(t *testing.T) {
	for kind, store := range stores(t) {
		c := newCache(t, store(), Options{Merge: func(_ context.Context, dst io.Writer, _ []Source) error {
			_, _ = dst.Write(noise(10_000))
			return errors.New("not to be merged")
		}})
		put(t, c, "k", 0, 90, 10, []byte("a"))
		put(t, c, "k", 100, 190, 10, []byte("b"))
		got := strings.Join(get(t, c, "k", 0, 1000), " ")
		check(t, got == "0-90:a 100-190:b", "%s: got %q", kind, got)
		for i := range int64(20) { // and an entry does not grow without end
			put(t, c, "k", 1000+100*i, 1000+100*i+90, 10, []byte("x"))
		}
		check(t, len(get(t, c, "k", 0, 10_000)) <= 2*c.opts.ExtentsMax, "%s: %d extents", kind, len(get(t, c, "k", 0, 10_000)))
	}
}

func TestMerge_IsDroppedIfASourceWasReplaced(t *testing.T) {
	var c *Cache
	var once atomic.Bool
	c = newCache(t, newFakeStore(), Options{Merge: func(ctx context.Context, dst io.Writer, sources []Source) error {
		if once.CompareAndSwap(false, true) {
			w := c.Writer("k", 0, 200, 10) // covers both
			_, _ = w.Write([]byte("newer"))
			w.Commit()
			for len(get(t, c, "k", 0, 1000)) != 1 {
				time.Sleep(time.Millisecond)
			}
		}
		return concatenate(ctx, dst, sources)
	}})
	put(t, c, "k", 0, 90, 10, []byte("a"))
	put(t, c, "k", 100, 190, 10, []byte("b"))
	got := strings.Join(get(t, c, "k", 0, 1000), " ")
	check(t, got == "0-200:newer", "got %q", got)
	check(t, results(c, resultOutdated) == 1, "not counted")
}

func TestMerge_HasTheAgeOfTheOldestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, newFakeStore(), Options{Merge: concatenate, TTL: time.Hour})
		put(t, c, "k", 0, 90, 10, []byte("a"))
		time.Sleep(40 * time.Minute)
		put(t, c, "k", 100, 190, 10, []byte("b"))
		check(t, len(get(t, c, "k", 0, 1000)) == 1, "not merged")
		time.Sleep(30 * time.Minute)
		check(t, len(get(t, c, "k", 0, 1000)) == 0, "it lived longer than its oldest part")
		put(t, c, "k", 200, 290, 10, []byte("c"))
		got := strings.Join(get(t, c, "k", 0, 1000), " ")
		check(t, got == "200-290:c", "got %q", got)
	})
}

func TestCompactor_DeletesReplacedPartsAfterDeleteAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newFakeStore()
		c := newCache(t, store, Options{PartBytes: 5000, InlineBytes: 1, PrefetchBytes: 1, DeleteAfter: time.Minute})
		put(t, c, "k", 0, 90, 10, noise(20_000))
		reading := c.Lookup(context.Background(), "k", 0, 90)[0]
		put(t, c, "k", 0, 90, 10, noise(9_000))
		got, err := readAll(reading)
		check(t, err == nil && len(got) == 20_000, "who found it before reads %d bytes: %v", len(got), err)
		check(t, len(store.keys()) > 5, "%d values", len(store.keys()))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		check(t, len(store.keys()) == 3, "%d values are left", len(store.keys()))
		check(t, len(get(t, c, "k", 0, 90)) == 1, "not found")
	})
}

func TestClose_EndsAMerge(t *testing.T) {
	store := newFakeStore()
	began := make(chan struct{})
	c, err := New(store, Options{Merge: func(ctx context.Context, _ io.Writer, _ []Source) error {
		close(began)
		<-ctx.Done()
		return ctx.Err()
	}}, quiet, nil)
	check(t, err == nil, "new: %v", err)
	for i := range int64(2) {
		w := c.Writer("k", 100*i, 100*i+90, 10)
		_, _ = w.Write([]byte("a"))
		w.Commit()
	}
	<-began
	check(t, c.Close() == nil, "close")
	flush(t, c)
}
