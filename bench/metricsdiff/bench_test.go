package metricsdiff

import (
	"fmt"
	"io"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	peer "github.com/VictoriaMetrics/metrics"
	"github.com/prometheus/client_golang/prometheus"

	ours "github.com/ferula-io/ferula/metrics"
)

// The API that the benchmarks use, common to both libraries, so that each benchmark is written once.
type counter interface{ Inc() }
type floatCounter interface{ Add(float64) }
type gauge interface{ Set(float64) }
type updated interface{ Update(float64) }

type set interface{ WritePrometheus(w io.Writer) }

type maker struct {
	set     set
	counter func(name string) counter
	float   func(name string) floatCounter
	gauge   func(name string) gauge
	hist    func(name string) updated
	prom    func(name string, bounds []float64) updated
	summary func(name string) updated
	lookup  func(name string) counter
}

func peerMaker() maker {
	s := peer.NewSet()
	return maker{s,
		func(n string) counter { return s.NewCounter(n) }, func(n string) floatCounter { return s.NewFloatCounter(n) },
		func(n string) gauge { return s.NewGauge(n, nil) }, func(n string) updated { return s.NewHistogram(n) },
		func(n string, b []float64) updated { return s.NewPrometheusHistogramExt(n, b) },
		func(n string) updated { return s.NewSummaryExt(n, time.Hour, []float64{.5, .9, .97, .99, 1}) },
		func(n string) counter { return s.GetOrCreateCounter(n) }}
}

func oursMaker() maker {
	s := ours.NewSet()
	return maker{s,
		func(n string) counter { return s.NewCounter(n) }, func(n string) floatCounter { return s.NewFloatCounter(n) },
		func(n string) gauge { return s.NewGauge(n, nil) }, func(n string) updated { return s.NewHistogram(n) },
		func(n string, b []float64) updated { return s.NewPrometheusHistogramExt(n, b) },
		func(n string) updated { return s.NewSummaryExt(n, time.Hour, []float64{.5, .9, .97, .99, 1}) },
		func(n string) counter { return s.GetOrCreateCounter(n) }}
}

var libraries = []struct {
	name string
	make func() maker
}{{"peer", peerMaker}, {"ferula", oursMaker}}

const labelled = `{method="GET",path="/api/v1/query",code="200"}`

// kinds returns for each metric type a function that registers a metric and returns its update.
var kinds = []struct {
	name string
	make func(m maker) func(i int)
}{
	{"Counter", func(m maker) func(int) { c := m.counter("c_total" + labelled); return func(int) { c.Inc() } }},
	{"FloatCounter", func(m maker) func(int) {
		c := m.float("f_total" + labelled)
		return func(int) { c.Add(0.37) }
	}},
	{"Gauge", func(m maker) func(int) {
		g := m.gauge("g" + labelled)
		return func(i int) { g.Set(float64(i)) }
	}},
	{"Histogram8", func(m maker) func(int) {
		h := m.hist("h" + labelled)
		return func(i int) { h.Update(1.2 * float64(uint(1)<<(uint(i)%8))) }
	}},
	{"PrometheusHistogram11", func(m maker) func(int) {
		h := m.prom("p"+labelled, peer.PrometheusHistogramDefaultBuckets)
		return func(i int) { h.Update(float64(i%110) / 10) }
	}},
	{"PrometheusHistogram20", func(m maker) func(int) {
		h := m.prom("p"+labelled, peer.LinearBuckets(1, 1, 20))
		return func(i int) { h.Update(float64(i % 22)) }
	}},
	{"Summary5", func(m maker) func(int) {
		s := m.summary("s" + labelled)
		for i := range 20000 {
			s.Update(float64(i*7919%10007) / 7)
		}
		return func(i int) { s.Update(float64(i*7919%10007) / 7) }
	}},
}

func BenchmarkScrape(b *testing.B) {
	for _, k := range kinds {
		for _, lib := range libraries {
			m := lib.make()
			update := k.make(m)
			for i := range 1000 {
				update(i)
			}
			b.Run(k.name+"/idle/"+lib.name, func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					m.set.WritePrometheus(io.Discard)
				}
			})
			b.Run(k.name+"/busy/"+lib.name, func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					update(i)
					m.set.WritePrometheus(io.Discard)
				}
			})
		}
	}
}

// BenchmarkScrapeSummaryBurst scrapes a summary after many updates since the last scrape; the updates are not timed.
func BenchmarkScrapeSummaryBurst(b *testing.B) {
	for _, lib := range libraries {
		m := lib.make()
		update := kinds[len(kinds)-1].make(m)
		for _, values := range []int{100, 1000, 10000} {
			b.Run(fmt.Sprint(values, "/", lib.name), func(b *testing.B) {
				b.ReportAllocs()
				for i := range b.N {
					b.StopTimer()
					for j := range values {
						update(i*values + j)
					}
					b.StartTimer()
					m.set.WritePrometheus(io.Discard)
				}
			})
		}
	}
}

// mixed fills a set with metrics of all types, about as many lines as requested.
func mixed(m maker, lines int) {
	for i := 0; lines > 0; i++ {
		label := fmt.Sprintf(`{method="GET",path="/api/v1/%d",code="200"}`, i)
		c, f, g := m.counter("c_total"+label), m.float("f_total"+label), m.gauge("g"+label)
		h, p, s := m.hist("h"+label), m.prom("p"+label, peer.PrometheusHistogramDefaultBuckets), m.summary("s"+label)
		for j := range 1500 {
			if j < 100 {
				c.Inc()
				f.Add(0.37)
				g.Set(float64(j * i))
				h.Update(float64(j*j) / 100)
				p.Update(float64(j) / 10)
			}
			s.Update(float64(j*7919%1009) / 7)
		}
		lines -= 3 + 20 + 14 + 7
	}
}

func BenchmarkScrapeMixed(b *testing.B) {
	for _, lines := range []int{1000, 10000} {
		for _, lib := range libraries {
			m := lib.make()
			mixed(m, lines)
			b.Run(fmt.Sprint(lines, "/", lib.name), func(b *testing.B) {
				b.ReportAllocs()
				for range b.N {
					m.set.WritePrometheus(io.Discard)
				}
			})
		}
	}
}

func BenchmarkScrapeProcess(b *testing.B) {
	for name, write := range map[string]func(io.Writer){"peer": peer.WriteProcessMetrics, "ferula": ours.WriteProcessMetrics} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				write(io.Discard)
			}
		})
	}
}

// BenchmarkFloor is the lower bound of any library: a rendered prefix, the value, a newline, one write.
func BenchmarkFloor(b *testing.B) {
	prefix, buf := "c_total"+labelled+" ", make([]byte, 0, 1<<12)
	lines := func(n int, value func(dst []byte) []byte) func(b *testing.B) {
		return func(b *testing.B) {
			var w io.Writer = io.Discard
			for range b.N {
				buf = buf[:0]
				for range n {
					buf = append(value(append(buf, prefix...)), '\n')
				}
				_, _ = w.Write(buf)
			}
		}
	}
	b.Run("Counter", lines(1, func(dst []byte) []byte { return strconv.AppendUint(dst, 123456, 10) }))
	b.Run("FloatCounter", lines(1, func(dst []byte) []byte { return strconv.AppendFloat(dst, 370.0000000123, 'g', -1, 64) }))
	b.Run("Histogram8", lines(10, func(dst []byte) []byte { return strconv.AppendUint(dst, 125, 10) }))
	b.Run("PrometheusHistogram11", lines(14, func(dst []byte) []byte { return strconv.AppendUint(dst, 125, 10) }))
	b.Run("PrometheusHistogram20", lines(23, func(dst []byte) []byte { return strconv.AppendUint(dst, 125, 10) }))
}

func BenchmarkUpdate(b *testing.B) {
	for _, k := range kinds {
		for _, lib := range libraries {
			update := k.make(lib.make())
			b.Run(k.name+"/single/"+lib.name, func(b *testing.B) {
				for i := range b.N {
					update(i)
				}
			})
			b.Run(k.name+"/contended/"+lib.name, func(b *testing.B) {
				var from atomic.Int64
				b.RunParallel(func(pb *testing.PB) {
					for i := int(from.Add(1000)); pb.Next(); i++ {
						update(i)
					}
				})
			})
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, lib := range libraries {
		m := lib.make()
		for i := range 1000 {
			m.counter(fmt.Sprintf(`c_total{method="GET",path="/api/v1/%d",code="200"}`, i))
		}
		b.Run("name/"+lib.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				m.lookup(`c_total{method="GET",path="/api/v1/77",code="200"}`).Inc()
			}
		})
	}
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "c_total"}, []string{"method", "path", "code"})
	for i := range 1000 {
		vec.WithLabelValues("GET", fmt.Sprintf("/api/v1/%d", i), "200")
	}
	b.Run("labels/client_golang", func(b *testing.B) {
		b.ReportAllocs()
		for range b.N {
			vec.WithLabelValues("GET", "/api/v1/77", "200").Inc()
		}
	})
}

// BenchmarkMemory reports heap bytes per metric, of 100,000 counters and 10,000 summaries without updates, including names.
func BenchmarkMemory(b *testing.B) {
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	for _, lib := range libraries {
		for what, n := range map[string]int{"counter": 100_000, "summary": 10_000} {
			b.Run(what+"/"+lib.name, func(b *testing.B) {
				for range b.N {
					before, m := heap(), lib.make()
					for i := range n {
						name := fmt.Sprintf(`http_requests_total{method="GET",path="/api/v1/%d",code="200"}`, i)
						if what == "counter" {
							m.counter(name)
						} else {
							m.summary(name)
						}
					}
					m.set.WritePrometheus(io.Discard)
					b.ReportMetric((heap()-before)/float64(n), "bytes/metric")
					runtime.KeepAlive(m)
				}
			})
		}
	}
}
