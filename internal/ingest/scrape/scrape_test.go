package scrape

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
	)
}

// stub is a storage that counts the committed samples of "up" by target.
type stub struct {
	mu      sync.Mutex
	changed *sync.Cond
	ups     map[string]int // by value of the label origin
	pending int            // open transactions
	late    bool           // a wait timed out
}

func newStub() *stub {
	s := &stub{ups: map[string]int{}}
	s.changed = sync.NewCond(&s.mu)
	return s
}

func (s *stub) AppenderV2(context.Context) storage.AppenderV2 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending++
	return &appender{to: s, ups: map[string]int{}}
}

type appender struct {
	to  *stub
	ups map[string]int
}

func (a *appender) Append(_ storage.SeriesRef, l labels.Labels, _, _ int64, v float64, _ *histogram.Histogram, _ *histogram.FloatHistogram, _ storage.AppendV2Options) (storage.SeriesRef, error) {
	if l.Get(labels.MetricName) == "up" && v == 1 {
		a.ups[l.Get("origin")]++
	}
	return 1, nil
}

func (a *appender) Commit() error {
	a.to.mu.Lock()
	defer a.to.mu.Unlock()
	for origin, n := range a.ups {
		a.to.ups[origin] += n
	}
	a.to.pending--
	a.to.changed.Broadcast()
	return nil
}

func (a *appender) Rollback() error {
	a.to.mu.Lock()
	defer a.to.mu.Unlock()
	a.to.pending--
	return nil
}

// wait returns once more scrapes of a target have been committed.
func (s *stub) wait(t *testing.T, origin string, more int) {
	t.Helper()
	timer := time.AfterFunc(30*time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late = true // ends the wait
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for want := s.ups[origin] + more; s.ups[origin] < want; s.changed.Wait() {
		if s.late {
			t.Fatalf("%q is not scraped; what is: %v", origin, s.ups)
		}
	}
}

func (s *stub) count(origin string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ups[origin]
}

func target(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "apples 1") }))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// scraping returns a configuration of one job, to which more is appended.
func scraping(t *testing.T, origin, address, more string) *config.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "prometheus.yml")
	text := fmt.Sprintf(`
global: {scrape_interval: 50ms, scrape_timeout: 50ms}
scrape_configs:
  - job_name: one
    static_configs: [{targets: [%q], labels: {origin: %s}}]
%s`, address, origin, more)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := Load(path, Defaults{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// running starts a scraper. stop ends it and returns the error of Run.
func running(t *testing.T, to storage.AppendableV2, cfg *config.Config) (s *Scraper, stop func() error) {
	t.Helper()
	s, err := New(Options{DiscoveryReloadInterval: 10 * time.Millisecond}, to, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyConfig(cfg); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-done:
			s.Close()
			return err
		case <-time.After(30 * time.Second):
			t.Error("Run does not end")
			return nil
		}
	})
	t.Cleanup(func() { _ = stop() })
	return s, stop
}

// The storage is closed once Run has returned.
func TestScraper_RunReturnsAfterTheLastAppend(t *testing.T) {
	to := newStub()
	_, stop := running(t, to, scraping(t, "a", target(t), ""))
	to.wait(t, "a", 3)
	if err := stop(); err != nil {
		t.Error(err)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.pending != 0 {
		t.Errorf("%d transactions are open", to.pending)
	}
	// TestMain detects leaked scrape loops.
}

// The scrape manager reloads in the background: a reload that begins while Run ends starts no loops, which TestMain
// would find. The first targets arrive 50 to 150 ms after the start.
func TestScraper_EndedDuringItsFirstReload_LeavesNoLoops(t *testing.T) {
	cfg := scraping(t, "a", target(t), "")
	var wg sync.WaitGroup
	for i := range 1500 {
		_, stop := running(t, newStub(), cfg)
		wg.Go(func() {
			time.Sleep(time.Duration(50+i%100) * time.Millisecond)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestScraper_NewConfigReplacesTheOld(t *testing.T) {
	to := newStub()
	s, _ := running(t, to, scraping(t, "a", target(t), ""))
	to.wait(t, "a", 1)
	if err := s.ApplyConfig(scraping(t, "b", target(t), "")); err != nil {
		t.Fatal(err)
	}
	to.wait(t, "b", 2)
	was := to.count("a")
	to.wait(t, "b", 4)
	if n := to.count("a"); n > was+1 { // one scrape may have been running
		t.Errorf("the first target was scraped %d times after the second", n-was)
	}
	if active := s.Manager.TargetsActive()["one"]; len(active) != 1 || active[0].DiscoveredLabels(labels.NewBuilder(labels.EmptyLabels())).Get("origin") != "b" {
		t.Errorf("%v", active)
	}
}

func TestScraper_FailedConfigKeepsTheOld(t *testing.T) {
	to := newStub()
	first := scraping(t, "a", target(t), "")
	s, _ := running(t, to, first)
	to.wait(t, "a", 1)
	missing := filepath.Join(t.TempDir(), "missing", "failures.log")
	err := s.ApplyConfig(scraping(t, "b", target(t), "    scrape_failure_log_file: "+missing+"\n"))
	if err == nil || !strings.Contains(err.Error(), missing) {
		t.Fatalf("a log file in a folder that is not there: %v", err)
	}
	to.wait(t, "a", 3)
	if n := to.count("b"); n != 0 {
		t.Errorf("the refused configuration was scraped %d times", n)
	}
	// The old one can be applied again, as after a reload that failed elsewhere.
	if err := s.ApplyConfig(first); err != nil {
		t.Error(err)
	}
	to.wait(t, "a", 3)
}

func TestLoad_ErrorNamesFileAndLine(t *testing.T) {
	for text, want := range map[string]string{
		"nonsense: 1": "line 1: field nonsense not found",
		"scrape_configs: [{job_name: a}, {job_name: a}]":           "multiple scrape configs",
		"scrape_configs: [{job_name: a, abacus_sd_configs: [{}]}]": "line 1: field abacus_sd_configs not found",
		"scrape_config_files: [\"more/*.yml\"]":                    "broken.yml",
	} {
		dir := t.TempDir()
		if err := os.Mkdir(filepath.Join(dir, "more"), 0o700); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"prometheus.yml": text, "more/broken.yml": "scrape_configs: [{nonsense: 1}]"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(dir, "prometheus.yml")
		if _, err := Load(path, Defaults{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := Load(filepath.Join(t.TempDir(), "missing.yml"), Defaults{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "missing.yml") {
		t.Error(err)
	}
}

func TestScraper_CloseWithoutRun(t *testing.T) {
	s, err := New(Options{}, newStub(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ApplyConfig(scraping(t, "a", "127.0.0.1:1", "")); err != nil {
		t.Fatal(err)
	}
	s.Close()
	s.Close()
}
