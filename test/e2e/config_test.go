package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/promslog"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// newServe returns the error of creating a server with the options.
func newServe(t *testing.T, change func(*app.ServeOptions)) error {
	t.Helper()
	opts := app.ServeOptions{
		Web:    app.WebOptions{ListenAddress: "127.0.0.1:0"},
		Store:  tsdb.Options{Dir: t.TempDir()},
		Logger: slog.New(slog.DiscardHandler),
	}
	change(&opts)
	_, err := app.NewServe(opts)
	return err
}

func TestServe_InvalidConfigurationIsRefusedAtStart(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"global: {scrape_interval: 1m}\nnonsense: 1\n":                                   "line 2: field nonsense not found",
		"scrape_configs:\n- job_name: a\n  abacus_sd_configs: [{region: x}]\n":           "field abacus_sd_configs not found",
		"scrape_configs:\n- job_name: a\n  scrape_timeout: 9m\n":                         "scrape timeout greater than scrape interval",
		"scrape_config_files: [more.yml]\n":                                              "more.yml",
		"storage: {tsdb: {retention: {percentage: 101}}}\n":                              "must be in the range [0, 100]",
		"storage: {tsdb: {retention: {size: -1GB}}}\n":                                   "retention.size",
		"storage: {tsdb: {retention: {time: -1d}}}\n":                                    "duration",
		"storage: {tsdb: {retention: {time: 300000y}}}\n":                                "duration",
		"scrape_configs:\n- job_name: a\n  relabel_configs: [{regex: '('}]\n":            "missing closing )",
		"scrape_configs:\n- job_name: a\n  basic_auth: {}\n  authorization: {type: x}\n": "at most one of basic_auth",
	} {
		file := writeFile(t, filepath.Join(dir, "prometheus.yml"), text)
		writeFile(t, filepath.Join(dir, "more.yml"), "scrape_configs:\n- nonsense: 1\n")
		err := newServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%q: got %v, want %q and the file's name", text, err, want)
		}
	}
}

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
		"broken YAML":              {metrics: w.newMetrics + "  - [\n", want: "yaml"},
		"bad interval":             {metrics: replaced(w.newMetrics, "job_name: new", "job_name: new\n  scrape_interval: soon"), want: "soon"},
		"job named twice":          {metrics: replaced(w.newMetrics, "job_name: new", "job_name: shared"), want: "shared"},
		"bad relabelling":          {metrics: replaced(w.newMetrics, "job_name: new", "job_name: new\n  relabel_configs: [{action: explode}]"), want: "explode"},
		"unlinked service":         {metrics: replaced(w.newMetrics, "job_name: new", "job_name: new\n  abacus_sd_configs: [{role: pod}]"), want: "abacus"},
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
			w.reloadFails(tt.want)
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
	w.mustReload()
	if w.state() == before {
		t.Error("a valid configuration changes nothing")
	}
	eventually(t, 60*time.Second, "requests by the new configuration", func() bool {
		return w.requests.newMetrics.Load() > newMetrics && w.requests.newProfiles.Load() > newProfiles
	})
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
		noError(t, level.Set(tt.flag))
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
			s.mustReload()
			if more != tt.file {
				check("after a reload", "error")
			} else {
				check("after a reload", tt.want)
			}
		}
		noError(t, s.stop())
	}
}

func TestServe_LogLevelErrorLogsNothingIfNothingFails(t *testing.T) {
	for flag, want := range map[string]bool{"error": false, "debug": true} {
		address := freeAddress(t)
		p := startProgram(t, address, nil, "serve", "--web.listen-address="+address, "--grpc-address=", "--storage.tsdb.path="+t.TempDir(), "--log.level="+flag)
		p.ready = "/-/ready"
		p.waitReady()
		noError(t, p.cmd.Process.Signal(syscall.SIGHUP)) // nothing changed
		noError(t, p.signal(os.Interrupt))
		for _, level := range []string{"level=INFO", "level=DEBUG"} {
			if got := strings.Contains(p.log.String(), level); got != want {
				t.Errorf("--log.level=%s: has %s: %t:\n%s", flag, level, got, p.log)
			}
		}
	}
}

// unitArgs returns the arguments in a file of cmd/ferula/testdata/args, with the
// directories of a real machine replaced by one of the test, and free ports.
func unitArgs(t *testing.T, name, dir string) (args []string) {
	t.Helper()
	text := try(os.ReadFile("../../cmd/ferula/testdata/args/" + name)).must(t)
	variable := ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if value, ok := strings.CutPrefix(line, `Environment="ARGS=`); ok {
			variable = strings.TrimSuffix(value, `"`)
		}
		if start, ok := strings.CutPrefix(line, "ExecStart="); ok {
			args = strings.Fields(strings.Replace(start, "$ARGS", variable, 1))[1:]
		}
		if strings.HasPrefix(line, "--") {
			args = append(args, line)
		}
	}
	for i, arg := range args {
		flag, value, ok := strings.Cut(arg, "=")
		if ok && strings.HasPrefix(value, "/") && flag != "--web.route-prefix" {
			args[i] = flag + "=" + filepath.Join(dir, value)
		}
		if flag == "--web.listen-address" {
			args[i] = flag + "=" + strings.Replace(value, ":9090", ":0", 1)
		}
	}
	return args
}

// A Prometheus is replaced without a change of its command line.
func TestServe_CommandLinesOfPrometheusStartUnchanged(t *testing.T) {
	const config = "global: {external_labels: {replica: a}}\nscrape_configs:\n- job_name: none\n  static_configs: []\n"
	for name, c := range map[string]struct {
		more    []string // values that the test needs, after the unchanged arguments
		ignored []string
	}{
		"debian.service":          {nil, []string{"--web.console.templates", "--web.user-assets", "--enable-feature=auto-gomaxprocs"}},
		"prometheus-operator.txt": {[]string{"--log.level=info", "--log.format=logfmt"}, []string{"--web.page-title"}},
		"kube-prometheus.txt":     {[]string{"--web.listen-address=127.0.0.1:0"}, []string{"--web.console.libraries"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for path, text := range map[string]string{
				"etc/prometheus/prometheus.yml":                 config,
				"etc/prometheus/config_out/prometheus.env.yaml": config,
				"etc/prometheus/web_config/web-config.yaml":     "{}\n",
				"prometheus/thanos.shipper.json":                `{"version": 1, "uploaded": []}`,
			} {
				path = filepath.Join(dir, path)
				noError(t, os.MkdirAll(filepath.Dir(path), 0o755))
				writeFile(t, path, text)
			}
			if name == "debian.service" { // systemd's StateDirectory
				noError(t, os.MkdirAll(filepath.Join(dir, "var/lib/prometheus"), 0o755))
			}
			p := startProcess(t, binary(t), slices.Concat([]string{"serve"}, unitArgs(t, name, dir), c.more)...)
			p.expect("/-/ready", 200)
			for _, flag := range c.ignored {
				if n := strings.Count(p.log.String(), "flag="+flag+" "); n != 1 && strings.Count(p.log.String(), `flag="`+flag+`" `) != 1 {
					t.Errorf("%s is named %d times", flag, n)
				}
			}
			noError(t, p.signal(os.Interrupt))
		})
	}
}

func TestCommandLine_ErrorsAreShortWithExitCodeTwo(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"serve --query.timeout=soon": "ferula: error: --query.timeout: not a valid duration string: \"soon\"\nRun \"ferula serve --help\" for the flags.\n",
		"serve --enable-feature=otlp-deltatocumulative,otlp-native-delta-ingestion": "ferula: error: --enable-feature=otlp-deltatocumulative and otlp-native-delta-ingestion exclude each other\nRun \"ferula serve --help\" for the flags.\n",
		"query --selector-label=a=b":                 "ferula: error: --selector-label=a=b: must be name=\"value\"\nRun \"ferula query --help\" for the flags.\n",
		"sidecar --objstore.config-file=/nonexisten": "ferula: error: --objstore.config-file: open /nonexisten: no such file or directory\nRun \"ferula sidecar --help\" for the flags.\n",
		"query-frontend --log.level":                 "ferula: error: --log.level: a value is missing\nRun \"ferula query-frontend --help\" for the flags.\n",
		"nonsense":                                   "ferula: error: unexpected argument nonsense\nRun \"ferula --help\" for the flags.\n",
	} {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, binary(t), strings.Fields(args)...)
		cmd.Dir = t.TempDir() // where an accepted command line would store data
		out, err := cmd.CombinedOutput()
		stop()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || string(out) != want {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
}

func TestLimits_ErrorsNameTheFlagThatRaisesThem(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})) // ready
	defer backend.Close()
	front := startProcess(t, binary(t), "query-frontend", "--http-address=127.0.0.1:0", "--query-frontend.downstream-url="+backend.URL, "--limits.max-query-bytes=5B", "--query-range.max-query-length=1h")
	for path, want := range map[string]string{
		"/api/v1/query?query=123456":                           "query length: 6 bytes, at most 5 bytes (--limits.max-query-bytes)",
		"/api/v1/query_range?query=1&start=0&end=7200&step=60": "query range: 2h0m0s, at most 1h0m0s (--query-range.max-query-length)",
	} {
		front.expect(path, 422, want)
	}
	noError(t, front.signal(os.Interrupt))
	serve := startProcess(t, binary(t), "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+t.TempDir(), "--profiles.query.max-range=1h")
	resp := try(http.Post(serve.base+"/querier.v1.QuerierService/SelectMergeStacktraces", "application/json", strings.NewReader(`{"profileTypeID":"process_cpu:cpu:nanoseconds:cpu:nanoseconds","labelSelector":"{}","start":"0","end":"7200000"}`))).must(t)
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), "(--profiles.query.max-range)") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	noError(t, serve.signal(os.Interrupt))
}

// TestProcess_SIGHUPEndsNone sends SIGHUP to every process. The peers do not end at the
// signal, and log rotation may send it to every process.
func TestProcess_SIGHUPEndsNone(t *testing.T) {
	for name, args := range map[string][]string{
		"query":          {"--grpc-address=127.0.0.1:0"},
		"query-frontend": {"--query-frontend.downstream-url=http://127.0.0.1:9"},
		"sidecar":        {"--grpc-address=127.0.0.1:0", "--prometheus.url=http://127.0.0.1:9", "--tsdb.path=" + t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			address := freeAddress(t)
			p := startProgram(t, address, nil, append([]string{name, "--http-address=" + address}, args...)...)
			noError(t, p.cmd.Process.Signal(syscall.SIGHUP))
			p.logged(t, regexp.MustCompile("SIGHUP"))
			noError(t, p.signal(os.Interrupt))
		})
	}
}
