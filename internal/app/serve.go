package app

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/promslog"
	prompromql "github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/notifications"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/httpbody"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/process/server"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/promql"
	"github.com/ferula-io/ferula/internal/promql/rules"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/remoteread"
	"github.com/ferula-io/ferula/internal/thanos/sources"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/internal/version"
)

// ServeOptions are the options of `ferula serve`.
type ServeOptions struct {
	ConfigFile string // prometheus.yml; "" scrapes the server itself
	Web        WebOptions
	Store      tsdb.Options
	Query      promql.Options
	Engine     EngineOptions
	// EstimateMax is the limit of samples that a query of the HTTP API may read by estimate; 0: no limit.
	EstimateMax int64
	Scrape      scrape.Options
	Rules       rules.Options
	Write       remotewrite.Options
	Send        remotesend.Options // Scraper and TypeAndUnitLabels are set by NewServe
	Peer        PeerAPIOptions
	Receive     ReceiveOptions
	Read        remoteread.Options // ExternalLabels is set by NewServe
	ReadSort    int                // bytes of memory to sort a response of a remote_read endpoint; 0: the client's default
	Ship        ShippingOptions
	// longest time to write the head to blocks and upload them at the shutdown; 0: do neither
	ShutdownUpload time.Duration
	GRPC           GRPCOptions
	StoreAPI       storeapi.ServerOptions // Metrics is set by NewServe
	Profiles       ProfilesOptions

	Flags    map[string]string // as returned by status/flags
	LogLevel *promslog.Level   // changed by runtime.log_level; may be nil
	Logger   *slog.Logger
}

// Serve is a Prometheus server in one process. Call NewServe, then Run once.
type Serve struct {
	base
	opts     ServeOptions
	store    *tsdb.Store
	remotes  *remoteread.Storage // the local storage and the remote_read endpoints
	sender   *remotesend.Sender  // the local storage and the remote_write endpoints
	engine   *promql.Engine
	queries  prompromql.QueryEngine
	scraper  *scrape.Scraper
	rules    *rules.Manager
	config   *liveConfig
	profiles *profileService
	shipping *shipper    // nil: none
	pushed   atomic.Bool // a sender has pushed samples
	notices  *notices
	tracing  *telemetry.Tracing
	bodies   *httpbody.Reader // of all receivers
	handler  http.Handler
	// in-process listener for scrapes of this server's own metrics: a server that authenticates its clients scrapes
	// itself without credentials, and no port without authentication is open to others; nil: scrapes use the HTTP address
	own *bufconn.Listener
}

// NewServe reads and checks the configuration, builds the process and opens its
// listeners. It opens no storage and serves no request.
func NewServe(opts ServeOptions) (_ *Serve, err error) {
	s := &Serve{opts: opts, base: newBase(opts.Web, opts.Logger),
		bodies: httpbody.NewReader(opts.Receive.Bodies)}
	defer s.release(&err)
	if opts.EstimateMax < 0 {
		return nil, hint.Invalid("query.max-estimated-samples", fmt.Errorf("%d is negative", opts.EstimateMax))
	}
	if opts.Web.MaxConnections < 0 {
		return nil, hint.Invalid("web.max-connections", fmt.Errorf("%d is less than 1", opts.Web.MaxConnections))
	}
	if err = s.listen(); err != nil {
		return nil, err
	}
	s.tracing = telemetry.NewLiveTracing("ferula-serve", opts.Logger.With("component", "tracing"))
	s.process.Add(process.Component{Name: "tracing", Close: s.tracing.Close})
	s.notices = s.newNotices()
	external, err := server.ExternalURL(opts.Web.ExternalURL, s.Addr())
	if err != nil {
		return nil, hint.Invalid("web.external-url", fmt.Errorf("%q: %w", redact.URL(opts.Web.ExternalURL), err))
	}
	prefix, err := server.RoutePrefix("web.route-prefix", opts.Web.RoutePrefix, external)
	if err != nil {
		return nil, err
	}
	if s.config, err = newLiveConfig(s, prefix); err != nil {
		return nil, err
	}
	opts.Logger.Info("Starting ferula", "version", version.Current().Version, "revision", buildInfo().Revision,
		"goversion", buildInfo().GoVersion, "config", cmp.Or(opts.ConfigFile, "none, the server scrapes itself"))
	if err = os.MkdirAll(opts.Store.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("--storage.tsdb.path: %w", err)
	}
	cfg := s.config.current()
	section := cfg.StorageConfig
	opts.Store.ExpectedSeries = scrape.ExpectedSeries(&cfg)
	opts.Store.Section, opts.Store.MetadataInWAL = &section, opts.Scrape.MetadataInWAL
	// Otherwise the TSDB would compact out-of-order blocks with in-order blocks of the same
	// time range before either is shipped. Compacted blocks are not shipped.
	opts.Store.KeepOverlappingBlocks = opts.Store.KeepOverlappingBlocks ||
		(opts.Ship.Bucket != "" && !opts.Ship.IgnoreBlockSize)
	if s.store, err = tsdb.New(opts.Store, opts.Logger.With("component", "tsdb"), s.reg, s.reg.Own); err != nil {
		return nil, err
	}
	if err = s.newShipping(); err != nil {
		return nil, err
	}
	s.process.Add(
		process.Component{Name: "shipping", Open: s.shipping.Expect, Run: s.shipping.Run, Close: s.shipping.Close},
		process.Component{Name: "storage", Open: s.openStorage, Close: s.closeStorage},
	)
	s.sender = s.newSender()
	s.process.Add(process.Component{Name: "remote write", Close: s.sender.Close})
	if err = s.newProfiles(); err != nil {
		return nil, err
	}
	s.remotes = remoteread.New(s.store, opts.ReadSort)
	opts.Query.TrackerDir = opts.Store.Dir
	opts.Query.Panicked = process.Panics(s.reg.Own, "promql").Inc
	if s.engine, err = promql.New(opts.Query, opts.Logger.With("component", "promql"), s.reg); err != nil {
		return nil, err
	}
	s.process.Add(
		process.Component{Name: "profiles", Open: s.profiles.open, Run: s.profiles.run, Close: s.profiles.close},
		process.Component{Name: "remote read", Close: s.remotes.Close},
		process.Component{Name: "queries", Close: s.engine.Close},
	)
	if s.queries, err = newQueryEngine(opts.Engine, opts.Query, s.engine, s.reg.Own); err != nil {
		return nil, err
	}
	if opts.ConfigFile == "" && opts.Web.ConfigFile != "" {
		s.own = bufconn.Listen(64 << 10)
		opts.Scrape.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return s.own.DialContext(ctx) }
	}
	if s.scraper, err = scrape.New(opts.Scrape, s.sender.Samples(), opts.Logger, s.reg); err != nil {
		return nil, err
	}
	if err = s.newRules(external); err != nil {
		return nil, err
	}
	if s.handler, err = s.newHandler(prefix, external); err != nil {
		return nil, err
	}
	if err = s.newGRPC(); err != nil {
		return nil, err
	}
	s.assemble()
	return s, nil
}

// newGRPC creates the gRPC server of the StoreAPI on the local storage, of rules and of
// the profile API.
func (s *Serve) newGRPC() error {
	if err := s.opts.GRPC.CheckAnonymous(s.web); err != nil && !s.opts.GRPC.AllowAnonymous {
		return fmt.Errorf("%w, or allow it with --grpc-server-allow-anonymous", err)
	}
	opts := s.opts.StoreAPI
	opts.Metrics = s.reg.Own
	return s.listenGRPC(s.opts.GRPC, s.tracing, func(to grpc.ServiceRegistrar) {
		source := sources.NewLocal(s.store, s.engine.Parser, s.config.externalLabels, s.rules.RuleGroups)
		storeapi.NewServer(source, opts).Register(to)
		ready := func() bool { return s.process.IsReady() && s.profiles.serving() }
		s.profiles.api.RegisterGRPC(to, ready)
		s.profiles.otlp.RegisterGRPC(to, ready)
	})
}

// newRules creates the manager of rules and reads the rule files of the configuration, so
// that a fault in one of them ends the process before the storage is opened.
func (s *Serve) newRules(external *url.URL) (err error) {
	s.rules, err = rules.New(s.opts.Rules, rules.Deps{
		Engine:      s.queries,
		Parser:      s.engine.Parser,
		Queryable:   s.remotes,
		Local:       s.store,
		Appendable:  s.sender.Samples(),
		ExternalURL: external,
		SDMetrics:   s.scraper.SDMetrics,
		Logger:      s.opts.Logger,
		Registerer:  s.reg,
	})
	if err != nil {
		return err
	}
	cfg := s.config.current()
	s.config.rules, err = s.rules.Prepare(&cfg)
	return err
}

// assemble adds the components that apply configurations, and the servers.
func (s *Serve) assemble() {
	s.process.Add(
		process.Component{Name: "configuration", Open: s.config.applyFirst, Run: s.config.watch},
		process.Component{Name: "scraping", Run: s.scraper.Run, Close: func() error { s.scraper.Close(); return nil }},
		process.Component{Name: "rules", Run: s.rules.Run, Close: s.rules.Close},
	)
	if s.own != nil {
		s.process.AddServer(s.ownServer())
	}
	web := s.webServer(s.tracing.Handler(s.reg.Instrumented(s.handler)))
	web.Stopping = s.notices.stopping
	s.process.AddServer(web, s.grpcServer())
}

// Run serves until ctx is canceled or a component fails, then shuts down in this order:
// readiness fails, scraping and rules stop and append their last samples, waiting alerts are
// sent, running requests are drained, the storage is closed, and its last blocks are uploaded.
func (s *Serve) Run(ctx context.Context) error {
	defer s.config.listen()()
	begun := time.Now()
	s.process.Opened = func() {
		s.process.Ready()
		s.notices.DeleteNotification(notifications.StartingUp)
		s.grpc.Ready()
		s.opts.Logger.Info("Ready", "url", s.url(), "after",
			time.Since(begun).Round(time.Millisecond))
	}
	return s.process.Run(ctx)
}

func (s *Serve) runtimeInfo() (httpapi.RuntimeInfo, error) {
	info, err := s.base.runtimeInfo()
	if err != nil {
		return info, err
	}
	corruptions, err := s.counter("prometheus_tsdb_wal_corruptions_total")
	info.CorruptionCount, info.StorageRetention = int64(corruptions), s.config.retentionText()
	info.ReloadConfigSuccess, info.LastConfigTime = s.config.lastReload()
	return info, err
}

// counter returns the value of a counter of this process; 0 if it does not exist.
func (s *Serve) counter(name string) (float64, error) {
	families, err := s.reg.Gather()
	if err != nil {
		return 0, fmt.Errorf("own metrics: %w", err)
	}
	for _, family := range families {
		if family.GetName() == name && len(family.GetMetric()) > 0 {
			return family.GetMetric()[0].GetCounter().GetValue(), nil
		}
	}
	return 0, nil
}
