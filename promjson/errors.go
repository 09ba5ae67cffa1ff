package promjson

import (
	"errors"
	"fmt"
)

// Errors for errors.Is. Input that ends too early is io.ErrUnexpectedEOF. The error of the
// caller's reader is wrapped, too.
var (
	// ErrSyntax: the input is not JSON, or not a response of this API.
	ErrSyntax = errors.New("malformed response")
	// ErrLimit: the input is well-formed so far but exceeds a limit of Options.
	ErrLimit = errors.New("limit exceeded")
	// ErrUnsorted: the series in one of the responses of a Splicer are not sorted by labels.
	ErrUnsorted = errors.New("series out of order")
	// ErrOverlap: the first point of a series in one of the responses of a Splicer is not
	// later than its last point in an earlier response.
	ErrOverlap = errors.New("times out of order")
)

// Error is an error at one byte of the input.
type Error struct {
	Offset int64  // Of the byte, from the start of the input.
	Reason string // For example the token that was expected; may be "".
	Err    error  // ErrSyntax, ErrLimit, io.ErrUnexpectedEOF or the error of the reader.
}

// Error returns the offset, the text of Err and the reason.
func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("promjson: byte %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("promjson: byte %d: %v: %s", e.Offset, e.Err, e.Reason)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// APIError is the error of a response whose status is not "success". Type is its errorType,
// Message its error.
type APIError struct {
	Status, Type, Message string
}

// Error returns the status, type and message of the response.
func (e *APIError) Error() string {
	return fmt.Sprintf("promjson: response status %q: %s: %s", e.Status, e.Type, e.Message)
}

// PartError is the error of one response, a part, of Splicer.Splice. Part is its index, from 0.
type PartError struct {
	Part int
	Err  error
}

// Error returns the number of the part and the text of Err.
func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap returns e.Err.
func (e *PartError) Unwrap() error { return e.Err }
