package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	codec "github.com/ferula-io/ferula/internal/codec/pprof"
	"github.com/ferula-io/ferula/internal/codec/profilepb"
	ingest "github.com/ferula-io/ferula/internal/ingest/profile"
	"github.com/ferula-io/ferula/internal/query/exemplar"
	query "github.com/ferula-io/ferula/internal/query/profile"
	"github.com/ferula-io/ferula/internal/series/profiles"
	store "github.com/ferula-io/ferula/internal/store/profile"
	"github.com/ferula-io/ferula/internal/wire/profileapi"
	"github.com/ferula-io/ferula/metrics"
)

// ProfilesOptions are about the profile lane of serve.
type ProfilesOptions struct {
	ConfigFile string        // targets whose profiles are fetched; "": none
	Store      store.Options // its folder is that of the metrics unless it says another
	Query      query.Options
	Limits     ingest.Limits
	API        profileapi.Options
	Self       bool // profile this process

	SingleTenant bool // every request is the anonymous tenant's, whatever X-Scope-OrgID says
	Every        time.Duration

	BucketCacheBytes int64 // of blocks in the bucket, half for their indexes; 0: 256 MiB
}

// tenantOf reads the tenant of a request.
func (o ProfilesOptions) tenantOf() ingest.Tenant {
	if o.SingleTenant {
		return profileapi.Anonymous
	}
	return profileapi.TenantOf
}

// profileLane takes profiles in, keeps them, and answers for them.
type profileLane struct {
	logger   *slog.Logger
	store    *store.Store
	ingester *ingest.Ingester
	engine   *query.Engine
	api      *profileapi.Server
	uploads  http.Handler // POST /ingest
	self     *ingest.Self // nil: this process is not profiled

	file    string          // of config
	config  *ingest.Config  // to be applied first
	scraper *ingest.Scraper // nil: no targets are fetched

	fault     atomic.Pointer[error] // why the store could not be opened; nil: it is open, or not yet
	available *metrics.Gauge
}

// newProfiles builds the lane; nothing is opened yet.
func (s *Serve) newProfiles() (err error) {
	opts, logger := s.opts.Profiles, s.opts.Logger.With("component", "profiles")
	if opts.Store.Dir == "" {
		opts.Store.Dir = s.opts.Store.Dir
	}
	s.readShipped(&opts)
	l := &profileLane{logger: logger, available: s.reg.gauge("ferula_profiles_available", "Whether the profile store is open. While it is 0 profiles are refused with status 503 and metrics are served.")}
	if l.store, err = store.New(opts.Store, logger, s.reg.own); err != nil {
		return fmt.Errorf("profile storage options: %w", err)
	}
	s.profiles = l
	if l.ingester, err = ingest.New(ingest.Options{Limits: opts.Limits}, l.store, logger, s.reg.own); err != nil {
		return err
	}
	opts.Query.Logger, opts.Query.Metrics = logger, s.reg.own
	l.engine = query.New(opts.Query, l.store)
	opts.API.Code, opts.API.Bodies, opts.API.PushDisabled = profileCode, s.bodies, s.opts.Receive.ProfilesOff
	opts.API.Tenant = opts.tenantOf()
	l.api = profileapi.New(opts.API, l.ingester, l.engine)
	if l.uploads = l.ingester.Handler(opts.tenantOf(), s.bodies); s.opts.Receive.ProfilesOff {
		l.uploads = switchedOff("profiles", "--profiles.enable-receiver")
	}
	if opts.Self {
		own := ingest.SelfOptions{Every: opts.Every, Tenant: profileapi.AnonymousTenant, Labels: []profilepb.RawLabel{{Name: "version", Value: Version}}}
		l.self = ingest.NewSelf(own, l.ingester, logger)
		s.reg.exemplar = l.exemplar
	}
	if l.file = opts.ConfigFile; l.file == "" {
		return nil
	}
	if l.config, err = ingest.LoadConfig(l.file); err != nil {
		return err
	}
	l.scraper, err = ingest.NewScraper(l.ingester, profileapi.AnonymousTenant, logger, s.reg, s.reg.own)
	return err
}

// load reads the configuration anew; nil if there is none. apply takes it.
func (l *profileLane) load() (*ingest.Config, error) {
	if l.scraper == nil {
		return nil, nil
	}
	return ingest.LoadConfig(l.file)
}

// apply takes a configuration as a whole or not at all.
func (l *profileLane) apply(cfg *ingest.Config) error {
	if l.scraper == nil || l.fault.Load() != nil {
		return nil
	}
	return l.scraper.ApplyConfig(cfg)
}

// profileCode says which of Connect's codes an error of the way in has.
func profileCode(err error) connect.Code {
	var limit *ingest.LimitError
	switch {
	case errors.As(err, &limit) && limit.Later():
		return connect.CodeResourceExhausted
	case errors.As(err, &limit), errors.Is(err, codec.ErrCorrupt), errors.Is(err, codec.ErrLimit):
		return connect.CodeInvalidArgument
	}
	return connect.CodeUnknown
}

// open opens the blocks and replays the logs. A store that cannot be opened is logged
// and told by every request for profiles; metrics are served without it.
func (l *profileLane) open() {
	err := l.store.Open()
	if err == nil {
		l.available.Set(1)
		return
	}
	if e := l.store.Close(); e != nil { // what was opened before the fault
		err = errors.Join(err, e)
	}
	l.fault.Store(&err)
	l.logger.Error("The profile store cannot be opened; profiles are refused until a restart opens it, metrics are served", "err", err)
}

// serving tells whether requests for profiles are answered.
func (l *profileLane) serving() bool { return l.fault.Load() == nil }

// note is what readiness says of profiles.
func (l *profileLane) note() string {
	if fault := l.fault.Load(); fault != nil {
		return fmt.Sprintf("Profiles are not available: %v\n", *fault)
	}
	return ""
}

// flames are found while there is a store.
type flames struct {
	lane   *profileLane
	finder *exemplar.Finder
}

// Find implements api.Flames.
func (f flames) Find(ctx context.Context, r exemplar.Request) (*exemplar.Result, error) {
	if fault := f.lane.fault.Load(); fault != nil {
		return nil, fmt.Errorf("%w: %w", profiles.ErrUnavailable, *fault)
	}
	return f.finder.Find(ctx, r)
}

// guard refuses requests for profiles while there is no store.
func (l *profileLane) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := l.fault.Load(); fault != nil {
			http.Error(w, fmt.Sprintf("profiles are not available: %v", *fault), http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// run profiles this process and fetches targets until ctx ends, and returns once
// the last profile is kept.
func (l *profileLane) run(ctx context.Context) {
	if !l.serving() {
		return
	}
	var running sync.WaitGroup
	if l.self != nil {
		running.Go(func() { l.self.Run(ctx) })
	}
	if l.scraper != nil {
		running.Go(func() {
			if err := l.scraper.Run(ctx); err != nil {
				l.logger.Error("Profiles are not fetched any more", "err", err)
			}
		})
	}
	running.Wait()
}

func (l *profileLane) close() error {
	if l == nil {
		return nil
	}
	if l.scraper != nil {
		l.scraper.Close()
	}
	return l.store.Close()
}

// exemplar leads from a request to its trace and to the slice of CPU in which it
// was answered.
func (l *profileLane) exemplar(r *http.Request) []string {
	lset := traceOf(r)
	if id, ok := l.self.Current(); ok {
		lset = append(lset, "profile_id", id.String())
	}
	return lset
}

// register adds the lane's endpoints.
func (l *profileLane) register(mux *http.ServeMux, prefix string, ready, foreign func(http.Handler) http.Handler) {
	wrap := func(name string, h http.Handler) http.Handler {
		if h = l.guard(h); strings.HasPrefix(name, "/push.") {
			h = foreign(h)
		}
		return ready(h)
	}
	l.api.Register(mux, prefix, wrap)
	mux.Handle("POST "+prefix+"/ingest", ready(foreign(l.guard(l.uploads))))
	if l.self != nil {
		// More exact than the route of operational, which takes every role's.
		mux.HandleFunc("GET "+prefix+"/debug/pprof/profile", l.self.ServeCPU)
	}
}

// labelled has the samples of own CPU say which endpoint they belong to, so that a
// flame graph can be had of one.
func (l *profileLane) labelled(mux *http.ServeMux) http.Handler {
	if l.self == nil {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		pprof.Do(r.Context(), pprof.Labels("handler", pattern[strings.IndexByte(pattern, ' ')+1:]), func(ctx context.Context) {
			inner := r.WithContext(ctx)
			mux.ServeHTTP(w, inner)
			r.Pattern = inner.Pattern // whoever counts requests looks there
		})
	})
}
