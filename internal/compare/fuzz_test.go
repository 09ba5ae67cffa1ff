package compare_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/ferula-io/ferula/internal/compare"
)

// A file has queries, or an error says why not.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{queryLog, dashboardJSON, "groups:\n- rules:\n  - expr: up\n", "up\n# x\n", `[{"expr":"x"}]`, "{", "groups:\n- rules:\n  - alert: x\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		queries, _, err := compare.Load([]string{path})
		if (err == nil) != (len(queries) > 0) {
			t.Errorf("%d queries, %v", len(queries), err)
		}
		for _, q := range queries {
			if q.Expr == "" || q.Source == "" || q.Range && q.StartMS >= q.EndMS && q.StepMS <= 0 {
				t.Errorf("%+v", q)
			}
		}
	})
}
