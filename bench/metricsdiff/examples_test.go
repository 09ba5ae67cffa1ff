package metricsdiff

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	peersImport = "github.com/VictoriaMetrics/metrics"
	ourImport   = "github.com/ferula-io/ferula/metrics"
)

// The peer's own examples compile, run and print the same with our import path in the place of the peer's, and the page of
// what they registered has the same samples.
func TestExamples_OfThePeerRunWithItsImportChanged(t *testing.T) {
	theirs, theirOutput := examples(t, peersImport)
	ours, ourOutput := examples(t, ourImport)
	if len(theirs) < 15 {
		t.Fatalf("only %d samples: %q", len(theirs), theirs)
	}
	if !slices.Equal(theirs, ours) {
		t.Errorf("got  %q\nwant %q", ours, theirs)
	}
	if theirOutput != ourOutput {
		t.Errorf("got  %s\nwant %s", ourOutput, theirOutput)
	}
}

// examples runs the peer's examples with an import path and returns the names and labels of all samples of the page, sorted,
// and what they printed. Ranges are left out, because some examples measure how long they run.
func examples(t *testing.T, path string) (series []string, output string) {
	t.Helper()
	dir := strings.TrimSpace(run(t, ".", "go", "list", "-m", "-f", "{{.Dir}}", peersImport))
	files, err := filepath.Glob(filepath.Join(dir, "*_example_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatal("no examples", err)
	}
	tmp := t.TempDir()
	overlay := struct{ Replace map[string]string }{map[string]string{}}
	add := func(name string, text []byte) {
		overlay.Replace[absolute(t, filepath.Join("peerexamples", name))] = filepath.Join(tmp, name)
		if err := os.WriteFile(filepath.Join(tmp, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var all []*ast.File
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parsed)
		add(filepath.Base(file), bytes.ReplaceAll(text, []byte(`"`+peersImport+`"`), []byte(`"`+path+`"`)))
	}
	pages := t.TempDir()
	add("main_test.go", mainOf(all, path, pages))
	text, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	add("overlay.json", text)
	binary := filepath.Join(tmp, "examples.test")
	run(t, ".", "go", "test", "-c", "-vet=off", "-o", binary, "-overlay="+filepath.Join(tmp, "overlay.json"), "./peerexamples")
	for line := range strings.Lines(run(t, tmp, binary)) { // go test would change to a directory that is in the overlay only
		if strings.HasPrefix(line, "called ") { // the rest are numbers of goroutines
			output += line
		}
	}
	names := map[string]bool{}
	ranges := regexp.MustCompile(`, vmrange="[^"]*"`)
	written, err := os.ReadDir(pages)
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range written {
		text, err := os.ReadFile(filepath.Join(pages, page.Name()))
		if err != nil {
			t.Fatal(err)
		}
		for name := range samples(t, text, "text/plain; version=0.0.4") {
			names[page.Name()+": "+ranges.ReplaceAllString(name, "")] = true
		}
	}
	return slices.Sorted(maps.Keys(names)), output
}

// mainOf returns a TestMain that runs all examples, those that go test only compiles too, each of these with an empty page, and
// writes pages to a directory. Some panic in the peer too: they format a number by %q.
func mainOf(files []*ast.File, path, pages string) []byte {
	var calls bytes.Buffer
	for _, e := range doc.Examples(files...) {
		if e.Output == "" && !e.EmptyOutput {
			fmt.Fprintf(&calls, "\tcall(%q, Example%s)\n", e.Name, e.Name)
		}
	}
	return fmt.Appendf(nil, `package metrics_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	%q
)

func TestMain(m *testing.M) {
	code := m.Run()
	write("tested")
%s	os.Exit(code)
}

func call(name string, example func()) {
	defer func() {
		fmt.Println("called", name, "panics:", recover() != nil)
		write(name)
	}()
	example()
}

func write(name string) {
	f, err := os.Create(filepath.Join(%q, name))
	if err != nil {
		panic(err)
	}
	metrics.WritePrometheus(f, false)
	metrics.UnregisterAllMetrics()
	if err := f.Close(); err != nil {
		panic(err)
	}
}
`, path, calls.Bytes(), pages)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a command in a directory and returns its output.
func run(t *testing.T, dir, command string, args ...string) string {
	t.Helper()
	cmd := exec.Command(command, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOWORK=off")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", command, strings.Join(args, " "), err, out)
	}
	return string(out)
}
