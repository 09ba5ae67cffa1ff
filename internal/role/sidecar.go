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

// SidecarOptions are the options of `ferula sidecar`. Zero durations take the defaults.
type SidecarOptions struct {
	Web           WebOptions
	GRPC          GRPCOptions
	PrometheusURL string
	HTTPClient    string        // Thanos' HTTP client configuration in YAML; "": no authentication
	ReadyTimeout  time.Duration // how long Prometheus may take to become ready; 0: 10 min
	PollInterval  time.Duration // of configuration and time range; 0: 30 s
	PollTimeout   time.Duration // 0: 30 s
	MinTimeMS     func() int64  // samples before it are not served; nil: no limit
	TSDBDir       string        // data folder of Prometheus, for shipping
	Ship          ShippingOptions
	Reload        ReloadOptions
	Limits        storeapi.ServerOptions // Metrics is set by NewSidecar
	SelectionsMax int                    // maximum of concurrent remote reads of one Series request; 0: 3
	ReadsMax      int                    // maximum of concurrent remote reads, SelectionsMax at least; 0: 8
	Tracing       string                 // Thanos' tracing configuration in YAML; "" sends no spans
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

// Sidecar serves one Prometheus as a StoreAPI and ships its blocks. Call NewSidecar,
// then Run once.
type Sidecar struct {
	opts       SidecarOptions
	reg        *registry
	prometheus *prometheusStore
	http       *http.Client
	tracing    *tracing
	shipping   *shipping
	reload     *reloader
	listener   net.Listener
	grpc       *grpcServer
	readiness  *readiness
	handler    http.Handler
}

// NewSidecar builds the process and opens its listeners. It sends no request to
// Prometheus.
func NewSidecar(opts SidecarOptions) (_ *Sidecar, err error) {
	opts = opts.withDefaults()
	s := &Sidecar{opts: opts, reg: newRegistry(), readiness: &readiness{}}
	defer func() {
		if err != nil {
			_ = s.free()
		}
	}()
	u, err := url.Parse(opts.PrometheusURL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("prometheus.url: %q is not an http or https URL", redactedURL(opts.PrometheusURL))
	}
	if s.http, err = prometheusClient(opts.HTTPClient); err != nil {
		return nil, fmt.Errorf("prometheus.http-client: %w", err)
	}
	if s.tracing, err = newTracing(opts.Tracing, "ferula-sidecar"); err != nil {
		return nil, fmt.Errorf("tracing.config: %w", err)
	}
	s.prometheus = newPrometheusStore(opts, u, s.http, s.reg)
	if s.shipping, err = newShipping(opts.Ship, opts.TSDBDir, "sidecar", s.prometheus.ExternalLabels, opts.Logger, s.reg); err != nil {
		return nil, fmt.Errorf("objstore.config: %w", err)
	}
	s.readiness.note = s.shipping.note
	if s.reload, err = newReloader(opts.Reload, u, s.http, opts.Logger.With("component", "reloader"), s.reg); err != nil {
		return nil, err
	}
	if s.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	limits := opts.Limits
	limits.Metrics = s.reg.own
	opts.GRPC.warnAnonymous(opts.Web, opts.Logger)
	if s.grpc, err = newGRPCServer(opts.GRPC, opts.Logger, s.reg, func(to *grpc.Server) {
		storeapi.NewServer(s.prometheus, limits).Register(to)
		promapi.NewServices(s.prometheus.api, s.prometheus.ExternalLabels).Register(to)
	}); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	opts.Web.registerDebugEndpoints(mux, "", s.readiness)
	mux.Handle("GET /metrics", metricsHandler(s.reg, opts.Logger))
	s.handler = mux
	return s, nil
}

// Addr returns the HTTP listen address.
func (s *Sidecar) Addr() net.Addr { return s.listener.Addr() }

// GRPCAddr returns the gRPC listen address; nil without a gRPC server.
func (s *Sidecar) GRPCAddr() net.Addr { return s.grpc.addr() }

// Run serves until ctx is canceled or a component fails, then drains running requests.
func (s *Sidecar) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	server := s.opts.Web.server(s.reg.instrumented(s.handler), s.opts.Logger)
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
	s.readiness.stopping()
	s.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	work.Wait()
	err := errors.Join(s.grpc.drain(), s.opts.Web.drain(server))
	serving.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, s.free())
}

// free releases the resources of NewSidecar.
func (s *Sidecar) free() error {
	if s.http != nil {
		s.http.CloseIdleConnections()
	}
	if s.listener != nil {
		_ = s.listener.Close() // already closed if the server ran
	}
	err := s.shipping.close()
	if s.tracing != nil {
		err = errors.Join(err, s.tracing.close())
	}
	return err
}

// work polls Prometheus. The sidecar is ready while the polls succeed. Shipping starts
// after the first successful poll, which has checked Prometheus' flags, and continues
// while later polls fail.
func (s *Sidecar) work(ctx context.Context) error {
	var shipping sync.WaitGroup
	defer shipping.Wait()
	started, polled := time.Now(), false
	for {
		err := s.refresh(ctx, !s.readiness.isReady())
		if errors.Is(err, errUnsupported) {
			return err
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && !s.readiness.isReady():
			s.readiness.ready()
			s.grpc.ready()
			s.opts.Logger.Info("Ready", "prometheus", redactedURL(s.opts.PrometheusURL), "external_labels", s.prometheus.ExternalLabels().String(), "grpc", s.GRPCAddr(), "http", s.Addr())
			if !polled {
				polled = true
				shipping.Go(func() { s.shipping.run(ctx) })
			}
		case err != nil:
			s.readiness.waiting()
			s.opts.Logger.Warn("Failed to read the state of Prometheus; not ready", "err", err)
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
		case <-s.prometheus.changed:
		}
	}
}

// refresh reads external labels and time range of Prometheus. checkFlags also checks its
// flags: it may be another process than at the last poll.
func (s *Sidecar) refresh(ctx context.Context, checkFlags bool) error {
	ctx, done := context.WithTimeout(ctx, s.opts.PollTimeout)
	defer done()
	if checkFlags && s.shipping != nil {
		flags, err := s.prometheus.api.Flags(ctx)
		if err != nil {
			return err
		}
		if err := checkSidecarShipping(s.opts.Ship, s.opts.TSDBDir, flags); err != nil {
			return err
		}
	}
	return s.prometheus.refresh(ctx)
}

// errUnsupported is the error for a Prometheus whose settings a sidecar cannot work
// with. It ends the process.
var errUnsupported = errors.New("unsupported Prometheus configuration")

// checkSidecarShipping returns an error if Prometheus could compact and delete a block
// before it is shipped, unless Prometheus delays compaction until the block is in the
// list of shipped blocks.
func checkSidecarShipping(o ShippingOptions, dir string, flags map[string]string) error {
	state := o.Shipper.StateFile
	if state == "" {
		state = "thanos.shipper.json"
	}
	state = filepath.Join(dir, state)
	if waits := flags["storage.tsdb.delay-compact-file.path"]; waits != "" {
		if filepath.Clean(waits) != filepath.Clean(state) {
			return fmt.Errorf("%w: its --storage.tsdb.delay-compact-file.path is %s, but shipped blocks are listed in %s", errUnsupported, waits, state)
		}
		return nil
	}
	if o.IgnoreBlockSize {
		return nil
	}
	const minFlag, maxFlag = "storage.tsdb.min-block-duration", "storage.tsdb.max-block-duration"
	for _, name := range []string{minFlag, maxFlag} {
		d, err := model.ParseDuration(flags[name])
		if err != nil {
			return fmt.Errorf("%w: its --%s is %q", errUnsupported, name, flags[name])
		}
		if time.Duration(d) != blockDuration {
			return fmt.Errorf("%w: a block could be compacted and deleted before it is shipped: --%s=%s and --%s=%s must both be %s", errUnsupported, minFlag, flags[minFlag], maxFlag, flags[maxFlag], blockDuration)
		}
	}
	return nil
}

// prometheusStore implements storeapi.Source on the HTTP API and the remote read
// endpoint of a Prometheus.
type prometheusStore struct {
	api     *promapi.Client
	read    *remoteread.Client
	minTime func() int64
	up      *metrics.Gauge
	changed chan struct{} // triggers a refresh before the next poll

	selectionsMax int                 // maximum of concurrent remote reads of one Series request
	reads         *semaphore.Weighted // slots for remote reads, of all requests
	sortBytes     int                 // memory to sort the series of one request

	// unsorted is set for a server that does not return series in the order of their own
	// labels, as Prometheus does.
	unsorted atomic.Bool

	mu       sync.RWMutex
	err      error // of the last refresh
	external labels.Labels
	mint     int64
}

var (
	_ storeapi.Source         = (*prometheusStore)(nil)
	_ storeapi.ExemplarSource = (*prometheusStore)(nil)
)

func newPrometheusStore(o SidecarOptions, u *url.URL, client *http.Client, reg *registry) *prometheusStore {
	b := &prometheusStore{
		api:     promapi.New(promapi.Options{URL: u, HTTP: client}),
		read:    remoteread.NewClient(remoteread.ClientOptions{URL: u.JoinPath("api/v1/read").String(), HTTP: client, HoldBytesMax: holdBytesMax, ReadAheadBytes: 512}),
		minTime: o.MinTimeMS,
		changed: make(chan struct{}, 1),

		selectionsMax: o.SelectionsMax, reads: semaphore.NewWeighted(int64(o.ReadsMax)), sortBytes: o.Limits.SortBytesMax,

		err: errors.New("Prometheus was not queried yet"),
		up:  reg.gauge("thanos_sidecar_prometheus_up", "Whether the last poll of Prometheus succeeded."),
	}
	return b
}

// refresh reads external labels and time range.
func (b *prometheusStore) refresh(ctx context.Context) error {
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
		err = fmt.Errorf("%w: %w: set global.external_labels of Prometheus", errUnsupported, bucket.ErrNoLabels)
	case external.IsEmpty():
		err = errors.New("external labels were removed from the configuration of Prometheus")
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

// begin returns the lowest timestamp that is served, in ms.
func (b *prometheusStore) begin() (int64, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.err != nil {
		return 0, fmt.Errorf("%w: %w", storeapi.ErrUnavailable, b.err)
	}
	return max(b.mint, b.minTime()), nil
}

// ExternalLabels implements storeapi.Source.
func (b *prometheusStore) ExternalLabels() labels.Labels {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.external
}

// Info implements storeapi.Source.
func (b *prometheusStore) Info(context.Context) (storeapi.Info, error) {
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
func (b *prometheusStore) LabelNames(ctx context.Context, r storeapi.LabelsRequest) (names, warnings []string, err error) {
	names, warnings, err = b.api.LabelNames(ctx, r.Matchers, max(r.MinMS, b.minTime()), r.MaxMS, r.Limit)
	return names, warnings, toStore(err)
}

// LabelValues implements storeapi.Source.
func (b *prometheusStore) LabelValues(ctx context.Context, r storeapi.LabelsRequest) (values, warnings []string, err error) {
	values, warnings, err = b.api.LabelValues(ctx, r.Label, r.Matchers, max(r.MinMS, b.minTime()), r.MaxMS, r.Limit)
	return values, warnings, toStore(err)
}

// Exemplars implements storeapi.ExemplarSource.
func (b *prometheusStore) Exemplars(ctx context.Context, r storeapi.ExemplarsRequest) (results []exemplar.QueryResult, warnings []string, err error) {
	results, warnings, err = b.api.Exemplars(ctx, r.Query, r.MinMS, r.MaxMS)
	return results, warnings, toStore(err)
}
