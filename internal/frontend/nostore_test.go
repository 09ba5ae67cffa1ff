package frontend

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A response that breaks off is continued by a second one. The no-store of the second one applies to the whole response.
func TestNoStore_OfAContinuedResponseIsHonoured(t *testing.T) {
	for name, path := range map[string]string{"range": rangePath("up", 0, 3599, 30), "labels": "/api/v1/labels?start=0&end=3599.999"} {
		for _, second := range []string{"no-store", "max-age=60"} {
			w := newTestEnvWith(t, http.NotFoundHandler())
			var calls atomic.Int64
			w.break_ = func(rw http.ResponseWriter, _ *http.Request) bool {
				body := `{"status":"success","data":{"resultType":"matrix","result":[]}}`
				if name == "labels" {
					body = `{"status":"success","data":["a","b"]}`
				}
				rw.Header().Set("Content-Type", "application/json")
				if calls.Add(1)%2 == 0 {
					rw.Header().Set("Cache-Control", second)
				} else {
					rw.Header().Set("Content-Length", "1000")
					body = body[:20]
				}
				_, _ = rw.Write([]byte(body))
				return true
			}
			front := w.front(func(o *Options) {
				o.Cache, o.LabelCache, o.Labels.Interval = newMemoryCache(), newMemoryCache(), time.Hour
			})
			for i := range 2 {
				status, body, h := get(t, front.URL+path)
				hit := h.Get("X-Ferula-Cache") == "hit"
				check(t, status == 200 && strings.HasPrefix(body, `{"status":"success"`), "%s: %d %s", name, status, body)
				check(t, hit == (i == 1 && second != "no-store"), "%s, %s, request %d: cache %s", name, second, i, h.Get("X-Ferula-Cache"))
			}
		}
	}
}
