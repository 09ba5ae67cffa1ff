package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/role"
)

// rulesConfig is a configuration with rule files and without targets.
const rulesConfig = `global: {evaluation_interval: 100ms, external_labels: {cluster: north}}
rule_files: [rules/*.yml]
`

// startRules runs a server with one rule file.
func startRules(t *testing.T, config, rules string, change func(*role.ServeOptions)) (s *server, dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "rules"), 0o700); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "rules", "one.yml"), rules)
	file := writeFile(t, filepath.Join(dir, "prometheus.yml"), config)
	s = startServe(t, func(o *role.ServeOptions) {
		o.ConfigFile, o.Web.EnableLifecycle = file, true
		o.Rules.DiscoveryInterval = 100 * time.Millisecond
		if change != nil {
			change(o)
		}
	})
	return s, dir
}

func TestRules_RecordedSeriesAreQueried(t *testing.T) {
	s, _ := startRules(t, rulesConfig, `groups:
- name: numbers
  rules:
  - {record: one, expr: vector(1), labels: {kind: recorded}}
  - {record: two, expr: one + 1}
`, nil)
	eventually(t, 30*time.Second, "the second rule to have a result", func() bool { return s.value("two") == "2" })
	if got := s.instant("one"); len(got) != 1 || got[0].Metric["kind"] != "recorded" {
		t.Errorf("the first rule: %v", got)
	}
}
