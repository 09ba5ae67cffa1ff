package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	instruments "github.com/ferula-io/ferula/metrics"
)

// check returns the bytes that m holds.
func (m *Memory) check(t testing.TB) (bytes int64) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	for e := m.queue.Front(); e != nil; e = e.Next() {
		item := e.Value.(*memoryItem)
		bytes += item.bytes()
		check(t, m.items[item.key] == e, "%s is in the list and not in the map", item.key)
	}
	n, itemsMax := m.queue.Len(), m.opts.ItemsMax
	check(t, n == len(m.items) && bytes == m.bytes, "%d items of %d bytes in the list, %d of %d counted", n, bytes, len(m.items), m.bytes)
	check(t, bytes <= m.opts.BytesMax, "%d bytes, at most %d", bytes, m.opts.BytesMax)
	check(t, itemsMax == 0 || n <= itemsMax, "%d items, at most %d", n, itemsMax)
	return bytes
}

func TestMemory_StaysWithinItsLimit(t *testing.T) {
	ctx := context.Background()
	for _, opts := range []MemoryOptions{{BytesMax: 100_000}, {BytesMax: 64 << 20}, {BytesMax: 1000}, {BytesMax: 1 << 20, ItemsMax: 10}, {BytesMax: 64 << 20, ItemsMax: 1000}} {
		m := newMemory(t, opts)
		r := random()
		model := map[string]byte{}
		for i := range 20_000 {
			key := fmt.Sprint(r.IntN(3000))
			switch r.IntN(10) {
			case 0, 1, 2:
				n := r.IntN(20_000)
				if r.IntN(20) == 0 {
					n *= 20
				}
				err := m.Set(ctx, key, bytes.Repeat([]byte{byte(i)}, n), 0)
				check(t, err == nil || errors.Is(err, ErrTooLarge), "set: %v", err)
				model[key] = byte(i)
				if err != nil {
					delete(model, key)
				}
			default:
				v, ok, err := m.Get(ctx, key)
				want, known := model[key]
				check(t, err == nil && (!ok || (known && (len(v) == 0 || v[0] == want))), "get: %v, known %v", ok, known)
			}
			if i%500 == 0 {
				m.check(t)
			}
		}
		m.check(t)
	}
}

func TestMemory_ConcurrentUse(t *testing.T) {
	m := newMemory(t, MemoryOptions{BytesMax: 1 << 20})
	var wait sync.WaitGroup
	for g := range 8 {
		wait.Go(func() {
			ctx := context.Background()
			for i := range 3000 {
				key := fmt.Sprint((i * (g + 1)) % 500)
				switch i % 5 {
				case 0:
					_ = m.Set(ctx, key, bytes.Repeat([]byte(key), 300), time.Hour)
				default:
					v, ok, _ := m.Get(ctx, key)
					check(t, !ok || strings.HasPrefix(string(v), key), "another key's value")
				}
			}
		})
	}
	wait.Wait()
	m.check(t)
}

func TestMemory_ScanDoesNotEvictValuesThatAreRead(t *testing.T) {
	ctx := context.Background()
	const size = 10_000
	m := newMemory(t, MemoryOptions{BytesMax: 100 * (size + memoryItemBytes + 10)})
	for i := range 50 {
		check(t, m.Set(ctx, fmt.Sprintf("hot-%d", i), make([]byte, size), 0) == nil, "set")
	}
	for i := range 2000 { // a scan of twenty times the size, while the hot ones are read
		check(t, m.Set(ctx, fmt.Sprintf("scan-%d", i), make([]byte, size), 0) == nil, "set")
		_, _, _ = m.Get(ctx, fmt.Sprintf("hot-%d", i%50))
	}
	left := 0
	for i := range 50 {
		if _, ok, _ := m.Get(ctx, fmt.Sprintf("hot-%d", i)); ok {
			left++
		}
	}
	check(t, left >= 48, "%d of 50 are left", left)
}

func TestMemory_ValuesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		m := newMemory(t, MemoryOptions{})
		check(t, m.Set(ctx, "short", []byte("x"), time.Minute) == nil && m.Set(ctx, "ever", []byte("x"), 0) == nil, "set")
		time.Sleep(time.Minute - 1)
		_, ok, _ := m.Get(ctx, "short")
		check(t, ok, "gone too soon")
		time.Sleep(1)
		_, ok, _ = m.Get(ctx, "short")
		check(t, !ok, "not gone")
		_, ok, _ = m.Get(ctx, "ever")
		check(t, ok, "what has no time to live is gone")
		m.check(t)
	})
}

func TestMemory_ValueLargerThanTheStoreIsRejected(t *testing.T) {
	ctx := context.Background()
	m := newMemory(t, MemoryOptions{BytesMax: 10_000})
	check(t, m.Set(ctx, "k", []byte("old"), 0) == nil, "set")
	err := m.Set(ctx, "k", make([]byte, 10_000), 0)
	check(t, errors.Is(err, ErrTooLarge), "set: %v", err)
	_, ok, _ := m.Get(ctx, "k")
	check(t, !ok, "the old value is still there")
	for _, bad := range []MemoryOptions{{BytesMax: -1}, {ItemsMax: -1}} {
		_, err := NewMemory(bad, nil)
		check(t, err != nil, "%+v is accepted", bad)
	}
}

func TestMemory_Metrics(t *testing.T) {
	set := instruments.NewSet()
	m, err := NewMemory(MemoryOptions{BytesMax: 1000, Name: "labels"}, set)
	check(t, err == nil, "new: %v", err)
	for i := range 10 {
		_ = m.Set(context.Background(), fmt.Sprint(i), make([]byte, 100), 0)
	}
	var page strings.Builder
	set.WritePrometheus(&page)
	for _, line := range []string{
		`ferula_frontend_cache_memory_bytes{cache="labels"} 879`, `ferula_frontend_cache_memory_evicted_total{cache="labels"} 7`,
		`ferula_frontend_cache_memory_items{cache="labels"} 3`, `ferula_frontend_cache_memory_max_bytes{cache="labels"} 1000`,
	} {
		check(t, strings.Contains(page.String(), line+"\n"), "no %s in\n%s", line, page.String())
	}
	check(t, m.Close() == nil && m.check(t) == 0, "something is left")
}

func TestMemory_GetDoesNotAllocate(t *testing.T) {
	ctx := context.Background()
	m := newMemory(t, MemoryOptions{})
	check(t, m.Set(ctx, "some key", make([]byte, 100_000), time.Hour) == nil, "set")
	n := testing.AllocsPerRun(100, func() {
		if _, ok, _ := m.Get(ctx, "some key"); !ok {
			t.Fatal("gone")
		}
		if _, ok, _ := m.Get(ctx, "no such key"); ok {
			t.Fatal("found")
		}
	})
	check(t, n == 0, "%v allocations", n)
}
