package role

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTheGateAnswers503UntilReadyAndAgainOnceStopping(t *testing.T) {
	g := &gate{}
	h := g.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { say(w, "answered") }))
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		return w
	}
	if w := ask(); w.Code != http.StatusServiceUnavailable {
		t.Errorf("starting: %d", w.Code)
	}
	g.ready()
	if w := ask(); w.Code != http.StatusOK || w.Body.String() != "answered" {
		t.Errorf("ready: %d", w.Code)
	}
	g.stopping()
	if w := ask(); w.Code != http.StatusServiceUnavailable || w.Header().Get("X-Prometheus-Stopping") != "true" {
		t.Errorf("stopping: %d %v", w.Code, w.Header())
	}
	g.ready()
	if w := ask(); w.Code != http.StatusServiceUnavailable {
		t.Error("a server that stops became ready again")
	}
}

func TestTracingIsOfTypeOTLPOrNone(t *testing.T) {
	for text, ok := range map[string]bool{
		"": true,
		"type: OTLP\nconfig: {client_type: http, endpoint: '127.0.0.1:4318', insecure: true, sampler_type: traceidratiobased, sampler_param: '0.5'}": true,
		"type: OTLP\nconfig: {client_type: grpc, endpoint: '127.0.0.1:4317', insecure: true}":                                                        true,
		"type: JAEGER": false,
		"type: OTLP\nconfig: {client_type: pigeon}":                           false,
		"type: OTLP\nconfig: {client_type: http, sampler_type: nonsense}":     false,
		"type: OTLP\nconfig: {client_type: http, nonsense: 1}":                false,
		"type: OTLP\nconfig: {client_type: http, tls_config: {ca_file: /no}}": false,
	} {
		tr, err := newTracing(text, "test")
		if (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
		if err == nil {
			if err := tr.close(); err != nil {
				t.Errorf("%q: close: %v", text, err)
			}
		}
	}
}
