package limit

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

var (
	// ErrLimit is in every refusal of this package that is not a fault of the
	// request's form.
	ErrLimit = errors.New("limit exceeded")
	// ErrQueueFull is the ErrLimit of a tenant with too many requests waiting: come
	// again later.
	ErrQueueFull = fmt.Errorf("%w: too many requests", ErrLimit)
	// ErrTenants is the ErrLimit of too many tenants at the same time: come again
	// later.
	ErrTenants = fmt.Errorf("%w: too many tenants", ErrLimit)
	// ErrWait is the ErrLimit of a request that waited too long: come again later.
	ErrWait = fmt.Errorf("%w: waited too long", ErrLimit)
	// ErrTenant says that a request does not name its tenant properly.
	ErrTenant = errors.New("invalid tenant")
)

// Error is a refusal: which limit, what was asked for, and what is allowed.
type Error struct {
	Limit string // what is limited, as users are told
	Value int64  // 0 where it has no meaning
	Max   int64
	Unit  string // of both numbers: "bytes", "ms"; may be empty

	kind error // nil: ErrLimit
}

// Error names the limit and, where it has one, the value that exceeds it.
func (e *Error) Error() string {
	if e.Value == 0 {
		return fmt.Sprintf("%v: %s: at most %s", e.Unwrap(), e.Limit, e.format(e.Max))
	}
	return fmt.Sprintf("%v: %s: %s, at most %s", e.Unwrap(), e.Limit, e.format(e.Value), e.format(e.Max))
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

// Unwrap gives ErrLimit or one of its kinds.
func (e *Error) Unwrap() error {
	if e.kind == nil {
		return ErrLimit
	}
	return e.kind
}
