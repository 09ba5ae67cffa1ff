package frontend

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/internal/frontend/cache"
)

// newLargeEnv is a downstream whose responses have so many series of so many points. A value depends on the time.
func newLargeEnv(t *testing.T, series int) *testEnv {
	return newTestEnvWith(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b strings.Builder
		b.WriteString(`{"status":"success","data":{"resultType":"matrix","result":[`)
		start, _ := strconv.ParseFloat(r.Form.Get("start"), 64)
		end, _ := strconv.ParseFloat(r.Form.Get("end"), 64)
		step, _ := strconv.ParseFloat(r.Form.Get("step"), 64)
		for i := range series {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"metric":{"__name__":"m","i":"%06d"},"values":[`, i)
			for at := start; at <= end; at += step {
				if at > start {
					b.WriteByte(',')
				}
				fmt.Fprintf(&b, `[%g,"%g"]`, at, float64(i)+at)
			}
			b.WriteString(`]}`)
		}
		b.WriteString(`]}}`)
		io.WriteString(w, b.String())
	}))
}

// compressedEnv is a frontend with a cache in front of newLargeEnv, and a path whose response has two parts.
type compressedEnv struct {
	*testEnv
	cache   *testCache
	address string
}

func newCompressedEnv(t *testing.T, series int, change func(*Options)) compressedEnv {
	w, c := newLargeEnv(t, series), newTestCache()
	front := w.front(func(o *Options) {
		o.Cache = c.Cache
		o.Now = func() time.Time { return time.Unix(50_000, 0) }
		if change != nil {
			change(o)
		}
	})
	return compressedEnv{w, c, front.URL + rangePath("m", 3000, 4200, 60)}
}

// fetch returns the decompressed response to a client that accepts an encoding.
func (e compressedEnv) fetch(t *testing.T, encoding string) (body string, h http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, e.address, nil)
	check(t, err == nil, "%v", err)
	req.Header.Set("Accept-Encoding", encoding)
	resp, err := http.DefaultTransport.(*http.Transport).RoundTrip(req)
	check(t, err == nil, "%v", err)
	defer resp.Body.Close()
	check(t, resp.StatusCode == http.StatusOK, "status %d", resp.StatusCode)
	var plain io.Reader = resp.Body
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		plain, err = gzip.NewReader(resp.Body)
		check(t, err == nil, "%v", err)
	case "zstd":
		z, err := zstd.NewReader(resp.Body)
		check(t, err == nil, "%v", err)
		defer z.Close()
		plain = z
	}
	text, err := io.ReadAll(plain)
	check(t, err == nil, "%v", err)
	return string(text), resp.Header
}

const manySeries = 4000 // 1.5 MB

func TestRespondFromCache_RepeatedHitsAreCopiedCompressed(t *testing.T) {
	for _, encoding := range []string{"gzip", "zstd"} {
		e := newCompressedEnv(t, manySeries, nil)
		want, _ := e.fetch(t, "identity")
		check(t, len(want) > sharedResponseMaxBytes, "%d bytes", len(want))
		for i, kept := range []int{0, 1, 1, 1} {
			requests := e.requests.Load()
			got, h := e.fetch(t, encoding)
			check(t, got == want, "%s, hit %d: %d bytes, want %d", encoding, i+1, len(got), len(want))
			check(t, h.Get("X-Ferula-Cache") == "hit" && h.Get("Content-Encoding") == encoding && h.Get("Content-Type") == "application/json" &&
				h.Get("Vary") == "Accept-Encoding" && e.requests.Load() == requests, "%s, hit %d: %v", encoding, i+1, h)
			extents := e.cache.compressed()
			check(t, len(extents) == kept, "%s, after hit %d: %d compressed responses, want %d", encoding, i+1, len(extents), kept)
			copied := i >= 2
			check(t, (h.Get("Content-Length") != "") == copied, "%s, hit %d: length %q", encoding, i+1, h.Get("Content-Length"))
			if copied {
				check(t, h.Get("Content-Length") == strconv.Itoa(e.cache.length(t, extents[0])), "%s: length %s", encoding, h.Get("Content-Length"))
			}
		}
		got, _ := e.fetch(t, "identity")
		check(t, got == want, "identity after %s: %d bytes", encoding, len(got))
		other := map[string]string{"gzip": "zstd", "zstd": "gzip"}[encoding]
		got, h := e.fetch(t, other)
		check(t, got == want && h.Get("Content-Encoding") == other, "%s after %s: %d bytes, %v", other, encoding, len(got), h)
	}
}

func TestRespondFromCache_OtherPartsMakeAnotherResponse(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	for range 4 {
		e.fetch(t, "gzip")
	}
	check(t, len(e.cache.compressed()) == 1, "%d compressed responses", len(e.cache.compressed()))
	e.cache.remove(false)
	e.mu.Lock()
	e.break_ = func(w http.ResponseWriter, _ *http.Request) bool {
		io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
		return true
	}
	e.mu.Unlock()
	for i, state := range []string{"miss", "hit", "hit", "hit"} {
		got, h := e.fetch(t, "gzip")
		check(t, h.Get("X-Ferula-Cache") == state && strings.Contains(got, `"result":[]`), "request %d: %s, %d bytes", i+1, h.Get("X-Ferula-Cache"), len(got))
	}
}

func TestRespondFromCache_LostCompressedResponseIsMadeAgain(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	want, _ := e.fetch(t, "gzip")
	for range 3 {
		e.fetch(t, "gzip")
	}
	e.cache.remove(true)
	for i := range 2 {
		got, h := e.fetch(t, "gzip")
		check(t, got == want && h.Get("X-Ferula-Cache") == "hit" && len(e.cache.compressed()) == 1, "request %d: %d bytes, %v", i+1, len(got), h)
	}
}

// A cache that is too small loses a part for each copy that it gets.
func TestRespondFromCache_ResponseThatTheCacheLosesIsNotWrittenForEver(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	want, _ := e.fetch(t, "gzip")
	written := 0
	for i := range 10 {
		got, h := e.fetch(t, "gzip")
		check(t, got == want && h.Get("X-Ferula-Cache") == "hit", "hit %d: %d bytes, %v", i+1, len(got), h)
		written += len(e.cache.compressed())
		e.cache.remove(true)
	}
	check(t, written == copiesMax, "%d copies were written, want %d", written, copiesMax)
}

// Frontends that share a cache write the same entry, and gzip's output depends on how its input was cut into writes.
func TestRespondFromCache_CompressedResponseOfAnotherProcessMayHaveAnotherLength(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	want, _ := e.fetch(t, "gzip")
	for range 3 {
		e.fetch(t, "gzip")
	}
	for _, level := range []int{gzip.BestSpeed, gzip.NoCompression} {
		key := e.cache.compressed()[0]
		var other bytes.Buffer
		gz, err := gzip.NewWriterLevel(&other, level)
		check(t, err == nil, "%v", err)
		_, err = io.WriteString(gz, want)
		check(t, err == nil && gz.Close() == nil && other.Len() != e.cache.length(t, key), "%v: %d bytes", err, other.Len())
		w := e.cache.Writer(key, 3000_000, 4200_000, 0)
		_, _ = w.Write(other.Bytes())
		w.Commit()
		got, h := e.fetch(t, "gzip")
		check(t, got == want && h.Get("Content-Length") == strconv.Itoa(other.Len()), "level %d: %d bytes, want %d: %v", level, len(got), len(want), h)
	}
}

// deadlineRecorder records the deadlines of writes.
type deadlineRecorder struct {
	*httptest.ResponseRecorder
	set []time.Time
}

func (r *deadlineRecorder) SetWriteDeadline(t time.Time) error {
	r.set = append(r.set, t)
	return nil
}

// A client that reads slowly, but never stalls, must not hold the slot of a hit for longer than the limit.
func TestLimits_TimeOfAResponseIsTheDeadlineOfItsWrites(t *testing.T) {
	w, c := newLargeEnv(t, manySeries), newTestCache()
	const most = 20 * time.Second // shorter than the timeout of a stalled write
	front := w.front(func(o *Options) {
		o.Cache, o.Limits.TimeMax = c.Cache, most
		o.Now = func() time.Time { return time.Unix(50_000, 0) }
	})
	for i, encoding := range []string{"identity", "identity", "gzip", "gzip", "gzip"} { // miss, hit, hits that compress, copy
		req := httptest.NewRequest(http.MethodGet, rangePath("m", 3000, 4200, 60), nil)
		req.Header.Set("Accept-Encoding", encoding)
		got := &deadlineRecorder{ResponseRecorder: httptest.NewRecorder()}
		front.Config.Handler.ServeHTTP(got, req)
		latest := time.Now().Add(most)
		check(t, got.Code == http.StatusOK && len(got.set) > 0, "request %d: status %d, %d deadlines", i, got.Code, len(got.set))
		for _, set := range got.set {
			check(t, !set.IsZero() && set.Equal(got.set[0]) && set.Before(latest), "request %d: a write has the deadline %s, the response %s", i, set, latest)
		}
	}
	check(t, len(c.compressed()) == 1, "%d compressed responses", len(c.compressed()))
}

// A writer that is aborted would compress the response again, and take space from others.
func TestRespondFromCache_ShortResponsesGetNoWriter(t *testing.T) {
	e := newCompressedEnv(t, 10, nil)
	for range 4 {
		e.fetch(t, "gzip")
	}
	_, writes := e.cache.reset()
	check(t, writes == 2, "%d writes of a response of two parts", writes)
}

func TestRespondFromCache_BrokenCacheIsAMiss(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	want, _ := e.fetch(t, "gzip")
	for range 3 {
		e.fetch(t, "gzip")
	}
	e.cache.lose("")
	got, h := e.fetch(t, "gzip")
	check(t, got == want && h.Get("X-Ferula-Cache") == "miss", "%d bytes, %v", len(got), h)
}

func TestRespondFromCache_OnlyLongCompressedResponsesAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		series   int
		encoding string
		change   func(*Options)
	}{
		"without compression": {manySeries, "identity", nil},
		"compression is off":  {manySeries, "gzip", func(o *Options) { o.NoCompression = true }},
		"short responses":     {10, "gzip", nil},
	} {
		e := newCompressedEnv(t, c.series, c.change)
		want, _ := e.fetch(t, c.encoding)
		for range 4 {
			got, h := e.fetch(t, c.encoding)
			check(t, got == want && h.Get("X-Ferula-Cache") == "hit", "%s: %d bytes, %v", name, len(got), h)
		}
		check(t, len(e.cache.compressed()) == 0, "%s: %d compressed responses", name, len(e.cache.compressed()))
	}
}

func TestRespondFromCache_ConcurrentClientsOfDifferentEncodings(t *testing.T) {
	e := newCompressedEnv(t, manySeries, nil)
	want, _ := e.fetch(t, "identity")
	for range 3 {
		e.fetch(t, "gzip")
	}
	var clients sync.WaitGroup
	for i := range 12 {
		encoding := []string{"gzip", "identity", "zstd"}[i%3]
		clients.Go(func() {
			if got, h := e.fetch(t, encoding); got != want {
				t.Errorf("%s: %d bytes, want %d: %v", encoding, len(got), len(want), h)
			}
		})
	}
	clients.Wait()
}

func TestResponseID_DependsOnEveryPartAndTheEncoding(t *testing.T) {
	c := newTestCache()
	defer c.Close()
	extent := func(id int) *cache.Extent {
		key := strconv.Itoa(id)
		if e := c.Lookup(t.Context(), key, 0, 1); e != nil {
			return e
		}
		w := c.Writer(key, 0, 1, 1)
		_, _ = w.Write([]byte("x"))
		w.Commit()
		return c.Lookup(t.Context(), key, 0, 1)
	}
	planned := func(change func(p *plan)) plan {
		p := plan{query: query{path: "/api/v1/query_range", tenant: "a"}, parts: []planPart{{cached: extent(1)}, {cached: extent(2)}}}
		if change != nil {
			change(&p)
		}
		return p
	}
	idOf := func(encoding string, p plan) (responseID, bool) {
		x := &requestContext{f: &Frontend{}, r: &http.Request{Header: http.Header{"Accept-Encoding": {encoding}}}}
		return x.responseID(p)
	}
	first, ok := idOf("gzip", planned(nil))
	again, _ := idOf("gzip", planned(nil))
	check(t, ok && bytes.Equal(first[:], again[:]), "the same plan: %x, %x", first, again)
	for name, change := range map[string]func(p *plan){
		"another extent": func(p *plan) { p.parts[1].cached = extent(3) },
		"another order":  func(p *plan) { p.parts[0], p.parts[1] = p.parts[1], p.parts[0] },
		"another start":  func(p *plan) { p.parts[0].StartMS++ },
		"another end":    func(p *plan) { p.parts[1].EndMS++ },
		"another step":   func(p *plan) { p.parts[1].StepMS++ },
		"a part less":    func(p *plan) { p.parts = p.parts[:1] },
		"another tenant": func(p *plan) { p.query.tenant = "b" },
	} {
		other, ok := idOf("gzip", planned(change))
		check(t, ok && other != first, "%s: the same ID", name)
	}
	other, ok := idOf("zstd", planned(nil))
	check(t, ok && other != first, "another encoding: the same ID")
	_, ok = idOf("identity", planned(nil))
	check(t, !ok, "an ID without compression")
	_, ok = idOf("gzip", planned(func(p *plan) { p.parts[1].cached = nil }))
	check(t, !ok, "an ID of a plan with a part to fetch")
}
