package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/httpapi"
)

// endpoints are those of Prometheus that get bad parameters.
var endpoints = []string{
	"/query", "/query_range", "/query_exemplars", "/format_query", "/parse_query", "/labels", "/label/job/values", "/series", "/targets", "/targets/metadata", "/metadata", "/scrape_pools", "/status/tsdb", "/status/config", "/status/flags", "/status/walreplay", "/rules",
}

// statuses are all statuses that the API may return.
var statuses = []int{200, 204, 400, 404, 405, 422, 499, 500, 503}

func TestAPI_BodyOverTheLimitIsBadData(t *testing.T) {
	h := shared(t).pairs["default"].ours
	const limit = 10 << 20
	huge := "query=" + strings.Repeat("a", limit+1)
	for name, a := range map[string]struct{ body, contentType string }{
		"form":          {huge, "application/x-www-form-urlencoded"},
		"many fields":   {strings.Repeat("match[]="+strings.Repeat("x", 1000)+"&", limit/1000), "application/x-www-form-urlencoded"},
		"one part":      {"--x\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\n" + huge + "\r\n--x--\r\n", "multipart/form-data; boundary=x"},
		"one file":      {"--x\r\nContent-Disposition: form-data; name=\"query\"; filename=\"f\"\r\n\r\n" + huge + "\r\n--x--\r\n", "multipart/form-data; boundary=x"},
		"odd spelling":  {"--x\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\n" + huge + "\r\n--x--\r\n", "Multipart/Form-Data; boundary=x"},
		"with charset":  {huge, "application/x-www-form-urlencoded; charset=utf-8"},
		"without limit": {huge, "application/x-www-form-urlencoded"},
	} {
		for _, path := range []string{"/query", "/series"} {
			r := httptest.NewRequest(http.MethodPost, prefix+path, strings.NewReader(a.body))
			r.Header.Set("Content-Type", a.contentType)
			if name == "without limit" {
				r.ContentLength = -1
			}
			got := send(h, r)
			if got.status != http.StatusBadRequest || got.body != `{"status":"error","errorType":"bad_data","error":"request body is larger than 10485760 bytes"}` {
				t.Errorf("%s to %s: got %s", name, path, got)
			}
		}
	}
}

func TestAPI_LargeFormIsRefused(t *testing.T) {
	mux := http.NewServeMux()
	p := shared(t).parts(t)
	httpapi.New(httpapi.Options{Engine: p.engine, Parser: p.parser, Queryable: p.queryable}).Register(mux, prefix)
	fits := form("query", "1", "time", "5")
	if got := send(mux, request{method: http.MethodPost, path: "/query", encoding: formInBody, form: fits}.request(t)); got.status != http.StatusOK {
		t.Errorf("got %s", got)
	}
	fits.Set("padding", strings.Repeat("x", 10<<20))
	if got := send(mux, request{method: http.MethodPost, path: "/query", encoding: formInBody, form: fits}.request(t)); !strings.Contains(got.body, "larger than 10485760 bytes") {
		t.Errorf("got %s", got)
	}
}

func TestAPI_MalformedBodyIsBadData(t *testing.T) {
	h := shared(t).pairs["default"].ours
	for contentType, body := range map[string]string{
		"multipart/form-data":             "--x\r\n\r\n",
		"multipart/form-data; boundary=x": "--x\r\nContent-Disposition: form-data; name=\"query\"\r\n\r\n1",
		"multipart/form-data; boundary=y": "no parts",
		"multipart/form-data; boundary=":  "",
		"multipart/form-data; boundary=z": "--z\r\n" + strings.Repeat("A: b\r\n", 20000) + "\r\n\r\n--z--",
		// What is not a form.
		"application/x-www-form-urlencoded; charset=\"": "query=1",
		"application/x-www-form-urlencoded":             "query=%zz",
		"Application/X-WWW-Form-URLEncoded":             "query=1&time=%",
	} {
		r := httptest.NewRequest(http.MethodPost, prefix+"/query?query=1&time=5", strings.NewReader(body))
		r.Header.Set("Content-Type", contentType)
		got := send(h, r)
		if got.status != http.StatusBadRequest || !strings.HasPrefix(got.body, `{"status":"error","errorType":"bad_data","error":"error parsing form values: `) {
			t.Errorf("%s: got %s", contentType, got)
		}
	}
	// A body of another type is not a form: the URL alone counts, as in Prometheus.
	for _, contentType := range []string{"", "application/json", "text/plain"} {
		r := httptest.NewRequest(http.MethodPost, prefix+"/query?query=1&time=5", strings.NewReader("query=2"))
		r.Header.Set("Content-Type", contentType)
		if got := send(h, r); got.body != `{"status":"success","data":{"resultType":"scalar","result":[5,"1"]}}` {
			t.Errorf("%q: got %s", contentType, got)
		}
	}
}

// deep makes queries whose trees have about n levels.
func deep(n int) map[string]string {
	return map[string]string{
		"brackets":     strings.Repeat("(", n) + "up" + strings.Repeat(")", n),
		"signs":        strings.Repeat("-", n) + "up",
		"calls":        strings.Repeat("abs(", n) + "up" + strings.Repeat(")", n),
		"aggregations": strings.Repeat("sum(", n) + "up" + strings.Repeat(")", n),
		"sums":         strings.Repeat("up+", n) + "up",
		"powers":       strings.Repeat("up^", n) + "up",
		"unions":       strings.Repeat("up or ", n) + "up",
		"subqueries":   strings.Repeat("max_over_time(", n) + "up" + strings.Repeat("[5m:1m])", n),
		"arguments":    strings.Repeat("clamp_max(up, scalar(", n) + "up" + strings.Repeat("))", n),
		"bracket sums": strings.Repeat("(", n/2) + "up" + strings.Repeat("+up)", n/2),
		"modifiers":    strings.Repeat("sum by (x) (", n) + "up" + strings.Repeat(")", n),
	}
}

func TestAPI_QueryNestedBeyondTheLimitIsBadData(t *testing.T) {
	h := shared(t).pairs["default"].ours
	paths := []string{"/query", "/query_range", "/parse_query", "/format_query", "/query_exemplars"}
	for name, query := range deep(10_500) {
		for _, path := range paths {
			started := time.Now()
			got := send(h, request{method: http.MethodPost, encoding: formInBody, path: path, form: form("query", query, "time", "5", "start", "0", "end", "9", "step", "3")}.request(t))
			if got.status != http.StatusBadRequest || !strings.Contains(got.body, "nested deeper than ") {
				t.Errorf("%s to %s: got %s", name, path, got)
			}
			if took := time.Since(started); took > 20*time.Second {
				t.Errorf("%s to %s: refused only after %s", name, path, took)
			}
		}
	}
	formatted := deep(90)
	for name, query := range deep(150) {
		for _, path := range paths {
			if path == "/format_query" || path == "/parse_query" {
				query = formatted[name]
			}
			got := send(h, request{method: http.MethodPost, encoding: formInBody, path: path, form: form("query", query, "time", "5", "start", "0", "end", "9", "step", "3")}.request(t))
			if got.status != http.StatusOK && got.status != http.StatusUnprocessableEntity {
				t.Errorf("%s to %s: got %s", name, path, got)
			}
		}
	}
}

func TestAPI_LongFlatQueryIsEvaluated(t *testing.T) {
	w := shared(t)
	for name, query := range map[string]string{
		"matchers":  "demo_gauge{" + strings.Repeat(`job!="x",`, 50_000) + "}",
		"groups":    "sum by (" + strings.Repeat("job,", 50_000) + "job) (demo_gauge)",
		"string":    `"` + strings.Repeat("<", 1<<20) + `"`,
		"comment":   "1 #" + strings.Repeat("(", 1<<20),
		"spaces":    strings.Repeat(" ", 1<<20) + "1",
		"arguments": `label_join(demo_gauge, "x", ","` + strings.Repeat(`, "job"`, 10_000) + ")",
		"garbage":   strings.Repeat("a ", 1<<18),
		"digits":    strings.Repeat("1", 1<<16),
	} {
		if name == "string" { // not sent to Prometheus, which would be slow
			got := send(w.pairs["default"].ours, request{method: http.MethodPost, encoding: formInBody, path: "/query", form: form("query", query, "time", "5")}.request(t))
			if got.status != http.StatusOK || len(got.body) < 6<<20 {
				t.Errorf("%s: got %s", name, got)
			}
			continue
		}
		w.compare(t, request{method: http.MethodPost, encoding: formInBody, path: "/query", form: form("query", query, "time", "600")}, nil)
	}
}

func TestAPI_NullBytesAndInvalidUTF8EqualPrometheus(t *testing.T) {
	w := shared(t)
	bad := []string{"\x00", "1\x00", "\xff\xfe", "a\x00b", "\u2028", "\ufffd", "🔥", strings.Repeat("\x00", 1000), "\r\nX-Injected: yes", "../../etc/passwd", "%00", "${jndi:x}", "' OR 1=1 --"}
	for _, path := range endpoints {
		for _, text := range sampled(bad) {
			for _, name := range []string{"query", "time", "start", "end", "step", "timeout", "limit", "lookback_delta", "stats", "match[]", "match_target", "metric", "limit_per_metric", "state", "scrapePool"} {
				w.compare(t, request{path: path, form: form(name, text)}, unorderedTargets(path))
			}
		}
	}
}

// unorderedTargets returns the function that removes the random order of maps in Prometheus' targets.
func unorderedTargets(path string) func(string) string {
	if path == "/metadata" || path == "/targets/metadata" {
		return unordered
	}
	return nil
}

// FuzzQueryParameters sends arbitrary parameters to every endpoint. It must not panic, and
// the response is JSON with a known status, or empty with status 204.
func FuzzQueryParameters(f *testing.F) {
	for i, path := range endpoints {
		expr := selectorExprs[i*3%len(selectorExprs)]
		f.Add(path, "query="+url.QueryEscape(expr)+"&time=600&start=0&end=900&step=15&match[]="+url.QueryEscape(expr), i%2 == 0)
		f.Add(path, "query="+url.QueryEscape(brokenExprs[i*7%len(brokenExprs)])+"&limit=3&stats=all&timeout=1s&lookback_delta=5m", i%3 == 0)
	}
	for _, query := range []string{"", "&&&", "=", "%", "%zz", ";", "a=b;c=d", "query", "query=%00", "match[]=%7B%7D&match[]=x", "start=1e400&end=-1e400&step=NaN", "time=9223372036854775807", "start=-292273086-05-16T16:47:06Z&end=292277025-08-18T07:12:54.999999999Z&step=1y", "limit=-0&limit=1", "query=up&start=9e15&end=9.1e15&step=1e12"} {
		f.Add("/query", query, true)
		f.Add("/query_range", query, false)
		f.Add("/series", query, true)
	}
	w := shared(f)
	f.Fuzz(func(t *testing.T, path, query string, post bool) {
		if !slices.Contains(endpoints, path) {
			path = endpoints[len(path)%len(endpoints)]
		}
		r := httptest.NewRequest(http.MethodGet, prefix+path, http.NoBody)
		r.URL.RawQuery = query
		if post {
			r = httptest.NewRequest(http.MethodPost, prefix+path, strings.NewReader(query))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		}
		got := send(w.pairs["small"].ours, r)
		switch {
		case !slices.Contains(statuses, got.status):
			t.Errorf("status %d", got.status)
		case got.status == http.StatusNoContent && got.body != "":
			t.Errorf("204 with a body: %s", got)
		case got.status == http.StatusNoContent || got.status == http.StatusMethodNotAllowed || got.status == http.StatusNotFound:
		case !json.Valid([]byte(got.body)):
			t.Errorf("not JSON: %s", got)
		case (got.status == http.StatusOK) != bytes.HasPrefix([]byte(got.body), []byte(`{"status":"success",`)):
			t.Errorf("status and body disagree: %s", got)
		}
	})
}
