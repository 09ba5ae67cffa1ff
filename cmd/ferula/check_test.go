package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/prometheus/common/model"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/block"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

// filesIn returns a function that writes a file into a directory and returns its path.
func filesIn(t *testing.T, dir string) func(name, text string) string {
	return func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
}

func TestCheck_ExitCodesAreThoseOfPromtool(t *testing.T) {
	dir := t.TempDir()
	file := filesIn(t, dir)
	good := file("good.yml", "groups: [{name: g, rules: [{record: a, expr: up}, {alert: A, expr: up == 0, for: 1m}]}]\n")
	twice := file("twice.yml", "groups: [{name: g, rules: [{record: a, expr: up}, {record: a, expr: up}]}]\n")
	bad := file("bad.yml", "groups: [{name: g, rules: [{record: a, expr: 'up('}]}]\n")
	file("utf8.yml", "groups: [{name: g, rules: [{record: a.b, expr: up}]}]\n")
	experimental := file("experimental.yml", "groups: [{name: g, rules: [{record: a, expr: 'mad_over_time(up[5m])'}]}]\n")
	for _, tt := range []struct {
		name string
		args []string
		code int
	}{
		{"rules", []string{"rules", good}, 0},
		{"a faulty rule", []string{"rules", good, bad}, 1},
		{"no such file", []string{"rules", filepath.Join(dir, "none.yml")}, 1},
		{"a duplicate rule", []string{"rules", twice}, 0},
		{"a duplicate rule that is fatal", []string{"rules", "--lint-fatal", twice}, 3},
		{"duplicate rules that are not looked for", []string{"rules", "--lint=none", "--lint-fatal", twice}, 0},
		{"no file", []string{"rules"}, 2},
		{"configuration", []string{"config", file("a.yml", "rule_files: [good.yml]\nscrape_configs: [{job_name: a, kubernetes_sd_configs: [{role: pod}]}]\n")}, 0},
		{"unknown key", []string{"config", file("b.yml", "nonsense: 1\n")}, 1},
		{"faulty rule file", []string{"config", file("c.yml", "rule_files: [bad.yml]\n")}, 1},
		{"missing rule file", []string{"config", file("d.yml", "rule_files: [none.yml]\n")}, 1},
		{"rule files that none matches", []string{"config", file("e.yml", "rule_files: [none-*.yml]\n")}, 0},
		{"missing certificate", []string{"config", file("f.yml", "scrape_configs: [{job_name: a, tls_config: {ca_file: none.pem}}]\n")}, 1},
		{"missing certificate of remote write", []string{"config", file("g.yml", "remote_write: [{url: 'http://h/', tls_config: {ca_file: none.pem}}]\n")}, 1},
		{"missing certificate, syntax only", []string{"config", "--syntax-only", filepath.Join(dir, "f.yml")}, 0},
		{"missing certificate of remote read", []string{"config", file("h.yml", "remote_read: [{url: 'http://h/', tls_config: {ca_file: none.pem}}]\n")}, 1},
		{"missing certificate of an Alertmanager", []string{"config", file("i.yml", "alerting: {alertmanagers: [{tls_config: {ca_file: none.pem}}]}\n")}, 1},
		{"a query log in no directory", []string{"config", file("j.yml", "global: {query_log_file: none/queries.log}\n")}, 1},
		{"a log of failed scrapes in no directory", []string{"config", file("k.yml", "scrape_configs: [{job_name: a, scrape_failure_log_file: none/a.log}]\n")}, 1},
		{"logs that a server would create", []string{"config", file("l.yml", "global: {query_log_file: created.log}\nscrape_configs: [{job_name: a, scrape_failure_log_file: created.log}]\n")}, 0},
		{"a name that the scheme of the configuration forbids", []string{"config", file("m.yml", "global: {metric_name_validation_scheme: legacy}\nrule_files: [utf8.yml]\n")}, 1},
		{"the same name without that scheme", []string{"config", file("n.yml", "rule_files: [utf8.yml]\n")}, 0},
		{"an expression of durations", []string{"rules", file("duration.yml", "groups: [{name: g, rules: [{record: a, expr: 'rate(up[1m + 1m])'}]}]\n")}, 0},
		{"a function of a feature", []string{"rules", experimental}, 1},
		{"a function of a feature that is enabled", []string{"rules", "--enable-feature=promql-experimental-functions", experimental}, 0},
		{"features that exclude each other", []string{"rules", "--enable-feature=otlp-deltatocumulative,otlp-native-delta-ingestion", good}, 2},
		{"web configuration", []string{"web-config", file("web.yml", "basic_auth_users: {eve: '$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi'}\n")}, 0},
		{"faulty web configuration", []string{"web-config", file("web2.yml", "tls_server_config: {cert_file: none.pem}\n")}, 1},
	} {
		if code := run(append([]string{"ferula", "check"}, tt.args...)); code != tt.code {
			t.Errorf("%s: exit code %d, want %d", tt.name, code, tt.code)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "created.log")); !os.IsNotExist(err) {
		t.Errorf("a check has created a log, whose owner may be another user than the server's: %v", err)
	}
}

func TestCheck_FaultsOfRulesAreReportedOnceWithTheirLines(t *testing.T) {
	file := filesIn(t, t.TempDir())
	expressions, err := ruleParser(nil)
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"groups: [\n": "line 1",
		"groups: [{name: g, rules: [{record: a,\n expr: 'up('}]}]\n":              "2:8: ",
		"groups: [{name: g, rules: [\n{alert: a, expr: up, labels: {'': b}}]}]\n": "2:1: ",
	} {
		var out, errs strings.Builder
		c := &checker{out: &out, errs: &errs}
		c.rules(file("rules.yml", content), model.UTF8Validation, expressions, lintFlags{})
		if got := strings.TrimSpace(errs.String()); !strings.Contains(got, want) || strings.Contains(got, "\n") || c.failed != 1 {
			t.Errorf("%q: %d failed: %s", content, c.failed, got)
		}
	}
}

func TestCheck_ProfileBlocksOfARunningServer(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	s, err := store.New(store.Options{Dir: dir, Retention: -1}, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for tenant := range 2 {
		e := pprof.NewEncoder()
		e.SampleType("cpu", "nanoseconds")
		e.Sample([]uint64{e.Location(e.Function("f", "", "f.go", 1), 2)}, 3)
		set := labelenc.AppendLabel(labelenc.AppendLabel(nil, "__name__", "process_cpu"), "service_name", "shop")
		if err := s.Append(ctx, []string{"one", "two"}[tenant], []profiles.RawProfile{{Labels: set, TimeNS: 1_700_000_000_000_000_000, Raw: e.Append(nil)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob(filepath.Join(dir, "profiles", "*", "*", block.RowsFile))
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	check := func(what string, want int, args ...string) {
		t.Helper()
		if code := run(append([]string{"ferula", "check", "profiles"}, args...)); code != want {
			t.Errorf("%s: exit code %d, want %d", what, code, want)
		}
	}
	check("a server's directory", 0, dir)
	check("a link to it", 0, link)
	check("a tenant's directory", 0, filepath.Join(dir, "profiles", "one"))
	check("one block, and another", 0, filepath.Dir(all[0]), filepath.Dir(all[1]))
	check("no directory", 2)
	check("a directory without blocks", 1, t.TempDir())
	check("no such directory", 1, filepath.Join(dir, "none"))
	samples := t.TempDir() // a TSDB's block is not a profile block
	if err := os.MkdirAll(filepath.Join(samples, "01HZZZZZZZZZZZZZZZZZZZZZZZ"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"meta.json", "index"} {
		if err := os.WriteFile(filepath.Join(samples, "01HZZZZZZZZZZZZZZZZZZZZZZZ", name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check("a directory with a block of samples", 1, samples)

	broken, err := os.ReadFile(all[1])
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(filepath.Dir(all[1]))) // the server has the other one mapped
	if err := os.CopyFS(copied, os.DirFS(filepath.Dir(all[1]))); err != nil {
		t.Fatal(err)
	}
	check("a copy of a block", 0, copied)
	if err := os.WriteFile(filepath.Join(copied, block.RowsFile), broken[:len(broken)-1], 0o600); err != nil {
		t.Fatal(err)
	}
	check("a file that is cut short", 1, copied, dir)
	if err := os.Remove(filepath.Join(copied, block.RowsFile)); err != nil {
		t.Fatal(err)
	}
	check("a missing file", 1, copied)
	if err := syscall.Mkfifo(filepath.Join(copied, block.RowsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a FIFO instead of a file", 1, copied)
	check("a FIFO instead of a directory", 1, filepath.Join(copied, block.RowsFile))
	whole := filepath.Join(t.TempDir(), filepath.Base(copied))
	if err := os.CopyFS(whole, os.DirFS(filepath.Dir(all[1]))); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(whole, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	check("a FIFO in addition to the files", 1, whole)
}
