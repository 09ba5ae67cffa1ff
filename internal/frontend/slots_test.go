package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/cache"
	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
)

// getWithin is get with a timeout.
func getWithin(t *testing.T, address string) (status int, body string, header http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Error(err)
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return resp.StatusCode, string(b), resp.Header
}

func clientOf(t *testing.T, url string, transport downstream.Transport) *downstream.Client {
	t.Helper()
	client, err := downstream.New(downstream.Options{URL: url, BackoffMin: time.Millisecond, BackoffMax: 2 * time.Millisecond, Transport: transport}, nil, nil)
	check(t, err == nil, "%v", err)
	t.Cleanup(client.Close)
	return client
}

func slotsOf(t *testing.T, n int) *limit.Limiter {
	t.Helper()
	l, err := limit.New(limit.Options{ConcurrencyMax: n, TenantConcurrencyMax: n, TenantQueueMax: 1 << 20, Downstream: true}, nil)
	check(t, err == nil, "%v", err)
	return l
}

func TestSlots_MorePartsThanConnectionsFinish(t *testing.T) {
	two := 2
	for name, slots := range map[string]bool{"short responses end while they are read ahead": false, "slots widen the parts": true} {
		w := newTestEnv(t)
		front := w.front(func(o *Options) {
			o.Downstream = clientOf(t, w.server.URL, downstream.Transport{MaxConnsPerHost: &two})
			if slots {
				o.Slots = slotsOf(t, two)
			}
		})
		path := rangePath("requests_total", 0, 4*3600-1, 300)
		_, want, _ := get(t, w.server.URL+path)
		before := w.requests.Load()
		status, got, _ := getWithin(t, front.URL+path)
		check(t, status == 200 && got == want, "%s: %d %.300s", name, status, got)
		parts := w.requests.Load() - before
		check(t, slots && parts == 2 || !slots && parts == 4, "%s: %d parts", name, parts)
	}
}

// largeMatrix writes a response with one series of a few MiB, one point per second.
func largeMatrix(w io.Writer, start, end int64) {
	_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[`)
	filler := strings.Repeat("1", 1000)
	for at := start; at <= end; at++ {
		if at > start {
			_, _ = io.WriteString(w, ",")
		}
		if _, err := fmt.Fprintf(w, `[%d,"%s"]`, at, filler); err != nil {
			return
		}
	}
	_, _ = io.WriteString(w, `]}]}}`)
}

// limitedDownstream serves at maximum slots requests at once, each until its response was
// read. maximum is the highest number of concurrent requests so far.
func limitedDownstream(t *testing.T, slots int) (server *httptest.Server, maximum *atomic.Int64) {
	t.Helper()
	slot := make(chan struct{}, slots)
	var now atomic.Int64
	maximum = new(atomic.Int64)
	server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slot <- struct{}{}:
		case <-r.Context().Done():
			return
		}
		defer func() { <-slot }()
		n := now.Add(1)
		defer now.Add(-1)
		for old := maximum.Load(); n > old && !maximum.CompareAndSwap(old, n); old = maximum.Load() {
		}
		start, _ := strconv.ParseInt(r.FormValue("start"), 10, 64)
		end, _ := strconv.ParseInt(r.FormValue("end"), 10, 64)
		largeMatrix(w, start, end)
	}))
	server.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
			_ = tcp.SetWriteBuffer(8 << 10) // the network buffers little of a response
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server, maximum
}

func TestSlots_ManyQueriesFinishAtALimitedDownstream(t *testing.T) {
	const slots, hour = 3, 3600
	server, maximum := limitedDownstream(t, slots)
	f, err := New(Options{
		Downstream: clientOf(t, server.URL, downstream.Transport{}), Slots: slotsOf(t, slots),
		Split: SplitOptions{Interval: time.Hour}, Logger: slog.New(slog.DiscardHandler),
	})
	check(t, err == nil, "%v", err)
	front := httptest.NewServer(f)
	defer front.Close()
	var want strings.Builder
	largeMatrix(&want, 0, 3*hour-1)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			// Different queries, so that none shares the response of another one.
			status, got, _ := getWithin(t, front.URL+rangePath(fmt.Sprint("x", i), 0, 3*hour-1, 1))
			if status != 200 || got != want.String() {
				t.Errorf("query %d: status %d, %d bytes", i, status, len(got))
			}
		})
	}
	wg.Wait()
	check(t, maximum.Load() == slots, "%d at once", maximum.Load())
	check(t, f.readAheadBudget.TryAcquire(readAheadTotalBytes), "the read-ahead budget is not released")
}

func TestOpenAll_FailedPartCancelsTheOthers(t *testing.T) {
	for name, fail := range map[string]struct {
		how    func(http.ResponseWriter)
		status int
		text   string
	}{
		"a response that is not a success": {func(w http.ResponseWriter) {
			w.WriteHeader(422)
			_, _ = io.WriteString(w, `{"status":"error","errorType":"execution","error":"too many samples"}`)
		}, 422, "too many samples"},
		"no response": {func(http.ResponseWriter) { panic(http.ErrAbortHandler) }, 502, "unavailable"},
	} {
		w := newTestEnv(t)
		var ended, arrived sync.WaitGroup
		ended.Add(2)
		arrived.Add(2)
		w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
			if r.Form.Get("start") == "3600" {
				arrived.Wait()
				fail.how(rw)
				return true
			}
			arrived.Done()
			<-r.Context().Done() // the slowest part never comes
			ended.Done()
			return true
		}
		front := w.front(func(o *Options) { o.RangeRetries, o.Slots = -1, slotsOf(t, 3) })
		status, got, _ := getWithin(t, front.URL+rangePath("requests_total", 0, 3*3600-1, 30))
		check(t, status == fail.status && strings.Contains(got, fail.text), "%s: %d %.300s", name, status, got)
		ended.Wait()
	}
}

func TestSlots_AreReleasedAfterAnyFailure(t *testing.T) {
	w := newTestEnv(t)
	slots := slotsOf(t, 3)
	cached := newMemoryCache()
	front := w.front(func(o *Options) {
		o.Slots, o.Cache, o.RangeRetries, o.InstantRetries, o.Labels.Interval = slots, cached, -1, -1, time.Hour
	})
	paths := []string{
		rangePath("requests_total", 0, 3*3600-1, 30), rangePath("sum(", 0, 3*3600-1, 30), rangePath("requests_total", 0, 60, 30) + "&limit=1",
		"/api/v1/query?query=1", "/api/v1/labels?start=0&end=10000", "/api/v1/series?start=0&end=10000", "/nothing",
	}
	breaks := []func(http.ResponseWriter, *http.Request) bool{
		nil,
		func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) },
		func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(500); return true },
		func(w http.ResponseWriter, _ *http.Request) bool { _, _ = io.WriteString(w, `{"status":`); return true },
	}
	for _, b := range breaks {
		w.mu.Lock()
		w.break_ = b
		w.mu.Unlock()
		for _, path := range paths {
			_, _, _ = get(t, front.URL+path)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	free, err := slots.AcquireN(ctx, "anonymous", 3)
	check(t, err == nil, "slots are not released: %v", err)
	free(3)
}

// losingStore is a cache store that loses values, fails or hangs at one operation, as a
// remote store can.
type losingStore struct {
	mu     sync.Mutex
	values map[string][]byte
	n, at  int // operations so far, and the one that fails
	fault  string
	hit    bool
}

func (s *losingStore) Get(ctx context.Context, key string) ([]byte, bool, error) {
	s.mu.Lock()
	s.n++
	fault := ""
	if s.fault != "" && s.n == s.at {
		fault, s.hit = s.fault, true
	}
	switch fault {
	case "loses a value":
		delete(s.values, key)
	case "loses everything":
		clear(s.values)
	}
	v, ok := s.values[key]
	if ok && fault == "damages a value" {
		v = append([]byte(nil), v...)
		v[len(v)-1] ^= 1
		s.values[key] = v
	}
	s.mu.Unlock()
	switch fault {
	case "fails":
		return nil, false, errors.New("connection reset")
	case "hangs":
		<-ctx.Done()
		return nil, false, ctx.Err()
	}
	return v, ok, nil
}

func (s *losingStore) Set(_ context.Context, key string, value []byte, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.values[key] = append([]byte(nil), value...)
	return nil
}

func (s *losingStore) Local() bool { return false }

func (s *losingStore) Close() error { return nil }

func (s *losingStore) arm(fault string, at int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault, s.n, s.at, s.hit = fault, 0, at, false
}

func TestFrontend_CacheFaultsDoNotChangeTheResponse(t *testing.T) {
	w := newTestEnv(t)
	path := rangePath("requests_total", 0, 3*3600-1, 3)
	_, want, _ := get(t, w.server.URL+path)
	for _, opts := range []cache.Options{
		{},
		{HeldBytesMax: 1}, // no space
	} {
		for _, fault := range []string{"loses a value", "loses everything", "damages a value", "fails", "hangs"} {
			if fault == "hangs" && testing.Short() {
				continue
			}
			store := &losingStore{values: map[string][]byte{}}
			opts.PartBytes, opts.Merge = 4096, joinResponses
			opts.LookupTimeout, opts.WholeTimeout = 30*time.Second, 30*time.Second
			if fault == "hangs" {
				opts.LookupTimeout, opts.WholeTimeout = 50*time.Millisecond, 50*time.Millisecond
			}
			opts.BreakerFailures = 1 << 30
			c, err := cache.New(store, opts, slog.New(slog.DiscardHandler), nil)
			check(t, err == nil, "%v", err)
			front := w.front(func(o *Options) { o.Cache = c })
			hits := 0
			for at := 1; ; at++ {
				// Both the failing query and the next one, which may find the remains.
				store.arm("", 0)
				_, got, _ := get(t, front.URL+path)
				check(t, got == want, "%s at %d, before: %.300s", fault, at, got)
				check(t, c.Flush(t.Context()) == nil, "flush")
				store.arm(fault, at)
				_, got, h := get(t, front.URL+path)
				check(t, got == want, "%s at %d, cache %s: %.300s", fault, at, h.Get("X-Ferula-Cache"), got)
				check(t, c.Flush(t.Context()) == nil, "flush")
				if !store.hit {
					check(t, h.Get("X-Ferula-Cache") == "hit" || opts.HeldBytesMax == 1 || fault == "hangs", "%s: %s without a fault", fault, h.Get("X-Ferula-Cache"))
					check(t, at > 3 || opts.HeldBytesMax == 1, "%s: only %d operations", fault, at)
					break
				}
				if h.Get("X-Ferula-Cache") != "hit" {
					hits++
				}
			}
			check(t, hits > 3 || fault == "hangs" || opts.HeldBytesMax == 1, "%s: only %d faults had an effect", fault, hits)
			check(t, c.Close() == nil, "close")
		}
	}
}
