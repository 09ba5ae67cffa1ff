package role

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/grafana/regexp"
	"github.com/prometheus/common/promslog"

	"github.com/ferula-io/ferula/internal/api"
	"github.com/ferula-io/ferula/internal/ingest/remotewrite"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/query/promql"
	"github.com/ferula-io/ferula/internal/reqbody"
	"github.com/ferula-io/ferula/internal/store/tsdb"
	"github.com/ferula-io/ferula/internal/version"
	"github.com/ferula-io/ferula/internal/wire/remoteread"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// ServeOptions are the options of `ferula serve`.
type ServeOptions struct {
	ConfigFile string // prometheus.yml; "" scrapes the server itself
	Web        WebOptions
	Store      tsdb.Options
	Query      promql.Options
	Scrape     scrape.Options
	Write      remotewrite.Options
	Receive    ReceiveOptions
	Read       remoteread.Options // ExternalLabels is set by NewServe
	ReadSort   int                // bytes of memory to sort a response of a remote_read endpoint; 0: the client's default
	Ship       ShippingOptions
	GRPC       GRPCOptions
	StoreAPI   storeapi.ServerOptions // Metrics is set by NewServe
	Profiles   ProfilesOptions

	Flags    map[string]string // as returned by status/flags
	LogLevel *promslog.Level   // changed by runtime.log_level; may be nil
	Logger   *slog.Logger
}

// Serve is a Prometheus server in one process. Call NewServe, then Run once.
type Serve struct {
	opts      ServeOptions
	reg       *registry
	store     *tsdb.Store
	remotes   *remotes // the local storage and the remote_read endpoints
	engine    *promql.Engine
	scraper   *scrape.Scraper
	config    *liveConfig
	profiles  *profileService
	shipping  *shipping
	listener  net.Listener
	grpc      *grpcServer // nil: none
	readiness *readiness
	bodies    *reqbody.Reader // of all receivers
	handler   http.Handler
	own       *pipeListener // for scrapes of its own metrics; nil: they use the HTTP address
	started   time.Time
	quit      context.CancelFunc // ends Run
	quitting  context.Context
}

// NewServe reads and checks the configuration, builds the process and opens its
// listeners. It opens no storage and serves no request.
func NewServe(opts ServeOptions) (_ *Serve, err error) {
	opts.Web = opts.Web.withDefaults()
	s := &Serve{opts: opts, reg: newRegistry(), readiness: &readiness{}, started: time.Now().UTC(), bodies: reqbody.New(opts.Receive.Bodies)}
	s.quitting, s.quit = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			s.free()
		}
	}()
	if opts.Web.MaxConnections < 0 {
		return nil, fmt.Errorf("web.max-connections: %d is less than 1", opts.Web.MaxConnections)
	}
	if s.listener, err = opts.Web.listen(); err != nil {
		return nil, err
	}
	external, err := externalURL(opts.Web.ExternalURL, s.listener.Addr())
	if err != nil {
		return nil, fmt.Errorf("external URL %q: %w", redactedURL(opts.Web.ExternalURL), err)
	}
	prefix := routePrefix(opts.Web.RoutePrefix, external)
	if s.config, err = newLiveConfig(s, prefix); err != nil {
		return nil, err
	}
	opts.Logger.Info("Starting ferula", "version", version.Current().Version, "revision", buildInfo().Revision, "goversion", buildInfo().GoVersion, "config", cmp.Or(opts.ConfigFile, "none, the server scrapes itself"))
	if err = os.MkdirAll(opts.Store.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	section := s.config.current().StorageConfig
	opts.Store.Section = &section
	// The TSDB would merge a block of out-of-order samples with the in-order block of that
	// time at once, before either is shipped, and compacted blocks are not shipped.
	opts.Store.KeepOverlappingBlocks = opts.Ship.Bucket != "" && !opts.Ship.IgnoreBlockSize
	if s.store, err = tsdb.New(opts.Store, opts.Logger.With("component", "tsdb"), s.reg, s.reg.own); err != nil {
		return nil, fmt.Errorf("storage options: %w", err)
	}
	if err = s.newShipping(); err != nil {
		return nil, err
	}
	if err = s.newProfiles(); err != nil {
		return nil, err
	}
	s.remotes = newRemotes(s.store, opts.ReadSort)
	opts.Query.TrackerDir = opts.Store.Dir
	if s.engine, err = promql.New(opts.Query, opts.Logger.With("component", "promql"), s.reg); err != nil {
		return nil, fmt.Errorf("query options: %w", err)
	}
	if opts.ConfigFile == "" && opts.Web.ConfigFile != "" {
		s.own = newPipeListener(s.listener.Addr())
		opts.Scrape.Dial = s.own.dial
	}
	if s.scraper, err = scrape.New(opts.Scrape, s.store, opts.Logger, s.reg); err != nil {
		return nil, err
	}
	if s.handler, err = s.newHandler(prefix, external); err != nil {
		return nil, err
	}
	if err = opts.GRPC.checkAnonymous(opts.Web); err != nil && !opts.GRPC.AllowAnonymous {
		return nil, fmt.Errorf("%w, or allow it with --grpc-server-allow-anonymous", err)
	}
	if err = s.newGRPC(); err != nil {
		return nil, err
	}
	return s, nil
}

// free releases the resources of a NewServe that failed.
func (s *Serve) free() {
	if s.listener != nil {
		_ = s.listener.Close()
	}
	_ = s.shipping.close()
	_ = s.profiles.close()
	if s.engine != nil {
		_ = s.engine.Close()
	}
	if s.scraper != nil {
		s.scraper.Close()
	}
}

// Addr returns the first listen address.
func (s *Serve) Addr() net.Addr { return s.listener.Addr() }

// MoreAddrs returns the listen addresses after the first.
func (s *Serve) MoreAddrs() (addrs []net.Addr) {
	if l, ok := s.listener.(*listenerSet); ok {
		for _, one := range l.all[1:] {
			addrs = append(addrs, one.Addr())
		}
	}
	return addrs
}

// GRPCAddr returns the gRPC listen address; nil without a gRPC server.
func (s *Serve) GRPCAddr() net.Addr { return s.grpc.addr() }

// Run serves until ctx is canceled or a component fails, then shuts down in this order:
// readiness fails, scraping stops and appends its last samples, running requests are
// drained, and the storage is closed.
func (s *Serve) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.quitting, func() { stop(context.Canceled) })()
	defer s.config.listen()()
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
	own := s.serveOwn()
	work.Go(func() {
		if err := s.work(ctx); err != nil {
			stop(err)
		}
	})
	<-ctx.Done()
	s.readiness.stopping()
	s.grpc.stopping()
	s.opts.Logger.Info("Stopping", "reason", context.Cause(ctx))
	work.Wait()
	own()
	err := errors.Join(s.opts.Web.drain(server), s.grpc.drain())
	s.remotes.close()
	serving.Wait()
	if e := context.Cause(ctx); !errors.Is(e, context.Canceled) {
		err = errors.Join(err, e)
	}
	return errors.Join(err, s.engine.Close(), s.profiles.close(), s.store.Close(), s.shipping.close())
}

// work opens the storage, applies the configuration and scrapes until ctx is canceled.
func (s *Serve) work(ctx context.Context) error {
	defer s.scraper.Close()
	begun := time.Now()
	if err := s.store.Open(); err != nil {
		return err
	}
	s.profiles.open()
	if ctx.Err() != nil {
		return nil
	}
	if err := s.config.applyFirst(); err != nil {
		return err
	}
	s.readiness.ready()
	s.grpc.ready()
	s.opts.Logger.Info("Ready", "url", s.opts.Web.scheme()+"://"+s.listener.Addr().String()+"/", "after", time.Since(begun).Round(time.Millisecond))
	var reloads sync.WaitGroup
	reloads.Go(func() { s.config.watch(ctx) })
	reloads.Go(func() { s.shipping.run(ctx) })
	reloads.Go(func() { s.profiles.run(ctx) })
	err := s.scraper.Run(ctx)
	reloads.Wait()
	return err
}

// externalURL parses and normalizes an external URL. It derives one from the listen
// address if given is empty.
func externalURL(given string, addr net.Addr) (*url.URL, error) {
	if given == "" {
		host, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return nil, err
		}
		// A server on loopback is not reachable by the host name.
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			if host, err = os.Hostname(); err != nil {
				return nil, err
			}
		}
		given = "http://" + net.JoinHostPort(host, port) + "/"
	}
	if strings.Trim(given, `"'`) != given {
		return nil, errors.New("must not begin or end with quotes")
	}
	u, err := parseURL(given)
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if u.Path != "" && !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u, nil
}

// routePrefix returns "" or "/path" without a trailing slash.
func routePrefix(given string, external *url.URL) string {
	if given == "" {
		given = external.Path
	}
	given = strings.Trim(given, "/")
	if given == "" {
		return ""
	}
	return "/" + given
}

func corsOrigin(pattern string) (*regexp.Regexp, error) {
	if pattern == "" {
		pattern = ".*"
	}
	re, err := regexp.Compile("^(?:" + pattern + ")$")
	if err != nil {
		return nil, fmt.Errorf("web.cors.origin %q: %w", pattern, err)
	}
	return re, nil
}

func (s *Serve) runtimeInfo() (api.RuntimeInfo, error) {
	cwd, err := os.Getwd()
	if err != nil {
		return api.RuntimeInfo{}, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return api.RuntimeInfo{}, err
	}
	corruptions, err := s.counter("prometheus_tsdb_wal_corruptions_total")
	if err != nil {
		return api.RuntimeInfo{}, err
	}
	ok, at := s.config.lastReload()
	return api.RuntimeInfo{
		StartTime:           s.started,
		CWD:                 cwd,
		Hostname:            hostname,
		ReloadConfigSuccess: ok,
		LastConfigTime:      at,
		CorruptionCount:     int64(corruptions),
		StorageRetention:    s.config.retentionText(),
	}, nil
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
