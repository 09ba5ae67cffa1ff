package promjson

import (
	"errors"
	"fmt"
)

// What went wrong, for errors.Is. An input that ends too early is
// io.ErrUnexpectedEOF, and a reader's own error is found as well.
var (
	// ErrSyntax: the bytes are not JSON, or not an answer of this API.
	ErrSyntax = errors.New("malformed answer")
	// ErrLimit: the answer is well-formed so far and beyond what Options allow.
	ErrLimit = errors.New("limit exceeded")
	// ErrUnsorted: the series of a part are not in the order of their labels.
	ErrUnsorted = errors.New("series out of order")
	// ErrOverlap: a series goes on before or at the time where it ended.
	ErrOverlap = errors.New("times out of order")
)

// Error says where in the input something went wrong.
type Error struct {
	Offset int64 // The byte, counted from the start of the input.
	What   string
	Err    error // ErrSyntax, ErrLimit, io.ErrUnexpectedEOF or the reader's.
}

// Error names the byte, the kind of error and what was expected.
func (e *Error) Error() string {
	if e.What == "" {
		return fmt.Sprintf("promjson: byte %d: %v", e.Offset, e.Err)
	}
	return fmt.Sprintf("promjson: byte %d: %v: %s", e.Offset, e.Err, e.What)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }
