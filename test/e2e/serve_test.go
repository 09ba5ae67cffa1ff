package e2e

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/version"
)

func TestServe_ScrapesItselfWithoutAConfiguration(t *testing.T) {
	s := startServe(t, nil)
	s.waitValue("up", "1")
	if got := s.instant(`ferula_build_info`); len(got) != 1 || got[0].Metric["version"] != version.Current().Version {
		t.Fatalf("ferula_build_info is %v", got)
	}
	s.expect("/api/v1/metadata?metric=go_goroutines", 200, `"type":"gauge"`)
	for path, want := range map[string]string{
		"/-/healthy":                   "healthy",
		"/":                            "<html",
		"/metrics":                     "prometheus_tsdb_head_series",
		"/debug/pprof/":                "goroutine",
		"/debug/pprof/cmdline":         "e2e",
		"/api/v1/targets":              `"health":"up"`,
		"/api/v1/scrape_pools":         `["ferula"]`,
		"/api/v1/status/config":        "job_name: ferula",
		"/api/v1/status/tsdb":          `"seriesCountByMetricName":[{"name":"`,
		"/api/v1/status/runtimeinfo":   `"reloadConfigSuccess":true`,
		"/api/v1/status/buildinfo":     `"program":"ferula `,
		"/api/v1/status/walreplay":     `"current":`,
		"/api/v1/label/job/values":     `["ferula"]`,
		"/api/v1/rules":                `{"groups":[]}`,
		"/api/v1/format_query?query=1": `"1"`,
	} {
		s.expect(path, 200, want)
	}
	for path, want := range map[string]int{
		"/api/v1/nothing": 404, "/api/v2/query": 404, "/-/nothing": 404, "/assets/nothing.js": 404,
	} {
		s.expect(path, want)
	}
}

func TestServe_TargetsAreDiscoveredRelabelledAndAuthenticated(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "eve" || password != "apple" {
			http.Error(w, "wrong account", http.StatusUnauthorized)
			return
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		_, _ = io.WriteString(w, "# HELP apples_total Apples.\n# TYPE apples_total counter\napples_total{kind=\"red\"} 3\napples_total{kind=\"rotten\"} 4\n")
	}))
	defer target.Close()
	address := strings.TrimPrefix(target.URL, "http://")
	discovery := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `[{"targets":["`+address+`"],"labels":{"found_by":"http"}}]`)
	}))
	defer discovery.Close()
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "targets.json"), `[{"targets":["`+address+`"],"labels":{"found_by":"file"}}]`)
	config := writeFile(t, filepath.Join(dir, "prometheus.yml"), `
global: {scrape_interval: 500ms, scrape_timeout: 400ms, external_labels: {site: here}}
scrape_configs:
- job_name: file
  file_sd_configs: [{files: [targets.json]}]
  basic_auth: {username: eve, password: apple}
  relabel_configs: [{target_label: garden, replacement: east}]
  metric_relabel_configs: [{source_labels: [kind], regex: rotten, action: drop}]
- job_name: http
  http_sd_configs: [{url: "`+discovery.URL+`"}]
  basic_auth: {username: eve, password: wrong}
- job_name: dns
  dns_sd_configs: [{names: [_metrics._tcp.invalid], refresh_interval: 1h}]
`)
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = config
		o.Scrape.DiscoveryReloadInterval = 200 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the authenticated scrape", func() bool {
		return s.value(`apples_total{job="file",garden="east",kind="red",found_by="file"}`) == "3"
	})
	if got := s.instant(`apples_total{kind="rotten"}`); len(got) != 0 {
		t.Errorf("a sample that relabelling drops was stored: %v", got)
	}
	s.waitValue(`up{job="http"}`, "0")
	s.expect("/api/v1/targets?scrapePool=http", 0, "401 Unauthorized")
}

// refusedRoutes are the routes of Prometheus that ferula does not have, with the reason.
var refusedRoutes = map[string]string{
	"GET /consoles/*filepath": "console templates are not served",
	"GET /user/*filepath":     "files of the user are not served",
	"GET /graph":              "the page has another address, and shows it for any path",
	"POST /debug/*subpath":    "profiles are read with GET",
	"OPTIONS /*path":          "only existing paths are handled",
}

// routesOf returns the routes that a file of Prometheus registers in its router, as "METHOD
// /path".
func routesOf(t *testing.T, pkg, file, router, prefix string) (routes []string) {
	t.Helper()
	dir := try(exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()).must(t)
	parsed := try(parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), file), nil, 0)).must(t)
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 2 {
			return true
		}
		method, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if on, ok := method.X.(*ast.Ident); !ok || on.Name != router {
			return true
		}
		path, ok := call.Args[0].(*ast.BasicLit)
		if name := strings.ToUpper(method.Sel.Name); ok && strings.Contains(" GET POST PUT OPTIONS HEAD DELETE ", " "+name+" ") {
			text := try(strconv.Unquote(path.Value)).must(t)
			routes = append(routes, name+" "+prefix+text)
		}
		return true
	})
	return routes
}

func TestServe_RoutesAreThoseOfPrometheus(t *testing.T) {
	s := startServe(t, idle(t))
	routes := routesOf(t, "github.com/prometheus/prometheus/web/api/v1", "api.go", "r", "/api/v1")
	if len(routes) < 50 {
		t.Fatalf("only %d routes of the API were found", len(routes))
	}
	routes = append(routes, routesOf(t, "github.com/prometheus/prometheus/web", "web.go", "router", "")...)
	refused, preflight := 0, map[string]bool{}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if _, ok := refusedRoutes[strings.Replace(route, "/api/v1", "", 1)]; ok {
			refused++
			continue
		}
		path = strings.NewReplacer(":name", "job", "*subpath", "pprof/symbol").Replace(path)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		if !preflight[path] && strings.HasPrefix(path, "/api/v1/") {
			preflight[path] = true
			status, _, header := s.request(http.MethodOptions, path, "", "Origin", "http://grafana.example")
			if status != http.StatusNoContent || header.Get("Access-Control-Allow-Methods") == "" {
				t.Errorf("preflight request of %s: %d %v", path, status, header)
			}
		}
		req := try(http.NewRequestWithContext(ctx, method, s.base+path, nil)).must(t)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Errorf("%s: %v", route, err)
			cancel()
			continue
		}
		text := ""
		if !strings.HasSuffix(path, "/live") { // endless
			body, _ := io.ReadAll(resp.Body)
			text = string(body)
		}
		resp.Body.Close()
		cancel()
		// A receiver that is disabled responds with status 404 in both programs, and names its
		// flag. GET of a path that changes something gets 405 in both.
		off := strings.Contains(text, "--web.enable-") || strings.Contains(text, "Only POST or PUT")
		if (resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusMethodNotAllowed) && !off {
			t.Errorf("%s: status %d %s", route, resp.StatusCode, text)
		}
	}
	if refused > len(refusedRoutes) {
		t.Errorf("%d routes are refused, %d have a reason", refused, len(refusedRoutes))
	}
}

// postForm sends a form and returns status and body.
func (s *server) postForm(path string, form url.Values) (int, string) {
	s.t.Helper()
	return s.post(path, "application/x-www-form-urlencoded", form.Encode())
}

func TestServe_AdminAPIDeletesAndCopiesBehindItsFlag(t *testing.T) {
	dir := t.TempDir()
	off := startServe(t, idle(t))
	if status, body := off.postForm("/api/v1/admin/tsdb/snapshot", nil); status != http.StatusInternalServerError || !strings.Contains(body, "admin APIs disabled") {
		t.Errorf("without the flag: %d %s", status, body)
	}
	none := idle(t)
	s := startServe(t, func(o *app.ServeOptions) {
		none(o)
		o.Peer.Admin, o.Store.Dir = true, dir
	})
	now := time.Now().UnixMilli()
	s.must(v1Type, encoded(t, v1(v1Series(now, 1, "__name__", "kept"), v1Series(now, 2, "__name__", "gone"))))
	if status, body := s.postForm("/api/v1/admin/tsdb/delete_series", url.Values{"match[]": {"gone"}}); status != http.StatusNoContent {
		t.Errorf("delete: %d %s", status, body)
	}
	if s.value("gone") != "" || s.value("kept") != "1" {
		t.Errorf("after the deletion: %q and %q", s.value("gone"), s.value("kept"))
	}
	if status, body := s.postForm("/api/v1/admin/tsdb/clean_tombstones", nil); status != http.StatusNoContent {
		t.Errorf("clean: %d %s", status, body)
	}
	status, body := s.postForm("/api/v1/admin/tsdb/snapshot", nil)
	if status != http.StatusOK || !strings.Contains(body, `"name":"`) {
		t.Fatalf("snapshot: %d %s", status, body)
	}
	copies, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil || len(copies) != 1 {
		t.Fatalf("%v, %v", copies, err)
	}
	again := startServe(t, func(o *app.ServeOptions) {
		none(o)
		o.Store.Dir = filepath.Join(dir, "snapshots", copies[0].Name())
	})
	again.expectValue("1", "kept")
}

func TestServe_FederateHasTheLastSamplesWithExternalLabels(t *testing.T) {
	s := serveFile(t, "global: {external_labels: {site: north, job: other}}\n", nil)
	now := time.Now().UnixMilli()
	s.must(v1Type, encoded(t, v1(
		v1Series(now-2000, 1, "__name__", "pears", "job", "a"), v1Series(now-3000, 5, "Z", "1", "__name__", "apples", "job", "a", "instance", "i"))))
	s.must(v1Type, encoded(t, v1(v1Series(now-1000, 2, "__name__", "pears", "job", "a"))))
	status, page := s.get("/federate?match[]=pears&match[]=apples&match[]=pears")
	want := "# TYPE apples untyped\napples{Z=\"1\",instance=\"i\",job=\"a\",site=\"north\"} 5 " + strconv.FormatInt(now-3000, 10) +
		"\n# TYPE pears untyped\npears{job=\"a\",instance=\"\",site=\"north\"} 2 " + strconv.FormatInt(now-1000, 10) + "\n"
	if status != http.StatusOK || page != want {
		t.Errorf("%d\n%s, want\n%s", status, page, want)
	}
	s.expect("/federate?match[]=%7B", http.StatusBadRequest)
	if status, _, header := s.request("GET", "/federate?match[]=nothing", ""); status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), "text/plain; version=0.0.4;") {
		t.Errorf("without series: %d %v", status, header)
	}
}

// The features have the names and values of Prometheus 3.15 with the same flags. Clients, such
// as query editors, read them to find out what the server supports.
func TestServe_FeaturesAreThoseOfPrometheus(t *testing.T) {
	none := idle(t)
	s := startServe(t, func(o *app.ServeOptions) {
		none(o)
		o.Query.ExperimentalFunctions, o.Peer.Admin, o.Peer.OTLP = true, true, true
	})
	var got struct {
		Data map[string]map[string]bool
	}
	_, body := s.get("/api/v1/features")
	noError(t, json.Unmarshal([]byte(body), &got))
	for category, want := range map[string]map[string]bool{
		"api":                         {"admin": true, "lifecycle": false, "otlp_write_receiver": true, "query_warnings": true, "time_range_series": true},
		"otlp_receiver":               {"delta_conversion": false},
		"prometheus":                  {"agent_mode": false, "server_mode": true},
		"promql":                      {"at_modifier": true, "anchored": false, "per_step_stats": false, "subqueries": true},
		"promql_functions":            {"rate": true, "mad_over_time": true},
		"promql_operators":            {"atan2": true, "topk": true},
		"rules":                       {"concurrent_rule_eval": false, "keep_firing_for": true},
		"scrape":                      {"extra_scrape_metrics": true, "openmetrics2": false},
		"service_discovery_providers": {"file": true, "static": true, "kubernetes": true},
		"templating_functions":        {"humanize": true},
		"tsdb":                        {"native_histograms": true, "delayed_compaction": false},
		"ui":                          {"ui_v2": false},
	} {
		for name, on := range want {
			if value, known := got.Data[category][name]; !known || value != on {
				t.Errorf("%s %s: known %t, %t", category, name, known, value)
			}
		}
	}
	if len(got.Data) != 12 {
		t.Errorf("%d categories", len(got.Data))
	}
}

func TestServe_OTLPMetricsAreStoredBehindTheFlag(t *testing.T) {
	const body = `{"resourceMetrics":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"shop"}}]},"scopeMetrics":[{"metrics":[
{"name":"orders.open","gauge":{"dataPoints":[{"timeUnixNano":"NOW","asDouble":4,"attributes":[{"key":"region","value":{"stringValue":"north"}}]}]}}]}]}]}`
	send := func(s *server, text string) (int, string) {
		return s.post("/api/v1/otlp/v1/metrics", "application/json", text)
	}
	text := strings.Replace(body, "NOW", strconv.FormatInt(time.Now().UnixNano(), 10), 1)
	if status, reply := send(startServe(t, idle(t)), text); status != http.StatusNotFound || !strings.Contains(reply, "--web.enable-otlp-receiver") {
		t.Errorf("without the flag: %d %s", status, reply)
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "otlp: {translation_strategy: UnderscoreEscapingWithSuffixes}\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Peer.OTLP = file, true })
	if status, reply := send(s, text); status != http.StatusOK {
		t.Fatalf("%d %s", status, reply)
	}
	s.expectValue("4", `orders_open{job="shop",region="north"}`)
	if status, _ := send(s, "nonsense"); status != http.StatusBadRequest {
		t.Errorf("nonsense: %d", status)
	}
}

// TestServe_LoopbackHasOnlyItsNames sends the requests of a browser for a page whose name
// resolves to a loopback address.
func TestServe_LoopbackHasOnlyItsNames(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.Web.ExternalURL = "http://metrics.example/" })
	port := s.base[strings.LastIndex(s.base, ":"):]
	send := func(method, path, host string) int {
		status, _, _ := s.request(method, path, "a;b 1\n", "Host", host, "Origin", "http://"+host, "Sec-Fetch-Site", "same-origin")
		return status
	}
	for _, tt := range []struct{ method, path string }{
		{"POST", "/ingest?name=app&format=folded"}, {"POST", "/api/v1/write"}, {"POST", "/-/quit"}, {"GET", "/api/v1/query?query=up"}, {"GET", "/"}, {"GET", "/metrics"},
	} {
		if got := send(tt.method, tt.path, "rebind.example"+port); got != http.StatusMisdirectedRequest {
			t.Errorf("%s %s for another host: %d", tt.method, tt.path, got)
		}
		for _, host := range []string{"localhost" + port, "127.0.0.1" + port, "metrics.example"} {
			if got := send(tt.method, tt.path, host); got == http.StatusMisdirectedRequest {
				t.Errorf("%s %s for %s: %d", tt.method, tt.path, host, got)
			}
		}
	}
	now := strconv.FormatInt(time.Now().Unix()-1, 10)
	if got := send("POST", "/ingest?name=app&from="+now+"&until=now", "localhost"+port); got != http.StatusOK {
		t.Errorf("a push to localhost: %d", got)
	}
}

// TestServe_SlowHeadersDoNotFillTheConnections opens as many connections as are allowed. Their
// clients never end the headers, or never send a second request.
func TestServe_SlowHeadersDoNotFillTheConnections(t *testing.T) {
	t.Parallel()
	const connections = 8
	s := startServe(t, func(o *app.ServeOptions) { o.Web.MaxConnections = connections })
	http.DefaultClient.CloseIdleConnections()
	address := strings.TrimPrefix(s.base, "http://")
	for _, sent := range []string{"GET / HTTP/1.1\r\nHost: localhost\r\n", "", "GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
		for range connections {
			c := try(net.Dial("tcp", address)).must(t)
			defer c.Close()
			try(io.WriteString(c, sent)).must(t)
		}
		client := &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		resp, err := client.Get(s.base + "/-/healthy")
		if err != nil {
			t.Fatalf("next to connections that sent %q: %v", sent, err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("next to connections that sent %q: %d", sent, resp.StatusCode)
		}
	}
}

// eveInBcrypt is a web configuration with user eve, whose password is apple.
const eveInBcrypt = "basic_auth_users:\n  eve: $2a$04$ZPhz8rfdmpae1mBwsJUU1ugnOw3VCQbDPPYb9UM60sEIvn6WarITe\n"

// certificate writes a self-signed certificate for 127.0.0.1 and its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key := try(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).must(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert := try(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)).must(t)
	private := try(x509.MarshalPKCS8PrivateKey(key)).must(t)
	dir := t.TempDir()
	return writeFile(t, filepath.Join(dir, "cert.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		writeFile(t, filepath.Join(dir, "key.pem"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
}

func TestServe_ScrapesItselfWithBasicAuth(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "web.yml"), eveInBcrypt)
	s := startServe(t, func(o *app.ServeOptions) {
		o.Web.ConfigFile, o.Web.RoutePrefix = file, "/ferula"
		o.Web.ExternalURL = "http://metrics.example/ferula"
	})
	s.base += "/ferula"
	s.waitValue("up", "1")
	address := s.base[strings.LastIndex(s.base, "@")+1:]
	if got := s.instant("up")[0].Metric["instance"]; got != strings.TrimSuffix(address, "/ferula") {
		t.Errorf("the instance is %q", got)
	}
	for _, path := range []string{"/", "/metrics", "/-/healthy", "/api/v1/query?query=1", "/debug/pprof/"} {
		if code, _ := (&server{t: t, base: "http://" + address}).get(path); code != http.StatusUnauthorized {
			t.Errorf("%s without a password: %d", path, code)
		}
	}
}

func TestServe_ScrapesItselfWithClientCertificates(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	file := writeFile(t, filepath.Join(t.TempDir(), "web.yml"),
		"tls_server_config: {cert_file: "+cert+", key_file: "+key+", client_auth_type: RequireAndVerifyClientCert, client_ca_file: "+cert+"}\n")
	log := &lockedBuffer{}
	serve, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) {
		o.Web.ConfigFile = file
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	}))
	if err != nil {
		t.Fatal(err)
	}
	s := runServe(t, serve)
	pair := try(tls.LoadX509KeyPair(cert, key)).must(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}}}
	s.base = "https://" + serve.Addr().String()
	eventually(t, 60*time.Second, "its own up to be 1", func() bool {
		resp, err := client.Get(s.base + "/api/v1/query?query=up==1")
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		text := make([]byte, 4096)
		n, _ := resp.Body.Read(text)
		return strings.Contains(string(text[:n]), `"instance":"`+serve.Addr().String()+`"`)
	})
	if want := "url=" + s.base + "/"; !strings.Contains(log.String(), want) {
		t.Errorf("no %s in the log:\n%s", want, log)
	}
	if _, err := http.Get(s.base + "/metrics"); err == nil {
		t.Error("a client without a certificate gets a response")
	}
}

func TestServe_AnonymousGRPCIsRefusedIfHTTPHasPasswords(t *testing.T) {
	cert, key := certificate(t)
	dir := t.TempDir()
	passwords := writeFile(t, filepath.Join(dir, "passwords.yml"), eveInBcrypt)
	plainTLS := writeFile(t, filepath.Join(dir, "tls.yml"), "tls_server_config: {cert_file: "+cert+", key_file: "+key+"}\n")
	clients := writeFile(t, filepath.Join(dir, "clients.yml"), "tls_server_config: {cert_file: "+cert+", key_file: "+key+", client_auth_type: RequireAndVerifyClientCert, client_ca_file: "+cert+"}\n")
	secured := func(clientCA string) app.GRPCOptions {
		o := app.GRPCOptions{ListenAddress: "0.0.0.0:0"}
		o.TLS.Cert, o.TLS.Key, o.TLS.ClientCA = cert, key, clientCA
		return o
	}
	for name, tt := range map[string]struct {
		web     string
		grpc    app.GRPCOptions
		refused bool
	}{
		"all addresses, a password":          {passwords, app.GRPCOptions{ListenAddress: ":0"}, true},
		"all addresses, client certificates": {clients, app.GRPCOptions{ListenAddress: "0.0.0.0:0"}, true},
		"TLS alone on both sides":            {plainTLS, secured(""), false},
		"TLS without a client CA":            {passwords, secured(""), true},
		"a client CA":                        {passwords, secured(cert), false},
		"loopback":                           {passwords, app.GRPCOptions{ListenAddress: "127.0.0.1:0"}, false},
		"allowed":                            {passwords, app.GRPCOptions{ListenAddress: "0.0.0.0:0", AllowAnonymous: true}, false},
		"none":                               {passwords, app.GRPCOptions{}, false},
		"no password anywhere":               {"", app.GRPCOptions{ListenAddress: "0.0.0.0:0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			serve, err := app.NewServe(serveOptions(t, func(o *app.ServeOptions) { o.Web.ConfigFile, o.GRPC = tt.web, tt.grpc }))
			if (err != nil) != tt.refused || (tt.refused && !strings.Contains(err.Error(), "--grpc-server-allow-anonymous")) {
				t.Errorf("%v", err)
			}
			if err == nil {
				runServe(t, serve)
			}
		})
	}
}

func TestServe_ListensOnSeveralAddresses(t *testing.T) {
	program, first, second := binary(t), freeAddress(t), freeAddress(t)
	args := []string{"serve", "--web.listen-address=" + first, "--web.listen-address=" + second, "--storage.tsdb.path=" + t.TempDir()}
	p := startProcess(t, program, args...)
	if want := "http://" + first; p.base != want {
		t.Errorf("ready at %s, want %s", p.base, want)
	}
	for _, address := range []string{first, second} {
		s := &server{t: t, base: "http://" + address}
		s.expect("/-/ready", http.StatusOK)
	}
	noError(t, p.signal(os.Interrupt))
	// The test has another version than the program: go test records neither tag nor commit.
	printed := try(exec.Command(program, "--version").Output()).must(t)
	own := strings.TrimPrefix(strings.TrimSpace(string(printed)), "ferula ")
	if text := p.log.String(); !strings.Contains(text, "Starting ferula") || !strings.Contains(text, "version="+own+" ") {
		t.Errorf("the log does not begin with the version:\n%s", text)
	}
	l := try(net.Listen("tcp", "127.0.0.1:0")).must(t)
	defer l.Close()
	out, err := commandOf(t, program, append(args, "--web.listen-address="+l.Addr().String())...).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "listen on "+l.Addr().String()) {
		t.Errorf("an address in use: %v: %s", err, out)
	}
	out, err = commandOf(t, program, append(args, "--web.max-connections=-1")...).CombinedOutput()
	if err == nil || strings.Contains(string(out), "panic") || !strings.Contains(string(out), "web.max-connections") {
		t.Errorf("--web.max-connections=-1: %v: %s", err, out)
	}
}
