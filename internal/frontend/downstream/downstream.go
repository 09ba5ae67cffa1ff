// Package downstream is the HTTP client of the query frontend for the server it
// queries: Prometheus, Thanos query, VictoriaMetrics, Mimir.
//
// Open takes a Request, sends it and retries it as needed. It returns a Response as
// soon as the headers have arrived; Response.Body returns the decoded bytes as they
// arrive. A body without a content encoding is read straight from the socket into
// the caller's buffer, so the caller decides how large the reads are. The Body
// records the hash and the length of what it has returned. When the downstream
// breaks off in the middle of a body, the request is sent once more and the new
// response is read up to the break. Reading continues only if the hashes match;
// otherwise it ends with ErrChanged, and a caller that forwards the bytes must
// abort its own response.
//
//	Open ── try ── 2xx, 4xx, query timeout ───────────> Response
//	         │  └─ 5xx, no connection ─ wait ─ try …
//	Read ── bytes ──────────────────────────────────────> caller
//	         └─ break at byte n ─ wait ─ try ─ n bytes hash alike? ─ yes ─> bytes
//	                                                               └─ no ─> ErrChanged
//
// A retry before the response has begun and a retry after a break both take one of the request's
// retries and one token of the budget that all requests share. The Body holds the connection and a
// pooled decoder until the body ends or is closed. JSON, splitting, caching and admission are in
// other packages.
package downstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/server"
	instruments "github.com/ferula-io/ferula/metrics"

	"github.com/ferula-io/ferula/internal/version"
)

// Options of a client. A zero value takes the default named. A negative timeout,
// Retries or BudgetPerSecond means none.
type Options struct {
	URL       string   // of the downstream, with a path prefix if it has one
	Encodings []string // to request, in order of preference; none: Identity
	UserAgent string   // of requests that forward no User-Agent; "": ferula/VERSION

	ConnectTimeout time.Duration // of a TCP connection; 0: 5s
	IdleTimeout    time.Duration // without a byte while a body is read; 0: 1m

	Retries       int           // of one request; 0: 5
	BackoffMin    time.Duration // before the first retry; 0: 100ms
	BackoffMax    time.Duration // the wait doubles up to this; 0: 2s
	RetryAfterMax time.Duration // the longest Retry-After that is honoured; 0: 5s

	BudgetRatio     float64 // retries that each request adds to the budget; 0: 0.2
	BudgetPerSecond float64 // retries that each second adds to the budget; 0: 1
	BudgetBurst     int     // size of the budget, which starts full; 0: 100

	BytesMax int64 // of a decoded response; 0: 16 GiB
	// ReadBufferBytes is the size of a connection's read buffer; 0: 256 KiB. A Read into a larger
	// slice bypasses the read buffer, unless the body is sent in HTTP chunks smaller than the read
	// buffer: for such bodies a read buffer of 64 KiB costs 5 to 15 % more CPU than one of 256 KiB.
	// Idle connections keep their read buffers.
	ReadBufferBytes int
	Transport       Transport

	// Wrap wraps the transport, for tracing. Its RoundTripper sees every try.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Jitter returns numbers in [0, 1); nil: random.
	Jitter func() float64
}

func (o Options) withDefaults() Options {
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 5*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, time.Minute)
	o.BackoffMin = cmp.Or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = cmp.Or(o.BackoffMax, max(2*time.Second, o.BackoffMin))
	o.RetryAfterMax = cmp.Or(o.RetryAfterMax, 5*time.Second)
	o.UserAgent = cmp.Or(o.UserAgent, version.UserAgent())
	o.Retries = cmp.Or(o.Retries, 5)
	o.BudgetRatio = cmp.Or(o.BudgetRatio, 0.2)
	o.BudgetPerSecond = cmp.Or(o.BudgetPerSecond, 1)
	o.BudgetBurst = cmp.Or(o.BudgetBurst, 100)
	o.BytesMax = cmp.Or(o.BytesMax, 16<<30)
	o.ReadBufferBytes = cmp.Or(o.ReadBufferBytes, 256<<10)
	if len(o.Encodings) == 0 {
		o.Encodings = []string{Identity}
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

// Validate reports every error of the options at once.
func (o Options) Validate() error {
	var errs []error
	invalidURL := func(format string, args ...any) {
		errs = append(errs, hint.Invalid("query-frontend.downstream-url", fmt.Errorf(format, args...)))
	}
	switch u, err := server.HTTPURL(o.URL); {
	case err != nil:
		invalidURL("%w", err)
	case u.RawQuery != "" || u.Fragment != "":
		invalidURL("%q has a query or a fragment", u.Redacted())
	}
	for _, encoding := range o.Encodings {
		if !slices.Contains([]string{Identity, Gzip, Zstd, Snappy}, encoding) {
			errs = append(errs, hint.Invalid("downstream.encoding",
				fmt.Errorf("unknown encoding %q: want identity, gzip, zstd or snappy", encoding)))
		}
	}
	errs = append(errs, o.Transport.Validate())
	return errors.Join(errs...)
}

// Client sends requests to one downstream. Its methods may be called concurrently.
type Client struct {
	opts           Options
	logger         *slog.Logger
	base           *url.URL
	transport      *http.Transport
	tripper        http.RoundTripper // transport, wrapped by Options.Wrap
	acceptEncoding []string
	userAgent      []string
	budget         *budget
	metrics        *metrics
}

// New returns a client and sends nothing. With a nil logger nothing is logged; with a nil set the
// metrics are not exported.
func New(opts Options, logger *slog.Logger, set *instruments.Set) (*Client, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	base, err := url.Parse(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("downstream: %w", err)
	}
	transport, err := opts.Transport.build(opts.ConnectTimeout, opts.ReadBufferBytes)
	if err != nil {
		return nil, err
	}
	m := newMetrics(set)
	// A plain list, because Prometheus does not parse quality values.
	encodings := slices.DeleteFunc(slices.Clone(opts.Encodings), func(e string) bool { return e == Identity })
	if len(encodings) == 0 {
		encodings = []string{Identity}
	}
	c := &Client{
		opts: opts, logger: logger, base: base, transport: transport, tripper: transport,
		acceptEncoding: []string{strings.Join(encodings, ", ")}, userAgent: []string{opts.UserAgent},
		budget: newBudget(opts.BudgetRatio, max(0, opts.BudgetPerSecond), opts.BudgetBurst), metrics: m,
	}
	if opts.Wrap != nil {
		c.tripper = opts.Wrap(transport)
	}
	return c, nil
}

// Close closes idle connections. Open bodies stay readable; their readers must
// close them.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Response is the start of a response. Body must be closed whatever the status,
// even if it was read to its end.
type Response struct {
	Status int
	// Header has no hop-by-hop headers. If the body is decoded, it has no Content-Length and no
	// Content-Encoding either. The caller owns it.
	Header http.Header
	// Length is the length of the decoded body in bytes; -1 if it is not known in advance.
	Length int64
	// Delimited reports that the body has a Content-Length, or is sent in HTTP chunks or by HTTP/2.
	// Otherwise a connection that breaks off looks like the end of the body, and only a caller that
	// parses the body can detect the break.
	Delimited bool
	Body      *Body
}

// NoStore reports whether the response must not be cached: its Cache-Control, or the one of a response
// that continued its body after a break, has no-store. The result is final once the body was read
// to its end.
func (r *Response) NoStore() bool {
	if HasNoStore(r.Header) {
		return true
	}
	r.Body.mu.Lock()
	defer r.Body.mu.Unlock()
	return r.Body.noStore
}

// HasNoStore reports whether the Cache-Control of a request or a response has no-store.
func HasNoStore(h http.Header) bool {
	return slices.ContainsFunc(h.Values("Cache-Control"), func(value string) bool {
		return strings.Contains(strings.ToLower(value), "no-store")
	})
}

// CopyHeader adds to dst the headers of the response except Content-Length and the hop-by-hop
// headers. The body may then be streamed in another encoding.
func (r *Response) CopyHeader(dst http.Header) {
	copyEndToEnd(dst, r.Header)
	dst.Del("Content-Length")
}

// Open sends r and returns once a response with a final status has begun. A 5xx is not final while
// retries are left, unless it reports that the query timed out. A 429 or 503 is not final if its
// Retry-After is short enough to wait for. When the retries are used up, such a response is
// returned like any other. The context also applies to the body: when it ends, Read fails with its
// cause.
func (c *Client) Open(ctx context.Context, r Request) (*Response, error) {
	m, err := c.message(r)
	if err != nil {
		return nil, err
	}
	c.budget.deposit()
	c.metrics.inFlight.Inc()
	ctx, cancel := context.WithCancelCause(ctx)
	k := &call{client: c, ctx: ctx, message: m, retries: c.opts.Retries, backoff: c.opts.BackoffMin}
	switch {
	case r.Retries != 0:
		k.retries = r.Retries
	case !m.repeatable:
		k.retries = 0
	}
	t, err := k.response()
	if err != nil {
		cancel(errReleased)
		c.metrics.inFlight.Dec()
		return nil, err
	}
	b := &Body{call: k, try: t, cancel: cancel, status: t.status, bytesMax: c.opts.BytesMax, hashing: k.retries > 0}
	return &Response{Status: t.status, Header: t.header, Length: t.length, Delimited: t.delimited, Body: b}, nil
}
