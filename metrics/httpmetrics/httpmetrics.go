// Package httpmetrics measures HTTP servers and clients with package metrics.
//
//	m := httpmetrics.NewServer(metrics.GetDefaultSet(), httpmetrics.Options{})
//	mux.Handle("/api", m.Handler("/api", api))
//
// A server has http_requests_total{handler,method,code}, the histogram
// http_request_duration_seconds{handler,method}, http_response_size_bytes_total{handler} and
// http_requests_in_flight. A client has the same metrics with the prefix http_client_, and
// with the label target in place of handler. The counter of requests and the histogram have
// exemplars with a trace ID: the one of the header traceparent (W3C Trace Context) if the trace
// is sampled, or the result of Options.TraceID.
package httpmetrics

import (
	"net/http"
	"strconv"
	"time"

	"github.com/ferula-io/ferula/metrics"
)

// Options configure the metrics. The zero value has the defaults.
type Options struct {
	// Prefix of the names of metrics; if empty, "http_" for servers and "http_client_" for clients.
	Prefix string
	// UpperBounds of the durations in seconds; metrics.PrometheusHistogramDefaultBuckets if nil.
	UpperBounds []float64
	// Native makes the durations a native histogram, whose classic buckets are UpperBounds.
	Native bool
	// TraceID returns the trace ID of a request, or "" for no exemplar. Nil: the ID in the
	// header traceparent.
	TraceID func(r *http.Request) string
}

// Server has the metrics of an HTTP server. It is safe for concurrent use.
type Server struct{ side }

// Client has the metrics of an HTTP client. It is safe for concurrent use.
type Client struct{ side }

// side has the metrics that servers and clients share.
type side struct {
	requests *metrics.CounterVec
	seconds  *metrics.PrometheusHistogramVec
	bytes    *metrics.CounterVec
	inFlight *metrics.Gauge
	traceID  func(r *http.Request) string
}

// NewServer registers the metrics of a server in set. It panics if they are registered
// already.
func NewServer(set *metrics.Set, o Options) *Server {
	return &Server{newSide(set, o, "http_", "handler")}
}

// NewClient registers the metrics of a client in set. It panics if they are registered
// already.
func NewClient(set *metrics.Set, o Options) *Client {
	return &Client{newSide(set, o, "http_client_", "target")}
}

func newSide(set *metrics.Set, o Options, prefix, label string) side {
	if o.Prefix != "" {
		prefix = o.Prefix
	}
	bounds := o.UpperBounds
	if bounds == nil {
		bounds = metrics.PrometheusHistogramDefaultBuckets
	}
	s := side{
		requests: set.NewCounterVec(prefix+"requests_total", "HTTP requests.", label, "method", "code"),
		bytes:    set.NewCounterVec(prefix+"response_size_bytes_total", "Bytes of HTTP response bodies.", label),
		inFlight: set.NewGauge(prefix+"requests_in_flight", nil),
		traceID:  o.TraceID,
	}
	set.Describe(prefix+"requests_in_flight", "HTTP requests in flight.", "")
	name, help := prefix+"request_duration_seconds", "Duration of HTTP requests."
	if o.Native {
		s.seconds = set.NewNativeHistogramVec(name, help, metrics.NativeHistogramOptions{UpperBounds: bounds},
			label, "method")
	} else {
		s.seconds = set.NewPrometheusHistogramVec(name, help, bounds, label, "method")
	}
	if s.traceID == nil {
		s.traceID = traceOf
	}
	return s
}

// count counts one finished request.
func (s *side) count(r *http.Request, name string, status int, size int64, start time.Time) {
	method, code := methodOf(r.Method), strconv.Itoa(status)
	seconds := time.Since(start).Seconds()
	if id := s.traceID(r); id != "" {
		s.requests.With(name, method, code).IncWithExemplar("trace_id", id)
		s.seconds.With(name, method).UpdateWithExemplar(seconds, "trace_id", id)
	} else {
		s.requests.With(name, method, code).Inc()
		s.seconds.With(name, method).Update(seconds)
	}
	s.bytes.With(name).Add(int(size))
}

// Handler returns a handler that measures next. name is the value of the label handler. It must
// be a path pattern and not the path of a request, because each path would create series.
func (s *Server) Handler(name string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		s.inFlight.Inc()
		recorded := &response{ResponseWriter: w, status: http.StatusOK}
		panicked := true
		defer func() {
			s.inFlight.Dec()
			if panicked && !recorded.sent {
				recorded.status = http.StatusInternalServerError
			}
			s.count(r, name, recorded.status, recorded.size, start)
		}()
		next.ServeHTTP(recorded, r)
		panicked = false
	})
}

// RoundTripper returns a RoundTripper that measures next; nil means http.DefaultTransport. name
// is the value of the label target, such as the name of a service. The duration ends when the
// header of the response has arrived. A request without a response has the code "error".
func (c *Client) RoundTripper(name string, next http.RoundTripper) http.RoundTripper {
	if next == nil {
		next = http.DefaultTransport
	}
	return roundTripper{c, name, next}
}

type roundTripper struct {
	client *Client
	name   string
	next   http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	t.client.inFlight.Inc()
	defer t.client.inFlight.Dec()
	resp, err := t.next.RoundTrip(r)
	if err != nil {
		t.client.requests.With(t.name, methodOf(r.Method), "error").Inc()
		t.client.seconds.With(t.name, methodOf(r.Method)).Update(time.Since(start).Seconds())
		return resp, err
	}
	t.client.count(r, t.name, resp.StatusCode, max(0, resp.ContentLength), start)
	return resp, nil
}

// response records the status and the body size of a response.
type response struct {
	http.ResponseWriter
	status int
	size   int64
	sent   bool
}

// WriteHeader implements http.ResponseWriter. It does not record an informational status.
func (w *response) WriteHeader(status int) {
	if !w.sent && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status, w.sent = status, true
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	w.sent = true
	n, err := w.ResponseWriter.Write(p)
	w.size += int64(n)
	return n, err
}

// Unwrap gives http.ResponseController access to Flush, Hijack and the deadlines of the wrapped
// writer.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush implements http.Flusher, which callers find by a type assertion.
func (w *response) Flush() {
	w.sent = true
	_ = http.NewResponseController(w.ResponseWriter).Flush() // not every writer can
}

// methodOf returns the method if HTTP defines it, and "other" otherwise: clients choose the
// method, and each one would create series.
func methodOf(method string) string {
	switch method {
	case "":
		return http.MethodGet
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return method
	}
	return "other"
}

// traceOf returns the trace ID of the header traceparent, version-traceid-parentid-flags; "" if
// it is missing, invalid or not sampled.
func traceOf(r *http.Request) string {
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	text := r.Header.Get("Traceparent")
	if len(text) < length || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return ""
	}
	flags, err := strconv.ParseUint(text[53:55], 16, 8)
	if err != nil || flags&1 == 0 {
		return ""
	}
	id, some := text[3:35], false
	for i := range len(id) {
		if c := id[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return ""
		} else if c != '0' {
			some = true
		}
	}
	if !some {
		return ""
	}
	return id
}
