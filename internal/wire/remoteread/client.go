package remoteread

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/golang/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	codec "github.com/ferula-io/ferula/internal/codec/remoteread"
	"github.com/ferula-io/ferula/internal/series"
)

// ErrUnavailable is returned when no server answered after all tries.
var ErrUnavailable = errors.New("remote read server is unavailable")

// ErrRefused is returned when the server did not want to answer.
var ErrRefused = errors.New("remote read was refused")

// ErrLabels is returned by what remote read has no question for.
var ErrLabels = errors.New("remote read cannot list labels")

// ClientOptions of a client. Zero limits take the defaults.
type ClientOptions struct {
	URL           string       // of the endpoint, /api/v1/read included
	HTTP          *http.Client // with the authentication and TLS that it needs; nil: http.DefaultClient
	FrameBytesMax int          // a longer frame is an error; 0: 50,000,000
	Tries         int          // of a request until it is answered; 0: 3
	RetryAfter    time.Duration
}

func (o ClientOptions) withDefaults() ClientOptions {
	if o.HTTP == nil {
		o.HTTP = http.DefaultClient
	}
	if o.FrameBytesMax == 0 {
		o.FrameBytesMax = 50_000_000
	}
	if o.Tries == 0 {
		o.Tries = 3
	}
	if o.RetryAfter == 0 {
		o.RetryAfter = 200 * time.Millisecond
	}
	return o
}

// Client reads series from a server that answers with streamed chunks. It is
// safe for concurrent use.
type Client struct{ opts ClientOptions }

var (
	_ series.Source          = (*Client)(nil)
	_ storage.ChunkQueryable = (*Client)(nil)
	_ storage.Queryable      = (*Client)(nil)
)

// NewClient makes a client; nothing is asked yet.
func NewClient(opts ClientOptions) *Client { return &Client{opts.withDefaults()} }

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
	open       []*frameSet
}

// Select implements series.Querier. It asks when the set's Next is called first.
func (q *clientQuerier) Select(ctx context.Context, matchers ...*labels.Matcher) series.Set {
	return q.sel(ctx, nil, matchers)
}

func (q *clientQuerier) sel(ctx context.Context, hints *storage.SelectHints, matchers []*labels.Matcher) *frameSet {
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
	set := &frameSet{frameBytesMax: q.client.opts.FrameBytesMax, open: func() (io.ReadCloser, error) { return q.client.ask(ctx, asked) }}
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

// ask posts a query until it is answered, and returns the frames.
func (c *Client) ask(ctx context.Context, q codec.Query) (io.ReadCloser, error) {
	body := snappy.Encode(nil, codec.AppendRequest(nil, codec.Request{Queries: []codec.Query{q}, Accepted: []codec.ResponseType{codec.StreamedXORChunks}}))
	var errs []error
	for try := range c.opts.Tries {
		if try > 0 {
			select {
			case <-time.After(c.opts.RetryAfter << (try - 1)):
			case <-ctx.Done():
				return nil, errors.Join(append(errs, ctx.Err())...)
			}
		}
		frames, err := c.once(ctx, body)
		if err == nil || errors.Is(err, ErrRefused) || ctx.Err() != nil {
			return frames, err
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, c.opts.URL, errors.Join(errs...))
}

// messageBytesMax is how much of a refusal is read.
const messageBytesMax = 4 << 10

func (c *Client) once(ctx context.Context, body []byte) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.opts.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	request.Header.Set("Content-Encoding", "snappy")
	request.Header.Set("Content-Type", "application/x-protobuf")
	request.Header.Set("X-Prometheus-Remote-Read-Version", "0.1.0")
	request.Header.Set("User-Agent", "ferula")
	resp, err := c.opts.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK && strings.HasPrefix(resp.Header.Get("Content-Type"), "application/x-streamed-protobuf") {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil, fmt.Errorf("%w: %s answers with %q, and only streamed chunks are understood", ErrRefused, c.opts.URL, resp.Header.Get("Content-Type"))
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, messageBytesMax))
	err = fmt.Errorf("%s: %s: %s", c.opts.URL, resp.Status, strings.TrimSpace(string(text)))
	if resp.StatusCode/100 == 5 || resp.StatusCode == http.StatusTooManyRequests {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", ErrRefused, err)
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
