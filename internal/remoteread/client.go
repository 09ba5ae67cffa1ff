package remoteread

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/series"
	"github.com/ferula-io/ferula/internal/series/labelenc"
	"github.com/ferula-io/ferula/internal/version"
)

// ErrUnavailable is returned when all attempts failed: there was no response, or its status
// was 429 or 5xx.
var ErrUnavailable = errors.New("remote read server is unavailable")

// ErrRefused is returned when the server rejected the request (any other status than 200), or
// its response has a content type that the client does not read.
var ErrRefused = errors.New("remote read was refused")

// ErrLabels is returned by LabelNames: remote read has no request for them.
var ErrLabels = errors.New("remote read cannot list labels")

// ErrLimit is returned when a response needs more memory than the options allow.
// The error names the option.
var ErrLimit = errors.New("remote read response exceeds a limit")

// Permanent reports whether a second request would return the same error.
func Permanent(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrLimit) || errors.Is(err, ErrCorrupt) ||
		errors.Is(err, labelenc.ErrCorrupt)
}

// samplesHoldsMax limits the bytes of a response of samples, in multiples of HoldBytesMax.
const samplesHoldsMax = 64

// ClientOptions are the options of a Client. A limit of zero takes its default.
type ClientOptions struct {
	URL     string            // URL of the endpoint, including /api/v1/read
	HTTP    *http.Client      // client with the server's authentication and TLS; nil: http.DefaultClient
	Headers map[string]string // added to every request; they cannot change the protocol's own headers
	Timeout time.Duration     // of one request, until its response is read; 0: no timeout
	// StallTimeout is how long the server may send nothing, before the response begins
	// and while it is read; 0: no limit.
	StallTimeout time.Duration

	SamplesOnly    bool // do not request chunks; every server has samples
	FrameBytesMax  int  // in bytes; a longer frame is an error; 0: 50,000,000
	SeriesBytesMax int  // of all chunks of one series; more are an error; 0: 64 MiB
	// HoldBytesMax is the memory to sort the series of a response of chunks, which usually takes an eighth of it. A
	// response of samples is decoded as a whole, and may need samplesHoldsMax times as many bytes. 0: 12 MiB.
	HoldBytesMax   int
	ReadAheadBytes int // read buffer of a response; 0: 64 KiB; a few KiB suffice if the HTTP transport reads ahead

	Flags hint.Flags // the flags that raise the limits, named in errors

	Tries      int           // attempts until a response begins; 0: 3
	RetryAfter time.Duration // wait before the second attempt, doubled for each further one; 0: 200 ms
}

func (o ClientOptions) withDefaults() ClientOptions {
	o.HTTP = cmp.Or(o.HTTP, http.DefaultClient)
	o.FrameBytesMax = cmp.Or(o.FrameBytesMax, 50_000_000)
	o.SeriesBytesMax = cmp.Or(o.SeriesBytesMax, 64<<20)
	o.HoldBytesMax = cmp.Or(o.HoldBytesMax, 12<<20)
	o.ReadAheadBytes = cmp.Or(o.ReadAheadBytes, 64<<10)
	o.Tries = cmp.Or(o.Tries, 3)
	o.RetryAfter = cmp.Or(o.RetryAfter, 200*time.Millisecond)
	return o
}

// Client reads series from any remote read server. It requests streamed chunks. A server that has
// only samples sends samples, and the client builds chunks from them once it has all. The options bound the memory of
// both: however long a response of chunks is, it is read; a response of samples that is too long is ErrLimit. A Client
// is safe for concurrent use.
//
// RawQuerier returns encoded series through the raw interface (package series). It sends the request at the first Next
// of a set and returns series in label order.
// Chunks are cut to mint and maxt; samples of a server that has only samples are returned
// as it sends them. Errors are ErrUnavailable, ErrRefused, ErrLimit, errors of a corrupt
// response, and errors of the connection. A set that ends with an error is incomplete.
type Client struct {
	opts ClientOptions
	name string // the URL without its password, for errors
}

var _ series.Source = (*Client)(nil)

// NewClient returns a client. It sends nothing yet.
func NewClient(opts ClientOptions) *Client {
	c := &Client{opts: opts.withDefaults(), name: opts.URL}
	if u, err := url.Parse(opts.URL); err == nil {
		c.name = u.Redacted()
	}
	return c
}

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (c *Client) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return c.Querier(mint, maxt), nil
}

// Querier returns the querier of RawQuerier.
func (c *Client) Querier(mint, maxt int64) *Querier {
	return &Querier{client: c, mint: mint, maxt: maxt}
}

// Querier reads from the server. It owns the responses that are being read.
type Querier struct {
	client     *Client
	mint, maxt int64
	open       []*orderedSet
}

// Select implements series.Querier. The first Next of the set sends the request.
func (q *Querier) Select(ctx context.Context, _ series.SelectOptions, matchers ...*labels.Matcher) series.Set {
	return q.sel(ctx, nil, matchers)
}

func (q *Querier) sel(ctx context.Context, hints *storage.SelectHints, matchers []*labels.Matcher) *orderedSet {
	query, err := remote.ToQuery(q.mint, q.maxt, matchers, hints)
	o := &q.client.opts
	set := &orderedSet{flag: o.Flags.Of("HoldBytesMax"), holdBytesMax: o.HoldBytesMax, windowBytes: o.HoldBytesMax / 8}
	set.open = func() (source, error) {
		if err != nil {
			return nil, err
		}
		return q.client.sendWithRetries(ctx, query)
	}
	q.open = append(q.open, set)
	return set
}

// LabelNames implements series.Querier.
func (*Querier) LabelNames(context.Context, series.SelectOptions, ...*labels.Matcher) ([]string, error) {
	return nil, ErrLabels
}

// Capabilities implements series.Querier.
func (*Querier) Capabilities() series.Capabilities { return series.Capabilities{} }

// Close implements series.Querier. It cancels responses that were not read to the end.
func (q *Querier) Close() error {
	var errs []error
	for _, set := range q.open {
		errs = append(errs, set.close())
	}
	q.open = nil
	return errors.Join(errs...)
}

// sendWithRetries posts a query until a response begins or the server refuses the request, at most
// Tries times.
func (c *Client) sendWithRetries(ctx context.Context, q *prompb.Query) (source, error) {
	forms := []prompb.ReadRequest_ResponseType{prompb.ReadRequest_STREAMED_XOR_CHUNKS, prompb.ReadRequest_SAMPLES}
	if c.opts.SamplesOnly {
		forms = forms[1:]
	}
	plain, err := (&prompb.ReadRequest{Queries: []*prompb.Query{q}, AcceptedResponseTypes: forms}).Marshal()
	if err != nil {
		return nil, err
	}
	body := snappy.Encode(nil, plain)
	var errs []error
	for try := range c.opts.Tries {
		if try > 0 {
			select {
			case <-time.After(c.opts.RetryAfter << (try - 1)):
			case <-ctx.Done():
				return nil, errors.Join(append(errs, ctx.Err())...)
			}
		}
		from, err := c.send(ctx, q, body)
		if err == nil || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return from, err
		}
		if !slices.ContainsFunc(errs, func(before error) bool { return before.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, c.name, errors.Join(errs...))
}

// refusalBytesMax is how much of an error response's body is read.
const refusalBytesMax = 4 << 10

// send posts a query once. A response that breaks off before its first byte is an
// error, so that the request can be sent again.
func (c *Client) send(ctx context.Context, q *prompb.Query, encoded []byte) (_ source, err error) {
	cancel := context.CancelFunc(func() {})
	if c.opts.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.opts.Timeout)
	}
	ctx, unguard, silence := withStallGuard(ctx, c.opts.StallTimeout)
	end := func() { unguard(); cancel() }
	defer func() {
		if err != nil {
			end()
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.opts.URL, bytes.NewReader(encoded))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	request.Header.Set("User-Agent", version.UserAgent())
	for name, value := range c.opts.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Content-Encoding", "snappy")
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
	resp, err := c.opts.HTTP.Do(request)
	silence.stop()
	if err != nil {
		return nil, stalled(ctx, err)
	}
	body := &stallReader{from: resp.Body, ctx: ctx, guard: silence}
	response := &responseBody{from: bufio.NewReaderSize(body, c.opts.ReadAheadBytes), body: resp.Body, cancel: end}
	if resp.StatusCode == http.StatusOK {
		if _, err := response.from.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, response.Close())
		}
		return c.newSource(q, resp, response)
	}
	defer resp.Body.Close()
	reason, _ := io.ReadAll(io.LimitReader(response.from, refusalBytesMax))
	err = fmt.Errorf("%s: %s: %s", c.name, resp.Status, strings.TrimSpace(string(reason)))
	if resp.StatusCode/100 == 5 || resp.StatusCode == http.StatusTooManyRequests {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrRefused, err)
}

// newSource returns the source for the content type of a response.
func (c *Client) newSource(q *prompb.Query, resp *http.Response, response *responseBody) (source, error) {
	kind, encoding := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding")
	if encoding == "" || encoding == "snappy" { // some servers omit the encoding of samples
		switch {
		case strings.HasPrefix(kind, "application/x-streamed-protobuf") && encoding == "":
			return &frameSource{body: response, from: response.from, mint: q.StartTimestampMs, maxt: q.EndTimestampMs,
				frameBytesMax: c.opts.FrameBytesMax, seriesBytesMax: c.opts.SeriesBytesMax}, nil
		case strings.HasPrefix(kind, "application/x-protobuf"):
			return &sampleSource{body: response, from: response.from, flag: c.opts.Flags.Of("HoldBytesMax"),
				bytesMax: samplesHoldsMax * int64(c.opts.HoldBytesMax)}, nil
		}
	}
	err := fmt.Errorf("%w: %s returned content type %q with encoding %q, neither streamed chunks nor samples in snappy",
		ErrRefused, c.name, kind, encoding)
	return nil, errors.Join(err, response.Close())
}

// responseBody is a response that is being read.
type responseBody struct {
	from   *bufio.Reader
	body   io.ReadCloser
	cancel context.CancelFunc
}

func (a *responseBody) Close() error {
	defer a.cancel() // after the body is closed: a canceled context would fail the reads of body.Close
	return a.body.Close()
}
