//go:build clouds

package bucket

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// gcs serves the JSON API of Google Cloud Storage, and downloads of its XML API.
func (c *cloud) gcs(w http.ResponseWriter, r *http.Request) {
	object := func(name string) map[string]any {
		return map[string]any{"name": name, "bucket": "b", "size": fmt.Sprint(len(c.objects[name])), "updated": "2026-01-02T03:04:05Z"}
	}
	respond := func(v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v)
	}
	name, isObject := strings.CutPrefix(r.URL.Path, "/storage/v1/b/b/o/")
	if r.URL.Path != "/token" && r.Header.Get("Authorization") != "Bearer secret" {
		http.Error(w, "no token", http.StatusUnauthorized)
		return
	}
	switch {
	case r.URL.Path == "/token":
		respond(map[string]any{"access_token": "secret", "token_type": "Bearer", "expires_in": 3600})
	case strings.HasPrefix(r.URL.Path, "/upload/"):
		_, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		parts := multipart.NewReader(r.Body, params["boundary"])
		var about struct{ Name string }
		first, err := parts.NextPart()
		if err == nil {
			err = json.NewDecoder(first).Decode(&about)
		}
		var data []byte
		if err == nil {
			var second *multipart.Part
			if second, err = parts.NextPart(); err == nil {
				data, err = io.ReadAll(second)
			}
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.objects[about.Name] = data
		respond(object(about.Name))
	case r.URL.Path == "/storage/v1/b/b/o":
		names, directories := c.list(r.FormValue("prefix"), r.FormValue("delimiter"))
		items := []any{}
		for _, name := range names {
			items = append(items, object(name))
		}
		respond(map[string]any{"items": items, "prefixes": directories})
	case isObject && c.objects[name] == nil, !isObject && c.objects[strings.TrimPrefix(r.URL.Path, "/b/")] == nil:
		http.Error(w, "not found", http.StatusNotFound)
	case isObject && r.Method == http.MethodDelete:
		delete(c.objects, name)
		w.WriteHeader(http.StatusNoContent)
	case isObject:
		respond(object(name))
	default:
		http.ServeContent(w, r, "", updated, bytes.NewReader(c.objects[strings.TrimPrefix(r.URL.Path, "/b/")]))
	}
}

// googleAccount writes the file of a service account whose tokens a server issues.
func googleAccount(t *testing.T, server string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b", "private_key_id": "1", "token_uri": server + "/token",
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "account.json")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestOpen_GCS(t *testing.T) {
	c := newCloud(t, (*cloud).gcs)
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", googleAccount(t, c.URL))
	t.Setenv("STORAGE_EMULATOR_HOST", c.URL)
	checkCloud(t, "type: GCS\nconfig: {bucket: b}\nprefix: p\n", updated)
	for _, config := range []string{"{}", "{bucket: b, bukcet: c}", "{bucket: b, service_account: nonsense}"} {
		if _, err := Open([]byte("type: GCS\nconfig: "+config), "test", quiet, prometheus.NewRegistry()); !errors.Is(err, ErrConfig) {
			t.Errorf("%s: %v", config, err)
		}
	}
}
