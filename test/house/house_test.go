// Package house tests the rules of the repository: imports between packages, the width of lines, exported names
// of the public modules, and that documents name what exists. The tests parse the source tree and fail with the file and the
// rule.
package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const modulePath = "github.com/ferula-io/ferula"

// root of the repository, relative to this directory, in which the tests run.
const root = "../.."

// source is a parsed Go file.
type source struct {
	path string // relative to root
	pkg  string // directory, relative to root
	file *ast.File
	fset *token.FileSet
	test bool
	text string
}

// parsed parses the files once: most tests read all of them, and parsing takes longer than a rule.
var parsed = sync.OnceValues(parseSources)

// textOf returns the text of a file, whose path is relative to the root.
func textOf(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sources returns every Go file of the repository that is not generated.
func sources(t *testing.T) []source {
	t.Helper()
	all, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 20 {
		t.Fatalf("only %d files found: root is wrong", len(all))
	}
	return all
}

func parseSources() ([]source, error) {
	var all []source
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if skipDir(rel, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		file, err := parser.ParseFile(fset, path, text, parser.ParseComments)
		if err != nil {
			return err
		}
		if ast.IsGenerated(file) {
			return nil
		}
		all = append(all, source{rel, filepath.ToSlash(filepath.Dir(rel)), file, fset, strings.HasSuffix(rel, "_test.go"), string(text)})
		return nil
	})
	return all, err
}

func skipDir(rel, name string) bool {
	return rel != "." && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "testdata" || name == "dist" || rel == "data" || rel == "bin")
}

func (s source) imports() []string {
	var paths []string
	for _, spec := range s.file.Imports {
		paths = append(paths, strings.Trim(spec.Path.Value, `"`))
	}
	return paths
}
