package precheck

import (
	"strings"
	"testing"
)

func TestQuery_LimitsLevelsTokensAndTheirProduct(t *testing.T) {
	chain := func(operand string, n int) string { return operand + strings.Repeat("+"+operand, n-1) }
	for what, c := range map[string]struct{ query, want string }{
		"levels":                         {chain("1", 5000), ""},
		"more levels":                    {chain("1", 5002), "deeper than 5000 levels"},
		"brackets":                       {strings.Repeat("(", 5001) + "1" + strings.Repeat(")", 5001), "deeper than 5000 levels"},
		"a chain of selectors":           {chain(`x{a="b",c="d"}`, 4800), ""},
		"long strings":                   {`{a="` + strings.Repeat("x", 1<<20) + `"}`, ""},
		"a list of many labels":          {`sum by (` + strings.Repeat("a,", 90_000) + `a) (x)`, ""},
		"more tokens":                    {`sum by (` + strings.Repeat("a,", 160_000) + `a) (x)`, "more than 300000 tokens"},
		"chains of chains":               {chain("("+chain("x", 1300)+")", 50), ""},
		"chains of chains, and a deeper": {strings.Repeat("abs(", 1000) + chain("("+chain("x", 1300)+")", 50) + strings.Repeat(")", 1000), "which is the limit for"},
	} {
		err := Query(c.query, LevelsMax)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}
