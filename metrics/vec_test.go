package metrics

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

func TestAVectorEscapesDescribesAndEnds(t *testing.T) {
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
# HELP requests_total Requests\nserved by \\.
# TYPE requests_total counter
requests_total{method="GET",path="a\"\\\nb"} 1
requests_total{method="PUT",path=""} 3
requests_total{method="overflow",path="overflow"} 2
`)
}

func TestEveryTypeHasAVector(t *testing.T) {
	s := NewSet()
	s.NewFloatCounterVec("f", "", "l").With("x").Add(.5)
	s.NewHistogramVec("h", "", "l").With("x").Update(1.5)
	s.NewPrometheusHistogramVec("p", "", []float64{1}, "l").With("x").Update(1)
	s.NewSummaryVec("s", "", "l").With("x").Update(1)
	if got := text(s); strings.Count(got, `l="x"`) != 1+3+4+7 {
		t.Error(got)
	}
}

func TestManyMembersAreEachFoundByManyAtOnce(t *testing.T) {
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

func TestAWrongVectorPanicsWithItsName(t *testing.T) {
	for what, f := range map[string]func(){
		"name":         func() { NewSet().NewCounterVec("wrong name", "", "a") },
		"no label":     func() { NewSet().NewCounterVec("wrong name", "") },
		"label":        func() { NewSet().NewCounterVec("wrong name", "", "a.b") },
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

func TestALookupInAVectorDoesNotAllocate(t *testing.T) {
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
