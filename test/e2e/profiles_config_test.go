package e2e

import (
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/app"
)

const onePart = "{rate: 64MB, profile_size: 1KB}"

// pushed pushes a profile of 2 KiB for a tenant and returns the status.
func (s *server) pushed(tenant string) int {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.base+"/ingest?name=shop&format=groups", strings.NewReader("main;"+strings.Repeat("f", 2048)+" 1\n"))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-Scope-OrgID", tenant)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// replaceFile changes a file at once, so that no reader gets half of it.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.Rename(writeFile(t, path+".new", text), path); err != nil {
		t.Fatal(err)
	}
}

// An automatic reload reads the file of profiles too, so a change of it must cause one.
func TestServe_AutoReloadAppliesAChangedFileOfProfiles(t *testing.T) {
	for name, metrics := range map[string]string{"with a file of metrics": "scrape_configs: []\n", "alone": ""} {
		t.Run(name, func(t *testing.T) {
			file := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: []\n")
			s := startServe(t, func(o *app.ServeOptions) {
				o.Profiles.ConfigFile, o.Peer.AutoReload = file, 50*time.Millisecond
				if metrics != "" {
					o.ConfigFile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), metrics)
				}
			})
			if status := s.pushed("acme"); status != http.StatusOK {
				t.Fatal(status)
			}
			replaceFile(t, file, "limits: {acme: "+onePart+"}\n")
			eventually(t, 30*time.Second, "the limit of the tenant", func() bool { return s.pushed("acme") == http.StatusBadRequest })
			if status := s.pushed("other"); status != http.StatusOK {
				t.Errorf("another tenant: %d", status)
			}
			replaceFile(t, file, "limits: {acme: {nonsense: 1}}\n")
			eventually(t, 30*time.Second, "the reload to fail", func() bool {
				_, page := s.get("/metrics")
				return strings.Contains(page, "\nprometheus_config_last_reload_successful 0\n")
			})
			if status := s.pushed("acme"); status != http.StatusBadRequest {
				t.Errorf("after a refused file: %d", status)
			}
			replaceFile(t, file, "scrape_configs: []\n")
			eventually(t, 30*time.Second, "the limit to be gone", func() bool { return s.pushed("acme") == http.StatusOK })
		})
	}
}

func TestServe_LimitsOfTenantsThatNoRequestHasAreLogged(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "limits: {acme: "+onePart+", anonymous: "+onePart+"}\n")
	log := &lockedBuffer{}
	s := startServe(t, func(o *app.ServeOptions) {
		o.Profiles.ConfigFile, o.Profiles.SingleTenant, o.Web.EnableLifecycle = file, true, true
		o.Logger = slog.New(slog.NewTextHandler(log, nil))
	})
	const line = "Limits of a tenant are ignored without --profiles.multitenancy"
	if text := log.String(); strings.Count(text, line) != 1 || !strings.Contains(text, "tenant=acme") {
		t.Errorf("at the start: %s", text)
	}
	if status := s.pushed("acme"); status != http.StatusBadRequest {
		t.Errorf("the limits of anonymous do not apply: %d", status)
	}
	writeFile(t, file, "limits: {north: "+onePart+"}\n")
	if status, text := s.post("/-/reload", "", ""); status != http.StatusOK {
		t.Fatal(status, text)
	}
	if text := log.String(); strings.Count(text, line) != 2 || !strings.Contains(text, "tenant=north") {
		t.Errorf("after a reload: %s", text)
	}
}
