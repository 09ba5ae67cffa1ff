package cache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// check ends the test unless ok.
func check(t testing.TB, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		t.Fatalf(format, args...)
	}
}

var quiet = slog.New(slog.DiscardHandler)

// fakeStore acts as a remote store. Every operation first calls before, which may wait
// and fail.
type fakeStore struct {
	mu     sync.Mutex
	values map[string][]byte
	ops    []string
	before func(ctx context.Context, op, key string) error
	closed bool
}

func newFakeStore() *fakeStore { return &fakeStore{values: map[string][]byte{}} }

func (s *fakeStore) begin(ctx context.Context, op, key string) error {
	s.mu.Lock()
	before := s.before
	s.ops = append(s.ops, op)
	s.mu.Unlock()
	if before == nil {
		return ctx.Err()
	}
	return before(ctx, op, key)
}

func (s *fakeStore) fail(before func(ctx context.Context, op, key string) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *fakeStore) Get(ctx context.Context, key string) ([]byte, bool, error) {
	if err := s.begin(ctx, opGet, key); err != nil {
		return nil, false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[key]
	return v, ok, nil
}

func (s *fakeStore) Set(ctx context.Context, key string, value []byte, _ time.Duration) error {
	if err := s.begin(ctx, opSet, key); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = bytes.Clone(value)
	return nil
}

func (s *fakeStore) Local() bool { return false }

func (s *fakeStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// keys returns the keys of values that are not removed.
func (s *fakeStore) keys() (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, value := range s.values {
		if len(value) > 0 {
			keys = append(keys, key)
		}
	}
	return keys
}

// newCache returns a cache that is closed at the end of the test.
func newCache(t testing.TB, store Store, opts Options) *Cache {
	t.Helper()
	c, err := New(store, opts, quiet, nil)
	check(t, err == nil, "new: %v", err)
	t.Cleanup(func() { check(t, c.Close() == nil, "close") })
	return c
}

func newMemory(t testing.TB, opts MemoryOptions) *Memory {
	t.Helper()
	m, err := NewMemory(opts, nil)
	check(t, err == nil, "new memory: %v", err)
	return m
}

func flush(t testing.TB, c *Cache) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	check(t, c.Flush(ctx) == nil, "flush")
}

// put stores a response and waits for the writes.
func put(t testing.TB, c *Cache, key string, startMS, endMS, stepMS int64, body []byte) {
	t.Helper()
	w := c.Writer(key, startMS, endMS, stepMS)
	for rest := body; len(rest) > 0; {
		n := min(len(rest), 70_000)
		k, err := w.Write(rest[:n])
		check(t, k == n && err == nil, "write: %d of %d, %v", k, n, err)
		rest = rest[n:]
	}
	w.Commit()
	flush(t, c)
}

func readAll(e *Extent) ([]byte, error) {
	r, err := e.Open(context.Background())
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// get returns the range and the bytes of the response that Lookup finds; "": none.
func get(t testing.TB, c *Cache, key string, startMS, endMS int64) string {
	t.Helper()
	e := c.Lookup(context.Background(), key, startMS, endMS)
	if e == nil {
		return ""
	}
	b, err := readAll(e)
	if err != nil {
		check(t, errors.Is(err, ErrGone), "read: %v", err)
		return "gone"
	}
	check(t, int64(len(b)) == e.Length(), "%d bytes instead of %d", len(b), e.Length())
	return fmt.Sprintf("%d-%d:%s", e.StartMS, e.EndMS, b)
}

// found reports whether get finds a response that can be read.
func found(t testing.TB, c *Cache, key string, startMS, endMS int64) bool {
	t.Helper()
	text := get(t, c, key, startMS, endMS)
	return text != "" && text != "gone"
}

// localFake is a fakeStore in this process.
type localFake struct{ *fakeStore }

func (localFake) Local() bool { return true }

func random() *rand.Rand { return rand.New(rand.NewPCG(1, 2)) }

// response is the response of a range query. kind selects the form of the numbers.
func response(kind string, series, points int) []byte {
	r := random()
	b := []byte(`{"status":"success","data":{"resultType":"matrix","result":[`)
	for s := range series {
		if s > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `{"metric":{"__name__":"container_cpu_usage_seconds_total","container":"app-%d","instance":"10.1.%d.%d:9100","job":"kubelet","namespace":"ns-%d","pod":"app-%d-%x"},"values":[`,
			s%50, s/250, s%250, s%40, s%50, r.Uint64())
		c := r.Float64() * 1e6
		for p := range points {
			if p > 0 {
				b = append(b, ',')
			}
			b = append(b, '[')
			b = strconv.AppendInt(b, 1700000000+int64(p)*15, 10)
			b = append(b, `,"`...)
			of := kind
			if kind == "mix" {
				of = []string{"rate", "counter", "one", "percent"}[s%4]
			}
			switch of {
			case "rate":
				b = strconv.AppendFloat(b, r.Float64()*3, 'f', -1, 64)
			case "counter":
				c += float64(r.IntN(1000))
				b = strconv.AppendInt(b, int64(c), 10)
			case "gauge":
				if r.IntN(4) == 0 {
					c += float64(r.IntN(100) * 4096)
				}
				b = strconv.AppendInt(b, int64(c), 10)
			case "one":
				b = append(b, '1')
			case "percent":
				b = strconv.AppendFloat(b, float64(r.IntN(10000))/100, 'f', -1, 64)
			}
			b = append(b, `"]`...)
		}
		b = append(b, "]}"...)
	}
	return append(b, "]}}"...)
}

// noise returns bytes that cannot be compressed.
func noise(n int) []byte {
	b := make([]byte, n)
	r := random()
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}
