package httpapi

import (
	"regexp"
	"slices"

	"github.com/prometheus/prometheus/config"
)

// maskedHeader is Prometheus' text for a secret.
const maskedHeader = "<secret>"

// passwordInURL finds the user and password in the URL of an OAuth 2 section or of a discovery, whatever section of the
// configuration it belongs to, and in elements of lists, such as the servers of marathon_sd_configs.
var passwordInURL = regexp.MustCompile(`(?m)(^ *(?:- )*(?:(?:token_url|url|server|host|endpoint|identity_endpoint|api_url): )?['"]?[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/?#]*@`)

// withoutSecrets returns cfg as YAML, without the values of headers of remote_write, remote_read and tracing, and
// without passwords in the URLs of OAuth 2 and discoveries. Prometheus' types mask all other secrets. They do not
// mask these, although headers may have keys of APIs.
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
	return withoutPasswords(cfg.String())
}

// withoutPasswords returns text, which is YAML, without the passwords in URLs.
func withoutPasswords(text string) string { return passwordInURL.ReplaceAllString(text, "${1}:xxxxx@") }

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
