package metricsdiff

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// exported lists the exported API of a package: functions and methods with the types of their parameters, types, fields and
// variables.
func exported(t *testing.T, dir string) map[string]string {
	t.Helper()
	names := map[string]string{}
	fset := token.NewFileSet()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatal(dir, err)
	}
	for _, path := range files {
		if match, err := build.Default.MatchFile(dir, filepath.Base(path)); err != nil || !match || strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				receiver := ""
				if d.Recv != nil {
					receiver = "(" + source(fset, d.Recv.List[0].Type) + ")."
				}
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(strings.Trim(receiver, "(*)."))) {
					names[receiver+d.Name.Name] = typesOf(fset, d.Type.Params) + typesOf(fset, d.Type.Results)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					exportedSpec(fset, spec, names)
				}
			}
		}
	}
	return names
}

func exportedSpec(fset *token.FileSet, spec ast.Spec, names map[string]string) {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		if !s.Name.IsExported() {
			return
		}
		names["type "+s.Name.Name] = ""
		if str, ok := s.Type.(*ast.StructType); ok {
			for _, field := range str.Fields.List {
				for _, name := range field.Names {
					if name.IsExported() {
						names[s.Name.Name+"."+name.Name] = source(fset, field.Type)
					}
				}
			}
		}
	case *ast.ValueSpec:
		for _, name := range s.Names {
			if name.IsExported() {
				names["value "+name.Name] = ""
			}
		}
	}
}

func typesOf(fset *token.FileSet, fields *ast.FieldList) string {
	var types []string
	if fields != nil {
		for _, field := range fields.List {
			for range max(1, len(field.Names)) {
				types = append(types, source(fset, field.Type))
			}
		}
	}
	return "(" + strings.Join(types, ", ") + ")"
}

func source(fset *token.FileSet, node ast.Node) string {
	var b strings.Builder
	_ = printer.Fprint(&b, fset, node)
	// Parameter names within a function type are irrelevant.
	return strings.ReplaceAll(b.String(), "func(w io.Writer)", "func(io.Writer)")
}

func TestAPI_HasThePeersNamesAndTypes(t *testing.T) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/VictoriaMetrics/metrics")
	cmd.Env = append(os.Environ(), "GOWORK=off")
	dir, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	peer := exported(t, strings.TrimSpace(string(dir)))
	ours := exported(t, "../../metrics")
	if len(peer) < 100 {
		t.Fatalf("only %d names found in the peer", len(peer))
	}
	for name, types := range peer {
		if got, ok := ours[name]; !ok {
			t.Errorf("%s%s is missing", name, types)
		} else if got != types {
			t.Errorf("%s: got %s, want %s", name, got, types)
		}
	}
}
