package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mutant replaces source[start:end] with text.
type mutant struct {
	file         string
	line, column int
	kind         string
	source       []byte
	start, end   int
	text         string
}

func (m mutant) apply() []byte {
	return slices.Concat(m.source[:m.start], []byte(m.text), m.source[m.end:])
}

// mutantsOf returns all mutants of a package's files, in order of their positions.
func mutantsOf(dir string, files []string) ([]mutant, error) {
	var all []mutant
	for _, name := range files {
		path := filepath.Join(dir, name)
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		if ast.IsGenerated(f) {
			continue
		}
		w := &walker{fset: fset, path: path, source: source, kept: map[ast.Node]bool{}}
		for _, d := range f.Decls {
			if d, ok := d.(*ast.FuncDecl); ok && d.Body != nil {
				w.walk(d.Body, returnsError(d.Type))
			}
		}
		all = append(all, w.found...)
	}
	return all, nil
}

// shuffled orders mutants at random, one of each kind in turn. Otherwise a sample would have
// mostly frequent kinds, such as conditions, and hardly any rare ones, such as unlocks.
func shuffled(all []mutant, seed uint64, name string) []mutant {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	random := rand.New(rand.NewPCG(seed, h.Sum64()))
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	kinds := map[string][]mutant{}
	var names []string
	for _, m := range all {
		if kinds[m.kind] == nil {
			names = append(names, m.kind)
		}
		kinds[m.kind] = append(kinds[m.kind], m)
	}
	var out []mutant
	for len(out) < len(all) {
		for _, k := range names {
			if len(kinds[k]) > 0 {
				out, kinds[k] = append(out, kinds[k][0]), kinds[k][1:]
			}
		}
	}
	return out
}

// walker collects the mutants of a file.
type walker struct {
	fset   *token.FileSet
	path   string
	source []byte
	found  []mutant
	kept   map[ast.Node]bool // nodes that are not changed
}

func (w *walker) add(kind string, from, to token.Pos, text string) {
	at := w.fset.Position(from)
	w.found = append(w.found, mutant{w.path, at.Line, at.Column, kind, w.source, at.Offset, w.fset.Position(to).Offset, text})
}

func (w *walker) text(n ast.Node) string {
	return string(w.source[w.fset.Position(n.Pos()).Offset:w.fset.Position(n.End()).Offset])
}

// walk visits a node within a function. failing reports whether the last result of the
// function is an error.
func (w *walker) walk(n ast.Node, failing bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if n == nil || w.kept[n] {
			return n != nil && !isLeaf(n)
		}
		w.keep(n, failing)
		switch n := n.(type) {
		case *ast.FuncLit:
			w.walk(n.Body, returnsError(n.Type))
			return false
		case *ast.IfStmt:
			w.add("negated", n.Cond.Pos(), n.Cond.End(), "!("+w.text(n.Cond)+")")
		case *ast.BinaryExpr:
			w.binary(n)
		case *ast.BasicLit:
			w.constant(n)
		case *ast.ReturnStmt:
			if failing {
				w.swallowed(n)
			}
		case *ast.ExprStmt, *ast.AssignStmt, *ast.IncDecStmt, *ast.DeferStmt, *ast.BranchStmt, *ast.SendStmt:
			return w.dropped(n.(ast.Stmt))
		}
		return true
	})
}

// keep marks the parts of a node whose mutants are not made, because they do not compile, or
// because no test can or should notice them.
func (w *walker) keep(n ast.Node, failing bool) {
	switch n := n.(type) {
	case *ast.IfStmt:
		w.kept[n.Init] = true // an empty block is not allowed there
	case *ast.ForStmt:
		w.kept[n.Init], w.kept[n.Post] = true, true
	case *ast.SwitchStmt:
		w.kept[n.Init] = true
	case *ast.TypeSwitchStmt:
		w.kept[n.Init], w.kept[n.Assign] = true, true
	case *ast.CommClause:
		w.kept[n.Comm] = true
	case *ast.BinaryExpr:
		if size := n.Op == token.SHL && !strings.Contains(w.text(n.Y), "("); size || strings.Contains(w.text(n), "time.") {
			w.kept[n.X], w.kept[n.Y] = true, true // a limit in bytes, or a timeout
		}
	case *ast.CallExpr:
		if name := callee(n); name == "make" && len(n.Args) == 3 || name == "OpenFile" || name == "MkdirAll" || name == "WriteFile" {
			w.kept[n.Args[len(n.Args)-1]] = true // a capacity, or a file mode
		}
	case *ast.ReturnStmt:
		if failing && len(n.Results) > 1 && w.text(n.Results[len(n.Results)-1]) != "nil" {
			for _, r := range n.Results[:len(n.Results)-1] {
				w.kept[r] = true // callers do not read other results that are returned with an error
			}
		}
	}
}

func isLeaf(n ast.Node) bool {
	_, ok := n.(*ast.BasicLit)
	return ok
}

func returnsError(t *ast.FuncType) bool {
	if t.Results == nil || len(t.Results.List) == 0 {
		return false
	}
	last, ok := t.Results.List[len(t.Results.List)-1].Type.(*ast.Ident)
	return ok && last.Name == "error"
}

var others = map[token.Token]struct{ kind, text string }{
	token.LSS: {"boundary", "<="}, token.LEQ: {"boundary", "<"},
	token.GTR: {"boundary", ">="}, token.GEQ: {"boundary", ">"},
	token.LAND: {"logic", "||"}, token.LOR: {"logic", "&&"},
	token.EQL: {"logic", "!="}, token.NEQ: {"logic", "=="},
	token.ADD: {"constant", "-"}, token.SUB: {"constant", "+"},
}

func (w *walker) binary(n *ast.BinaryExpr) {
	if other, ok := others[n.Op]; ok {
		w.add(other.kind, n.OpPos, n.OpPos+token.Pos(len(n.Op.String())), other.text)
	}
}

func (w *walker) constant(n *ast.BasicLit) {
	if n.Kind != token.INT {
		return
	}
	if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil {
		w.add("constant", n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
	}
}

// swallowed adds a mutant that returns nil in place of an error.
func (w *walker) swallowed(n *ast.ReturnStmt) {
	if len(n.Results) == 0 {
		return
	}
	last := n.Results[len(n.Results)-1]
	if id, ok := last.(*ast.Ident); ok && id.Name == "nil" {
		return
	}
	w.add("swallowed", last.Pos(), last.End(), "func(error) error { return nil }("+w.text(last)+")")
}

// dropped adds a mutant without a statement, except for logging and assertions on our own bugs,
// which tests need not notice. It reports whether to visit the parts of the statement.
func (w *walker) dropped(n ast.Stmt) bool {
	kind := "dropped"
	switch n := n.(type) {
	case *ast.ExprStmt:
		call, ok := n.X.(*ast.CallExpr)
		if !ok {
			return true
		}
		switch name := callee(call); {
		case logs(w.text(call.Fun), name):
			return false
		case slices.Contains([]string{"Unlock", "RUnlock", "Sync", "Close", "Flush", "Done", "Release"}, name):
			kind = "unreleased"
		}
	case *ast.DeferStmt:
		kind = "unreleased"
	case *ast.AssignStmt:
		if n.Tok == token.DEFINE || blank(n) {
			return true
		}
	}
	w.add(kind, n.Pos(), n.End(), "{}")
	return true
}

func logs(fun, name string) bool {
	if fun == "panic" || strings.HasPrefix(fun, "invariant.") {
		return true
	}
	level := slices.Contains([]string{"Debug", "Info", "Warn", "Error", "Log"}, name)
	return level && strings.Contains(strings.ToLower(fun), "log")
}

// callee returns the name of the called function or method, without its package or receiver.
func callee(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		return f.Sel.Name
	case *ast.Ident:
		return f.Name
	}
	return ""
}

// blank reports whether an assignment only discards values, as in _ = f().
func blank(n *ast.AssignStmt) bool {
	return !slices.ContainsFunc(n.Lhs, func(e ast.Expr) bool {
		id, ok := e.(*ast.Ident)
		return !ok || id.Name != "_"
	})
}
