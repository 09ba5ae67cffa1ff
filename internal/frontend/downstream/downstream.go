// Package downstream is the HTTP client of the query frontend towards what it
// stands before: Prometheus, Thanos query, VictoriaMetrics, Mimir.
//
// A Request comes in and is sent, again if need be; a Response goes out as soon as
// its headers are there, with a Body that gives the decoded bytes as they arrive.
// Reads go straight from the socket into the caller's buffer where nothing is
// encoded, so the caller decides how large they are. The Body remembers the hash
// and the length of what it handed out: where the downstream dies in the middle,
// the request is made once more, the new answer is read up to the break, and only
// if that hashes alike does reading go on; otherwise it ends in ErrChanged, and
// whoever passes bytes on must abort its own answer.
//
//	Open ── try ── 2xx, 4xx, out of time ─────────────> Response
//	         │  └─ 5xx, no connection ─ wait ─ try …
//	Read ── bytes ──────────────────────────────────────> caller
//	         └─ break at byte n ─ wait ─ try ─ n bytes hash alike? ─ yes ─> bytes
//	                                                               └─ no ─> ErrChanged
//
// Every repetition, of either kind, takes one of the request's retries and a
// token of the budget that all requests share. The bytes belong to the caller, an
// open connection and a borrowed decoder to the Body until its end or Close. No
// JSON, no splitting, no cache and no admission here.
package downstream

import (
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

	instruments "github.com/ferula-io/ferula/metrics"
)

// Options of a client. Zero values take the defaults named; a negative time-out,
// Retries or BudgetPerSecond means none.
type Options struct {
	URL       string   // of the downstream, with a path prefix if it has one
	Encodings []string // to ask for, the most wanted first; none: Identity
	UserAgent string   // where the request forwards none; "": ferula

	ConnectTimeout time.Duration // to a TCP connection; 0: 5s
	// FirstByteTimeout is from sending to the response's status line; 0: no limit, as
	// how long a query may take is the downstream's to say.
	FirstByteTimeout time.Duration
	IdleTimeout      time.Duration // of silence while a body is read; 0: 1m

	Retries       int           // repetitions of one request; 0: 5
	BackoffMin    time.Duration // before the first repetition; 0: 100ms
	BackoffMax    time.Duration // which doubling ends at; 0: 2s
	RetryAfterMax time.Duration // the longest Retry-After that is waited for; 0: 5s

	BudgetRatio     float64 // repetitions that each request earns for all; 0: 0.2
	BudgetPerSecond float64 // repetitions that each second earns; 0: 1
	BudgetBurst     int     // repetitions saved up at most, and at the start; 0: 100

	BytesMax int64 // of a decoded answer; 0: 16 GiB
	// ReadBufferBytes is the buffer of a connection, 0: 256 KiB. A caller's larger
	// buffer is filled past it, except from chunks that are smaller than it: those
	// cost 5 to 15 % more CPU with 64 KiB. Idle connections keep theirs.
	ReadBufferBytes int
	Transport       Transport

	// Wrap puts something around the transport, once for every try: tracing.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Jitter gives numbers in [0, 1); nil: random.
	Jitter func() float64
}

func (o Options) withDefaults() Options {
	orTime := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	orTime(&o.ConnectTimeout, 5*time.Second)
	orTime(&o.IdleTimeout, time.Minute)
	orTime(&o.BackoffMin, 100*time.Millisecond)
	orTime(&o.BackoffMax, max(2*time.Second, o.BackoffMin))
	orTime(&o.RetryAfterMax, 5*time.Second)
	if len(o.Encodings) == 0 {
		o.Encodings = []string{Identity}
	}
	if o.UserAgent == "" {
		o.UserAgent = "ferula"
	}
	if o.Retries == 0 {
		o.Retries = 5
	}
	if o.BudgetRatio == 0 {
		o.BudgetRatio = 0.2
	}
	if o.BudgetPerSecond == 0 {
		o.BudgetPerSecond = 1
	}
	if o.BudgetBurst == 0 {
		o.BudgetBurst = 100
	}
	if o.BytesMax == 0 {
		o.BytesMax = 16 << 30
	}
	if o.ReadBufferBytes == 0 {
		o.ReadBufferBytes = 256 << 10
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

// Validate reports every fault of the options at once.
func (o Options) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf("downstream: "+format, args...)) }
	switch u, err := url.Parse(o.URL); {
	case err != nil:
		var parsing *url.Error // it names the URL with its password
		if errors.As(err, &parsing) {
			err = parsing.Err
		}
		fault("URL: %w", err)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		fault("URL %q is not http://host or https://host", u.Redacted())
	case u.RawQuery != "" || u.Fragment != "":
		fault("URL %q has more than a path", u.Redacted())
	}
	for _, encoding := range o.Encodings {
		if !slices.Contains([]string{Identity, Gzip, Zstd, Snappy}, encoding) {
			fault("encoding %q is none of identity, gzip, zstd, snappy", encoding)
		}
	}
	if o.BackoffMin < 0 || o.BackoffMax < 0 || o.BackoffMax != 0 && o.BackoffMax < o.BackoffMin {
		fault("back-off from %s to %s", o.BackoffMin, o.BackoffMax)
	}
	if o.BudgetRatio < 0 || o.BudgetBurst < 0 {
		fault("retry budget of %g a request, %d at most", o.BudgetRatio, o.BudgetBurst)
	}
	if o.BytesMax < 0 || o.ReadBufferBytes < 0 {
		fault("%d bytes of an answer, %d bytes read at once", o.BytesMax, o.ReadBufferBytes)
	}
	errs = append(errs, o.Transport.Validate())
	return errors.Join(errs...)
}

// Client asks one downstream. Its methods may be called concurrently.
type Client struct {
	opts           Options
	logger         *slog.Logger
	base           *url.URL
	transport      *http.Transport
	tripper        http.RoundTripper // transport, or what Wrap made of it
	acceptEncoding []string
	userAgent      []string
	budget         *budget
	metrics        *metrics
}

// New makes a client; nothing is sent yet. A nil logger is silent, with a nil set
// nobody sees its metrics.
func New(opts Options, logger *slog.Logger, set *instruments.Set) (*Client, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	base, err := url.Parse(opts.URL)
	if err != nil {
		return nil, fmt.Errorf("downstream: %w", err)
	}
	transport, err := opts.Transport.build(opts.ConnectTimeout, opts.ReadBufferBytes)
	if err != nil {
		return nil, err
	}
	m := newMetrics(set)
	// A plain list: Prometheus does not understand quality values.
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

// Close lets go of idle connections. Answers still open live on until they are
// closed; closing them is their readers' duty.
func (c *Client) Close() { c.transport.CloseIdleConnections() }

// Response is the beginning of an answer. Whatever its status, Body must be closed,
// even if it was read to its end.
type Response struct {
	Status int
	// Header without what concerns one connection only and, where the body was
	// decoded, without the length and encoding it had. Owned by the caller.
	Header http.Header
	// Length of the decoded body if it is known beforehand, or -1.
	Length int64
	// Delimited says that the connection tells the end of the body from a break,
	// by a length or chunks. Without, an early end looks like an end here, and only
	// who knows what the body should be can tell.
	Delimited bool
	Body      *Body
}

// CopyHeader adds to dst what of the answer's headers may be passed on with a body
// that is streamed through, possibly in another encoding: all but its length.
func (r *Response) CopyHeader(dst http.Header) {
	endToEnd(dst, r.Header)
	dst.Del("Content-Length")
}

// Open asks the downstream and returns once an answer has begun whose status is
// final: not a 5xx while there are retries left, unless it says that the query ran
// out of time, and not a 429 or 503 that names a Retry-After which can be waited for.
// Such an answer that can not be repeated any
// more is returned like any other. The context bounds the body, too: when it ends,
// Read fails with its cause.
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
	t, err := k.answer()
	if err != nil {
		cancel(errReleased)
		c.metrics.inFlight.Dec()
		return nil, err
	}
	b := &Body{call: k, try: t, cancel: cancel, status: t.status, bytesMax: c.opts.BytesMax, hashing: k.retries > 0}
	if r.BytesMax > 0 {
		b.bytesMax = r.BytesMax
	}
	return &Response{Status: t.status, Header: t.header, Length: t.length, Delimited: t.delimited, Body: b}, nil
}
