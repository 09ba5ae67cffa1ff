package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/thanos/sources"

	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// SidecarOptions are the options of `ferula sidecar`. Zero durations take the defaults.
type SidecarOptions struct {
	Web           WebOptions
	GRPC          GRPCOptions
	PrometheusURL string
	HTTPClient    string        // Thanos' HTTP client configuration in YAML; "": no authentication
	ReadyTimeout  time.Duration // how long Prometheus may take to become ready; 0: 10 min
	PollInterval  time.Duration // of reading the configuration and the time range; 0: 30 s
	PollTimeout   time.Duration // 0: 30 s
	MinTimeMS     func() int64  // samples before it are not served; nil: no limit
	TSDBDir       string        // data directory of Prometheus, for shipping and for reading blocks; "": none
	Ship          ShippingOptions
	Reload        ReloadOptions
	Limits        storeapi.ServerOptions // Metrics is set by NewSidecar
	SelectionsMax int                    // maximum of concurrent remote reads of one Series request; 0: 3
	ReadsMax      int                    // maximum of concurrent remote reads, at least SelectionsMax; 0: 8
	Tracing       string                 // Thanos' tracing configuration in YAML; "" sends no spans
	Logger        *slog.Logger
}

func (o SidecarOptions) withDefaults() SidecarOptions {
	o.Web = o.Web.WithDefaults()
	o.ReadyTimeout = cmp.Or(o.ReadyTimeout, 10*time.Minute)
	o.PollInterval = cmp.Or(o.PollInterval, 30*time.Second)
	o.PollTimeout = cmp.Or(o.PollTimeout, 30*time.Second)
	o.Limits.SortBytesMax = cmp.Or(o.Limits.SortBytesMax, 256<<20)
	return o
}

// Sidecar serves one Prometheus as a StoreAPI and ships its blocks. Call NewSidecar,
// then Run once.
type Sidecar struct {
	base
	opts       SidecarOptions
	prometheus *sources.Prometheus
	blocks     *tsdb.ServedBlocks // nil: none
	http       *http.Client
	tracing    *telemetry.Tracing
	shipping   *shipper // nil: none
	reload     *reloader
}

// NewSidecar builds the process and opens its listeners. It sends no request to
// Prometheus.
func NewSidecar(opts SidecarOptions) (_ *Sidecar, err error) {
	opts = opts.withDefaults()
	s := &Sidecar{opts: opts, base: newBase(opts.Web, opts.Logger)}
	defer s.release(&err)
	u, err := server.HTTPURL(opts.PrometheusURL)
	if err != nil {
		return nil, hint.Invalid("prometheus.url", err)
	}
	if s.http, err = server.FromThanos(opts.HTTPClient); err != nil {
		return nil, hint.Invalid("prometheus.http-client", err)
	}
	if s.tracing, err = s.trace(opts.Tracing, "ferula-sidecar"); err != nil {
		return nil, err
	}
	s.http.Transport = s.tracing.RoundTripper(s.http.Transport)
	if opts.TSDBDir != "" {
		s.blocks = tsdb.NewServedBlocks(opts.TSDBDir, opts.Logger)
	}
	s.prometheus = sources.NewPrometheus(sources.PrometheusOptions{
		URL: u, HTTP: s.http, MinTimeMS: opts.MinTimeMS, SelectionsMax: opts.SelectionsMax, ReadsMax: opts.ReadsMax,
		SortBytesMax: opts.Limits.SortBytesMax, Blocks: s.blocks,
	}, s.reg)
	if s.shipping, err = newShipper(opts.Ship, opts.TSDBDir, "sidecar", s.prometheus.ExternalLabels, opts.Logger,
		s.reg); err != nil {
		return nil, hint.Invalid("objstore.config", err)
	}
	s.process.Add(
		process.Component{Name: "shipping", Close: s.shipping.Close},
		process.Component{Name: "Prometheus", Run: s.work, Close: func() error {
			s.http.CloseIdleConnections()
			return s.blocks.Close()
		}},
	)
	s.process.Note = s.shipping.Note
	if s.reload, err = newReloader(opts.Reload, u, s.http, opts.Logger.With("component", "reloader"),
		s.reg); err != nil {
		return nil, err
	}
	s.process.Add(process.Component{Name: "reloader", Run: s.reload.Run})
	if err = s.listen(); err != nil {
		return nil, err
	}
	if err = s.listenStoreAPI(opts.GRPC, s.tracing, s.prometheus, opts.Limits); err != nil {
		return nil, err
	}
	mux := s.newMux()
	s.process.AddServer(s.grpcServer(), s.webServer(s.reg.Instrumented(mux)))
	return s, nil
}

// Run serves until ctx is canceled or a component fails, then drains running requests.
func (s *Sidecar) Run(ctx context.Context) error { return s.process.Run(ctx) }

// work polls Prometheus. The sidecar is ready while the polls succeed. Shipping starts
// after the first successful poll, which has checked Prometheus' flags, and continues
// while later polls fail.
func (s *Sidecar) work(ctx context.Context) error {
	var uploads sync.WaitGroup
	defer uploads.Wait()
	started, polled := time.Now(), false
	for {
		err := s.refresh(ctx, !s.process.IsReady())
		if errors.Is(err, sources.ErrUnsupported) {
			return err
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !s.process.IsReady():
			s.process.Ready()
			s.grpc.Ready()
			s.opts.Logger.Info("Ready", "prometheus", redact.URL(s.opts.PrometheusURL), "external_labels",
				s.prometheus.ExternalLabels().String(), "grpc", s.GRPCAddr(), "http", s.Addr())
			if !polled {
				polled = true
				uploads.Go(func() { _ = s.shipping.Run(ctx) })
			}
		case err != nil:
			s.process.Waiting()
			s.opts.Logger.Warn("Not ready: polling Prometheus failed", "err", err)
			if !polled && time.Since(started) > s.opts.ReadyTimeout {
				return fmt.Errorf("Prometheus was not ready within %s: %w", s.opts.ReadyTimeout, err)
			}
		}
		pause := s.opts.PollInterval
		if err != nil {
			pause = min(pause, 2*time.Second) // Prometheus may be starting
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		case <-s.prometheus.Changed():
		}
	}
}

// refresh reads external labels and time range of Prometheus. With checkFlags it also
// checks Prometheus' flags, which can change when Prometheus restarts.
func (s *Sidecar) refresh(ctx context.Context, checkFlags bool) error {
	ctx, done := context.WithTimeout(ctx, s.opts.PollTimeout)
	defer done()
	if checkFlags && s.shipping != nil {
		flags, err := s.prometheus.Flags(ctx)
		if err != nil {
			return err
		}
		if err := s.opts.Ship.CheckPrometheus(s.opts.TSDBDir, flags); err != nil {
			return fmt.Errorf("%w: %w", sources.ErrUnsupported, err)
		}
	}
	return s.prometheus.Refresh(ctx)
}
