package process

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestReadiness_Returns503UntilReadyAndAfterStopping(t *testing.T) {
	g := &Readiness{}
	h := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("served")) }))
	get := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	if w := get(); w.Code != http.StatusServiceUnavailable {
		t.Errorf("starting: %d", w.Code)
	}
	g.Ready()
	if w := get(); w.Code != http.StatusOK || w.Body.String() != "served" {
		t.Errorf("ready: %d", w.Code)
	}
	g.Stopping()
	if w := get(); w.Code != http.StatusServiceUnavailable || w.Header().Get("X-Prometheus-Stopping") != "true" {
		t.Errorf("stopping: %d %v", w.Code, w.Header())
	}
	g.Ready()
	if w := get(); w.Code != http.StatusServiceUnavailable {
		t.Error("a stopping server became ready again")
	}
}

func TestReadiness_StartingSetsStoppingHeaderToFalse(t *testing.T) {
	w := httptest.NewRecorder()
	(&Readiness{}).Wrap(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("X-Prometheus-Stopping") != "false" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
}
