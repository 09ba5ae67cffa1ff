package api

import (
	"net/url"
	"slices"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/prometheus/config"
)

// maskedHeader is Prometheus' text for a secret.
const maskedHeader = "<secret>"

// withoutSecrets returns cfg without the values of headers of remote_write, remote_read and
// tracing, and without passwords in the URLs of OAuth 2. Prometheus' types mask all
// other secrets; these it shows, though headers carry keys of APIs.
func withoutSecrets(cfg config.Config) *config.Config {
	cfg.RemoteWriteConfigs = slices.Clone(cfg.RemoteWriteConfigs)
	for i, section := range cfg.RemoteWriteConfigs {
		masked := *section
		masked.Headers = maskedHeaders(section.Headers)
		masked.HTTPClientConfig = withoutTokenURL(section.HTTPClientConfig)
		cfg.RemoteWriteConfigs[i] = &masked
	}
	cfg.RemoteReadConfigs = slices.Clone(cfg.RemoteReadConfigs)
	for i, section := range cfg.RemoteReadConfigs {
		masked := *section
		masked.Headers = maskedHeaders(section.Headers)
		masked.HTTPClientConfig = withoutTokenURL(section.HTTPClientConfig)
		cfg.RemoteReadConfigs[i] = &masked
	}
	cfg.ScrapeConfigs = slices.Clone(cfg.ScrapeConfigs)
	for i, section := range cfg.ScrapeConfigs {
		if section.HTTPClientConfig.OAuth2 != nil {
			masked := *section
			masked.HTTPClientConfig = withoutTokenURL(section.HTTPClientConfig)
			cfg.ScrapeConfigs[i] = &masked
		}
	}
	cfg.TracingConfig.Headers = maskedHeaders(cfg.TracingConfig.Headers)
	return &cfg
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

func withoutTokenURL(client promconfig.HTTPClientConfig) promconfig.HTTPClientConfig {
	if client.OAuth2 == nil {
		return client
	}
	masked := *client.OAuth2
	if u, err := url.Parse(masked.TokenURL); err == nil && u.User != nil {
		masked.TokenURL = u.Redacted()
	}
	client.OAuth2 = &masked
	return client
}
