package frontend

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/frontend/limit"
)

// newMirrorEnv returns a downstream whose responses contain the identity in the request
// headers, like those of a multi-tenant one.
func newMirrorEnv(t *testing.T) *testEnv {
	w := newTestEnvWith(t, http.NotFoundHandler())
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		identity := fmt.Sprintf("scope=%s thanos=%s team=%s auth=%s cookie=%s", r.Header.Get("X-Scope-OrgID"), r.Header.Get("THANOS-TENANT"), r.Header.Get("X-Team"), r.Header.Get("Authorization"), r.Header.Get("Cookie"))
		rw.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/query_range"):
			fmt.Fprintf(rw, `{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"seen":"%s"},"values":[[%s,"1"]]}]}}`, identity, r.Form.Get("start"))
		case strings.HasSuffix(r.URL.Path, "/query"):
			fmt.Fprintf(rw, `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"seen":"%s"},"value":[1,"1"]}]}}`, identity)
		default:
			fmt.Fprintf(rw, `{"status":"success","data":["%s"]}`, identity)
		}
		return true
	}
	return w
}

func getAs(t *testing.T, address string, header map[string]string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, address, nil)
	check(t, err == nil, "%v", err)
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	check(t, err == nil, "%v", err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	check(t, err == nil, "%v", err)
	return resp.StatusCode, string(body), resp.Header
}

// Each pair is two clients. The second must never get the first one's response.
var identityPairs = []struct {
	name          string
	change        func(*Options)
	first, second map[string]string
	sees          string // the second, in its own response
}{
	{
		name:   "the downstream's tenant behind a constant one of the default headers",
		change: func(o *Options) { o.Tenants.Headers = []string{limit.ThanosHeader} },
		first:  map[string]string{"X-Scope-OrgID": "1", "THANOS-TENANT": "a"}, second: map[string]string{"X-Scope-OrgID": "2", "THANOS-TENANT": "a"}, sees: "scope=2 thanos=a",
	},
	{
		name:  "one name in two headers",
		first: map[string]string{"THANOS-TENANT": "a"}, second: map[string]string{"X-Scope-OrgID": "a"}, sees: "scope=a thanos= ",
	},
	{
		name:   "THANOS-TENANT with another tenant header configured",
		change: func(o *Options) { o.Tenants.Headers, o.ForwardHeaders = []string{"X-Team"}, []string{"X-Team"} },
		first:  map[string]string{"THANOS-TENANT": "a"}, second: map[string]string{"THANOS-TENANT": "b"}, sees: "thanos=b",
	},
	{
		name:   "X-Scope-OrgID with another tenant header configured",
		change: func(o *Options) { o.Tenants.Headers, o.ForwardHeaders = []string{"X-Team"}, []string{"X-Team"} },
		first:  map[string]string{"X-Team": "t", "X-Scope-OrgID": "a"}, second: map[string]string{"X-Team": "t", "X-Scope-OrgID": "b"}, sees: "scope=b",
	},
	{
		name:   "a tenant header that is renamed",
		change: func(o *Options) { o.Tenants.Headers, o.TenantHeader = []string{"X-Team"}, "X-Team" },
		first:  map[string]string{"X-Team": "a"}, second: map[string]string{"X-Team": "b"}, sees: "thanos=b team= ",
	},
	{
		name: "a tenant header that is renamed, and listed as forwarded",
		change: func(o *Options) {
			o.Tenants.Headers, o.TenantHeader, o.ForwardHeaders = []string{"X-Team"}, "X-Team", []string{"X-Team"}
		},
		first: map[string]string{"X-Team": "a"}, second: map[string]string{"X-Team": "b"}, sees: "thanos=b team= ",
	},
	{
		name:   "Authorization",
		change: func(o *Options) { o.ForwardHeaders = []string{"authorization"} },
		first:  map[string]string{"Authorization": "Bearer eve"}, second: map[string]string{"Authorization": "Bearer adam"}, sees: "auth=Bearer adam",
	},
	{
		name:   "Authorization and none",
		change: func(o *Options) { o.ForwardHeaders = []string{"Authorization"} },
		first:  map[string]string{"Authorization": "Bearer eve"}, sees: "auth= ",
	},
	{
		name:   "Cookie",
		change: func(o *Options) { o.ForwardHeaders = []string{"Cookie"} },
		first:  map[string]string{"Cookie": "id=1"}, second: map[string]string{"Cookie": "id=2"}, sees: "cookie=id=2",
	},
}

var sharedPaths = map[string]string{
	"range":  rangePath("requests_total", 0, 7199, 30),
	"labels": "/api/v1/labels?start=0&end=7199", "values": "/api/v1/label/room/values?start=0&end=7199", "series": "/api/v1/series?match[]=up&start=0&end=7199",
}

func TestCache_ClientsOfDifferentIdentityShareNoResponse(t *testing.T) {
	for _, tt := range identityPairs {
		for name, path := range sharedPaths {
			w := newMirrorEnv(t)
			front := w.front(func(o *Options) {
				o.Cache, o.LabelCache, o.Labels.Interval = newMemoryCache(), newMemoryCache(), time.Hour
				if tt.change != nil {
					tt.change(o)
				}
			})
			_, first, _ := getAs(t, front.URL+path, tt.first)
			_, again, h := getAs(t, front.URL+path, tt.first)
			check(t, h.Get("X-Ferula-Cache") == "hit" && again == first, "%s, %s: the first client's own response is not cached: %s", tt.name, name, again)
			_, other, h := getAs(t, front.URL+path, tt.second)
			check(t, h.Get("X-Ferula-Cache") == "miss" && other != first && strings.Contains(other, tt.sees), "%s, %s: cache %s, the second client sees %s", tt.name, name, h.Get("X-Ferula-Cache"), other)
		}
	}
}

func TestSingleFlight_ClientsOfDifferentIdentityShareNoCall(t *testing.T) {
	for _, tt := range identityPairs {
		for _, path := range []string{"/api/v1/query?query=up&time=1", sharedPaths["range"], sharedPaths["labels"]} {
			w := newMirrorEnv(t)
			respond := w.break_
			var calls atomic.Int64
			second := make(chan struct{})
			w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
				if calls.Add(1) == 2 {
					close(second)
				}
				select { // the first client's call lasts until the second client's
				case <-second:
				case <-time.After(30 * time.Second):
				}
				return respond(rw, r)
			}
			front := w.front(func(o *Options) {
				o.Split.Interval = 0 // one call for each client
				if tt.change != nil {
					tt.change(o)
				}
			})
			bodies := make(chan string, 1)
			go func() {
				_, body, _ := getAs(t, front.URL+path, tt.first)
				bodies <- body
			}()
			_, other, _ := getAs(t, front.URL+path, tt.second)
			check(t, calls.Load() >= 2 && <-bodies != other && strings.Contains(other, tt.sees), "%s, %s: the second client sees %s", tt.name, path, other)
		}
	}
}

func TestTenants_ConflictingHeadersAreRejected(t *testing.T) {
	w := newMirrorEnv(t)
	for _, headers := range [][]string{nil, {"X-Team"}, {"X-Team", limit.ThanosHeader}} {
		front := w.front(func(o *Options) { o.Tenants.Headers, o.ForwardHeaders, o.Cache = headers, headers, newMemoryCache() })
		one := "X-Scope-OrgID"
		if len(headers) > 0 {
			one = headers[0]
		}
		for _, path := range sharedPaths {
			status, body, _ := getAs(t, front.URL+path, map[string]string{one: "a", "THANOS-TENANT": "b"})
			check(t, status == 400 && strings.Contains(body, one) && strings.Contains(body, "THANOS-TENANT"), "%q: %d %s", headers, status, body)
			status, body, _ = getAs(t, front.URL+path, map[string]string{one: "a", "THANOS-TENANT": "a"})
			check(t, status == 200, "%q: headers that agree: %d %s", headers, status, body)
		}
	}
}

func TestCache_TraceHeadersAndUserAgentsDoNotMatter(t *testing.T) {
	w := newMirrorEnv(t)
	front := w.front(func(o *Options) {
		o.Cache, o.ForwardHeaders = newMemoryCache(), []string{"uber-trace-id", "X-B3-TraceId"}
	})
	for i, want := range []string{"miss", "hit", "hit"} {
		_, _, h := getAs(t, front.URL+sharedPaths["range"], map[string]string{
			"User-Agent": fmt.Sprint("browser ", i), "Traceparent": fmt.Sprintf("00-%032x-%016x-01", i+1, i+1), "Uber-Trace-Id": fmt.Sprint(i), "X-B3-TraceId": fmt.Sprint(i),
			"Accept": []string{"*/*", "application/json, text/plain", "application/json;q=0.5"}[i],
		})
		check(t, h.Get("X-Ferula-Cache") == want, "%d: %s", i, h.Get("X-Ferula-Cache"))
	}
}

// A client that does not accept JSON gets the downstream's response, neither split nor
// cached. A client that also accepts JSON gets JSON.
func TestAcceptsJSON_ResponseHasAnAcceptedMediaType(t *testing.T) {
	w := newTestEnv(t)
	w.break_ = func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.Header.Get("Accept"), "protobuf") {
			return false
		}
		rw.Header().Set("Content-Type", "application/x-protobuf")
		_, _ = io.WriteString(rw, "\x0a\x00")
		return true
	}
	front := w.front(func(o *Options) {
		o.Cache, o.LabelCache, o.Labels.Interval = newMemoryCache(), newMemoryCache(), time.Hour
	})
	for name, path := range sharedPaths {
		if name == "series" {
			path = strings.Replace(path, "up", "nh", 1)
		}
		_, want, _ := get(t, w.server.URL+path)
		for range 2 {
			status, body, _ := getAs(t, front.URL+path, map[string]string{"Accept": "application/x-protobuf"})
			check(t, status == 200 && body == "\x0a\x00", "%s: %d %q", name, status, body)
			status, body, _ = getAs(t, front.URL+path, map[string]string{"Accept": "application/x-protobuf, application/json;q=0.1", "Accept-Encoding": "identity"})
			check(t, status == 200 && body == want, "%s: %d %q", name, status, body)
		}
	}
	for accept, want := range map[string]bool{
		"": true, "application/json": true, "text/html, application/*;q=0.2": true, "*/*": true, "application/json;q=0, */*": false, "application/x-protobuf": false,
		"APPLICATION/JSON ; q=1.0": true, "text/plain": false, " , ": true, "*/*;q=0": false,
	} {
		check(t, acceptsJSON([]string{accept}) == want, "%q", accept)
	}
}

func TestCallKey_DiffersByEveryParameter(t *testing.T) {
	f := &Frontend{opts: Options{ForwardHeaders: []string{"Authorization"}}.withDefaults()}
	seen := map[string]string{}
	add := func(path, params string, header ...string) {
		values, err := url.ParseQuery(params)
		check(t, err == nil, "%v", err)
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		tenant, err := f.opts.Tenants.Of(h)
		check(t, err == nil, "%v", err)
		key := (&requestContext{f: f, r: &http.Request{Header: h}, query: query{path: path, params: values, header: f.forwarded(h), tenant: tenant}}).callKey()
		name := fmt.Sprint(path, "?", params, " ", header)
		check(t, seen[key] == "", "%s and %s share a key", name, seen[key])
		seen[key] = name
	}
	add("/a", "query=a&start=1&end=2")
	add("/b", "query=a&start=1&end=2")
	add("/a", "query=b&start=1&end=2")
	add("/a", "query=a&start=1&end=3")
	add("/a", "query=a&start=0&end=2")
	add("/a", "query=a&start=1&end=2&end=3")
	add("/a", "query=a&start=1%2C2")
	add("/a", "query=a&start=1&start=2")
	add("/a", "query=a&start=1")
	add("/a", "query=a&end=1")
	add("/a", "query=a&start=1&end=2", "Authorization", "Bearer eve")
	add("/a", "query=a&start=1&end=2", "Authorization", "Bearer adam")
	add("/a", "query=a&start=1&end=2", "Authorization", "Bearer eve", "Authorization", "Bearer adam")
	add("/a", "query=a&start=1&end=2", "X-Scope-OrgID", "a")
	add("/a", "query=a&start=1&end=2", "THANOS-TENANT", "a")
	add("/a", "query=a&start=1&end=2", "THANOS-TENANT", "a", "X-Scope-OrgID", "a")
	add("/a", "query=a&start=1&end=2", "Cache-Control", "no-store")
	add("/a", "query=a&start=1&end=2", "Accept", "application/x-protobuf")
}

func TestSingleFlight_CookiesReachTheClientThatStartedTheCall(t *testing.T) {
	w := newTestEnvWith(t, http.NotFoundHandler())
	arrived, release := make(chan struct{}), make(chan struct{})
	w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
		close(arrived)
		<-release
		rw.Header().Set("Set-Cookie", "session=secret")
		fmt.Fprint(rw, `{"status":"success"}`)
		return true
	}
	front := w.front(nil)
	cookies := make(chan string, 2)
	request := func() {
		_, _, h := get(t, front.URL+"/api/v1/query?query=up&time=3000")
		cookies <- h.Get("Set-Cookie")
	}
	go request()
	<-arrived
	go request()
	waitForClients(t, front.Config.Handler.(*Frontend), 2)
	close(release)
	if got := []string{<-cookies, <-cookies}; !slices.Contains(got, "") || !slices.Contains(got, "session=secret") {
		t.Errorf("cookies %q", got)
	}
}

func TestSharedHeader_OmitsCookies(t *testing.T) {
	recorder := httptest.NewRecorder()
	recorder.Header().Set("Set-Cookie", "session=secret")
	recorder.Header().Set("X-Of-All", "yes")
	h := (&responseWriter{x: &requestContext{w: recorder}, contentType: "text/plain"}).sharedHeader()
	check(t, h.Get("Set-Cookie") == "" && h.Get("X-Of-All") == "yes" && h.Get("Content-Type") == "text/plain", "%v", h)
}

func TestSplittable_QueriesThatNeedTheWholeAreNotSplit(t *testing.T) {
	for params, want := range map[string]int64{
		"": 3, "&limit=1": 1, "&limit=0": 3, "&stats=all": 1, "&stats=false": 1, "&analyze=true": 1, "&analyze=1": 1, "&analyze=false": 3, "&trace=1": 1, "&trace=0": 3,
	} {
		w := newTestEnv(t)
		front := w.front(func(o *Options) { o.Cache = newMemoryCache() })
		status, body, _ := get(t, front.URL+rangePath("requests_total", 0, 3*3600-1, 30)+params)
		check(t, status == 200 && w.requests.Load() == want, "%q: %d calls, want %d: %d %.200s", params, w.requests.Load(), want, status, body)
	}
}
