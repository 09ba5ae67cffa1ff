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

// call is one request with its remaining retries. A retry after a break of the body counts like a retry before the
// response has begun. call holds the context, as http.Request does, because Body.Read takes none.
type call struct {
	client  *Client
	ctx     context.Context
	message message
	retries int           // retries left
	backoff time.Duration // wait before the next retry
}

// response sends the request until a try has a final status or may not be retried. It returns this
// last try or its error.
func (k *call) response() (*try, error) {
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

// verdict returns why the request should be retried and after how long; "" means
// that the try is final.
func (k *call) verdict(t *try, err error) (reason string, wait time.Duration) {
	switch {
	case errors.Is(err, ErrTimeout) && !errors.Is(err, errUnsent):
		// The query was sent and took too long: another try would take as long.
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
		after, set := retryAfter(t.header.Get("Retry-After"), time.Now())
		switch {
		case set && after > k.client.opts.RetryAfterMax:
			k.client.metrics.refused.With("retry-after").Inc()
			return "", 0
		case set && after > 0:
			// Up to 10 % later than the header states, so that clients do not retry in step.
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

// nextBackoff returns the wait before the next retry: a random duration between half the backoff
// and the whole. Then it doubles the backoff, up to BackoffMax.
func (k *call) nextBackoff() time.Duration {
	d := k.backoff
	k.backoff = min(2*d, k.client.opts.BackoffMax)
	return d/2 + time.Duration(k.client.opts.Jitter()*float64(d)/2)
}

// mayRepeat takes a retry and a token, or counts why the retry is rejected.
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

// repeat waits before the next try, until the wait or the context ends.
func (k *call) repeat(reason string, wait time.Duration) error {
	k.client.metrics.repeats.With(reason).Inc()
	k.client.logger.Info("Retrying a downstream request", "path", k.message.url.Path, "reason", reason, "wait", wait,
		"retries_left", k.retries)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-k.ctx.Done():
		return fmt.Errorf("downstream: %w", context.Cause(k.ctx))
	}
}

// retryAfter parses a Retry-After header: seconds or a date. For a date in the past wait is 0.
func retryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second, true
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(0, date.Sub(now)), true
	}
	return 0, false
}
