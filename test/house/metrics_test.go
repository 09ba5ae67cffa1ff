package house

import (
	"go/ast"
	"regexp"
	"testing"
)

var peersMetric = regexp.MustCompile(`^(New|Must)\w*(Counter|Gauge|Untyped|Histogram|Summary|Desc|Metric)\w*$`)

// Metrics of ferula's own come from metrics; client_golang is there for the packages
// of others that register in it.
func TestOwnMetricsComeFromTheOwnLibrary(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.pkg, []string{"internal", "cmd"}) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || !peersMetric.MatchString(call.Sel.Name) {
				return true
			}
			if pkg, ok := call.X.(*ast.Ident); ok && (pkg.Name == "prometheus" || pkg.Name == "promauto") {
				t.Errorf("%s: %s.%s: metrics of ferula's own come from metrics", s.at(call.Pos()), pkg.Name, call.Sel.Name)
			}
			return true
		})
	}
}
