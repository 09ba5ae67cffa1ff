package metrics

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestTheHandlerCompressesForWhoAcceptsIt(t *testing.T) {
	s := NewSet()
	s.NewCounter("c_total").Inc()
	for accept, zipped := range map[string]bool{
		"": false, "gzip": true, "deflate, GZIP;q=0.5": true, "gzip;q=0": false, "*": true, "*;q=0": false, "*, gzip;q=0": false, "br": false, "gzip;q=x": false,
	} {
		for range 2 {
			req := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			if accept != "" {
				req.Header.Set("Accept-Encoding", accept)
			}
			w := httptest.NewRecorder()
			s.Handler().ServeHTTP(w, req)
			var body io.Reader = w.Body
			if got := w.Header().Get("Content-Encoding") == "gzip"; got != zipped {
				t.Fatalf("%q: compressed: %v", accept, got)
			}
			if zipped {
				var err error
				if body, err = gzip.NewReader(w.Body); err != nil {
					t.Fatal(err)
				}
			}
			page, err := io.ReadAll(body)
			if err != nil {
				t.Fatal(err)
			}
			check(t, accept, string(page), "c_total 1\n")
			check(t, "type", w.Header().Get("Content-Type"), "text/plain; version=0.0.4; charset=utf-8")
		}
	}
}

func TestTheHandlerIsForReading(t *testing.T) {
	for method, status := range map[string]int{http.MethodHead: 200, http.MethodPost: 405, http.MethodGet: 200} {
		w := httptest.NewRecorder()
		Handler(true).ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		if w.Code != status || (w.Body.Len() > 0) != (method != http.MethodHead) {
			t.Errorf("%s: status %d, %d bytes", method, w.Code, w.Body.Len())
		}
	}
}
