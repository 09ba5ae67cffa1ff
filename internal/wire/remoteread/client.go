package remoteread

import (
	"bufio"
	"bytes"
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
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/codec/labelenc"
	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// ErrUnavailable is returned when no server answered after all tries.
var ErrUnavailable = errors.New("remote read server is unavailable")

// ErrRefused is returned when the server did not want to answer.
var ErrRefused = errors.New("remote read was refused")

// ErrLabels is returned by what remote read has no question for.
var ErrLabels = errors.New("remote read cannot list labels")

// ErrLimit is returned when an answer needs more memory than it may have. The
// error says which of the options is meant.
var ErrLimit = errors.New("remote read answer exceeds a limit")

// Permanent tells whether an error would be the same if the server were queried
// again.
func Permanent(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrLimit) || errors.Is(err, codec.ErrCorrupt) || errors.Is(err, labelenc.ErrCorrupt)
}

// ClientOptions of a client. Zero limits take the defaults.
type ClientOptions struct {
	URL     string            // of the endpoint, /api/v1/read included
	HTTP    *http.Client      // with the authentication and TLS that it needs; nil: http.DefaultClient
	Headers map[string]string // of every request; those of the protocol cannot be changed
	Timeout time.Duration     // of a request until its answer is read; 0: none
	// StallTimeout is how long the server may send nothing, before the response
	// begins and within it; 0: for ever.
	StallTimeout time.Duration

	SamplesOnly    bool // do not ask for chunks: the form that every server has
	FrameBytesMax  int  // a longer frame is an error; 0: 50,000,000
	SeriesBytesMax int  // so are more chunks of one series, in bytes; 0: 64 MiB
	HoldBytesMax   int  // memory to bring series into order, for chunks mostly an eighth of it, and as much to decompress samples; 0: 12 MiB
	// SortDir is where samples' series are sorted that are more than HoldBytesMax; ""
	// is nowhere: what is out of order then is an error.
	SortDir        string
	ReadAheadBytes int // of an answer; 0: 64 KiB; few where the transport of HTTP reads ahead

	Tries      int // of a request until its answer begins; 0: 3
	RetryAfter time.Duration
}

func (o ClientOptions) withDefaults() ClientOptions {
	if o.HTTP == nil {
		o.HTTP = http.DefaultClient
	}
	if o.FrameBytesMax == 0 {
		o.FrameBytesMax = 50_000_000
	}
	if o.SeriesBytesMax == 0 {
		o.SeriesBytesMax = 64 << 20
	}
	if o.HoldBytesMax == 0 {
		o.HoldBytesMax = 12 << 20
	}
	if o.ReadAheadBytes == 0 {
		o.ReadAheadBytes = 64 << 10
	}
	if o.Tries == 0 {
		o.Tries = 3
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = 200 * time.Millisecond
	}
	return o
}

// Client reads series from any server: it asks for streamed chunks, and takes
// samples from one that has only those, made into chunks as they come in. In
// either form memory is bounded by the options, whatever the answer's length. It
// is safe for concurrent use.
//
// There are two ways to read: RawQuerier gives encoded series on the raw seam,
// Querier and ChunkQuerier are storage's interfaces, and what they give is owned
// by the caller. All three ask lazily, at the first Next of a set, give series in
// the order of their labels, and give what the server has between mint and maxt.
// Errors are ErrUnavailable, ErrRefused, ErrLimit, those of a corrupt answer, and
// those of the connection; a set that ended with one is not complete.
type Client struct {
	opts ClientOptions
	name string // the URL as errors may show it
}

var (
	_ series.Source          = (*Client)(nil)
	_ storage.ChunkQueryable = (*Client)(nil)
	_ storage.Queryable      = (*Client)(nil)
)

// NewClient makes a client; nothing is asked yet.
func NewClient(opts ClientOptions) *Client {
	c := &Client{opts: opts.withDefaults(), name: opts.URL}
	if u, err := url.Parse(opts.URL); err == nil {
		c.name = u.Redacted()
	}
	return c
}

// RawQuerier implements series.Source; mint and maxt are inclusive, in ms.
func (c *Client) RawQuerier(_ context.Context, mint, maxt int64) (series.Querier, error) {
	return &clientQuerier{client: c, mint: mint, maxt: maxt}, nil
}

// ChunkQuerier implements storage.ChunkQueryable.
func (c *Client) ChunkQuerier(mint, maxt int64) (storage.ChunkQuerier, error) {
	return &chunkQuerier{storageQuerier{clientQuerier{client: c, mint: mint, maxt: maxt}}}, nil
}

// Querier implements storage.Queryable.
func (c *Client) Querier(mint, maxt int64) (storage.Querier, error) {
	return &sampleQuerier{storageQuerier{clientQuerier{client: c, mint: mint, maxt: maxt}}}, nil
}

// clientQuerier owns the answers that are being read.
type clientQuerier struct {
	client     *Client
	mint, maxt int64
	open       []*ordered
}

// Select implements series.Querier. It asks when the set's Next is called first.
func (q *clientQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	return q.sel(ctx, nil, matchers)
}

func (q *clientQuerier) sel(ctx context.Context, hints *storage.SelectHints, matchers []*labels.Matcher) *ordered {
	asked := codec.Query{StartMS: q.mint, EndMS: q.maxt}
	kinds := map[labels.MatchType]codec.MatchType{
		labels.MatchEqual: codec.MatchEqual, labels.MatchNotEqual: codec.MatchNotEqual,
		labels.MatchRegexp: codec.MatchRegexp, labels.MatchNotRegexp: codec.MatchNotRegexp,
	}
	for _, m := range matchers {
		asked.Matchers = append(asked.Matchers, codec.Matcher{Type: kinds[m.Type], Name: m.Name, Value: m.Value})
	}
	if hints != nil {
		asked.Hints = &codec.Hints{StepMS: hints.Step, Func: hints.Func, StartMS: hints.Start, EndMS: hints.End, Grouping: hints.Grouping, By: hints.By, RangeMS: hints.Range}
	}
	set := &ordered{holdBytesMax: q.client.opts.HoldBytesMax, windowBytes: q.client.opts.HoldBytesMax}
	set.open = func() (source, error) {
		from, err := q.client.ask(ctx, asked)
		switch from.(type) {
		case *frameSource:
			set.windowBytes /= 8
		case *sampleSource:
			if q.client.opts.SortDir != "" {
				from, set.windowBytes = &spilled{source: from, dir: q.client.opts.SortDir, bytesMax: set.holdBytesMax}, 0
			}
		}
		return from, err
	}
	q.open = append(q.open, set)
	return set
}

// LabelNames implements series.Querier.
func (*clientQuerier) LabelNames(context.Context) ([]string, error) { return nil, ErrLabels }

// Close implements series.Querier: what was not read to its end is cut off.
func (q *clientQuerier) Close() error {
	var errs []error
	for _, set := range q.open {
		errs = append(errs, set.close())
	}
	q.open = nil
	return errors.Join(errs...)
}

// ask posts a query until the answer begins.
func (c *Client) ask(ctx context.Context, q codec.Query) (source, error) {
	forms := []codec.ResponseType{codec.StreamedXORChunks, codec.Samples}
	if c.opts.SamplesOnly {
		forms = forms[1:]
	}
	body := snappy.Encode(nil, codec.AppendRequest(nil, codec.Request{Queries: []codec.Query{q}, Accepted: forms}))
	var errs []error
	for try := range c.opts.Tries {
		if try > 0 {
			select {
			case <-time.After(c.opts.RetryAfter << (try - 1)):
			case <-ctx.Done():
				return nil, errors.Join(append(errs, ctx.Err())...)
			}
		}
		from, err := c.once(ctx, q, body)
		if err == nil || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return from, err
		}
		if !slices.ContainsFunc(errs, func(before error) bool { return before.Error() == err.Error() }) {
			errs = append(errs, err)
		}
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, c.name, errors.Join(errs...))
}

// refusalBytesMax is how much of a refusal is read.
const refusalBytesMax = 4 << 10

// once asks one time. An answer that ends before its first byte in any other way
// than it should is as good as none.
func (c *Client) once(ctx context.Context, q codec.Query, asked []byte) (_ source, err error) {
	cancel := context.CancelFunc(func() {})
	if c.opts.Timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, c.opts.Timeout)
	}
	ctx, unguard, silence := guard(ctx, c.opts.StallTimeout)
	end := func() { unguard(); cancel() }
	defer func() {
		if err != nil {
			end()
		}
	}()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.opts.URL, bytes.NewReader(asked))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	request.Header.Set("User-Agent", "ferula")
	for name, value := range c.opts.Headers {
		request.Header.Set(name, value)
	}
	request.Header.Set("Content-Encoding", "snappy")
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
	resp, err := c.opts.HTTP.Do(request)
	silence.rest()
	if err != nil {
		return nil, stalled(ctx, err)
	}
	body := &guardedReader{from: resp.Body, ctx: ctx, guard: silence}
	answer := &answerBody{from: bufio.NewReaderSize(body, c.opts.ReadAheadBytes), body: resp.Body, cancel: end}
	if resp.StatusCode == http.StatusOK {
		if _, err := answer.from.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			return nil, errors.Join(err, answer.Close())
		}
		return c.understand(q, resp, answer)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.from, refusalBytesMax))
	err = fmt.Errorf("%s: %s: %s", c.name, resp.Status, strings.TrimSpace(string(text)))
	if resp.StatusCode/100 == 5 || resp.StatusCode == http.StatusTooManyRequests {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrRefused, err)
}

// understand chooses by the form that the server says it answers with.
func (c *Client) understand(q codec.Query, resp *http.Response, answer *answerBody) (source, error) {
	kind, encoding := resp.Header.Get("Content-Type"), resp.Header.Get("Content-Encoding")
	if encoding == "" || encoding == "snappy" { // not every server says what samples are packed in
		switch {
		case strings.HasPrefix(kind, "application/x-streamed-protobuf") && encoding == "":
			return &frameSource{body: answer, from: answer.from, mint: q.StartMS, maxt: q.EndMS, frameBytesMax: c.opts.FrameBytesMax, seriesBytesMax: c.opts.SeriesBytesMax}, nil
		case strings.HasPrefix(kind, "application/x-protobuf"):
			return &sampleSource{body: answer, from: answer.from, seriesBytesMax: c.opts.SeriesBytesMax, holdBytesMax: c.opts.HoldBytesMax}, nil
		}
	}
	return nil, errors.Join(fmt.Errorf("%w: %s answers with type %q and encoding %q, and neither streamed chunks nor samples in snappy", ErrRefused, c.name, kind, encoding), answer.Close())
}

// answerBody is an answer that is being read.
type answerBody struct {
	from   *bufio.Reader
	body   io.ReadCloser
	cancel context.CancelFunc
}

func (a *answerBody) Close() error {
	defer a.cancel() // after the body, whose reading it would fail
	return a.body.Close()
}

// storageQuerier is what both of storage's queriers share.
type storageQuerier struct{ clientQuerier }

// LabelValues implements storage.LabelQuerier.
func (*storageQuerier) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, ErrLabels
}

// LabelNames implements storage.LabelQuerier.
func (*storageQuerier) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, ErrLabels
}

type sampleQuerier struct{ storageQuerier }

// Select implements storage.Querier. Series come in order, asked for or not.
func (q *sampleQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	return series.ToSeriesSet(q.sel(ctx, hints, matchers))
}

type chunkQuerier struct{ storageQuerier }

// Select implements storage.ChunkQuerier.
func (q *chunkQuerier) Select(ctx context.Context, _ bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.ChunkSeriesSet {
	return series.ToChunkSeriesSet(q.sel(ctx, hints, matchers))
}
