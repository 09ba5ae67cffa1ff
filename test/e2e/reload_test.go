package e2e

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"

	"github.com/ferula-io/ferula/internal/app"
)

// requestCounts is a target that counts the requests of the old and the new
// configuration.
type requestCounts struct{ oldMetrics, oldProfiles, newMetrics, newProfiles atomic.Int64 }

func (v *requestCounts) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, "/old/metrics"):
		v.oldMetrics.Add(1)
	case strings.HasPrefix(r.URL.Path, "/old/"):
		v.oldProfiles.Add(1)
	case strings.HasPrefix(r.URL.Path, "/new/metrics"):
		v.newMetrics.Add(1)
	default:
		v.newProfiles.Add(1)
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
}

// reloadFixture is a server with an old and a new version of its configuration files,
// which differ in everything that a reload can change.
type reloadFixture struct {
	*server
	dir, data, address  string
	metrics, profiles   string // the files
	requests            requestCounts
	oldMetrics, oldProf string
	newMetrics, newProf string
}

func newReloadFixture(t *testing.T) *reloadFixture {
	t.Helper()
	w := &reloadFixture{dir: t.TempDir(), data: t.TempDir()}
	target := httptest.NewServer(&w.requests)
	t.Cleanup(target.Close)
	w.address = strings.TrimPrefix(target.URL, "http://")
	w.metrics, w.profiles = filepath.Join(w.dir, "prometheus.yml"), filepath.Join(w.dir, "profiles.yml")
	metrics := func(version, retention, exemplars, gogc string) string {
		return fmt.Sprintf(`global: {scrape_interval: 200ms, scrape_timeout: 200ms, query_log_file: %[1]s.log, external_labels: {version: %[1]s}}
runtime: {gogc: %[5]s}
storage: {tsdb: {retention: {time: %[3]s}}, exemplars: {max_exemplars: %[4]s}}
scrape_config_files: [jobs.yml]
scrape_configs:
- job_name: shared
  metrics_path: /%[1]s/metrics
  static_configs: [{targets: ['%[2]s']}]
- job_name: %[1]s
  metrics_path: /%[1]s/metrics
  static_configs: [{targets: ['%[2]s']}]
`, version, w.address, retention, exemplars, gogc)
	}
	profiles := func(version string) string {
		return fmt.Sprintf(`global: {scrape_interval: 1s}
relabel_configs: [{target_label: release, replacement: %[1]s}]
scrape_configs:
- job_name: %[1]s
  static_configs: [{targets: ['%[2]s']}]
  profiling_config: {path_prefix: /%[1]s, pprof_config: {process_cpu: {enabled: false}}}
`, version, w.address)
	}
	w.oldMetrics, w.oldProf = metrics("old", "90d", "10", "70"), profiles("old")
	w.newMetrics, w.newProf = metrics("new", "1h", "20", "60"), profiles("new")
	w.write(t, w.oldMetrics, w.oldProf)
	writeFile(t, filepath.Join(w.dir, "jobs.yml"), "scrape_configs: []\n")
	w.server = startServe(t, func(o *app.ServeOptions) {
		o.Store.Dir = w.data
		o.ConfigFile, o.Profiles.ConfigFile, o.Web.EnableLifecycle = w.metrics, w.profiles, true
		o.Scrape.DiscoveryReloadInterval = 100 * time.Millisecond
	})
	return w
}

func (w *reloadFixture) write(t *testing.T, metrics, profiles string) {
	t.Helper()
	writeFile(t, w.metrics, metrics)
	writeFile(t, w.profiles, profiles)
}

// state returns everything that shows which configuration is loaded.
func (w *reloadFixture) state() string {
	w.t.Helper()
	var b strings.Builder
	_, metrics := w.get("/metrics")
	for line := range strings.Lines(metrics) {
		for _, name := range []string{"prometheus_tsdb_retention_limit_seconds ", "prometheus_tsdb_exemplar_max_exemplars ", "prometheus_engine_query_log_enabled "} {
			if strings.HasPrefix(line, name) {
				b.WriteString(line)
			}
		}
	}
	if status, text := w.send(http.MethodPost, "/ingest?name=shop&format=groups", "text/plain", []byte("main 1\n")); status != http.StatusOK {
		w.t.Errorf("a pushed profile: %d %s", status, text)
	}
	_, releases := w.get("/pyroscope/label-values?label=release") // of all profiles so far
	fmt.Fprintln(&b, "releases", releases)
	_, pools := w.get("/api/v1/scrape_pools")
	_, config := w.get("/api/v1/status/config")
	_, info := w.get("/api/v1/status/runtimeinfo")
	fmt.Fprintln(&b, pools, config)
	for _, name := range []string{"GOGC", "storageRetention"} {
		_, value, _ := strings.Cut(info, `"`+name+`":`)
		value, _, _ = strings.Cut(value, ",")
		fmt.Fprintln(&b, name, value)
	}
	return b.String()
}

func TestServe_FailedReloadChangesNothing(t *testing.T) {
	w := newReloadFixture(t)
	eventually(t, 60*time.Second, "targets of the first configuration", func() bool {
		_, pools := w.get("/api/v1/scrape_pools")
		return w.requests.oldMetrics.Load() > 1 && w.requests.oldProfiles.Load() > 1 && strings.Contains(pools, `"old"`)
	})
	missing := filepath.Join(w.dir, "missing.pem")
	badTLS := "\n  scheme: https\n  tls_config: {ca_file: " + missing + "}"
	replaced := func(in, old, by string) string {
		if !strings.Contains(in, old) {
			t.Fatalf("%q is not in %s", old, in)
		}
		return strings.Replace(in, old, by, 1)
	}
	for name, tt := range map[string]struct {
		metrics, profiles string
		before, after     func()
		want              string
	}{
		"query log":                {metrics: replaced(w.newMetrics, "new.log", "none/new.log"), want: "query_log_file"},
		"TLS of a changed job":     {metrics: replaced(w.newMetrics, "job_name: shared", "job_name: shared"+badTLS), want: "missing.pem"},
		"TLS of a new job":         {metrics: replaced(w.newMetrics, "job_name: new", "job_name: new"+badTLS), want: "missing.pem"},
		"log of failed scrapes":    {metrics: replaced(w.newMetrics, "job_name: new", "job_name: new\n  scrape_failure_log_file: none/failed.log"), want: "failed.log"},
		"TLS of remote read":       {metrics: w.newMetrics + "remote_read: [{url: 'https://127.0.0.1:1/', tls_config: {ca_file: " + missing + "}}]\n", want: "missing.pem"},
		"remote read twice":        {metrics: w.newMetrics + "remote_read: [{url: 'http://127.0.0.1:1/'}, {url: 'http://127.0.0.1:1/'}]\n", want: "duplicate section"},
		"TLS of a profile job":     {profiles: replaced(w.newProf, "job_name: new", "job_name: new"+badTLS), want: "missing.pem"},
		"unknown key of profiles":  {profiles: w.newProf + "nonsense: 1\n", want: "nonsense"},
		"unknown key":              {metrics: w.newMetrics + "nonsense: 1\n", want: "nonsense"},
		"log level":                {metrics: replaced(w.newMetrics, "runtime: {", "runtime: {log_level: loud, "), want: "loud"},
		"a file with further jobs": {before: func() { writeFile(t, filepath.Join(w.dir, "jobs.yml"), "nonsense: 1\n") }, after: func() { writeFile(t, filepath.Join(w.dir, "jobs.yml"), "scrape_configs: []\n") }, want: "jobs.yml"},
		"storage": {
			metrics: replaced(w.newMetrics, "tsdb: {", "tsdb: {out_of_order_time_window: 10m, "),
			before:  func() { writeFile(t, filepath.Join(w.data, "wbl"), "") },
			after:   func() { _ = os.Remove(filepath.Join(w.data, "wbl")) },
			want:    "storage",
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := w.state()
			if tt.metrics == "" {
				tt.metrics = w.newMetrics
			}
			if tt.profiles == "" {
				tt.profiles = w.newProf
			}
			w.write(t, tt.metrics, tt.profiles)
			if tt.before != nil {
				tt.before()
				defer tt.after()
			}
			if status, body := w.post("/-/reload", "", ""); status != http.StatusInternalServerError || !strings.Contains(body, tt.want) {
				t.Errorf("%d %s, want %q", status, body, tt.want)
			}
			if after := w.state(); after != before {
				t.Errorf("before:\n%s\nafter:\n%s", before, after)
			}
			mark := "vector(" + fmt.Sprint(time.Now().UnixNano()) + ")"
			w.instant(mark)
			if text, err := os.ReadFile(filepath.Join(w.dir, "old.log")); err != nil || !strings.Contains(string(text), mark) {
				t.Errorf("the old query log is not written: %v", err)
			}
		})
	}
	metrics, profiles := w.requests.oldMetrics.Load(), w.requests.oldProfiles.Load()
	eventually(t, 60*time.Second, "further requests by the old configuration", func() bool {
		return w.requests.oldMetrics.Load() > metrics+4 && w.requests.oldProfiles.Load() > profiles+8
	})
	// A component may use the new configuration until a later component refuses it, and
	// not longer.
	newMetrics, newProfiles := w.requests.newMetrics.Load(), w.requests.newProfiles.Load()
	eventually(t, 60*time.Second, "more requests by the old configuration", func() bool {
		return w.requests.oldMetrics.Load() > metrics+8 && w.requests.oldProfiles.Load() > profiles+16
	})
	if m, p := w.requests.newMetrics.Load(), w.requests.newProfiles.Load(); m != newMetrics || p != newProfiles {
		t.Errorf("%d and %d requests by configurations that were refused", m-newMetrics, p-newProfiles)
	}
	before := w.state()
	w.write(t, w.newMetrics, w.newProf)
	if status, body := w.post("/-/reload", "", ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	if w.state() == before {
		t.Error("a valid configuration changes nothing")
	}
	eventually(t, 60*time.Second, "requests by the new configuration", func() bool {
		return w.requests.newMetrics.Load() > newMetrics && w.requests.newProfiles.Load() > newProfiles
	})
}

func TestServe_ReloadWithoutExternalLabelsIsRefusedIfBlocksAreShipped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	writeFile(t, file, "global: {external_labels: {cluster: eu}}\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, t.TempDir(), "")(o)
		o.Web.EnableLifecycle = true
	})
	writeFile(t, file, "global: {query_log_file: queries.log}\n")
	if status, body := s.post("/-/reload", "", ""); status != http.StatusInternalServerError || !strings.Contains(body, "external_labels") {
		t.Errorf("%d %s", status, body)
	}
	if _, body := s.get("/api/v1/status/config"); !strings.Contains(body, "cluster: eu") {
		t.Error(body)
	}
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func TestServe_LogLevelOfTheFileOverridesTheFlag(t *testing.T) {
	target := httptest.NewServer(http.NotFoundHandler())
	defer target.Close()
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	write := func(more string) {
		writeFile(t, file, more+"\nscrape_configs: [{job_name: a, scrape_interval: 200ms, scrape_timeout: 200ms, static_configs: [{targets: ['"+strings.TrimPrefix(target.URL, "http://")+"']}]}]\n")
	}
	for _, tt := range []struct{ flag, file, want string }{
		{"error", "", "error"}, {"warn", "runtime: {gogc: 80}", "warn"}, {"debug", "", "debug"}, {"error", "runtime: {log_level: info}", "info"},
		{"debug", "runtime: {log_level: warn}", "warn"}, {"debug", "runtime: {}", "debug"},
	} {
		write(tt.file)
		level := promslog.NewLevel()
		if err := level.Set(tt.flag); err != nil {
			t.Fatal(err)
		}
		s := startServe(t, func(o *app.ServeOptions) {
			o.ConfigFile, o.Web.EnableLifecycle = file, true
			o.LogLevel, o.Logger = level, slog.New(slog.DiscardHandler)
		})
		check := func(when, want string) {
			if got := level.String(); got != want {
				t.Errorf("flag %s, file %q, %s: the level is %s, want %s", tt.flag, tt.file, when, got, want)
			}
		}
		check("once ready", tt.want)
		for _, more := range []string{tt.file, "runtime: {log_level: error}", tt.file} {
			write(more)
			if status, body := s.post("/-/reload", "", ""); status != http.StatusOK {
				t.Fatalf("%d %s", status, body)
			}
			if more != tt.file {
				check("after a reload", "error")
			} else {
				check("after a reload", tt.want)
			}
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServe_LogLevelErrorLogsNothingIfNothingFails(t *testing.T) {
	program, port := binary(t), freePort(t)
	for flag, want := range map[string]bool{"error": false, "debug": true} {
		log := &lockedBuffer{}
		cmd := commandOf(t, program, "serve", fmt.Sprintf("--web.listen-address=127.0.0.1:%d", port), "--grpc-address=", "--storage.tsdb.path="+t.TempDir(), "--log.level="+flag)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s := &server{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", port), ready: "/-/ready"}
		s.waitReady()
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil { // nothing changed
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v:\n%s", err, log)
		}
		for _, level := range []string{"level=INFO", "level=DEBUG"} {
			if got := strings.Contains(log.String(), level); got != want {
				t.Errorf("--log.level=%s: has %s: %t:\n%s", flag, level, got, log)
			}
		}
	}
}
