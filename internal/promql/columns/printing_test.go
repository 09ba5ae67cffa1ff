package columns_test

import (
	"runtime"
	"strings"
	"testing"
)

// To print an expression of thousands of levels around a long text would copy that text as often. It is
// printed to find equal expressions, before the query can be canceled.
func TestQuery_DeepExpressionsAroundALongTextAreNotPrinted(t *testing.T) {
	store := newWorld(t, false)
	_, engine := newEngines(1_000_000)
	nested := strings.Repeat("abs(", 1000) + `g{i=~"` + strings.Repeat("x", 256<<10) + `|1"}` + strings.Repeat(")", 1000)
	for _, query := range []string{"sum(" + nested + ") + sum(" + nested + ")", "sum(" + nested + ") + max(" + nested + ")"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		got, by := request{query: query, start: beginMS + hourMS}.run(t, engine, store)
		runtime.ReadMemStats(&after)
		if by != "columns" || !strings.Contains(got, "{} ") {
			t.Errorf("by %s: %.200s", by, got)
		}
		if used := (after.TotalAlloc - before.TotalAlloc) >> 20; used > 100 {
			t.Errorf("%d MiB were allocated", used)
		}
	}
}
