package api

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/http" // registers http_sd_configs
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
