package rules

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/teststorage"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	discovery.RegisterConfig(&lateDiscovery{}) // a configuration is applied only if it can be written as YAML
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
	)
}

// newManager returns a manager on an empty storage, and its configuration with rules and
// an Alertmanager.
func newManager(t *testing.T, opts Options, rules, alertmanager string) (*Manager, *config.Config) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	db := teststorage.New(t)
	t.Cleanup(func() { _ = db.Close() })
	reg := prometheus.NewRegistry()
	sd, err := discovery.CreateAndRegisterSDMetrics(reg)
	if err != nil {
		t.Fatal(err)
	}
	p := parser.NewParser(parser.Options{})
	engine := promql.NewEngine(promql.EngineOpts{Logger: quiet, MaxSamples: 1000, Timeout: time.Minute, Parser: p})
	t.Cleanup(func() { _ = engine.Close() })
	m, err := New(opts, Deps{
		Engine: engine, Parser: p, Queryable: db, Local: db, Appendable: db, ExternalURL: &url.URL{Scheme: "http", Host: "h"},
		SDMetrics: sd, Logger: quiet, Registerer: reg,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules.yml")
	if err := os.WriteFile(file, []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(fmt.Sprintf("global: {evaluation_interval: 50ms}\nrule_files: [%q]\nalerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}\n",
		file, strings.TrimPrefix(alertmanager, "http://")), quiet)
	if err != nil {
		t.Fatal(err)
	}
	return m, cfg
}

func (m *Manager) mustApply(t *testing.T, cfg *config.Config) {
	t.Helper()
	p, err := m.Prepare(cfg)
	if err == nil {
		err = m.Apply(p)
	}
	if err != nil {
		t.Fatal(err)
	}
}

const alwaysFiring = "groups: [{name: a, rules: [{alert: Always, expr: vector(1)}]}]\n"

// run runs a manager until stop is called. stop waits for its end.
func run(t *testing.T, m *Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Error("Run does not end")
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func TestManager_RunEndsAlthoughAnAlertmanagerStalls(t *testing.T) {
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	am := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		once.Do(func() { close(begun) })
		<-release
	}))
	t.Cleanup(func() { close(release); am.Close() })
	m, cfg := newManager(t, Options{DiscoveryInterval: 10 * time.Millisecond, StopTimeout: 50 * time.Millisecond}, alwaysFiring, am.URL)
	cfg.AlertingConfig.AlertmanagerConfigs[0].Timeout = 1 << 50 // of one request
	m.mustApply(t, cfg)
	stop := run(t, m)
	<-begun
	stop()
}

// A request that is running at shutdown is not cut off.
func TestManager_RunWaitsForTheAlertsBeingSent(t *testing.T) {
	begun, release, received := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var once, last sync.Once
	am := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		once.Do(func() { close(begun) })
		<-release
		if r.Context().Err() == nil {
			last.Do(func() { close(received) })
		}
	}))
	t.Cleanup(am.Close)
	m, cfg := newManager(t, Options{DiscoveryInterval: 10 * time.Millisecond}, alwaysFiring, am.URL)
	m.mustApply(t, cfg)
	stop := run(t, m)
	<-begun
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	select {
	case <-stopped:
		t.Error("Run has ended before the alerts were received")
	case <-time.After(200 * time.Millisecond):
	}
	close(release)
	<-stopped
	<-received
}

// Rules begin when the notifier knows the Alertmanagers: the first notification would be lost before, and the next one
// follows after ResendDelay only.
func TestManager_TheFirstAlertIsNotLost(t *testing.T) {
	received := make(chan struct{})
	var once sync.Once
	am := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { once.Do(func() { close(received) }) }))
	t.Cleanup(am.Close)
	m, cfg := newManager(t, Options{ResendDelay: time.Hour}, alwaysFiring, am.URL)
	cfg.GlobalConfig.EvaluationInterval = model.Duration(time.Millisecond)
	m.mustApply(t, cfg)
	stop := run(t, m)
	select {
	case <-received:
	case <-time.After(30 * time.Second):
		t.Error("no notification arrives")
	}
	stop()
}

// The first groups that the discovery passes on have no targets of a section whose discovery takes longer.
func TestManager_TheFirstAlertReachesASectionThatIsDiscoveredLater(t *testing.T) {
	received := make(chan struct{})
	var once sync.Once
	am := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { once.Do(func() { close(received) }) }))
	t.Cleanup(am.Close)
	m, cfg := newManager(t, Options{ResendDelay: time.Hour, DiscoveryInterval: time.Minute}, alwaysFiring, "127.0.0.1:1")
	cfg.GlobalConfig.EvaluationInterval = model.Duration(time.Millisecond)
	late := *cfg.AlertingConfig.AlertmanagerConfigs[0]
	late.ServiceDiscoveryConfigs = discovery.Configs{&lateDiscovery{
		after: m.deps.Registerer.(prometheus.Gatherer), address: strings.TrimPrefix(am.URL, "http://"),
	}}
	cfg.AlertingConfig.AlertmanagerConfigs = append(cfg.AlertingConfig.AlertmanagerConfigs, &late)
	m.mustApply(t, cfg)
	stop := run(t, m)
	select {
	case <-received:
	case <-time.After(30 * time.Second):
		t.Error("no notification arrives")
	}
	stop()
}

// lateDiscovery finds its address after groups were passed on without it.
type lateDiscovery struct {
	after   prometheus.Gatherer
	address string
}

func (*lateDiscovery) Name() string { return "late" }

func (*lateDiscovery) NewDiscovererMetrics(prometheus.Registerer,
	discovery.RefreshMetricsInstantiator) discovery.DiscovererMetrics {
	return &discovery.NoopDiscovererMetrics{}
}

func (d *lateDiscovery) NewDiscoverer(discovery.DiscovererOptions) (discovery.Discoverer, error) {
	return d, nil
}

func (d *lateDiscovery) Run(ctx context.Context, up chan<- []*targetgroup.Group) {
	for !d.passedOn() {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
	select {
	case <-ctx.Done():
	case up <- []*targetgroup.Group{{Targets: []model.LabelSet{{model.AddressLabel: model.LabelValue(d.address)}}}}:
	}
}

func (d *lateDiscovery) passedOn() bool {
	families, err := d.after.Gather()
	for _, f := range families {
		if f.GetName() == "prometheus_sd_updates_total" {
			return f.GetMetric()[0].GetCounter().GetValue() > 0
		}
	}
	return err != nil
}

func TestManager_CloseWithoutRun(t *testing.T) {
	m, cfg := newManager(t, Options{}, alwaysFiring, "127.0.0.1:1")
	m.mustApply(t, cfg)
	for range 2 {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := m.Apply(nil); err != nil {
		t.Error(err)
	}
}

// A change of a file after Prepare has no effect before the next Prepare.
func TestManager_ApplyUsesWhatPrepareHasRead(t *testing.T) {
	m, cfg := newManager(t, Options{}, alwaysFiring, "127.0.0.1:1")
	t.Cleanup(func() { _ = m.Close() })
	p, err := m.Prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cfg.RuleFiles[0], []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Apply(p); err != nil || len(m.RuleGroups()) != 1 || len(m.AlertingRules()) != 1 {
		t.Error(err, m.RuleGroups())
	}
	if _, err := m.Prepare(cfg); err == nil || !strings.Contains(err.Error(), cfg.RuleFiles[0]) {
		t.Error(err)
	}
	if got := m.RuleGroups(); len(got) != 1 {
		t.Errorf("groups are %v", got)
	}
}

func TestOptions_ValidateNamesEveryFault(t *testing.T) {
	err := Options{OutageTolerance: -1, ForGracePeriod: -1, ResendDelay: -1, MaxConcurrentEvals: -1, QueueCapacity: -1, BatchSize: -1}.Validate()
	if err == nil || strings.Count(err.Error(), "is negative") != 6 {
		t.Error(err)
	}
}
