package limit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

var (
	// ErrLimit is wrapped by every exceeded limit. Other errors of this package are ErrTenant, the
	// cause of a context, and the faults of Options.
	ErrLimit = errors.New("limit exceeded")
	// ErrQueueFull is the ErrLimit of a tenant with too many waiting requests. A retry may
	// succeed.
	ErrQueueFull = fmt.Errorf("%w: too many requests", ErrLimit)
	// ErrTenants is the ErrLimit of too many tenants at the same time. A retry may succeed.
	ErrTenants = fmt.Errorf("%w: too many tenants", ErrLimit)
	// ErrWait is the ErrLimit of a request that waited too long. A retry may succeed.
	ErrWait = fmt.Errorf("%w: queue wait time exceeded", ErrLimit)
	// ErrTenant means an invalid tenant name, or headers that name different tenants.
	ErrTenant = errors.New("invalid tenant")
)

// Error is an exceeded limit: its name, the value of the request, and the maximum.
type Error struct {
	Limit string // name of the limit, as it appears in the message
	Value int64  // 0: not shown
	Max   int64  // the limit
	Unit  string // of both numbers: "bytes" or "ms"; may be empty
	Flag  string // the flag that raises the limit, as hint.Flags returns it

	kind error // nil: ErrLimit
}

// Error implements error.
func (e *Error) Error() string {
	if e.Value == 0 {
		return fmt.Sprintf("%v: %s: at most %s%s", e.Unwrap(), e.Limit, e.format(e.Max), e.Flag)
	}
	return fmt.Sprintf("%v: %s: %s, at most %s%s", e.Unwrap(), e.Limit, e.format(e.Value), e.format(e.Max), e.Flag)
}

func (e *Error) format(n int64) string {
	switch e.Unit {
	case "":
		return strconv.FormatInt(n, 10)
	case "ms":
		return (time.Duration(min(n, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond).String()
	default:
		return strconv.FormatInt(n, 10) + " " + e.Unit
	}
}

// Unwrap returns ErrLimit or the more specific ErrQueueFull, ErrTenants or ErrWait.
func (e *Error) Unwrap() error {
	if e.kind == nil {
		return ErrLimit
	}
	return e.kind
}
