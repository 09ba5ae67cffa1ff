package httpapi_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/parser/posrange"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
)

// queriedStores implements httpapi.Stores for queries of an engine that reads nothing.
type queriedStores struct{ listedStores }

func (s queriedStores) Query(fanout.Request) httpapi.StoreQuery { return s }

func (queriedStores) Querier(int64, int64) (storage.Querier, error) {
	return storage.NoopQuerier(), nil
}

// respondedWith requests a path of an API whose queries have warnings.
func respondedWith(stores httpapi.Stores, warnings annotations.Annotations, path string) *httptest.ResponseRecorder {
	engine := &stubEngine{result: &promql.Result{Value: promql.Vector{}, Warnings: warnings}}
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Engine: engine, Stores: stores, Parser: parser.NewParser(parser.Options{})}).Register(mux, "/api/v1")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1"+path, nil))
	return w
}

// engineWarnings returns n warnings of an engine.
func engineWarnings(n int) (all annotations.Annotations) {
	for i := range n {
		all.Add(annotations.NewMixedFloatsHistogramsWarning(fmt.Sprint("m", i), posrange.PositionRange{}))
	}
	return all
}

// Thanos' query frontend caches responses that are not marked with no-store.
func TestAPI_PartialResponsesOfStoresAreMarkedNotToBeStored(t *testing.T) {
	ofEngine := engineWarnings(3)
	ofEngine.Add(annotations.NewPossibleNonCounterInfo("m", posrange.PositionRange{}))
	partial := engineWarnings(3)
	partial.Add(errors.New("store x: gone"))
	for _, c := range []struct {
		name, path string
		stores     httpapi.Stores
		warnings   annotations.Annotations
		want       string
	}{
		{"complete", "/query?query=up", queriedStores{}, nil, ""},
		{"annotations of the engine", "/query?query=up", queriedStores{}, ofEngine, ""},
		{"partial", "/query?query=up", queriedStores{}, partial, "no-store"},
		{"partial range", "/query_range?query=up&start=0&end=10&step=1", queriedStores{}, partial, "no-store"},
		{"targets", "/targets", queriedStores{}, nil, "no-store"},
		{"rules", "/rules", queriedStores{}, nil, ""},
		{"error", "/query?query=up&time=x", queriedStores{}, nil, "no-store"},
		{"error without stores", "/query?query=up&time=x", nil, nil, ""},
		{"warning without stores", "/query?query=up", nil, partial, ""},
	} {
		if got := respondedWith(c.stores, c.warnings, c.path).Header().Get("Cache-Control"); got != c.want {
			t.Errorf("%s: Cache-Control %q, want %q", c.name, got, c.want)
		}
	}
}

func TestAPI_EveryMissingStoreIsNamedDespiteManyWarningsOfTheEngine(t *testing.T) {
	warnings := engineWarnings(30)
	var missing []string
	for i := range 25 {
		missing = append(missing, fmt.Sprintf("store s%02d: gone", i))
		warnings.Add(errors.New(missing[i]))
	}
	for _, c := range []struct {
		stores  httpapi.Stores
		missing int
		length  int
		omitted string
	}{{queriedStores{}, 25, 36, "20 more warning annotations omitted"}, {nil, 10, 11, "45 more warning annotations omitted"}} {
		w := respondedWith(c.stores, warnings, "/query?query=up")
		var got struct{ Warnings []string }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if len(got.Warnings) != c.length || !slices.Equal(got.Warnings[:c.missing], missing[:c.missing]) || got.Warnings[c.length-1] != c.omitted {
			t.Errorf("got %s", strings.Join(got.Warnings, "\n"))
		}
	}
}

// As in Thanos, a dashboard variable with the value All becomes `{a=~".*"}`, and a client gets a list of exemplars where
// Prometheus sends no content.
func TestAPI_RequestsThatThanosAcceptsAreAcceptedWithStores(t *testing.T) {
	const empty = `{"status":"success","data":[]}`
	for _, c := range []struct {
		path string
		code int // with stores
		want string
	}{
		{"/labels?match[]={a=~%22.*%22}", 200, empty},
		{"/label/job/values?match[]={a=%22%22}", 200, empty},
		{"/series?match[]={a=~%22.*%22}", 200, empty},
		{"/series?match[]={}", 400, `{"status":"error","errorType":"bad_data","error":"invalid parameter \"match[]\": match[] must contain at least one matcher"}`},
		{"/query_exemplars?query=1", 200, empty},
	} {
		if w := respondedWith(queriedStores{}, nil, c.path); w.Code != c.code || w.Body.String() != c.want {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
		if w := respondedWith(nil, nil, c.path); w.Code != http.StatusBadRequest && w.Code != http.StatusNoContent {
			t.Errorf("%s without stores: %d %s", c.path, w.Code, w.Body)
		}
	}
}

// As in Thanos, such a range is an error. Prometheus responds with an empty list.
func TestAPI_LabelsOfARangeThatEndsBeforeItStartsAreRefusedWithStores(t *testing.T) {
	const want = `{"status":"error","errorType":"bad_data","error":"end timestamp must not be before start time"}`
	for _, path := range []string{"/labels?", "/label/job/values?", "/series?match[]=up&"} {
		if w := respondedWith(queriedStores{}, nil, path+"start=10&end=9"); w.Code != http.StatusBadRequest || w.Body.String() != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}
