package httpapi_test

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/grafana/regexp"

	"github.com/ferula-io/ferula/internal/httpapi"
)

func TestOptions_PeerGetsItsEndpointsWithEveryEncodingOfTheForm(t *testing.T) {
	w := shared(t)
	for _, path := range []string{"/parse_query", "/format_query"} {
		for i := range 3 {
			a := request{path: path, form: form("query", `sum by (a) (rate(x{b="c"}[5m]))`)}
			if i > 0 {
				a.method, a.encoding = http.MethodPost, formEncoding(i)
			}
			w.compare(t, a, nil)
		}
		w.compare(t, request{path: path}, nil)
	}
	w.compare(t, request{path: "/targets", form: form("state", "dropped", "scrapePool", "zeta")}, nil)
	w.compare(t, request{path: "/scrape_pools"}, nil)
	for _, pool := range []string{"alpha", "none", ""} {
		w.compare(t, request{path: "/scrape_pools/config", form: form("scrapePool", pool)}, nil)
	}
}

// Without a peer, and without what it has data of, an endpoint is missing.
func TestOptions_PeerHasEndpointsOfItsDataOnly(t *testing.T) {
	peer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusTeapot) })
	for path, with := range map[string]httpapi.Options{
		"/parse_query": {}, "/format_query": {}, "/status/flags": {}, "/status/runtimeinfo": {},
		"/targets": {Targets: stubTargets{}}, "/targets/metadata": {Targets: stubTargets{}}, "/scrape_pools": {Targets: stubTargets{}},
		"/rules": {Rules: true}, "/alerts": {Rules: true}, "/alertmanagers": {Rules: true},
		"/status/tsdb": {TSDB: true}, "/status/walreplay": {TSDB: true},
	} {
		status := func(o httpapi.Options) int {
			mux, w := http.NewServeMux(), httptest.NewRecorder()
			httpapi.New(o).Register(mux, prefix)
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, prefix+path, nil))
			return w.Code
		}
		if got := status(with); got != http.StatusNotFound {
			t.Errorf("%s without a peer: %d", path, got)
		}
		bare := httpapi.Options{Peer: peer}
		if needs := with.Targets != nil || with.Rules || with.TSDB; needs && status(bare) != http.StatusNotFound {
			t.Errorf("%s without its data: %d", path, status(bare))
		}
		if with.Peer = peer; status(with) != http.StatusTeapot {
			t.Errorf("%s: %d", path, status(with))
		}
	}
}

// The OpenAPI documents take over 80 MB and a quarter of a second to write.
func TestNewPeer_WritesTheOpenAPIDocumentsAtTheFirstRequest(t *testing.T) {
	api := httpapi.Options{ExternalURL: &url.URL{}, CORSOrigin: regexp.MustCompile("^$"),
		Ready: func(h http.Handler) http.Handler { return h }}
	opts := httpapi.PeerOptions{Prefix: "/p", Logger: slog.New(slog.DiscardHandler)}
	var peer http.Handler
	if allocations := testing.AllocsPerRun(1, func() { peer = httpapi.NewPeer(api, opts) }); allocations > 10_000 {
		t.Errorf("%.0f allocations before the first request", allocations)
	}
	for range 2 {
		w := httptest.NewRecorder()
		peer.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/p/api/v1/openapi.yaml", nil))
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), "openapi: 3.") {
			t.Errorf("status %d, %.100q", w.Code, w.Body)
		}
	}
}
