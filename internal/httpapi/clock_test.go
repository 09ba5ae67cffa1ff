package httpapi_test

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/httpapi"
)

// empty is a storage without series that may be used in any bubble.
type empty struct{}

func (empty) Querier(int64, int64) (storage.Querier, error) { return storage.NoopQuerier(), nil }
func (empty) ChunkQuerier(int64, int64) (storage.ChunkQuerier, error) {
	return storage.NoopChunkedQuerier(), nil
}

// Prometheus calls time.Now, so that both run with the fake clock of synctest.
func TestAPI_QueryWithoutTimeIsEvaluatedNow(t *testing.T) {
	p := shared(t).parts(t)
	p.queryable = empty{}
	both := p.pair()
	synctest.Test(t, func(t *testing.T) {
		for _, pause := range []time.Duration{0, time.Millisecond, 1234567 * time.Microsecond, 999999 * time.Microsecond, 24 * time.Hour} {
			time.Sleep(pause)
			for _, expr := range []string{"1", "time()", `"s"`, "vector(time())", "vector(1)[1m:20s]", "time() - 60 @ end()", "absent(up)"} {
				for _, at := range []string{"", "&time="} {
					both.compare(t, request{path: "/query", query: "query=" + strings.ReplaceAll(expr, " ", "+") + at}, nil)
				}
			}
		}
	})
}

func TestOptions_NowIsTheClock(t *testing.T) {
	p, mux := shared(t).parts(t), http.NewServeMux()
	now := time.UnixMilli(1_234_567_890_120)
	httpapi.New(httpapi.Options{Engine: p.engine, Parser: p.parser, Queryable: p.queryable, Now: func() time.Time { return now }}).Register(mux, prefix)
	got := send(mux, request{path: "/query", form: form("query", "vector(7)")}.request(t))
	if want := `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1234567890.120,"7"]}]}}`; got.body != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestOptions_NilFieldHasNoEndpoint(t *testing.T) {
	p, mux := shared(t).parts(t), http.NewServeMux()
	httpapi.New(httpapi.Options{Engine: p.engine, Parser: p.parser, Queryable: p.queryable}).Register(mux, prefix)
	for _, path := range []string{"/targets", "/scrape_pools", "/targets/metadata", "/metadata", "/status/config", "/status/runtimeinfo", "/status/tsdb", "/status/walreplay", "/write"} {
		if got := send(mux, request{path: path}.request(t)); got.status != http.StatusNotFound {
			t.Errorf("%s: got %s", path, got)
		}
	}
	got := send(mux, request{path: "/query_exemplars", form: form("query", "up")}.request(t))
	if want := `{"status":"success","data":[]}`; got.body != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
