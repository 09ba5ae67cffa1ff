package house

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// layers lists the layers from the bottom to the top. A package imports only packages of lower
// layers, packages within its own directory and, if siblings is true, packages of its layer.
var layers = []struct {
	name     string
	dirs     []string
	siblings bool
}{
	{"leaves", []string{
		"internal/invariant",
		"internal/bufpool",
		"internal/httpbody",
		"internal/reqbody",
		"internal/nesting",
		"internal/envsubst", "internal/hint", "internal/inflate",
		"internal/version",
		"internal/vfs",
		"internal/hostcheck",
		"internal/connlimit",
		"internal/codec/xor",
		"internal/dnslookup",
		"internal/pages",
	}, true},
	{"process", []string{"internal/process"}, true},
	{"codec", []string{"internal/codec"}, false},
	{"series", []string{"internal/series"}, false},
	{"ingest, store, wire", []string{"internal/ingest", "internal/store", "internal/wire"}, false},
	{"query, frontend, export", []string{"internal/query", "internal/frontend", "internal/export"}, false},
	{"api, ui", []string{"internal/api", "internal/ui"}, false},
	{"bridge", []string{"internal/bridge"}, false},
	{"role", []string{"internal/role"}, false},
	{"cmd", []string{"cmd"}, false},
}

func layerOf(pkg string) int {
	for i, layer := range layers {
		for _, dir := range layer.dirs {
			if pkg == dir || strings.HasPrefix(pkg, dir+"/") {
				return i
			}
		}
	}
	return -1
}

// ownPath returns the directory of an import path of this repository, or "".
func ownPath(path string) string {
	rest, ok := strings.CutPrefix(path, modulePath+"/")
	if !ok {
		return ""
	}
	return rest
}

func TestLayers_ImportsGoStrictlyDown(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		from := layerOf(s.pkg)
		if from < 0 || s.test {
			continue
		}
		for _, path := range s.imports() {
			to := layerOf(ownPath(path))
			if ownPath(path) == "" || to < 0 {
				continue
			}
			checked++
			inside := strings.HasPrefix(ownPath(path), s.pkg+"/") // a package may import packages in its directory
			if to < from || (to == from && (layers[from].siblings || inside)) {
				continue
			}
			t.Errorf("%s (layer %q) imports %s (layer %q)", s.path, layers[from].name, ownPath(path), layers[to].name)
		}
	}
	if checked < 10 {
		t.Fatalf("only %d imports checked", checked)
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

// The frontend processes encoded requests and responses. It may import only its own packages,
// promjson, and packages up to the layer of the codecs.
func TestLayers_FrontendImportsNeitherEngineNorStorage(t *testing.T) {
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.pkg, "internal/frontend") || s.test {
			continue
		}
		for _, path := range s.imports() {
			switch {
			case ownPath(path) != "" && ownPath(path) != "promjson" && !strings.HasPrefix(ownPath(path), "internal/frontend") && layerOf(ownPath(path)) > layerOf("internal/codec"):
				t.Errorf("%s imports %s", s.path, path)
			case path == "github.com/prometheus/prometheus/promql" || strings.HasPrefix(path, "github.com/prometheus/prometheus/tsdb"):
				t.Errorf("%s imports %s", s.path, path)
			}
		}
	}
}

// forbidden lists external packages that only some directories may import.
var forbidden = []struct {
	path   string // prefix of the import path
	only   []string
	reason string
}{
	{"encoding/json", []string{"internal/store/bucket", "internal/store/gateway/metas", "internal/store/tsdb", "internal/wire/promapi"}, "where samples pass, JSON is appended and scanned by promjson, not reflected"},
	{"github.com/json-iterator", nil, "JSON is appended, not reflected"},
	{"google.golang.org/protobuf", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/gogo/protobuf", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/prometheus/prometheus/prompb", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/prometheus/prometheus/web", []string{"internal/bridge/promweb"}, "its endpoints decode and reflect; promweb has those that are rarely requested"},
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
				if (path == rule.path || strings.HasPrefix(path, rule.path+"/")) && !within(s.pkg, rule.only) {
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
