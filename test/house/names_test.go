package house

import (
	"go/ast"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

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
		text, err := os.ReadFile(filepath.Join(root, guide))
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range quotedName.FindAllStringSubmatch(string(text), -1) {
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
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, match := range makeTarget.FindAllStringSubmatch(string(text), -1) {
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
