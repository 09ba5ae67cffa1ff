package profilepb

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// ErrTimestamp is returned for a text that is not a time.
var ErrTimestamp = errors.New("not a time")

// ParseTimestamp parses a time of the older API: `now`, `now-1h`, or a Unix timestamp in
// seconds, milliseconds, microseconds or nanoseconds, which differ by the number of
// digits (10, 13, 16, 19).
func ParseTimestamp(text string, now time.Time) (time.Time, error) {
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		if rest == "" {
			return now, nil
		}
		if back, ok := strings.CutPrefix(rest, "-"); ok {
			if d, err := model.ParseDuration(back); err == nil {
				return now.Add(-time.Duration(d)), nil
			}
		}
		return time.Time{}, fmt.Errorf("%w: %q (as in now-1h)", ErrTimestamp, text)
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		whole, fraction, ok := strings.Cut(text, ".") // some SDKs send seconds as a float
		if n, err = strconv.ParseInt(whole, 10, 64); err != nil || !ok || strings.Trim(fraction, "0123456789") != "" {
			return time.Time{}, fmt.Errorf("%w: %q", ErrTimestamp, text)
		}
	}
	if n < 0 {
		return time.Time{}, fmt.Errorf("%w: %q is negative", ErrTimestamp, text)
	}
	switch {
	case n < 1e11:
		return time.Unix(n, 0), nil
	case n < 1e14:
		return time.UnixMilli(n), nil
	case n < 1e17:
		return time.UnixMicro(n), nil
	}
	return time.Unix(0, n), nil
}
