package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	fileLinesMax     = 800
	functionLinesMax = 80
	importChainMax   = 8

	// A package is one idea. A package with more files has several ideas and must be divided
	// into packages. The limit leaves room to split a file.
	packageFilesMax = 25
)

// exceptions maps a file, a directory or file:function, named as in failures, to the reason why
// it may exceed a limit.
var exceptions = map[string]string{}

func excepted(key string) bool { return exceptions[key] != "" }

func TestTidy_FilesAndFunctionsStayShort(t *testing.T) {
	for _, s := range sources(t) {
		lines := strings.Count(s.text, "\n")
		if lines > fileLinesMax && !excepted(s.path) {
			t.Errorf("%s has %d lines, at most %d", s.path, lines, fileLinesMax)
		}
		if s.test {
			continue
		}
		for _, decl := range s.file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			n := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			if n > functionLinesMax && !excepted(s.path+":"+f.Name.Name) {
				t.Errorf("%s: %s has %d lines, at most %d", s.at(f.Pos()), f.Name.Name, n, functionLinesMax)
			}
		}
	}
}

func TestTidy_PackagesStaySmall(t *testing.T) {
	files := map[string]int{}
	for _, s := range sources(t) {
		if !s.test {
			files[s.pkg]++
		}
	}
	for pkg, n := range files {
		if n > packageFilesMax && !excepted(pkg) {
			t.Errorf("%s has %d files, at most %d", pkg, n, packageFilesMax)
		}
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

// go.mod must keep versions that an update of all dependencies would change and that break the
// build if they change.
func TestTidy_PinnedDependenciesStayPinned(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	mod := string(text)
	for _, want := range []string{
		"github.com/prometheus/prometheus v0.315.0\n",
		"github.com/prometheus/common v0.72.1\n", // v0.73 needs a module that the proxy does not have
	} {
		if !strings.Contains(mod, want) {
			t.Errorf("go.mod does not pin %s", strings.TrimSpace(want))
		}
	}
	if strings.Contains(mod, "replace ") {
		t.Error("go.mod has a replace directive, which go install refuses")
	}
}

// The map in ARCHITECTURE.md lists exactly the packages of internal and cmd.
func TestTidy_ArchitectureMapListsEveryPackage(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	if err != nil {
		t.Fatal(err)
	}
	// A newcomer must be able to read the document in one sitting: the map, an entry for each
	// group of packages, three requests and a glossary. Guides belong into docs/howto.md.
	if lines := strings.Count(string(text), "\n"); lines > 400 {
		t.Errorf("ARCHITECTURE.md has %d lines, at most 400", lines)
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
