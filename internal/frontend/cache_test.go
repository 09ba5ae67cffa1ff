package frontend

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/cache"
)

// testCache is a cache in memory whose store can be inspected and loses values. Its parts are as short as possible.
type testCache struct {
	*cache.Cache
	mu           sync.Mutex
	stored       map[string][]byte
	gets, writes int                     // of first parts
	lost         func(value []byte) bool // of the other parts of this value
	before       func() (after func())   // called before each Get of a first part
}

func newTestCache() *testCache {
	c := &testCache{stored: map[string][]byte{}}
	var err error
	c.Cache, err = cache.New(storeOf{c}, cache.Options{Merge: joinResponses, PartBytes: 4096}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		panic(err)
	}
	return c
}

func newMemoryCache() *cache.Cache { return newTestCache().Cache }

type storeOf struct{ c *testCache }

func isFirst(key string) bool { return strings.Count(key, ":") == 1 }

func (s storeOf) Get(_ context.Context, key string) ([]byte, bool, error) {
	s.c.mu.Lock()
	before := s.c.before
	s.c.mu.Unlock()
	if before != nil && isFirst(key) {
		defer before()()
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	value, ok := s.c.stored[key]
	if isFirst(key) {
		s.c.gets++
	} else if first := s.c.stored[key[:strings.LastIndex(key, ":")]]; s.c.lost != nil && s.c.lost(first) {
		return nil, false, nil
	}
	return value, ok, nil
}

func (s storeOf) Set(_ context.Context, key string, value []byte, _ time.Duration) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.stored[key] = value
	if isFirst(key) && len(value) > 0 {
		s.c.writes++
	}
	return nil
}

func (s storeOf) Local() bool  { return true }
func (s storeOf) Close() error { return nil }

// reset returns how many lookups there were, and how many responses were written, since the last call. A write looks
// up the stored response twice.
func (c *testCache) reset() (lookups, writes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	lookups, writes = c.gets-2*c.writes, c.writes
	c.gets, c.writes = 0, 0
	return lookups, writes
}

const compressedPrefix = "compressed|"

// values returns the number of stored responses, compressed copies excluded.
func (c *testCache) values() int { return len(c.keys()) - len(c.compressed()) }

// keys returns the store's keys of all first parts.
func (c *testCache) keys() (keys []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, value := range c.stored {
		if isFirst(key) && len(value) > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// compressed returns the cache's keys of compressed responses.
func (c *testCache) compressed() (keys []string) {
	for _, key := range c.keys() {
		c.mu.Lock()
		if _, id, ok := bytes.Cut(c.stored[key], []byte(compressedPrefix)); ok {
			keys = append(keys, compressedPrefix+string(id[:64]))
		}
		c.mu.Unlock()
	}
	return keys
}

// remove removes the compressed copies, or all other values.
func (c *testCache) remove(compressed bool) {
	for _, key := range c.keys() {
		c.mu.Lock()
		if bytes.Contains(c.stored[key], []byte(compressedPrefix)) == compressed {
			delete(c.stored, key)
		}
		c.mu.Unlock()
	}
}

// lose makes Open fail for the values that contain text.
func (c *testCache) lose(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = func(value []byte) bool { return bytes.Contains(value, []byte(text)) }
}

// length returns the length of the response under key.
func (c *testCache) length(t *testing.T, key string) int {
	t.Helper()
	e := c.Lookup(t.Context(), key, 0, 1<<50)
	check(t, e != nil, "no value under %s", key)
	defer e.Release()
	return int(e.Length())
}
