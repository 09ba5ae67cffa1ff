package httpapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
)

// estimating serves the API with an estimate of 400 samples of 10 series for each selection, and a limit.
func estimating(t *testing.T, most int64, from storage.Queryable) http.Handler {
	t.Helper()
	p := shared(t).parts(t)
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{
		Engine: p.engine, Parser: p.parser, Queryable: from, EstimateMax: most, Flags: hint.Flags{"EstimateMax": "--most"},
		Estimate: func(context.Context, int64, int64, ...*labels.Matcher) (series, samples int64, err error) {
			return 10, 400, nil
		},
	}).Register(mux, "/api/v1")
	return mux
}

func TestQuery_OverTheEstimateIsRejectedBeforeItReads(t *testing.T) {
	reads := 0
	from := storage.QueryableFunc(func(int64, int64) (storage.Querier, error) {
		reads++
		return storage.NoopQuerier(), nil
	})
	for _, tt := range []struct {
		most   int64
		status int
		text   string
	}{
		{0, http.StatusOK, "success"},
		{800, http.StatusOK, "success"},
		{799, http.StatusUnprocessableEntity, `"errorType":"execution","error":"the query would read up to 800 samples of 20 series by estimate, more than the limit of 799 (--most)"`},
	} {
		reads = 0
		out := httptest.NewRecorder()
		path := "/api/v1/query?query=" + url.QueryEscape("a + rate(b[5m])")
		estimating(t, tt.most, from).ServeHTTP(out, httptest.NewRequest(http.MethodGet, path, nil))
		if out.Code != tt.status || !strings.Contains(out.Body.String(), tt.text) || (reads == 0) != (out.Code != http.StatusOK) {
			t.Errorf("limit %d: %d %s, %d reads", tt.most, out.Code, out.Body, reads)
		}
	}
}

// endingWriter ends the only running query when the first bytes of its response are written.
type endingWriter struct {
	*httptest.ResponseRecorder
	t      *testing.T
	api    http.Handler
	writes int
}

func (w *endingWriter) Write(p []byte) (int, error) {
	if w.writes++; w.writes == 1 {
		list := runningOf(w.api)
		id := regexp.MustCompile(`"id":"([^"]+)"`).FindStringSubmatch(list)
		if id == nil || !strings.Contains(list, `"stage":"sending"`) {
			w.t.Fatalf("not being sent: %s", list)
		}
		out := httptest.NewRecorder()
		w.api.ServeHTTP(out, httptest.NewRequest(http.MethodPost, "/api/v1/queries/running/"+id[1]+"/cancel", nil))
		if out.Code != http.StatusOK {
			w.t.Errorf("%d %s", out.Code, out.Body)
		}
	}
	return w.ResponseRecorder.Write(p)
}

func runningOf(api http.Handler) string {
	out := httptest.NewRecorder()
	api.ServeHTTP(out, httptest.NewRequest(http.MethodGet, "/api/v1/queries/running", nil))
	return out.Body.String()
}

func TestQuery_EndedWhileItsResponseIsSentCutsTheConnection(t *testing.T) {
	const points = 500
	p := shared(t).parts(t)
	engine := &stubEngine{result: &promql.Result{Value: matrix(100, points)}}
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Engine: engine, Parser: p.parser, Queryable: shared(t).db, Admin: true}).Register(mux, "/api/v1")
	w := &endingWriter{ResponseRecorder: httptest.NewRecorder(), t: t, api: mux}
	func() {
		defer func() {
			if aborted := recover(); aborted != http.ErrAbortHandler {
				t.Errorf("%v, %d bytes", aborted, w.Body.Len())
			}
		}()
		r := rangeRequest(points)
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1"+r.path+"?"+r.form.Encode(), nil))
	}()
	if list := runningOf(mux); w.writes != 1 || !strings.Contains(list, `"queries":[]`) || engine.opened.Load() != 0 {
		t.Errorf("%d writes, %s, %d open queries", w.writes, list, engine.opened.Load())
	}
}
