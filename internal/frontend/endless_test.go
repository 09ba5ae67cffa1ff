package frontend

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/httpbody"
)

// endless is a downstream whose responses begin and never end. The response of a range query has ever more points, other
// responses have ever more bytes.
func endless(t *testing.T, headers bool) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = r.ParseForm()
		if headers {
			if strings.HasSuffix(r.URL.Path, "query_range") {
				_, _ = io.WriteString(w, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"a":"1"},"values":[[`+r.Form.Get("start")+`,"0"]`)
			} else {
				_, _ = io.WriteString(w, strings.Repeat(" ", 64<<10))
			}
			_ = http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server
}

func TestLimits_AnEndlessResponseIsCutAndItsSlotFreed(t *testing.T) {
	w := newTestEnv(t)
	for name, path := range map[string]string{"range": rangePath("up", 0, 4*3600-1, 300), "forwarded": "/api/v1/notifications/live", "instant": "/api/v1/query?query=up", "labels": "/api/v1/labels?start=0&end=12000"} {
		for _, headers := range []bool{true, false} {
			server := endless(t, headers)
			admission, err := limit.New(limit.Options{ConcurrencyMax: 1, TenantQueueMax: -1, TenantConcurrencyMax: 1}, nil)
			check(t, err == nil, "%v", err)
			front := w.front(func(o *Options) {
				o.Downstream, o.Admission, o.Slots = clientOf(t, server.URL, downstream.Transport{}), admission, slotsOf(t, 14)
				o.Labels.Interval = time.Hour
				o.Limits = limit.Query{TimeMax: 200 * time.Millisecond}
			})
			for range 3 { // one slot of admission
				status, body, _ := get(t, front.URL+path)
				complete := status == 200 && !strings.Contains(body, "EOF")
				check(t, !complete && status != http.StatusTooManyRequests, "%s, headers %v: %d %.100s", name, headers, status, body)
				check(t, headers || status == http.StatusGatewayTimeout, "%s without headers: %d %s", name, status, body)
			}
		}
	}
}

func TestLimits_RangeHoldsForQueriesThatAreNotSplit(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Limits = limit.Query{LengthMax: time.Hour, PointsMax: 1000} })
	for _, path := range []string{
		rangePath("up", 0, 3700, 0.0123), rangePath("up", 0, 3600*24*365, 1), rangePath("up", 0, 3000, 0.0005), rangePath("up @ end()", 0, 3000, 1),
		// 14 parts of less than 1000 points each
		rangePath("up", 0, 3599, 0.5), rangePath("up", 0, 11_001, 1),
	} {
		before := w.requests.Load()
		status, body, _ := get(t, front.URL+path)
		check(t, status == http.StatusUnprocessableEntity && w.requests.Load() == before, "%s: %d %s", path, status, body)
	}
}

func TestFrontend_TheLimitOfStepsIsThatOfTheWholeQuery(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(nil)
	for _, path := range []string{rangePath("requests_total", 0, 11_000, 1), rangePath("requests_total", 0, 11_001, 1), rangePath("requests_total", 0, 40_000, 1)} {
		wantStatus, want, _ := get(t, w.server.URL+path)
		status, got, _ := get(t, front.URL+path)
		check(t, status == wantStatus && got == want, "%s: %d %.200s, want %d %.200s", path, status, got, wantStatus, want)
	}
}

func TestFrontend_BodiesShareOneBudget(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) {
		o.Bodies = httpbody.NewReader(httpbody.Options{BytesMax: 3 << 20, Wait: 50 * time.Millisecond})
	})
	for _, kind := range []string{"application/x-www-form-urlencoded", "application/json"} {
		// Senders of 1 MiB that stop before the end.
		var held []net.Conn
		for range 3 {
			c, err := net.Dial("tcp", strings.TrimPrefix(front.URL, "http://"))
			check(t, err == nil, "%v", err)
			_, err = fmt.Fprintf(c, "POST /api/v1/query HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", kind, 1<<20, bytes.Repeat([]byte("a"), 1<<20-1))
			check(t, err == nil, "%v", err)
			held = append(held, c)
		}
		post := func() (int, string) {
			resp, err := http.Post(front.URL+"/api/v1/query", kind, strings.NewReader("query=requests_total&time=3000&a="+strings.Repeat("a", 1<<20)))
			check(t, err == nil, "%v", err)
			defer resp.Body.Close()
			b, _ := io.ReadAll(resp.Body)
			return resp.StatusCode, string(b)
		}
		status, body := 0, ""
		for deadline := time.Now().Add(20 * time.Second); status != http.StatusServiceUnavailable && time.Now().Before(deadline); {
			status, body = post()
		}
		check(t, status == http.StatusServiceUnavailable && strings.Contains(body, "request bodies fill"), "%s: %d %.200s", kind, status, body)
		small, _, _ := get(t, front.URL+"/api/v1/query?query=requests_total&time=3000")
		check(t, small == 200, "a GET: %d", small)
		for _, c := range held {
			c.Close()
		}
		for deadline := time.Now().Add(20 * time.Second); status == http.StatusServiceUnavailable && time.Now().Before(deadline); {
			status, body = post()
		}
		check(t, status != http.StatusServiceUnavailable, "%s: %d %.200s after the senders left", kind, status, body)
	}
}
