package e2e

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// unitArgs returns the arguments in a file of cmd/ferula/testdata/args, with the
// directories of a real machine replaced by one of the test, and free ports.
func unitArgs(t *testing.T, name, dir string) (args []string) {
	t.Helper()
	text, err := os.ReadFile("../../cmd/ferula/testdata/args/" + name)
	if err != nil {
		t.Fatal(err)
	}
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
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				writeFile(t, path, text)
			}
			if name == "debian.service" { // systemd's StateDirectory
				if err := os.MkdirAll(filepath.Join(dir, "var/lib/prometheus"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			p := startProcess(t, binary(t), slices.Concat([]string{"serve"}, unitArgs(t, name, dir), c.more)...)
			if status, body := p.get("/-/ready"); status != 200 {
				t.Errorf("%d %s", status, body)
			}
			for _, flag := range c.ignored {
				if n := strings.Count(p.log.String(), "flag="+flag+" "); n != 1 && strings.Count(p.log.String(), `flag="`+flag+`" `) != 1 {
					t.Errorf("%s is named %d times", flag, n)
				}
			}
			if err := p.signal(os.Interrupt); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestCommandLine_ErrorsAreShortWithExitCodeTwo(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"serve --query.timeout=soon":                 "ferula: error: --query.timeout: not a valid duration string: \"soon\"\nRun \"ferula serve --help\" for the flags.\n",
		"serve --enable-feature=st-storage":          "ferula: error: --enable-feature=st-storage is not supported: start timestamps are not stored\nRun \"ferula serve --help\" for the flags.\n",
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
		if status, body := front.get(path); status != 422 || !strings.Contains(body, want) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if err := front.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	serve := startProcess(t, binary(t), "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+t.TempDir(), "--profiles.query.max-range=1h")
	resp, err := http.Post(serve.base+"/querier.v1.QuerierService/SelectMergeStacktraces", "application/json", strings.NewReader(`{"profileTypeID":"process_cpu:cpu:nanoseconds:cpu:nanoseconds","labelSelector":"{}","start":"0","end":"7200000"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); !strings.Contains(string(body), "(--profiles.query.max-range)") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
	if err := serve.signal(os.Interrupt); err != nil {
		t.Error(err)
	}
}
