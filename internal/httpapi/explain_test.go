package httpapi_test

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/httpapi"
	prompromql "github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/columns"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// unread is a storage that no query may read.
type unread struct {
	listedStores
	t *testing.T
}

func (u unread) Query(fanout.Request) httpapi.StoreQuery { return u }

func (u unread) Querier(int64, int64) (storage.Querier, error) {
	u.t.Error("the storage was read")
	return storage.NoopQuerier(), nil
}

// columnsAPI returns the API of a querier whose engine is that of columns.
func columnsAPI(t *testing.T, stores httpapi.Stores) http.Handler {
	t.Helper()
	engine, err := prompromql.New(prompromql.Options{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{
		Engine: columns.New(columns.Options{Engine: engine, Bare: engine.Bare, MaxSamples: engine.MaxSamples(), SubqueryStep: engine.SubqueryStep}),
		Stores: stores, Parser: engine.Parser,
	}).Register(mux, "/api/v1")
	return mux
}

func TestExplain_IsATreeOfNames(t *testing.T) {
	mux := columnsAPI(t, unread{t: t})
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for path, want := range map[string]string{
			"/query_explain?query=sum(rate(x[5m]))%2B1":                         `{"status":"success","data":{"name":"[vectorScalarBinary] +","children":[{"name":"[aggregate] sum","children":[{"name":"[matrixSelector] rate(x[5m])"}]},{"name":"[number] 1"}]}}`,
			"/query_range_explain?query=x&start=0&end=60&step=15&engine=thanos": `{"status":"success","data":{"name":"[vectorSelector] x"}}`,
			"/query_explain?query=x&engine=prometheus&analyze=true":             `{"status":"success","data":{"name":"[vectorSelector] x"}}`,
			"/query_explain?query=x[5m]&time=60":                                `{"status":"success","data":{"name":"[prometheus: type_matrix] x[5m]"}}`,
		} {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(method, "/api/v1"+path, nil))
			if got := w.Body.String(); w.Code != http.StatusOK || got != want {
				t.Errorf("%s %s: %d %s, want %s", method, path, w.Code, got, want)
			}
		}
	}
}

func TestExplain_BadRequestsAreBadData(t *testing.T) {
	mux := columnsAPI(t, unread{t: t})
	for _, path := range []string{
		"/query_explain", "/query_explain?query=sum(", "/query_explain?query=nothing(x)", "/query_explain?query=x&time=yesterday", "/query_explain?query=x&engine=none", "/query_explain?query=x&timeout=x",
		"/query_explain?query=x&dedup=x", "/query_explain?query=" + strings.Repeat("-", 100_000) + "1",
		"/query_range_explain?query=x", "/query_range_explain?query=x&start=60&end=0&step=1", "/query_range_explain?query=x&start=0&end=60&step=0", "/query_range_explain?query=x[5m]&start=0&end=60&step=15",
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1"+path, nil))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"errorType":"bad_data"`) {
			t.Errorf("%.80s: %d %.300s", path, w.Code, w.Body)
		}
	}
}

func TestExplain_ClosesItsQuery(t *testing.T) {
	engine := &stubEngine{result: &promql.Result{Value: promql.Vector{}}}
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Engine: engine, Stores: unread{t: t}, Parser: parser.NewParser(parser.Options{})}).Register(mux, "/api/v1")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/query_explain?query=up", nil))
	if w.Body.String() != `{"status":"success","data":{"name":"[prometheus] up"}}` || engine.opened.Load() != 0 || engine.closed.Load() != 1 {
		t.Errorf("%d open, %d closed: %s", engine.opened.Load(), engine.closed.Load(), w.Body)
	}
}

// A plan is sent in pieces, as other responses are.
func TestExplain_LargePlanIsWhole(t *testing.T) {
	mux := columnsAPI(t, unread{t: t})
	const terms = 4096
	query := `y{a="0123456789"}`
	for n := 1; n < terms; n *= 2 {
		query = "(" + query + " + " + query + ")"
	}
	form := url.Values{"query": {query}}
	r := httptest.NewRequest(http.MethodPost, "/api/v1/query_explain", strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	var got struct{ Data node }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Data.count() < 2*terms-1 {
		t.Errorf("%d, %v, %d nodes: %.200s", w.Code, err, got.Data.count(), w.Body)
	}
}

type node struct {
	Name     string
	Children []node
}

func (n node) count() int {
	all := 1
	for _, c := range n.Children {
		all += c.count()
	}
	return all
}
