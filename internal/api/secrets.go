package api

import (
	"regexp"
	"slices"

	"github.com/prometheus/prometheus/config"
)

// maskedHeader is Prometheus' text for a secret.
const maskedHeader = "<secret>"

// tokenURL finds the user and password in the URL of an OAuth 2 section, whatever section of the
// configuration it belongs to: clients of scrapes, discoveries, Alertmanagers and remote endpoints.
var tokenURL = regexp.MustCompile(`(token_url: ['"]?[^\s:/]+://[^\s:/@]*):[^\s/]*@`)

// withoutSecrets returns cfg as YAML, without the values of headers of remote_write, remote_read and tracing, and without
// passwords in the URLs of OAuth 2. Prometheus' types mask all other secrets. They do not mask these, although headers
// may have keys of APIs.
func withoutSecrets(cfg config.Config) string {
	cfg.RemoteWriteConfigs = slices.Clone(cfg.RemoteWriteConfigs)
	for i, section := range cfg.RemoteWriteConfigs {
		masked := *section
		masked.Headers = maskedHeaders(section.Headers)
		cfg.RemoteWriteConfigs[i] = &masked
	}
	cfg.RemoteReadConfigs = slices.Clone(cfg.RemoteReadConfigs)
	for i, section := range cfg.RemoteReadConfigs {
		masked := *section
		masked.Headers = maskedHeaders(section.Headers)
		cfg.RemoteReadConfigs[i] = &masked
	}
	cfg.TracingConfig.Headers = maskedHeaders(cfg.TracingConfig.Headers)
	return tokenURL.ReplaceAllString(cfg.String(), "${1}:xxxxx@")
}

func maskedHeaders(headers map[string]string) map[string]string {
	if headers == nil {
		return nil
	}
	masked := make(map[string]string, len(headers))
	for name := range headers {
		masked[name] = maskedHeader
	}
	return masked
}
