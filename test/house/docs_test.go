package house

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// partPages are the pages of the parts that a user can run or import.
var partPages = []string{
	"docs/ops/serve.md", "docs/ops/sidecar.md", "docs/ops/query.md", "docs/ops/query-frontend.md", "docs/ops/store.md", "docs/ops/profiles.md",
	"docs/ops/profiles-compact.md", "docs/ops/read.md", "metrics/README.md", "promjson/README.md",
}

// Every part has a page that states when to use it, how to see that it works, what it needs, what its
// limits are, and what its symptoms and log lines mean.
func TestDocs_EveryPartHasItsPage(t *testing.T) {
	headings := []string{"Check that it works", "Sizing", "Limits", "Troubleshooting"}
	for _, page := range partPages {
		text := textOf(t, page)
		if !strings.Contains(text, "\n| use it when | do not when |\n") {
			t.Errorf("%s: no table with the columns 'use it when' and 'do not when'", page)
		}
		for _, want := range headings {
			if !regexp.MustCompile(`(?m)^## ` + want + `\b`).MatchString(text) {
				t.Errorf("%s: no section %q", page, want)
			}
		}
	}
}

// peerMessages are messages of other programs and libraries that the documents quote.
var peerMessages = []string{
	"lock DB directory", "resource temporarily unavailable", // Prometheus' storage
	"preallocate", "no space left on device", // the kernel, in Prometheus' storage
	"query processing would load too many samples", // Prometheus' engine
	"WAL segment loaded", "address already in use",
}

var (
	quotedText = regexp.MustCompile("`([^`]+)`")
	// What splits a quoted message into the parts that the code has: an ellipsis, a quoted value, a number, a colon of a wrapped error.
	messageGap = regexp.MustCompile(`…|\.\.\.|"[^"]*"|\b\d+\b|: |--[a-z.-]+|[()]`)
)

// Log lines and errors in the tables of symptoms are those of the code: a reader searches the documents for what the log has.
func TestDocs_MessagesInTablesOfSymptomsExist(t *testing.T) {
	known := strings.Join(peerMessages, "\n") + "\n" + stringLiterals(t)
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		header := ""
		for i, line := range strings.Split(string(text), "\n") {
			if !strings.HasPrefix(line, "|") {
				header = ""
				continue
			}
			cell, _, _ := strings.Cut(line[1:], " | ")
			if header == "" {
				header = cell
			}
			if !strings.Contains(header, "symptom") && !strings.Contains(header, "what you see") && strings.TrimSpace(header) != "error" {
				continue
			}
			for _, part := range messageParts(cell) {
				if checked++; !strings.Contains(known, part) {
					t.Errorf("%s:%d: no string of the code has %q", strings.TrimPrefix(doc, root+"/"), i+1, part)
				}
			}
		}
	}
	if checked < 90 {
		t.Errorf("only %d messages found", checked)
	}
}

// messageParts returns what the code must have of the messages that a cell quotes: texts of more than one word.
func messageParts(cell string) (parts []string) {
	for _, quoted := range quotedText.FindAllStringSubmatch(cell, -1) {
		if text := quoted[1]; !strings.Contains(text, " ") || strings.HasPrefix(text, "ferula ") || strings.HasPrefix(text, "-") || strings.HasPrefix(text, "X-") {
			continue
		}
		for _, part := range messageGap.Split(quoted[1], -1) {
			if part = strings.Trim(part, " ,;`"); strings.Contains(part, " ") {
				parts = append(parts, part)
			}
		}
	}
	return parts
}

// stringLiterals returns the strings of the programs and the libraries, one a line.
func stringLiterals(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.pkg, "bench") || strings.HasPrefix(s.pkg, "test") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					b.WriteString(text + "\n")
				}
			}
			return true
		})
	}
	return b.String()
}

var (
	inlineCode   = regexp.MustCompile("`[^`]*`")
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	htmlLink     = regexp.MustCompile(`(?:src|srcset|href)="([^"]+)"`)
	withScheme   = regexp.MustCompile(`^[a-z]+:`)
	heading      = regexp.MustCompile(`^#{1,6} +(.*)`)
	linkInText   = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// A relative link names a file of the repository, and its anchor a heading of that file.
func TestLinks_OfEveryDocumentResolve(t *testing.T) {
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range proseLines(string(text)) {
			line = inlineCode.ReplaceAllString(line, "")
			for _, match := range append(markdownLink.FindAllStringSubmatch(line, -1), htmlLink.FindAllStringSubmatch(line, -1)...) {
				if withScheme.MatchString(match[1]) {
					continue
				}
				checked++
				if fault := brokenLink(doc, match[1]); fault != "" {
					t.Errorf("%s:%d: %s: %s", strings.TrimPrefix(doc, root+"/"), i+1, match[1], fault)
				}
			}
		}
	}
	if checked < 150 {
		t.Fatalf("only %d links found", checked)
	}
}

// documents returns the paths of all Markdown files.
func documents(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() && (skipDir(filepath.ToSlash(rel), d.Name()) || strings.HasPrefix(filepath.ToSlash(rel), "bench/out")) {
			return filepath.SkipDir
		}
		if !d.IsDir() && filepath.Ext(path) == ".md" {
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// proseLines returns the lines of a document. Lines of code blocks are empty.
func proseLines(text string) []string {
	lines := strings.Split(text, "\n")
	code := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line), "```")
		if fence {
			code = !code
		}
		if code || fence {
			lines[i] = ""
		}
	}
	return lines
}

// brokenLink returns the missing file or anchor of a link; "" for a valid link.
func brokenLink(doc, link string) string {
	path, anchor, _ := strings.Cut(link, "#")
	target := doc
	if path != "" {
		target = filepath.Join(filepath.Dir(doc), filepath.FromSlash(path))
	}
	text, err := os.ReadFile(target)
	if err != nil {
		if info, statErr := os.Stat(target); statErr != nil || !info.IsDir() || anchor != "" {
			return "no such file"
		}
		return ""
	}
	if anchor != "" && filepath.Ext(target) == ".md" && !anchorsOf(string(text))[anchor] {
		return "no such heading"
	}
	return ""
}

// anchorsOf returns the anchors of a document's headings, as GitHub makes them.
func anchorsOf(text string) map[string]bool {
	anchors, seen := map[string]bool{}, map[string]int{}
	for _, line := range proseLines(text) {
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		plain := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(linkInText.ReplaceAllString(match[1], "$1")))
		anchor := plain
		if n := seen[plain]; n > 0 {
			anchor += "-" + strconv.Itoa(n)
		}
		seen[plain]++
		anchors[anchor] = true
	}
	return anchors
}

var (
	quotedName = regexp.MustCompile("`([^`]+)`")
	filePath   = regexp.MustCompile(`^[\w-]+(/[\w.-]+)+/?$|^[\w-]+\.(go|md|sh|tsv|txt|proto)$`)
	goName     = regexp.MustCompile(`^(?:[A-Za-z]\w*\.)?([A-Za-z]\w*)(?:\(\))?$`)
	makeCall   = regexp.MustCompile(`^make ([a-z -]+)$`)
	makeTarget = regexp.MustCompile(`(?m)^([a-z-]+):`)
)

// The guides name files, tests, functions and make targets. A rename in the code does not change
// the guides, so this test fails if a name in them does not exist.
func TestNames_OfTheGuidesExist(t *testing.T) {
	files, idents, targets := filesOf(t), identifiersOf(t), targetsOf(t)
	checked := 0
	for _, guide := range []string{"docs/howto.md", "ARCHITECTURE.md"} {
		text := textOf(t, guide)
		for _, match := range quotedName.FindAllStringSubmatch(text, -1) {
			name := match[1]
			if call := makeCall.FindStringSubmatch(name); call != nil {
				for _, target := range strings.Fields(call[1]) {
					if checked++; !targets[target] {
						t.Errorf("%s: the Makefile has no target %s", guide, target)
					}
				}
				continue
			}
			switch {
			case strings.HasPrefix(name, "github.com/"):
			case filePath.MatchString(name):
				if checked++; !files[strings.TrimSuffix(name, "/")] {
					t.Errorf("%s: no file or directory %s", guide, name)
				}
			case strings.ContainsAny(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") && goName.MatchString(name):
				if checked++; !idents[goName.FindStringSubmatch(name)[1]] && !files[name] {
					t.Errorf("%s: no identifier %s in the code", guide, name)
				}
			}
		}
	}
	if checked < 150 {
		t.Fatalf("only %d names found", checked)
	}
}

// filesOf returns every path of the repository, and every suffix of a path that begins with
// a directory or is a file's name: "internal/httpapi/api.go", "api/api.go" and "api.go".
func filesOf(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() && rel != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return filepath.SkipDir
		}
		for end, ok := rel, true; ok; _, end, ok = strings.Cut(end, "/") {
			all[end] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func identifiersOf(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, s := range sources(t) {
		ast.Inspect(s.file, func(n ast.Node) bool {
			if ident, ok := n.(*ast.Ident); ok {
				all[ident.Name] = true
			}
			return true
		})
	}
	return all
}

func targetsOf(t *testing.T) map[string]bool {
	t.Helper()
	text := textOf(t, "Makefile")
	all := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(text, -1) {
		all[match[1]] = true
	}
	return all
}

var (
	namedArea    = regexp.MustCompile(`\bAREA=([a-z]+)`)
	declaredArea = regexp.MustCompile(`area\.Area\{\s*Name:\s+"([a-z]+)"`)
)

// Every area of the benches that a document names can be run. The first table of docs/perf/costs.md
// shows for each replaced program the area that measures it.
func TestNames_AreasOfTheBenchesExist(t *testing.T) {
	areas := map[string]bool{}
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "bench/areas/") {
			for _, match := range declaredArea.FindAllStringSubmatch(s.text, -1) {
				areas[match[1]] = true
			}
		}
	}
	named := map[string]bool{}
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		opening, _, _ := strings.Cut(string(text), "\n## Other workloads\n")
		for _, match := range namedArea.FindAllStringSubmatch(string(text), -1) {
			if !areas[match[1]] {
				t.Errorf("%s: no area %s", doc, match[1])
			}
		}
		if doc == filepath.Join(root, "docs/perf/costs.md") {
			for _, match := range namedArea.FindAllStringSubmatch(opening, -1) {
				named[match[1]] = true
			}
		}
	}
	for area := range areas {
		// The web UI and ferula read replace no other program.
		if !named[area] && area != "page" && area != "read" {
			t.Errorf("the first table of docs/perf/costs.md does not name the area %s", area)
		}
	}
}

// docs/perf/fuzz.tsv counts the executions of fuzz tests that exist; a renamed test does not keep a line.
func TestFuzz_TotalsNameTests(t *testing.T) {
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				tests[modulePath+"/"+s.pkg+"\t"+f.Name.Name] = true
			}
		}
	}
	if len(tests) < 40 {
		t.Errorf("only %d fuzz tests found", len(tests))
	}
	text := textOf(t, "docs/perf/fuzz.tsv")
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, line := range lines {
		at := strings.LastIndexByte(line, '\t')
		if at < 0 {
			t.Errorf("%q is not package, test, executions", line)
			continue
		}
		if n, err := strconv.ParseUint(line[at+1:], 10, 64); err != nil || n == 0 || !tests[line[:at]] {
			t.Errorf("%q: a test %v, %v", line, tests[line[:at]], err)
		}
	}
	if !slices.IsSorted(lines) {
		t.Error("the lines are not sorted")
	}
}

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
	text := textOf(t, "docs/http.md")
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
			if !peers[route] && !namesRoute(text, route) {
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
		if !ok || f.Body == nil || !registers(f.Body) && (!procedures || f.Name.Name != "methods") {
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
