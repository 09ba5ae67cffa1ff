package downstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/ferula-io/ferula/promjson"
)

// try is one request on the wire and its response, from the status line to the
// last byte or release.
type try struct {
	caller context.Context // context of the call: it distinguishes the end of the call from the timeouts of the try
	ctx    context.Context
	cancel context.CancelCauseFunc

	status    int
	header    http.Header
	length    int64 // decoded, or -1
	delimited bool

	source   source
	decoding *decoding // nil: the source's bytes are the body

	peeked  []byte // first bytes of the decoded body, which Read returns first
	peekErr error  // the error after peeked
}

// source is the body as the connection delivers it. It limits how long a read may wait, and records
// the error of the last read, which a decoder may hide.
type source struct {
	body    io.ReadCloser
	metrics *metrics
	watch   watch
	err     error
}

func (s *source) Read(p []byte) (int, error) {
	s.watch.begin()
	n, err := s.body.Read(p)
	s.watch.done()
	s.err = err
	s.metrics.wire.AddInt64(int64(n))
	return n, err
}

// send makes one try. On an error it has released everything.
func (c *Client) send(caller context.Context, m *message) (*try, error) {
	ctx, cancel := context.WithCancelCause(caller)
	t := &try{caller: caller, ctx: ctx, cancel: cancel}
	t.source.metrics = c.metrics
	t.source.watch.idle = c.opts.IdleTimeout
	t.source.watch.end = func() { cancel(errStalled) }
	begun := time.Now()
	resp, err := c.tripper.RoundTrip(m.request(t.source.watch.attach(ctx)))
	if err != nil {
		err = failure(caller, ctx, t.source.watch.sent.Load(), err)
		cancel(errReleased)
		c.metrics.failed(err)
		return nil, err
	}
	c.metrics.tried(resp.StatusCode, time.Since(begun))
	t.source.body = resp.Body
	if err := t.begin(m.method, resp); err != nil {
		t.release()
		return nil, err
	}
	return t, nil
}

// begin evaluates the response's headers.
func (t *try) begin(method string, resp *http.Response) (err error) {
	t.status, t.length = resp.StatusCode, resp.ContentLength
	t.delimited = resp.ContentLength >= 0 || len(resp.TransferEncoding) > 0 || resp.ProtoMajor > 1
	t.header = make(http.Header, len(resp.Header))
	copyEndToEnd(t.header, resp.Header)
	if method == http.MethodHead || resp.StatusCode == http.StatusNoContent || resp.StatusCode == http.StatusNotModified {
		return nil
	}
	if t.decoding, err = newDecoding(resp.Header.Get("Content-Encoding"), &t.source); t.decoding != nil {
		t.length = -1
		t.header.Del("Content-Length")
		t.header.Del("Content-Encoding")
	}
	return err
}

// Read returns decoded bytes. Its error is io.EOF at the end of the body, or a brokenError if the
// body broke off and a retry may help. Any other error is final. If the body is neither delimited
// nor encoded, a break looks like the end and is io.EOF.
func (t *try) Read(p []byte) (int, error) {
	if len(t.peeked) > 0 {
		n := copy(p, t.peeked)
		t.peeked = t.peeked[n:]
		return n, nil
	}
	if t.peekErr != nil {
		return 0, t.peekErr
	}
	return t.read(p)
}

func (t *try) read(p []byte) (int, error) {
	if t.decoding == nil {
		n, err := t.source.Read(p)
		if err != nil && !errors.Is(err, io.EOF) {
			err = t.broken(err)
		}
		return n, err
	}
	n, err := t.decoding.Read(p)
	switch ended := t.source.err; {
	case err == nil:
		return n, nil
	case ended != nil && !errors.Is(ended, io.EOF): // the decoder failed because the connection did
		return n, t.broken(ended)
	case errors.Is(err, io.EOF):
		return n, io.EOF
	case ended != nil && !t.delimited && early(err):
		return n, t.broken(fmt.Errorf("%w: %w", errEarly, err))
	default:
		return n, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
}

// peekBytes is how many bytes of an error's body are searched for its type.
const peekBytes = 4 << 10

// outOfTime reports whether a 5xx means that the query timed out: a reverse proxy reports it by
// status 504, the Prometheus API by 503 and the error type.
func (t *try) outOfTime() bool {
	if t.status != http.StatusServiceUnavailable {
		return t.status == http.StatusGatewayTimeout
	}
	if t.source.body == nil {
		return false
	}
	body := make([]byte, 0, peekBytes)
	for len(body) < cap(body) && t.peekErr == nil {
		var n int
		n, t.peekErr = t.read(body[len(body):cap(body)])
		body = body[:len(body)+n]
	}
	t.peeked = body
	scanner := promjson.NewScanner(nil, promjson.Options{})
	scanner.ResetBytes(body)
	for scanner.Next() {
	}
	return scanner.Err() == nil && scanner.Envelope().ErrorType == "timeout"
}

// broken returns the error of a connection that ended in the middle of a body.
func (t *try) broken(err error) error {
	err = failure(t.caller, t.ctx, true, err)
	if errors.Is(err, ErrUnavailable) {
		return &brokenError{err}
	}
	return err // the caller's own context has ended
}

// brokenError marks an error after which the request may be retried.
type brokenError struct{ err error }

func (e *brokenError) Error() string { return e.err.Error() }
func (e *brokenError) Unwrap() error { return e.err }

// How many bytes of a rejected response are read, and for how long, to reuse its connection.
const (
	discardBytes = 16 << 10
	discardGrace = 100 * time.Millisecond
)

// discard ends a response that is not used. If the rest is short and arrives within discardGrace, it is read, so
// that the connection can be reused.
func (t *try) discard() {
	timer := time.AfterFunc(discardGrace, func() { t.cancel(errReleased) })
	_, _ = io.CopyN(io.Discard, &t.source, discardBytes) // after an error the connection is not reused
	timer.Stop()
	t.release()
}

// release ends the try. The connection returns to the pool if the body was read to
// its end and is closed otherwise.
func (t *try) release() {
	if t.source.body == nil {
		return
	}
	t.source.body.Close()
	t.source.body = nil
	if t.decoding != nil {
		t.decoding.release()
	}
	t.cancel(errReleased)
}
