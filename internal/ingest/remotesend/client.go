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
	halve bool // the requests are those of remote write 1.0

	mu        sync.Mutex
	endings   []<-chan struct{} // one is closed when the queue drops what it has, instead of sending it
	resending bool              // some samples may have been sent before
}

// Store implements remote.WriteClient. A Prometheus without out_of_order_time_window that gets a sample twice, and
// a newer one in between, refuses the whole request of remote write 1.0: also samples that it does not have. So
// such a request is sent again in halves, until only the samples that the receiver has are refused.
func (c *client) Store(ctx context.Context, req []byte, attempt int) (remote.WriteResponseStats, error) {
	resending := c.begin(ctx)
	stats, err := c.WriteClient.Store(ctx, req, attempt)
	if err == nil || !resending || !c.halve || !refusedWhole(err) {
		return stats, err
	}
	series, ok := split(req)
	if !ok {
		return stats, err
	}
	return remote.WriteResponseStats{}, c.halves(ctx, series, attempt, err)
}

// begin records how the queue drops samples: the context ends only if the queue stops its shards without sending
// what they have. All calls between two restarts of the shards share it; those with metadata have their own.
func (c *client) begin(ctx context.Context) (resending bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := ctx.Done(); !slices.Contains(c.endings, done) {
		c.endings = append(c.endings, done)
	}
	return c.resending
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
	c.endings = nil
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

// halves sends a refused request as two. Its error is the refusal, unless a part may be sent later: then the queue sends
// the whole request again.
func (c *client) halves(ctx context.Context, series [][]byte, attempt int, refusal error) error {
	if len(series) < 2 {
		return refusal
	}
	for _, half := range [][][]byte{series[:len(series)/2], series[len(series)/2:]} {
		req, err := compression.Encode(compression.Snappy, slices.Concat(half...), compression.NewSyncEncodeBuffer())
		if err != nil {
			return err
		}
		if _, err = c.WriteClient.Store(ctx, req, attempt); err != nil && refusedWhole(err) {
			err = c.halves(ctx, half, attempt, err)
		}
		if err != nil && isRecoverable(err) {
			return err
		}
	}
	return refusal
}

func isRecoverable(err error) bool {
	var again remote.RecoverableError
	return errors.As(err, &again)
}

// refusedWhole reports whether err is the response of a receiver that refuses a request for one sample that is not
// newer than another.
func refusedWhole(err error) bool {
	if isRecoverable(err) {
		return false
	}
	for _, reason := range []error{storage.ErrOutOfOrderSample, storage.ErrOutOfBounds, storage.ErrTooOldSample,
		storage.ErrDuplicateSampleForTimestamp} {
		if strings.Contains(err.Error(), reason.Error()) {
			return true
		}
	}
	return false
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
