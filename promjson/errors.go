package promjson

import (
	"errors"
	"fmt"
)

// Errors for errors.Is. Input that ends too early is io.ErrUnexpectedEOF, and the
// error of the caller's reader is wrapped too.
var (
	// ErrSyntax: the input is not JSON, or not a response of this API.
	ErrSyntax = errors.New("malformed response")
	// ErrLimit: the input is well-formed so far but exceeds a limit of Options.
	ErrLimit = errors.New("limit exceeded")
	// ErrUnsorted: the series of a part are not sorted by their labels.
	ErrUnsorted = errors.New("series out of order")
	// ErrOverlap: the points of a series in one part begin at or before the time of
	// its last point in the part before.
	ErrOverlap = errors.New("times out of order")
)

// Error is an error at one byte of the input.
type Error struct {
	Offset int64  // Of the byte, from the start of the input.
	Reason string // Such as the token that was expected; may be "".
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

// APIError is a response whose status is not "success". Type is its errorType.
type APIError struct {
	Status, Type, Message string
}

// Error returns the status, type and message of the response.
func (e *APIError) Error() string {
	return fmt.Sprintf("promjson: response status %q: %s: %s", e.Status, e.Type, e.Message)
}

// PartError is the error of one part of a splice. Part counts from 0.
type PartError struct {
	Part int
	Err  error
}

// Error returns the number of the part and the text of Err.
func (e *PartError) Error() string { return fmt.Sprintf("part %d: %v", e.Part, e.Err) }

// Unwrap returns e.Err.
func (e *PartError) Unwrap() error { return e.Err }
