package e2e

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// secretMark is part of every secret in the configuration of a test.
const secretMark = "PLANTED"

// startProgram runs the binary with HTTP on address, and waits until /-/healthy is 200.
func startProgram(t *testing.T, address string, env []string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary(t), args...)
	cmd.Env = append(cmd.Environ(), env...)
	p := launchCommand(t, cmd)
	p.server = &server{t: t, base: "http://" + address, ready: "/-/healthy"}
	p.waitReady()
	return p
}

// secretPaths are paths whose responses could contain the configuration. Parts respond with 404 to those of others.
var secretPaths = []string{
	"/api/v1/openapi.yaml", "/api/v1/alerts", "/api/v1/metadata", "/api/v1/query_exemplars?query=up&start=0&end=10", "/api/v1/format_query?query=up",
	"/api/v1/status/walreplay", "/api/v1/blocks", "/blocks", "/loaded", "/graph", "/flags", "/config", "/debug/vars", "/debug/pprof/allocs?debug=1",
	"/debug/pprof/goroutine?debug=1", "/api/v1/exemplar/flamegraph?profile_id=1", "/api/v1/query_explain?query=up", "/-/healthy",
	"/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/debug/pprof/", "/metrics", "/-/ready",
	"/api/v1/status/flags", "/api/v1/status/config", "/api/v1/status/runtimeinfo", "/api/v1/targets", "/api/v1/stores",
	"/api/v1/query?query=up", "/api/v1/query_range?query=up&start=0&end=10&step=5", "/api/v1/series?match[]=up", "/api/v1/labels", "/api/v1/read", "/",
	"/api/v1/rules", "/api/v1/alertmanagers", "/api/v1/scrape_pools", "/api/v1/targets/metadata", "/api/v1/status/tsdb", "/api/v1/status/buildinfo", "/api/v1/features",
	"/api/v1/query?query=up%7Bx%3D", "/api/v1/unknown", "/federate?match[]=up", "/debug/pprof/heap?debug=1", "/debug/pprof/symbol",
}

// checkNoSecrets requests secretPaths, stops the program, and fails the test if a
// response or the output contains a secret.
func (p *process) checkNoSecrets(t *testing.T) {
	t.Helper()
	for _, path := range secretPaths {
		if text := p.whole(path); strings.Contains(text, secretMark) {
			t.Errorf("%s shows a secret:\n%s", path, linesWith(text, secretMark))
		}
	}
	p.expect("/debug/pprof/cmdline", 0, "\x00--", "<secret>")
	_ = p.signal(syscall.SIGTERM) // any exit status is fine
	if log := p.log.String(); strings.Contains(log, secretMark) || len(log) == 0 {
		t.Errorf("the output shows a secret, or is empty:\n%s", linesWith(log, secretMark))
	}
}

// whole returns a response with its headers, of a redirect, too.
func (p *process) whole(path string) string {
	p.t.Helper()
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Get(p.base + path)
	if err != nil {
		p.t.Fatalf("%s: %v", path, err)
	}
	defer resp.Body.Close()
	var text bytes.Buffer
	noError(p.t, resp.Header.Write(&text))
	if _, err := text.ReadFrom(resp.Body); err != nil {
		p.t.Errorf("%s: %v", path, err)
	}
	return text.String()
}

// collected is a server that keeps the bodies of all requests: a receiver of spans or an Alertmanager.
type collected struct {
	*httptest.Server
	mu   sync.Mutex
	text bytes.Buffer
}

func collect(t *testing.T) *collected {
	t.Helper()
	c := &collected{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		_, _ = c.text.ReadFrom(r.Body) // a cut body is a part of it
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collected) address() string { return strings.TrimPrefix(c.URL, "http://") }

func (c *collected) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.String()
}

// otlp is the configuration of a part that sends its spans here.
func (c *collected) otlp() string {
	return "--tracing.config=" + strings.Replace(otlpText, "127.0.0.1:1", c.address(), 1)
}

// checkNoSecrets fails the test if something secret was received, or if want was not.
func (c *collected) checkNoSecrets(t *testing.T, want string) {
	t.Helper()
	if text := c.String(); strings.Contains(text, secretMark) || !strings.Contains(text, want) {
		at := max(0, strings.Index(text, secretMark))
		t.Errorf("received a secret, or no %q among %d bytes: %q", want, len(text), text[max(0, at-100):min(len(text), at+100)])
	}
}

func linesWith(text, part string) string {
	var found []string
	for line := range strings.SplitSeq(text, "\n") {
		if strings.Contains(line, part) {
			found = append(found, line)
		}
	}
	return strings.Join(found, "\n")
}

const (
	// Nothing listens on these addresses, so that clients fail and log the error.
	s3Config = "type: S3\nconfig:\n  bucket: b\n  endpoint: 127.0.0.1:1\n  insecure: true\n  access_key: PLANTED-access\n  secret_key: $(SECRET_KEY)\n"
	otlpText = "type: OTLP\nconfig:\n  client_type: http\n  endpoint: 127.0.0.1:1\n  insecure: true\n  headers: {authorization: Bearer PLANTED-tracing}\n"
)

var secretEnvironment = []string{"SECRET_KEY=PLANTED-environment"}

func TestServe_ShowsNoSecrets(t *testing.T) {
	t.Parallel()
	dir, spans, alerts := t.TempDir(), collect(t), collect(t)
	writeFile(t, filepath.Join(dir, "rules.yml"), "groups: [{name: a, interval: 1s, rules: [{alert: Always, expr: vector(1), annotations: {link: '{{ externalURL }}/page'}}]}]\n")
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), `
global: {external_labels: {replica: a}, evaluation_interval: 1s, scrape_interval: 1s, scrape_timeout: 1s}
rule_files: [rules.yml]
tracing: {client_type: http, endpoint: '`+spans.address()+`', insecure: true, sampling_fraction: 1, headers: {x-key: PLANTED-tracing}}
scrape_configs:
  - job_name: basic
    basic_auth: {username: eve, password: PLANTED-basic}
    static_configs: [{targets: ["127.0.0.1:1"]}]
  - job_name: bearer
    authorization: {credentials: PLANTED-bearer}
    http_headers: {X-Key: {secrets: [PLANTED-header]}}
    proxy_url: http://eve:PLANTED-proxy@127.0.0.1:1/
    static_configs: [{targets: ["127.0.0.1:1"]}]
    consul_sd_configs: [{server: "127.0.0.1:1", token: PLANTED-consul}]
    params: {match: [x]}
remote_read:
  - url: http://eve:PLANTED-read@127.0.0.1:1/api/v1/read
    read_recent: true
    headers: {X-Read-Key: PLANTED-read-header}
remote_write:
  - url: http://eve:PLANTED-write@127.0.0.1:1/write
    headers: {X-Api-Key: PLANTED-write-header}
    queue_config: {batch_send_deadline: 1s}
  - url: http://127.0.0.1:1/basic
    name: basic
    basic_auth: {username: eve, password: PLANTED-write-basic}
    queue_config: {batch_send_deadline: 1s}
  - url: http://127.0.0.1:1/bearer
    authorization: {credentials: PLANTED-write-bearer}
    http_headers: {X-Key: {secrets: [PLANTED-write-secret]}}
  - url: http://127.0.0.1:1/oauth2
    oauth2: {client_id: eve, client_secret: PLANTED-oauth2, token_url: "http://eve:PLANTED-token@127.0.0.1:1/"}
  - url: http://127.0.0.1:1/sigv4
    sigv4: {region: eu, access_key: eve, secret_key: PLANTED-sigv4}
alerting:
  alertmanagers:
    - basic_auth: {username: eve, password: PLANTED-alertmanager}
      static_configs: [{targets: ["127.0.0.1:1", "`+alerts.address()+`"]}]
`)
	address := freeAddress(t)
	p := startProgram(t, address, secretEnvironment, "serve", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--grpc-address=127.0.0.1:0", "--web.external-url=http://eve:PLANTED-url@"+address+"/", "--log.level=debug", "--storage.remote.flush-deadline=1s",
		"--rules.alert.resend-delay=1s",
		"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h", "--objstore.config", s3Config)
	eventually(t, 60*time.Second, "it to be ready", func() bool { status, _ := p.get("/-/ready"); return status == http.StatusOK })
	eventually(t, 60*time.Second, "remote write and scrapes to fail", func() bool {
		_, metrics := p.get("/metrics")
		_, targets := p.get("/api/v1/targets")
		return strings.Contains(metrics, "prometheus_remote_storage_shards{") && strings.Contains(targets, `"health":"down"`) && strings.Contains(p.log.String(), "/write")
	})
	eventually(t, 60*time.Second, "an alert to be sent", func() bool { return strings.Contains(alerts.String(), "/page") })
	p.checkNoSecrets(t)
	alerts.checkNoSecrets(t, "g0.expr=vector")
	spans.checkNoSecrets(t, "/api/v1/query_range")
}

func TestQuery_ShowsNoSecrets(t *testing.T) {
	t.Parallel()
	address, spans := freeAddress(t), collect(t)
	p := startProgram(t, address, nil, "query", "--http-address="+address, "--grpc-address=127.0.0.1:0", "--log.level=debug",
		spans.otlp(), "--endpoint=127.0.0.1:1", "--endpoint.sd-config=endpoints: [] # PLANTED", "--selector.relabel-config=[] # PLANTED")
	p.checkNoSecrets(t)
	spans.checkNoSecrets(t, "/api/v1/query_range")
}

func TestFrontend_ShowsNoSecrets(t *testing.T) {
	address := freeAddress(t)
	redis := "type: REDIS\nconfig: {addr: \"127.0.0.1:1\", username: eve, password: PLANTED-redis}"
	p := startProgram(t, address, nil, "query-frontend", "--http-address="+address, "--log.level=debug", "--query-frontend.log-queries-longer-than=-1s",
		"--query-frontend.downstream-url=http://eve:PLANTED-downstream@127.0.0.1:1/", "--tracing.config", otlpText, "--query-range.max-retries-per-request=0",
		"--query.max-retries-per-request=0", "--labels.max-retries-per-request=0",
		"--query-range.response-cache-config", redis, "--labels.response-cache-config="+redis,
		"--query-frontend.downstream-tripper-config=max_idle_conns_per_host: 10 # PLANTED")
	p.checkNoSecrets(t)
}

// The URL of the downstream is no attribute of a span with its password.
func TestFrontend_SpansHaveNoSecrets(t *testing.T) {
	t.Parallel()
	downstream, spans, address := startServe(t, idle(t)), collect(t), freeAddress(t)
	p := startProgram(t, address, nil, "query-frontend", "--http-address="+address, "--log.level=debug", spans.otlp(),
		"--query-frontend.downstream-url=http://eve:PLANTED-downstream@"+strings.TrimPrefix(downstream.base, "http://"))
	p.expect("/api/v1/query_range?query=vector(7)&start=0&end=10&step=5", http.StatusOK)
	p.checkNoSecrets(t)
	spans.checkNoSecrets(t, "query_range")
}

func TestSidecar_ShowsNoSecrets(t *testing.T) {
	prometheus := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = configFile(t, "replica: a")
		o.Flags = map[string]string{"storage.tsdb.min-block-duration": "2h", "storage.tsdb.max-block-duration": "2h"}
	})
	prometheusAddress := strings.TrimPrefix(prometheus.base, "http://")
	address, listening, spans := freeAddress(t), freeAddress(t), collect(t)
	p := startProgram(t, address, secretEnvironment, "sidecar", "--http-address="+address, "--grpc-address="+listening, "--log.level=debug",
		"--prometheus.url=http://eve:PLANTED-url@"+prometheusAddress, "--prometheus.http-client", "basic_auth: {username: eve, password: PLANTED-client}",
		spans.otlp(), "--tsdb.path="+t.TempDir(), "--objstore.config="+s3Config)
	eventually(t, 60*time.Second, "it to be ready", func() bool { status, _ := p.get("/-/ready"); return status == http.StatusOK })
	noError(t, prometheus.stop())
	// The error of the stopped Prometheus goes to the client.
	if _, err := readStore(t, dial(t, listening, insecure.NewCredentials()), storeapi.ClientOptions{}, everything()); err == nil || strings.Contains(err.Error(), secretMark) {
		t.Errorf("%v", err)
	}
	p.checkNoSecrets(t)
	spans.checkNoSecrets(t, "thanos.Store/Series")
}

// The bucket is not available: every listing fails and is logged.
func TestStore_ShowsNoSecrets(t *testing.T) {
	t.Parallel()
	address, listening, spans := freeAddress(t), freeAddress(t), collect(t)
	p := startProgram(t, address, secretEnvironment, "store", "--http-address="+address, "--grpc-address="+listening, "--log.level=debug", spans.otlp(),
		"--objstore.config="+s3Config, "--data-dir="+t.TempDir(), "--index-cache.config={type: IN-MEMORY} # PLANTED", "--selector.relabel-config=[] # PLANTED")
	eventually(t, 60*time.Second, "a listing to fail", func() bool { return strings.Contains(p.log.String(), "listing the blocks failed") })
	if _, err := readStore(t, dial(t, listening, insecure.NewCredentials()), storeapi.ClientOptions{}, everything()); err != nil && strings.Contains(err.Error(), secretMark) {
		t.Errorf("%v", err)
	}
	p.checkNoSecrets(t)
	spans.checkNoSecrets(t, "thanos.Store/Series")
}

func TestProfilesCompact_ShowsNoSecrets(t *testing.T) {
	t.Parallel()
	address := freeAddress(t)
	p := startProgram(t, address, secretEnvironment, "profiles", "compact", "--wait", "--http-address="+address, "--log.level=debug",
		"--objstore.config="+s3Config, "--data-dir="+t.TempDir())
	eventually(t, 60*time.Second, "an iteration to fail", func() bool { return strings.Contains(p.log.String(), "Compacting the profile blocks failed") })
	p.checkNoSecrets(t)
}

// ferula read tries, fails and prints the reason.
func TestRead_ShowsNoSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	client := writeFile(t, filepath.Join(dir, "client.yml"), "basic_auth: {username: eve, password: PLANTED-client}\n")
	out := refusedBy(t, binary(t), dir, "read", "--url=http://eve:PLANTED-url@127.0.0.1:1", "--http.config-file="+client, "--match=up", "--retries=1", "--output=out.csv")
	if strings.Contains(out, secretMark) || !strings.Contains(out, "127.0.0.1:1") {
		t.Errorf("%s", out)
	}
	files := try(os.ReadDir(dir)).must(t)
	for _, f := range files {
		if text, err := os.ReadFile(filepath.Join(dir, f.Name())); err == nil && f.Name() != "client.yml" && strings.Contains(string(text), secretMark) {
			t.Errorf("%s has a secret: %s", f.Name(), text)
		}
	}
}

func everything() storeapi.SeriesRequest {
	return storeapi.SeriesRequest{MaxMS: time.Now().UnixMilli(), Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "__name__", ".+")}}
}

func TestCommand_StartErrorsShowNoSecrets(t *testing.T) {
	for name, args := range map[string][]string{
		"invalid downstream URL":     {"query-frontend", "--query-frontend.downstream-url=http://eve:PLANTED@127.0.0.1:x y/"},
		"downstream without a host":  {"query-frontend", "--query-frontend.downstream-url=ftp://eve:PLANTED@127.0.0.1/"},
		"invalid Prometheus URL":     {"sidecar", "--prometheus.url=http://eve:PLANTED@127.0.0.1:x y/"},
		"unsupported scheme":         {"sidecar", "--prometheus.url=ftp://eve:PLANTED@127.0.0.1/"},
		"invalid external URL":       {"serve", "--web.listen-address=127.0.0.1:0", "--web.external-url=http://eve:PLANTED@127.0.0.1:x y/"},
		"bucket with an unknown key": {"serve", "--web.listen-address=127.0.0.1:0", "--objstore.config=type: S3\nconfig: {secret_key: PLANTED, unknown: 1}"},
		"tracing of an unknown type": {"query", "--tracing.config=type: JAEGER\nconfig: {headers: {a: PLANTED}}"},
		"cache with an unknown key":  {"query-frontend", "--query-range.response-cache-config=type: REDIS\nconfig: {password: PLANTED, unknown: 1}"},
		"client with an unknown key": {"sidecar", "--prometheus.http-client=basic_auth: {password: PLANTED, unknown: 1}"},
		"invalid proxy URL":          {"sidecar", "--prometheus.http-client=proxy_url: \"http://eve:PLANTED@127.0.0.1:x y/\""},
		"read from an FTP URL":       {"read", "--url=ftp://eve:PLANTED@127.0.0.1/", "--match=up", "-o=x.csv"},
		"URL to escape":              {"serve", "--web.listen-address=127.0.0.1:0", "--config.file=" + writeFile(t, filepath.Join(t.TempDir(), "a.yml"), `remote_write: [{url: "http://eve:PLANTED%x@h/"}]`)},
		"client of read":             {"read", "--url=http://127.0.0.1:1/", "--match=up", "-o=x.csv", "--http.config-file=" + writeFile(t, filepath.Join(t.TempDir(), "b.yml"), `proxy_url: "http://eve:PLANTED%x@h/"`)},
		"unset variable":             {"sidecar", "--prometheus.http-client=basic_auth: {password: PLANTED, username: $(NOT_SET_ANYWHERE)}"},
	} {
		t.Run(name, func(t *testing.T) {
			out := refusedBy(t, binary(t), t.TempDir(), args...)
			if strings.Contains(out, secretMark) || !strings.Contains(out, "error:") {
				t.Errorf("%s", out)
			}
		})
	}
}
