package scrape

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/scrape"
)

// pool scrapes the targets of one job, each in a loop.
type pool struct {
	m       *Manager
	logger  *slog.Logger
	ctx     context.Context // of the loops, ends after the last scrape
	cancel  context.CancelFunc
	symbols *labels.SymbolTable
	seed    uint64 // of the manager when the pool was made

	change sync.Mutex // one sync, reload or stop at a time; guards clients
	client *client
	socket map[string]*client // clients of targets behind a Unix socket, by its path

	mu           sync.Mutex // guards the fields below
	cfg          *config.ScrapeConfig
	loops        map[uint64]*loop // by the hash of the target
	dropped      []*scrape.Target // not more than keep_dropped_targets
	droppedCount int
	failures     *slog.Logger
}

// newPool makes a pool without targets. The caller has the lock of the manager.
func (m *Manager) newPool(cfg *config.ScrapeConfig) (*pool, error) {
	c, err := m.jobClient(cfg)
	if err != nil {
		return nil, err
	}
	p := &pool{m: m, logger: m.logger.With("scrape_pool", cfg.JobName), symbols: labels.NewSymbolTable(), seed: m.seed,
		client: c, socket: map[string]*client{}, cfg: cfg, loops: map[uint64]*loop{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.setFailures(m.failureLog(cfg))
	m.metrics.poolTargetLimit.WithLabelValues(cfg.JobName).Set(float64(cfg.TargetLimit))
	return p, nil
}

func (m *Manager) jobClient(cfg *config.ScrapeConfig) (*client, error) {
	if _, err := config.ToEscapingScheme(cfg.MetricNameEscapingScheme, cfg.MetricNameValidationScheme); err != nil {
		return nil, fmt.Errorf("invalid metric name escaping scheme, %w", err)
	}
	return newClient(cfg, m.dial, "")
}

// setFailures sets where failed scrapes are logged; nil: nowhere.
func (p *pool) setFailures(log slog.Handler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failures = nil
	if log != nil {
		p.failures = slog.New(log).With("job_name", p.cfg.JobName)
	}
	for _, l := range p.loops {
		l.logFailures(p.failures)
	}
}

func (l *loop) logFailures(log *slog.Logger) {
	if log != nil {
		log = log.With("target", l.target.String())
	}
	l.failures.Store(log)
}

// newLoop makes the loop of a target. The caller has both locks.
func (p *pool) newLoop(t *scrape.Target, hash uint64, c *cache) *loop {
	cfg := p.cfg
	l := &loop{stopped: make(chan struct{}), server: p.ctx, target: t, hash: hash ^ p.seed, cfg: cfg, opts: p.m.opts,
		metrics: p.m.metrics, logger: p.logger.With("target", t.String()), symbols: p.symbols, to: p.m.to, cache: c,
		nativeHistograms: boolLabel(t, "__scrape_native_histograms__", cfg.ScrapeNativeHistogramsEnabled()),
		keepClassic:      boolLabel(t, "__always_scrape_classic_histograms__", cfg.AlwaysScrapeClassicHistogramsEnabled()),
		convertClassic:   boolLabel(t, "__convert_classic_histograms_to_nhcb__", cfg.ConvertClassicHistogramsToNHCBEnabled()),
	}
	l.ctx, l.cancel = context.WithCancel(p.ctx)
	// Relabeling may change them; a target with labels that are none is not made.
	l.interval = duration(t, model.ScrapeIntervalLabel, cfg.ScrapeInterval)
	l.timeout = duration(t, model.ScrapeTimeoutLabel, cfg.ScrapeTimeout)
	l.fetcher = newFetcher(t, p.clientOf(t), cfg, p.m.opts, l.timeout, p.m.metrics, p.logger)
	l.logFailures(p.failures)
	t.SetMetadataStore(&c.meta)
	return l
}

func boolLabel(t *scrape.Target, name string, otherwise bool) bool {
	if v, err := strconv.ParseBool(t.GetValue(name)); err == nil {
		return v
	}
	return otherwise
}

func duration(t *scrape.Target, name string, otherwise model.Duration) time.Duration {
	if d, err := model.ParseDuration(t.GetValue(name)); err == nil {
		return time.Duration(d)
	}
	return time.Duration(otherwise)
}

// clientOf returns the client of a target. Each Unix socket has its own: a client keeps connections by address.
func (p *pool) clientOf(t *scrape.Target) *client {
	path := t.GetValue(scrape.UnixSocketLabel)
	if path == "" {
		return p.client
	}
	if client, ok := p.socket[path]; ok {
		return client
	}
	c, err := newClient(p.cfg, p.m.dial, path)
	if err != nil { // although the client of the pool could be made: scrape nothing rather than another address
		p.logger.Error("Failed to create unix socket scrape client", "socket_path", path, "err", err)
		err = fmt.Errorf("creating unix socket scrape client for %q: %w", path, err)
		c = &client{Client: &http.Client{Transport: failing{err}}}
	}
	p.socket[path] = c
	return c
}

type failing struct{ err error }

func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.err }

// sync makes the targets of the groups the targets of the pool. It returns after the last scrape of targets that are
// gone.
func (p *pool) sync(groups []*targetgroup.Group) {
	p.change.Lock()
	defer p.change.Unlock()
	start := time.Now()
	found, dropped, droppedCount := p.targets(groups)

	p.mu.Lock()
	p.dropped, p.droppedCount = dropped, droppedCount
	var started, gone []*loop
	for hash, f := range found {
		if l, ok := p.loops[hash]; ok {
			l.target.SetScrapeConfig(p.cfg, f.labels, f.group) // the page shows the labels before relabeling
			continue
		}
		l := p.newLoop(f.Target, hash, newCache())
		p.loops[hash] = l
		started = append(started, l)
	}
	sockets := map[string]bool{}
	for hash, l := range p.loops {
		if _, ok := found[hash]; !ok {
			gone = append(gone, l)
			delete(p.loops, hash)
			continue
		}
		sockets[l.target.GetValue(scrape.UnixSocketLabel)] = true
	}
	for path, client := range p.socket {
		if !sockets[path] {
			client.CloseIdleConnections()
			delete(p.socket, path)
		}
	}
	refusal := p.overLimit()
	for _, l := range p.loops {
		l.refuse(refusal)
	}
	p.mu.Unlock()

	job := p.cfg.JobName
	p.m.metrics.poolTargets.WithLabelValues(job).Set(float64(len(found)))
	p.m.metrics.poolSymbols.WithLabelValues(job).Set(float64(p.symbols.Len()))
	for _, l := range started {
		p.m.start(l)
	}
	// A target that comes and goes could otherwise be scraped by two loops at once.
	stopAll(gone)
	p.m.metrics.syncLength.WithLabelValues(job).Observe(time.Since(start).Seconds())
	p.m.metrics.syncLengthHistogram.WithLabelValues(job).Observe(time.Since(start).Seconds())
	p.m.metrics.syncs.WithLabelValues(job).Inc()
}

// foundTarget is a target and its labels before relabeling.
type foundTarget struct {
	*scrape.Target
	labels, group model.LabelSet
}

// targets returns the targets of groups by their hashes, and those that relabeling drops.
func (p *pool) targets(groups []*targetgroup.Group) (found map[uint64]foundTarget, dropped []*scrape.Target, n int) {
	found, dropped = map[uint64]foundTarget{}, []*scrape.Target{}
	b := labels.NewBuilderWithSymbolTable(p.symbols)
	for _, g := range groups {
		failed := p.m.metrics.syncFailed.WithLabelValues(p.cfg.JobName)
		for i, of := range g.Targets {
			set, err := scrape.PopulateLabels(b, p.cfg, of, g.Labels)
			if err != nil {
				p.logger.Error("Creating target failed", "err", fmt.Errorf("instance %d in group %s: %w", i, g, err))
				failed.Inc()
				continue
			}
			t := scrape.NewTarget(set, p.cfg, of, g.Labels)
			public := false
			t.LabelsRange(func(labels.Label) { public = true })
			if public {
				// Of equal targets the last one counts: the page shows its labels before relabeling.
				found[targetHash(set, t)] = foundTarget{t, of, g.Labels}
				continue
			}
			if p.cfg.KeepDroppedTargets == 0 || uint(len(dropped)) < p.cfg.KeepDroppedTargets {
				dropped = append(dropped, t)
			}
			n++
		}
	}
	return found, dropped, n
}

// targetHash is the library's hash of a target. It decides when in the interval the target is scraped.
func targetHash(set labels.Labels, t *scrape.Target) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%016d%s", set.Hash(), t.URL())
	return h.Sum64()
}

// overLimit returns an error if there are too many targets.
func (p *pool) overLimit() error {
	if n, limit := len(p.loops), int(p.cfg.TargetLimit); limit > 0 && n > limit {
		p.m.metrics.targetLimit.Inc()
		return fmt.Errorf("target_limit exceeded (number of targets: %d, limit: %d)", n, limit)
	}
	return nil
}

// reload gives each target a loop with the new configuration. It returns after the last scrapes with the old one.
func (p *pool) reload(cfg *config.ScrapeConfig) error {
	p.change.Lock()
	defer p.change.Unlock()
	start := time.Now()
	p.m.metrics.reloads.Inc()
	to, err := p.m.jobClient(cfg)
	if err != nil {
		p.m.metrics.reloadsFailed.Inc()
		return err
	}
	was := append(slices.Collect(maps.Values(p.socket)), p.client)
	p.mu.Lock()
	keep := reflect.DeepEqual(onlySeries(p.cfg), onlySeries(cfg))
	p.cfg, p.client, p.socket = cfg, to, map[string]*client{}
	p.m.metrics.poolTargetLimit.WithLabelValues(cfg.JobName).Set(float64(cfg.TargetLimit))
	refusal := p.overLimit()
	var wg sync.WaitGroup
	for hash, old := range p.loops {
		c := newCache()
		if keep {
			old.noStaleness.Store(true)
			c = old.cache
		}
		l := p.newLoop(old.target, hash, c)
		l.refuse(refusal)
		p.loops[hash] = l
		wg.Go(func() {
			old.stop()
			p.m.start(l)
		})
	}
	p.mu.Unlock()
	wg.Wait()
	for _, c := range was {
		c.CloseIdleConnections()
	}
	interval := time.Duration(cfg.ScrapeInterval).String()
	p.m.metrics.reloadLength.WithLabelValues(interval).Observe(time.Since(start).Seconds())
	return nil
}

// onlySeries returns what decides about the series of a page.
func onlySeries(c *config.ScrapeConfig) config.ScrapeConfig {
	s := *c
	s.ScrapeInterval, s.ScrapeTimeout, s.SampleLimit = 0, 0, 0
	s.HTTPClientConfig = commonconfig.HTTPClientConfig{}
	return s
}

// stop ends all loops and returns after their last scrapes.
func (p *pool) stop() {
	p.change.Lock()
	defer p.change.Unlock()
	p.mu.Lock()
	var loops []*loop
	for hash, l := range p.loops {
		loops = append(loops, l)
		delete(p.loops, hash)
	}
	p.mu.Unlock()
	stopAll(loops)
	p.cancel()
	p.client.CloseIdleConnections()
	for _, c := range p.socket {
		c.CloseIdleConnections()
	}
	p.m.metrics.forget(p.cfg.JobName)
}

func stopAll(loops []*loop) {
	for _, l := range loops {
		l.cancel()
	}
	for _, l := range loops {
		<-l.stopped
	}
}

func (p *pool) active() []*scrape.Target {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []*scrape.Target
	for _, l := range p.loops {
		list = append(list, l.target)
	}
	return list
}

func (p *pool) droppedTargets() ([]*scrape.Target, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.dropped, p.droppedCount
}
