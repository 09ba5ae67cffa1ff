package house

import (
	"go/ast"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unicode"
)

// A Prometheus engineer must be able to grep for the terms of the field. Each pattern matches a
// word that this code base once used instead of such a term.
var words = []struct {
	pattern *regexp.Regexp
	use     string
}{
	{regexp.MustCompile(`(?i)\banswer(s|ed|ing)?\b`), "response, result, respond"},
	{regexp.MustCompile(`(?i)\b(ask(s|ed|ing)?|question(s)?)\b`), "request, query, send, read"},
	{regexp.MustCompile(`(?i)\bmoments?\b`), "timestamp, time"},
	{regexp.MustCompile(`(?i)\blanes?\b`), "signal, metrics, profiles"},
	{regexp.MustCompile(`(?i)\bseams?\b`), "interface, boundary"},
	{regexp.MustCompile(`(?i)\bbeside\b`), "next to, in addition to, compared with"},
	{regexp.MustCompile(`(?i)\b(leavers?|whoever|whomever)\b`), "a client that disconnects; every caller that"},
	{regexp.MustCompile(`(?i)\b(for|by|to|of|from|with) who\b`), "for callers that"},
	{regexp.MustCompile(`(?i)\b(nobody|somebody)\b`), "no caller, a client, a user"},
	{regexp.MustCompile(`(?i)\banew\b`), "again"},
	{regexp.MustCompile(`(?i)\b(said|told|tells|says)\b`), "reports, returns, names, states"},
	{regexp.MustCompile(`(?i)\b(made good|made one|makes one of|the way in|heeded|spelled|spells)\b`), "adjusted, deduplicated, ingestion, honoured, encoded"},
	{regexp.MustCompile(`(?i)\b(patience|let go|lets go|give back|gives back|given back|gave back)\b`), "grace, release"},
	{regexp.MustCompile(`(?i)\b(is|are) no more\b`), "was deleted, is gone"},
	{regexp.MustCompile(`(?i)\b(tournament|champion)s?\b`), "loser tree, winner"},
}

// anyWord matches a text that one of words matches. Almost no text does, and one search is faster than one for each word.
var anyWord = sync.OnceValue(func() *regexp.Regexp {
	var all []string
	for _, w := range words {
		all = append(all, w.pattern.String())
	}
	return regexp.MustCompile(strings.Join(all, "|"))
})

// identifierWords maps parts of identifiers to the terms of the field that must replace them.
var identifierWords = map[string]string{
	"answer": "response, result", "answers": "responses, results", "answered": "result", "ask": "request, query, send", "asks": "requests", "asked": "requested", "asking": "querying",
	"question": "request", "moment": "timestamp", "moments": "timestamps", "lane": "signal", "seam": "interface", "beside": "peer, local", "said": "reported", "told": "reported",
	"leaver": "client", "whoever": "caller", "nobody": "none", "somebody": "client", "anew": "again", "patience": "grace", "tournament": "loserTree", "champion": "winner",
	"doomed": "toDelete", "lacking": "stripper",
}

func TestWords_CommentsStringsAndNamesUseTheFieldsTerms(t *testing.T) {
	for _, s := range sources(t) {
		if s.path == "test/house/words_test.go" {
			continue
		}
		for _, group := range s.file.Comments {
			for _, c := range group.List {
				checkWords(t, s.at(c.Pos()), c.Text)
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					checkWords(t, s.at(n.Pos()), n.Value)
				}
			case *ast.Ident:
				for _, part := range camelParts(n.Name) {
					if use := identifierWords[part]; use != "" && n.Obj != nil || use != "" && isDeclaredHere(s, n) {
						t.Errorf("%s: name %s: instead of %q use: %s", s.at(n.Pos()), n.Name, part, use)
					}
				}
			}
			return true
		})
	}
}

// isDeclaredHere reports whether the file declares a function of this name. Names of other
// modules are only used, never declared.
func isDeclaredHere(s source, n *ast.Ident) bool {
	for _, decl := range s.file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok && f.Name == n {
			return true
		}
	}
	return false
}

func checkWords(t *testing.T, at, text string) {
	t.Helper()
	if !anyWord().MatchString(text) {
		return
	}
	for _, w := range words {
		if found := w.pattern.FindString(text); found != "" {
			t.Errorf("%s: instead of %q use: %s", at, found, w.use)
		}
	}
}

// camelParts splits a name into its words, in lower case.
func camelParts(name string) []string {
	var parts []string
	var part strings.Builder
	flush := func() {
		if part.Len() > 0 {
			parts = append(parts, strings.ToLower(part.String()))
			part.Reset()
		}
	}
	for _, r := range name {
		if unicode.IsUpper(r) || r == '_' {
			flush()
		}
		if r != '_' {
			part.WriteRune(r)
		}
	}
	flush()
	return parts
}

// This test covers files other than Go: documents, scripts, the web UI's source.
func TestWords_DocumentsAndThePageUseTheFieldsTerms(t *testing.T) {
	kinds := map[string]bool{".md": true, ".ts": true, ".tsx": true, ".mjs": true, ".sh": true, ".proto": true, ".tsv": true, ".css": true, ".py": true, ".js": true}
	checked := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if skipDir(rel, d.Name()) || strings.HasPrefix(rel, "bench/out") {
				return filepath.SkipDir
			}
			return nil
		}
		if !kinds[filepath.Ext(path)] && d.Name() != "Makefile" {
			return nil
		}
		if rel == "bench/goals.tsv" { // the text of the goals is not edited
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		checked++
		for i, line := range strings.Split(string(text), "\n") {
			checkWords(t, rel+":"+strconv.Itoa(i+1), line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if checked < 20 {
		t.Fatalf("only %d documents found: root is wrong", checked)
	}
}

// thanosMessages are log messages of Thanos, which its users search for in logs.
var thanosMessages = map[string]bool{"slow query detected": true}

// A log message begins with a capital letter, as in Prometheus.
func TestWords_LogMessagesBeginWithACapitalLetter(t *testing.T) {
	levels := map[string]bool{"Debug": true, "Info": true, "Warn": true, "Error": true}
	checked := 0
	for _, s := range sources(t) {
		if s.test || !within(s.pkg, []string{"internal", "cmd"}) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !levels[strings.TrimSuffix(method.Sel.Name, "Context")] {
				return true
			}
			message := 0
			if strings.HasSuffix(method.Sel.Name, "Context") {
				message = 1
			}
			if len(call.Args) <= message {
				return true
			}
			text := leadingString(call.Args[message])
			if text == "" || thanosMessages[text] {
				return true
			}
			if checked++; unicode.IsLower(rune(text[0])) {
				t.Errorf("%s: the log message %q begins with a small letter", s.at(call.Pos()), text)
			}
			return true
		})
	}
	if checked < 80 {
		t.Fatalf("only %d log messages found", checked)
	}
}

// leadingString returns the string literal with which an expression begins; "" if it does not.
func leadingString(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		return leadingString(e.X)
	}
	return ""
}
