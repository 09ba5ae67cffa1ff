package scrape

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"

	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/discovery/file"
	"github.com/prometheus/prometheus/util/logging"
	"go.yaml.in/yaml/v2"

	"github.com/ferula-io/ferula/internal/redact"
)

// Defaults are the values of flags for settings that a configuration omits.
type Defaults struct {
	Retention config.TSDBRetentionConfig // used without storage.tsdb.retention
	LogLevel  string                     // used without runtime.log_level; "": info

	ProtobufFirst bool // used without scrape_protocols: protobuf is preferred to text
	ExtraMetrics  bool // used without extra_scrape_metrics
}

// load parses a configuration and sets the defaults of omitted settings. The defaults of
// Prometheus' package are global variables, which would affect the whole process; omitted
// settings are therefore found in the YAML.
func (d Defaults) load(content string, logger *slog.Logger) (*config.Config, error) {
	cfg, err := config.Load(content, logger)
	if err != nil {
		return nil, err
	}
	var given struct {
		Global  givenScrape   `yaml:"global"`
		Scrapes []givenScrape `yaml:"scrape_configs"`
		Storage struct {
			TSDB struct {
				Retention *struct{} `yaml:"retention"`
			} `yaml:"tsdb"`
		} `yaml:"storage"`
		Runtime struct {
			LogLevel *string `yaml:"log_level"`
		} `yaml:"runtime"`
	}
	if err := yaml.Unmarshal([]byte(content), &given); err != nil {
		return nil, err
	}
	if given.Storage.TSDB.Retention == nil {
		retention := d.Retention
		cfg.StorageConfig.TSDBConfig.Retention = &retention
	}
	if given.Runtime.LogLevel == nil && d.LogLevel != "" {
		cfg.Runtime.LogLevel = config.LogLevel(d.LogLevel)
	}
	// Jobs of scrape_config_files take these settings from the global section when they are read, jobs of this file
	// already have.
	global := &cfg.GlobalConfig
	if d.ProtobufFirst && given.Global.Protocols == nil {
		global.ScrapeProtocols = config.DefaultProtoFirstScrapeProtocols
		for i, job := range given.Scrapes {
			if job.Protocols == nil {
				cfg.ScrapeConfigs[i].ScrapeProtocols = global.ScrapeProtocols
			}
		}
	}
	if d.ExtraMetrics && given.Global.ExtraMetrics == nil {
		global.ExtraScrapeMetrics = &d.ExtraMetrics
		for i, job := range given.Scrapes {
			if job.ExtraMetrics == nil {
				cfg.ScrapeConfigs[i].ExtraScrapeMetrics = global.ExtraScrapeMetrics
			}
		}
	}
	return cfg, nil
}

// givenScrape tells which settings of scrapes a section of a configuration has.
type givenScrape struct {
	Protocols    any `yaml:"scrape_protocols"`
	ExtraMetrics any `yaml:"extra_scrape_metrics"`
}

// Load reads a prometheus.yml. An unknown key is an error that names file and line. Paths
// in it are relative to the directory of the file.
func Load(path string, defaults Defaults, logger *slog.Logger) (*config.Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	cfg, err := parse(string(content), defaults, logger)
	if err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, redact.Error(err))
	}
	cfg.SetDirectory(filepath.Dir(path))
	// GetScrapeConfigs reads the files of scrape_config_files on every call. The first
	// call is here, so that an error in them is found before anything is applied.
	if _, err := cfg.GetScrapeConfigs(); err != nil {
		return nil, fmt.Errorf("configuration %s: %w", path, redact.Error(err))
	}
	return cfg, nil
}

func parse(content string, defaults Defaults, logger *slog.Logger) (*config.Config, error) {
	cfg, err := defaults.load(content, logger)
	if err == nil {
		return cfg, nil
	}
	if m := unknownDiscovery.FindStringSubmatch(err.Error()); m != nil && slices.Contains(cloudSections, m[1]) {
		return nil, fmt.Errorf("%w (%s is not in this build: use a release, or build with -tags clouds)", err, m[1])
	}
	return nil, err
}

// unknownDiscovery is the error for the section of a service discovery that is not compiled in.
var unknownDiscovery = regexp.MustCompile(`field (\w+_sd_configs) not found`)

// Resolve returns the configuration with the contents of scrape_config_files, so that it
// is the same when it is applied again.
func Resolve(cfg *config.Config) (*config.Config, error) {
	jobs, err := cfg.GetScrapeConfigs()
	if err != nil {
		return nil, fmt.Errorf("scrape configuration: %w", err)
	}
	resolved := *cfg
	resolved.ScrapeConfigs, resolved.ScrapeConfigFiles = jobs, nil
	return &resolved, nil
}

const (
	seriesPerTarget   = 1000
	listBytesOfTarget = 100  // in a file of file_sd_configs
	targetsDiscovered = 1000 // by other discovery: who has few targets lists them
)

// ExpectedSeries returns about how many series the targets of a configuration have, without discovering them.
func ExpectedSeries(cfg *config.Config) (series int) {
	jobs, _ := cfg.GetScrapeConfigs() // applying the configuration returns the error
	for _, job := range jobs {
		for _, found := range job.ServiceDiscoveryConfigs {
			switch found := found.(type) {
			case discovery.StaticConfig:
				for _, group := range found {
					series += len(group.Targets) * seriesPerTarget
				}
			case *file.SDConfig:
				for _, pattern := range found.Files {
					paths, _ := filepath.Glob(pattern) // loading the configuration checks patterns
					for _, path := range paths {
						if info, err := os.Stat(path); err == nil {
							series += int(info.Size()) / listBytesOfTarget * seriesPerTarget
						}
					}
				}
			default:
				series += targetsDiscovered * seriesPerTarget
			}
		}
	}
	return series
}

// CheckChanged checks a reload before anything changes. It creates the HTTP client of every job of next
// that differs from old, which reads TLS and password files. It opens the scrape failure log of every
// job, as each reload does. The scrape manager would return the same errors only after other parts of
// the process, or other jobs, have changed.
func CheckChanged(old, next *config.Config) error {
	var errs []error
	for _, job := range next.ScrapeConfigs {
		var err error
		if !slices.ContainsFunc(old.ScrapeConfigs, func(o *config.ScrapeConfig) bool { return reflect.DeepEqual(o, job) }) {
			err = checkClient(job)
		}
		if err = errors.Join(err, checkFailureLog(job.ScrapeFailureLogFile)); err != nil {
			errs = append(errs, fmt.Errorf("scrape job %q: %w", job.JobName, err))
		}
	}
	return errors.Join(errs...)
}

// Check creates the HTTP client of every job. It also checks the files that a server writes: each
// must be writable or, if it does not exist, its directory must exist. Check creates no file,
// because the file would belong to the user that runs the check.
func Check(cfg *config.Config) error {
	errs := []error{writable("global.query_log_file", cfg.GlobalConfig.QueryLogFile)}
	for _, job := range cfg.ScrapeConfigs {
		if err := errors.Join(checkClient(job), writable("scrape_failure_log_file", job.ScrapeFailureLogFile)); err != nil {
			errs = append(errs, fmt.Errorf("scrape job %q: %w", job.JobName, err))
		}
	}
	return errors.Join(errs...)
}

// writable returns an error unless file can be opened for writing or, if it does not exist, its
// directory exists.
func writable(key, file string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		return f.Close()
	}
	if errors.Is(err, os.ErrNotExist) {
		_, err = os.Stat(filepath.Dir(file))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

func checkClient(job *config.ScrapeConfig) error {
	client, err := commonconfig.NewClientFromConfig(job.HTTPClientConfig, job.JobName)
	if err != nil {
		return err
	}
	client.CloseIdleConnections()
	return nil
}

func checkFailureLog(file string) error {
	if file == "" {
		return nil
	}
	log, err := logging.NewJSONFileLogger(file)
	if err != nil {
		return err
	}
	return log.Close()
}

// Default returns the configuration of a server without a configuration file. The server
// scrapes itself, every 5 s so that graphs appear within seconds.
func Default(scheme, listenAddress, metricsPath string, defaults Defaults,
	logger *slog.Logger) (*config.Config, error) {
	content := fmt.Sprintf(`
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
	cfg, err := parse(content, defaults, logger)
	if err != nil {
		return nil, fmt.Errorf("own configuration: %w", err)
	}
	return cfg, nil
}
