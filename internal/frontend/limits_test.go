package frontend

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/limit"
)

func TestLimits_ErrorHasStatusAndNameOfTheLimit(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) {
		o.Limits = limit.Query{LengthMax: time.Hour, PointsMax: 1000, QueryBytesMax: 50, ResponseBytesMax: 1000}
	})
	for name, tt := range map[string]struct {
		path, text string
		header     http.Header
		status     int
	}{
		"range":  {path: rangePath("up", 0, 3700, 30), status: 422, text: "query range"},
		"points": {path: rangePath("up", 0, 3000, 1), status: 422, text: "points"},
		"text":   {path: rangePath(strings.Repeat("a", 51), 0, 300, 30), status: 422, text: "query length"},
		"bytes":  {path: rangePath("requests_total", 0, 3000, 5), status: 422, text: "1000"},
		"tenant": {path: rangePath("up", 0, 300, 30), header: http.Header{"X-Scope-Orgid": {"a/b"}}, status: 400, text: "tenant"},
		"fine":   {path: rangePath("up", 0, 300, 30), header: http.Header{"X-Scope-Orgid": {"a"}}, status: 200, text: "success"},
	} {
		req, err := http.NewRequest(http.MethodGet, front.URL+tt.path, nil)
		check(t, err == nil, "%v", err)
		for k, v := range tt.header {
			req.Header[k] = v
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		check(t, err == nil, "%s: %v", name, err)
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		check(t, resp.StatusCode == tt.status && strings.Contains(string(body), tt.text), "%s: %d %s", name, resp.StatusCode, body)
	}
}

func TestAdmission_FullQueueOfATenantDoesNotAffectOthers(t *testing.T) {
	w := newTestEnv(t)
	admission, err := limit.New(limit.Options{ConcurrencyMax: 2, TenantConcurrencyMax: 1, TenantQueueMax: -1}, nil)
	check(t, err == nil, "%v", err)
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	w.break_ = func(http.ResponseWriter, *http.Request) bool {
		arrived <- struct{}{}
		<-release
		return false
	}
	front := w.front(func(o *Options) { o.Admission = admission })
	send := func(tenant, query string) int {
		req, _ := http.NewRequest(http.MethodGet, front.URL+"/api/v1/query?query="+query, nil)
		req.Header.Set("X-Scope-OrgID", tenant)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			return 0
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		return resp.StatusCode
	}
	first := make(chan int, 2)
	go func() { first <- send("greedy", "1") }()
	<-arrived
	check(t, send("greedy", "2") == http.StatusTooManyRequests, "a second request of the tenant is admitted")
	go func() { first <- send("modest", "3") }()
	<-arrived // it reached the downstream while the greedy tenant's request is in progress
	close(release)
	check(t, <-first == 200 && <-first == 200, "the others failed")
}

// lockedBuffer is a log that is read while the frontend writes it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestSlowQueryLog_HasParametersTenantAndUser(t *testing.T) {
	w := newTestEnv(t)
	var log lockedBuffer
	front := w.front(func(o *Options) {
		o.SlowerThan, o.UserHeader, o.Cache = -1, "X-User", newMemoryCache()
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Now = nil
	})
	req, _ := http.NewRequest(http.MethodGet, front.URL+rangePath("requests_total", 0, 7000, 30), nil)
	req.Header.Set("X-User", "eve")
	req.Header.Set("X-Scope-OrgID", "team-a")
	resp, err := http.DefaultTransport.RoundTrip(req)
	check(t, err == nil, "%v", err)
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	for deadline := time.Now().Add(30 * time.Second); !strings.Contains(log.String(), "slow query") && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, want := range []string{"slow query detected", "param_query=requests_total", "param_start=0", "tenant=team-a", "remote_user=eve", "cache=miss", "fetch=", "splice=", "status=200"} {
		check(t, strings.Contains(log.String(), want), "the log does not contain %q: %s", want, log.String())
	}
}

func TestMetadata_BytesOfPartsAreLimited(t *testing.T) {
	const part = `{"status":"success","data":["a","b"]}`
	w := newTestEnv(t)
	w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
		_, _ = io.WriteString(rw, part)
		return true
	}
	for bytesMax, want := range map[int64]int{2 * int64(len(part)): 200, 2*int64(len(part)) - 1: 422} {
		front := w.front(func(o *Options) { o.Labels.Interval, o.Labels.BytesMax = time.Hour, bytesMax })
		status, body, _ := get(t, front.URL+"/api/v1/labels?start=0&end=7199")
		check(t, status == want, "%d bytes: %d %s", bytesMax, status, body)
		check(t, want == 200 || strings.Contains(body, "labels or series") && strings.Contains(body, fmt.Sprint(bytesMax)), "%s does not name the limit", body)
	}
}
