// Package promhttp has the names of client_golang's package promhttp, so that a program changes
// only an import path. The responses then have the metrics of package metrics, too:
//
//	import "github.com/ferula-io/ferula/metrics/promcompat/promhttp"
//
//	http.Handle("/metrics", promhttp.Handler()) // unchanged
//
// The metrics of package metrics are in the responses of [Handler], and of [HandlerFor] with
// prometheus.DefaultGatherer. A handler of another gatherer exposes that gatherer only, because
// exporters create registries for single requests. To expose the metrics of package metrics with
// your own registry, register promcompat.NewCollector in it.
//
// All types and constants come from client_golang. client_golang writes the responses, so all
// options have the same effect. promcompat.Handler has fewer options and costs less, because it
// does not convert the metrics of package metrics to client_golang's types.
package promhttp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/ferula-io/ferula/metrics/promcompat"
)

// The types of client_golang's package promhttp.
type (
	// Compression is a content coding of responses.
	Compression = promhttp.Compression
	// HandlerErrorHandling is what a handler does after an error.
	HandlerErrorHandling = promhttp.HandlerErrorHandling
	// HandlerOpts are the options of HandlerFor.
	HandlerOpts = promhttp.HandlerOpts
	// InstrumentTrace has the functions of InstrumentRoundTripperTrace.
	InstrumentTrace = promhttp.InstrumentTrace
	// LabelValueFromCtx returns a label value from the context of a request.
	LabelValueFromCtx = promhttp.LabelValueFromCtx
	// LabelValueFromRequest returns a label value from a request.
	LabelValueFromRequest = promhttp.LabelValueFromRequest
	// Logger logs the errors of a handler.
	Logger = promhttp.Logger
	// Option is an option of the Instrument functions.
	Option = promhttp.Option
	// RoundTripperFunc is a function that is an http.RoundTripper.
	RoundTripperFunc = promhttp.RoundTripperFunc
)

// The content codings of HandlerOpts.OfferedCompressions. Zstd needs an import of client_golang's
// package promhttp/zstd.
const (
	Identity = promhttp.Identity
	Gzip     = promhttp.Gzip
	Zstd     = promhttp.Zstd
)

// The values of HandlerOpts.ErrorHandling.
const (
	HTTPErrorOnError = promhttp.HTTPErrorOnError
	ContinueOnError  = promhttp.ContinueOnError
	PanicOnError     = promhttp.PanicOnError
)

// Handler returns a handler of prometheus.DefaultGatherer and of the default set and the registered
// sets of package metrics. It counts its requests, as client_golang's Handler does. A family that both
// have is an error.
func Handler() http.Handler {
	return InstrumentMetricHandler(prometheus.DefaultRegisterer, HandlerFor(prometheus.DefaultGatherer, HandlerOpts{}))
}

// HandlerFor returns a handler of reg. If reg is prometheus.DefaultGatherer, the responses also have
// the default set and the registered sets of package metrics.
func HandlerFor(reg prometheus.Gatherer, opts HandlerOpts) http.Handler {
	return promhttp.HandlerFor(withSets(reg), opts)
}

// HandlerForTransactional returns a handler of reg. After each response it calls the function that
// Gather has returned.
func HandlerForTransactional(reg prometheus.TransactionalGatherer, opts HandlerOpts) http.Handler {
	return promhttp.HandlerForTransactional(reg, opts)
}

// withSets adds the sets of package metrics to the default gatherer, and to no other one.
func withSets(reg prometheus.Gatherer) prometheus.Gatherer {
	if !reflect.ValueOf(reg).Comparable() || reg != prometheus.DefaultGatherer { // Gatherers are not comparable
		return reg
	}
	return both{reg, promcompat.NewGatherer()}
}

// both gathers the families of two gatherers. Unlike prometheus.Gatherers it keeps their units.
type both struct{ theirs, ours prometheus.Gatherer }

// Gather implements prometheus.Gatherer.
func (b both) Gather() ([]*dto.MetricFamily, error) {
	families, err := b.theirs.Gather() // may return families with an error
	ours, ourErr := b.ours.Gather()
	errs := []error{err, ourErr}
	names := make(map[string]bool, len(families))
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, f := range ours {
		if names[f.GetName()] {
			errs = append(errs, fmt.Errorf("family %s is in a set and in the gatherer", f.GetName()))
		} else {
			families = append(families, f)
		}
	}
	slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return families, errors.Join(errs...)
}

// InstrumentMetricHandler counts the requests of a handler for /metrics and registers these counters
// in reg.
func InstrumentMetricHandler(reg prometheus.Registerer, handler http.Handler) http.Handler {
	return promhttp.InstrumentMetricHandler(reg, handler)
}

// InstrumentHandlerCounter counts the requests of next by the labels "code" and "method".
func InstrumentHandlerCounter(counter *prometheus.CounterVec, next http.Handler, opts ...Option) http.HandlerFunc {
	return promhttp.InstrumentHandlerCounter(counter, next, opts...)
}

// InstrumentHandlerDuration observes the seconds that requests take.
func InstrumentHandlerDuration(obs prometheus.ObserverVec, next http.Handler, opts ...Option) http.HandlerFunc {
	return promhttp.InstrumentHandlerDuration(obs, next, opts...)
}

// InstrumentHandlerInFlight sets g to the number of requests that next serves.
func InstrumentHandlerInFlight(g prometheus.Gauge, next http.Handler) http.Handler {
	return promhttp.InstrumentHandlerInFlight(g, next)
}

// InstrumentHandlerRequestSize observes the approximate sizes of requests in bytes.
func InstrumentHandlerRequestSize(obs prometheus.ObserverVec, next http.Handler, opts ...Option) http.HandlerFunc {
	return promhttp.InstrumentHandlerRequestSize(obs, next, opts...)
}

// InstrumentHandlerResponseSize observes the sizes of responses in bytes.
func InstrumentHandlerResponseSize(obs prometheus.ObserverVec, next http.Handler, opts ...Option) http.Handler {
	return promhttp.InstrumentHandlerResponseSize(obs, next, opts...)
}

// InstrumentHandlerTimeToWriteHeader observes the seconds until the header of the response is
// written.
func InstrumentHandlerTimeToWriteHeader(obs prometheus.ObserverVec, next http.Handler,
	opts ...Option) http.HandlerFunc {
	return promhttp.InstrumentHandlerTimeToWriteHeader(obs, next, opts...)
}

// InstrumentRoundTripperCounter counts the requests of next by the labels "code" and "method".
func InstrumentRoundTripperCounter(counter *prometheus.CounterVec, next http.RoundTripper,
	opts ...Option) RoundTripperFunc {
	return promhttp.InstrumentRoundTripperCounter(counter, next, opts...)
}

// InstrumentRoundTripperDuration observes the seconds that requests take.
func InstrumentRoundTripperDuration(obs prometheus.ObserverVec, next http.RoundTripper,
	opts ...Option) RoundTripperFunc {
	return promhttp.InstrumentRoundTripperDuration(obs, next, opts...)
}

// InstrumentRoundTripperInFlight sets gauge to the number of requests that next sends.
func InstrumentRoundTripperInFlight(gauge prometheus.Gauge, next http.RoundTripper) RoundTripperFunc {
	return promhttp.InstrumentRoundTripperInFlight(gauge, next)
}

// InstrumentRoundTripperTrace calls the functions of it with the seconds from the beginning of a
// request to each event.
func InstrumentRoundTripperTrace(it *InstrumentTrace, next http.RoundTripper) RoundTripperFunc {
	return promhttp.InstrumentRoundTripperTrace(it, next)
}

// WithExemplarFromContext adds exemplars with labels from the context of a request.
func WithExemplarFromContext(labels func(ctx context.Context) prometheus.Labels) Option {
	return promhttp.WithExemplarFromContext(labels)
}

// WithExemplarFromRequest adds exemplars with labels from a request.
func WithExemplarFromRequest(labels func(req *http.Request) prometheus.Labels) Option {
	return promhttp.WithExemplarFromRequest(labels)
}

// WithExtraMethods adds values of the label "method" to the known ones. Other methods are
// "unknown".
func WithExtraMethods(methods ...string) Option { return promhttp.WithExtraMethods(methods...) }

// WithLabelFromCtx adds a label with a value from the context of a request.
func WithLabelFromCtx(name string, valueFn LabelValueFromCtx) Option {
	return promhttp.WithLabelFromCtx(name, valueFn)
}

// WithLabelFromRequest adds a label with a value from a request.
func WithLabelFromRequest(name string, valueFn LabelValueFromRequest) Option {
	return promhttp.WithLabelFromRequest(name, valueFn)
}
