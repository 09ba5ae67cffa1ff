package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// peerRoutes are the endpoints that Prometheus, Thanos or Pyroscope document. docs/http.md names all others.
var peerRoutes = strings.Fields(`
	/query /query_range /query_exemplars /format_query /parse_query /labels /label/{name}/values /series /scrape_pools /targets
	/targets/metadata /metadata /rules /alerts /alertmanagers /status/config /status/flags /status/runtimeinfo /status/tsdb /status/walreplay
	/write /read /scrape_pools/config /targets/relabel_steps /status/tsdb/blocks /status/self_metrics /features /notifications
	/notifications/live /openapi.yaml /search/metric_names /search/label_names /search/label_values /admin/tsdb/delete_series
	/admin/tsdb/clean_tombstones /admin/tsdb/snapshot /federate /otlp/v1/metrics
	/debug/pprof/cmdline /debug/pprof/profile /debug/pprof/symbol /debug/pprof/trace
	/pyroscope/render /pyroscope/render-diff /pyroscope/label-values /pyroscope/label-names
	Push ProfileTypes LabelNames LabelValues Series GetProfileStats SelectSeries SelectMergeStacktraces SelectMergeSpanProfile SelectMergeProfile
	SelectHeatmap Diff AnalyzeQuery Get Set`)

var (
	routePath = regexp.MustCompile(`^(?:(?:GET|POST|PUT|OPTIONS|DELETE) )?(/[\w.{}/$-]*)$`)
	procedure = regexp.MustCompile(`^[A-Z]\w+$`)
	// What is registered below these is found by its own path.
	routePrefixes = map[string]bool{"/api": true, "/api/v1": true, "/push.": true}
)

// docs/http.md names every endpoint that no replaced program has: a new one cannot be registered without a line about it.
func TestDocs_HTTPNamesEveryOwnEndpoint(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/http.md"))
	if err != nil {
		t.Fatal(err)
	}
	peers := map[string]bool{}
	for _, route := range peerRoutes {
		peers[route] = true
	}
	found := map[string]bool{}
	for _, s := range sources(t) {
		if s.test || !strings.HasPrefix(s.pkg, "internal/") {
			continue
		}
		for _, route := range routesOf(s.file, s.pkg == "internal/profiles/api") {
			found[route] = true
			if !peers[route] && !namesRoute(string(text), route) {
				t.Errorf("%s: docs/http.md does not name the endpoint %s", s.path, route)
			}
		}
	}
	if len(found) < 60 {
		t.Errorf("only %d endpoints found", len(found))
	}
	for route := range peers {
		if !found[route] {
			t.Errorf("the list of the peers' endpoints has %s, which is not registered", route)
		}
	}
}

// namesRoute reports whether a text names a path, also below /api/v1, or a procedure of a service.
func namesRoute(text, route string) bool {
	return regexp.MustCompile(`(?m)(?:[ \x60]|/api/v1|Service/)` + regexp.QuoteMeta(route) + `/?(?:[ \x60,]|$)`).MatchString(text)
}

// routesOf returns the paths, without /api/v1, and with procedures also the procedures, of the functions that register handlers.
func routesOf(file *ast.File, procedures bool) (routes []string) {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || f.Body == nil || !registers(f.Body) {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, _ := strconv.Unquote(lit.Value)
			if match := routePath.FindStringSubmatch(text); match != nil && strings.Trim(match[1], "/{$}") != "" {
				if path := strings.TrimRight(match[1], "/"); !routePrefixes[path] {
					routes = append(routes, strings.TrimPrefix(path, "/api/v1"))
				}
			} else if procedures && procedure.MatchString(text) {
				routes = append(routes, text)
			}
			return true
		})
	}
	return routes
}

// registers reports whether a function registers a handler.
func registers(body *ast.BlockStmt) (found bool) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if name, ok := call.Fun.(*ast.SelectorExpr); ok && (name.Sel.Name == "Handle" || name.Sel.Name == "HandleFunc") {
				found = true
			}
		}
		return true
	})
	return found
}
