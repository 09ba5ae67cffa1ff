package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	httpconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/discovery"
	"github.com/prometheus/prometheus/model/relabel"
	"go.yaml.in/yaml/v2"

	// These discoveries register themselves with package discovery, like those that
	// ingest/scrape imports. Profile jobs can use all of them.
	_ "github.com/prometheus/prometheus/discovery/dns"
	_ "github.com/prometheus/prometheus/discovery/file"
	_ "github.com/prometheus/prometheus/discovery/http"
)

// Config is the configuration file of profiles. Unknown keys are an error.
type Config struct {
	Global GlobalConfig `yaml:"global"`
	Jobs   []*JobConfig `yaml:"scrape_configs"`

	Relabel []*relabel.Config        `yaml:"relabel_configs"` // of every profile, before it is stored
	Limits  map[string]*TenantLimits `yaml:"limits"`          // by tenant
}

// GlobalConfig contains the defaults of all jobs.
type GlobalConfig struct {
	ScrapeInterval model.Duration `yaml:"scrape_interval"`
	ScrapeTimeout  model.Duration `yaml:"scrape_timeout"`
}

// JobConfig is one scrape job. Discovery, relabelling and HTTP client are configured as in
// prometheus.yml.
type JobConfig struct {
	JobName        string            `yaml:"job_name"`
	ScrapeInterval model.Duration    `yaml:"scrape_interval"`
	ScrapeTimeout  model.Duration    `yaml:"scrape_timeout"`
	Scheme         string            `yaml:"scheme"`
	Params         url.Values        `yaml:"params"`
	Profiling      ProfilingConfig   `yaml:"profiling_config"`
	Relabel        []*relabel.Config `yaml:"relabel_configs"`

	HTTPClientConfig        httpconfig.HTTPClientConfig `yaml:",inline"`
	ServiceDiscoveryConfigs discovery.Configs           `yaml:"-"`
}

// ProfilingConfig configures which profiles are scraped and their paths.
type ProfilingConfig struct {
	PathPrefix string                    `yaml:"path_prefix"`
	Pprof      map[string]*ProfileConfig `yaml:"pprof_config"`
}

// ProfileConfig configures one profile of a target. Its key is the profile name.
type ProfileConfig struct {
	Enabled *bool  `yaml:"enabled"` // nil: true
	Path    string `yaml:"path"`    // "": the path of net/http/pprof
	// Delta stores cumulative values as the delta to the previous scrape; nil: true for
	// profiles that Go counts since the start of the process.
	Delta   *bool `yaml:"delta"`
	Seconds int   `yaml:"seconds"` // duration of the profile; 0: the interval less a second for CPU, a snapshot for others
}

// goProfiles are the profiles that every job scrapes by default.
var goProfiles = []profileSpec{
	{key: "process_cpu", name: "process_cpu", path: "/debug/pprof/profile", timed: true},
	{key: "memory", name: "memory", path: "/debug/pprof/allocs", delta: true},
	{key: "goroutine", name: "goroutines", path: "/debug/pprof/goroutine"},
	{key: "mutex", name: "mutex", path: "/debug/pprof/mutex", delta: true},
	{key: "block", name: "block", path: "/debug/pprof/block", delta: true},
}

// profileSpec is one profile of a job, with all defaults set.
type profileSpec struct {
	key, name, path string
	// timed: the target records for some seconds; delta: stored as the increase since the previous scrape
	timed, delta bool
	seconds      int
}

// UnmarshalYAML implements yaml.Unmarshaler.
func (j *JobConfig) UnmarshalYAML(unmarshal func(any) error) error {
	*j = JobConfig{Scheme: "http", HTTPClientConfig: httpconfig.DefaultHTTPClientConfig}
	if err := discovery.UnmarshalYAMLWithInlineConfigs(j, unmarshal); err != nil {
		return err
	}
	if j.JobName == "" {
		return errors.New("job_name is empty")
	}
	if err := j.HTTPClientConfig.Validate(); err != nil {
		return fmt.Errorf("job %q: %w", j.JobName, err)
	}
	if j.Scheme != "http" && j.Scheme != "https" {
		return fmt.Errorf("job %q: scheme %q is neither http nor https", j.JobName, j.Scheme)
	}
	if err := checkRules(j.Relabel, model.UTF8Validation); err != nil {
		return fmt.Errorf("job %q: %w", j.JobName, err)
	}
	return nil
}

// LoadConfig reads a configuration file. Paths in it are relative to its directory.
func LoadConfig(path string) (*Config, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read profile configuration: %w", err)
	}
	cfg, err := parseConfig(content)
	if err != nil {
		return nil, fmt.Errorf("profile configuration %s: %w", path, err)
	}
	for _, job := range cfg.Jobs {
		job.ServiceDiscoveryConfigs.SetDirectory(filepath.Dir(path))
		job.HTTPClientConfig.SetDirectory(filepath.Dir(path))
	}
	return cfg, nil
}

func parseConfig(content []byte) (*Config, error) {
	cfg := &Config{Global: GlobalConfig{ScrapeInterval: model.Duration(15 * time.Second),
		ScrapeTimeout: model.Duration(10 * time.Second)}}
	if err := yaml.UnmarshalStrict(content, cfg); err != nil {
		return nil, err
	}
	errs := []error{cfg.checkSettings()}
	seen := map[string]bool{}
	for i, job := range cfg.Jobs {
		if job == nil {
			errs = append(errs, fmt.Errorf("scrape_configs[%d] is empty", i))
			continue
		}
		if seen[job.JobName] {
			errs = append(errs, fmt.Errorf("duplicate job %q", job.JobName))
		}
		seen[job.JobName] = true
		job.ScrapeInterval = cmp.Or(job.ScrapeInterval, cfg.Global.ScrapeInterval)
		job.ScrapeTimeout = cmp.Or(job.ScrapeTimeout, cfg.Global.ScrapeTimeout)
		if job.ScrapeInterval < model.Duration(time.Second) {
			errs = append(errs, fmt.Errorf("job %q: scrape_interval %s is shorter than a second", job.JobName,
				job.ScrapeInterval))
		}
		if _, err := job.profiles(); err != nil {
			errs = append(errs, err)
		}
	}
	return cfg, errors.Join(errs...)
}

// profiles returns the profiles that a job scrapes.
func (j *JobConfig) profiles() ([]profileSpec, error) {
	list := slices.Clone(goProfiles)
	var errs []error
	for key, c := range j.Profiling.Pprof {
		i := slices.IndexFunc(list, func(f profileSpec) bool { return f.key == key })
		if i < 0 {
			list = append(list, profileSpec{key: key, name: key})
			i = len(list) - 1
		}
		if c == nil {
			c = &ProfileConfig{}
		}
		if c.Enabled != nil && !*c.Enabled {
			list = slices.Delete(list, i, i+1)
			continue
		}
		f := &list[i]
		f.path = cmp.Or(c.Path, f.path)
		if c.Delta != nil {
			f.delta = *c.Delta && !f.timed
		}
		f.seconds = c.Seconds
		switch {
		case f.path == "" || f.path[0] != '/':
			errs = append(errs, fmt.Errorf("job %q: profile %q: path %q does not begin with a slash", j.JobName, key, f.path))
		case !validName(f.name):
			errs = append(errs, fmt.Errorf("job %q: profile %q contains other characters than letters, digits and underscores",
				j.JobName, key))
		case c.Seconds < 0 || time.Duration(c.Seconds)*time.Second > time.Duration(j.ScrapeInterval):
			errs = append(errs, fmt.Errorf("job %q: profile %q: %d seconds are not between 0 and the interval of %s", j.JobName,
				key, c.Seconds, j.ScrapeInterval))
		}
	}
	for i := range list {
		f := &list[i]
		if f.timed && f.seconds == 0 {
			f.seconds = max(1, int(time.Duration(j.ScrapeInterval)/time.Second)-1)
		}
		f.delta = f.delta && f.seconds == 0 // with seconds, the target returns a delta itself
	}
	slices.SortFunc(list, func(a, b profileSpec) int { return strings.Compare(a.key, b.key) })
	return list, errors.Join(errs...)
}

// scrapeConfig converts the job for Prometheus' code that creates targets.
func (j *JobConfig) scrapeConfig() *config.ScrapeConfig {
	c := config.DefaultScrapeConfig
	c.JobName, c.Scheme, c.Params = j.JobName, j.Scheme, j.Params
	c.MetricsPath = cmp.Or(j.Profiling.PathPrefix, "/")
	c.ScrapeInterval, c.ScrapeTimeout = j.ScrapeInterval, min(j.ScrapeTimeout, j.ScrapeInterval)
	c.RelabelConfigs = j.Relabel
	c.MetricNameValidationScheme = model.UTF8Validation
	return &c
}
