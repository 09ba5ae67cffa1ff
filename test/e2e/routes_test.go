package e2e

import (
	"context"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

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
	dir, err := exec.Command("go", "list", "-f", "{{.Dir}}", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(strings.TrimSpace(string(dir)), file), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
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
			text, err := strconv.Unquote(path.Value)
			if err != nil {
				t.Fatal(err)
			}
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
	refused := 0
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		if _, ok := refusedRoutes[strings.Replace(route, "/api/v1", "", 1)]; ok {
			refused++
			continue
		}
		path = strings.NewReplacer(":name", "job", "*subpath", "pprof/symbol").Replace(path)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		req, err := http.NewRequestWithContext(ctx, method, s.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
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
	resp, err := http.PostForm(s.base+path, form)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(body)
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
	if got := again.value("kept"); got != "1" {
		t.Errorf("in the snapshot: %q", got)
	}
}

func TestServe_FederateHasTheLastSamplesWithExternalLabels(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {site: north, job: other}}\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
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
	if status, body := s.get("/federate?match[]=%7B"); status != http.StatusBadRequest {
		t.Errorf("a faulty selector: %d %s", status, body)
	}
}

func TestServe_PreflightRequestsOfEveryEndpointSucceed(t *testing.T) {
	s := startServe(t, idle(t))
	done := map[string]bool{}
	for _, route := range routesOf(t, "github.com/prometheus/prometheus/web/api/v1", "api.go", "r", "/api/v1") {
		_, path, _ := strings.Cut(route, " ")
		if path = strings.Replace(path, ":name", "job", 1); done[path] || strings.Contains(path, "*") {
			continue
		}
		done[path] = true
		req, err := http.NewRequestWithContext(t.Context(), http.MethodOptions, s.base+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Origin", "http://grafana.example")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNoContent || resp.Header.Get("Access-Control-Allow-Methods") == "" {
			t.Errorf("%s: %d %v", path, resp.StatusCode, resp.Header)
		}
	}
	if len(done) < 35 {
		t.Errorf("only %d paths", len(done))
	}
}

func TestServe_FederateWithoutSeriesHasAContentType(t *testing.T) {
	resp, err := http.Get(startServe(t, idle(t)).base + "/federate?match[]=nothing")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || !strings.HasPrefix(got, "text/plain; version=0.0.4;") {
		t.Errorf("%d, Content-Type %q", resp.StatusCode, got)
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
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
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
		resp, err := http.Post(s.base+"/api/v1/otlp/v1/metrics", "application/json", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		reply, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(reply)
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
	if got := s.value(`orders_open{job="shop",region="north"}`); got != "4" {
		t.Errorf("got %q", got)
	}
	if status, _ := send(s, "nonsense"); status != http.StatusBadRequest {
		t.Errorf("nonsense: %d", status)
	}
}

func TestServe_ConfigurationIsReloadedByItself(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {v: one}}\n")
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Peer.AutoReload = file, 50*time.Millisecond })
	writeFile(t, file, "global: {external_labels: {v: two}}\n")
	eventually(t, 30*time.Second, "the new configuration", func() bool { _, body := s.get("/api/v1/status/config"); return strings.Contains(body, "v: two") })
	writeFile(t, file, "nonsense: 1\n")
	eventually(t, 30*time.Second, "a notification of the refused configuration", func() bool {
		_, body := s.get("/api/v1/notifications")
		return strings.Contains(body, "Configuration reload has failed")
	})
}
