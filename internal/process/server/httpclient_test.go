package server

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func TestFromThanos_SendsConfiguredCredentials(t *testing.T) {
	var got string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Get("Authorization") }))
	defer server.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-file"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                             "",
		"bearer_token: abc":            "Bearer abc",
		"bearer_token_file: " + secret: "Bearer from-file",
		"{basic_auth: {username: eve, password: apple}}":                                                     "Basic ZXZlOmFwcGxl",
		"{basic_auth: {username: eve, password_file: " + secret + "}}":                                       "Basic ZXZlOmZyb20tZmlsZQ==",
		`{"tls_config": {"insecure_skip_verify":true}}`:                                                      "",
		"{transport_config: {max_idle_conns: 3, idle_conn_timeout: 90000000000, disable_compression: true}}": "",
	} {
		client, err := FromThanos(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		resp, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		client.CloseIdleConnections()
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestFromThanos_InvalidConfigIsAnError(t *testing.T) {
	for _, text := range []string{"basic: 1", "{bearer_token: a, bearer_token_file: b}", "{basic_auth: {username: a, password: b, password_file: c}}", "{tls_config: {ca_file: /nowhere}}", "{tls_config: {verify: 1}}", "proxy_url: '://'", "["} {
		if _, err := FromThanos(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}
