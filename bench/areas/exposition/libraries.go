package exposition

import (
	"compress/gzip"
	"io"
	"net/http"
	"time"

	peer "github.com/VictoriaMetrics/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	ours "github.com/ferula-io/ferula/metrics"
)

// The sides. The floor is the least work that any library must do.
const (
	victoria = "VictoriaMetrics/metrics"
	golang   = "client_golang"
	floor    = "floor"
	ferula   = "ferula"
)

// The operations of a program on a metric of any library, so that the work is written
// once.
type (
	counter      interface{ Inc() }
	floatCounter interface{ Add(float64) }
	gauge        interface{ Set(float64) }
	updated      interface{ Update(float64) }
)

// library is a set of metrics; families have the three labels below.
type library struct {
	counter    func(name string, values ...string) counter
	float      func(name string, values ...string) floatCounter
	gauge      func(name string, values ...string) gauge
	ranges     func(name string, values ...string) updated // a vmrange histogram; in client_golang one with default buckets
	prometheus func(name string, bounds []float64, values ...string) updated
	summary    func(name string, values ...string) updated
	windowed   func(name string, window time.Duration, values ...string) updated // a summary
	write      func(w io.Writer)
	handler    func() http.Handler
	gzip6      func() http.Handler // handler with gzip of level 6, the default of compress/gzip; ferula only
	process    func(w io.Writer)
}

var labelNames = []string{"method", "path", "code"}

func full(name string, values []string) string {
	if len(values) == 0 {
		values = []string{"GET", "/api/v1/query", "200"}
	}
	return name + `{method="` + values[0] + `",path="` + values[1] + `",code="` + values[2] + `"}`
}

var quantiles = []float64{.5, .9, .97, .99, 1}

// registry is a set of VictoriaMetrics/metrics, whose API ferula's has, too.
type registry[C counter, F floatCounter, G gauge, H, P, S updated] interface {
	NewCounter(name string) C
	NewFloatCounter(name string) F
	NewGauge(name string, f func() float64) G
	NewHistogram(name string) H
	NewPrometheusHistogramExt(name string, bounds []float64) P
	NewSummaryExt(name string, window time.Duration, quantiles []float64) S
	WritePrometheus(w io.Writer)
}

func libraryOf[C counter, F floatCounter, G gauge, H, P, S updated](s registry[C, F, G, H, P, S], process func(io.Writer)) library {
	return library{
		counter:    func(n string, v ...string) counter { return s.NewCounter(full(n, v)) },
		float:      func(n string, v ...string) floatCounter { return s.NewFloatCounter(full(n, v)) },
		gauge:      func(n string, v ...string) gauge { return s.NewGauge(full(n, v), nil) },
		ranges:     func(n string, v ...string) updated { return s.NewHistogram(full(n, v)) },
		prometheus: func(n string, b []float64, v ...string) updated { return s.NewPrometheusHistogramExt(full(n, v), b) },
		summary:    func(n string, v ...string) updated { return s.NewSummaryExt(full(n, v), time.Hour, quantiles) },
		windowed:   func(n string, w time.Duration, v ...string) updated { return s.NewSummaryExt(full(n, v), w, quantiles) },
		write:      s.WritePrometheus, process: process,
	}
}

func newVictoria() library { return libraryOf(peer.NewSet(), peer.WriteProcessMetrics) }

func newFerula() library {
	s := ours.NewSet()
	l := libraryOf(s, ours.WriteProcessMetrics)
	l.handler = s.Handler
	l.gzip6 = func() http.Handler {
		level6 := ours.Compressor{Coding: "gzip", New: func() ours.CompressWriter { return gzip.NewWriter(nil) }}
		return ours.NewHandler(ours.HandlerOptions{Sets: []*ours.Set{s}, Compressors: []ours.Compressor{level6}})
	}
	return l
}

// observer has client_golang's Observe as the method Update.
type observer struct{ prometheus.Observer }

func (o observer) Update(v float64) { o.Observe(v) }

func newGolang() library {
	reg := prometheus.NewRegistry()
	counters, gauges := map[string]*prometheus.CounterVec{}, map[string]*prometheus.GaugeVec{}
	histograms, summaries := map[string]*prometheus.HistogramVec{}, map[string]*prometheus.SummaryVec{}
	given := func(v []string) []string {
		if len(v) == 0 {
			return []string{"GET", "/api/v1/query", "200"}
		}
		return v
	}
	counterOf := func(n string, v []string) prometheus.Counter {
		if counters[n] == nil {
			counters[n] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: n}, labelNames)
			reg.MustRegister(counters[n])
		}
		return counters[n].WithLabelValues(given(v)...)
	}
	histogramOf := func(n string, bounds []float64, v []string) updated {
		if histograms[n] == nil {
			histograms[n] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: n, Buckets: bounds}, labelNames)
			reg.MustRegister(histograms[n])
		}
		return observer{histograms[n].WithLabelValues(given(v)...)}
	}
	windowed := func(n string, w time.Duration, v ...string) updated {
		if summaries[n] == nil {
			objectives := map[float64]float64{.5: .05, .9: .01, .97: .005, .99: .001}
			summaries[n] = prometheus.NewSummaryVec(prometheus.SummaryOpts{Name: n, MaxAge: w, Objectives: objectives}, labelNames)
			reg.MustRegister(summaries[n])
		}
		return observer{summaries[n].WithLabelValues(given(v)...)}
	}
	return library{
		counter: func(n string, v ...string) counter { return counterOf(n, v) },
		float:   func(n string, v ...string) floatCounter { return counterOf(n, v) },
		gauge: func(n string, v ...string) gauge {
			if gauges[n] == nil {
				gauges[n] = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: n}, labelNames)
				reg.MustRegister(gauges[n])
			}
			return gauges[n].WithLabelValues(given(v)...)
		},
		ranges:     func(n string, v ...string) updated { return histogramOf(n, prometheus.DefBuckets, v) },
		prometheus: func(n string, b []float64, v ...string) updated { return histogramOf(n, b, v) },
		summary:    func(n string, v ...string) updated { return windowed(n, time.Hour, v...) },
		windowed:   windowed,
		write: func(w io.Writer) {
			families, err := reg.Gather()
			if err != nil {
				panic(err) // nothing registered here can fail
			}
			encoder := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
			for _, family := range families {
				_ = encoder.Encode(family) // w takes everything
			}
		},
		handler: func() http.Handler { return promhttp.HandlerFor(reg, promhttp.HandlerOpts{}) },
	}
}

var makers = []struct {
	side string
	make func() library
}{{victoria, newVictoria}, {golang, newGolang}, {ferula, newFerula}}

// kind is a type of metric and its goal, exposition/GOAL. make creates a metric, updates it
// some times, and returns a function that updates it.
type kind struct {
	name, goal string
	make       func(l library) (update func(i int))
}

var kinds = []kind{
	{"Counter", "counter", func(l library) func(int) {
		c := l.counter("c_total")
		return repeated(1000, func(int) { c.Inc() })
	}},
	{"FloatCounter", "floatcounter", func(l library) func(int) {
		c := l.float("f_total")
		return repeated(1000, func(int) { c.Add(0.37) })
	}},
	{"Gauge", "gauge", func(l library) func(int) {
		g := l.gauge("g")
		return repeated(12345, func(i int) { g.Set(float64(i)) })
	}},
	{"Histogram, 8 ranges", "histogram", func(l library) func(int) {
		h := l.ranges("h")
		return repeated(1000, func(i int) { h.Update(1.2 * float64(uint(1)<<(uint(i)%8))) })
	}},
	{"PrometheusHistogram, 11 bounds", "promhistogram11", func(l library) func(int) {
		h := l.prometheus("p", peer.PrometheusHistogramDefaultBuckets)
		return repeated(1000, func(i int) { h.Update(float64(i%110) / 10) })
	}},
	{"PrometheusHistogram, 20 bounds", "promhistogram20", func(l library) func(int) {
		h := l.prometheus("p", peer.LinearBuckets(1, 1, 20))
		return repeated(1000, func(i int) { h.Update(float64(i % 22)) })
	}},
	{"Summary, 5 quantiles", "summary", func(l library) func(int) {
		s := l.summary("s")
		return repeated(20000, func(i int) { s.Update(float64(i*7919%10007) / 7) })
	}},
}

func repeated(n int, update func(i int)) func(i int) {
	for i := range n {
		update(i)
	}
	return update
}

// mixed fills a library with about this many lines of metrics of all types. As in most
// programs, most metrics are counters and gauges. Every eighth family of labels has
// histograms and a summary as well.
func mixed(l library, lines int) {
	for i := 0; lines > 0; i++ {
		v := []string{"GET", "/api/v1/" + digits(i), "200"}
		c, f, g := l.counter("c_total", v...), l.float("f_total", v...), l.gauge("g", v...)
		for j := range 100 {
			c.Inc()
			f.Add(0.37)
			g.Set(float64(j * i))
		}
		lines -= 3
		if i%8 != 0 {
			continue
		}
		h, p, s := l.ranges("h", v...), l.prometheus("p", peer.PrometheusHistogramDefaultBuckets, v...), l.summary("s", v...)
		for j := range 1500 {
			if j < 100 {
				h.Update(1.2 * float64(uint(1)<<(uint(j)%8)))
				p.Update(float64(j) / 10)
			}
			s.Update(float64(j*7919%1009) / 7)
		}
		lines -= 31
	}
}

func digits(i int) string {
	text := ""
	for ; i > 0 || text == ""; i /= 10 {
		text = string(rune('0'+i%10)) + text
	}
	return text
}
