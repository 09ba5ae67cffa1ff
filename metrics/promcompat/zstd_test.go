package promcompat_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/ferula-io/ferula/metrics"
	"github.com/ferula-io/ferula/metrics/promcompat"
)

// A decompressed response equals the uncompressed one, also in a second scrape, which reuses the
// encoder.
func TestZstd_PageIsThePage(t *testing.T) {
	s := metrics.NewSet()
	for i := range 5000 {
		s.NewCounter(fmt.Sprintf(`requests_total{path="/api/v1/%d"}`, i)).Add(i)
	}
	h := metrics.NewHandler(metrics.HandlerOptions{Sets: []*metrics.Set{s}, Compressors: []metrics.Compressor{promcompat.Zstd()}})
	want, _ := get(t, h, "")
	decoder, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer decoder.Close()
	for range 2 {
		r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept-Encoding", "gzip, zstd")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got, err := decoder.DecodeAll(w.Body.Bytes(), nil)
		if err != nil || w.Header().Get("Content-Encoding") != "zstd" || string(got) != want || w.Body.Len() > len(want)/4 {
			t.Errorf("coding %q, %d bytes, decoded %d, want %d: %v", w.Header().Get("Content-Encoding"), w.Body.Len(), len(got), len(want), err)
		}
	}
}

func ExampleZstd() {
	h := metrics.NewHandler(metrics.HandlerOptions{Compressors: []metrics.Compressor{promcompat.Zstd()}})
	r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept-Encoding", "zstd")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	fmt.Println(w.Header().Get("Content-Encoding"))
	// Output: zstd
}
