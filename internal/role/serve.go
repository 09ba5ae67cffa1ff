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
	"github.com/ferula-io/ferula/internal/wire/remoteread"
	"github.com/ferula-io/ferula/internal/wire/storeapi"
)

// ServeOptions are what `ferula serve` runs with.
type ServeOptions struct {
	ConfigFile string // prometheus.yml; "" scrapes the server itself
	Web        WebOptions
	Store      tsdb.Options
	Query      promql.Options
	Scrape     scrape.Options
	Write      remotewrite.Options
	Receive    ReceiveOptions
	Read       remoteread.Options // its external labels are those of the configuration
	ReadSort   int                // bytes of memory to sort a response of a remote_read section; 0: the client's default
	Ship       ShippingOptions
	GRPC       GRPCOptions
	StoreAPI   storeapi.ServerOptions // its registry is the process'
	Profiles   ProfilesOptions

	Flags    map[string]string // as status/flags shows them
	LogLevel *promslog.Level   // changed by runtime.log_level; may be nil
	Logger   *slog.Logger
}

// Serve is a small Prometheus in one process. Use NewServe, then Run once.
type Serve struct {
	opts     ServeOptions
	reg      *registry
	store    *tsdb.Store
	remotes  *remotes // the store and the servers read beside it
	engine   *promql.Engine
	scraper  *scrape.Scraper
	config   *liveConfig
	profiles *profileLane
	shipping *shipping
	listener net.Listener
	grpc     *grpcServer // nil: none
	gate     *gate
	bodies   *reqbody.Reader // of all receivers
	handler  http.Handler
	own      *pipeListener // where the server scrapes itself; nil: at its address
	started  time.Time
	quit     context.CancelFunc // ends Run
	quitting context.Context
}

// NewServe builds the process and begins to listen, but opens no storage and
// answers nothing yet. The configuration is read and checked first.
func NewServe(opts ServeOptions) (_ *Serve, err error) {
	opts.Web = opts.Web.withDefaults()
	s := &Serve{opts: opts, reg: newRegistry(), gate: &gate{}, started: time.Now().UTC(), bodies: reqbody.New(opts.Receive.Bodies)}
	s.quitting, s.quit = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			s.free()
		}
	}()
	if opts.Web.MaxConnections < 0 {
		return nil, fmt.Errorf("web.max-connections: %d connections are less than 1", opts.Web.MaxConnections)
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
	opts.Logger.Info("Starting ferula", "version", Version, "revision", buildInfo().Revision, "goversion", buildInfo().GoVersion, "config", cmp.Or(opts.ConfigFile, "none, the server scrapes itself"))
	if err = os.MkdirAll(opts.Store.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	section := s.config.current().StorageConfig
	opts.Store.Section = &section
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
	if err = opts.GRPC.openBeside(opts.Web); err != nil && !opts.GRPC.AllowAnonymous {
		return nil, fmt.Errorf("%w, or allow it with --grpc-server-allow-anonymous", err)
	}
	if err = s.newGRPC(); err != nil {
		return nil, err
	}
	return s, nil
}

// free undoes a construction that failed half way.
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

// Addr is the address listened on.
func (s *Serve) Addr() net.Addr { return s.listener.Addr() }

// MoreAddrs are the further addresses listened on.
func (s *Serve) MoreAddrs() (addrs []net.Addr) {
	if l, ok := s.listener.(*listening); ok {
		for _, one := range l.all[1:] {
			addrs = append(addrs, one.Addr())
		}
	}
	return addrs
}

// GRPCAddr is the address of the gRPC server, nil if there is none.
func (s *Serve) GRPCAddr() net.Addr { return s.grpc.addr() }

// Run serves until ctx ends or something fails, then takes everything down:
// first no new requests are ready, then scraping stops and its last samples are
// appended, running requests are drained, and the storage is closed last.
func (s *Serve) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	defer context.AfterFunc(s.quitting, func() { stop(context.Canceled) })()
	defer s.config.listen()()
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
	own := s.serveOwn()
	work.Go(func() {
		if err := s.work(ctx); err != nil {
			stop(err)
		}
	})
	<-ctx.Done()
	s.gate.stopping()
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

// work opens the storage, applies the configuration, and scrapes until ctx ends.
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
	s.gate.ready()
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

// externalURL cleans the given URL, or makes one from the address.
func externalURL(text string, addr net.Addr) (*url.URL, error) {
	if text == "" {
		host, port, err := net.SplitHostPort(addr.String())
		if err != nil {
			return nil, err
		}
		// A server bound to loopback is not reached by the machine's name.
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			if host, err = os.Hostname(); err != nil {
				return nil, err
			}
		}
		text = "http://" + net.JoinHostPort(host, port) + "/"
	}
	if strings.Trim(text, `"'`) != text {
		return nil, errors.New("must not begin or end with quotes")
	}
	u, err := parseURL(text)
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimRight(u.Path, "/")
	if u.Path != "" && !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	return u, nil
}

// routePrefix is "" or "/path" without a slash at the end.
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

func corsOrigin(text string) (*regexp.Regexp, error) {
	if text == "" {
		text = ".*"
	}
	re, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return nil, fmt.Errorf("web.cors.origin %q: %w", text, err)
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

// counter reads one of the process' own metrics, 0 if it is not there.
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
