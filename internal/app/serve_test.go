package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/profiles/store"
	"github.com/ferula-io/ferula/internal/thanos/sources"
	"github.com/ferula-io/ferula/internal/tsdb"
)

// startServe runs a server with this configuration file until the test ends.
func startServe(t *testing.T, config string, change func(*ServeOptions)) (r runningRole, file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "prometheus.yml")
	put(t, file, config)
	o := ServeOptions{
		ConfigFile: file, Web: WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: t.TempDir()},
		Profiles: ProfilesOptions{SingleTenant: true}, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	s, err := NewServe(o)
	if err != nil {
		t.Fatal(err)
	}
	return runRole(t, "serve", s.reg, s.Addr(), s.Run), file
}

func put(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func send(t *testing.T, method, url string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultTransport.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header, string(body)
}

// expect waits until a page has a text.
func expect(t *testing.T, url, want string) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, body := httpGet(t, url)
		if status == http.StatusOK && strings.Contains(body, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d, no %s in %s", url, status, want, body)
		}
	}
}

const (
	reloaded    = "prometheus_config_last_reload_successful 1\n"
	notReloaded = "prometheus_config_last_reload_successful 0\n"
)

func TestServe_ARejectedReloadChangesNothing(t *testing.T) {
	r, file := startServe(t, "global: {external_labels: {zone: one}}\n", func(o *ServeOptions) { o.Web.EnableLifecycle = true })
	expect(t, r.base+"/metrics", reloaded)
	put(t, file, "global: {external_labels: {zone: two}}\nunknown: 1\n")
	if status, _, body := send(t, http.MethodPost, r.base+"/-/reload"); status != http.StatusInternalServerError || !strings.Contains(body, "failed to reload config: ") || !strings.Contains(body, "unknown") {
		t.Errorf("%d %s", status, body)
	}
	expect(t, r.base+"/metrics", notReloaded)
	expect(t, r.base+"/api/v1/status/config", "zone: one")
	expect(t, r.base+"/api/v1/status/runtimeinfo", `"reloadConfigSuccess":false`)
	expect(t, r.base+"/api/v1/notifications", "reload")
	for i, method := range []string{http.MethodPost, http.MethodPut} {
		zone := []string{"three", "four"}[i]
		put(t, file, "global: {external_labels: {zone: "+zone+"}}\nruntime: {gogc: 80}\n")
		if status, _, body := send(t, method, r.base+"/-/reload"); status != http.StatusOK || body != "" {
			t.Errorf("%d %s", status, body)
		}
		expect(t, r.base+"/api/v1/status/config", "zone: "+zone)
	}
	expect(t, r.base+"/metrics", reloaded)
	expect(t, r.base+"/api/v1/status/runtimeinfo", `"reloadConfigSuccess":true`)
	if _, body := httpGet(t, r.base+"/api/v1/notifications"); strings.Contains(body, "reload") {
		t.Error(body)
	}
	if status, header, _ := send(t, http.MethodGet, r.base+"/-/reload"); status != http.StatusMethodNotAllowed || header.Get("Allow") != "POST, PUT" {
		t.Errorf("%d %v", status, header)
	}
}

func TestServe_ChangedFilesAreReloadedByThemselves(t *testing.T) {
	r, file := startServe(t, "global: {external_labels: {zone: one}}\n", func(o *ServeOptions) { o.Peer.AutoReload = 5 * time.Millisecond })
	expect(t, r.base+"/api/v1/status/config", "zone: one")
	put(t, file, "unknown: 1\n")
	expect(t, r.base+"/metrics", notReloaded)
	put(t, file, "global: {external_labels: {zone: two}}\n")
	expect(t, r.base+"/api/v1/status/config", "zone: two")
	expect(t, r.base+"/metrics", reloaded)
}

func TestServe_RetentionIsThatOfTheFile(t *testing.T) {
	for file, want := range map[string]string{
		"": `"storageRetention":"15d"`,
		"storage: {tsdb: {retention: {time: 2d}}}\n":                  `"storageRetention":"2d"`,
		"storage: {tsdb: {retention: {size: 1GB}}}\n":                 "1GiB",
		"storage: {tsdb: {retention: {time: 1d, size: 2GB}}}\n":       `"storageRetention":"1d or 2GiB"`,
		"storage: {tsdb: {retention: {time: 1d, percentage: 12}}}\n":  `"storageRetention":"1d or 12%"`,
		"storage: {tsdb: {retention: {time: 1d, percentage: 7.5}}}\n": `"storageRetention":"1d or 7.5%"`,
	} {
		r, _ := startServe(t, file, nil)
		if _, body := httpGet(t, r.base+"/api/v1/status/runtimeinfo"); !strings.Contains(body, want) {
			t.Errorf("%q: %s", file, body)
		}
	}
}

// Metrics are served although the profiles cannot be.
func TestServe_ProfilesThatCannotBeOpenedAreUnavailable(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "profiles"), "a file in place of the directory")
	r, _ := startServe(t, "", func(o *ServeOptions) { o.Profiles.Store = store.Options{Dir: dir} })
	expect(t, r.base+"/-/ready", "Profiles are not available: ")
	expect(t, r.base+"/metrics", "ferula_profiles_available 0\n")
	expect(t, r.base+"/api/v1/query?query=vector(42)", "42")
	for _, path := range []string{"/ingest?name=a", "/push.v1.PusherService/Push"} {
		if status, _, body := send(t, http.MethodPost, r.base+path); status != http.StatusServiceUnavailable || !strings.Contains(body, "profiles are not available") {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	r, _ = startServe(t, "", nil)
	expect(t, r.base+"/metrics", "ferula_profiles_available 1\n")
	if _, body := httpGet(t, r.base+"/-/ready"); body != "ferula is ready.\n" {
		t.Errorf("%q", body)
	}
}

func TestServe_ReceiversThatAreOffNameTheirFlag(t *testing.T) {
	r, _ := startServe(t, "", func(o *ServeOptions) { o.Receive.RemoteWriteOff, o.Receive.ProfilesOff = true, true })
	for path, flag := range map[string]string{
		"/api/v1/write":           "--web.enable-remote-write-receiver",
		"/api/v1/otlp/v1/metrics": "--web.enable-otlp-receiver",
		"/ingest?name=a":          "--profiles.enable-receiver",
	} {
		if status, _, body := send(t, http.MethodPost, r.base+path); status != http.StatusNotFound || !strings.Contains(body, flag) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for feature, on := range map[string]bool{"remote_write_receiver": false, "otlp_write_receiver": false, "lifecycle": false, "server_mode": true} {
		want := `"` + feature + `":false`
		if on {
			want = `"` + feature + `":true`
		}
		if _, body := httpGet(t, r.base+"/api/v1/features"); !strings.Contains(body, want) {
			t.Errorf("no %s in %s", want, body)
		}
	}
}

func TestServe_PrefixIsInEveryPath(t *testing.T) {
	o := ServeOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0", RoutePrefix: "/pre"}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)}
	s, err := NewServe(o)
	if err != nil {
		t.Fatal(err)
	}
	r := runningRole{"serve", s.reg, "http://" + s.Addr().String()}
	runRole(t, "serve", s.reg, prefixed{s.Addr().String() + "/pre"}, s.Run)
	for path, want := range map[string]int{"/pre/-/healthy": 200, "/pre/metrics": 200, "/pre/api/v1/query?query=1": 200, "/pre/": 200, "/metrics": 404, "/-/healthy": 404} {
		if status, _, body := send(t, http.MethodGet, r.base+path); status != want {
			t.Errorf("%s: %d %.100s", path, status, body)
		}
	}
	if status, header, _ := send(t, http.MethodGet, r.base+"/"); status != http.StatusFound || header.Get("Location") != "/pre/" {
		t.Errorf("%d %v", status, header)
	}
}

// prefixed is an address with the prefix of its paths.
type prefixed struct{ text string }

func (prefixed) Network() string  { return "tcp" }
func (p prefixed) String() string { return p.text }

func TestServe_QuitEndsTheProcess(t *testing.T) {
	s, err := NewServe(ServeOptions{Web: WebOptions{ListenAddress: "127.0.0.1:0", EnableLifecycle: true}, Store: tsdb.Options{Dir: t.TempDir()}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	base := "http://" + s.Addr().String()
	expect(t, base+"/-/ready", "ready")
	if status, _, body := send(t, http.MethodPut, base+"/-/quit"); status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("the process runs")
	}
}

func startSidecar(t *testing.T, prometheus http.HandlerFunc, change func(*SidecarOptions)) (s *Sidecar, ended chan error, stop func()) {
	t.Helper()
	server := httptest.NewServer(prometheus)
	t.Cleanup(server.Close)
	o := SidecarOptions{
		Web: WebOptions{ListenAddress: "127.0.0.1:0"}, GRPC: GRPCOptions{ListenAddress: "127.0.0.1:0"}, PrometheusURL: server.URL, TSDBDir: t.TempDir(),
		PollInterval: 5 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	s, err := NewSidecar(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ended = make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	return s, ended, cancel
}

func endOf(t *testing.T, ended chan error) error {
	t.Helper()
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Minute):
		t.Fatal("the process runs")
		return nil
	}
}

func TestSidecar_EndsIfPrometheusIsNotReadyInTime(t *testing.T) {
	down := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }
	_, ended, _ := startSidecar(t, down, func(o *SidecarOptions) { o.ReadyTimeout = time.Millisecond })
	if err := endOf(t, ended); err == nil || !strings.Contains(err.Error(), "Prometheus was not ready within 1ms") || !strings.Contains(err.Error(), "503") {
		t.Error(err)
	}
	s, ended, stop := startSidecar(t, down, nil) // waits for minutes
	if status, _ := httpGet(t, "http://"+s.Addr().String()+"/-/ready"); status != http.StatusServiceUnavailable {
		t.Error(status)
	}
	stop()
	if err := endOf(t, ended); err != nil {
		t.Error(err)
	}
}

// prometheusWith responds like a Prometheus with these flags and external labels.
func prometheusWith(flags, external string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api/v1/status/flags":
			_, _ = io.WriteString(w, `{"status":"success","data":{`+flags+`}}`)
		case "/api/v1/status/config":
			_, _ = io.WriteString(w, `{"status":"success","data":{"yaml":"global: {external_labels: {`+external+`}}"}}`)
		case "/metrics":
			w.Header().Set("Content-Type", "text/plain; version=0.0.4")
			_, _ = io.WriteString(w, "prometheus_tsdb_lowest_timestamp_seconds 1000\n")
		default:
			http.NotFound(w, r)
		}
	}
}

func TestSidecar_PrometheusThatWouldLoseBlocksIsUnsupported(t *testing.T) {
	const compacts = `"storage.tsdb.min-block-duration":"2h","storage.tsdb.max-block-duration":"31h"`
	const keeps = `"storage.tsdb.min-block-duration":"2h","storage.tsdb.max-block-duration":"2h"`
	ship := func(o *SidecarOptions) {
		o.Ship.Bucket = "{type: FILESYSTEM, config: {directory: " + t.TempDir() + "}}"
	}
	for name, c := range map[string]struct {
		flags, external string
		change          func(*SidecarOptions)
		want            string // "": it becomes ready
	}{
		"ships and compacts":        {compacts, "a: b", ship, "could be compacted and deleted"},
		"ships, without labels":     {keeps, "", ship, "external_labels"},
		"ships":                     {keeps, "a: b", ship, ""},
		"compacts without a bucket": {compacts, "a: b", nil, ""},
	} {
		s, ended, stop := startSidecar(t, prometheusWith(c.flags, c.external), c.change)
		if c.want == "" {
			expect(t, "http://"+s.Addr().String()+"/-/ready", "ready")
			stop()
			if err := endOf(t, ended); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err := endOf(t, ended); err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), sources.ErrUnsupported.Error()) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
