package house

import (
	"go/ast"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// docs/perf/fuzz.tsv counts the executions of fuzz tests that exist; a renamed test does not keep a line.
func TestFuzz_TotalsNameTests(t *testing.T) {
	tests := map[string]bool{}
	for _, s := range sources(t) {
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && s.test && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				tests[modulePath+"/"+s.pkg+"\t"+f.Name.Name] = true
			}
		}
	}
	if len(tests) < 40 {
		t.Errorf("only %d fuzz tests found", len(tests))
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "perf", "fuzz.tsv"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for _, line := range lines {
		at := strings.LastIndexByte(line, '\t')
		if at < 0 {
			t.Errorf("%q is not package, test, executions", line)
			continue
		}
		if n, err := strconv.ParseUint(line[at+1:], 10, 64); err != nil || n == 0 || !tests[line[:at]] {
			t.Errorf("%q: a test %v, %v", line, tests[line[:at]], err)
		}
	}
	if !slices.IsSorted(lines) {
		t.Error("the lines are not sorted")
	}
}
