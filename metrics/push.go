package metrics

import (
	"bytes"
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

// PushOptions configure a push. The zero value pushes with GET, for compatibility with
// VictoriaMetrics/metrics, and with gzip.
type PushOptions struct {
	// ExtraLabels are added to every metric: label="value", separated by commas.
	ExtraLabels string
	// Headers are added to every request, each as "Name: value".
	Headers []string
	// DisableCompression disables gzip.
	DisableCompression bool
	// Method of the request; GET if empty.
	Method string
	// MaxRetries is the number of retries of a push after a connection error or a status of
	// 429 or 5xx. 0 means no retries, as in VictoriaMetrics/metrics.
	MaxRetries int
	// MinBackoff is the delay before the first retry. It doubles with each further retry, up
	// to 30 seconds; half of the delay is random jitter. 0 means 100 ms. A push ends with its
	// ctx, and a periodic push also one second after the end of its interval.
	MinBackoff time.Duration
	// Client sends the requests; nil: http.DefaultClient.
	Client *http.Client
	// RemoteWrite sends requests of Prometheus' remote write 1.0 instead of text.
	// Prometheus with --web.enable-remote-write-receiver, Mimir and Thanos receive them.
	// A request is protobuf, compressed with snappy, and is sent by POST unless Method is
	// set. It has at most 2,000 series. Each line of the text format, such as a bucket of a
	// histogram, is a series with one sample at the time of the push.
	RemoteWrite bool
	// WaitGroup, if not nil, counts the goroutine that pushes until it has ended.
	WaitGroup *sync.WaitGroup
}

// pushSet holds the metrics about pushes, which WriteProcessMetrics writes.
var pushSet = Set{}

// WritePushMetrics writes the metrics about pushes, metrics_push_*, to w.
func WritePushMetrics(w io.Writer) { pushSet.WritePrometheus(w) }

func writeAll(processMetrics bool) func(w io.Writer) {
	return func(w io.Writer) { WritePrometheus(w, processMetrics) }
}

// InitPush is InitPushWithOptions until the process ends, with extraLabels as the only option.
func InitPush(pushURL string, interval time.Duration, extraLabels string, pushProcessMetrics bool) error {
	return InitPushExt(pushURL, interval, extraLabels, writeAll(pushProcessMetrics))
}

// InitPushProcessMetrics pushes the metrics of WriteProcessMetrics to pushURL at every interval
// until the process ends, see InitPushExtWithOptions.
func InitPushProcessMetrics(pushURL string, interval time.Duration, extraLabels string) error {
	return InitPushExt(pushURL, interval, extraLabels, WriteProcessMetrics)
}

// InitPushExt is InitPushExtWithOptions until the process ends, with extraLabels as the
// only option.
func InitPushExt(pushURL string, interval time.Duration, extraLabels string, writeMetrics func(w io.Writer)) error {
	return InitPushExtWithOptions(context.Background(), pushURL, interval, writeMetrics,
		&PushOptions{ExtraLabels: extraLabels})
}

// InitPushWithOptions pushes the output of WritePrometheus to pushURL at every interval,
// until ctx is done, see InitPushExtWithOptions. It may be called for several URLs. Unless
// RemoteWrite is set, the receiver must accept the text format, as VictoriaMetrics does at
// /api/v1/import/prometheus.
func InitPushWithOptions(ctx context.Context, pushURL string, interval time.Duration, pushProcessMetrics bool,
	opts *PushOptions) error {
	return InitPushExtWithOptions(ctx, pushURL, interval, writeAll(pushProcessMetrics), opts)
}

// PushMetrics pushes the output of WritePrometheus to pushURL once.
func PushMetrics(ctx context.Context, pushURL string, pushProcessMetrics bool, opts *PushOptions) error {
	return PushMetricsExt(ctx, pushURL, writeAll(pushProcessMetrics), opts)
}

// InitPush is Set.InitPushWithOptions until the process ends, with extraLabels as the
// only option.
func (s *Set) InitPush(pushURL string, interval time.Duration, extraLabels string) error {
	return InitPushExt(pushURL, interval, extraLabels, s.WritePrometheus)
}

// InitPushWithOptions pushes the set to pushURL at every interval, until ctx is done.
func (s *Set) InitPushWithOptions(ctx context.Context, pushURL string, interval time.Duration,
	opts *PushOptions) error {
	return InitPushExtWithOptions(ctx, pushURL, interval, s.WritePrometheus, opts)
}

// PushMetrics pushes the set to pushURL once.
func (s *Set) PushMetrics(ctx context.Context, pushURL string, opts *PushOptions) error {
	return PushMetricsExt(ctx, pushURL, s.WritePrometheus, opts)
}

// PushMetricsExt pushes the output of writeMetrics to pushURL once. writeMetrics must
// write complete lines of the text format without timestamps. PushMetricsExt returns an error
// if the status is not 2xx, or if ctx ends before the response.
func PushMetricsExt(ctx context.Context, pushURL string, writeMetrics func(w io.Writer), opts *PushOptions) error {
	p, err := newPusher(pushURL, opts)
	if err != nil {
		return err
	}
	return p.push(ctx, writeMetrics)
}

// InitPushExtWithOptions starts a goroutine that pushes the output of writeMetrics to
// pushURL at every interval, until ctx is done. A failed push is logged and counted; the
// next push follows at the next interval. If the URL, the interval or the options are
// invalid, it returns an error and starts nothing.
func InitPushExtWithOptions(ctx context.Context, pushURL string, interval time.Duration,
	writeMetrics func(w io.Writer), opts *PushOptions) error {
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
		p.pushLoop(ctx, interval, writeMetrics)
	}()
	return nil
}

// pusher pushes to one URL.
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
	if p.options.RemoteWrite {
		p.header = http.Header{
			"Content-Type": {"application/x-protobuf"}, "Content-Encoding": {"snappy"},
			"X-Prometheus-Remote-Write-Version": {"0.1.0"}, "User-Agent": {"ferula-metrics"},
		}
		p.options.DisableCompression = true // remote write has its own compression
		if p.options.Method == "" {
			p.options.Method = http.MethodPost
		}
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

func (p *pusher) pushLoop(ctx context.Context, interval time.Duration, writeMetrics func(w io.Writer)) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		limited, cancel := context.WithTimeout(ctx, interval+time.Second)
		if err := p.push(limited, writeMetrics); err != nil && ctx.Err() == nil {
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
		body = appendWithLabels(nil, body, p.options.ExtraLabels)
	}
	if p.options.RemoteWrite {
		return p.remoteWrite(ctx, body)
	}
	if !p.options.DisableCompression {
		var zipped bytes.Buffer
		zw := gzipCoding.get(&zipped)
		_, _ = zw.Write(body) // a bytes.Buffer returns no errors
		_ = zw.Close()
		gzipCoding.put(zw)
		body = zipped.Bytes()
	}
	return p.sendCounted(ctx, body)
}

// remoteWriteSeriesMax is the limit of series in a request, and so of what a retry sends again.
const remoteWriteSeriesMax = 2000

// remoteWrite sends the samples of page, which is in text format. After an error it sends no
// further request: the next push sends newer samples of the same series.
func (p *pusher) remoteWrite(ctx context.Context, page []byte) error {
	var body []byte
	w := exposition.WriteRequests{SeriesMax: remoteWriteSeriesMax, NowMS: time.Now().UnixMilli()}
	w.Send = func(message []byte, _ int) error {
		body = exposition.AppendSnappy(body[:0], message)
		return p.sendCounted(ctx, body)
	}
	if err := w.Page(page); err != nil {
		return err
	}
	return w.Flush()
}

func (p *pusher) sendCounted(ctx context.Context, body []byte) error {
	p.pushes.Inc()
	p.bytes.Add(len(body))
	p.size.Update(float64(len(body)))
	return p.sendWithRetries(ctx, body)
}

const (
	defaultBackoff = 100 * time.Millisecond
	backoffMax     = 30 * time.Second
)

// errRetryable matches errors after which the request may be sent again.
var errRetryable = errors.New("is retryable")

// sendWithRetries sends body until it succeeds, the error is not retryable or
// MaxRetries is reached.
func (p *pusher) sendWithRetries(ctx context.Context, body []byte) error {
	wait := p.options.MinBackoff
	for try := 0; ; try++ {
		err := p.send(ctx, body)
		if err == nil || try >= p.options.MaxRetries || !errors.Is(err, errRetryable) {
			return err
		}
		var delay time.Duration
		delay, wait = backoff(wait)
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
		pushSet.GetOrCreateCounter(p.metricName("metrics_push_retries_total")).Inc()
	}
}

// backoff returns the delay before a retry, which is random between half of wait and wait, and the
// wait of the next retry.
func backoff(wait time.Duration) (delay, next time.Duration) {
	if wait <= 0 {
		wait = defaultBackoff
	}
	wait = min(wait, backoffMax)
	return wait/2 + rand.N(wait/2+1), 2 * wait
}

func (p *pusher) send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, p.options.Method, p.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("cannot push metrics to %q: %w", p.redacted, err)
	}
	req.Header = p.header.Clone()
	start := time.Now()
	client := p.options.Client
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	p.duration.UpdateDuration(start)
	if errors.Is(err, context.Canceled) { // by the caller: not a failure of the receiver
		return pushError{fmt.Sprintf("cannot push metrics to %q: %s", p.redacted, err), err, false}
	}
	if err != nil {
		p.errors.Inc()
		return pushError{fmt.Sprintf("cannot push metrics to %q: %s", p.redacted, err), err, ctx.Err() == nil}
	}
	defer resp.Body.Close()
	const maxErrorBody = 4 << 10
	excerpt, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	if resp.StatusCode/100 != 2 {
		p.errors.Inc()
		text := fmt.Sprintf("unexpected status code in response from %q: %d; expecting 2xx; response body: %q", p.redacted,
			resp.StatusCode, excerpt)
		return pushError{text, nil, resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode/100 == 5}
	}
	return nil
}

// pushError is the error of one attempt.
type pushError struct {
	text      string
	cause     error
	retryable bool
}

func (e pushError) Error() string { return e.text }

func (e pushError) Unwrap() error { return e.cause }

// Is matches errRetryable if the push may be retried.
func (e pushError) Is(target error) bool { return e.retryable && target == errRetryable }

// appendWithLabels appends the lines of text, with labels before the own labels of each sample.
// It copies lines that are not samples.
func appendWithLabels(dst, text []byte, labels string) []byte {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 {
			continue
		}
		brace, space := bytes.IndexByte(line, '{'), bytes.LastIndexByte(line, ' ')
		switch {
		case line[0] == '#' || brace < 0 && space < 0:
			dst = append(dst, line...)
		case brace == 0: // {"name",...}
			end := 1 + len(exposition.Family(string(line)))
			dst = append(append(append(dst, line[:end]...), ','), labels...)
			dst = append(dst, line[end:]...)
		case brace > 0:
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
