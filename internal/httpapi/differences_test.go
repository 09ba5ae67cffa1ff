package httpapi_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// nestingMax and prettyNestingMax equal the limits in nesting.go, which Prometheus does not
// have.
const nestingMax, prettyNestingMax = 5_000, 200

// differences are the intentional differences from Prometheus. The responses of both
// programs are tested, so that the table is current for both. In addition /metadata
// is sorted, where Prometheus' order is that of a map.
var differences = []struct {
	name, why                string
	request                  request
	storage                  *failing // nil: the database
	status, prometheusStatus int
	body, prometheusBody     string // contained in the body
}{
	{
		"a malformed query string", "a truncated form is an error: without its limit or end it is another request",
		request{path: "/query", query: "query=1&time=%zz"}, nil, 400, 200, `"error":"error parsing form values: invalid URL escape \"%zz\""`, `"resultType":"scalar"`,
	},
	{
		"a semicolon in the query string", "the same",
		request{path: "/query", query: "query=1;time=5"}, nil, 400, 400, `error parsing form values: invalid semicolon separator in query`, `no expression found in input`,
	},
	{
		"a malformed body", "the same",
		request{path: "/query", method: http.MethodPost, query: "query=1", header: http.Header{"Content-Type": {"multipart/form-data"}}}, nil, 400, 200, `"error":"error parsing form values: no multipart boundary param in Content-Type"`, `"resultType":"scalar"`,
	},
	{
		"a body of more than 10 MiB", "the same, and the limit is named",
		request{path: "/query", method: http.MethodPost, encoding: formInBody, form: form("query", "1", "padding", strings.Repeat("x", 10<<20))}, nil, 400, 400, `request body is larger than 10485760 bytes`, `no expression found in input`,
	},
	{
		"a query of too many levels", "half a megabyte of levels crashes Prometheus",
		request{path: "/query", form: form("query", strings.Repeat("-", nestingMax+1)+"1")}, nil, 400, 200, `the query is nested deeper than 5000 levels`, `"resultType":"scalar"`,
	},
	{
		"formatting a query of too many levels", "its time grows with the cube of the levels",
		request{path: "/format_query", form: form("query", strings.Repeat("-", prettyNestingMax+1)+"1")}, nil, 400, 200, `the query is nested deeper than 200 levels`, `"data":"-1"`,
	},
	{
		"parsing a query of too many levels", "each level has a copy of those below in memory",
		request{path: "/parse_query", form: form("query", strings.Repeat("-", prettyNestingMax+1)+"1")}, nil, 400, 200, `the query is nested deeper than 200 levels`, `"val":"-1"`,
	},
	{
		"a step of less than 1ms", "Prometheus' engine panics and recovers",
		request{path: "/query_range", form: form("query", "demo_gauge", "start", "600", "end", "600", "step", "0.0009")}, nil, 400, 422,
		`invalid parameter \"step\": query resolution step width 900µs is less than 1ms`, `integer divide by zero`,
	},
	{
		"deflate", "the name has two meanings; clients that support it support gzip, and zstd is cheaper than both",
		request{path: "/query", form: form("query", "many", "time", "600"), header: http.Header{"Accept-Encoding": {"deflate"}}}, nil, 200, 200, `{"status":"success",`, "\x78",
	},
	{
		"several parts to /series", "Prometheus reads them for queries but not here",
		request{path: "/series", method: http.MethodPost, encoding: formInMultipart, form: form("match[]", "demo_gauge")}, nil, 200, 400, `"__name__":"demo_gauge"`, `no match[] parameter provided`,
	},
	{
		"preflight for a path that does not exist", "only existing paths are handled, so that other handlers can be registered next to the API",
		request{path: "/nosuch", method: http.MethodOptions}, nil, 404, 204, ``, ``,
	},
	{
		"HEAD", "Go's router handles it as GET without a body",
		request{path: "/query", method: http.MethodHead, form: form("query", "1")}, nil, 200, 405, ``, ``,
	},
	{
		"a trailing slash", "every endpoint has one path",
		request{path: "/query/", form: form("query", "1")}, nil, 404, 301, ``, ``,
	},
	{
		"an empty label name", "Go's router cleans the path",
		request{path: "/label//values"}, nil, 307, 400, ``, `invalid label name: \"\"`,
	},
	{
		"a slash in a label name", "Go's router splits the path before it decodes it, so that such labels can be requested",
		request{path: "/label/a%2Fb/values"}, nil, 200, 404, `"data":[]`, ``,
	},
	{
		"timeout in the query queue", "a client may retry a timeout, but not a bad query",
		request{path: "/query", form: form("query", "up", "time", "5")}, &failing{open: context.DeadlineExceeded}, 503, 422, `"errorType":"timeout","error":"query timed out in query queue"`, `"errorType":"execution","error":"context deadline exceeded"`,
	},
	{
		"client disconnects while label names are read", "all endpoints map errors by one table",
		request{path: "/labels"}, &failing{names: context.Canceled}, 499, 422, `"errorType":"canceled"`, `"errorType":"execution"`,
	},
	{
		"a storage that fails while label values are read", "the same",
		request{path: "/label/job/values"}, &failing{values: promql.ErrStorage{Err: errors.New("away")}}, 500, 422, `"errorType":"internal"`, `"errorType":"execution"`,
	},
	{
		"program name", "a client can distinguish ferula from Prometheus",
		request{path: "/status/buildinfo"}, nil, 200, 200, `"program":"ferula 0.1"}`, `"goVersion":"go1.26"}}`,
	},
	{"features", "the page of ferula reads which pages have data; Prometheus has no such path", request{path: "/status/features"}, nil, 200, 404, `,"config":true,`, ``},
	{"part of the API that is not in this package, but in promweb.go: features", "no clients but Prometheus' page", request{path: "/features"}, nil, 404, 500, ``, ``},
	{"part of the API that is not in this package, but in promweb.go: blocks", "the page shows what there is", request{path: "/status/tsdb/blocks"}, nil, 404, 200, ``, `"blocks":`},
	{"part of the API that is not in this package, but in promweb.go: own metrics", "they are at /metrics", request{path: "/status/self_metrics"}, nil, 404, 200, ``, ``},
	{"a password in the URL of a discovery", "status/config has none either", request{path: "/scrape_pools/config", form: form("scrapePool", "zeta")}, nil, 200, 200, `http://eve:xxxxx@b/`, `http://eve:SECRET@b/`},
	{"part of the API that is not in this package, but in promweb.go: administration", "nothing is deleted by HTTP", request{path: "/admin/tsdb/snapshot", method: http.MethodPost}, nil, 404, 500, ``, `admin APIs disabled`},
}

func TestAPI_DifferencesFromPrometheusMatchTheTable(t *testing.T) {
	w := shared(t)
	for _, d := range differences {
		name := d.request.pair
		if name == "" {
			name = "default"
		}
		p := w.pairs[name]
		if d.storage != nil {
			var failing *switchableStorage
			p, failing = failingPair(t)
			failing.failing = *d.storage
		}
		got, want := send(p.ours, d.request.request(t)), send(p.oracle, d.request.request(t))
		if got.status != d.status || !strings.Contains(got.body, d.body) {
			t.Errorf("%s: ferula returned %s, want %d %q", d.name, got, d.status, d.body)
		}
		if want.status != d.prometheusStatus || !strings.Contains(want.body, d.prometheusBody) {
			t.Errorf("%s: Prometheus returned %s, want %d %q", d.name, want, d.prometheusStatus, d.prometheusBody)
		}
	}
}
