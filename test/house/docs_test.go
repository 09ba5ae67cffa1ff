package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// partPages are the pages of the parts that a user can run or import.
var partPages = []string{
	"docs/ops/serve.md", "docs/ops/sidecar.md", "docs/ops/query.md", "docs/ops/query-frontend.md", "docs/ops/store.md", "docs/ops/profiles.md",
	"docs/ops/profiles-compact.md", "docs/ops/read.md", "metrics/README.md", "promjson/README.md",
}

// Every part has a page that states when to use it, how to see that it works, what it needs, what its
// limits are, and what its symptoms and log lines mean.
func TestDocs_EveryPartHasItsPage(t *testing.T) {
	headings := []string{"Check that it works", "Sizing", "Limits", "Troubleshooting"}
	for _, page := range partPages {
		text, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\n| use it when | do not when |\n") {
			t.Errorf("%s: no table with the columns 'use it when' and 'do not when'", page)
		}
		for _, want := range headings {
			if !regexp.MustCompile(`(?m)^## ` + want + `\b`).Match(text) {
				t.Errorf("%s: no section %q", page, want)
			}
		}
	}
}

// peerMessages are messages of other programs and libraries that the documents quote.
var peerMessages = []string{
	"lock DB directory", "resource temporarily unavailable", // Prometheus' storage
	"preallocate", "no space left on device", // the kernel, in Prometheus' storage
	"query processing would load too many samples", // Prometheus' engine
	"WAL segment loaded", "address already in use",
}

var (
	quotedText = regexp.MustCompile("`([^`]+)`")
	// What splits a quoted message into the parts that the code has: an ellipsis, a quoted value, a number, a colon of a wrapped error.
	messageGap = regexp.MustCompile(`…|\.\.\.|"[^"]*"|\b\d+\b|: |--[a-z.-]+|[()]`)
)

// Log lines and errors in the tables of symptoms are those of the code: a reader searches the documents for what the log has.
func TestDocs_MessagesInTablesOfSymptomsExist(t *testing.T) {
	known := strings.Join(peerMessages, "\n") + "\n" + stringLiterals(t)
	checked := 0
	for _, doc := range documents(t) {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		header := ""
		for i, line := range strings.Split(string(text), "\n") {
			if !strings.HasPrefix(line, "|") {
				header = ""
				continue
			}
			cell, _, _ := strings.Cut(line[1:], " | ")
			if header == "" {
				header = cell
			}
			if !strings.Contains(header, "symptom") && !strings.Contains(header, "what you see") && strings.TrimSpace(header) != "error" {
				continue
			}
			for _, part := range messageParts(cell) {
				if checked++; !strings.Contains(known, part) {
					t.Errorf("%s:%d: no string of the code has %q", strings.TrimPrefix(doc, root+"/"), i+1, part)
				}
			}
		}
	}
	if checked < 90 {
		t.Errorf("only %d messages found", checked)
	}
}

// messageParts returns what the code must have of the messages that a cell quotes: texts of more than one word.
func messageParts(cell string) (parts []string) {
	for _, quoted := range quotedText.FindAllStringSubmatch(cell, -1) {
		if text := quoted[1]; !strings.Contains(text, " ") || strings.HasPrefix(text, "ferula ") || strings.HasPrefix(text, "-") || strings.HasPrefix(text, "X-") {
			continue
		}
		for _, part := range messageGap.Split(quoted[1], -1) {
			if part = strings.Trim(part, " ,;`"); strings.Contains(part, " ") {
				parts = append(parts, part)
			}
		}
	}
	return parts
}

func TestMessageParts_AreWhatTheCodeMustHave(t *testing.T) {
	for cell, want := range map[string][]string{
		"`Store is down`, with `store` and `err`":                {"Store is down"},
		"`type \"COS\" is not supported` and `--a.flag 3`":       {"is not supported"},
		"`limit exceeded: too many requests`, 429":               {"limit exceeded", "too many requests"},
		"`the push may need … bytes of memory, and heads use …`": {"the push may need", "bytes of memory, and heads use"},
		"`/-/ready` stays 503":                                   nil,
	} {
		if got := messageParts(cell); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", cell, got, want)
		}
	}
}

// stringLiterals returns the strings of the programs and the libraries, one a line.
func stringLiterals(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for _, s := range sources(t) {
		if s.test || strings.HasPrefix(s.pkg, "bench") || strings.HasPrefix(s.pkg, "test") {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if text, err := strconv.Unquote(lit.Value); err == nil {
					b.WriteString(text + "\n")
				}
			}
			return true
		})
	}
	return b.String()
}
