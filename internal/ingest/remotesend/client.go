package remotesend

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/storage/remote"
	"github.com/prometheus/prometheus/util/compression"
)

// client is the client of a queue. It notices when the queue drops samples, and sends what is sent a second time so
// that the receiver loses nothing by it.
type client struct {
	remote.WriteClient
	halve bool // the requests are in remote write 1.0

	mu        sync.Mutex
	endings   []<-chan struct{} // one is closed when the queue drops what it has, instead of sending it
	resending bool              // some samples may have been sent before
	parts     map[string]part   // by request that the queue tries again
}

// part is what is left of a refused request: series that are neither sent nor refused.
type part struct {
	series  [][]byte
	refusal error // of the whole request
}

// errDropped is returned for samples behind those that the queue has dropped. The reader passes both on again.
// Otherwise a receiver would have the newer ones first, and refuse the others.
var errDropped = errors.New("not sent now: the queue dropped samples before these, and sends both again in their order")

// Store implements remote.WriteClient. A Prometheus without out_of_order_time_window that gets a sample twice, and
// a newer one in between, refuses the whole request of remote write 1.0: also samples that it does not have. So
// such a request is sent again in halves, until only the samples that the receiver has are refused.
func (c *client) Store(ctx context.Context, req []byte, attempt int) (remote.WriteResponseStats, error) {
	resending, left, err := c.begin(ctx, req)
	if err != nil {
		return remote.WriteResponseStats{}, err
	}
	send := c.whole
	if left.refusal == nil {
		stats, err := c.WriteClient.Store(ctx, req, attempt)
		if err == nil || !resending || !c.halve || !refusedWhole(err) {
			return stats, err
		}
		series, ok := split(req)
		if !ok {
			return stats, err
		}
		left, send = part{series, err}, c.halves
	}
	if left.series, err = send(ctx, left.series, attempt); err != nil {
		c.keep(req, left)
		return remote.WriteResponseStats{}, err
	}
	return remote.WriteResponseStats{}, left.refusal
}

// begin records how the queue drops samples: the context ends only if the queue stops its shards without sending
// what they have. All calls between two restarts of the shards share it; those with metadata have their own. left is
// what an earlier call with the request has not sent.
func (c *client) begin(ctx context.Context, req []byte) (resending bool, left part, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := ctx.Done(); !slices.Contains(c.endings, done) {
		c.endings = append(c.endings, done)
	}
	if slices.ContainsFunc(c.endings, isClosed) {
		return false, part{}, errDropped
	}
	left = c.parts[string(req)]
	delete(c.parts, string(req))
	return c.resending, left, nil
}

// keep keeps what is left of a request for the next attempt: with one request in a thousand that fails, an attempt
// that begins with the whole request would never end.
func (c *client) keep(req []byte, left part) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.parts == nil {
		c.parts = map[string]part{}
	}
	c.parts[string(req)] = left
}

// hasDropped reports whether the queue has dropped samples since forget.
func (c *client) hasDropped() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.endings, isClosed)
}

// forget is called while the queue has no samples.
func (c *client) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endings, c.parts = nil, nil
}

// resend tells whether the samples that follow may have been sent before.
func (c *client) resend(again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.resending = again
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// halves sends the series of a refused request as two requests. An error is one that may pass; left are the series that
// were not sent because of it.
func (c *client) halves(ctx context.Context, series [][]byte, attempt int) (left [][]byte, err error) {
	if len(series) < 2 {
		return nil, nil
	}
	middle := len(series) / 2
	if left, err = c.whole(ctx, series[:middle], attempt); err != nil {
		return slices.Concat(left, series[middle:]), err
	}
	return c.whole(ctx, series[middle:], attempt)
}

// whole sends series as one request, and if it is refused in halves.
func (c *client) whole(ctx context.Context, series [][]byte, attempt int) (left [][]byte, err error) {
	req, err := compression.Encode(compression.Snappy, slices.Concat(series...), compression.NewSyncEncodeBuffer())
	if err != nil {
		return series, err
	}
	_, err = c.WriteClient.Store(ctx, req, attempt)
	switch {
	case err != nil && isRecoverable(err):
		return series, err
	case err != nil && refusedWhole(err):
		return c.halves(ctx, series, attempt)
	}
	return nil, nil
}

// badRequest is how the library's client begins the error of a response with status 400.
const badRequest = "server returned HTTP status 400 "

func isRecoverable(err error) bool {
	var again remote.RecoverableError
	return errors.As(err, &again)
}

// refusedWhole reports whether err is the response of a receiver that refuses a request for one sample that is not
// newer than another. Thanos Receive has the same texts with status 409, but accepts the other samples.
func refusedWhole(err error) bool {
	if isRecoverable(err) || !strings.HasPrefix(err.Error(), badRequest) {
		return false
	}
	reasons := []error{storage.ErrOutOfOrderSample, storage.ErrOutOfBounds, storage.ErrTooOldSample,
		storage.ErrDuplicateSampleForTimestamp}
	return slices.ContainsFunc(reasons, func(of error) bool { return strings.Contains(err.Error(), of.Error()) })
}

// split returns the fields of a request of remote write 1.0. Each is a message of one series with one sample. Joined,
// any of them are a request.
func split(req []byte) (fields [][]byte, ok bool) {
	body, err := compression.Decode(compression.Snappy, req, compression.NewSyncDecodeBuffer())
	if err != nil {
		return nil, false
	}
	for len(body) > 0 {
		tag, n := binary.Uvarint(body)
		size, m := binary.Uvarint(body[max(n, 0):])
		if n <= 0 || m <= 0 || tag&7 != 2 || size > uint64(len(body)-n-m) {
			return nil, false
		}
		end := n + m + int(size)
		fields = append(fields, body[:end])
		body = body[end:]
	}
	return fields, true
}
