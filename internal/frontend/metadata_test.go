package frontend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"
)

// labelPaths are requests of lists whose responses depend on the range.
var labelPaths = []string{"/api/v1/labels?", "/api/v1/label/room/values?", "/api/v1/series?match[]=" + url.QueryEscape(`{__name__=~"temperature|onlyonce"}`) + "&"}

// getList returns a list, sorted: Prometheus returns series of its head unsorted.
func getList(t *testing.T, address string) (string, http.Header) {
	t.Helper()
	status, body, h := get(t, address)
	var list struct{ Data []json.RawMessage }
	check(t, status == 200 && json.Unmarshal([]byte(body), &list) == nil, "%d %s", status, body)
	var all []string
	for _, element := range list.Data {
		all = append(all, string(element))
	}
	slices.Sort(all)
	return strings.Join(all, " "), h
}

// The response has the labels of the requested range only, whatever is cached: a cached interval may have further labels.
func TestMetadata_ResponseIsThatOfTheRangeExactly(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) { o.Labels.Interval, o.LabelCache = time.Hour, newMemoryCache() })
	differ := 0
	for _, path := range labelPaths {
		whole, _ := getList(t, front.URL+path+"start=0&end=10799.999")
		for _, bounds := range []string{"start=0&end=10799.999", "start=1800.123&end=9000.456", "start=0&end=1800", "start=60&end=10020", "start=3600&end=5940", "start=7260&end=7261"} {
			want, _ := getList(t, w.server.URL+path+bounds)
			for range 2 {
				got, _ := getList(t, front.URL+path+bounds)
				check(t, got == want, "%s%s\ngot  %s\nwant %s", path, bounds, got, want)
			}
			if want != whole {
				differ++
			}
		}
	}
	check(t, differ > 0, "all ranges have the same labels")
}

func TestMetadata_EntriesWithTheTimeOfTheRequestAreNotStored(t *testing.T) {
	w := newTestEnv(t)
	for _, whole := range []bool{false, true} {
		cached := newTestCache()
		var now time.Time
		front := w.front(func(o *Options) {
			o.Labels.Interval, o.LabelCache, o.Labels.WholeIntervals = time.Hour, cached.Cache, whole
			o.Now = func() time.Time { return now }
		})
		// "The last two hours", again and again.
		for i := range 10 {
			now = time.Unix(11_000, int64(i)*1_001_000_000)
			start := now.Add(-2 * time.Hour)
			status, _, _ := get(t, front.URL+fmt.Sprintf("/api/v1/labels?start=%d.%03d&end=%d.%03d", start.Unix(), start.Nanosecond()/1e6, now.Unix(), now.Nanosecond()/1e6))
			check(t, status == 200, "%d", status)
		}
		// The second hour is a whole one; the first is with the flag only.
		want := 1
		if whole {
			want = 2
		}
		check(t, cached.values() == want, "whole intervals %v: %d entries, want %d", whole, cached.values(), want)
	}
}

func TestMetadata_WholeIntervalsServeTheirParts(t *testing.T) {
	w := newTestEnv(t)
	front := w.front(func(o *Options) {
		o.Labels.Interval, o.LabelCache, o.Labels.WholeIntervals = time.Hour, newMemoryCache(), true
	})
	for _, path := range labelPaths {
		want, _ := getList(t, w.server.URL+path+"start=0&end=10799.999")
		for i, bounds := range []string{"start=1800.123&end=9000.456", "start=1800.124&end=9000.457", "start=3599.999&end=7200", "start=0&end=10799.999"} {
			before := w.requests.Load()
			got, h := getList(t, front.URL+path+bounds)
			calls := w.requests.Load() - before
			check(t, got == want, "%s%s\ngot  %s\nwant %s", path, bounds, got, want)
			check(t, (h.Get("X-Ferula-Cache") == "hit") == (i > 0) && calls == []int64{3, 0, 0, 0}[i], "%s%s: cache %s, %d calls", path, bounds, h.Get("X-Ferula-Cache"), calls)
		}
	}
	// The interval that has not ended is requested up to the end of the range.
	w.mu.Lock()
	w.queries = nil
	w.mu.Unlock()
	_, _, _ = get(t, front.URL+"/api/v1/labels?start=14000&end=15000") // now is 15,600
	check(t, len(w.queries) == 2, "%d calls", len(w.queries))
	for _, q := range w.queries {
		first := q.Get("start") == "10800" && q.Get("end") == "14399.999"
		check(t, first || q.Get("start") == "14400" && q.Get("end") == "15000", "%v", q)
	}
}
