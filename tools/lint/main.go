// Command lint is the repository's linter: staticcheck, errcheck, errorlint, gosec and a
// few analyzers of the Go team in one program, pinned by tools/go.mod.
//
// The arguments are patterns of packages. The program prints one finding a line, with the name of
// the check, and exits with code 3 if there is any. A finding that is right as it stands is
// suppressed by a comment `//lint:ignore CHECK reason` on its line or the line above. The table
// excluded lists the findings that are suppressed everywhere. `make lint` runs it.
package main

import (
	"go/token"
	"slices"
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"github.com/securego/gosec/v2/goanalysis"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
)

// exclusion suppresses findings of one check. Empty fields match everything.
type exclusion struct {
	check   string
	tests   bool   // only in test files and the programs in test/
	message string // only if the message contains it
	line    string // only if the line of code contains it
	reason  string
}

var excluded = []exclusion{
	{check: "S1008", reason: "an if that returns a bool may read better than its condition"},
	{check: "errcheck", tests: true, reason: "a test checks results; a failed Close, write or removal shows in them"},
	{check: "errcheck", line: "defer resp.Body.Close()", reason: "as closeOfReader, of bodies with types of their own"},
	{check: "errorlint", tests: true, reason: "a test may want the very value, not one that wraps it"},
	{check: "errorlint", line: "io.EOF", reason: "an io.Reader returns io.EOF itself; an error that wraps it is not the end of the input"},
	{check: "SA1004", tests: true, reason: "in a synctest bubble, a sleep of 1 ns orders events"},
	{check: "SA4000", tests: true, reason: "f() && f() and <-c && <-c do something twice, for the test's purpose"},
	{check: "SA1019", message: "labels.MetricName is deprecated", reason: "schema.Metadata has the labels __type__ and __unit__ too; the name alone is meant"},
	{check: "gosec", tests: true, reason: "inputs, files, programs and addresses of a test are its own"},
	{check: "gosec", message: "G104:", reason: "errcheck checks it, with the exceptions above"},
	{check: "gosec", message: "G115:", reason: "lengths are below the limits that readers check, and codecs need the conversion of signs; fuzz tests look for overflows"},
	{check: "gosec", message: "G304:", reason: "paths are from flags, configuration and the data folders; tenants are checked to be valid names of folders"},
	{check: "gosec", message: "G301:", reason: "the umask decides who may read data folders, as in Prometheus"},
	{check: "gosec", message: "G302:", reason: "as G301, of files"},
	{check: "gosec", message: "G306:", reason: "as G301, of files"},
	{check: "gosec", line: "InsecureSkipVerify", reason: "set by the operator's flag or configuration only"},
	{check: "gosec", message: "G404:", line: "rand.N(", reason: "jitter of retries"},
}

// closeOfReader is not checked by errcheck: everything was read before, or the rest is not
// needed. The Close of a file that was written is checked.
const closeOfReader = "(io.ReadCloser).Close"

func main() {
	errcheck.DefaultExcludedSymbols = append(errcheck.DefaultExcludedSymbols, closeOfReader)
	analyzers := []*analysis.Analyzer{nilness.Analyzer, unusedwrite.Analyzer, errcheck.Analyzer, errorlint.NewAnalyzer(), goanalysis.Analyzer}
	for _, a := range staticcheck.Analyzers {
		analyzers = append(analyzers, a.Analyzer)
	}
	for _, a := range simple.Analyzers {
		analyzers = append(analyzers, a.Analyzer)
	}
	for _, a := range analyzers {
		a.Run = filtered(a.Name, a.Run)
	}
	multichecker.Main(analyzers...)
}

// filtered returns run without the findings that are suppressed. Messages get the name
// of the check, which a comment needs to suppress them.
func filtered(check string, run func(*analysis.Pass) (any, error)) func(*analysis.Pass) (any, error) {
	return func(pass *analysis.Pass) (any, error) {
		own := *pass
		files := map[string][]string{}
		own.Report = func(d analysis.Diagnostic) {
			at := pass.Fset.Position(d.Pos)
			lines, ok := files[at.Filename]
			if !ok {
				text, err := pass.ReadFile(at.Filename)
				if err != nil {
					text = nil // report everything in this file
				}
				lines = strings.Split(string(text), "\n")
				files[at.Filename] = lines
			}
			if !suppressed(check, d.Message, at, lines) {
				d.Message += " (" + check + ")"
				pass.Report(d)
			}
		}
		return run(&own)
	}
}

// suppressed reports whether the table or a comment suppresses a finding; lines are those
// of its file.
func suppressed(check, message string, at token.Position, lines []string) bool {
	line := func(n int) string { // counted from 1
		if n < 1 || n > len(lines) {
			return ""
		}
		return lines[n-1]
	}
	test := strings.HasSuffix(at.Filename, "_test.go") || strings.Contains(at.Filename, "/test/")
	for _, e := range excluded {
		if e.check == check && (test || !e.tests) && strings.Contains(message, e.message) && strings.Contains(line(at.Line), e.line) {
			return true
		}
	}
	return ignores(line(at.Line), check) || ignores(line(at.Line-1), check)
}

// ignores reports whether a line has a comment that suppresses check with a reason.
func ignores(line, check string) bool {
	_, comment, found := strings.Cut(line, "//lint:ignore ")
	words := strings.Fields(comment)
	return found && len(words) > 1 && slices.Contains(strings.Split(words[0], ","), check)
}
