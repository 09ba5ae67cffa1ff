package e2e

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/tsdb"
)

func (s *server) post(path, contentType, body string) (int, string) {
	s.t.Helper()
	resp, err := http.Post(s.base+path, contentType, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text := make([]byte, 4096)
	n, _ := resp.Body.Read(text)
	return resp.StatusCode, string(text[:n])
}

func TestServe_ReloadAppliesTheNewConfigurationAndABadFileKeepsTheOldOne(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prometheus.yml")
	write := func(job, more string) {
		writeFile(t, file, "scrape_configs:\n- job_name: "+job+"\n  static_configs: [{targets: ['127.0.0.1:1']}]\n"+more)
	}
	write("one", "")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.EnableLifecycle = file, true })
	jobIs := func(job string) bool {
		_, body := s.get("/api/v1/status/config")
		return strings.Contains(body, "job_name: "+job)
	}
	if !jobIs("one") {
		t.Fatal("the first configuration is not loaded")
	}
	write("two", "")
	if status, body := s.post("/-/reload", "", ""); status != http.StatusOK || !jobIs("two") {
		t.Fatalf("reload: %d %s", status, body)
	}
	for name, bad := range map[string]string{
		"unknown key":          "  nonsense: 1\n",
		"broken YAML":          "  - [\n",
		"bad interval":         "  scrape_interval: soon\n",
		"job named twice":      "- job_name: three\n",
		"bad relabelling":      "  relabel_configs: [{action: explode}]\n",
		"unwritable query log": "global: {query_log_file: /nowhere/queries.log}\n",
		"unlinked service":     "  abacus_sd_configs: [{role: pod}]\n",
	} {
		write("three", bad)
		status, body := s.post("/-/reload", "", "")
		if status != http.StatusInternalServerError || !strings.HasPrefix(body, "failed to reload config: ") {
			t.Errorf("%s: %d %s", name, status, body)
		}
		if !jobIs("two") {
			t.Errorf("%s: the old configuration was replaced", name)
		}
		if _, info := s.get("/api/v1/status/runtimeinfo"); !strings.Contains(info, `"reloadConfigSuccess":false`) {
			t.Errorf("%s: runtimeinfo reports success: %s", name, info)
		}
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "prometheus_config_last_reload_successful 0") {
		t.Error("prometheus_config_last_reload_successful is not 0 after a failed reload")
	}
	write("four", "")
	if status, body := s.post("/-/reload", "", ""); status != http.StatusOK || !jobIs("four") {
		t.Fatalf("reload after failures: %d %s", status, body)
	}
	eventually(t, 60*time.Second, "scraping by the new configuration", func() bool {
		_, body := s.get("/api/v1/scrape_pools")
		return strings.Contains(body, `["four"]`)
	})
}

func TestServe_LifecycleRequestsAreRefusedUnlessEnabled(t *testing.T) {
	s := startServe(t, nil)
	for _, path := range []string{"/-/reload", "/-/quit"} {
		if status, body := s.post(path, "", ""); status != http.StatusForbidden || !strings.Contains(body, "not enabled") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestServe_QuitStopsTheServer(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.Web.EnableLifecycle = true })
	if status, body := s.post("/-/quit", "", ""); status != http.StatusOK {
		t.Fatalf("%d %s", status, body)
	}
	eventually(t, 60*time.Second, "the server to stop", func() bool {
		status, _ := s.get("/-/healthy")
		return status == 0
	})
}

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
	for name, change := range map[string]func(*app.ServeOptions){
		"no such file":                      func(o *app.ServeOptions) { o.ConfigFile = filepath.Join(dir, "none.yml") },
		"listen on nonsense":                func(o *app.ServeOptions) { o.Web.ListenAddress = "nonsense" },
		"--web.cors.origin: ":               func(o *app.ServeOptions) { o.Web.CORSOrigin = "(" },
		"--web.external-url: ":              func(o *app.ServeOptions) { o.Web.ExternalURL = `"http://x/"` },
		"--query.max-samples: ":             func(o *app.ServeOptions) { o.Query.MaxSamples = -1 },
		"--storage.tsdb.wal-segment-size: ": func(o *app.ServeOptions) { o.Store.WALSegmentBytes = 1 },
		"--storage.tsdb.retention.size: ":   func(o *app.ServeOptions) { o.Store.RetentionBytes = -1 },
	} {
		err := newServe(t, change)
		if err == nil || (name != "no such file" && !strings.Contains(err.Error(), name)) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestServe_StatusConfigHidesPasswords(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs:\n- job_name: a\n  basic_auth: {username: eve, password: apple}\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
	if _, body := s.get("/api/v1/status/config"); strings.Contains(body, "apple") || !strings.Contains(body, `\u003csecret\u003e`) {
		t.Fatal(body)
	}
}

func TestServe_QueryLogIsWritten(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "queries.log")
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), "global: {query_log_file: "+log+"}\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
	s.instant("vector(42)")
	text, err := os.ReadFile(log)
	if err != nil || !strings.Contains(string(text), "vector(42)") || !strings.Contains(string(text), "/api/v1/query") {
		t.Fatalf("%v: %s", err, text)
	}
}

func TestServe_BasicAuthGuardsEveryRoute(t *testing.T) {
	const appleInBcrypt = "$2a$04$ZPhz8rfdmpae1mBwsJUU1ugnOw3VCQbDPPYb9UM60sEIvn6WarITe"
	file := writeFile(t, filepath.Join(t.TempDir(), "web.yml"), "basic_auth_users:\n  eve: "+appleInBcrypt+"\n")
	s := startServe(t, func(o *app.ServeOptions) { o.Web.ConfigFile = file }) // the test client logs in as eve
	s.base = strings.Replace(s.base, "eve:apple@", "", 1)
	for _, path := range []string{"/", "/metrics", "/-/healthy", "/api/v1/query?query=1", "/debug/pprof/"} {
		if status, _ := s.get(path); status != http.StatusUnauthorized {
			t.Errorf("GET %s without a password: %d", path, status)
		}
	}
	if err := newServe(t, func(o *app.ServeOptions) { o.Web.ConfigFile = writeFile(t, file, "nonsense: 1\n") }); err == nil {
		t.Error("a web configuration with an unknown key was accepted")
	}
}
