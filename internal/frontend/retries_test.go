package frontend

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/limit"
	instruments "github.com/ferula-io/ferula/metrics"
)

const (
	formType  = "application/x-www-form-urlencoded"
	protoType = "application/x-protobuf"
)

// Every request of the API, with every method that a client may use. Requests that only
// read are retried after a failure; all others are sent once.
var retryCases = []struct {
	method, path, contentType, body string
	retried                         bool
}{
	{"GET", "/api/v1/query?query=up", "", "", true},
	{"HEAD", "/api/v1/query?query=up", "", "", true},
	{"POST", "/api/v1/query", formType, "query=up", true},
	{"POST", "/api/v1/query?query=up", protoType, "x", false},
	{"POST", "/api/v1/query?query=up", "", "", false},
	{"GET", rangePath("up", 0, 60, 30), "", "", true},
	{"POST", "/api/v1/query_range", formType, "query=up&start=0&end=60&step=30", true},
	{"GET", "/api/v1/labels", "", "", true},
	{"POST", "/api/v1/labels", formType, "start=0", true},
	{"POST", "/api/v1/series", formType, "match[]=up", true},
	{"DELETE", "/api/v1/series?match[]=up", "", "", false},
	{"GET", "/api/v1/label/job/values", "", "", true},
	{"POST", "/api/v1/query_exemplars", formType, "query=up", true},
	{"POST", "/api/v1/format_query", formType, "query=up", true},
	{"GET", "/api/v1/rules", "", "", true},
	{"GET", "/api/v1/status/config", "", "", true},
	{"OPTIONS", "/api/v1/query", "", "", true},
	{"POST", "/api/v1/admin/tsdb/snapshot", formType, "skip_head=true", false},
	{"POST", "/api/v1/admin/tsdb/snapshot", "", "", false},
	{"PUT", "/api/v1/admin/tsdb/snapshot", "", "", false},
	{"POST", "/api/v1/admin/tsdb/delete_series", formType, "match[]=up", false},
	{"PUT", "/api/v1/admin/tsdb/delete_series?match[]=up", "", "", false},
	{"POST", "/api/v1/admin/tsdb/clean_tombstones", "", "", false},
	{"POST", "/api/v1/write", protoType, "x", false},
	{"POST", "/api/v1/read", protoType, "x", false},
	{"POST", "/api/v1/otlp/v1/metrics", protoType, "x", false},
	{"POST", "/api/v1/push", protoType, "x", false},
	{"POST", "/api/v2/silences", "application/json", "{}", false},
	{"DELETE", "/api/v2/silence/1", "", "", false},
	{"POST", "/config/v1/rules/a", "application/yaml", "x", false},
	{"DELETE", "/config/v1/rules/a", "", "", false},
	{"PATCH", "/anything", "application/json", "{}", false},
	{"POST", "/-/reload", "", "", false},
	{"PUT", "/-/reload", "", "", false},
	{"POST", "/-/quit", formType, "", false},
	{"POST", "/api/v1/query/", formType, "query=up", false},
	{"POST", "/api/v1/queries", formType, "query=up", false},
}

func TestRetries_OnlyOfReadOnlyRequests(t *testing.T) {
	for failure, fail := range map[string]func(http.ResponseWriter){
		"500":                  func(w http.ResponseWriter) { w.WriteHeader(500) },
		"503":                  func(w http.ResponseWriter) { w.WriteHeader(503) },
		"429 with Retry-After": func(w http.ResponseWriter) { w.Header().Set("Retry-After", "0"); w.WriteHeader(429) },
		"no response":          func(http.ResponseWriter) { panic(http.ErrAbortHandler) },
		"a break in the middle": func(w http.ResponseWriter) {
			_, _ = io.WriteString(w, strings.Repeat(" ", 1<<20))
			panic(http.ErrAbortHandler)
		},
	} {
		w := newTestEnvWith(t, http.NotFoundHandler())
		w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
			fail(rw)
			return true
		}
		for _, c := range retryCases {
			if failure == "a break in the middle" && c.method == "HEAD" || failure == "429 with Retry-After" {
				if c.retried {
					continue // no body, or a status that is not retried
				}
			}
			front := w.front(func(o *Options) { o.RangeRetries, o.InstantRetries, o.Labels.Retries = 2, 2, 2 })
			before := w.requests.Load()
			req, err := http.NewRequest(c.method, front.URL+c.path, strings.NewReader(c.body))
			check(t, err == nil, "%v", err)
			if c.contentType != "" {
				req.Header.Set("Content-Type", c.contentType)
			}
			resp, err := http.DefaultTransport.RoundTrip(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			want := int64(1)
			if c.retried {
				want = 3
			}
			check(t, w.requests.Load() == before+want, "%s, %s %s (%s): %d calls, want %d", failure, c.method, c.path, c.contentType, w.requests.Load()-before, want)
		}
	}
}

// A range query in one piece, or one that cannot be split, is passed through and still has the retries of range queries.
func TestRetries_EachKindOfRequestHasItsOwn(t *testing.T) {
	w := newTestEnvWith(t, http.NotFoundHandler())
	w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
		rw.WriteHeader(500)
		return true
	}
	front := w.front(func(o *Options) { o.RangeRetries, o.InstantRetries, o.Labels.Retries = -1, 3, 1 })
	for path, want := range map[string]int64{
		rangePath("up", 0, 60, 30):                1,
		rangePath("up", 0, 60, 30) + "&stats=all": 1,
		"/api/v1/query?query=up":                  4,
		"/api/v1/labels":                          2,
		"/api/v1/labels?start=0&end=60":           2,
		"/api/v1/series?match[]=up":               2,
		"/api/v1/rules":                           4,
	} {
		before := w.requests.Load()
		resp, err := http.Get(front.URL + path)
		check(t, err == nil, "%v", err)
		resp.Body.Close()
		check(t, w.requests.Load() == before+want, "%s: %d requests, want %d", path, w.requests.Load()-before, want)
	}
}

func TestMetrics_RejectedRequestsAreCountedByStatus(t *testing.T) {
	set := instruments.NewSet()
	w := newTestEnv(t)
	admission, err := limit.New(limit.Options{ConcurrencyMax: 1, TenantQueueMax: -1}, nil)
	check(t, err == nil, "%v", err)
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	w.break_ = func(http.ResponseWriter, *http.Request) bool {
		arrived <- struct{}{}
		<-release
		return false
	}
	front := w.front(func(o *Options) {
		o.Metrics, o.Admission, o.Limits = set, admission, limit.Query{QueryBytesMax: 50}
	})
	first := make(chan int, 1)
	go func() {
		status, _, _ := get(t, front.URL+"/api/v1/query?query=1")
		first <- status
	}()
	<-arrived
	for range 3 {
		status, _, _ := get(t, front.URL+rangePath("up", 0, 60, 30))
		check(t, status == http.StatusTooManyRequests, "%d", status)
	}
	close(release)
	check(t, <-first == 200, "the first request failed")
	for _, path := range []string{"/api/v1/labels?%zz", "/api/v1/series?match[]=up&a=%zz", rangePath(strings.Repeat("a", 51), 0, 60, 30)} {
		status, body, _ := get(t, front.URL+path)
		check(t, status == 400 || status == 422, "%s: %d %s", path, status, body)
	}
	want := map[string]int{
		`{kind="instant",code="200",cache=""}`: 1, `{kind="range",code="429",cache=""}`: 3, `{kind="labels",code="400",cache=""}`: 2, `{kind="range",code="422",cache=""}`: 1,
	}
	var page bytes.Buffer
	missing := ""
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) { // a request is counted after its last byte is sent
		page.Reset()
		set.WritePrometheus(&page)
		missing = ""
		for labels, count := range want {
			if line := fmt.Sprintf("ferula_frontend_requests_total%s %d\n", labels, count); !strings.Contains(page.String(), line) {
				missing = line
			}
		}
		if missing == "" {
			break
		}
	}
	check(t, missing == "" && strings.Count(page.String(), "ferula_frontend_requests_total{") == len(want), "no %q in\n%s", missing, page.String())
}
