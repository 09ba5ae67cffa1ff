package role

import (
	"fmt"
	"net/http"

	commonconfig "github.com/prometheus/common/config"
)

// remoteHTTPClient makes the client of one remote read endpoint: TLS,
// authentication, proxies and redirects as Prometheus' HTTP client configuration
// has them. name is for its errors.
func remoteHTTPClient(cfg commonconfig.HTTPClientConfig, name string) (*http.Client, error) {
	client, err := commonconfig.NewClientFromConfig(cfg, name)
	if err != nil {
		return nil, fmt.Errorf("HTTP client of %s: %w", name, err)
	}
	return client, nil
}
