package scrape

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/util/logging"
	"go.yaml.in/yaml/v2"

	// The ways of finding targets that a configuration may use; static_configs is
	// part of discovery itself. Each registers its section's name on import.
	_ "github.com/prometheus/prometheus/discovery/dns"
	_ "github.com/prometheus/prometheus/discovery/file"
	_ "github.com/prometheus/prometheus/discovery/http"
)

// Defaults are what a configuration leaves to flags.
type Defaults struct {
	Retention config.TSDBRetentionConfig // where there is no storage.tsdb.retention
	LogLevel  string                     // where there is no runtime.log_level; "": info
}

// load parses a configuration and fills in what it leaves to the defaults. Those of
// Prometheus' package are variables of the whole process, so what is absent is looked
// up in the text.
func (d Defaults) load(text string, logger *slog.Logger) (*config.Config, error) {
	cfg, err := config.Load(text, logger)
	if err != nil {
		return nil, err
	}
	var given struct {
		Storage struct {
			TSDB struct {
				Retention *struct{} `yaml:"retention"`
			} `yaml:"tsdb"`
		} `yaml:"storage"`
		Runtime struct {
			LogLevel *string `yaml:"log_level"`
		} `yaml:"runtime"`
	}
	if err := yaml.Unmarshal([]byte(text), &given); err != nil {
		return nil, err
	}
	if given.Storage.TSDB.Retention == nil {
		retention := d.Retention
		cfg.StorageConfig.TSDBConfig.Retention = &retention
	}
	if given.Runtime.LogLevel == nil && d.LogLevel != "" {
		cfg.Runtime.LogLevel = config.LogLevel(d.LogLevel)
	}
	return cfg, nil
}

// Load reads an unchanged prometheus.yml. Unknown keys are an error that names
// the file and the line. Relative paths inside are taken from the file's folder.
func Load(path string, defaults Defaults, logger *slog.Logger) (*config.Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := parse(string(text), defaults, logger)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	cfg.SetDirectory(filepath.Dir(path))
	// The files named by scrape_config_files are read anew at each use; read them
	// once here so that a fault is found before anything is applied.
	if _, err := cfg.GetScrapeConfigs(); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, err)
	}
	return cfg, nil
}

func parse(text string, defaults Defaults, logger *slog.Logger) (*config.Config, error) {
	cfg, err := defaults.load(text, logger)
	if err != nil && strings.Contains(err.Error(), "_sd_configs not found") {
		return nil, fmt.Errorf("%w (targets are found by static_configs, file_sd_configs, http_sd_configs and dns_sd_configs here)", err)
	}
	return cfg, err
}

// Resolve gives the configuration with the files of scrape_config_files read into
// it, so that it stays the same when it is applied a second time.
func Resolve(cfg *config.Config) (*config.Config, error) {
	jobs, err := cfg.GetScrapeConfigs()
	if err != nil {
		return nil, fmt.Errorf("scrape configuration: %w", err)
	}
	resolved := *cfg
	resolved.ScrapeConfigs, resolved.ScrapeConfigFiles = jobs, nil
	return &resolved, nil
}

// CheckChanged tries, of every job that differs between two resolved configurations,
// what the scrape manager would find out only when other jobs have changed: it makes
// the HTTP client, which reads files of TLS and of passwords, and opens the log of
// failed scrapes.
func CheckChanged(old, next *config.Config) error {
	var errs []error
	for _, job := range next.ScrapeConfigs {
		if slices.ContainsFunc(old.ScrapeConfigs, func(o *config.ScrapeConfig) bool { return reflect.DeepEqual(o, job) }) {
			continue
		}
		if err := try(job); err != nil {
			errs = append(errs, fmt.Errorf("scrape job %q: %w", job.JobName, err))
		}
	}
	return errors.Join(errs...)
}

func try(job *config.ScrapeConfig) error {
	client, err := commonconfig.NewClientFromConfig(job.HTTPClientConfig, job.JobName)
	if err != nil {
		return err
	}
	client.CloseIdleConnections()
	log, err := logging.NewJSONFileLogger(job.ScrapeFailureLogFile)
	if err != nil || log == nil {
		return err
	}
	return log.Close()
}

// Default is the configuration of a server that was given none: it scrapes
// itself, often enough that graphs appear within seconds.
func Default(scheme, listenAddress, metricsPath string, defaults Defaults, logger *slog.Logger) (*config.Config, error) {
	text := fmt.Sprintf(`
global:
  scrape_interval: 5s
  scrape_timeout: 4s
  evaluation_interval: 15s
scrape_configs:
  - job_name: ferula
    scheme: %s
    metrics_path: %q
    tls_config: {insecure_skip_verify: true}
    static_configs:
      - targets: [%q]
`, scheme, metricsPath, listenAddress)
	cfg, err := parse(text, defaults, logger)
	if err != nil {
		return nil, fmt.Errorf("own configuration: %w", err)
	}
	return cfg, nil
}

// Unserved names the sections of a configuration that this program reads but
// does not act on, so that one message can say so.
func Unserved(cfg *config.Config) []string {
	var names []string
	add := func(name string, present bool) {
		if present {
			names = append(names, name)
		}
	}
	add("alerting", len(cfg.AlertingConfig.AlertmanagerConfigs) > 0 || len(cfg.AlertingConfig.AlertRelabelConfigs) > 0)
	add("rule_files", len(cfg.RuleFiles) > 0)
	add("remote_write", len(cfg.RemoteWriteConfigs) > 0)
	add("tracing", cfg.TracingConfig.Endpoint != "")
	add("otlp", !reflect.DeepEqual(cfg.OTLPConfig, config.DefaultOTLPConfig))
	return names
}
