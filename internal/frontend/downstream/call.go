package downstream

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// call is one request with what it may still spend on being repeated, whether
// before its answer has begun or in the middle of it. It holds the context, as an
// http.Request does, because a Body's Read takes none.
type call struct {
	client  *Client
	ctx     context.Context
	message message
	retries int           // left
	backoff time.Duration // before the next one
}

// answer makes tries until one of them stands: because its status is final, or
// because it may not be repeated.
func (k *call) answer() (*try, error) {
	for {
		t, err := k.client.send(k.ctx, &k.message)
		reason, wait := k.verdict(t, err)
		if reason == "" || !k.mayRepeat(wait) {
			return t, err
		}
		if t != nil {
			t.discard()
		}
		if err := k.repeat(reason, wait); err != nil {
			return nil, err
		}
	}
}

// verdict says why the request should be made again, and after how long; "" means
// that the try stands.
func (k *call) verdict(t *try, err error) (reason string, wait time.Duration) {
	switch {
	case errors.Is(err, ErrTimeout) && !errors.Is(err, errUnsent):
		// The query ran for so long, and would again.
		k.client.metrics.refused.With("timeout").Inc()
		return "", 0
	case errors.Is(err, ErrTimeout):
		return "timeout", k.nextBackoff()
	case errors.Is(err, ErrUnavailable) && !lasting(err):
		return "unavailable", k.nextBackoff()
	case err != nil:
		return "", 0
	}
	if t.status == http.StatusTooManyRequests || t.status == http.StatusServiceUnavailable {
		after, told := retryAfter(t.header.Get("Retry-After"), time.Now())
		switch {
		case told && after > k.client.opts.RetryAfterMax:
			k.client.metrics.refused.With("retry-after").Inc()
			return "", 0
		case told && after > 0:
			// A little later than told, not all at the same moment.
			return "retry-after", after + time.Duration(k.client.opts.Jitter()*float64(after)/10)
		}
	}
	if t.status >= 500 {
		if t.outOfTime() {
			k.client.metrics.refused.With("timeout").Inc()
			return "", 0
		}
		return "5xx", k.nextBackoff()
	}
	return "", 0
}

// nextBackoff doubles up to the maximum; the second half of each is random.
func (k *call) nextBackoff() time.Duration {
	d := k.backoff
	k.backoff = min(2*d, k.client.opts.BackoffMax)
	return d/2 + time.Duration(k.client.opts.Jitter()*float64(d)/2)
}

// mayRepeat takes what a repetition costs, or counts what forbids it.
func (k *call) mayRepeat(wait time.Duration) bool {
	forbidden := ""
	deadline, bounded := k.ctx.Deadline()
	switch {
	case k.retries <= 0:
		forbidden = "retries"
	case bounded && time.Until(deadline) <= wait:
		forbidden = "deadline"
	case !k.client.budget.withdraw():
		forbidden = "budget"
	default:
		k.retries--
		return true
	}
	k.client.metrics.refused.With(forbidden).Inc()
	return false
}

// repeat waits until the request may be made again.
func (k *call) repeat(reason string, wait time.Duration) error {
	k.client.metrics.repeats.With(reason).Inc()
	k.client.logger.Info("downstream is asked again", "path", k.message.url.Path, "reason", reason, "wait", wait, "retries_left", k.retries)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-k.ctx.Done():
		return fmt.Errorf("downstream: %w", context.Cause(k.ctx))
	}
}

// retryAfter reads the header: seconds, or a date. A date that has passed is 0.
func retryAfter(text string, now time.Time) (wait time.Duration, told bool) {
	text = strings.TrimSpace(text)
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(text); err == nil {
		return max(0, date.Sub(now)), true
	}
	return 0, false
}
