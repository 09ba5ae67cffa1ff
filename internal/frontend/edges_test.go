package frontend

import (
	"testing"
	"time"
)

// The default of partial_response is that of requests that name none.
func TestFrontend_PartialResponseHasADefault(t *testing.T) {
	for _, path := range []string{rangePath("temperature", 0, 9000, 60), "/api/v1/labels?start=0&end=9000"} {
		for given, want := range map[string]string{"": "of-options", "&partial_response=own": "own"} {
			w := newTestEnv(t)
			front := w.front(func(o *Options) {
				o.PartialResponse, o.Labels.PartialResponse, o.Labels.Interval = "of-options", "of-options", time.Hour
			})
			status, body, _ := get(t, front.URL+path+given)
			check(t, status == 200, "%s: %d %s", path, status, body)
			w.mu.Lock()
			check(t, len(w.queries) == 3, "%s: %d requests", path, len(w.queries))
			for _, q := range w.queries {
				check(t, q.Get("partial_response") == want && len(q["partial_response"]) == 1, "%s%s: %v", path, given, q)
			}
			w.mu.Unlock()
		}
		w := newTestEnv(t)
		status, body, _ := get(t, w.front(func(o *Options) { o.Labels.Interval = time.Hour }).URL+path)
		check(t, status == 200, "%s: %d %s", path, status, body)
		w.mu.Lock()
		for _, q := range w.queries {
			check(t, !q.Has("partial_response"), "without a default: %v", q)
		}
		w.mu.Unlock()
	}
}
