package house

import (
	"strings"
	"testing"
)

// layers from the bottom to the top: a package imports only from layers strictly
// below its own, from below its own folder, and from its siblings only where
// siblings is true.
var layers = []struct {
	name     string
	folders  []string
	siblings bool
}{
	{"leaves", []string{"internal/invariant", "internal/bufpool", "internal/httpbody", "internal/reqbody", "internal/nesting", "internal/jsontree", "internal/envsubst", "internal/golden", "internal/faultio", "internal/vfs"}, true},
	{"codec", []string{"internal/codec"}, false},
	{"series", []string{"internal/series"}, false},
	{"ingest, store, wire", []string{"internal/ingest", "internal/store", "internal/wire"}, false},
	{"query, frontend, export", []string{"internal/query", "internal/frontend", "internal/export"}, false},
	{"api, ui", []string{"internal/api", "internal/ui"}, false},
	{"role", []string{"internal/role"}, false},
	{"cmd", []string{"cmd"}, false},
}

func layerOf(pkg string) int {
	for i, layer := range layers {
		for _, folder := range layer.folders {
			if pkg == folder || strings.HasPrefix(pkg, folder+"/") {
				return i
			}
		}
	}
	return -1
}

// own turns an import path into a folder of this repository, or "".
func own(path string) string {
	rest, ok := strings.CutPrefix(path, modulePath+"/")
	if !ok {
		return ""
	}
	return rest
}

func TestImportsGoStrictlyDown(t *testing.T) {
	checked := 0
	for _, s := range sources(t) {
		from := layerOf(s.pkg)
		if from < 0 || s.test {
			continue
		}
		for _, path := range s.imports() {
			to := layerOf(own(path))
			if own(path) == "" || to < 0 {
				continue
			}
			checked++
			inside := strings.HasPrefix(own(path), s.pkg+"/") // a package may use those in its own folder
			if to < from || (to == from && (layers[from].siblings || inside)) {
				continue
			}
			t.Errorf("%s (layer %q) imports %s (layer %q)", s.path, layers[from].name, own(path), layers[to].name)
		}
	}
	if checked < 10 {
		t.Fatalf("only %d imports checked", checked)
	}
}

func TestEveryInternalPackageHasALayer(t *testing.T) {
	for _, s := range sources(t) {
		if strings.HasPrefix(s.pkg, "internal/") && layerOf(s.pkg) < 0 {
			t.Errorf("%s is in no layer", s.path)
		}
	}
}

// The frontend works on encoded requests and answers: of ferula it may know
// codecs, promjson and leaves only.
func TestTheFrontendKnowsNoEngineAndNoStorage(t *testing.T) {
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.pkg, "internal/frontend") || s.test {
			continue
		}
		for _, path := range s.imports() {
			switch {
			case own(path) != "" && own(path) != "promjson" && !strings.HasPrefix(own(path), "internal/frontend") && layerOf(own(path)) > 1:
				t.Errorf("%s imports %s", s.path, path)
			case path == "github.com/prometheus/prometheus/promql" || strings.HasPrefix(path, "github.com/prometheus/prometheus/tsdb"):
				t.Errorf("%s imports %s", s.path, path)
			}
		}
	}
}

// forbidden says where an outside package may be imported; elsewhere it may not.
var forbidden = []struct {
	path   string // prefix of the import path
	only   []string
	reason string
}{
	{"encoding/json", nil, "JSON is appended and scanned by promjson, not reflected"},
	{"github.com/json-iterator", nil, "JSON is appended, not reflected"},
	{"google.golang.org/protobuf", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/gogo/protobuf", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/prometheus/prometheus/prompb", []string{"internal/codec", "internal/wire"}, "protobuf types stop at codec and wire"},
	{"github.com/prometheus/prometheus/web", nil, "it doubles the program; it is the oracle of tests"},
	{"github.com/prometheus/client_golang/prometheus/promauto", nil, "registries come through constructors"},
	{"github.com/thanos-io/thanos", nil, "its label types panic without a build tag"},
	{"github.com/grafana/pyroscope", nil, "AGPL"},
	{"github.com/grafana/mimir", nil, "AGPL"},
	{"github.com/minio", nil, "AGPL"},
}

func TestOutsidePackagesStayWhereTheyBelong(t *testing.T) {
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

func within(pkg string, folders []string) bool {
	for _, folder := range folders {
		if pkg == folder || strings.HasPrefix(pkg, folder+"/") {
			return true
		}
	}
	return false
}

// The two public modules can be imported by anybody: they bring nothing along.
func TestPublicModulesUseTheStandardLibraryOnly(t *testing.T) {
	for _, s := range sources(t) {
		module, _, _ := strings.Cut(s.pkg, "/")
		if module != "promjson" && module != "metrics" {
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
