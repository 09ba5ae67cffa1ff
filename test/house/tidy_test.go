package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	importChainMax = 9

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

func TestTidy_EveryPackageHasAPackageComment(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if s.test && documented[s.pkg] {
			continue
		}
		if doc := s.file.Doc; doc != nil && (strings.HasPrefix(doc.Text(), "Package ") || strings.HasPrefix(doc.Text(), "Command ")) {
			documented[s.pkg] = true
		} else if !s.test && !documented[s.pkg] {
			documented[s.pkg] = false
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", pkg)
		}
	}
}

func TestTidy_ExportedNamesAreDocumented(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, decl := range s.file.Decls {
			switch d := decl.(type) {
			case *ast.FuncDecl:
				// The errors package documents Error and Unwrap.
				standard := d.Recv != nil && (d.Name.Name == "Error" || d.Name.Name == "Unwrap")
				if d.Name.IsExported() && d.Doc == nil && !standard && receiverIsExported(d) {
					t.Errorf("%s: %s is not documented", s.at(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				checkDocumented(t, s, d)
			}
		}
	}
}

func receiverIsExported(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	expr := f.Recv.List[0].Type
	if star, ok := expr.(*ast.StarExpr); ok {
		expr = star.X
	}
	if generic, ok := expr.(*ast.IndexExpr); ok {
		expr = generic.X
	}
	name, ok := expr.(*ast.Ident)
	return ok && name.IsExported()
}

func checkDocumented(t *testing.T, s source, d *ast.GenDecl) {
	t.Helper()
	for _, spec := range d.Specs {
		switch sp := spec.(type) {
		case *ast.TypeSpec:
			if sp.Name.IsExported() && d.Doc == nil && sp.Doc == nil {
				t.Errorf("%s: %s is not documented", s.at(sp.Pos()), sp.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range sp.Names {
				if name.IsExported() && d.Doc == nil && sp.Doc == nil && sp.Comment == nil {
					t.Errorf("%s: %s is not documented", s.at(sp.Pos()), name.Name)
				}
			}
		}
	}
}

func TestTidy_NoInitFunctions(t *testing.T) {
	for _, s := range sources(t) {
		for _, decl := range s.file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s: init()", s.at(f.Pos()))
			}
		}
	}
}

// A package variable is a table, a sentinel error, a pool or an embedded file: a literal,
// or a call that creates one of these.
func TestTidy_PackageVariablesAreTablesSentinelsOrPools(t *testing.T) {
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, decl := range s.file.Decls {
			d, ok := decl.(*ast.GenDecl)
			if !ok || d.Tok != token.VAR {
				continue
			}
			for _, spec := range d.Specs {
				v := spec.(*ast.ValueSpec)
				if v.Names[0].Name != "_" && !isConstantLike(v) && !isEmbedded(d) {
					t.Errorf("%s: package variable %s is neither table, sentinel nor pool", s.at(v.Pos()), v.Names[0].Name)
				}
			}
		}
	}
}

// isEmbedded reports whether a declaration embeds a file as a string.
func isEmbedded(d *ast.GenDecl) bool {
	return d.Doc != nil && len(d.Specs) == 1 && exprString(d.Specs[0].(*ast.ValueSpec).Type) == "string" &&
		strings.HasPrefix(d.Doc.List[len(d.Doc.List)-1].Text, "//go:embed ")
}

func isConstantLike(v *ast.ValueSpec) bool {
	if len(v.Values) == 0 {
		return slices.Contains([]string{"sync.Pool", "embed.FS", "spares"}, exprString(v.Type))
	}
	for _, value := range v.Values {
		switch e := value.(type) {
		case *ast.CompositeLit, *ast.BasicLit, *ast.SelectorExpr:
		case *ast.UnaryExpr:
		case *ast.CallExpr:
			name := exprString(e.Fun)
			if !slices.Contains([]string{"errors.New", "fmt.Errorf", "bufpool.New", "regexp.MustCompile", "crc32.MakeTable", "math.Inf", "math.NaN"}, name) && !strings.HasPrefix(name, "time.Unix") {
				return false
			}
		default:
			return false
		}
	}
	return true
}

// exprString formats a name, a.b, or a.b().c, and returns "" for other expressions.
func exprString(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return exprString(x.X) + "." + x.Sel.Name
	case *ast.CallExpr:
		return exprString(x.Fun)
	case *ast.StarExpr:
		return exprString(x.X)
	case *ast.IndexExpr: // of a generic type
		return exprString(x.X)
	default:
		return ""
	}
}

// longestChain returns the length of the longest chain of imports within the repository
// that starts at pkg.
func longestChain(pkg string, imports map[string][]string, known map[string]int) int {
	if n, ok := known[pkg]; ok {
		return n
	}
	longest := 0
	for _, to := range imports[pkg] {
		longest = max(longest, longestChain(to, imports, known))
	}
	known[pkg] = longest + 1
	return longest + 1
}

func TestTidy_ImportChainsStayShort(t *testing.T) {
	imports := map[string][]string{}
	for _, s := range sources(t) {
		if s.test {
			continue
		}
		for _, path := range s.imports() {
			if to := ownPath(path); to != "" {
				imports[s.pkg] = append(imports[s.pkg], to)
			}
		}
	}
	known := map[string]int{}
	for pkg := range imports {
		if n := longestChain(pkg, imports, known); n > importChainMax {
			t.Errorf("%s begins a chain of %d imports, at most %d", pkg, n, importChainMax)
		}
	}
}

// The map in ARCHITECTURE.md lists exactly the packages of internal and cmd.
func TestTidy_ArchitectureMapListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	mapped := map[string]bool{}
	for line := range strings.Lines(string(text)) {
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
