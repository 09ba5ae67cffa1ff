package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// lines returns a simple response: a line per step, which holds its timestamp.
func lines(startMS, endMS int64) []byte {
	var b []byte
	for at := startMS; at <= endMS; at += 10 {
		b = fmt.Appendf(b, "%011d\n", at)
	}
	return b
}

// mergeLines cuts the sources to their ranges, as a MergeFunc must.
func mergeLines(_ context.Context, dst io.Writer, sources []Source) error {
	for _, s := range sources {
		text, err := io.ReadAll(s)
		if err != nil {
			return err
		}
		if _, err := dst.Write(cutLines(text, s.StartMS, s.EndMS)); err != nil {
			return err
		}
	}
	return nil
}

func cutLines(text []byte, startMS, endMS int64) (kept []byte) {
	for line := range bytes.Lines(text) {
		if at, err := strconv.ParseInt(string(line[:len(line)-1]), 10, 64); err == nil && at >= startMS && at <= endMS {
			kept = append(kept, line...)
		}
	}
	return kept
}

// Frontends that share a store write, merge and delete concurrently, and the store drops
// values. Every extent found is correct, or its stream ends with ErrGone.
func TestCache_SharedStoreNeverReturnsWrongBytes(t *testing.T) {
	shared := newFakeStore()
	tiny := newMemory(t, MemoryOptions{BytesMax: 60_000})
	flaky := newFakeStore()
	var turn atomic.Int64
	flaky.fail(func(context.Context, string, string) error {
		if turn.Add(1)%7 == 0 {
			return errors.New("reset")
		}
		return nil
	})
	for name, frontends := range map[string][]Store{"shared": {shared, shared, shared}, "tiny": {tiny}, "flaky": {flaky, flaky}} {
		t.Run(name, func(t *testing.T) {
			var found, gone atomic.Int64
			var wait sync.WaitGroup
			for i, store := range frontends {
				c := newCache(t, store, Options{
					PartBytes: partBytesMin, InlineBytes: 300, Merge: mergeLines, DeleteAfter: time.Millisecond, BreakerFailures: 1 << 30,
					PrefetchBytes: 3000, Codec: CodecNone, LookupTimeout: time.Minute, WriterWait: time.Minute,
				})
				for worker := range 3 {
					wait.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), uint64(worker)))
						for range 150 {
							useCache(t, c, r, &found, &gone)
						}
					})
				}
			}
			wait.Wait()
			check(t, found.Load() > 50, "found %d", found.Load())
			t.Logf("%d extents were right, %d were gone", found.Load(), gone.Load())
		})
	}
}

// useCache writes a response, or reads some.
func useCache(t *testing.T, c *Cache, r *rand.Rand, found, gone *atomic.Int64) {
	key := fmt.Sprint(r.IntN(4))
	start := 10 * r.Int64N(2000)
	end := start + 10*r.Int64N(800)
	if r.IntN(2) == 0 {
		w := c.Writer(key, start, end, 10)
		_, _ = w.Write(lines(start, end+10*r.Int64N(5))) // it may hold more than its range
		w.Commit()
		return
	}
	for _, e := range c.Lookup(context.Background(), key, start, end) {
		text, err := readAll(e)
		if err != nil {
			if !errors.Is(err, ErrGone) || e.whole() {
				t.Errorf("read: %v, whole %v", err, e.whole())
			}
			gone.Add(1)
			continue
		}
		if want := lines(e.StartMS, e.EndMS); !bytes.Equal(cutLines(text, e.StartMS, e.EndMS), want) {
			t.Errorf("%d-%d of %d-%d: wrong bytes", e.StartMS, e.EndMS, e.StoredStartMS, e.StoredEndMS)
		}
		found.Add(1)
	}
}
