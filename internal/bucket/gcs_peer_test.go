//go:build clouds

package bucket

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func TestPeerFakeGCSServer_IsABucket(t *testing.T) {
	address := startCloud(t, "fake-gcs-server", nil, func(host, port string) []string {
		return []string{"-scheme", "http", "-host", host, "-port", port, "-public-host", host + ":" + port, "-backend", "memory", "-log-level", "error"}
	})
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "secret", "token_type": "Bearer", "expires_in": 3600})
	}))
	t.Cleanup(tokens.Close)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", googleAccount(t, tokens.URL))
	t.Setenv("STORAGE_EMULATOR_HOST", "http://"+address)
	for _, name := range []string{"one", "two"} {
		resp, err := http.Post("http://"+address+"/storage/v1/b?project=p", "application/json", strings.NewReader(`{"name": "`+name+`"}`))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatal(resp.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
	checkCloud(t, "type: GCS\nconfig: {bucket: one}\nprefix: p\n", time.Time{})
	checkShipping(t, "type: GCS\nconfig: {bucket: two}\n")
}
