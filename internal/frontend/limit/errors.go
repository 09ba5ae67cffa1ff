// Package limit bounds what requests may cost, and lets them in fairly.
package limit

import "errors"

var (
	// ErrQueueFull says that a tenant has as many requests waiting as it may.
	ErrQueueFull = errors.New("too many requests of this tenant are waiting")
	// ErrLimit says that a request exceeds a limit.
	ErrLimit = errors.New("request exceeds a limit")
)
