package scrape

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
)

// loaded is a configuration with these scrape sections, read from a file in dir.
func loaded(t *testing.T, dir, content string, defaults Defaults) (*config.Config, error) {
	t.Helper()
	path := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(path, defaults, promslog.NewNopLogger())
}

func mustLoad(t *testing.T, content string) *config.Config {
	t.Helper()
	cfg, err := loaded(t, t.TempDir(), content, Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// openFiles is the number of this process' descriptors of files below dir.
func openFiles(t *testing.T, dir string) (n int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("open files are known on Linux only")
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, dir) {
			n++
		}
	}
	return n
}

const jobWithLog = `
scrape_configs:
  - job_name: logged
    scrape_failure_log_file: `

func TestCheckChanged_ClosesTheFailureLog(t *testing.T) {
	dir := t.TempDir()
	next := mustLoad(t, jobWithLog+filepath.Join(dir, "failures.log"))
	if err := CheckChanged(&config.Config{}, next); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "failures.log")); err != nil {
		t.Errorf("the log was not opened: %v", err)
	}
	if n := openFiles(t, dir); n != 0 {
		t.Errorf("%d descriptors of the log are still open", n)
	}
}

func TestCheckChanged_ErrorsNameTheJobs(t *testing.T) {
	dir := t.TempDir()
	next := mustLoad(t, jobWithLog+filepath.Join(dir, "missing", "failures.log")+`
  - job_name: secret
    basic_auth: {username: u, password_file: `+filepath.Join(dir, "password")+`}
  - job_name: certified
    tls_config: {ca_file: `+filepath.Join(dir, "ca.pem")+`}
  - job_name: fine
`)
	err := CheckChanged(&config.Config{}, next)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{`scrape job "logged": can't create json log file`, `scrape job "certified": unable to read CA cert`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in the error: %v", want, err)
		}
	}
	if strings.Contains(err.Error(), "fine") {
		t.Errorf("a job without a fault is named: %v", err)
	}
	err = CheckChanged(next, next)
	if err == nil || !strings.Contains(err.Error(), `scrape job "logged"`) {
		t.Errorf("a log that the scrape manager would fail to open again: %v", err)
	}
	if err != nil && strings.Contains(err.Error(), "certified") {
		t.Errorf("a client that has not changed was created: %v", err)
	}
}

func TestLoad_DefaultsAreForOmittedSettings(t *testing.T) {
	defaults := Defaults{Retention: config.TSDBRetentionConfig{Size: 1 << 30}, LogLevel: "warn"}
	for _, c := range []struct {
		name, content string
		defaults      Defaults
		wantSize      int64
		wantLevel     string
	}{
		{"all omitted", "global: {}", defaults, 1 << 30, "warn"},
		{"both given", "storage: {tsdb: {retention: {size: 1MB}}}\nruntime: {log_level: debug}", defaults, 1 << 20, "debug"},
		{"retention given", "storage: {tsdb: {retention: {size: 1MB}}}", defaults, 1 << 20, "warn"},
		{"level given", "runtime: {log_level: error}", defaults, 1 << 30, "error"},
		{"no level in the defaults", "global: {}", Defaults{Retention: defaults.Retention}, 1 << 30, string(config.DefaultConfig.Runtime.LogLevel)},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := loaded(t, t.TempDir(), c.content, c.defaults)
			if err != nil {
				t.Fatal(err)
			}
			if r := cfg.StorageConfig.TSDBConfig.Retention; r == nil || int64(r.Size) != c.wantSize {
				t.Errorf("retention: %+v, want a size of %d", r, c.wantSize)
			}
			if got := string(cfg.Runtime.LogLevel); got != c.wantLevel {
				t.Errorf("log level %q, want %q", got, c.wantLevel)
			}
		})
	}
}

func TestLoad_FailsWithoutTheFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "none.yml"), Defaults{}, promslog.NewNopLogger())
	if err == nil || !strings.HasPrefix(err.Error(), "read configuration: ") {
		t.Errorf("error: %v", err)
	}
}

func TestLoad_ErrorsShowNoPasswords(t *testing.T) {
	for _, content := range []string{
		`remote_write: [{url: "http://eve:SECRET%x@h/"}]`, `scrape_configs: [{job_name: a, http_sd_configs: [{url: "http://eve:SECRET%x@h/"}]}]`,
		`scrape_configs: [{job_name: a, proxy_url: "http://eve:SECRET x@h/"}]`,
	} {
		_, err := loaded(t, t.TempDir(), content, Defaults{})
		if err == nil || strings.Contains(err.Error(), "SECRET") || !strings.Contains(err.Error(), "http://eve:xxxxx@h/") {
			t.Errorf("%s: %v", content, err)
		}
	}
}

func TestLoad_PathsAreRelativeToTheFile(t *testing.T) {
	dir := t.TempDir()
	more := filepath.Join(dir, "more.yml")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(more, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const content = "rule_files: [rules.yml]\nscrape_config_files: [more.yml]"
	write("unknown: 1")
	if _, err := loaded(t, dir, content, Defaults{}); err == nil || !strings.HasPrefix(err.Error(), "configuration "+filepath.Join(dir, "prometheus.yml")) {
		t.Errorf("error of a broken file in scrape_config_files: %v", err)
	}
	write("scrape_configs: [{job_name: further}]")
	cfg, err := loaded(t, dir, content, Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "rules.yml"); len(cfg.RuleFiles) != 1 || cfg.RuleFiles[0] != want {
		t.Errorf("rule files: %q, want %q", cfg.RuleFiles, want)
	}
	resolved, err := Resolve(cfg)
	if err != nil {
		t.Fatal(err)
	}
	write("unknown: 1")
	if jobs, err := resolved.GetScrapeConfigs(); err != nil || len(jobs) != 1 || jobs[0].JobName != "further" {
		t.Errorf("jobs of the resolved configuration: %v, %v", jobs, err)
	}
	if _, err := Resolve(cfg); err == nil || !strings.HasPrefix(err.Error(), "scrape configuration: ") {
		t.Errorf("Resolve of a file that broke: %v", err)
	}
}

func TestDefault_ScrapesTheServerItself(t *testing.T) {
	cfg, err := Default("https", "127.0.0.1:4040", "/a \"b\"/metrics", Defaults{LogLevel: "warn"}, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	jobs, err := cfg.GetScrapeConfigs()
	if err != nil || len(jobs) != 1 {
		t.Fatalf("jobs: %v, %v", jobs, err)
	}
	job := jobs[0]
	if job.Scheme != "https" || job.MetricsPath != `/a "b"/metrics` || job.ScrapeInterval.String() != "5s" || job.ScrapeTimeout.String() != "4s" || cfg.Runtime.LogLevel != "warn" {
		t.Errorf("job: %+v", job)
	}
	if err := CheckChanged(&config.Config{}, cfg); err != nil {
		t.Error(err)
	}
	if _, err := Default("ftp: {", "127.0.0.1:4040", "/", Defaults{}, promslog.NewNopLogger()); err == nil || !strings.HasPrefix(err.Error(), "own configuration: ") {
		t.Errorf("error of a scheme that does not exist: %v", err)
	}
}

func TestLoad_FlagsSetProtocolsAndExtraMetricsWhereNothingElseDoes(t *testing.T) {
	dir := t.TempDir()
	more := "scrape_configs: [{job_name: c}, {job_name: d, scrape_protocols: [PrometheusText0.0.4], extra_scrape_metrics: false}]\n"
	if err := os.WriteFile(filepath.Join(dir, "more.yml"), []byte(more), 0o600); err != nil {
		t.Fatal(err)
	}
	jobs := "scrape_configs: [{job_name: a}, {job_name: b, scrape_protocols: [PrometheusText0.0.4], extra_scrape_metrics: false}]\n" +
		"scrape_config_files: [more.yml]\n"
	for _, tt := range []struct {
		global   string
		flags    bool
		protobuf string // jobs that prefer protobuf
		extra    string // jobs with extra metrics
	}{
		{"", false, "", ""},
		{"", true, "ac", "ac"},
		{"global: {scrape_protocols: [OpenMetricsText1.0.0], extra_scrape_metrics: false}\n", true, "", ""},
	} {
		cfg, err := loaded(t, dir, tt.global+jobs, Defaults{ProtobufFirst: tt.flags, ExtraMetrics: tt.flags})
		if err != nil {
			t.Fatal(err)
		}
		all, err := cfg.GetScrapeConfigs()
		if err != nil {
			t.Fatal(err)
		}
		protobuf, extra := "", ""
		for _, job := range all {
			if job.ScrapeProtocols[0] == config.PrometheusProto {
				protobuf += job.JobName
			}
			if job.ExtraScrapeMetricsEnabled() {
				extra += job.JobName
			}
		}
		if protobuf != tt.protobuf || extra != tt.extra {
			t.Errorf("%q %v: protobuf %q, extra %q", tt.global, tt.flags, protobuf, extra)
		}
	}
}

func TestExpectedSeries_IsAThousandForEachListedTarget(t *testing.T) {
	list := filepath.Join(t.TempDir(), "targets.json")
	if err := os.WriteFile(list, make([]byte, 700), 0o600); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]int{
		"scrape_configs: []": 0,
		"scrape_configs: [{job_name: a, static_configs: [{targets: [a, b]}, {targets: [c]}]}, " +
			"{job_name: b, static_configs: [{targets: [d]}]}]": 4000,
		"scrape_configs: [{job_name: a, file_sd_configs: [{files: [" + list + ", /nowhere/*.json]}]}]": 7000,
		"scrape_configs: [{job_name: a, dns_sd_configs: [{names: [a]}]}]":                              1_000_000,
	} {
		if got := ExpectedSeries(mustLoad(t, content)); got != want {
			t.Errorf("%s: %d series, want %d", content, got, want)
		}
	}
}
