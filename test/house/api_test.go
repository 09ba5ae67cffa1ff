package house

import (
	"bytes"
	"flag"
	"go/ast"
	"go/printer"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the files testdata/api.txt of the public modules")

// publicPackages are the packages that other repositories import.
var publicPackages = []string{"metrics", "metrics/httpmetrics", "metrics/metricstest", "metrics/promcompat", "metrics/promcompat/promhttp", "promjson", "promjson/gzip"}

// Changes of exported names are deliberate: `make api` writes them to testdata/api.txt, and the
// review shows them. A removed or changed line breaks programs of users.
func TestAPI_ExportedNamesAreThoseOfTheFile(t *testing.T) {
	all := sources(t)
	for _, pkg := range publicPackages {
		got := exportedAPI(t, all, pkg)
		file := filepath.Join(root, filepath.FromSlash(pkg), "testdata", "api.txt")
		if *update {
			if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
				t.Fatal(err)
			}
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Error(err)
			continue
		}
		want := strings.Split(string(text), "\n")
		now := strings.Split(got, "\n")
		for _, line := range want {
			if !slices.Contains(now, line) {
				t.Errorf("%s: removed or changed: %s", pkg, line)
			}
		}
		for _, line := range now {
			if !slices.Contains(want, line) {
				t.Errorf("%s: new, so that `make api` must write it: %s", pkg, line)
			}
		}
	}
}

// The documentation of every exported type has an example that runs. Aliases have the examples of their types.
func TestAPI_EveryTypeHasAnExample(t *testing.T) {
	all := sources(t)
	for _, pkg := range publicPackages {
		examples := map[string]bool{}
		for _, s := range all {
			if s.pkg != pkg || !s.test {
				continue
			}
			for _, d := range s.file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && strings.HasPrefix(f.Name.Name, "Example") {
					name, _, _ := strings.Cut(strings.TrimPrefix(f.Name.Name, "Example"), "_")
					examples[name] = true
				}
			}
		}
		for line := range strings.Lines(exportedAPI(t, all, pkg)) {
			if rest, ok := strings.CutPrefix(line, "type "); ok && !strings.Contains(line, " = ") {
				if name := rest[:strings.IndexAny(rest, " [\n")]; !examples[name] {
					t.Errorf("%s.%s has no example", pkg, name)
				}
			}
		}
	}
}

// exportedAPI returns a line for each exported name of a package, sorted.
func exportedAPI(t *testing.T, all []source, pkg string) string {
	t.Helper()
	var lines []string
	promoted := map[string]bool{} // types that are not exported, but embedded in one that is
	for _, s := range all {
		if s.pkg == pkg && !s.test {
			ast.Inspect(s.file, func(n ast.Node) bool {
				if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.IsExported() {
					for _, name := range embedded(spec) {
						promoted[name] = true
					}
				}
				return true
			})
		}
	}
	for _, s := range all {
		if s.pkg != pkg || s.test {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(typeName(d.Recv.List[0].Type)) || promoted[typeName(d.Recv.List[0].Type)]) {
					lines = append(lines, oneLine(t, s.fset, &ast.FuncDecl{Recv: d.Recv, Name: d.Name, Type: d.Type}))
				}
			case *ast.GenDecl:
				lines = append(lines, genLines(t, s.fset, d)...)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n") + "\n"
}

// genLines returns the lines of a declaration of types, constants or variables.
func genLines(t *testing.T, fset *token.FileSet, d *ast.GenDecl) (lines []string) {
	t.Helper()
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if !spec.Name.IsExported() {
				continue
			}
			plain := *spec
			plain.Doc, plain.Comment = nil, nil
			var fields []*ast.Field
			if st, ok := spec.Type.(*ast.StructType); ok {
				plain.Type, fields = ast.NewIdent("struct"), st.Fields.List
			}
			lines = append(lines, "type "+oneLine(t, fset, &plain))
			for _, f := range fields {
				for _, name := range f.Names {
					if name.IsExported() {
						lines = append(lines, "field "+spec.Name.Name+"."+name.Name+" "+oneLine(t, fset, f.Type))
					}
				}
				if len(f.Names) == 0 {
					lines = append(lines, "field "+spec.Name.Name+" embeds "+oneLine(t, fset, f.Type))
				}
			}
		case *ast.ValueSpec:
			for i, name := range spec.Names {
				if !name.IsExported() {
					continue
				}
				line := d.Tok.String() + " " + name.Name
				if spec.Type != nil {
					line += " " + oneLine(t, fset, spec.Type)
				}
				if d.Tok == token.CONST && i < len(spec.Values) {
					line += " = " + oneLine(t, fset, spec.Values[i])
				}
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// embedded returns the names of the types that a struct embeds.
func embedded(spec *ast.TypeSpec) (names []string) {
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return nil
	}
	for _, f := range st.Fields.List {
		if len(f.Names) == 0 {
			names = append(names, typeName(f.Type))
		}
	}
	return names
}

// typeName returns the name of a type without its pointer and its parameters.
func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.IndexListExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func oneLine(t *testing.T, fset *token.FileSet, node any) string {
	t.Helper()
	var b bytes.Buffer
	if err := printer.Fprint(&b, fset, node); err != nil {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
