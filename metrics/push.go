package metrics

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/ferula-io/ferula/metrics/internal/exposition"
)

// PushOptions says how metrics are pushed. The zero value pushes with GET, as the
// peers of this library expect, compressed.
type PushOptions struct {
	// ExtraLabels are added to every metric: label="value", separated by commas.
	ExtraLabels string
	// Headers are added to every request, each as "Name: value".
	Headers []string
	// DisableCompression sends the text as it is, without gzip.
	DisableCompression bool
	// Method of the request; GET if empty.
	Method string
	// MaxRetries is how often a push is tried again that met no server, or a status of
	// 429 or 5xx. 0 never tries again, as the peers of this library.
	MaxRetries int
	// MinBackoff is waited before the second try, and twice as long before each further
	// one, up to 30 seconds; half of it at random, so that not all come at once. 0
	// means 100 ms. A push that ctx or the interval ends is not tried again.
	MinBackoff time.Duration
	// WaitGroup, if any, is done when the goroutine that pushes has ended.
	WaitGroup *sync.WaitGroup
}

// pushSet holds the metrics of pushing, which WriteProcessMetrics writes.
var pushSet = Set{}

// WritePushMetrics writes the metrics of pushing itself to w.
func WritePushMetrics(w io.Writer) { pushSet.WritePrometheus(w) }

func writeAll(processMetrics bool) func(w io.Writer) {
	return func(w io.Writer) { WritePrometheus(w, processMetrics) }
}

// InitPush is InitPushWithOptions with labels only, and for ever.
func InitPush(pushURL string, interval time.Duration, extraLabels string, pushProcessMetrics bool) error {
	return InitPushExt(pushURL, interval, extraLabels, writeAll(pushProcessMetrics))
}

// InitPushProcessMetrics pushes the metrics of WriteProcessMetrics, for ever.
func InitPushProcessMetrics(pushURL string, interval time.Duration, extraLabels string) error {
	return InitPushExt(pushURL, interval, extraLabels, WriteProcessMetrics)
}

// InitPushExt is InitPushExtWithOptions with labels only, and for ever.
func InitPushExt(pushURL string, interval time.Duration, extraLabels string, writeMetrics func(w io.Writer)) error {
	return InitPushExtWithOptions(context.Background(), pushURL, interval, writeMetrics, &PushOptions{ExtraLabels: extraLabels})
}

// InitPushWithOptions pushes what WritePrometheus writes to pushURL at every
// interval, until ctx is done. It may be called for several addresses. Metrics go as
// text to something like /api/v1/import/prometheus of VictoriaMetrics.
func InitPushWithOptions(ctx context.Context, pushURL string, interval time.Duration, pushProcessMetrics bool, opts *PushOptions) error {
	return InitPushExtWithOptions(ctx, pushURL, interval, writeAll(pushProcessMetrics), opts)
}

// PushMetrics pushes what WritePrometheus writes to pushURL once.
func PushMetrics(ctx context.Context, pushURL string, pushProcessMetrics bool, opts *PushOptions) error {
	return PushMetricsExt(ctx, pushURL, writeAll(pushProcessMetrics), opts)
}

// InitPush is Set.InitPushWithOptions with labels only, and for ever.
func (s *Set) InitPush(pushURL string, interval time.Duration, extraLabels string) error {
	return InitPushExt(pushURL, interval, extraLabels, s.WritePrometheus)
}

// InitPushWithOptions pushes the set to pushURL at every interval, until ctx is done.
func (s *Set) InitPushWithOptions(ctx context.Context, pushURL string, interval time.Duration, opts *PushOptions) error {
	return InitPushExtWithOptions(ctx, pushURL, interval, s.WritePrometheus, opts)
}

// PushMetrics pushes the set to pushURL once.
func (s *Set) PushMetrics(ctx context.Context, pushURL string, opts *PushOptions) error {
	return PushMetricsExt(ctx, pushURL, s.WritePrometheus, opts)
}

// PushMetricsExt pushes what writeMetrics writes to pushURL once. It must write
// complete lines of text without timestamps.
func PushMetricsExt(ctx context.Context, pushURL string, writeMetrics func(w io.Writer), opts *PushOptions) error {
	p, err := newPusher(pushURL, opts)
	if err != nil {
		return err
	}
	return p.push(ctx, writeMetrics)
}

// InitPushExtWithOptions pushes what writeMetrics writes to pushURL at every
// interval, until ctx is done; then opts.WaitGroup is done as well. A push that
// fails is logged and counted, and is not repeated before the next interval.
func InitPushExtWithOptions(ctx context.Context, pushURL string, interval time.Duration, writeMetrics func(w io.Writer), opts *PushOptions) error {
	p, err := newPusher(pushURL, opts)
	if err != nil {
		return err
	}
	if interval <= 0 {
		return fmt.Errorf("interval must be positive; got %s", interval)
	}
	pushSet.GetOrCreateFloatCounter(p.metricName("metrics_push_interval_seconds")).Set(interval.Seconds())
	done := func() {}
	if opts != nil && opts.WaitGroup != nil {
		opts.WaitGroup.Add(1)
		done = opts.WaitGroup.Done
	}
	go func() {
		defer done()
		p.pushAlways(ctx, interval, writeMetrics)
	}()
	return nil
}

// pusher knows one address.
type pusher struct {
	options  PushOptions
	url      string
	redacted string // without the password
	header   http.Header

	pushes, bytes, errors *Counter
	size, duration        *Histogram
}

func newPusher(pushURL string, opts *PushOptions) (*pusher, error) {
	p := &pusher{header: http.Header{"Content-Type": {"text/plain"}}}
	if opts != nil {
		p.options = *opts
	}
	u, err := url.Parse(pushURL)
	if err != nil {
		return nil, fmt.Errorf("cannot parse pushURL=%q: %w", pushURL, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("unsupported scheme in pushURL=%q; expecting 'http' or 'https'", pushURL)
	}
	if u.Host == "" {
		return nil, fmt.Errorf("missing host in pushURL=%q", pushURL)
	}
	if err := exposition.ValidateLabels(p.options.ExtraLabels); err != nil {
		return nil, fmt.Errorf("invalid extraLabels=%q: %w", p.options.ExtraLabels, err)
	}
	if p.options.Method == "" {
		p.options.Method = http.MethodGet
	}
	for _, line := range p.options.Headers {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, fmt.Errorf("missing `:` delimiter in the header %q", line)
		}
		p.header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	if !p.options.DisableCompression {
		p.header.Set("Content-Encoding", "gzip")
	}
	p.url, p.redacted = u.String(), u.Redacted()
	p.pushes = pushSet.GetOrCreateCounter(p.metricName("metrics_push_total"))
	p.bytes = pushSet.GetOrCreateCounter(p.metricName("metrics_push_bytes_pushed_total"))
	p.errors = pushSet.GetOrCreateCounter(p.metricName("metrics_push_errors_total"))
	p.size = pushSet.GetOrCreateHistogram(p.metricName("metrics_push_block_size_bytes"))
	p.duration = pushSet.GetOrCreateHistogram(p.metricName("metrics_push_duration_seconds"))
	return p, nil
}

func (p *pusher) metricName(family string) string {
	return fmt.Sprintf("%s{url=%q}", family, p.redacted)
}

func (p *pusher) pushAlways(ctx context.Context, interval time.Duration, writeMetrics func(w io.Writer)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, interval+time.Second)
		if err := p.push(limited, writeMetrics); err != nil {
			log.Printf("ERROR: metrics.push: %s", err)
		}
		cancel()
	}
}

func (p *pusher) push(ctx context.Context, writeMetrics func(w io.Writer)) error {
	var text bytes.Buffer
	writeMetrics(&text)
	body := text.Bytes()
	if p.options.ExtraLabels != "" {
		body = appendLabelled(nil, body, p.options.ExtraLabels)
	}
	if !p.options.DisableCompression {
		var zipped bytes.Buffer
		zw := gzip.NewWriter(&zipped)
		_, _ = zw.Write(body) // a buffer takes everything
		_ = zw.Close()
		body = zipped.Bytes()
	}
	p.pushes.Inc()
	p.bytes.Add(len(body))
	p.size.Update(float64(len(body)))
	return p.sendAgain(ctx, body)
}

const (
	defaultBackoff = 100 * time.Millisecond
	backoffMax     = 30 * time.Second
)

// errTryAgain marks what may be better the next time.
var errTryAgain = errors.New("may be tried again")

// sendAgain sends until it works, is pointless or was tried often enough.
func (p *pusher) sendAgain(ctx context.Context, body []byte) error {
	wait := p.options.MinBackoff
	if wait <= 0 {
		wait = defaultBackoff
	}
	for try := 0; ; try++ {
		err := p.send(ctx, body)
		if err == nil || try >= p.options.MaxRetries || !errors.Is(err, errTryAgain) {
			return err
		}
		wait = min(wait, backoffMax)
		timer := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		wait *= 2
		pushSet.GetOrCreateCounter(p.metricName("metrics_push_retries_total")).Inc()
	}
}

func (p *pusher) send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, p.options.Method, p.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot push metrics to %q: %w", p.redacted, err)
	}
	req.Header = p.header.Clone()
	start := time.Now()
	resp, err := http.DefaultClient.Do(req)
	p.duration.UpdateDuration(start)
	if errors.Is(err, context.Canceled) {
		return nil // whoever cancels knows
	}
	if err != nil {
		p.errors.Inc()
		return pushError{fmt.Sprintf("cannot push metrics to %q: %s", p.redacted, err), err, ctx.Err() == nil}
	}
	defer resp.Body.Close()
	const answerMax = 4 << 10
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if resp.StatusCode/100 != 2 {
		p.errors.Inc()
		text := fmt.Sprintf("unexpected status code in response from %q: %d; expecting 2xx; response body: %q", p.redacted, resp.StatusCode, answer)
		return pushError{text, nil, resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode/100 == 5}
	}
	return nil
}

// pushError is a failed try.
type pushError struct {
	text  string
	cause error
	again bool
}

func (e pushError) Error() string { return e.text }

func (e pushError) Unwrap() error { return e.cause }

// Is tells whether the push may be tried again.
func (e pushError) Is(target error) bool { return e.again && target == errTryAgain }

// appendLabelled appends the lines of text with labels put before their own. What is
// no line of a metric, neither name nor value, is left as it is.
func appendLabelled(dst, text []byte, labels string) []byte {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		brace, space := bytes.IndexByte(line, '{'), bytes.LastIndexByte(line, ' ')
		switch {
		case line[0] == '#' || brace < 0 && space < 0:
			dst = append(dst, line...)
		case brace >= 0:
			dst = append(append(dst, line[:brace+1]...), labels...)
			dst = append(append(dst, ','), line[brace+1:]...)
		default:
			dst = append(append(dst, line[:space]...), '{')
			dst = append(append(dst, labels...), '}')
			dst = append(dst, line[space:]...)
		}
		dst = append(dst, '\n')
	}
	return dst
}
