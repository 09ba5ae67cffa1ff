package frontend

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
)

// blockingDownstream is a frontend whose downstream responds after release is closed, so
// that a test knows which clients wait for one response.
type blockingDownstream struct {
	*httptest.Server
	f       *Frontend
	calls   atomic.Int64
	arrived chan struct{} // a value for each call
	release chan struct{}
	ended   chan struct{} // a value for each canceled call
}

func newBlockingDownstream(t *testing.T, respond func(w http.ResponseWriter, r *http.Request)) *blockingDownstream {
	t.Helper()
	g := &blockingDownstream{arrived: make(chan struct{}, 100), release: make(chan struct{}), ended: make(chan struct{}, 100)}
	behind := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.calls.Add(1)
		g.arrived <- struct{}{}
		select {
		case <-g.release:
			respond(w, r)
		case <-r.Context().Done():
			g.ended <- struct{}{}
		}
	}))
	t.Cleanup(behind.Close)
	f, err := New(Options{
		Downstream: clientOf(t, behind.URL, downstream.Transport{}), Split: SplitOptions{Interval: time.Hour}, RangeRetries: -1, InstantRetries: -1,
		Logger: slog.New(slog.DiscardHandler),
	})
	check(t, err == nil, "%v", err)
	g.f = f
	g.Server = httptest.NewUnstartedServer(f)
	g.Config.ConnState = func(c net.Conn, state http.ConnState) {
		if tcp, ok := c.(*net.TCPConn); ok && state == http.StateNew {
			_ = tcp.SetWriteBuffer(8 << 10)
		}
	}
	g.Start()
	t.Cleanup(g.Close)
	return g
}

// wait waits until the calls in progress have that many waiters.
func (g *blockingDownstream) wait(t *testing.T, clients int) {
	t.Helper()
	waitForClients(t, g.f, clients)
}

func waitForClients(t *testing.T, f *Frontend, clients int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		f.calls.mu.Lock()
		n := 0
		for _, c := range f.calls.calls {
			n += c.waiters
		}
		f.calls.mu.Unlock()
		if n == clients {
			return
		}
		check(t, time.Now().Before(deadline), "%d clients wait, not %d", n, clients)
	}
}

const blockingPath = "/api/v1/query_range?query=x&start=0&end=1000&step=10"

// goGet sends a request in the background. The channel gets "status body".
func (g *blockingDownstream) goGet(ctx context.Context) <-chan string {
	got := make(chan string, 1)
	go func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL+blockingPath, nil)
		if err != nil {
			got <- err.Error()
			return
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			got <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		got <- fmt.Sprint(resp.StatusCode, " ", string(b), err)
	}()
	return got
}

func (g *blockingDownstream) followers(t *testing.T, n int) (all []<-chan string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	for range n {
		all = append(all, g.goGet(ctx))
	}
	return all
}

func respondEmpty(w http.ResponseWriter, _ *http.Request) {
	_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[]}}`)
}

func TestSingleFlight_DisconnectedClientLeavesTheCallToOthers(t *testing.T) {
	g := newBlockingDownstream(t, respondEmpty)
	ctx, leave := context.WithCancel(t.Context())
	first := g.goGet(ctx)
	<-g.arrived
	others := g.followers(t, 6)
	g.wait(t, 7)
	leave()
	<-first
	g.wait(t, 6)
	close(g.release)
	for _, other := range others {
		got := <-other
		check(t, strings.HasPrefix(got, "200 ") && strings.Contains(got, "success"), "%s", got)
	}
	check(t, g.calls.Load() == 1, "%d calls of the downstream", g.calls.Load())
}

func TestSingleFlight_CallIsCanceledWithItsLastClient(t *testing.T) {
	g := newBlockingDownstream(t, respondEmpty)
	ctx, leave := context.WithCancel(t.Context())
	var all []<-chan string
	for range 3 {
		all = append(all, g.goGet(ctx))
	}
	<-g.arrived
	g.wait(t, 3)
	leave()
	for _, c := range all {
		<-c
	}
	<-g.ended
	g.wait(t, 0)
	close(g.release)
	got := <-g.followers(t, 1)[0] // a later client does not get the canceled call
	check(t, strings.HasPrefix(got, "200 "), "%s", got)
}

func TestSingleFlight_FailureIsReturnedToAllWaiters(t *testing.T) {
	g := newBlockingDownstream(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	all := g.followers(t, 7)
	<-g.arrived
	g.wait(t, 7)
	close(g.release)
	for _, c := range all {
		got := <-c
		check(t, strings.HasPrefix(got, "502 ") && strings.Contains(got, "unavailable"), "%s", got)
	}
	check(t, g.calls.Load() == 1, "%d calls of the downstream", g.calls.Load())
}

func TestSingleFlight_SlowClientDoesNotDelayOthers(t *testing.T) {
	text := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[` + strings.Repeat(`[1,"1"],`, 120_000) + `[2,"2"]]}]}}`
	check(t, len(text) > 900<<10 && len(text) < sharedResponseMaxBytes, "%d bytes", len(text))
	g := newBlockingDownstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) })
	conn, err := net.Dial("tcp", g.Listener.Addr().String())
	check(t, err == nil, "%v", err)
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(4096)
	_, err = io.WriteString(conn, "GET "+blockingPath+" HTTP/1.1\r\nHost: x\r\nAccept-Encoding: identity\r\n\r\n")
	check(t, err == nil, "%v", err)
	<-g.arrived
	others := g.followers(t, 3)
	g.wait(t, 4)
	close(g.release)
	for _, other := range others {
		got := <-other
		check(t, strings.HasPrefix(got, "200 ") && strings.Contains(got, text), "%.300s", got)
	}
	check(t, g.calls.Load() == 1, "%d calls of the downstream", g.calls.Load())
}

func TestSingleFlight_LongResponseIsStreamedToEachClient(t *testing.T) {
	var text strings.Builder
	largeMatrix(&text, 0, 3000)
	g := newBlockingDownstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text.String()) })
	all := g.followers(t, 3)
	<-g.arrived
	g.wait(t, 3)
	close(g.release)
	for _, c := range all {
		got := <-c
		check(t, strings.HasPrefix(got, "200 ") && strings.Contains(got, text.String()), "%d bytes: %.300s", len(got), got)
	}
	check(t, g.calls.Load() == 3, "%d calls of the downstream", g.calls.Load())
}

// A fault while the response is buffered gets an error response, and the query can still
// be passed through.
func TestSingleFlight_BrokenBufferedResponseIsAnError(t *testing.T) {
	w := newTestEnv(t)
	values := `[%[1]s,"1"],` + strings.Repeat(`[1e9,"1"],`, 40_000)
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		fmt.Fprintf(rw, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[`+values+`!!!`, r.Form.Get("start"))
		return true
	}
	status, got, h := get(t, w.front(nil).URL+rangePath("x", 0, 7199, 30))
	check(t, status == 502 && strings.Contains(got, `"error"`) && h.Get("Content-Type") == "application/json", "%d %.300s", status, got)

	unsorted := `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"2"},"values":[` + strings.Repeat(`[1,"1"],`, 20_000) + `[2,"1"]]},{"metric":{"a":"1"},"values":[[1,"1"]]}]}}`
	w.mu.Lock()
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		_, _ = io.WriteString(rw, strings.ReplaceAll(unsorted, "[1,", "["+r.Form.Get("start")+","))
		return true
	}
	w.mu.Unlock()
	status, got, h = get(t, w.front(nil).URL+rangePath("x", 1, 7201, 30))
	check(t, status == 200 && got == unsorted && len(h.Values("Vary")) == 1, "%d %.300s, %v", status, got, h)
}
