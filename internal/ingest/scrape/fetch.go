package scrape

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/scrape"
	"go.opentelemetry.io/contrib/instrumentation/net/http/httptrace/otelhttptrace"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/ferula-io/ferula/internal/inflate"
)

// fetcher fetches the pages of a target.
type fetcher struct {
	target    *scrape.Target
	client    *client
	request   *http.Request // nil before the first fetch
	head      []byte        // the bytes of the request, if it is plain
	address   string        // of a plain request
	header    http.Header
	sizeLimit int64
	zstd      bool
	metrics   *metrics
	logger    *slog.Logger
	lastSize  int // of the last page that was not empty
}

func newFetcher(t *scrape.Target, client *client, cfg *config.ScrapeConfig, o *scrape.Options,
	timeout time.Duration, m *metrics, logger *slog.Logger) *fetcher {
	encoding := "identity"
	switch {
	case cfg.EnableCompression && o.EnableZstdScrape:
		encoding = "zstd,gzip"
	case cfg.EnableCompression:
		encoding = "gzip"
	}
	limit := int64(cfg.BodySizeLimit)
	if limit <= 0 {
		limit = math.MaxInt64
	}
	// The pool has checked both schemes.
	escaping, _ := config.ToEscapingScheme(cfg.MetricNameEscapingScheme, cfg.MetricNameValidationScheme)
	return &fetcher{target: t, client: client, sizeLimit: limit, zstd: o.EnableZstdScrape, metrics: m, logger: logger,
		header: http.Header{
			"Accept":                              {accept(cfg.ScrapeProtocols, escaping)},
			"Accept-Encoding":                     {encoding},
			"User-Agent":                          {scrape.UserAgent},
			"X-Prometheus-Scrape-Timeout-Seconds": {strconv.FormatFloat(timeout.Seconds(), 'f', -1, 64)},
		}}
}

// accept returns the Accept header for formats in the order of preference.
func accept(formats []config.ScrapeProtocol, escaping model.EscapingScheme) string {
	var b strings.Builder
	weight := len(config.ScrapeProtocolsHeaders) + 1
	for _, f := range formats {
		b.WriteString(config.ScrapeProtocolsHeaders[f])
		if f == config.PrometheusText1_0_0 || f == config.OpenMetricsText1_0_0 { // older ones do not know it
			b.WriteString(";" + model.EscapingKey + "=" + escaping.String())
		}
		fmt.Fprintf(&b, ";q=0.%d,", weight)
		weight--
	}
	fmt.Fprintf(&b, "*/*;q=0.%d", weight)
	return b.String()
}

var (
	bodies = sync.Pool{New: func() any { return new(bytes.Buffer) }}
	gzips  = sync.Pool{New: func() any { return new(inflate.Inflater) }}
	zstds  = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(8<<20))
		if err != nil {
			panic(err) // of the options
		}
		return d
	}}
)

// sizeMax is the limit on a compressed page without body_size_limit.
const sizeMax = 1 << 40

// maxBody is the largest buffer that is kept for other pages.
const maxBody = 16 << 20

// release takes back the body of a page.
func (f *fetcher) release(body *bytes.Buffer) {
	if body.Cap() <= maxBody {
		body.Reset()
		bodies.Put(body)
	}
}

// fetch returns the decompressed page of the target and its content type. The caller releases the body, if there is
// one.
func (f *fetcher) fetch(ctx context.Context) (body *bytes.Buffer, contentType string, err error) {
	resp, err := f.get(ctx)
	if err != nil {
		return nil, "", err
	}
	_, end := span(ctx, "scrapeRead")
	defer func() { end(err) }()
	body = bodies.Get().(*bytes.Buffer)
	body.Grow(f.lastSize + 1024) // reading and decompressing take more than the page
	if contentType, err = f.read(resp, body); err == nil && body.Len() > 0 {
		f.lastSize = body.Len()
	}
	return body, contentType, err
}

func (f *fetcher) get(ctx context.Context) (*http.Response, error) {
	if f.request == nil {
		r, err := http.NewRequest(http.MethodGet, f.target.URL().String(), http.NoBody)
		if err != nil {
			return nil, err
		}
		r.Header = f.header
		f.request = r
		f.head, f.address = f.client.plain(r)
	}
	if !traced(ctx) {
		if f.head == nil {
			return f.client.Do(f.request.WithContext(ctx))
		}
		resp, err := f.client.get(ctx, f.request.URL, f.address, f.head)
		if err != nil || !f.redirected(resp) {
			return resp, err
		}
		_ = resp.Body.Close()
		f.head = nil // from now on
		return f.client.Do(f.request.WithContext(ctx))
	}
	ctx, end := span(ctx, "scrapeRequest", trace.WithSpanKind(trace.SpanKindClient),
		trace.WithAttributes(attribute.String("url", f.request.URL.Redacted())))
	defer end(nil)
	client := *f.client.Client
	client.Transport = otelhttp.NewTransport(client.Transport,
		otelhttp.WithClientTrace(func(ctx context.Context) *httptrace.ClientTrace {
			return otelhttptrace.NewClientTrace(ctx, otelhttptrace.WithoutSubSpans())
		}))
	return client.Do(f.request.WithContext(ctx))
}

// redirected says whether the library's client follows a response to another address.
func (f *fetcher) redirected(resp *http.Response) bool {
	switch resp.StatusCode {
	case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect:
		return f.client.CheckRedirect == nil && resp.Header.Get("Location") != ""
	}
	return false
}

func (f *fetcher) read(resp *http.Response, body *bytes.Buffer) (contentType string, err error) {
	defer func() {
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is used again
		_ = resp.Body.Close()
	}()
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("server returned HTTP status %s", resp.Status)
	}
	var from io.Reader = resp.Body
	switch resp.Header.Get("Content-Encoding") {
	case "gzip":
		return resp.Header.Get("Content-Type"), f.readGzip(resp.Body, body)
	case "zstd":
		if !f.zstd {
			return "", errors.New(`received a zstd-compressed response, but the "zstd-scrape" feature flag is not enabled`)
		}
		f.logger.Debug("Using zstd-compressed scrape response", "target", f.request.URL.Redacted())
		z := zstds.Get().(*zstd.Decoder)
		defer func() {
			_ = z.Reset(nil)
			zstds.Put(z)
		}()
		if err := z.Reset(resp.Body); err != nil {
			return "", err
		}
		from = z
	}
	n, err := body.ReadFrom(io.LimitReader(from, f.sizeLimit))
	if err != nil {
		return "", err
	}
	if n >= f.sizeLimit {
		return "", f.tooLarge()
	}
	return resp.Header.Get("Content-Type"), nil
}

func (f *fetcher) tooLarge() error {
	f.metrics.bodySizeLimit.Inc()
	return errBodySizeLimit
}

// readGzip decompresses a page from one buffer to another. Its compressed bytes have a limit, too: data that cannot be
// compressed grows by less than an eighth.
func (f *fetcher) readGzip(from io.Reader, body *bytes.Buffer) error {
	limit := min(f.sizeLimit, sizeMax)
	compressed := bodies.Get().(*bytes.Buffer)
	defer f.release(compressed)
	n, readErr := compressed.ReadFrom(io.LimitReader(from, limit+limit/8+1024))
	if n >= limit+limit/8+1024 {
		return f.tooLarge()
	}
	z := gzips.Get().(*inflate.Inflater)
	defer gzips.Put(z)
	page, err := z.Gzip(body.AvailableBuffer(), compressed.Bytes(), int(limit-1))
	if errors.Is(err, inflate.ErrGzipLimit) { // also of a response that is cut after the limit
		return f.tooLarge()
	}
	if readErr != nil {
		return readErr
	}
	body.Write(page) // where it is already, unless it did not fit
	return err
}
