package metrics

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestSetOptions_NamesAndLabelsOfEveryMetric(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": `p"d`, "az": "1", "ü": "x"}})
	s.NewCounter("a_total").Inc()
	s.GetOrCreateCounter(`a_total{path="/"}`).Inc()
	s.GetOrCreateCounter(`a_total{path="/"}`).Inc()
	s.NewGauge(`g{}`, nil).Set(2)
	s.NewFloatCounter(`f_total{b="c", d="e"}`).Add(1.5)
	s.NewCounterFunc("func_total", func() float64 { return 7 })
	s.NewCounter(`{"http.requests",code="200"}`).Inc()
	s.NewHistogram("vm").Update(1)
	s.NewPrometheusHistogramExt(`h{q="in"}`, []float64{1}).Update(0.5)
	sm := s.NewSummaryExt("s", time.Minute, []float64{1})
	sm.Update(3)
	s.NewCounterVec("v_total", "Help.", "code").With("1").Inc()
	s.NewCounterVec("utf8.total", "", "code").With("1").Inc()
	const l = `az="1",env="p\"d","ü"="x"`
	want := strings.ReplaceAll(`{"app_http.requests",@,code="200"} 1
{"app_utf8.total",@,code="1"} 1
app_a_total{@,path="/"} 2
app_a_total{@} 1
app_f_total{@,b="c", d="e"} 1.5
app_func_total{@} 7
app_g{@} 2
app_h_bucket{@,q="in",le="1"} 1
app_h_bucket{@,q="in",le="+Inf"} 1
app_h_sum{@,q="in"} 0.5
app_h_count{@,q="in"} 1
app_s{@,quantile="1"} 3
app_s_sum{@} 3
app_s_count{@} 1
app_v_total{@,code="1"} 1
app_vm_bucket{@,vmrange="8.799e-01...1.000e+00"} 1
app_vm_sum{@} 1
app_vm_count{@} 1
`, "@", l)
	if got := pageOf(s); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, name := range []string{"a_total", `app_a_total{` + l + `,path="/"}`} {
		if !s.UnregisterMetric(name) || s.UnregisterMetric(name) {
			t.Errorf("%s is not unregistered once", name)
		}
	}
	if families := s.Families(); families[len(families)-2].Name != "app_v_total" || families[len(families)-2].Help != "Help." {
		t.Errorf("families: %+v", families)
	}
	s.UnregisterAllMetrics()
	if got := pageOf(s); got != "" {
		t.Errorf("left: %s", got)
	}
}

func pageOf(s *Set) string {
	var b strings.Builder
	s.WritePrometheus(&b)
	return b.String()
}

func TestSetOptions_VectorsExpireOverflowAndDelete(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": "prod"}})
	s.NewCounter("app_x{code=\"1\"}") // app_app_x, which Delete must not mistake for its own
	v := s.NewCounterVec("x", "", "code").Limit(2)
	v.With("1").Inc()
	v.With("2").Inc()
	v.With("3").Inc()
	want := `app_app_x{env="prod",code="1"} 0
app_x{env="prod",code="1"} 1
app_x{env="prod",code="2"} 1
app_x{env="prod",code="overflow"} 1
metrics_vec_overflow_total{env="prod",family="app_x"} 1
`
	if got := pageOf(s); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	v.Delete("1")
	v.DeletePartialMatch(map[string]string{"code": "2"})
	if got := pageOf(s); strings.Contains(got, `app_x{env="prod",code="2"}`) || !strings.Contains(got, "app_app_x") {
		t.Errorf("after Delete:\n%s", got)
	}
	v.Reset()
	if got := pageOf(s); !strings.HasPrefix(got, "app_app_x{env=\"prod\",code=\"1\"} 0\nmetrics_vec") {
		t.Errorf("after Reset:\n%s", got)
	}
	other := NewSetWithOptions(SetOptions{Labels: map[string]string{"family": "f"}})
	o := other.NewCounterVec("y", "", "code").Limit(0)
	o.With("1").Inc()
	if got := pageOf(other); !strings.Contains(got, `metrics_vec_overflow_total{family="y"} 1`) {
		t.Errorf("got\n%s", got)
	}
}

func TestSetOptions_SetsShareFamiliesOnOnePage(t *testing.T) {
	var sets []*Set
	for _, shard := range []string{"1", "2"} {
		s := NewSetWithOptions(SetOptions{Prefix: "db_", Labels: map[string]string{"shard": shard}})
		s.Describe("reads_total", "Reads.", "")
		s.NewCounter("reads_total").Inc()
		sets = append(sets, s)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Accept", "application/openmetrics-text;version=1.0.0")
	NewHandler(HandlerOptions{Sets: sets}).ServeHTTP(w, r)
	want := "# HELP db_reads Reads.\n# TYPE db_reads counter\ndb_reads_total{shard=\"1\"} 1.0\ndb_reads_total{shard=\"2\"} 1.0\n# EOF\n"
	if got := w.Body.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestSetOptions_ProgrammingErrorsPanic(t *testing.T) {
	s := NewSetWithOptions(SetOptions{Prefix: "app_", Labels: map[string]string{"env": "prod", "ü": "x"}})
	s.NewCounter("taken")
	for name, f := range map[string]func(){
		"prefix":             func() { NewSetWithOptions(SetOptions{Prefix: "a-"}) },
		"reserved label":     func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"le": "1"}}) },
		"empty label":        func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"": "1"}}) },
		"value":              func() { NewSetWithOptions(SetOptions{Labels: map[string]string{"a": "\xff"}}) },
		"label of the set":   func() { s.NewCounter(`a{b="c",env="x"}`) },
		"quoted label":       func() { s.NewCounter(`{"a.b","ü"="x"}`) },
		"label of a vector":  func() { s.NewGaugeVec("v", "", "env") },
		"quoted of a vector": func() { s.NewGaugeVec("v", "", "ü") },
		"name":               func() { s.NewCounter("a b") },
		"taken":              func() { s.NewCounter("taken") },
		"other type":         func() { s.GetOrCreateGauge("taken", nil) },
	} {
		func() {
			defer func() {
				if reason := recover(); reason == nil || !strings.HasPrefix(fmt.Sprint(reason), "BUG: ") {
					t.Errorf("%s: %v", name, reason)
				}
			}()
			f()
		}()
	}
}
