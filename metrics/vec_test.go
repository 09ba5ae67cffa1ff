package metrics

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestVec_EscapesDescribesAndOverflows(t *testing.T) {
	ExposeMetadata(true)
	defer ExposeMetadata(false)
	s := NewSet()
	v := s.NewCounterVec("requests_total", "Requests\nserved by \\.", "method", "path").Limit(2)
	v.With("GET", "a\"\\\nb").Inc()
	v.With("PUT", "").Add(2)
	v.With("one", "more").Inc()
	v.With("and", "another").Inc()
	v.With("PUT", "").Inc()
	s.NewGaugeVec("g", "", "l").With("x").Set(1)
	check(t, "page", text(s), `# HELP g
# TYPE g gauge
g{l="x"} 1
# HELP metrics_vec_overflow_total
# TYPE metrics_vec_overflow_total counter
metrics_vec_overflow_total{family="requests_total"} 2
# HELP requests_total Requests\nserved by \\.
# TYPE requests_total counter
requests_total{method="GET",path="a\"\\\nb"} 1
requests_total{method="PUT",path=""} 3
requests_total{method="overflow",path="overflow"} 2
`)
}

func TestVec_EveryType(t *testing.T) {
	s := NewSet()
	s.NewFloatCounterVec("f", "", "l").With("x").Add(.5)
	s.NewHistogramVec("h", "", "l").With("x").Update(1.5)
	s.NewPrometheusHistogramVec("p", "", []float64{1}, "l").With("x").Update(1)
	s.NewSummaryVec("s", "", "l").With("x").Update(1)
	if got := text(s); strings.Count(got, `l="x"`) != 1+3+4+7 {
		t.Error(got)
	}
}

func TestVec_ConcurrentLookups(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "a", "b")
	var wg sync.WaitGroup
	for range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 4000 {
				v.With(fmt.Sprint(i%1000), fmt.Sprint(i%10)).Inc()
			}
		}()
	}
	wg.Wait()
	if n := len(s.ListMetricNames()); n != 1000 {
		t.Errorf("%d members", n)
	}
	for i := range 1000 {
		if n := v.With(fmt.Sprint(i), fmt.Sprint(i%10)).Get(); n != 16 {
			t.Fatalf("member %d counted %d", i, n)
		}
	}
}

// 32 goroutines register, update, scrape and let members expire; the remaining set is
// consistent.
func TestSet_ThirtyTwoGoroutines(t *testing.T) {
	const each, rounds = 8, 150
	s := NewSet()
	kept := s.NewCounter("kept_total")
	brief := s.NewCounterVec("brief_total", "", "i").Expire(time.Microsecond)
	sizes := s.NewPrometheusHistogramVec("sizes", "", []float64{10, 100}, "i").Expire(time.Microsecond)
	handler := s.Handler()
	accepts := []string{"", "application/openmetrics-text", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", "text/plain;version=1.0.0"}
	jobs := []func(who, i int){
		func(who, i int) { // register and remove
			name := fmt.Sprintf(`own_total{who="%d",i="%d"}`, who, i%20)
			s.GetOrCreateCounter(name).Inc()
			label := fmt.Sprintf(`{i="%d"}`, i%5)
			s.GetOrCreateFloatCounter("f" + label).Add(0.5)
			s.GetOrCreateGauge("g"+label, nil).Inc()
			s.GetOrCreateHistogram("h" + label).Update(float64(i))
			s.GetOrCreatePrometheusHistogramExt("p"+label, []float64{50}).Update(float64(i))
			s.GetOrCreateSummaryExt("s"+label, 10*time.Millisecond, []float64{.5}).Update(float64(i))
			if i%3 == 0 {
				s.UnregisterMetric(name)
				s.UnregisterMetric("fghps"[i%5:i%5+1] + label)
			}
		},
		func(who, i int) { // update
			brief.With(fmt.Sprint(i % 30)).Inc()
			sizes.With(fmt.Sprint(who)).Update(float64(i))
		},
		func(who, i int) { // scrape
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Accept", accepts[(who+i)%len(accepts)])
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != http.StatusOK && w.Code != http.StatusServiceUnavailable {
				t.Errorf("status %d: %s", w.Code, w.Body)
			}
			before, n := kept.Get(), uint64(0)
			_, value, _ := strings.Cut("\n"+text(s), "\nkept_total ")
			if _, err := fmt.Sscan(value, &n); err != nil || n < before {
				t.Errorf("kept_total went back from %d to %d: %v", before, n, err)
			}
		},
		func(_, i int) { // remove members, in addition to those that expire
			brief.Delete(fmt.Sprint(i % 30))
			if i%10 == 0 {
				sizes.Reset()
			}
		},
	}
	var wg sync.WaitGroup
	for _, job := range jobs {
		for who := range each {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for i := range rounds {
					job(who, i)
					kept.Inc()
				}
			}()
		}
	}
	wg.Wait()
	if n := kept.Get(); n != uint64(len(jobs)*each*rounds) {
		t.Errorf("counted %d", n)
	}
	last := ""
	for line := range strings.Lines(text(s)) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if !ok || value == "" || name == last {
			t.Errorf("a line %q after %q", line, last)
		}
		last = name
	}
}

func TestVec_InvalidVectorPanicsWithItsName(t *testing.T) {
	for what, f := range map[string]func(){
		"name":         func() { NewSet().NewCounterVec("wrong\xff", "", "a") },
		"no label":     func() { NewSet().NewCounterVec("wrong name", "") },
		"label":        func() { NewSet().NewCounterVec("wrong name", "", "a\xff") },
		"empty label":  func() { NewSet().NewCounterVec("wrong name", "", "") },
		"factor":       func() { NewSet().NewNativeHistogramVec("wrong name", "", NativeHistogramOptions{BucketFactor: 1}, "a") },
		"label twice":  func() { NewSet().NewCounterVec("wrong name", "", "a", "a") },
		"values":       func() { NewSet().NewCounterVec("wrong", "", "a").With("1", "2") },
		"other type":   func() { s := NewSet(); s.NewGauge(`wrong{a="b"}`, nil); s.NewCounterVec("wrong", "", "a").With("b") },
		"other bounds": func() { NewSet().NewPrometheusHistogramVec("wrong", "", nil, "a") },
	} {
		func() {
			defer func() {
				if r := recover(); !strings.Contains(fmt.Sprint(r), "wrong") {
					t.Errorf("%s: got %v", what, r)
				}
			}()
			f()
		}()
	}
}

func TestVec_LookupDoesNotAllocate(t *testing.T) {
	v := NewSet().NewCounterVec("c", "", "method", "path", "code")
	path := fmt.Sprint("/api/", 7)
	if n := testing.AllocsPerRun(100, func() { v.With("GET", path, "200").Inc() }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkVec(b *testing.B) {
	v := NewSet().NewCounterVec("c", "", "method", "path", "code")
	for i := range 1000 {
		v.With("GET", fmt.Sprint("/api/v1/", i), "200")
	}
	b.ReportAllocs()
	for range b.N {
		v.With("GET", "/api/v1/77", "200").Inc()
	}
}

func ExampleVec() {
	s := NewSet()
	served := s.NewCounterVec("requests_total", "Requests served.", "method", "code")
	served.With("GET", "200").Inc()
	fmt.Print(text(s))
	// Output: requests_total{method="GET",code="200"} 1
}

func TestVec_DeletedMemberStartsAtZero(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "a")
	for round := range 3 {
		for i := range 500 {
			v.With(fmt.Sprint(i)).Add(round + 1)
		}
		for i := range 500 {
			if i%2 == 0 && (!v.Delete(fmt.Sprint(i)) || v.Delete(fmt.Sprint(i))) {
				t.Fatalf("%d: delete once and only once", i)
			}
		}
		if n := len(s.ListMetricNames()); n != 250 {
			t.Fatalf("%d metrics are left", n)
		}
	}
	if n := v.With("0").Get(); n != 0 {
		t.Errorf("a deleted member remembers %d", n)
	}
	if n := v.With("1").Get(); n != 1+2+3 {
		t.Errorf("a member that stayed has %d", n)
	}
}

func TestVec_UnusedMembersExpire(t *testing.T) {
	s := NewSet()
	v := s.NewCounterVec("c", "", "a").Expire(time.Hour)
	v.With("used").Inc()
	v.With("idle").Inc()
	now := time.Now()
	for range 8 {
		now = now.Add(31 * time.Minute)
		v.sweep(now)
		v.With("used").Inc()
	}
	check(t, "page", text(s), "c{a=\"used\"} 9\n")
	v.Expire(0)
	v.sweep(now.Add(100 * time.Hour))
	check(t, "page", text(s), "c{a=\"used\"} 9\n")
}

func TestVec_AcceptsUTF8Names(t *testing.T) {
	ExposeMetadata(true)
	defer ExposeMetadata(false)
	s := NewSet()
	s.NewCounterVec("http.requests \"x\"", "Help.", "status code", "method").With("200", "GET").Inc()
	s.NewSummaryVec("größe", "Size.", "l").With("x").Update(1)
	page := text(s)
	for _, want := range []string{
		"# HELP \"http.requests \\\"x\\\"\" Help.\n# TYPE \"http.requests \\\"x\\\"\" counter\n{\"http.requests \\\"x\\\"\",\"status code\"=\"200\",method=\"GET\"} 1\n",
		"# HELP \"größe\" Size.\n# TYPE \"größe\" summary\n{\"größe\",l=\"x\",quantile=\"0.5\"} 1\n", "{\"größe_count\",l=\"x\"} 1\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %s in\n%s", want, page)
		}
	}
}

// A member of a vector of callbacks is exposed once it has a callback, until it is deleted.
func TestVec_CallbacksOfMembers(t *testing.T) {
	s := NewSet()
	queued := s.NewGaugeFuncVec("queued_jobs", "Jobs that wait.", "queue")
	parsed := s.NewCounterFuncVec("parsed_total", "Lines.", "queue")
	n := 0.0
	queued.With("mail").SetFunc(func() float64 { n++; return n })
	queued.With("none") // no callback yet
	queued.With("broken").SetFunc(func() float64 { panic("boom") })
	parsed.With("mail").SetFunc(func() float64 { return 7 })
	for _, c := range []struct{ accept, want string }{
		{"", "# HELP parsed_total Lines.\n# TYPE parsed_total counter\nparsed_total{queue=\"mail\"} 7\n" +
			"# HELP queued_jobs Jobs that wait.\n# TYPE queued_jobs gauge\nqueued_jobs{queue=\"mail\"} 1\n"},
		{acceptOpenMetrics, "# HELP queued_jobs Jobs that wait.\n# TYPE queued_jobs gauge\nqueued_jobs{queue=\"mail\"} 2.0\n# EOF\n"},
	} {
		if _, page := scraped(s, c.accept); !strings.HasSuffix(page, c.want) {
			t.Errorf("accept %q:\n%s", c.accept, page)
		}
	}
	queued.With("mail").SetFunc(func() float64 { return -1 }) // replaces the one before
	parsed.With("mail").SetFunc(nil)
	if got := queued.With("mail").Get(); got != -1 || parsed.With("mail").Get() != 0 {
		t.Error(got)
	}
	if _, page := scraped(s, ""); !strings.HasSuffix(page, "queued_jobs{queue=\"mail\"} -1\n") || strings.Contains(page, "parsed_total{") {
		t.Error(page)
	}
	if queued.Delete("mail"); s.UnregisterMetric(`queued_jobs{queue="mail"}`) {
		t.Error("the member is still registered")
	}
}

// A set retains nothing of an unregistered vector, and another vector may have the same name.
func TestVec_Unregister(t *testing.T) {
	s := NewSet()
	old := s.NewCounterVec("requests_total", "Old.", "path").Expire(time.Hour)
	kept := s.NewCounterVec("kept_total", "", "path").Expire(time.Hour)
	kept.With("/").Inc()
	old.With("/").Add(2)
	old.Limit(1).With("/more").Inc() // of the shared member
	old.Unregister()
	old.Unregister()
	if names := s.ListMetricNames(); len(names) != 1 || names[0] != `kept_total{path="/"}` || len(s.Vectors()) != 1 || len(*s.expiring.Load()) != 1 {
		t.Errorf("%q, %d vectors, %d expire", names, len(s.Vectors()), len(*s.expiring.Load()))
	}
	fresh := s.NewGaugeVec("requests_total", "New.", "path")
	fresh.With("/").Set(7)
	if _, page := scraped(s, ""); !strings.Contains(page, "# HELP requests_total New.\n# TYPE requests_total gauge\nrequests_total{path=\"/\"} 7\n") {
		t.Error(page)
	}
}
