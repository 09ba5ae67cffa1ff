package httpapi_test

import (
	"net/http"
	"net/url"
	"testing"
)

// listForms are the forms of requests to /series, /labels and /label/*/values.
func listForms() []url.Values {
	times := []string{"", "0", "600.5", "1700000000.123", "-1e18", "1e18", "x", "NaN", "2023-11-14T22:13:20Z", "-292273086-05-16T16:47:06Z", "292277025-08-18T07:12:54.999999999Z"}
	forms := []url.Values{
		nil, form("match[]", "demo_gauge"), form("match[]", `{job="api"}`), form("match[]", `{__name__=~"demo_.*"}`), form("match[]", "nothing"), form("match[]", `many`),
		form("match[]", "demo_gauge", "match[]", "demo_requests_total"), form("match[]", "many", "match[]", `{i="7"}`, "match[]", "nothing"), form("match[]", "odd_label"), form("match[]", `{"日本"="x"}`), form("match[]", `{__name__=~".+"}`),
		form("match[]", ""), form("match[]", "{"), form("match[]", "{}"), form("match[]", `{job=""}`), form("match[]", `{job=~".*"}`), form("match[]", `{job!="x"}`), form("match[]", "demo_gauge", "match[]", `{job=~"("}`), form("match[]", "demo_gauge[5m]"), form("match[]", "sum(demo_gauge)"), form("match[]", "demo_gauge offset 5m"), form("match[]", "\x00"), form("match[]", "{\"\xff\"}"),
		form("match[]", `{__name__="demo_gauge",__name__="demo_gauge"}`), form("match[]", `demo_gauge{job!=""}`, "match[]", `demo_gauge{job!~""}`), form("match[]", `{nosuch!~"."}`), form("query", "ignored", "match[]", "demo_gauge"), form("match", "demo_gauge"),
	}
	for _, limit := range []string{"0", "1", "3", "1000000", "-1", "x", "1.5", "99999999999999999999", "9223372036854775807"} {
		forms = append(forms, form("limit", limit), form("limit", limit, "match[]", "many"), form("limit", limit, "match[]", "many", "match[]", "demo_gauge"))
	}
	for i, at := range times {
		forms = append(forms, form("start", at, "match[]", "demo_gauge"), form("end", at, "match[]", "demo_gauge"), form("start", at, "end", times[(i*7+3)%len(times)], "match[]", `{__name__=~"many|demo_gauge"}`), form("end", at))
	}
	return forms
}

func TestAPI_LabelsAndSeriesEqualPrometheus(t *testing.T) {
	w := shared(t)
	paths := []string{
		"/series", "/labels", "/label/job/values", "/label/__name__/values", "/label/v/values", "/label/label.with.dots/values", "/label/U__label_2e_with_2e_dots/values", "/label/%E6%97%A5%E6%9C%AC/values", "/label/%22/values", "/label/le%3C%3E/values",
		"/label/nosuch/values", "/label/%FF/values", "/label/a%00b/values", "/label/U___/values", "/label/%20/values", "/label/i/values",
	}
	n := 0
	for _, path := range paths {
		for i, f := range sampled(listForms()) {
			w.compare(t, request{path: path, form: f}, nil)
			n++
			if (path == "/series" || path == "/labels") && i%3 == 0 {
				w.compare(t, request{path: path, form: f, method: http.MethodPost, encoding: formInBody}, nil)
				n++
			}
		}
	}
	t.Logf("%d requests compared", n)
}

func TestAPI_ExemplarsEqualPrometheus(t *testing.T) {
	w := shared(t)
	for i, f := range []url.Values{
		nil, form("query", "demo_requests_total"), form("query", `demo_requests_total{job="api"}`), form("query", `rate(demo_requests_total[5m]) / on(job) group_left sum by (job) (demo_latency_seconds_bucket)`), form("query", "native_integer"),
		form("query", "nothing"), form("query", "1"), form("query", "time()"), form("query", `"x"`), form("query", "{"), form("query", "demo_requests_total[5m]"), form("query", `{__name__=~".+"}`), form("query", "max_over_time(rate(demo_requests_total[1m])[5m:1m])"),
		form("query", "demo_requests_total", "start", "600"), form("query", "demo_requests_total", "end", "600"), form("query", "demo_requests_total", "start", "600", "end", "599"), form("query", "demo_requests_total", "start", "600", "end", "600"),
		form("query", "demo_requests_total", "start", "-300.007", "end", "-300.007"), form("query", "demo_requests_total", "start", "1700000000", "end", "1700000900.5"), form("query", "demo_requests_total", "start", "x"), form("query", "demo_requests_total", "end", "x"), form("query", "{", "start", "5", "end", "1"),
	} {
		a := request{path: "/query_exemplars", form: f}
		if i%2 == 1 {
			a.method, a.encoding = http.MethodPost, formEncoding(1+i/2%2)
		}
		w.compare(t, a, nil)
	}
}
