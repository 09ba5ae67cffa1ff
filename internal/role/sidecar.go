package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/store/bucket"
	"github.com/ferula-io/ferula/internal/wire/promapi"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
	"github.com/ferula-io/ferula/metrics"
)

// SidecarOptions are what `ferula sidecar` runs with. Zero durations take the
// defaults.
type SidecarOptions struct {
	Web           WebOptions
	GRPC          GRPCOptions
	PrometheusURL string
	HTTPClient    string        // Thanos' YAML of the client; "" has no authentication
	ReadyTimeout  time.Duration // how long Prometheus may take to start; 0: 10 min
	PollInterval  time.Duration // for configuration and time range; 0: 30 s
	PollTimeout   time.Duration // 0: 30 s
	MinTimeMS     func() int64  // nothing before is served; nil: everything is
	TSDBDir       string        // of Prometheus, for shipping
	Ship          ShippingOptions
	Reload        ReloadOptions
	Limits        storeapi.ServerOptions // Logger and Metrics are filled in
	SelectionsMax int                    // remote reads of one Series request; 0: 3
	ReadsMax      int                    // remote reads at once, SelectionsMax at least; 0: 8
	Tracing       string                 // Thanos' YAML; "" sends none
	Logger        *slog.Logger
}

func (o SidecarOptions) withDefaults() SidecarOptions {
	o.Web = o.Web.withDefaults()
	if o.ReadyTimeout == 0 {
		o.ReadyTimeout = 10 * time.Minute
	}
	if o.PollInterval == 0 {
		o.PollInterval = 30 * time.Second
	}
	if o.PollTimeout == 0 {
		o.PollTimeout = 30 * time.Second
	}
	if o.SelectionsMax <= 0 {
		o.SelectionsMax = defaultSelectionsMax
	}
	if o.ReadsMax <= 0 {
		o.ReadsMax = defaultReadsMax
	}
	o.ReadsMax = max(o.ReadsMax, o.SelectionsMax)
	if o.Limits.SortBytesMax == 0 {
		o.Limits.SortBytesMax = 256 << 20
	}
	if o.MinTimeMS == nil {
		o.MinTimeMS = func() int64 { return math.MinInt64 }
	}
	return o
}

// Sidecar is a StoreAPI over the Prometheus beside it, and ships its blocks. Use
// NewSidecar, then Run once.
type Sidecar struct {
	opts     SidecarOptions
	reg      *registry
	beside   *beside
	http     *http.Client
	tracing  *tracing
	shipping *shipping
	reload   *reloader
	listener net.Listener
	grpc     *grpcServer
	gate     *gate
	handler  http.Handler
}

// NewSidecar builds the process and begins to listen; Prometheus is not asked yet.
func NewSidecar(opts SidecarOptions) (_ *Sidecar, err error) {
	opts = opts.withDefaults()
	s := &Sidecar{opts: opts, reg: newRegistry(), gate: &gate{}}
	defer func() {
		if err != nil {
			_ = s.free()
		}
	}()
	u, err := url.Parse(opts.PrometheusURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("prometheus.url: %q is no http or https URL", redactedURL(opts.PrometheusURL))
	}
	if s.http, err = prometheusClient(opts.HTTPClient); err != nil {
		return nil, fmt.Errorf("prometheus.http-client: %w", err)
	}
	if s.tracing, err = newTracing(opts.Tracing, "ferula-sidecar"); err != nil {
		return nil, fmt.Errorf("tracing.config: %w", err)
	}
	s.beside = newBeside(opts, u, s.http, s.reg)
	if s.shipping, err = newShipping(opts.Ship, opts.TSDBDir, "sidecar", s.beside.ExternalLabels, opts.Logger, s.reg); err != nil {
		return nil, fmt.Errorf("objstore.config: %w", err)
	}
	s.gate.note = s.shipping.note
	if s.reload, err = newReloader(opts.Reload, u, s.http, opts.Logger.With("component", "reloader"), s.reg); err != nil {
		return nil, err
	}
	if s.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	limits := opts.Limits
	limits.Metrics = s.reg.own
	opts.GRPC.warnOpenBeside(opts.Web, opts.Logger)
	if s.grpc, err = newGRPCServer(opts.GRPC, opts.Logger, s.reg, func(to *grpc.Server) {
		storeapi.NewServer(s.beside, limits).Register(to)
		promapi.NewServices(s.beside.api, s.beside.ExternalLabels).Register(to)
	}); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	opts.Web.operational(mux, "", s.gate)
	mux.Handle("GET /metrics", metricsHandler(s.reg, opts.Logger))
	s.handler = mux
	return s, nil
}

// Addr is the HTTP address listened on.
func (s *Sidecar) Addr() net.Addr { return s.listener.Addr() }

// GRPCAddr is the address of the StoreAPI; nil if there is none.
func (s *Sidecar) GRPCAddr() net.Addr { return s.grpc.addr() }

// Run serves until ctx ends or something fails, and drains.
func (s *Sidecar) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := s.opts.Web.server(s.reg.observed(s.handler), s.opts.Logger)
	var serving, work sync.WaitGroup
	serving.Go(func() {
		if err := s.opts.Web.serve(s.listener, server, s.opts.Logger); err != nil {
			stop(fmt.Errorf("web server: %w", err))
		}
	})
	serving.Go(func() {
		if err := s.grpc.serve(); err != nil {
			stop(fmt.Errorf("gRPC server: %w", err))
		}
	})
	work.Go(func() { s.reload.run(ctx) })
	work.Go(func() {
		if err := s.work(ctx); err != nil && ctx.Err() == nil {
			stop(err)
		}
	})
	<-ctx.Done()
	s.gate.stopping()
	s.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	work.Wait()
	err := errors.Join(s.grpc.drain(), s.opts.Web.drain(server))
	serving.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, s.free())
}

// free lets go of what NewSidecar took.
func (s *Sidecar) free() error {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
	if s.listener != nil {
		_ = s.listener.Close() // the server has closed it, if it ran
	}
	err := s.shipping.close()
	if s.tracing != nil {
		err = errors.Join(err, s.tracing.close())
	}
	return err
}

// work waits for Prometheus and then follows it: it is ready while Prometheus
// answers. Blocks are shipped whether it does or not, once it has said that they
// may be.
func (s *Sidecar) work(ctx context.Context) error {
	var shipping sync.WaitGroup
	defer shipping.Wait()
	started, follows := time.Now(), false
	for {
		err := s.ask(ctx, !s.gate.isReady())
		if errors.Is(err, errUnfit) {
			return err
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !s.gate.isReady():
			s.gate.ready()
			s.grpc.ready()
			s.opts.Logger.Info("Ready", "prometheus", redactedURL(s.opts.PrometheusURL), "external_labels", s.beside.ExternalLabels().String(), "grpc", s.GRPCAddr(), "http", s.Addr())
			if !follows {
				follows = true
				shipping.Go(func() { s.shipping.run(ctx) })
			}
		case err != nil:
			s.gate.waiting()
			s.opts.Logger.Warn("Prometheus does not answer as it should; waiting", "err", err)
			if !follows && time.Since(started) > s.opts.ReadyTimeout {
				return fmt.Errorf("Prometheus was not ready within %s: %w", s.opts.ReadyTimeout, err)
			}
		}
		pause := s.opts.PollInterval
		if err != nil {
			pause = min(pause, 2*time.Second) // it may just be starting
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		case <-s.beside.changed:
		}
	}
}

// ask brings what is known of Prometheus up to date; anew says that it may be
// another process than before, whose flags must be looked at.
func (s *Sidecar) ask(ctx context.Context, anew bool) error {
	ctx, done := context.WithTimeout(ctx, s.opts.PollTimeout)
	defer done()
	if anew && s.shipping != nil {
		flags, err := s.beside.api.Flags(ctx)
		if err != nil {
			return err
		}
		if err := checkSidecarShips(s.opts.Ship, s.opts.TSDBDir, flags); err != nil {
			return err
		}
	}
	return s.beside.refresh(ctx)
}

// errUnfit is returned for a Prometheus beside which no sidecar may run.
var errUnfit = errors.New("the Prometheus beside cannot be served")

// checkSidecarShips refuses blocks that could be compacted away before they are
// shipped, unless Prometheus itself waits for the list of shipped blocks.
func checkSidecarShips(o ShippingOptions, dir string, flags map[string]string) error {
	state := o.Shipper.StateFile
	if state == "" {
		state = "thanos.shipper.json"
	}
	state = filepath.Join(dir, state)
	if waits := flags["storage.tsdb.delay-compact-file.path"]; waits != "" {
		if filepath.Clean(waits) != filepath.Clean(state) {
			return fmt.Errorf("%w: it waits for --storage.tsdb.delay-compact-file.path=%s, and shipped blocks are listed in %s", errUnfit, waits, state)
		}
		return nil
	}
	if o.IgnoreBlockSize {
		return nil
	}
	const least, most = "storage.tsdb.min-block-duration", "storage.tsdb.max-block-duration"
	for _, name := range []string{least, most} {
		d, err := model.ParseDuration(flags[name])
		if err != nil {
			return fmt.Errorf("%w: its --%s is %q", errUnfit, name, flags[name])
		}
		if time.Duration(d) != blockDuration {
			return fmt.Errorf("%w: it compacts blocks, which could be gone before they are shipped: --%s=%s and --%s=%s must both be %s", errUnfit, least, flags[least], most, flags[most], blockDuration)
		}
	}
	return nil
}

// beside is the Prometheus beside, as a store.
type beside struct {
	api     *promapi.Client
	read    *remoteread.Client
	minTime func() int64
	up      *metrics.Gauge
	changed chan struct{} // asks for a refresh before its time

	selectionsMax int                 // remote reads of one Series request
	reads         *semaphore.Weighted // of all requests
	sortBytes     int                 // of one request

	// unsorted: its series are not in the order of their own labels, which those of
	// Prometheus are.
	unsorted atomic.Bool

	mu       sync.RWMutex
	err      error // why it cannot be asked; nil if it can
	external labels.Labels
	mint     int64
}

var (
	_ storeapi.Source         = (*beside)(nil)
	_ storeapi.ExemplarSource = (*beside)(nil)
)

func newBeside(o SidecarOptions, u *url.URL, client *http.Client, reg *registry) *beside {
	b := &beside{
		api:     promapi.New(promapi.Options{URL: u, HTTP: client}),
		read:    remoteread.NewClient(remoteread.ClientOptions{URL: u.JoinPath("api/v1/read").String(), HTTP: client, HoldBytesMax: holdBytesMax, ReadAheadBytes: 512}),
		minTime: o.MinTimeMS,
		changed: make(chan struct{}, 1),

		selectionsMax: o.SelectionsMax, reads: semaphore.NewWeighted(int64(o.ReadsMax)), sortBytes: o.Limits.SortBytesMax,

		err: errors.New("Prometheus was not asked yet"),
		up:  reg.gauge("thanos_sidecar_prometheus_up", "Whether the Prometheus beside answers."),
	}
	return b
}

// refresh asks for external labels and time range.
func (b *beside) refresh(ctx context.Context) error {
	external, err := b.api.ExternalLabels(ctx)
	var mint int64
	if err == nil {
		mint, err = b.api.LowestTimestampMS(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.external.IsEmpty()
	switch {
	case err != nil:
	case external.IsEmpty() && first:
		err = fmt.Errorf("%w: %w: set global.external_labels of Prometheus", errUnfit, bucket.ErrNoLabels)
	case external.IsEmpty():
		err = errors.New("its configuration has no external labels any more")
	default:
		b.external, b.mint = external, mint
	}
	b.err = err
	b.up.Set(0)
	if err == nil {
		b.up.Set(1)
	}
	return err
}

// begin is the first time that is served.
func (b *beside) begin() (int64, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.err != nil {
		return 0, fmt.Errorf("%w: %w", storeapi.ErrUnavailable, b.err)
	}
	return max(b.mint, b.minTime()), nil
}

// ExternalLabels implements storeapi.Source.
func (b *beside) ExternalLabels() labels.Labels {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.external
}

// Info implements storeapi.Source.
func (b *beside) Info(context.Context) (storeapi.Info, error) {
	mint, err := b.begin()
	if err != nil {
		return storeapi.Info{}, err
	}
	external, within := b.ExternalLabels(), storeapi.TimeRange{MinMS: mint, MaxMS: math.MaxInt64}
	return storeapi.Info{
		LabelSets: []labels.Labels{external},
		Component: "sidecar",
		Store:     &storeapi.StoreInfo{TimeRange: within, TSDBs: []storeapi.TSDBInfo{{Labels: external, TimeRange: within}}},
		Exemplars: &storeapi.TimeRange{MinMS: math.MinInt64, MaxMS: math.MaxInt64},
		Rules:     true, Targets: true, MetricMetadata: true,
	}, nil
}

// LabelNames implements storeapi.Source.
func (b *beside) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warnings, err = b.api.LabelNames(ctx, r.Matchers, max(r.MinMS, b.minTime()), r.MaxMS, r.Limit)
	return names, warnings, toStore(err)
}

// LabelValues implements storeapi.Source.
func (b *beside) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	values, warnings, err = b.api.LabelValues(ctx, r.Label, r.Matchers, max(r.MinMS, b.minTime()), r.MaxMS, r.Limit)
	return values, warnings, toStore(err)
}

// Exemplars implements storeapi.ExemplarSource.
func (b *beside) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) (results []exemplar.QueryResult, warnings []string, err error) {
	results, warnings, err = b.api.Exemplars(ctx, r.Query, r.MinMS, r.MaxMS)
	return results, warnings, toStore(err)
}
