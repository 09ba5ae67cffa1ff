package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	httpconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/version"
	"github.com/ferula-io/ferula/metrics"
)

// Scraper scrapes the profiles of discovered targets while Run is running.
type Scraper struct {
	in        *Ingester
	tenant    string
	logger    *slog.Logger
	discovery *discovery.Manager
	cancel    context.CancelFunc
	slots     chan struct{} // limits responses in memory
	scrapes   *metrics.CounterVec

	changed chan struct{} // signals Run that pools has changed
	mu      sync.Mutex
	pools   map[string]*pool
}

// fetchesMax is the maximum of scraped profiles in memory.
const fetchesMax = 16

// NewScraper creates a scraper, which is idle until Run. reg gets the metrics of discovery,
// set the metrics of the scraper; both may be nil.
func NewScraper(in *Ingester, tenant string, logger *slog.Logger, reg prometheus.Registerer,
	set *metrics.Set) (*Scraper, error) {
	if reg == nil {
		reg = prometheus.NewRegistry()
	}
	if set == nil {
		set = metrics.NewSet()
	}
	// Discovery registers metrics with fixed names. The discovery of metric targets has
	// already registered these names.
	prefixed := prometheus.WrapRegistererWithPrefix("ferula_profiles_", reg)
	discoveries, err := discovery.CreateAndRegisterSDMetrics(prefixed)
	if err != nil {
		return nil, fmt.Errorf("service discovery metrics of profiles: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	found := discovery.NewManager(ctx, logger.With("component", "profile discovery"), prefixed, discoveries,
		discovery.Name("profiles"))
	if found == nil {
		cancel()
		return nil, errors.New("failed to create the discovery manager of profiles")
	}
	s := &Scraper{
		in: in, tenant: tenant, logger: logger, discovery: found, cancel: cancel, slots: make(chan struct{}, fetchesMax),
		scrapes: set.NewCounterVec("ferula_profiles_scrapes_total", "Profiles scraped from targets.", "job",
			"profile", "result"),
		changed: make(chan struct{}, 1), pools: map[string]*pool{},
	}
	return s, nil
}

// ApplyConfig applies a new configuration. Unchanged jobs keep running.
func (s *Scraper) ApplyConfig(cfg *Config) error {
	sources := make(map[string]discovery.Configs, len(cfg.Jobs))
	fresh := make(map[string]*pool, len(cfg.Jobs))
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, job := range cfg.Jobs {
		sources[job.JobName] = job.ServiceDiscoveryConfigs
		if old := s.pools[job.JobName]; old != nil && reflect.DeepEqual(old.job, job) {
			fresh[job.JobName] = old
			continue
		}
		client, err := httpconfig.NewClientFromConfig(job.HTTPClientConfig, job.JobName)
		if err != nil {
			return fmt.Errorf("job %q: %w", job.JobName, err)
		}
		list, err := job.profiles()
		if err != nil {
			return err
		}
		fresh[job.JobName] = &pool{scraper: s, job: job, profiles: list, client: client, loops: map[string]*loop{}}
	}
	if err := s.discovery.ApplyConfig(sources); err != nil {
		return fmt.Errorf("service discovery configuration of profiles: %w", err)
	}
	for name, old := range s.pools {
		if fresh[name] != old {
			old.stop()
		}
	}
	s.pools = fresh
	select {
	case s.changed <- struct{}{}:
	default: // already signalled
	}
	return nil
}

// Run scrapes until ctx is canceled and returns after the last profile is ingested.
func (s *Scraper) Run(ctx context.Context) error {
	var running sync.WaitGroup
	var err error
	running.Go(func() {
		if e := s.discovery.Run(); e != nil && !errors.Is(e, context.Canceled) {
			err = fmt.Errorf("discovery of profiles: %w", e)
		}
	})
	var groups map[string][]*targetgroup.Group
	for ctx.Err() == nil {
		select {
		case found := <-s.discovery.SyncCh():
			groups = maps.Clone(found)
		case <-s.changed:
		case <-ctx.Done():
			continue
		}
		s.mu.Lock()
		for name, p := range s.pools {
			p.sync(ctx, groups[name])
		}
		s.mu.Unlock()
	}
	s.cancel()
	s.mu.Lock()
	for _, p := range s.pools {
		p.stop()
	}
	s.mu.Unlock()
	running.Wait()
	return err
}

// Close releases a scraper whose Run was never called.
func (s *Scraper) Close() { s.cancel() }

type pool struct {
	scraper  *Scraper
	job      *JobConfig
	profiles []profileSpec
	client   *http.Client
	loops    map[string]*loop // by target
}

// loop scrapes one target, with one goroutine per profile.
type loop struct {
	cancel  context.CancelFunc
	running sync.WaitGroup
}

func (p *pool) sync(ctx context.Context, groups []*targetgroup.Group) {
	wanted := map[string]*scrape.Target{}
	builder := labels.NewBuilder(labels.EmptyLabels())
	cfg := p.job.scrapeConfig()
	for _, group := range groups {
		targets, failures := scrape.TargetsFromGroup(group, cfg, nil, builder)
		for _, err := range failures {
			p.scraper.logger.Error("Invalid profile target", "job", p.job.JobName, "err", err)
		}
		for _, t := range targets {
			if set := t.Labels(builder); !set.IsEmpty() { // empty: dropped by relabelling
				wanted[t.URL().String()+" "+set.String()] = t
			}
		}
	}
	p.keep(wanted)
	for key, t := range wanted {
		if p.loops[key] != nil {
			continue
		}
		inner, cancel := context.WithCancel(ctx)
		l := &loop{cancel: cancel}
		for _, f := range p.profiles {
			one := newFetcher(p, t, f)
			offset := time.Duration(xxhash.Sum64String(key+f.key) % uint64(p.job.ScrapeInterval))
			l.running.Go(func() { one.run(inner, offset) })
		}
		p.loops[key] = l
	}
}

// keep ends the loops of targets that are not wanted, and waits for them.
func (p *pool) keep(wanted map[string]*scrape.Target) {
	var ended []*loop
	for key, l := range p.loops {
		if wanted[key] == nil {
			l.cancel()
			ended = append(ended, l)
			delete(p.loops, key)
		}
	}
	for _, l := range ended {
		l.running.Wait()
	}
}

// stop ends a pool's loops and waits for them.
func (p *pool) stop() {
	p.keep(nil)
	p.client.CloseIdleConnections()
}

type fetcher struct {
	pool    *pool
	spec    profileSpec
	url     string
	labels  []profilepb.RawLabel
	counted cumulative // for deltas
	failing bool
}

func newFetcher(p *pool, t *scrape.Target, what profileSpec) *fetcher {
	f := &fetcher{pool: p, spec: what}
	u := *t.URL()
	u.Path = strings.TrimRight(u.Path, "/") + what.path
	if what.seconds > 0 {
		query, err := url.ParseQuery(u.RawQuery)
		if err != nil {
			query = url.Values{}
		}
		query.Set("seconds", strconv.Itoa(what.seconds))
		u.RawQuery = query.Encode()
	}
	f.url = u.String()
	f.labels = []profilepb.RawLabel{{Name: profiles.LabelName, Value: what.name}}
	service := ""
	t.LabelsRange(func(l labels.Label) {
		if l.Name == profiles.LabelName {
			return
		}
		if l.Name == profiles.LabelService {
			service = l.Value
		}
		f.labels = append(f.labels, profilepb.RawLabel{Name: l.Name, Value: l.Value})
	})
	if service == "" {
		f.labels = append(f.labels, profilepb.RawLabel{Name: profiles.LabelService, Value: p.job.JobName})
	}
	return f
}

func (f *fetcher) run(ctx context.Context, offset time.Duration) {
	first := time.NewTimer(offset)
	defer first.Stop()
	select {
	case <-first.C:
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(time.Duration(f.pool.job.ScrapeInterval))
	defer tick.Stop()
	for {
		err := f.fetch(ctx)
		if ctx.Err() != nil {
			return
		}
		f.report(err)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// report counts a scrape and logs when a target starts or stops failing.
func (f *fetcher) report(err error) {
	result := "ok"
	if err != nil {
		result = "failed"
	}
	s := f.pool.scraper
	s.scrapes.With(f.pool.job.JobName, f.spec.key, result).Inc()
	switch {
	case err != nil && !f.failing:
		s.logger.Warn("Profile scrape failed", "job", f.pool.job.JobName, "url", f.url, "err", err)
	case err == nil && f.failing:
		s.logger.Info("Profile scrape recovered", "job", f.pool.job.JobName, "url", f.url)
	}
	f.failing = err != nil
}

func (f *fetcher) fetch(ctx context.Context) error {
	s := f.pool.scraper
	start := time.Now()
	timed, cancel := context.WithTimeout(ctx, time.Duration(f.spec.seconds)*time.Second+
		time.Duration(f.pool.job.ScrapeTimeout))
	defer cancel()
	request, err := http.NewRequestWithContext(timed, http.MethodGet, f.url, nil)
	if err != nil {
		return err
	}
	request.Header.Set("User-Agent", version.UserAgent())
	resp, err := f.pool.client.Do(request)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("server returned HTTP status %s", resp.Status)
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-timed.Done():
		return timed.Err()
	}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, int64(s.in.limitsOf(s.tenant).ProfileBytes)+1))
	if err != nil {
		return err
	}
	if f.spec.delta {
		if raw, err = f.delta(raw, start); err != nil {
			return err
		}
	}
	return s.in.Push(ctx, s.tenant, []profilepb.RawProfile{{Labels: f.labels, Raw: raw, TimeNS: start.UnixNano()}})
}

// delta returns the increase since the previous scrape.
func (f *fetcher) delta(raw []byte, at time.Time) ([]byte, error) {
	in := f.pool.scraper.in
	checked := in.decoded.Get().(*pprof.Profile) // enforces the limits before package google/pprof decodes it
	err := checked.Decode(raw, in.limitsOf(f.pool.scraper.tenant).decode())
	in.decoded.Put(checked)
	if err != nil {
		return nil, err
	}
	return f.counted.next(raw, at)
}
