// Command lint is the repository's linter: staticcheck, errcheck, errorlint and a
// few analyzers of the Go team in one program, pinned by tools/go.mod.
//
// Packages come in as patterns; what goes out are findings, one a line, and exit
// code 3 if there is any. A finding that is right as it stands is suppressed in its
// place by a comment `//lint:ignore CHECK reason`. `make lint` runs it.
package main

import (
	"strings"

	"github.com/kisielk/errcheck/errcheck"
	"github.com/polyfloyd/go-errorlint/errorlint"
	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/multichecker"
	"golang.org/x/tools/go/analysis/passes/nilness"
	"golang.org/x/tools/go/analysis/passes/unusedwrite"
	"honnef.co/go/tools/simple"
	"honnef.co/go/tools/staticcheck"
)

func main() {
	analyzers := []*analysis.Analyzer{nilness.Analyzer, unusedwrite.Analyzer, errcheck.Analyzer, errorlint.NewAnalyzer()}
	for _, a := range staticcheck.Analyzers {
		analyzers = append(analyzers, a.Analyzer)
	}
	for _, a := range simple.Analyzers {
		if !strings.HasPrefix(a.Analyzer.Name, "S1008") { // an if that returns a bool may read better than its condition
			analyzers = append(analyzers, a.Analyzer)
		}
	}
	multichecker.Main(analyzers...)
}
