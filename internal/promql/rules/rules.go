package rules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/notifier"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"github.com/prometheus/prometheus/storage"
)

// Options of a Manager. Zero values take the defaults named.
type Options struct {
	OutageTolerance    time.Duration // the state of an alert is restored if the server was down for less than this
	ForGracePeriod     time.Duration // a restored alert is pending for at least this long
	ResendDelay        time.Duration // minimum time between notifications of one alert
	ConcurrentEvals    bool          // evaluate independent rules of a group concurrently
	MaxConcurrentEvals int           // limit of these concurrent evaluations, all groups together; 0: 4

	QueueCapacity  int  // alerts that wait for one Alertmanager; the oldest are dropped; 0: 10,000
	BatchSize      int  // alerts in one request; 0: 256
	DropOnShutdown bool // drop waiting alerts at shutdown instead of sending them

	// how long a shutdown waits for running evaluations, and then for sending alerts; 0: 30 s
	StopTimeout       time.Duration
	DiscoveryInterval time.Duration // at which discovered Alertmanagers are applied; 0: 5 s
}

func (o Options) withDefaults() Options {
	o.MaxConcurrentEvals = cmp.Or(o.MaxConcurrentEvals, 4)
	o.QueueCapacity = cmp.Or(o.QueueCapacity, 10_000)
	o.BatchSize = cmp.Or(o.BatchSize, notifier.DefaultMaxBatchSize)
	o.StopTimeout = cmp.Or(o.StopTimeout, 30*time.Second)
	o.DiscoveryInterval = cmp.Or(o.DiscoveryInterval, 5*time.Second)
	return o
}

// Validate returns all errors of the options.
func (o Options) Validate() error {
	var errs []error
	for _, o := range []struct {
		name     string
		value    any // for the error
		negative bool
	}{
		{"rules.alert.for-outage-tolerance", o.OutageTolerance, o.OutageTolerance < 0},
		{"rules.alert.for-grace-period", o.ForGracePeriod, o.ForGracePeriod < 0},
		{"rules.alert.resend-delay", o.ResendDelay, o.ResendDelay < 0},
		{"rules.max-concurrent-evals", o.MaxConcurrentEvals, o.MaxConcurrentEvals < 0},
		{"alertmanager.notification-queue-capacity", o.QueueCapacity, o.QueueCapacity < 0},
		{"alertmanager.notification-batch-size", o.BatchSize, o.BatchSize < 0},
	} {
		if o.negative {
			errs = append(errs, fmt.Errorf("%s %v is negative", o.name, o.value))
		}
	}
	return errors.Join(errs...)
}

// Deps are the storages and services that a Manager uses.
type Deps struct {
	Engine      promql.QueryEngine
	Parser      parser.Parser
	Queryable   storage.Queryable // for the expressions of rules
	Local       storage.Queryable // for the state of alerts before a restart
	Appendable  storage.Appendable
	ExternalURL *url.URL             // in links of alerts and in templates
	SDMetrics   *discovery.SDMetrics // of discoveries, shared with other discovery managers
	Logger      *slog.Logger
	Registerer  prometheus.Registerer
}

// Manager evaluates rules while Run is running. Create it with New.
type Manager struct {
	opts      Options
	deps      Deps
	logger    *slog.Logger
	groups    *rules.Manager
	files     *loader
	notifier  *notifier.Manager
	discovery *discovery.Manager
	sends     sends
	offset    atomic.Int64 // global.rule_query_offset, in ns

	stopEvals     context.CancelFunc
	stopDiscovery context.CancelFunc

	mu      sync.Mutex // held by Apply
	inForce *Prepared  // the configuration in effect; nil: none
	ran     bool       // Run or Close was called
}

// New creates a manager without rules. Close it if Run is not called.
func New(opts Options, deps Deps) (*Manager, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	m := &Manager{opts: opts, deps: deps, logger: deps.Logger.With("component", "rules"),
		files: &loader{parser: deps.Parser}}
	m.sends.init()
	m.notifier = notifier.NewManager(&notifier.Options{
		QueueCapacity:   opts.QueueCapacity,
		DrainOnShutdown: !opts.DropOnShutdown,
		MaxBatchSize:    opts.BatchSize,
		Do:              m.sends.do,
		Registerer:      deps.Registerer,
	}, model.UTF8Validation, deps.Logger.With("component", "notifier"))
	evals, stopEvals := context.WithCancel(context.Background())
	m.stopEvals = stopEvals
	found, stopDiscovery := context.WithCancel(context.Background())
	m.stopDiscovery = stopDiscovery
	m.discovery = discovery.NewManager(found, deps.Logger.With("component", "discovery of alertmanagers"),
		deps.Registerer, deps.SDMetrics,
		discovery.Name("notify"), discovery.Updatert(opts.DiscoveryInterval))
	if m.discovery == nil {
		stopEvals()
		stopDiscovery()
		return nil, errors.New("failed to create the discovery manager of alertmanagers")
	}
	m.groups = rules.NewManager(&rules.ManagerOptions{
		ExternalURL:            deps.ExternalURL,
		QueryFunc:              rules.EngineQueryFunc(deps.Engine, deps.Queryable),
		NotifyFunc:             rules.SendAlerts(m.notifier, deps.ExternalURL.String()),
		Context:                evals,
		Appendable:             deps.Appendable,
		Queryable:              deps.Local,
		Logger:                 m.logger,
		Registerer:             deps.Registerer,
		OutageTolerance:        opts.OutageTolerance,
		ForGracePeriod:         opts.ForGracePeriod,
		ResendDelay:            opts.ResendDelay,
		GroupLoader:            m.files,
		DefaultRuleQueryOffset: func() time.Duration { return time.Duration(m.offset.Load()) },
		MaxConcurrentEvals:     int64(opts.MaxConcurrentEvals),
		ConcurrentEvalsEnabled: opts.ConcurrentEvals,
		Parser:                 deps.Parser,
	})
	return m, nil
}

// Apply puts a prepared configuration into effect. On an error it puts the previous configuration into effect again.
// Apply(nil) changes nothing. Groups whose rules have not changed keep their state.
func (m *Manager) Apply(next *Prepared) error {
	if next == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.apply(next)
	if err == nil {
		m.inForce = next
		return nil
	}
	if m.inForce != nil {
		if back := m.apply(m.inForce); back != nil {
			err = errors.Join(err, fmt.Errorf("the old rules could not be restored: %w", back))
		}
	}
	return err
}

// apply configures the notifier, then the discovery, then the rules. The notifier must know a section of Alertmanagers
// before the discovery sends it the targets of the section, and before rules send it alerts.
func (m *Manager) apply(p *Prepared) error {
	if err := m.notifier.ApplyConfig(p.cfg); err != nil {
		return fmt.Errorf("alerting configuration: %w", err)
	}
	found := map[string]discovery.Configs{}
	for name, section := range p.cfg.AlertingConfig.AlertmanagerConfigs.ToMap() {
		found[name] = section.ServiceDiscoveryConfigs
	}
	if err := m.discovery.ApplyConfig(found); err != nil {
		return fmt.Errorf("discovery of alertmanagers: %w", err)
	}
	global := p.cfg.GlobalConfig
	m.offset.Store(int64(global.RuleQueryOffset))
	m.files.set(p.files)
	if err := m.groups.Update(time.Duration(global.EvaluationInterval), p.names, global.ExternalLabels,
		m.deps.ExternalURL.String(), nil); err != nil {
		return fmt.Errorf("rules: %w", err)
	}
	return nil
}

// Run evaluates rules and sends alerts until ctx is canceled. Then it waits for running evaluations, for at most
// Options.StopTimeout, and afterwards sends waiting alerts, for at most Options.StopTimeout. Nothing is appended
// after Run has returned. Run always returns nil: a failure of rules or of an Alertmanager must not end other parts
// of the process.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.ran = true
	m.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := m.discovery.Run(); err != nil && !errors.Is(err, context.Canceled) {
			m.logger.Error("The discovery of Alertmanagers has ended", "err", err)
		}
	})
	found, known := make(chan map[string][]*targetgroup.Group), make(chan struct{})
	wg.Go(func() { m.forward(ctx, found, known) })
	wg.Go(func() { m.notifier.Run(found) })
	wg.Go(func() {
		select {
		case <-known:
		case <-time.After(m.opts.DiscoveryInterval):
		case <-ctx.Done():
		}
		m.groups.Run()
	})
	<-ctx.Done()
	late := time.AfterFunc(m.opts.StopTimeout, m.stopEvals)
	m.groups.Stop()
	late.Stop()
	m.stopEvals()
	late = time.AfterFunc(m.opts.StopTimeout, m.sends.cancel)
	m.notifier.Stop()
	m.stopDiscovery()
	wg.Wait()
	m.sends.wait()
	late.Stop()
	m.sends.cancel()
	return nil
}

// forward passes what the discovery finds to the notifier, and closes known as soon as the notifier has Alertmanagers
// of every section, or if none is configured. An alert sent earlier would be lost, and its rule would send it again
// only after Options.ResendDelay: a restart would delay the notification of a firing alert by a minute. The discovery
// passes on all sections at once, also sections without a result yet.
func (m *Manager) forward(ctx context.Context, found chan<- map[string][]*targetgroup.Group, known chan<- struct{}) {
	defer close(found)
	m.mu.Lock()
	waits := m.inForce != nil && len(m.inForce.cfg.AlertingConfig.AlertmanagerConfigs) > 0
	m.mu.Unlock()
	if !waits {
		close(known)
	}
	send := func(groups map[string][]*targetgroup.Group) {
		select {
		case found <- groups:
		case <-ctx.Done():
		}
	}
	for groups := range m.discovery.SyncCh() {
		send(groups)
		if waits && complete(groups) {
			send(groups) // the notifier takes this copy only after the first one is in effect
			close(known)
			waits = false
		}
	}
}

// complete reports whether each section has targets.
func complete(sections map[string][]*targetgroup.Group) bool {
	for _, groups := range sections {
		if len(groups) == 0 {
			return false
		}
	}
	return true
}

// Close releases a manager whose Run was never called.
func (m *Manager) Close() error {
	m.mu.Lock()
	ran := m.ran
	m.ran = true
	m.mu.Unlock()
	if ran {
		return nil
	}
	// Groups wait for the manager to run before they can stop.
	m.stopEvals()
	done := make(chan struct{})
	go func() { defer close(done); m.groups.Run() }()
	m.groups.Stop()
	<-done
	m.notifier.Stop()
	m.stopDiscovery()
	m.sends.cancel()
	return nil
}

// RuleGroups returns the groups, ordered by file and name.
func (m *Manager) RuleGroups() []*rules.Group { return m.groups.RuleGroups() }

// AlertingRules returns the alerting rules of all groups.
func (m *Manager) AlertingRules() []*rules.AlertingRule { return m.groups.AlertingRules() }

// Alertmanagers returns the URLs to which alerts are sent.
func (m *Manager) Alertmanagers() []*url.URL { return m.notifier.Alertmanagers() }

// DroppedAlertmanagers returns the URLs that relabelling has dropped.
func (m *Manager) DroppedAlertmanagers() []*url.URL { return m.notifier.DroppedAlertmanagers() }

// Prepared are the rules and the alerting section of a configuration, read and checked.
type Prepared struct {
	cfg   *config.Config
	names []string // of files, in the order of the configuration
	files map[string]*rulefmt.RuleGroups
}
