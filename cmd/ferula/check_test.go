package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestCheck_ExitCodesAreThoseOfPromtool(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
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
		{"a refused feature", []string{"rules", "--enable-feature=st-storage", good}, 2},
		{"web configuration", []string{"web-config", file("web.yml", "basic_auth_users: {eve: '$2y$10$QOauhQNbBCuQDKes6eFzPeMqBSjb7Mr5DUmpZ/VcEd00UAV/LDeSi'}\n")}, 0},
		{"faulty web configuration", []string{"web-config", file("web2.yml", "tls_server_config: {cert_file: none.pem}\n")}, 1},
	} {
		if code := run(append([]string{"check"}, tt.args...)); code != tt.code {
			t.Errorf("%s: exit code %d, want %d", tt.name, code, tt.code)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "created.log")); !os.IsNotExist(err) {
		t.Errorf("a check has created a log, whose owner may be another user than the server's: %v", err)
	}
}
