package frontend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/frontend/downstream"
	"github.com/ferula-io/ferula/internal/frontend/limit"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/promjson"
)

type kind int

const (
	kindOther kind = iota
	kindRange
	kindLabels // label names, label values and series
	kindInstant
)

// String returns the kind's label value in metrics.
func (k kind) String() string { return [...]string{"other", "range", "labels", "instant"}[k] }

// kindOf returns the kind of a path's endpoint, whatever precedes /api/v1/.
func kindOf(path string) kind {
	_, endpoint, ok := strings.Cut(path, "/api/v1/")
	switch {
	case !ok:
		return kindOther
	case endpoint == "query_range":
		return kindRange
	case endpoint == "query":
		return kindInstant
	case endpoint == "labels" || endpoint == "series":
		return kindLabels
	case strings.HasPrefix(endpoint, "label/") && strings.HasSuffix(endpoint, "/values"):
		return kindLabels
	default:
		return kindOther
	}
}

// requestContext is the state of one request, from its first byte to the end of its
// response.
type requestContext struct {
	f     *Frontend
	w     http.ResponseWriter
	r     *http.Request
	kind  kind
	query query
	body  []byte         // request body, if it is not a form; else nil
	held  *httpbody.Body // holds the memory of the request body; nil without a body
	began time.Time
	span  trace.Span

	deadline time.Time // of the response, however much the client reads; zero: none
	response *responseWriter
	status   int
	cache    string // hit, partial or miss; "" without a lookup
	stages   []stage
	splicing time.Time // when the stage splice began; zero: it is not running
}

// stage is a timed step of a request: queue, slots, cache, fetch or splice. Server-Timing, the
// slow query log and a metric report it.
type stage struct {
	name string
	took time.Duration
}

func (x *requestContext) stage(name string, since time.Time) {
	took := x.f.opts.Now().Sub(since)
	x.stages = append(x.stages, stage{name, took})
	x.f.metrics.stages.With(name).Update(took.Seconds())
	_, span := x.f.opts.Tracer.Start(x.r.Context(), name, trace.WithTimestamp(since))
	span.End()
}

// timing returns the value of Server-Timing. The stage splice, which writes the response, counts until now.
func (x *requestContext) timing() string {
	stages := x.stages
	if !x.splicing.IsZero() {
		stages = append(slices.Clip(stages), stage{"splice", x.f.opts.Now().Sub(x.splicing)})
	}
	var timing strings.Builder
	for i, s := range stages {
		if i > 0 {
			timing.WriteString(", ")
		}
		fmt.Fprintf(&timing, "%s;dur=%.3f", s.name, float64(s.took.Microseconds())/1000)
	}
	return timing.String()
}

// begin reads a request and its body, and makes the checks that need no downstream.
func (f *Frontend) begin(w http.ResponseWriter, r *http.Request) (_ *requestContext, err error) {
	ctx := f.opts.Propagator.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := f.opts.Tracer.Start(ctx, r.URL.Path, trace.WithSpanKind(trace.SpanKindServer))
	r = r.WithContext(ctx)
	defer func() {
		if err != nil {
			span.End()
		}
	}()
	x := &requestContext{f: f, w: w, r: r, span: span, kind: kindOf(r.URL.Path), began: f.opts.Now(),
		status: http.StatusOK}
	if err := x.readBody(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			x.held.Release()
		}
	}()
	r = x.r
	x.query = query{path: r.URL.EscapedPath(), header: f.forwarded(r.Header)}
	isForm := strings.HasPrefix(r.Header.Get("Content-Type"), "application/x-www-form-urlencoded")
	if r.Method == http.MethodPost && isForm {
		if err := r.ParseForm(); err != nil {
			return nil, badRequest(err)
		}
		x.query.params = r.Form
	} else {
		params, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			return nil, badRequest(err)
		}
		x.query.params = params
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			x.kind = kindOther
			if x.body = x.held.Bytes(); x.body == nil {
				x.body = []byte{}
			}
		}
	}
	tenant, err := f.opts.Tenants.Of(r.Header)
	if err != nil {
		return nil, err
	}
	x.query.tenant = tenant
	if err := f.opts.Limits.CheckText(x.query.params.Get("query")); err != nil {
		return nil, err
	}
	x.response = &responseWriter{x: x, limit: f.opts.Limits.ResponseBytesMax,
		flag: f.opts.Limits.Flags.Of("ResponseBytesMax"), initialHeader: w.Header().Clone()}
	f.metrics.running.Inc()
	return x, nil
}

// readBody reads the request body, if there is one, within the budget of all requests. It
// happens before admission, so that a slow client holds no slot.
func (x *requestContext) readBody() (err error) {
	if x.r.Method == http.MethodGet || x.r.Method == http.MethodHead {
		return nil
	}
	if x.held, err = x.f.opts.Bodies.Read(x.w, x.r, BodyBytesMax); err != nil {
		httpbody.Prepare(x.w, x.r, err)
		if httpbody.Status(err) == http.StatusServiceUnavailable {
			return &statusError{http.StatusServiceUnavailable, "unavailable", err}
		}
		return badRequest(err)
	}
	x.r.Body = x.held.NewReader()
	return nil
}

func badRequest(err error) error { return &statusError{http.StatusBadRequest, "bad_data", err} }

// alwaysForwarded are the headers that every downstream request carries.
var alwaysForwarded = []string{"Accept", "Content-Type", "User-Agent", "X-Scope-OrgID", limit.ThanosHeader,
	"Traceparent", "Tracestate"}

// forwarded returns the headers of the downstream request. The header of
// Options.TenantHeader is renamed to limit.ThanosHeader, which Thanos' components read.
func (f *Frontend) forwarded(h http.Header) http.Header {
	out := http.Header{}
	for _, name := range slices.Concat(f.opts.ForwardHeaders, alwaysForwarded) {
		if values := h.Values(name); len(values) > 0 {
			out[http.CanonicalHeaderKey(name)] = values
		}
	}
	if custom := f.opts.TenantHeader; custom != "" {
		out.Del(custom)
		if tenant := h.Get(custom); tenant != "" {
			out.Set(limit.ThanosHeader, tenant)
		}
	}
	return out
}

// admit waits for an admission slot. The returned function releases it.
func (f *Frontend) admit(x *requestContext) (func(), error) {
	if f.opts.Admission == nil {
		return func() {}, nil
	}
	since := f.opts.Now()
	release, err := f.opts.Admission.Acquire(x.r.Context(), x.query.tenant)
	x.stage("queue", since)
	return release, err
}

// end counts the request and writes the slow query log.
func (x *requestContext) end() {
	x.response.release()
	x.held.Release()
	f := x.f
	took := f.opts.Now().Sub(x.began)
	f.metrics.running.Dec()
	f.metrics.request(x, took)
	x.span.SetAttributes(attribute.String("query", x.query.params.Get("query")),
		attribute.String("tenant", x.query.tenant),
		attribute.String("cache", x.cache), attribute.Int("status", x.status), attribute.Int64("bytes", x.response.written))
	x.span.End()
	if f.opts.SlowerThan == 0 || took < f.opts.SlowerThan || x.kind == kindOther &&
		!strings.HasSuffix(x.query.path, "/query") {
		return
	}
	attrs := []any{"path", x.query.path, "tenant", x.query.tenant, "took", took.String(), "status", x.status, "bytes",
		x.response.written}
	for _, name := range []string{"query", "start", "end", "step", "time"} {
		if v := x.query.params.Get(name); v != "" {
			attrs = append(attrs, "param_"+name, v)
		}
	}
	if x.cache != "" {
		attrs = append(attrs, "cache", x.cache)
	}
	if name := f.opts.UserHeader; name != "" {
		attrs = append(attrs, "remote_user", x.r.Header.Get(name))
	} else if user, _, ok := x.r.BasicAuth(); ok {
		attrs = append(attrs, "remote_user", user)
	}
	for _, s := range x.stages {
		attrs = append(attrs, s.name, s.took.String())
	}
	f.opts.Logger.Info("slow query detected", attrs...) // the message of Thanos, because alerts of users on logs match it
}

// statusError is an error with its HTTP status and the API's errorType.
type statusError struct {
	status int
	kind   string // errorType of the API
	err    error
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

// classify returns the HTTP status and the errorType of an error. All error responses of the
// package get their status and errorType from it.
func classify(err error) *statusError {
	var known *statusError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, context.Canceled):
		return &statusError{499, "canceled", err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, downstream.ErrTimeout):
		return &statusError{http.StatusGatewayTimeout, "timeout", err}
	case errors.Is(err, limit.ErrQueueFull), errors.Is(err, limit.ErrTenants):
		return &statusError{http.StatusTooManyRequests, "unavailable", err}
	case errors.Is(err, limit.ErrWait):
		return &statusError{http.StatusServiceUnavailable, "timeout", err}
	case errors.Is(err, limit.ErrTenant):
		return &statusError{http.StatusBadRequest, "bad_data", err}
	case errors.Is(err, limit.ErrLimit), errors.Is(err, downstream.ErrLimit), errors.Is(err, errResponseTooLarge):
		return &statusError{http.StatusUnprocessableEntity, "execution", err}
	case errors.Is(err, downstream.ErrRequest):
		return &statusError{http.StatusBadRequest, "bad_data", err}
	case errors.Is(err, downstream.ErrUnavailable), errors.Is(err, downstream.ErrChanged),
		errors.Is(err, downstream.ErrCorrupt),
		errors.Is(err, promjson.ErrSyntax), errors.Is(err, promjson.ErrLimit), errors.Is(err, promjson.ErrOverlap),
		errors.Is(err, io.ErrUnexpectedEOF), errors.As(err, new(*promjson.PartError)):
		return &statusError{http.StatusBadGateway, "internal", err}
	default:
		return &statusError{http.StatusInternalServerError, "internal", err}
	}
}

// fail ends a request with an error response. If bytes of a response were sent already,
// it aborts the connection instead.
func (f *Frontend) fail(x *requestContext, err error) {
	e := classify(err)
	x.status = e.status
	level := f.opts.Logger.Warn
	if e.status < 500 {
		level = f.opts.Logger.Info
	}
	level("request failed", "path", x.query.path, "tenant", x.query.tenant, "status", e.status, "begun",
		x.response.begun(), "err", err)
	if x.response.begun() {
		panic(http.ErrAbortHandler)
	}
	x.response.reset()
	writeError(x.w, e)
}

func writeError(w http.ResponseWriter, e *statusError) {
	b := promjson.AppendString([]byte(`{"status":"error","errorType":`), e.kind)
	b = promjson.AppendString(append(b, `,"error":`...), e.Error())
	b = append(b, '}')
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(e.status)
	//lint:ignore gosec the response is JSON, by its content type
	_, _ = w.Write(b) // an error means that the client has disconnected
}

var errResponseTooLarge = errors.New("response exceeds the maximum size")

// responseWriter takes the bytes of a response. Its first Write sends the header, unless
// a call buffers the response.
type responseWriter struct {
	x       *requestContext
	body    *httpbody.Response
	limit   int64
	flag    string // that raises limit, for the error
	written int64

	contentType   string
	initialHeader http.Header // of the response, before anything was added
	// the call that buffers the response to share it; nil: the response is sent to this client only
	call       *call
	finishCall func()    // ends call, so that its waiters continue
	tee        io.Writer // also gets the bytes that are sent; nil: none
}

func (rw *responseWriter) begun() bool { return rw.body != nil && rw.body.HeaderSent() }

// Write implements io.Writer.
func (rw *responseWriter) Write(p []byte) (int, error) {
	if rw.limit > 0 && rw.written+int64(len(p)) > rw.limit {
		return 0, fmt.Errorf("%w: %d%s", errResponseTooLarge, rw.limit, rw.flag)
	}
	if rw.body == nil {
		rw.open("application/json")
	}
	if rw.call != nil {
		if rw.buffer(p) {
			rw.written += int64(len(p))
			return len(p), nil
		}
		if err := rw.stopBuffering(); err != nil {
			return 0, err
		}
	}
	n, err := rw.body.Write(p)
	rw.written += int64(n)
	return n, err
}

// buffer appends to the call's response. It returns false if that would be too long to
// share.
func (rw *responseWriter) buffer(p []byte) bool {
	if len(rw.call.body)+len(p) > sharedResponseMaxBytes {
		return false
	}
	rw.call.body = append(rw.call.body, p...)
	return true
}

// stopBuffering sends the buffered bytes to the client and ends the call. Its waiters then make
// calls of their own.
func (rw *responseWriter) stopBuffering() error {
	buffered := rw.call.body
	rw.call.body, rw.call.tooLong = nil, true
	rw.call = nil
	rw.finishCall()
	_, err := rw.body.Write(buffered)
	return err
}

// reset drops the bytes and headers written so far. None of them may have been sent.
func (rw *responseWriter) reset() {
	rw.body, rw.written = nil, 0
	if rw.call != nil {
		rw.call.body = nil
	}
	h := rw.x.w.Header()
	clear(h)
	maps.Copy(h, rw.initialHeader)
}

// sharedHeader returns the response headers that are valid for every client of a call.
// It omits Set-Cookie, which belongs to one client.
func (rw *responseWriter) sharedHeader() http.Header {
	h := rw.x.w.Header().Clone()
	for _, name := range []string{"Content-Encoding", "Content-Length", "Server-Timing", "Date", "Set-Cookie"} {
		h.Del(name)
	}
	// open adds Accept-Encoding for each client again. Vary keeps the other names, such as Accept.
	h["Vary"] = slices.Clip(slices.DeleteFunc(h["Vary"], func(name string) bool {
		return strings.EqualFold(name, "Accept-Encoding")
	}))
	h.Set("Content-Type", rw.contentType)
	return h
}

// open chooses content type and encoding, and adds X-Ferula-Cache and Server-Timing.
func (rw *responseWriter) open(contentType string) {
	x := rw.x
	r := x.r
	if x.f.opts.NoCompression {
		r = &http.Request{}
	}
	h := x.w.Header()
	h.Add("Vary", "Accept-Encoding")
	if x.cache != "" {
		h.Set("X-Ferula-Cache", x.cache)
	}
	if timing := x.timing(); timing != "" {
		h.Set("Server-Timing", timing)
	}
	rw.contentType = contentType
	rw.body = httpbody.NewResponse(x.w, r, contentType)
	rw.body.SetDeadline(x.deadline)
	if rw.tee != nil {
		rw.body.Tee(rw.tee)
	}
}

func (rw *responseWriter) close() error {
	if rw.body == nil || rw.call != nil {
		return nil
	}
	return rw.body.Close()
}

func (rw *responseWriter) release() {
	if rw.body != nil {
		rw.body.Release()
	}
}
