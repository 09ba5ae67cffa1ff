package telemetry

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/ferula-io/ferula/metrics"
)

// prometheusHTTP counts requests under the names and labels of a Prometheus, which its
// mixin and other dashboards query. Prometheus' web package has the same names.
type prometheusHTTP struct {
	prefix   string
	requests *metrics.CounterVec
	duration *metrics.PrometheusHistogramVec
	size     *metrics.PrometheusHistogramVec
}

// ExposePrometheusHTTP exposes prometheus_http_requests_total,
// prometheus_http_request_duration_seconds and prometheus_http_response_size_bytes in
// addition to ferula's own metrics. The label "handler" is the path pattern without
// routePrefix. As in Prometheus, responses that were cut off are not counted. Call it before
// the first request.
func (reg *Registry) ExposePrometheusHTTP(routePrefix string) {
	reg.prometheus = &prometheusHTTP{
		prefix: routePrefix,
		requests: reg.Own.NewCounterVec("prometheus_http_requests_total",
			"HTTP requests served, by path pattern and status.", "handler", "code"),
		duration: reg.Own.NewPrometheusHistogramVec("prometheus_http_request_duration_seconds",
			"Duration of HTTP requests, by path pattern.",
			[]float64{.1, .2, .4, 1, 3, 8, 20, 60, 120}, "handler"),
		size: reg.Own.NewPrometheusHistogramVec("prometheus_http_response_size_bytes",
			"Bytes of response bodies, by path pattern, after compression.",
			[]float64{1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9}, "handler"),
	}
}

func (p *prometheusHTTP) observe(handler, code string, took time.Duration, bytes int64) {
	handler = strings.TrimPrefix(handler, p.prefix)
	p.requests.With(handler, code).Inc()
	p.duration.With(handler).Update(took.Seconds())
	p.size.With(handler).Update(float64(bytes))
}

// ExposePackageMetrics also exposes the metrics that packages of Prometheus registered in
// client_golang's default registry when they were imported, such as
// prometheus_remote_storage_samples_in_total. Metrics of Go's runtime and of the process are
// not taken from that registry. Families of reg itself are not replaced.
func (reg *Registry) ExposePackageMetrics() { reg.packages = prometheus.DefaultGatherer }

// Gather implements prometheus.Gatherer.
func (reg *Registry) Gather() ([]*dto.MetricFamily, error) {
	families, err := reg.Registry.Gather()
	if reg.packages == nil {
		return families, err
	}
	others, otherErr := reg.packages.Gather()
	known := len(families)
	for _, f := range others {
		name := f.GetName()
		wanted := strings.HasPrefix(name, "prometheus_") || strings.HasPrefix(name, "net_conntrack_")
		if _, taken := slices.BinarySearchFunc(families[:known], name, func(f *dto.MetricFamily, name string) int {
			return strings.Compare(f.GetName(), name)
		}); wanted && !taken {
			families = append(families, f)
		}
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, errors.Join(err, otherErr)
}
