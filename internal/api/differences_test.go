package api_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
)

// The limits of nesting.go, which Prometheus does not have.
const nestingMax, prettyNestingMax = 5_000, 200

// differences are where ferula answers otherwise than Prometheus, on purpose.
// Both halves are tested, so that the table neither lags behind ferula nor
// accuses Prometheus of what it no longer does. Beyond the table /metadata and
// /targets/metadata have an order where Prometheus takes theirs out of maps.
var differences = []struct {
	name, why                string
	ask                      ask
	storage                  *failing // nil: the database
	status, prometheusStatus int
	answer, prometheusAnswer string // contained in the body
}{
	{
		"a malformed query string", "half a form must not be taken for the whole: a lost limit or end answers another question",
		ask{path: "/query", query: "query=1&time=%zz"}, nil, 400, 200, `"error":"error parsing form values: invalid URL escape \"%zz\""`, `"resultType":"scalar"`,
	},
	{
		"a semicolon in the query string", "the same",
		ask{path: "/query", query: "query=1;time=5"}, nil, 400, 400, `error parsing form values: invalid semicolon separator in query`, `no expression found in input`,
	},
	{
		"a malformed body", "the same",
		ask{path: "/query", method: http.MethodPost, query: "query=1", header: http.Header{"Content-Type": {"multipart/form-data"}}}, nil, 400, 200, `"error":"error parsing form values: no multipart boundary param in Content-Type"`, `"resultType":"scalar"`,
	},
	{
		"a body of more than 10 MiB", "the same, and the limit is named",
		ask{path: "/query", method: http.MethodPost, how: inBody, form: form("query", "1", "padding", strings.Repeat("x", 10<<20))}, nil, 400, 400, `request body is larger than 10485760 bytes`, `no expression found in input`,
	},
	{
		"a query of too many levels", "half a megabyte of them ends Prometheus' process",
		ask{path: "/query", form: form("query", strings.Repeat("-", nestingMax+1)+"1")}, nil, 400, 200, `the query is nested deeper than 5000 levels`, `"resultType":"scalar"`,
	},
	{
		"formatting a query of too many levels", "its time grows by the cube",
		ask{path: "/format_query", form: form("query", strings.Repeat("-", prettyNestingMax+1)+"1")}, nil, 400, 200, `the query is nested deeper than 200 levels`, `"data":"-1"`,
	},
	{
		"deflate", "two meanings of one name: clients that know it know gzip, and zstd is cheaper than both",
		ask{path: "/query", form: form("query", "many", "time", "600"), header: http.Header{"Accept-Encoding": {"deflate"}}}, nil, 200, 200, `{"status":"success",`, "\x78",
	},
	{
		"several parts to /series", "Prometheus reads them for queries but not here",
		ask{path: "/series", method: http.MethodPost, how: inMultipart, form: form("match[]", "demo_gauge")}, nil, 200, 400, `"__name__":"demo_gauge"`, `no match[] parameter provided`,
	},
	{
		"preflight for a path that does not exist", "only existing paths are answered, so that other handlers may live beside the API",
		ask{path: "/nosuch", method: http.MethodOptions}, nil, 404, 204, ``, ``,
	},
	{
		"HEAD", "Go's router answers it as GET without a body",
		ask{path: "/query", method: http.MethodHead, form: form("query", "1")}, nil, 200, 405, ``, ``,
	},
	{
		"a trailing slash", "there is one address for each thing",
		ask{path: "/query/", form: form("query", "1")}, nil, 404, 301, ``, ``,
	},
	{
		"an empty label name", "Go's router cleans the path",
		ask{path: "/label//values"}, nil, 307, 400, ``, `invalid label name: \"\"`,
	},
	{
		"a slash in a label name", "Go's router splits the path before it decodes it, so that such labels can be asked for",
		ask{path: "/label/a%2Fb/values"}, nil, 200, 404, `"data":[]`, ``,
	},
	{
		"filters of rules", "there are no rules to filter",
		ask{path: "/rules?type=nonsense"}, nil, 200, 400, `"groups":[]`, `not supported value \"nonsense\"`,
	},
	{
		"a filling value that JSON does not know", "an error is an answer of the API, not a bare text",
		ask{pair: "features", path: "/parse_query", form: form("query", "a + fill(NaN) b")}, nil, 422, 500, `the filling value NaN is not a number in JSON`, `unsupported value: NaN`,
	},
	{
		"time over while a query waits for its turn", "a client may try again, but not a bad query",
		ask{path: "/query", form: form("query", "up", "time", "5")}, &failing{open: context.DeadlineExceeded}, 503, 422, `"errorType":"timeout","error":"query timed out in query queue"`, `"errorType":"execution","error":"context deadline exceeded"`,
	},
	{
		"a client that leaves while label names are read", "errors have one table, whatever the endpoint",
		ask{path: "/labels"}, &failing{names: context.Canceled}, 499, 422, `"errorType":"canceled"`, `"errorType":"execution"`,
	},
	{
		"a storage that fails while label values are read", "the same",
		ask{path: "/label/job/values"}, &failing{values: promql.ErrStorage{Err: errors.New("away")}}, 500, 422, `"errorType":"internal"`, `"errorType":"execution"`,
	},
	{
		"who answers", "a client can tell ferula from Prometheus",
		ask{path: "/status/buildinfo"}, nil, 200, 200, `"program":"ferula 0.1"}`, `"goVersion":"go1.26"}}`,
	},
	{"part of the API that ferula does not have: features", "no clients but Prometheus' page", ask{path: "/features"}, nil, 404, 500, ``, ``},
	{"part of the API that ferula does not have: blocks", "the page shows what there is", ask{path: "/status/tsdb/blocks"}, nil, 404, 200, ``, `"blocks":`},
	{"part of the API that ferula does not have: own metrics", "they are at /metrics", ask{path: "/status/self_metrics"}, nil, 404, 200, ``, ``},
	{"part of the API that ferula does not have: pool configuration", "status/config has it", ask{path: "/scrape_pools/config"}, nil, 404, 400, ``, ``},
	{"part of the API that ferula does not have: administration", "nothing is deleted by HTTP", ask{path: "/admin/tsdb/snapshot", method: http.MethodPost}, nil, 404, 500, ``, `admin APIs disabled`},
}

func TestDifferencesFromPrometheusAreThoseOfTheTable(t *testing.T) {
	w := shared(t)
	for _, d := range differences {
		name := d.ask.pair
		if name == "" {
			name = "default"
		}
		p := w.pairs[name]
		if d.storage != nil {
			var now *changing
			p, now = failingPair(t)
			now.failing = *d.storage
		}
		got, want := send(p.ours, d.ask.request(t)), send(p.oracle, d.ask.request(t))
		if got.status != d.status || !strings.Contains(got.body, d.answer) {
			t.Errorf("%s: ferula says %s, want %d %q", d.name, got, d.status, d.answer)
		}
		if want.status != d.prometheusStatus || !strings.Contains(want.body, d.prometheusAnswer) {
			t.Errorf("%s: Prometheus says %s, want %d %q", d.name, want, d.prometheusStatus, d.prometheusAnswer)
		}
	}
}
