package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// stalledStores implements httpapi.Stores with targets that arrive when the request has ended.
type stalledStores struct{ listedStores }

func (s stalledStores) Query(fanout.Request) httpapi.StoreQuery { return s }

func (stalledStores) Targets(ctx context.Context, _ string) (storeapi.Targets, annotations.Annotations, error) {
	<-ctx.Done()
	return storeapi.Targets{}, nil, context.Cause(ctx)
}

func TestOptions_StoreTimeoutEndsRequestsToStores(t *testing.T) {
	get := func(stores httpapi.Stores, timeout time.Duration, path string) *httptest.ResponseRecorder {
		mux := http.NewServeMux()
		httpapi.New(httpapi.Options{Stores: stores, StoreTimeout: timeout, Parser: parser.NewParser(parser.Options{})}).Register(mux, "/api/v1")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1"+path, nil))
		return w
	}
	for _, path := range []string{"/targets", "/rules", "/alerts"} {
		without, within := get(listedStores{}, 0, path), get(listedStores{}, time.Hour, path)
		if within.Code != http.StatusOK || within.Body.String() != without.Body.String() {
			t.Errorf("%s: %d %s, without a timeout %s", path, within.Code, within.Body, without.Body)
		}
	}
	late := get(stalledStores{}, time.Millisecond, "/targets")
	if late.Code != http.StatusServiceUnavailable || !strings.Contains(late.Body.String(), `"errorType":"timeout"`) || !strings.Contains(late.Body.String(), "the stores have not responded in time (1ms)") {
		t.Errorf("%d %s", late.Code, late.Body)
	}
}
