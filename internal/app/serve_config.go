package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/util/logging"

	"github.com/ferula-io/ferula/internal/hint"
	"github.com/ferula-io/ferula/internal/ingest/remotesend"
	"github.com/ferula-io/ferula/internal/ingest/scrape"
	"github.com/ferula-io/ferula/internal/process"
	"github.com/ferula-io/ferula/internal/profiles/ingest"
	"github.com/ferula-io/ferula/internal/promql/rules"
	"github.com/ferula-io/ferula/internal/redact"
	"github.com/ferula-io/ferula/internal/tsdb"
	"github.com/ferula-io/ferula/metrics"
)

// liveConfig holds the current configuration and is the only code that changes it.
type liveConfig struct {
	serve    *Serve
	defaults scrape.Defaults // from flags, for settings that the file omits
	checksum string          // of the files, with automatic reloads; used by watch only
	signals  chan os.Signal
	rules    *rules.Prepared // of the first configuration

	applying sync.Mutex // held during a reload
	inForce  *parts     // the parts that are applied; nil until the first configuration is applied

	mu       sync.RWMutex
	cfg      *config.Config
	lastOK   bool
	lastTime time.Time

	success     *metrics.Gauge
	successTime *metrics.Gauge
}

// newLiveConfig reads and checks the configuration without applying it.
func newLiveConfig(s *Serve, prefix string) (*liveConfig, error) {
	l := &liveConfig{
		serve:   s,
		signals: make(chan os.Signal, 1),
		success: s.reg.Gauge("prometheus_config_last_reload_successful",
			"Whether the last configuration reload attempt was successful."),
		successTime: s.reg.Gauge("prometheus_config_last_reload_success_timestamp_seconds",
			"Timestamp of the last successful configuration reload."),
	}
	l.defaults.Retention = s.opts.Store.DefaultRetention()
	l.defaults.ProtobufFirst, l.defaults.ExtraMetrics = s.opts.Scrape.ParseST, s.opts.Scrape.ExtraMetrics
	if s.opts.LogLevel != nil {
		l.defaults.LogLevel = s.opts.LogLevel.String()
	}
	if l.autoReloads() {
		sum, err := l.sum()
		if err != nil {
			return nil, err
		}
		l.checksum = sum // before the files are read, so that no change is missed
	}
	cfg, err := l.load(prefix)
	if err != nil {
		return nil, hint.Invalid("config.file", err)
	}
	// The metrics of reloads count this load as successful already: the configuration is
	// applied after the WAL replay, which may take longer than the "for" duration of an
	// alert on these metrics.
	l.done(nil, cfg)
	return l, nil
}

func (l *liveConfig) load(prefix string) (*config.Config, error) {
	logger := l.serve.opts.Logger
	if file := l.serve.opts.ConfigFile; file != "" {
		return scrape.Load(file, l.defaults, logger)
	}
	// The scheme is http even with a web configuration file: then the scrape uses an in-process connection without TLS.
	return scrape.Default("http", l.serve.Addr().String(), prefix+"/metrics", l.defaults, logger)
}

func (l *liveConfig) current() config.Config {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return *l.cfg
}

// externalLabels returns the external labels of the current configuration.
func (l *liveConfig) externalLabels() labels.Labels { return l.current().GlobalConfig.ExternalLabels }

func (l *liveConfig) lastReload() (ok bool, at time.Time) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.lastOK, l.lastTime
}

// applyFirst applies the configuration that newLiveConfig read.
func (l *liveConfig) applyFirst(context.Context) error {
	l.applying.Lock()
	defer l.applying.Unlock()
	cfg := l.current()
	if err := l.apply(&cfg, l.serve.profiles.config, l.rules); err != nil {
		return err
	}
	l.done(nil, &cfg)
	return nil
}

// reload reads the configuration files and applies them. After any error the whole old
// configuration stays in effect.
func (l *liveConfig) reload() error {
	l.applying.Lock()
	defer l.applying.Unlock()
	logger, file := l.serve.opts.Logger, l.serve.opts.ConfigFile
	if file == "" && l.serve.profiles.file == "" {
		logger.Info("Nothing to reload: no configuration file is set")
		return nil
	}
	profiles, err := l.serve.profiles.load()
	current := l.current()
	cfg := &current
	if file != "" {
		var err2 error
		cfg, err2 = scrape.Load(file, l.defaults, logger)
		err = errors.Join(err, err2)
	}
	var prepared *rules.Prepared
	if err == nil {
		prepared, err = l.serve.rules.Prepare(cfg)
	}
	if err == nil {
		err = l.apply(cfg, profiles, prepared)
	}
	err = redact.Error(err) // the client that requested the reload gets it, and the page shows it
	l.done(err, cfg)
	if err != nil {
		logger.Error("Reload failed, the old configuration stays in effect", "err", err)
		return err
	}
	logger.Info("Reloaded", "file", file, "profiles", l.serve.profiles.file)
	return nil
}

// done records the result of a load or reload: the error, or else cfg as the current configuration.
func (l *liveConfig) done(err error, cfg *config.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lastOK = err == nil
	l.serve.notices.reloaded(err)
	if err != nil {
		l.success.Set(0)
		return
	}
	l.cfg, l.lastTime = cfg, time.Now().UTC()
	l.success.Set(1)
	l.successTime.Set(float64(time.Now().UnixMilli()) / 1000)
}

// parts are the parts of a configuration whose components can reject them.
type parts struct {
	cfg      *config.Config // with the contents of scrape_config_files
	profiles *ingest.Config // nil: no profiles are scraped
	rules    *rules.Prepared
}

// apply applies a configuration to every component or to none. The order is: checks
// without effect, then components that swap rolls back if a later one rejects its part,
// then steps that cannot fail.
func (l *liveConfig) apply(cfg *config.Config, profiles *ingest.Config, prepared *rules.Prepared) (err error) {
	s := l.serve
	if err := s.opts.Ship.CheckLocal(s.store.Options(), cfg.GlobalConfig.ExternalLabels); err != nil {
		return err
	}
	next := &parts{profiles: profiles, rules: prepared}
	if next.cfg, err = scrape.Resolve(cfg); err != nil {
		return err
	}
	if l.inForce != nil {
		if err := scrape.CheckChanged(l.inForce.cfg, next.cfg); err != nil {
			return err
		}
	}
	if err := remotesend.Check(cfg); err != nil {
		return err
	}
	takeRemotes, err := s.remotes.Prepare(cfg)
	if err != nil {
		return err
	}
	queryLog, err := openQueryLog(cfg.GlobalConfig.QueryLogFile)
	if err != nil {
		return err
	}
	if err := l.swap(next); err != nil {
		if queryLog != nil {
			_ = queryLog.Close() // no query was logged
		}
		return err
	}
	l.inForce = next
	takeRemotes()
	s.engine.SetQueryLogger(queryLog)
	s.engine.SetEvaluationInterval(time.Duration(cfg.GlobalConfig.EvaluationInterval))
	setGCPercent(cfg.Runtime.GoGC)
	if s.opts.LogLevel != nil {
		_ = s.opts.LogLevel.Set(string(cfg.Runtime.LogLevel)) // checked by scrape.Load
	}
	return nil
}

// swap applies the parts in order. If a component rejects its part, the components
// before it get their old parts back. The storage deletes no block before every
// component has accepted its part.
func (l *liveConfig) swap(next *parts) error {
	s, old := l.serve, l.inForce
	// again returns what applies a part of the old configuration, of which there is none at the start
	again := func(apply func() error) func() error {
		if old == nil {
			return func() error { return nil }
		}
		return apply
	}
	scrapedAgain := again(func() error { return s.scraper.ApplyConfig(old.cfg) })
	var storage *tsdb.Staged
	return process.Apply(
		s.tracing.Change(next.cfg.TracingConfig),
		process.Change{
			Apply: func() (err error) {
				if storage, err = s.store.Stage(next.cfg); err != nil {
					return fmt.Errorf("storage configuration: %w", err)
				}
				return nil
			},
			Undo: func() error { return storage.Undo() },
		},
		process.Change{
			Apply:  func() error { return s.profiles.apply(next.profiles) },
			Undo:   again(func() error { return s.profiles.apply(old.profiles) }),
			Commit: func() { s.profiles.configure(next.profiles) },
		},
		// The sender is changed after the storage and the profiles, which can reject their
		// part: a queue that is stopped drops its pending samples. It is changed before
		// the scrape jobs, so that no sample of a new job is sent with the old
		// write_relabel_configs.
		process.Change{
			Apply: func() error { return s.sender.ApplyConfig(next.cfg) },
			Undo:  again(func() error { return s.sender.ApplyConfig(old.cfg) }),
		},
		process.Change{
			Apply: func() error {
				err := s.scraper.ApplyConfig(next.cfg)
				if err == nil {
					return nil
				}
				if back := scrapedAgain(); back != nil {
					err = errors.Join(err, fmt.Errorf("the old configuration could not be restored: %w", back))
				}
				return err
			},
			Undo: scrapedAgain,
		},
		process.Change{
			Apply: func() error { return s.rules.Apply(next.rules) },
			Undo:  again(func() error { return s.rules.Apply(old.rules) }),
		},
		process.Change{Apply: func() error {
			if err := storage.Commit(); err != nil {
				return fmt.Errorf("storage configuration: %w", err)
			}
			return nil
		}},
	)
}

// openQueryLog opens the query log; nil if no file is configured.
func openQueryLog(file string) (promql.QueryLogger, error) {
	if file == "" {
		return nil, nil
	}
	logger, err := logging.NewJSONFileLogger(file)
	if err != nil {
		return nil, fmt.Errorf("global.query_log_file: %w", err)
	}
	return logger, nil
}

// listen starts to receive SIGHUP, which would otherwise end the process. stop restores
// the default action.
func (l *liveConfig) listen() (stop func()) {
	signal.Notify(l.signals, syscall.SIGHUP)
	return func() { signal.Stop(l.signals) }
}

// watch reloads on SIGHUP until ctx is canceled. With automatic reloads it also reloads
// when the configuration file, or a file that it names, has changed.
func (l *liveConfig) watch(ctx context.Context) error {
	var changes <-chan time.Time
	if l.autoReloads() {
		ticker := time.NewTicker(l.serve.opts.Peer.AutoReload)
		defer ticker.Stop()
		changes = ticker.C
	}
	for {
		select {
		case <-l.signals:
			_ = l.reload() // logged by reload
		case <-changes:
			l.reloadChanged()
		case <-ctx.Done():
			return nil
		}
	}
}

// autoReloads reports whether the configuration files are checked for changes.
func (l *liveConfig) autoReloads() bool {
	o := &l.serve.opts
	return o.Peer.AutoReload > 0 && (o.ConfigFile != "" || o.Profiles.ConfigFile != "")
}

// sum returns a checksum of both configuration files and of the files that the first one names.
func (l *liveConfig) sum() (sum string, err error) {
	if file := l.serve.opts.ConfigFile; file != "" {
		if sum, err = config.GenerateChecksum(file); err != nil {
			return "", hint.Invalid("config.file", fmt.Errorf("configuration %s: %w", file, err))
		}
	}
	if file := l.serve.opts.Profiles.ConfigFile; file != "" {
		content, err := os.ReadFile(file)
		if err != nil {
			return "", hint.Invalid("profiles.config-file", err)
		}
		sum = fmt.Sprintf("%s %x", sum, sha256.Sum256(content))
	}
	return sum, nil
}

// reloadChanged reloads if a configuration file, or a file it refers to, has changed
// since it was last read. If a file cannot be read, the next interval tries again.
func (l *liveConfig) reloadChanged() {
	sum, err := l.sum()
	if err != nil {
		l.serve.opts.Logger.Error("Checking the configuration files for changes failed", "err", err)
		return
	}
	if sum != l.checksum {
		l.checksum = sum
		_ = l.reload() // logged by reload
	}
}

// retentionText formats the current retention like Prometheus' status/runtimeinfo.
func (l *liveConfig) retentionText() string {
	cfg := l.current()
	retention := cfg.StorageConfig.TSDBConfig.Retention // set by scrape.Load
	var parts []string
	if retention.Time != 0 {
		parts = append(parts, retention.Time.String())
	}
	if retention.Size != 0 {
		parts = append(parts, retention.Size.String())
	}
	if retention.Percentage != 0 {
		parts = append(parts, strconv.FormatFloat(retention.Percentage, 'g', -1, 64)+"%")
	}
	return strings.Join(parts, " or ")
}
