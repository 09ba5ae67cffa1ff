package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/profiles"
	profileapi "github.com/ferula-io/ferula/internal/profiles/api"
	"github.com/ferula-io/ferula/internal/profiles/ingest"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/query"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/version"
	"github.com/ferula-io/ferula/metrics"
)

// ProfilesOptions configure the profiles of `ferula serve`.
type ProfilesOptions struct {
	ConfigFile string        // scrape configuration of profile targets; "": none
	Store      store.Options // Dir defaults to the data directory of the metrics
	Query      query.Options
	Limits     ingest.Limits
	API        profileapi.Options
	Self       bool // record profiles of this process

	SingleTenant bool          // ignore X-Scope-OrgID, all requests are of the anonymous tenant
	Every        time.Duration // interval of Self

	BucketCache ProfileCacheOptions // for blocks in the bucket
}

// tenantOf returns the function that reads the tenant of a request.
func (o ProfilesOptions) tenantOf() ingest.Tenant {
	if o.SingleTenant {
		return profileapi.Anonymous
	}
	return profileapi.TenantOf
}

// profileService ingests, stores and queries profiles.
type profileService struct {
	logger   *slog.Logger
	store    *store.Store
	ingester *ingest.Ingester
	engine   *query.Engine
	api      *profileapi.Server
	uploads  http.Handler // POST /ingest
	otlp     *ingest.OTLPServer
	exports  http.Handler // POST ingest.OTLPPath
	self     *ingest.Self // nil: this process records no profiles of itself

	file    string          // path of the scrape configuration
	config  *ingest.Config  // as read by newProfiles, applied first
	scraper *ingest.Scraper // nil: no targets are scraped

	singleTenant bool // all requests are of the anonymous tenant

	fault     atomic.Pointer[error] // why the store could not be opened; nil: it is open or not opened yet
	available *metrics.Gauge
}

// newProfiles builds the profile service. It opens no file of the store.
func (s *Serve) newProfiles() (err error) {
	opts, logger := s.opts.Profiles, s.opts.Logger.With("component", "profiles")
	opts.Store.Dir = cmp.Or(opts.Store.Dir, s.opts.Store.Dir)
	s.shipping.ReadProfiles(&opts.Store, opts.BucketCache, s.reg.Own)
	l := &profileService{logger: logger, singleTenant: opts.SingleTenant,
		available: s.reg.Gauge("ferula_profiles_available",
			"Whether the profile store is open. At 0, requests for profiles get status 503 while metrics are served.")}
	if l.store, err = store.New(opts.Store, logger, s.reg.Own); err != nil {
		return err
	}
	s.profiles = l
	s.shipping.SkipReplaced(l.replaced)
	if l.ingester, err = ingest.New(ingest.Options{Limits: opts.Limits, DropLabels: opts.Store.DropLabels}, l.store,
		logger, s.reg.Own); err != nil {
		return err
	}
	opts.Query.Logger, opts.Query.Metrics = logger, s.reg.Own
	l.engine = query.New(opts.Query, l.store)
	opts.API.Bodies, opts.API.PushDisabled = s.bodies, s.opts.Receive.ProfilesOff
	opts.API.Tenant = opts.tenantOf()
	l.api = profileapi.New(opts.API, l.ingester, l.engine)
	l.otlp = l.ingester.NewOTLPServer(ingest.OTLPOptions{
		Tenant: opts.tenantOf(), Bodies: s.bodies, BytesMax: opts.API.BodyMaxBytes,
		BytesFlag: opts.API.Flags.Of("BodyMaxBytes"), Disabled: s.opts.Receive.ProfilesOff,
	})
	l.exports = l.otlp
	if l.uploads = l.ingester.Handler(opts.tenantOf(), s.bodies); s.opts.Receive.ProfilesOff {
		l.uploads = switchedOff("profile", "--profiles.enable-receiver")
		l.exports = l.uploads
	}
	if opts.Self {
		own := ingest.SelfOptions{Every: opts.Every, Tenant: profileapi.AnonymousTenant,
			Labels: []profilepb.RawLabel{{Name: "version", Value: version.Current().Version}}}
		l.self = ingest.NewSelf(own, l.ingester, logger)
		s.reg.Exemplar = l.exemplar
	}
	if l.file = opts.ConfigFile; l.file == "" {
		return nil
	}
	if l.config, err = ingest.LoadConfig(l.file); err != nil {
		return hint.Invalid("profiles.config-file", err)
	}
	l.ingester.Configure(l.config)
	l.scraper, err = ingest.NewScraper(l.ingester, profileapi.AnonymousTenant, logger, s.reg, s.reg.Own)
	return err
}

// replaced reports whether another block in the bucket has the rows of a block on disk. If the store could not be
// opened, the bucket is not listed and no block is known to be replaced.
func (l *profileService) replaced(tenant string, id ulid.ULID) (bool, error) {
	if !l.serving() {
		return false, nil
	}
	return l.store.Replaced(tenant, id)
}

// load reads the scrape configuration again; nil if there is none.
func (l *profileService) load() (*ingest.Config, error) {
	if l.scraper == nil {
		return nil, nil
	}
	return ingest.LoadConfig(l.file)
}

// configure applies the sections that concern all profiles, scraped and pushed. It cannot
// fail.
func (l *profileService) configure(cfg *ingest.Config) {
	if l.scraper != nil {
		l.ingester.Configure(cfg)
		l.warnOfUnusedLimits(cfg)
	}
}

// warnOfUnusedLimits logs the tenants that have limits although no request can belong to them.
func (l *profileService) warnOfUnusedLimits(cfg *ingest.Config) {
	if !l.singleTenant {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Limits)) {
		if name != profileapi.AnonymousTenant {
			l.logger.Warn("Limits of a tenant are ignored without --profiles.multitenancy: every request belongs to the "+
				"tenant anonymous", "tenant", name)
		}
	}
}

// apply applies a scrape configuration completely or, with an error, not at all.
func (l *profileService) apply(cfg *ingest.Config) error {
	if l.scraper == nil || l.fault.Load() != nil {
		return nil
	}
	return l.scraper.ApplyConfig(cfg)
}

// open opens the blocks and replays the WALs. If that fails, the error is logged and
// returned by every request for profiles; metrics are served regardless.
func (l *profileService) open(context.Context) error {
	err := l.store.Open()
	if err == nil {
		l.available.Set(1)
		l.warnOfHidden()
		return nil
	}
	if e := l.store.Close(); e != nil { // releases what was opened before the failure
		err = errors.Join(err, e)
	}
	l.fault.Store(&err)
	l.logger.Error("Failed to open the profile store; requests for profiles fail until a restart opens it", "err", err)
	return nil
}

// warnOfHidden logs which tenants have profiles that no request can read.
func (l *profileService) warnOfHidden() {
	if !l.singleTenant {
		return
	}
	hidden := slices.DeleteFunc(l.store.Tenants(), func(name string) bool { return name == profileapi.AnonymousTenant })
	if n := len(hidden); n > 0 {
		l.logger.Warn("Stored profiles of tenants other than anonymous are returned only with --profiles.multitenancy",
			"tenants", n, "first", hidden[0])
	}
}

// serving reports whether requests for profiles are served.
func (l *profileService) serving() bool { return l.fault.Load() == nil }

// note returns the lines about profiles in the readiness response.
func (l *profileService) note() string {
	if fault := l.fault.Load(); fault != nil {
		return fmt.Sprintf("Profiles are not available: %v\n", *fault)
	}
	return ""
}

// flames implements api.Flames. It returns ErrUnavailable if the store is not open.
type flames struct {
	profiles *profileService
	finder   *query.ExemplarFinder
}

// Find implements api.Flames.
func (f flames) Find(ctx context.Context, r profiles.ExemplarRequest) (*profiles.ExemplarResult, error) {
	if fault := f.profiles.fault.Load(); fault != nil {
		return nil, fmt.Errorf("%w: %w", profiles.ErrUnavailable, *fault)
	}
	return f.finder.Find(ctx, r)
}

// guard responds with status 503 if the store could not be opened.
func (l *profileService) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if fault := l.fault.Load(); fault != nil {
			http.Error(w, fmt.Sprintf("profiles are not available: %v", *fault), http.StatusServiceUnavailable)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// run records profiles of this process and scrapes targets until ctx is canceled. It
// returns after the last profile is stored.
func (l *profileService) run(ctx context.Context) error {
	if !l.serving() {
		return nil
	}
	var running sync.WaitGroup
	if l.self != nil {
		running.Go(func() { l.self.Run(ctx) })
	}
	if l.scraper != nil {
		running.Go(func() {
			if err := l.scraper.Run(ctx); err != nil {
				l.logger.Error("Profile scraping stopped", "err", err)
			}
		})
	}
	running.Wait()
	return nil
}

func (l *profileService) close() error {
	if l.scraper != nil {
		l.scraper.Close()
	}
	return l.store.Close()
}

// exemplar returns the exemplar labels of a request: its trace ID and the ID of the CPU
// profile that was being recorded when it was served.
func (l *profileService) exemplar(r *http.Request) []string {
	lset := telemetry.TraceLabels(r)
	if id, ok := l.self.Current(); ok {
		lset = append(lset, "profile_id", id.String())
	}
	return lset
}

// register adds the HTTP endpoints of profiles. ready wraps handlers that need the storage. foreign
// wraps receivers, because a web page of another origin must not push profiles.
func (l *profileService) register(mux *http.ServeMux, prefix string, ready, foreign func(http.Handler) http.Handler) {
	wrap := func(name string, h http.Handler) http.Handler {
		if h = l.guard(h); strings.HasPrefix(name, "/push.") {
			h = foreign(h)
		}
		return ready(h)
	}
	l.api.Register(mux, prefix, wrap)
	mux.Handle("POST "+prefix+"/ingest", ready(foreign(l.guard(l.uploads))))
	mux.Handle("POST "+prefix+ingest.OTLPPath, ready(foreign(l.guard(l.exports))))
	if l.self != nil {
		// This pattern with a method takes precedence over the pattern of RegisterDebugEndpoints.
		mux.HandleFunc("GET "+prefix+"/debug/pprof/profile", l.self.ServeCPU)
	}
}

// withPprofLabels adds the pprof label "handler" to the CPU samples of a request, so
// that a flame graph can be selected by endpoint.
func (l *profileService) withPprofLabels(mux *http.ServeMux) http.Handler {
	if l.self == nil {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := mux.Handler(r)
		pprof.Do(r.Context(), pprof.Labels("handler", pattern[strings.IndexByte(pattern, ' ')+1:]),
			func(ctx context.Context) {
				inner := r.WithContext(ctx)
				mux.ServeHTTP(w, inner)
				r.Pattern = inner.Pattern // read by telemetry.Registry
			})
	})
}
