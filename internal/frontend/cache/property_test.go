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

// Frontends that share a store write, join and read concurrently, and the store drops
// values. Every response found is correct, or its Open returns ErrGone.
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
			var right, gone atomic.Int64
			var wait sync.WaitGroup
			for i, store := range frontends {
				c := newCache(t, store, Options{PartBytes: partBytesMin, Merge: mergeLines, BreakerFailures: 1 << 30, LookupTimeout: time.Minute,
					WholeTimeout: time.Minute, SetTimeout: time.Minute})
				for worker := range 3 {
					wait.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), uint64(worker)))
						for range 150 {
							useCache(t, c, r, &right, &gone)
						}
					})
				}
			}
			wait.Wait()
			check(t, right.Load() > 30, "found %d", right.Load())
			t.Logf("%d responses were right, %d were gone", right.Load(), gone.Load())
		})
	}
}

// useCache writes a response, or reads one.
func useCache(t *testing.T, c *Cache, r *rand.Rand, right, gone *atomic.Int64) {
	key := fmt.Sprint(r.IntN(4))
	start := 10 * r.Int64N(2000)
	end := start + 10*r.Int64N(800)
	if r.IntN(2) == 0 {
		w := c.Writer(key, start, end, 10)
		_, _ = w.Write(lines(start, end+10*r.Int64N(5))) // it may hold more than its range
		w.Commit()
		return
	}
	e := c.Lookup(context.Background(), key, start, end)
	if e == nil {
		return
	}
	text, err := readAll(e)
	if err != nil {
		if !errors.Is(err, ErrGone) {
			t.Errorf("read: %v", err)
		}
		gone.Add(1)
		return
	}
	if want := lines(e.StartMS, e.EndMS); !bytes.Equal(cutLines(text, e.StartMS, e.EndMS), want) {
		t.Errorf("%d-%d: wrong bytes", e.StartMS, e.EndMS)
	}
	right.Add(1)
}
