package scrape

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// loop scrapes one target at its interval.
type loop struct {
	ctx     context.Context // ends with stop
	cancel  context.CancelFunc
	stopped chan struct{}   // closed after the last scrape; staleness markers may follow
	server  context.Context // ends with the pool: scrapes do not end at a reload

	target   *scrape.Target
	hash     uint64 // of the target and the server: when in the interval it is scraped
	cfg      *config.ScrapeConfig
	opts     *scrape.Options
	metrics  *metrics
	logger   *slog.Logger
	symbols  *labels.SymbolTable
	to       storage.AppendableV2
	cache    *cache
	fetcher  *fetcher
	interval time.Duration
	timeout  time.Duration

	nativeHistograms, keepClassic, convertClassic bool

	refusal     atomic.Pointer[error]       // replaces every scrape
	failures    atomic.Pointer[slog.Logger] // logs failed scrapes; nil: not logged
	noStaleness atomic.Bool                 // the series go on in another loop
	observed    []observer                  // of the time between scrapes; nil before the second
}

func (l *loop) stop() {
	l.cancel()
	<-l.stopped
}

func (l *loop) refuse(err error) {
	if err == nil {
		l.refusal.Store(nil)
		return
	}
	l.refusal.Store(&err)
}

// run scrapes until stop.
func (l *loop) run() {
	ticker := time.NewTicker(l.interval)
	defer ticker.Stop()
	last := l.scrapes(ticker)
	close(l.stopped)
	if !last.IsZero() && l.server.Err() == nil && !l.noStaleness.Load() {
		l.endStale(ticker)
	}
}

// scrapes scrapes until stop and returns the time of the last scrape.
func (l *loop) scrapes(ticker *time.Ticker) (last time.Time) {
	select {
	case <-time.After(l.offset()):
	case <-l.ctx.Done():
		return last
	}
	// Scrapes are at the offset and then at multiples of the interval.
	ticker.Reset(l.interval)
	// Round removes the monotonic clock: differences are between times of the wall clock.
	aligned := time.Now().Round(0)
	for l.ctx.Err() == nil {
		at := time.Now().Round(0)
		if scrape.AlignScrapeTimestamps {
			// Timers are late by different times. Equal intervals take less space in chunks.
			for at.Sub(aligned) >= l.interval {
				aligned = aligned.Add(l.interval)
			}
			if at.Sub(aligned) <= min(l.interval/100, scrape.ScrapeTimestampTolerance) {
				at = aligned
			}
		}
		last = l.scrape(last, at)
		select {
		case <-l.ctx.Done():
		case <-ticker.C:
		}
	}
	return last
}

// offset returns the time until the first scrape. It depends on the wall clock, so that a target is scraped at the same
// times after a restart.
func (l *loop) offset() time.Duration {
	next := l.interval - time.Duration(time.Now().UnixNano())%l.interval + time.Duration(l.hash%uint64(l.interval))
	if next > l.interval {
		next -= l.interval
	}
	return next
}

// span starts a span below the one in ctx, if that is traced. Its end records the error.
func span(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, func(error)) {
	if !traced(ctx) {
		return ctx, func(error) {}
	}
	return newSpan(ctx, name, opts...)
}

// traced says whether there is a span. There is none if tracing is off.
func traced(ctx context.Context) bool { return trace.SpanContextFromContext(ctx).IsValid() }

func newSpan(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, func(error)) {
	ctx, s := otel.Tracer("").Start(ctx, name, opts...)
	return ctx, func(err error) {
		if err != nil {
			s.RecordError(err)
			s.SetStatus(codes.Error, err.Error())
		}
		s.End()
	}
}

// scrape scrapes once, appends the samples and the report with timestamp at, and returns when it began. A scrape that
// fails appends staleness markers for the series of the scrape before.
func (l *loop) scrape(last, at time.Time) time.Time {
	start := time.Now()
	ctx, end := newSpan(l.server, "scrape")
	if !last.IsZero() {
		if l.observed == nil {
			name := l.interval.String()
			l.observed = []observer{l.metrics.intervalLength.WithLabelValues(name),
				l.metrics.intervalLengthHistogram.WithLabelValues(name)}
		}
		for _, o := range l.observed {
			o.Observe(start.Sub(last).Seconds())
		}
	}
	_, endAppender := span(ctx, "newAppender")
	app := l.to.AppenderV2(l.server)
	endAppender(nil)

	var p *page
	var size int
	var err error
	if refusal := l.refusal.Load(); refusal != nil {
		err = *refusal
		p, app = l.appendFailed(app, at)
	} else {
		p, app, size, err = l.fetchAndAppend(ctx, app, at)
	}
	if traced(ctx) {
		trace.SpanFromContext(ctx).SetAttributes(attribute.Int("samples_scraped", p.total),
			attribute.Int("samples_added", p.kept), attribute.Int("series_added", p.added), attribute.Int("bytes", size))
	}
	l.report(ctx, app, at, start, p, size, err)
	end(err)
	return start
}

// fetchAndAppend returns the appender that the report goes to, too.
func (l *loop) fetchAndAppend(ctx context.Context, app storage.AppenderV2, at time.Time) (
	p *page, _ storage.AppenderV2, size int, err error) {
	deadline, cancel := context.WithTimeout(ctx, l.timeout)
	body, contentType, err := l.fetcher.fetch(deadline)
	cancel()
	if body != nil {
		defer l.fetcher.release(body)
	}
	if err != nil {
		l.logger.Debug("Scrape failed", "err", err)
		if log := l.failures.Load(); log != nil {
			log.Error(err.Error())
		}
		if errors.Is(err, errBodySizeLimit) {
			size = -1
		}
		p, app = l.appendFailed(app, at)
		return p, app, size, err
	}
	_, end := span(ctx, "scrapeAppend")
	p = l.newPage(app, at)
	err = p.append(body.Bytes(), contentType)
	end(err)
	if err != nil {
		_ = app.Rollback()
		l.logger.Debug("Append failed", "err", err)
		_, app = l.appendFailed(l.to.AppenderV2(l.server), at)
	}
	return p, app, body.Len(), err
}

// appendFailed appends staleness markers for the series of the scrape before. It returns another appender if that
// fails.
func (l *loop) appendFailed(app storage.AppenderV2, at time.Time) (*page, storage.AppenderV2) {
	p := l.newPage(app, at)
	if err := p.append(nil, ""); err != nil {
		_ = app.Rollback()
		l.logger.Warn("Append failed", "err", err)
		app = l.to.AppenderV2(l.server)
	}
	return p, app
}

// report appends the samples that describe a scrape, and commits.
func (l *loop) report(ctx context.Context, app storage.AppenderV2, at, start time.Time, p *page, size int, err error) {
	took := time.Since(start)
	l.target.Report(at, took, err)
	up := 1.0
	if err != nil {
		up = 0
	}
	_, end := span(ctx, "scrapeReport")
	err = l.appendReports(app, at, [...]float64{up, took.Seconds(), float64(p.total), float64(p.kept),
		float64(p.added), l.timeout.Seconds(), float64(l.cfg.SampleLimit), float64(size)}, false)
	end(err)
	if err != nil {
		l.logger.Warn("Appending scrape report failed", "err", err)
		_ = app.Rollback()
		return
	}
	_, end = span(ctx, "scrapeCommit")
	err = commit(app)
	end(err)
	if l.cfg.ExtraScrapeMetricsEnabled() {
		l.metrics.duration.Observe(time.Since(start).Seconds())
	}
	if err != nil {
		l.logger.Error("Scrape commit failed", "err", err)
	}
}

// commit commits in a goroutine of its own. The head compresses a record with 32 KB of the stack; the stack of a loop
// would grow to 64 KB and keep them until the next scrape.
func commit(app storage.AppenderV2) error {
	done := make(chan error)
	go func() { done <- app.Commit() }()
	return <-done
}

// endStale appends staleness markers for a target that is gone. Another loop may scrape the target again, so endStale
// first waits for two more scrapes; with newer samples the markers are out of order and are not stored. A server that
// ends writes no markers: it goes on after its restart.
func (l *loop) endStale(ticker *time.Ticker) {
	var at time.Time
	for i := range 2 {
		select {
		case <-l.server.Done():
			return
		case <-ticker.C:
		}
		if i == 0 {
			at = time.Now()
		}
	}
	select {
	case <-l.server.Done():
		return
	case <-time.After(l.interval / 10):
	}
	if l.noStaleness.Load() {
		return
	}
	_, app := l.appendFailed(l.to.AppenderV2(l.server), at)
	var markers [len(reports)]float64
	for i := range markers {
		markers[i] = staleNaN
	}
	if err := l.appendReports(app, at, markers, true); err != nil {
		l.logger.Warn("Stale report failed", "err", err)
		_ = app.Rollback()
		return
	}
	if err := app.Commit(); err != nil {
		l.logger.Warn("Stale commit failed", "err", err)
	}
}
