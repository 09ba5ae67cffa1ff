package downstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

var (
	// ErrUnavailable means that the downstream sent no response, or broke one off,
	// and that retries did not help.
	ErrUnavailable = errors.New("downstream unavailable")
	// ErrTimeout wraps ErrUnavailable: the downstream exceeded the connect or idle timeout, or the one for headers.
	ErrTimeout = fmt.Errorf("%w: timed out", ErrUnavailable)
	// ErrChanged means that a response broke off, was requested again and differed
	// before the break: the bytes already returned cannot be continued.
	ErrChanged = errors.New("downstream response changed between retries")
	// ErrLimit means that a decoded response has more bytes than allowed.
	ErrLimit = errors.New("downstream response exceeds the limit")
	// ErrCorrupt means that a response's encoding is unknown or its bytes do not
	// decode. It is not retried, because the next response would be the same.
	ErrCorrupt = errors.New("downstream response does not decode")
	// ErrRequest means that a request cannot be sent as it is.
	ErrRequest = errors.New("downstream request is invalid")
)

// Causes with which the client itself cancels the context of a try. errEarly is the error of a body
// that ended too early.
var (
	errStalled  = errors.New("no byte within the idle timeout")
	errEarly    = errors.New("the response ended before it was complete")
	errReleased = errors.New("downstream attempt released")
)

// errUnsent is wrapped by the ErrTimeout or ErrUnavailable of a request that was not sent, because
// no connection was established.
var errUnsent = errors.New("no connection")

// failure classifies the error of a try. caller is the context of the call, try the context of the
// try. If caller has ended, failure returns its cause; else ErrTimeout or ErrUnavailable. sent means
// that the request got a connection.
func failure(caller, try context.Context, sent bool, err error) error {
	if caller.Err() != nil {
		return fmt.Errorf("downstream: %w", context.Cause(caller))
	}
	if cause := context.Cause(try); errors.Is(cause, errStalled) {
		return fmt.Errorf("%w: %w", ErrTimeout, cause)
	}
	if !sent {
		err = fmt.Errorf("%w: %w", errUnsent, err)
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("%w: %w", ErrTimeout, err)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// lasting reports whether the same request would fail in the same way again.
func lasting(err error) bool {
	var certificate *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	return errors.As(err, &certificate) || errors.As(err, &notTLS)
}
