// Package promcompat connects package metrics with client_golang, so that a program can use
// both, and move from one to the other metric by metric.
//
//   - Handler exposes a prometheus.Gatherer and sets of package metrics in one response.
//   - NewCollector exposes sets through a prometheus.Registry, for programs that keep promhttp.
//   - NewGatherer exposes sets as a prometheus.Gatherer, for pushers, bridges and tests.
//   - FromGatherer exposes a prometheus.Gatherer, such as a registry with the collectors of an
//     exporter, through a set.
//
// To move a whole program, begin with two lines: the import of this package, and
//
//	http.Handle("/metrics", promcompat.Handler(prometheus.DefaultGatherer, metrics.HandlerOptions{}))
//
// instead of promhttp.Handler(). All metrics of client_golang are exposed as before, and new
// metrics may come from package metrics. Only this module depends on client_golang.
package promcompat

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/ferula-io/ferula/metrics"
)

// Handler returns a handler for /metrics that exposes the sets of opts and, after them, the
// families of g, in the format that the scraper requests. An error of g fails the scrape
// with status 500, as promhttp does by default. A family that both the sets and g have fails
// the scrape, too. With opts.ProcessMetrics or opts.OpenFiles, g must not have collectors of
// the process and the Go runtime.
func Handler(g prometheus.Gatherer, opts metrics.HandlerOptions) http.Handler {
	own := writeExtra(g, opts)
	if extra := opts.WriteExtra; extra != nil {
		opts.WriteExtra = func(w io.Writer, contentType string) error {
			if err := own(w, contentType); err != nil {
				return err
			}
			return extra(w, contentType)
		}
	} else {
		opts.WriteExtra = own
	}
	return metrics.NewHandler(opts)
}

// writeExtra returns a function for HandlerOptions.WriteExtra that writes the families of g.
func writeExtra(g prometheus.Gatherer, opts metrics.HandlerOptions) func(w io.Writer, contentType string) error {
	process := processFamilies(opts)
	var options []expfmt.EncoderOption
	if opts.CreatedLines {
		options = append(options, expfmt.WithCreatedLines())
	}
	return func(w io.Writer, contentType string) error {
		families, err := g.Gather()
		if err != nil {
			return err
		}
		format := expfmt.Format(contentType)
		if strings.HasPrefix(contentType, "text/plain") {
			// expfmt writes the lines of version 1.0.0 under the type of version 0.0.4.
			format = expfmt.NewFormat(expfmt.TypeTextPlain).WithEscapingScheme(format.ToEscapingScheme())
		}
		sets := opts.Sets
		if sets == nil {
			sets = metrics.RegisteredSets()
		}
		openMetrics := format.FormatType() == expfmt.TypeOpenMetrics
		encoder := expfmt.NewEncoder(w, format, options...)
		for _, f := range families {
			name := f.GetName()
			switch {
			case process[name]:
				return fmt.Errorf("family %s is in the gatherer and in ProcessMetrics or OpenFiles", name)
			case slices.ContainsFunc(sets, func(s *metrics.Set) bool { return s.HasFamily(name) }):
				return fmt.Errorf("family %s is in a set and in the gatherer", name)
			}
			if openMetrics && clashes(f, families) {
				f = untyped(f)
			}
			if err := encoder.Encode(f); err != nil {
				return fmt.Errorf("family %s: %w", f.GetName(), err)
			}
		}
		return nil // the handler writes # EOF
	}
}

// processFamilies returns the names of the samples of ProcessMetrics and OpenFiles, if opts have them.
func processFamilies(opts metrics.HandlerOptions) map[string]bool {
	var page bytes.Buffer
	if opts.ProcessMetrics {
		metrics.WriteProcessMetrics(&page)
	}
	if opts.OpenFiles {
		metrics.WriteFDMetrics(&page)
	}
	names := map[string]bool{}
	for line := range strings.Lines(page.String()) {
		if name := line[:strings.IndexAny(line, "{ \n")]; name != "#" {
			names[name] = true
		}
	}
	return names
}

// clashes reports whether f is a counter and another family has its name without _total: in
// OpenMetrics both families would have the same name.
func clashes(f *dto.MetricFamily, among []*dto.MetricFamily) bool {
	base, ok := strings.CutSuffix(f.GetName(), "_total")
	return ok && f.GetType() == dto.MetricType_COUNTER &&
		slices.ContainsFunc(among, func(other *dto.MetricFamily) bool { return other.GetName() == base })
}

// untyped returns a copy of a counter family with the type untyped. It does not change f, which
// belongs to its gatherer.
func untyped(f *dto.MetricFamily) *dto.MetricFamily {
	out := &dto.MetricFamily{Name: f.Name, Help: f.Help, Unit: f.Unit, Type: dto.MetricType_UNTYPED.Enum()}
	for _, m := range f.Metric {
		out.Metric = append(out.Metric, &dto.Metric{
			Label: m.Label, TimestampMs: m.TimestampMs, Untyped: &dto.Untyped{Value: m.Counter.Value},
		})
	}
	return out
}

// NewGatherer returns a gatherer of the sets; without arguments, of the default set and the
// registered ones. Names are not escaped. vmrange histograms have le buckets.
func NewGatherer(sets ...*metrics.Set) prometheus.Gatherer {
	if len(sets) == 0 {
		sets = nil
	}
	return gatherer{metrics.NewHandler(metrics.HandlerOptions{Sets: sets, LeBuckets: true, MaxRequestsInFlight: 1 << 20})}
}

type gatherer struct{ page http.Handler }

const acceptFamilies = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited;escaping=allow-utf-8"

// Gather implements prometheus.Gatherer.
func (g gatherer) Gather() ([]*dto.MetricFamily, error) {
	req, err := http.NewRequest(http.MethodGet, "/", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", acceptFamilies)
	w := response{header: http.Header{}, status: http.StatusOK}
	g.page.ServeHTTP(&w, req)
	if w.status != http.StatusOK {
		return nil, fmt.Errorf("metrics: status %d: %s", w.status, w.body.String())
	}
	decoder := expfmt.NewDecoder(&w.body, expfmt.Format(w.header.Get("Content-Type")))
	var families []*dto.MetricFamily
	for {
		f := &dto.MetricFamily{}
		if err := decoder.Decode(f); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		families = append(families, f)
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, nil
}

// response is an http.ResponseWriter that keeps the body in memory.
type response struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) { w.status = status }

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) { return w.body.Write(p) }

// NewCollector returns a collector of the sets; without arguments, of the default set and the
// registered ones. It is an unchecked collector: it describes no metrics, because metrics may
// be registered at any time. Register it once in a prometheus.Registry.
func NewCollector(sets ...*metrics.Set) prometheus.Collector { return collector{NewGatherer(sets...)} }

type collector struct{ prometheus.Gatherer }

// Describe implements prometheus.Collector.
func (collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(to chan<- prometheus.Metric) {
	families, err := c.Gather()
	if err != nil {
		to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, f := range families {
		for _, m := range f.Metric {
			labels := prometheus.Labels{}
			for _, pair := range m.Label {
				labels[pair.GetName()] = pair.GetValue()
			}
			to <- metric{prometheus.NewDesc(f.GetName(), f.GetHelp(), nil, labels), m}
		}
	}
}

// metric is one gathered metric.
type metric struct {
	desc *prometheus.Desc
	m    *dto.Metric
}

// Desc implements prometheus.Metric.
func (m metric) Desc() *prometheus.Desc { return m.desc }

// Write implements prometheus.Metric.
func (m metric) Write(to *dto.Metric) error {
	to.Label, to.Gauge, to.Counter, to.Summary = m.m.Label, m.m.Gauge, m.m.Counter, m.m.Summary
	to.Untyped, to.Histogram, to.TimestampMs = m.m.Untyped, m.m.Histogram, m.m.TimestampMs
	return nil
}
