package scrape

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/scrape"
)

func TestOptions_ReachTheScrapeManager(t *testing.T) {
	if o := (Options{}).manager(); o.AppendMetadata || o.EnableTypeAndUnitLabels || o.EnableOpenMetrics2 || o.EnableZstdScrape {
		t.Errorf("defaults: %+v", o)
	}
	if o := (Options{DiscoveryReloadInterval: 7, MetadataInWAL: true}).manager(); o.DiscoveryReloadInterval != 7 || !o.AppendMetadata {
		t.Errorf("given: %+v", o)
	}
	if o := (Options{TypeAndUnitLabels: true, OpenMetrics2: true, Zstd: true}).manager(); !o.EnableTypeAndUnitLabels || !o.EnableOpenMetrics2 || !o.EnableZstdScrape {
		t.Errorf("given: %+v", o)
	}
}

func TestNew_SetsTheAlignmentOfTimestamps(t *testing.T) {
	was := scrape.AlignScrapeTimestamps
	t.Cleanup(func() { scrape.AlignScrapeTimestamps = was })
	for _, exact := range []bool{true, true, false, false, true} {
		s, err := New(Options{ExactTimestamps: exact}, newStub(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		if scrape.AlignScrapeTimestamps == exact {
			t.Errorf("exact timestamps %v, and they are aligned: %v", exact, scrape.AlignScrapeTimestamps)
		}
	}
}

// The dialer of the options connects to every target, whatever its address.
func TestScraper_DialConnectsToTargets(t *testing.T) {
	address := target(t)
	var dialed atomic.Value
	dial := func(ctx context.Context, network, to string) (net.Conn, error) {
		dialed.Store(to)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	}
	to := newStub()
	s, err := New(Options{Dial: dial}, to, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyConfig(scraping(t, "a", "target.invalid:80", "")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	to.wait(t, "a", 1)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := dialed.Load(); got != "target.invalid:80" {
		t.Errorf("dialed %v", got)
	}
}

func TestCheck_FilesThatAServerWrites(t *testing.T) {
	dir := t.TempDir()
	existing, missing, nowhere := filepath.Join(dir, "a.log"), filepath.Join(dir, "new.log"), filepath.Join(dir, "none", "a.log")
	if err := os.WriteFile(existing, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{existing: "", missing: "", nowhere: "query_log_file: ", dir: "query_log_file: "} {
		err := Check(mustLoad(t, "global: {query_log_file: "+path+"}"))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), "global."+want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for path, want := range map[string]string{existing: "", missing: "", nowhere: `scrape job "logged": scrape_failure_log_file: `} {
		err := Check(mustLoad(t, jobWithLog+path))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := os.Stat(missing); err == nil {
		t.Error("the check has created a file")
	}
	if content, err := os.ReadFile(existing); err != nil || string(content) != "x" {
		t.Errorf("%q, %v", content, err)
	}
	if n := openFiles(t, dir); n != 0 {
		t.Errorf("%d files are open", n)
	}
}

func TestCheck_ErrorsOfClientsNameTheJobs(t *testing.T) {
	err := Check(mustLoad(t, `
scrape_configs:
  - job_name: certified
    tls_config: {ca_file: `+filepath.Join(t.TempDir(), "ca.pem")+`}
  - job_name: fine
`))
	if err == nil || !strings.Contains(err.Error(), `scrape job "certified": `) || strings.Contains(err.Error(), "fine") {
		t.Error(err)
	}
	if err := Check(&config.Config{}); err != nil {
		t.Error(err)
	}
}

func TestResolve_KeepsTheGivenConfiguration(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "more.yml"), []byte("scrape_configs: [{job_name: further}]"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := loaded(t, dir, "scrape_config_files: [more.yml]\nscrape_configs: [{job_name: first}]", Defaults{})
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := Resolve(cfg)
	if err != nil || len(resolved.ScrapeConfigs) != 2 || len(resolved.ScrapeConfigFiles) != 0 {
		t.Errorf("%+v, %v", resolved, err)
	}
	if len(cfg.ScrapeConfigs) != 1 || len(cfg.ScrapeConfigFiles) != 1 {
		t.Errorf("the given configuration has %d jobs and %d files", len(cfg.ScrapeConfigs), len(cfg.ScrapeConfigFiles))
	}
}

// Only the sections of clouds have the hint of a build tag.
func TestParse_OtherUnknownSectionsHaveNoHint(t *testing.T) {
	_, err := parse("scrape_configs: [{job_name: a, nonsense_sd_configs: []}]", Defaults{}, promslog.NewNopLogger())
	if err == nil || strings.Contains(err.Error(), "clouds") || !strings.Contains(err.Error(), "nonsense_sd_configs") {
		t.Error(err)
	}
}
