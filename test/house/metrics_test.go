package house

import (
	"go/ast"
	"regexp"
	"testing"
)

var clientGolangConstructor = regexp.MustCompile(`^(New|Must)\w*(Counter|Gauge|Untyped|Histogram|Summary|Desc|Metric)\w*$`)

// ferula's own metrics use the module metrics. client_golang is linked only because packages of
// other projects register their metrics with it.
func TestMetrics_OwnMetricsUseTheMetricsModule(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !within(s.pkg, []string{"internal", "cmd"}) {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			call, ok := n.(*ast.SelectorExpr)
			if !ok || !clientGolangConstructor.MatchString(call.Sel.Name) {
				return true
			}
			if pkg, ok := call.X.(*ast.Ident); ok && (pkg.Name == "prometheus" || pkg.Name == "promauto") {
				t.Errorf("%s: %s.%s: own metrics use the module metrics", s.at(call.Pos()), pkg.Name, call.Sel.Name)
			}
			return true
		})
	}
}
