package downstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
)

var (
	// ErrUnavailable says that the downstream gave no answer, or broke off one,
	// and that the retries allowed did not help.
	ErrUnavailable = errors.New("downstream unavailable")
	// ErrTimeout is the ErrUnavailable of a downstream that was too slow: to
	// connect, to its first byte, or between two reads.
	ErrTimeout = fmt.Errorf("%w: timed out", ErrUnavailable)
	// ErrChanged says that an answer broke off, was asked for again and came back
	// different before the break: what was handed out cannot be continued.
	ErrChanged = errors.New("downstream answered differently when asked again")
	// ErrLimit says that an answer has more bytes, decoded, than allowed.
	ErrLimit = errors.New("downstream answer exceeds the limit")
	// ErrCorrupt says that an answer's encoding is unknown or its bytes do not
	// decode. Asking again is not expected to help, so nobody does.
	ErrCorrupt = errors.New("downstream answer does not decode")
	// ErrRequest says that a request cannot be sent as it is.
	ErrRequest = errors.New("downstream request is invalid")
)

// Why a try was ended from within; they travel as the cause of its context.
var (
	errFirstByte = errors.New("no answer within the first-byte time-out")
	errStalled   = errors.New("no byte within the idle time-out")
	errEarly     = errors.New("the answer ended before it was complete")
	errReleased  = errors.New("downstream try released")
)

// errUnsent is with the ErrTimeout of a request that was not sent, as there was no
// connection in time.
var errUnsent = errors.New("no connection in time")

// failure words what went wrong with a try: a caller that has gone is told so
// with its own context's error, everything else is ErrTimeout or ErrUnavailable.
func failure(caller, try context.Context, sent bool, err error) error {
	if caller.Err() != nil {
		return fmt.Errorf("downstream: %w", context.Cause(caller))
	}
	if cause := context.Cause(try); errors.Is(cause, errFirstByte) || errors.Is(cause, errStalled) {
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

// lasting says that the same request would fail in the same way again.
func lasting(err error) bool {
	var certificate *tls.CertificateVerificationError
	var notTLS tls.RecordHeaderError
	return errors.As(err, &certificate) || errors.As(err, &notTLS)
}
