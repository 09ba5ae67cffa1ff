package house

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// layers lists the layers from the bottom to the top. A package imports only packages of lower layers, packages of its
// own slice (the directory that the layer lists) and, if siblings is true, other slices of its layer.
var layers = []struct {
	name     string
	dirs     []string
	siblings bool
}{
	{"shared and process", []string{
		"internal/invariant", "internal/bufpool", "internal/version", "internal/files", "internal/hint",
		"internal/redact", "internal/httpbody", "internal/precheck", "internal/dnslookup",
		"internal/inflate", "internal/process",
	}, true},
	{"data", []string{"internal/series", "internal/tsdb", "internal/blocks", "internal/bucket"}, true},
	{"slices", []string{
		"internal/promql", "internal/thanos", "internal/remoteread", "internal/ingest", "internal/export",
		"internal/profiles",
	}, true},
	{"HTTP", []string{"internal/httpapi", "internal/frontend", "internal/compare"}, false},
	{"app", []string{"internal/app"}, false},
	{"cmd", []string{"cmd"}, false},
}

func layerOf(pkg string) int {
	i, _ := sliceOf(pkg)
	return i
}

// sliceOf returns the layer of a package, or -1, and the directory that the layer lists.
func sliceOf(pkg string) (layer int, dir string) {
	for i, layer := range layers {
		for _, dir := range layer.dirs {
			if within(pkg, []string{dir}) {
				return i, dir
			}
		}
	}
	return -1, ""
}

// ownPath returns the directory of an import path of this repository, or "".
func ownPath(path string) string {
	rest, ok := strings.CutPrefix(path, modulePath+"/")
	if !ok {
		return ""
	}
	return rest
}

func TestLayers_ImportsGoDown(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		from, slice := sliceOf(s.pkg)
		if from < 0 || s.test {
			continue
		}
		for _, path := range s.imports() {
			to, other := sliceOf(ownPath(path))
			if ownPath(path) == "" || to < 0 {
				continue
			}
			checked++
			if to < from || (to == from && (layers[from].siblings || slice == other)) || slice == "internal/bucket" && other == "internal/profiles" {
				continue
			}
			t.Errorf("%s (layer %q) imports %s (layer %q)", s.path, layers[from].name, ownPath(path), layers[to].name)
		}
	}
	if checked < 10 {
		t.Fatalf("only %d imports checked", checked)
	}
}

// metrics are the slices of metrics. They and internal/profiles do not know each other.
var metrics = []string{
	"internal/promql", "internal/thanos", "internal/remoteread", "internal/ingest", "internal/export", "internal/tsdb",
	"internal/blocks", "internal/bucket", "internal/frontend",
}

// shared are packages of metrics' slices that profiles may import: pages of objects in a bucket, and its clients.
var shared = []string{"internal/blocks/pages", "internal/bucket"}

func TestLayers_ProfilesAndMetricsDoNotKnowEachOther(t *testing.T) {
	for _, s := range sources(t) {
		for _, path := range s.imports() {
			to := ownPath(path)
			if s.test || to == "" {
				continue
			}
			if within(s.pkg, []string{"internal/profiles"}) && within(to, metrics) && !within(to, shared) ||
				within(s.pkg, metrics) && within(to, []string{"internal/profiles"}) && s.pkg != "internal/bucket" {
				t.Errorf("%s imports %s", s.path, to)
			}
		}
	}
}

func TestLayers_EveryInternalPackageHasALayer(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "internal/") && layerOf(s.pkg) < 0 {
			t.Errorf("%s is in no layer", s.path)
		}
	}
}

func TestLayers_EveryFolderExists(t *testing.T) {
	for _, layer := range layers {
		for _, dir := range layer.dirs {
			if info, err := os.Stat(filepath.Join(root, dir)); err != nil || !info.IsDir() {
				t.Errorf("layer %q lists %s, which is not a directory", layer.name, dir)
			}
		}
	}
}

// The frontend processes encoded requests and responses: it needs neither an engine nor a storage.
func TestLayers_FrontendImportsNeitherEngineNorStorage(t *testing.T) {
	for _, s := range sources(t) {
		if !within(s.pkg, []string{"internal/frontend"}) || s.test {
			continue
		}
		for _, path := range s.imports() {
			own := ownPath(path)
			if own != "" && own != "promjson" && !within(own, []string{"internal/frontend"}) && layerOf(own) > 0 ||
				path == "github.com/prometheus/prometheus/promql" ||
				strings.HasPrefix(path, "github.com/prometheus/prometheus/tsdb") {
				t.Errorf("%s imports %s", s.path, path)
			}
		}
	}
}

// wires are the slices whose packages encode and decode protobuf messages.
var wires = []string{
	"internal/thanos", "internal/remoteread", "internal/ingest/remotewrite", "internal/profiles", "internal/precheck",
	"internal/series/labelenc",
}

// forbidden lists external packages that only some directories and files may import.
var forbidden = []struct {
	path   string // prefix of the import path
	only   []string
	reason string
}{
	{"encoding/json", []string{"internal/app", "internal/bucket", "internal/thanos/gateway", "internal/tsdb", "internal/thanos/sources", "internal/compare", "internal/httpapi/stream.go"}, "where samples pass, JSON is appended and scanned by promjson, not reflected"},
	{"github.com/json-iterator", nil, "JSON is appended, not reflected"},
	{"google.golang.org/protobuf", wires, "protobuf types stop at the wires"},
	{"github.com/gogo/protobuf", wires, "protobuf types stop at the wires"},
	{"github.com/prometheus/prometheus/prompb", wires, "protobuf types stop at the wires"},
	{"github.com/prometheus/prometheus/web", []string{"internal/httpapi"}, "its endpoints decode and reflect; promweb.go has those that are rarely requested"},
	{"github.com/prometheus/client_golang/prometheus/promauto", nil, "constructors receive the registry"},
	{"github.com/thanos-io/thanos", nil, "its label types panic without a build tag"},
	{"github.com/grafana/pyroscope", nil, "AGPL"},
	{"github.com/grafana/mimir", nil, "AGPL"},
	{"github.com/minio", nil, "AGPL"},
}

func TestLayers_ForbiddenImports(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.pkg, "bench") || strings.HasPrefix(s.pkg, "test/") || strings.HasPrefix(s.pkg, "tools") {
			continue
		}
		for _, path := range s.imports() {
			for _, rule := range forbidden {
				if (path == rule.path || strings.HasPrefix(path, rule.path+"/")) && !within(s.path, rule.only) {
					t.Errorf("%s imports %s: %s", s.path, path, rule.reason)
				}
			}
		}
	}
}

func within(pkg string, dirs []string) bool {
	for _, dir := range dirs {
		if pkg == dir || strings.HasPrefix(pkg, dir+"/") {
			return true
		}
	}
	return false
}

// Any program can import the two public modules without further dependencies.
func TestLayers_PublicModulesUseOnlyTheStandardLibrary(t *testing.T) {
	for _, s := range sources(t) {
		module, _, _ := strings.Cut(s.pkg, "/")
		if module != "promjson" && module != "metrics" || within(s.pkg, []string{"metrics/promcompat"}) {
			continue
		}
		for _, path := range s.imports() {
			first, _, _ := strings.Cut(path, "/")
			if strings.Contains(first, ".") && !strings.HasPrefix(path, modulePath+"/"+module) {
				t.Errorf("%s imports %s", s.path, path)
			}
			if path == "unsafe" || path == "C" {
				t.Errorf("%s imports %s", s.path, path)
			}
		}
	}
}

const (
	// Wider lines are hard to review side by side.
	columnsMax = 120
	wideMax    = 70
)

// Code of the program and of the public modules is at most columnsMax wide, except for wideMax lines.
func TestTidy_LinesStayNarrow(t *testing.T) {
	var wide []string
	for _, s := range sources(t) {
		if s.test || !within(s.pkg, []string{"cmd", "internal", "metrics", "promjson"}) {
			continue
		}
		n := 0
		for line := range strings.Lines(s.text) {
			n++
			if len(strings.TrimSuffix(line, "\n")) > columnsMax {
				wide = append(wide, fmt.Sprintf("%s:%d", s.path, n))
			}
		}
	}
	if len(wide) > wideMax {
		t.Errorf("%d lines are wider than %d columns, at most %d:\n%s", len(wide), columnsMax, wideMax, strings.Join(wide, "\n"))
	}
}

// The map in ARCHITECTURE.md lists exactly the packages of internal and cmd.
func TestTidy_ArchitectureMapListsEveryPackage(t *testing.T) {
	text := textOf(t, "ARCHITECTURE.md")
	mapped := map[string]bool{}
	for line := range strings.Lines(text) {
		dir, _, _ := strings.Cut(line, " ")
		if strings.HasPrefix(dir, "internal/") || strings.HasPrefix(dir, "cmd/") {
			mapped[dir] = true
		}
	}
	existing := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test && (strings.HasPrefix(s.pkg, "internal/") || strings.HasPrefix(s.pkg, "cmd/")) {
			existing[s.pkg] = true
		}
	}
	for dir := range existing {
		if !mapped[dir] {
			t.Errorf("the map does not list %s", dir)
		}
	}
	for dir := range mapped {
		if !existing[dir] {
			t.Errorf("the map lists %s, which does not exist", dir)
		}
	}
}
