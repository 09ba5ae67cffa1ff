package metrics

import (
	"fmt"
	"io"
	"sync"
	"testing"
)

// oneOf makes a set of one metric, which update changes.
var oneOf = []struct {
	name string
	make func(s *Set) (update func(i int))
}{
	{"Counter", func(s *Set) func(int) {
		c := s.NewCounter(`http_requests_total{method="GET",code="200"}`)
		return func(i int) { c.Inc() }
	}},
	{"FloatCounter", func(s *Set) func(int) {
		c := s.NewFloatCounter(`http_seconds_total{method="GET",code="200"}`)
		return func(i int) { c.Add(0.123) }
	}},
	{"Gauge", func(s *Set) func(int) {
		g := s.NewGauge(`in_flight{method="GET",code="200"}`, nil)
		return func(i int) { g.Set(float64(i)) }
	}},
	{"GaugeCalled", func(s *Set) func(int) {
		s.NewGauge(`in_flight{method="GET",code="200"}`, func() float64 { return 12 })
		return func(int) {}
	}},
	{"Histogram", func(s *Set) func(int) {
		h := s.NewHistogram(`seconds{method="GET",code="200"}`)
		return func(i int) { h.Update(1.5 * float64(1+i%8) / 3) }
	}},
	{"PrometheusHistogram", func(s *Set) func(int) {
		h := s.NewPrometheusHistogram(`seconds{method="GET",code="200"}`)
		return func(i int) { h.Update(float64(i%12) / 2) }
	}},
	{"Summary", func(s *Set) func(int) {
		sm := s.NewSummary(`seconds{method="GET",code="200"}`)
		for i := range 5000 {
			sm.Update(float64(i * 7919 % 1000))
		}
		return func(i int) { sm.Update(float64(i % 1000)) }
	}},
}

func TestWritePrometheus_DoesNotAllocate(t *testing.T) {
	for _, c := range oneOf {
		for _, metadata := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, metadata), func(t *testing.T) {
				ExposeMetadata(metadata)
				defer ExposeMetadata(false)
				s := NewSet()
				update := c.make(s)
				for i := range 100 {
					update(i)
				}
				i := 0
				if n := testing.AllocsPerRun(200, func() { i++; update(i); s.WritePrometheus(io.Discard) }); n != 0 {
					t.Errorf("%v allocations a scrape", n)
				}
			})
		}
	}
}

// mixed fills a set with about this many lines of all types.
func mixed(s *Set, lines int) (update func(i int)) {
	var updates []func(i int)
	for i := 0; lines > 0; i++ {
		label := fmt.Sprintf(`{path="/api/v1/endpoint/%d",method="GET"}`, i)
		c, f, g := s.NewCounter("requests_total"+label), s.NewFloatCounter("spent_seconds_total"+label), s.NewGauge("in_flight"+label, nil)
		updates = append(updates, func(i int) { c.Inc(); f.Add(0.25); g.Set(float64(i)) })
		lines -= 3
		if i%4 == 0 {
			h, p, sm := s.NewHistogram("size_bytes"+label), s.NewPrometheusHistogram("wait_seconds"+label), s.NewSummary("latency_seconds"+label)
			updates = append(updates, func(i int) {
				h.Update(float64(1 + i%100))
				p.Update(float64(i%100) / 10)
				sm.Update(float64(i%1000) / 1000)
			})
			lines -= 30
		}
	}
	all := func(i int) {
		for _, u := range updates {
			u(i)
		}
	}
	for i := range 100 {
		all(i * 37)
	}
	return all
}

func TestWritePrometheus_DoesNotAllocateAtAnySize(t *testing.T) {
	for _, lines := range []int{100, 1000, 30000} {
		s := NewSet()
		mixed(s, lines)
		s.WritePrometheus(io.Discard)
		if n := testing.AllocsPerRun(5, func() { s.WritePrometheus(io.Discard) }); n != 0 {
			t.Errorf("%d lines: %v allocations a scrape", lines, n)
		}
	}
}

func TestWritePrometheus_OverlappingScrapesDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("pools are not themselves under the race detector")
	}
	s := NewSet()
	mixed(s, 1000)
	const scrapes = 300
	together := func() {
		var wg sync.WaitGroup
		for range 4 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range scrapes {
					s.WritePrometheus(io.Discard)
				}
			}()
		}
		wg.Wait()
	}
	together()
	// Goroutines and a few pages are made; nothing is made for each scrape.
	if n := testing.AllocsPerRun(3, together); n > scrapes/3 {
		t.Errorf("%v allocations in %d scrapes", n, 4*scrapes)
	}
}

func TestWriteProcessMetrics_DoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("pools are not themselves under the race detector")
	}
	if n := testing.AllocsPerRun(100, func() { WriteProcessMetrics(io.Discard) }); n != 0 {
		t.Errorf("%v allocations a scrape", n)
	}
}

// The metrics are created beforehand, so that only allocations of registration and of the
// scrape are counted. Registering a metric in a set of thousands rarely grows a slice or
// map.
func TestWritePrometheus_DoesNotAllocateDuringRegistration(t *testing.T) {
	s := NewSet()
	mixed(s, 1000)
	made := make([]*Counter, 100)
	for i := range made {
		made[i] = &Counter{named: named{fmt.Sprintf(`new_total{i="%d"}`, i*31%100)}}
	}
	i := 0
	n := testing.AllocsPerRun(len(made)-1, func() {
		register(s, made[i])
		i++
		s.WritePrometheus(io.Discard)
	})
	if n != 0 {
		t.Errorf("%v allocations a scrape", n)
	}
}

func TestUpdate_AndLookupDoNotAllocate(t *testing.T) {
	for _, c := range oneOf {
		s := NewSet()
		update := c.make(s)
		i := 0
		if n := testing.AllocsPerRun(1000, func() { i++; update(i) }); n != 0 {
			t.Errorf("%s: %v allocations an update", c.name, n)
		}
	}
	s := NewSet()
	name := `a_total{b="c"}`
	if n := testing.AllocsPerRun(100, func() { s.GetOrCreateCounter(name).Inc() }); n != 0 {
		t.Errorf("%v allocations a look-up", n)
	}
}
