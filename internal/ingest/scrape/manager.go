package scrape

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"reflect"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/scrape"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/logging"
	"github.com/prometheus/prometheus/util/osutil"
	"golang.org/x/sync/errgroup"
)

// Manager scrapes the targets of all jobs. It is safe for concurrent use.
type Manager struct {
	opts    *scrape.Options
	dial    dialer // nil: over the network
	to      storage.AppendableV2
	logger  *slog.Logger
	metrics *metrics
	loops   sync.WaitGroup // all loops that run, so that none outlives run
	watched watched

	mu       sync.Mutex // guards the fields below
	jobs     map[string]*config.ScrapeConfig
	pools    map[string]*pool
	groups   map[string][]*targetgroup.Group
	failures map[string]*logging.JSONFileLogger // of failed scrapes, by file
	seed     uint64                             // makes other replicas scrape at other times
}

func newManager(o *scrape.Options, to storage.AppendableV2, logger *slog.Logger, reg prometheus.Registerer) (
	*Manager, error) {
	metrics, err := newMetrics(to, logger, reg)
	if err != nil {
		return nil, err
	}
	m := &Manager{opts: o, to: to, logger: logger, metrics: metrics, pools: map[string]*pool{}}
	metrics.metadata.TargetsGatherer = m
	m.watched.m = m
	return m, nil
}

// ApplyConfig applies the scrape configurations. A failure log is opened again each time, so that it can be rotated.
func (m *Manager) ApplyConfig(cfg *config.Config) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	list, err := cfg.GetScrapeConfigs()
	if err != nil {
		return err
	}
	jobs, failures := map[string]*config.ScrapeConfig{}, map[string]*logging.JSONFileLogger{}
	for _, job := range list {
		jobs[job.JobName] = job
		file := job.ScrapeFailureLogFile
		if _, ok := failures[file]; ok || file == "" {
			continue
		}
		if failures[file], err = logging.NewJSONFileLogger(file); err != nil {
			delete(failures, file)
			closeLogs(failures)
			return err
		}
	}
	host, err := osutil.GetFQDN()
	if err != nil {
		closeLogs(failures)
		return err
	}
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s%s", host, cfg.GlobalConfig.ExternalLabels.String())
	defer closeLogs(m.failures)
	m.jobs, m.failures, m.seed = jobs, failures, h.Sum64()

	errs := make([]error, len(m.pools))
	var work errgroup.Group
	work.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range slices.Collect(maps.Keys(m.pools)) {
		p, job := m.pools[name], jobs[name]
		if job == nil {
			delete(m.pools, name)
		}
		work.Go(func() error {
			if job == nil {
				p.stop()
				return nil
			}
			p.setFailures(m.failureLog(job))
			if !reflect.DeepEqual(p.config(), job) {
				if errs[i] = p.reload(job); errs[i] != nil {
					m.logger.Error("error reloading scrape pool", "err", errs[i], "scrape_pool", name)
				}
			}
			return nil
		})
	}
	_ = work.Wait()
	if errors.Join(errs...) != nil {
		return errors.New("failed to apply the new configuration")
	}
	return nil
}

// failureLog returns the log of a job's failed scrapes, nil if there is none.
func (m *Manager) failureLog(job *config.ScrapeConfig) slog.Handler {
	if log := m.failures[job.ScrapeFailureLogFile]; log != nil {
		return log
	}
	return nil
}

func closeLogs(logs map[string]*logging.JSONFileLogger) {
	for _, log := range logs {
		_ = log.Close()
	}
}

// run scrapes the targets of the groups that arrive, until the channel is closed. Groups are applied at once at the
// start, then not more often than the reload interval of the options. It returns after the last append.
func (m *Manager) run(found <-chan map[string][]*targetgroup.Group) {
	interval := cmp.Or(time.Duration(m.opts.DiscoveryReloadInterval), 5*time.Second)
	due := time.NewTimer(0)
	defer due.Stop()
	var wait <-chan time.Time // nil: no new groups
	for {
		select {
		case groups, ok := <-found:
			if !ok {
				m.end()
				return
			}
			m.mu.Lock()
			m.groups = groups
			m.mu.Unlock()
			wait = due.C
		case <-wait:
			due.Reset(interval)
			m.reload()
			wait = nil
		}
	}
}

// reload gives each job its targets.
func (m *Manager) reload() {
	m.mu.Lock()
	var wg sync.WaitGroup
	for name, groups := range m.groups {
		p, job := m.pools[name], m.jobs[name]
		if p == nil {
			if job == nil {
				m.logger.Error("error reloading target set", "err", "invalid config id:"+name)
				continue
			}
			m.metrics.pools.Inc()
			var err error
			if p, err = m.newPool(job); err != nil {
				m.metrics.poolsFailed.Inc()
				m.logger.Error("error creating new scrape pool", "err", err, "scrape_pool", name)
				continue
			}
			m.pools[name] = p
		}
		wg.Go(func() { p.sync(groups) })
	}
	m.mu.Unlock()
	wg.Wait()
}

// start runs a loop.
func (m *Manager) start(l *loop) { m.loops.Go(l.run) }

// end stops all loops.
func (m *Manager) end() {
	m.mu.Lock()
	defer m.mu.Unlock()
	var work errgroup.Group
	work.SetLimit(runtime.GOMAXPROCS(0))
	for _, p := range m.pools {
		work.Go(func() error {
			p.stop()
			return nil
		})
	}
	_ = work.Wait()
	m.loops.Wait()
	m.watched.stop()
}

// each calls f for each job that has a pool.
func (m *Manager) each(f func(job string, p *pool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for job, p := range m.pools {
		f(job, p)
	}
}

// TargetsActive returns the scraped targets by job.
func (m *Manager) TargetsActive() map[string][]*scrape.Target {
	active := map[string][]*scrape.Target{}
	m.each(func(job string, p *pool) { active[job] = p.active() })
	return active
}

// TargetsDropped returns the targets that relabeling drops, by job and not more than keep_dropped_targets.
func (m *Manager) TargetsDropped() map[string][]*scrape.Target {
	dropped := map[string][]*scrape.Target{}
	m.each(func(job string, p *pool) { dropped[job], _ = p.droppedTargets() })
	return dropped
}

// TargetsDroppedCounts returns the number of targets that relabeling drops by job.
func (m *Manager) TargetsDroppedCounts() map[string]int {
	counts := map[string]int{}
	m.each(func(job string, p *pool) { _, counts[job] = p.droppedTargets() })
	return counts
}

// ScrapePools returns the names of all jobs whose targets are known; never nil, which would be null in JSON.
func (m *Manager) ScrapePools() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.AppendSeq([]string{}, maps.Keys(m.pools))
}

// ScrapePoolConfig returns the configuration of a job.
func (m *Manager) ScrapePoolConfig(job string) (*config.ScrapeConfig, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p, ok := m.pools[job]; ok {
		return p.config(), nil
	}
	return nil, fmt.Errorf("scrape pool %q not found", job)
}

func (p *pool) config() *config.ScrapeConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cfg
}
