package httpapi

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/consul" // these register their sections
	_ "github.com/prometheus/prometheus/discovery/eureka"
	_ "github.com/prometheus/prometheus/discovery/http"
	_ "github.com/prometheus/prometheus/discovery/marathon"
	_ "github.com/prometheus/prometheus/discovery/puppetdb"
)

func TestWithoutSecrets_MasksHeadersAndTokenURLs(t *testing.T) {
	cfg, err := config.Load(`
remote_write: [{url: "http://a/", headers: {X-Key: SECRET}, oauth2: {client_id: a, token_url: "http://eve:SECRET@b/"}}]
remote_read: [{url: "http://a/", headers: {X-Key: SECRET}}]
scrape_configs: [{job_name: a, oauth2: {client_id: a, token_url: "http://eve:SECRET@b/"}, http_sd_configs: [{url: "http://c/", oauth2: {client_id: a, token_url: "http://eve:SEC@SECRET@b/"}}]}]
alerting: {alertmanagers: [{oauth2: {client_id: a, token_url: "http://eve:SECRET@b/"}, static_configs: [{targets: [d]}]}]}
tracing: {endpoint: "a:1", headers: {X-Key: SECRET}}
`, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	before := cfg.String()
	text := withoutSecrets(*cfg)
	if strings.Contains(text, "SECRET") || strings.Count(text, "X-Key: <secret>") != 3 || strings.Count(text, "http://eve:xxxxx@b/") != 4 {
		t.Errorf("%s", text)
	}
	if cfg.String() != before {
		t.Error("the configuration itself was changed")
	}
	plain, err := config.Load("scrape_configs: [{job_name: a}]\nremote_write: [{url: \"http://a/\"}]\n", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if withoutSecrets(*plain) != plain.String() {
		t.Error("a configuration without secrets is shown otherwise than by Prometheus")
	}
}

func TestWithoutSecrets_MasksPasswordsInURLsOfDiscoveries(t *testing.T) {
	cfg, err := config.Load(`
scrape_configs:
  - job_name: a
    http_sd_configs: [{url: "http://eve:SECRET@b/"}, {url: "https://eve:SEC@SECRET@b:80/x?y=z"}, {url: "http://b:80/x@y"}, {url: "http://b:80?x@y"}]
    eureka_sd_configs: [{server: "http://eve:SECRET@b/"}]
    puppetdb_sd_configs: [{url: "http://eve:SECRET@b/", query: "x"}]
    marathon_sd_configs: [{servers: ["http://eve:SECRET@b/", "http://eve:SECRET@b/"]}]
    consul_sd_configs: [{server: "b:8500"}]
`, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	text := withoutSecrets(*cfg)
	if strings.Contains(text, "SECRET") || strings.Count(text, "http://eve:xxxxx@b/") != 5 || !strings.Contains(text, "https://eve:xxxxx@b:80/x?y=z") {
		t.Errorf("%s", text)
	}
	if !strings.Contains(text, "http://b:80/x@y") || !strings.Contains(text, "http://b:80?x@y") || !strings.Contains(text, "server: b:8500") {
		t.Errorf("a URL without a password is shown otherwise: %s", text)
	}
}
