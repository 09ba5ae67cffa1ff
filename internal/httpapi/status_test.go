package httpapi_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/grafana/regexp"

	"github.com/ferula-io/ferula/internal/httpapi"
)

func TestAPI_StatusEqualsPrometheus(t *testing.T) {
	w := shared(t)
	for _, path := range []string{
		"/status/config", "/status/flags", "/status/walreplay", "/status/tsdb", "/status/tsdb?limit=1", "/status/tsdb?limit=3", "/status/tsdb?limit=10000",
		"/status/tsdb?limit=10001", "/status/tsdb?limit=0", "/status/tsdb?limit=-1", "/status/tsdb?limit=x", "/status/tsdb?limit=", "/rules", "/alerts", "/alertmanagers",
	} {
		w.compare(t, request{path: path}, nil)
	}
}

func TestAPI_StatusKeysEqualPrometheus(t *testing.T) {
	p := shared(t).pairs["default"]
	for path, more := range map[string][]string{"/status/runtimeinfo": nil, "/status/buildinfo": {".data.program string"}} {
		got, want := send(p.ours, request{path: path}.request(t)), send(p.oracle, request{path: path}.request(t))
		keys := keysOf(t, got.body)
		for _, key := range more {
			at := slices.Index(keys, key)
			if at < 0 {
				t.Fatalf("%s: no key %s in %v", path, key, keys)
			}
			keys = slices.Delete(keys, at, at+1)
		}
		if wanted := keysOf(t, want.body); !slices.Equal(keys, wanted) || got.status != want.status {
			t.Errorf("%s: %d %v, want %d %v", path, got.status, keys, want.status, wanted)
		}
	}
	// All other values are equal and in the same order.
	own := regexp.MustCompile(`"(serverTime|goroutineCount)":("[^"]*"|\d+)|,"program":"[^"]*"`)
	for _, path := range []string{"/status/runtimeinfo", "/status/buildinfo"} {
		p.compare(t, request{path: path}, func(body string) string { return own.ReplaceAllString(body, "") })
	}
}

// headersToCompare are the CORS headers that browsers evaluate.
var headersToCompare = []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Headers", "Access-Control-Allow-Methods", "Access-Control-Expose-Headers"}

func TestAPI_CrossOriginHeadersEqualPrometheus(t *testing.T) {
	w := shared(t)
	narrow := w.parts(t)
	narrow.origin = regexp.MustCompile(`^(?:https://(good|fine)\.example)$`)
	for name, p := range map[string]pair{"any": w.pairs["default"], "narrow": narrow.pair()} {
		for _, origin := range []string{"", "https://good.example", "https://evil.example", "https://good.example.evil", "null", "*"} {
			for _, a := range []request{
				{method: http.MethodOptions, path: "/query"}, {method: http.MethodOptions, path: "/status/walreplay"}, {method: http.MethodOptions, path: "/label/x/values"},
				{path: "/query", form: form("query", "1", "time", "5")}, {path: "/query"}, {path: "/status/walreplay"}, {method: http.MethodPost, path: "/series", encoding: formInBody},
			} {
				if origin != "" {
					a.header = http.Header{"Origin": {origin}}
				}
				want, got := send(p.oracle, a.request(t)), send(p.ours, a.request(t))
				check(t, a, got, want, nil)
				for _, h := range headersToCompare {
					if g, w := got.header.Values(h), want.header.Values(h); !slices.Equal(g, w) {
						t.Errorf("%s, %s from %q: %s is %q, Prometheus has %q", name, a, origin, h, g, w)
					}
				}
				for _, vary := range want.header.Values("Vary") {
					if !slices.Contains(got.header.Values("Vary"), vary) {
						t.Errorf("%s: Vary is %q, Prometheus has %q", a, got.header.Values("Vary"), vary)
					}
				}
			}
		}
	}
}

func TestAPI_UnknownPathOrMethodIsAnError(t *testing.T) {
	p := shared(t).pairs["default"]
	for _, a := range []request{
		{path: "/nosuch"}, {path: "/"}, {path: "/query/deeper"}, {path: "/label/x"}, {path: "/label/x/values/more"}, {path: "/status"}, {path: "/status/nosuch"},
		{method: http.MethodPost, path: "/targets"}, {method: http.MethodPost, path: "/label/job/values"}, {method: http.MethodPost, path: "/status/tsdb"}, {method: http.MethodPost, path: "/metadata"},
		{method: http.MethodPut, path: "/query"}, {method: http.MethodDelete, path: "/series"}, {method: http.MethodPatch, path: "/query_range"}, {method: "BREW", path: "/labels"}, {method: http.MethodTrace, path: "/query"},
	} {
		want, got := send(p.oracle, a.request(t)), send(p.ours, a.request(t))
		refused := got.status == http.StatusNotFound || got.status == http.StatusMethodNotAllowed
		if got.status != want.status && !(refused && want.status >= 300 && want.status < 400) { // httprouter redirects to similar paths
			t.Errorf("%s: got %s, Prometheus returned %s", a, got, want)
		}
		if got.status == http.StatusMethodNotAllowed && !strings.Contains(got.header.Get("Allow"), http.MethodGet) {
			t.Errorf("%s: Allow is %q", a, got.header.Get("Allow"))
		}
	}
}

func TestOptions_ReadyWrapsEverythingButWALReplay(t *testing.T) {
	p := shared(t).parts(t)
	p.ready = func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "Service Unavailable", http.StatusServiceUnavailable)
		})
	}
	both := p.pair()
	for _, path := range []string{
		"/query?query=1", "/query_range", "/series", "/labels", "/label/x/values", "/query_exemplars", "/format_query", "/parse_query", "/targets", "/targets/metadata", "/metadata", "/scrape_pools",
		"/status/config", "/status/flags", "/status/buildinfo", "/status/runtimeinfo", "/status/tsdb", "/status/walreplay", "/rules", "/alerts", "/alertmanagers",
	} {
		both.compare(t, request{path: path}, nil)
	}
}

func TestAPI_HeadIsGetWithoutBody(t *testing.T) {
	server := httptest.NewServer(shared(t).pairs["default"].ours)
	defer server.Close()
	res, err := server.Client().Head(server.URL + prefix + "/query?query=1&time=5")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK || res.ContentLength <= 0 {
		t.Errorf("got %d, length %d", res.StatusCode, res.ContentLength)
	}
}

func TestAPI_FeaturesListNotificationsOnlyWhereTheyAre(t *testing.T) {
	for _, there := range []bool{true, false} {
		mux := http.NewServeMux()
		httpapi.New(httpapi.Options{Notifications: there}).Register(mux, "/api/v1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/status/features", nil))
		if want := `"notifications":` + strconv.FormatBool(there); !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in %s", want, w.Body)
		}
	}
}
