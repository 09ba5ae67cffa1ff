package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/process/telemetry"
)

// fakePrometheus responds to reloads with a status and counts them.
type fakePrometheus struct {
	status  int
	reloads int
}

func (f *fakePrometheus) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != "/prom/-/reload" {
		http.NotFound(w, r)
		return
	}
	f.reloads++
	if f.status != http.StatusOK {
		http.Error(w, "no good configuration", f.status)
	}
}

func newTestReloader(t *testing.T, o ReloadOptions) (*reloader, *fakePrometheus) {
	t.Helper()
	prom := &fakePrometheus{status: http.StatusOK}
	server := httptest.NewServer(prom)
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL + "/prom")
	if err != nil {
		t.Fatal(err)
	}
	r, err := newReloader(o, u, server.Client(), slog.New(slog.DiscardHandler), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	return r, prom
}

func writeFile(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		t.Fatal(err)
	}
}

func TestReloader_ReloadsOnceForEachChange(t *testing.T) {
	dir := t.TempDir()
	config, rules := filepath.Join(dir, "prometheus.yml"), filepath.Join(dir, "rules")
	writeFile(t, config, "a: 1\n")
	writeFile(t, filepath.Join(rules, "deep", "one.yml"), "groups: []\n")
	r, prom := newTestReloader(t, ReloadOptions{ConfigFile: config, RuleDirs: []string{rules}})
	want := 0
	check := func(what string, reloads int) {
		t.Helper()
		want += reloads
		if err := r.reloadIfChanged(context.Background()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if prom.reloads != want {
			t.Errorf("%s: %d reloads, want %d", what, prom.reloads, want)
		}
	}
	check("start", 1)
	check("no change", 0)
	writeFile(t, config, "a: 2\n")
	check("configuration", 1)
	writeFile(t, filepath.Join(rules, "deep", "one.yml"), "groups: [ ]\n")
	check("rule", 1)
	writeFile(t, filepath.Join(rules, "two.yml"), "")
	check("new file", 1)
	if err := os.Rename(filepath.Join(rules, "two.yml"), filepath.Join(rules, "three.yml")); err != nil {
		t.Fatal(err)
	}
	check("renamed file", 1)
	if err := os.Symlink(filepath.Join(rules, "gone"), filepath.Join(rules, "dangling")); err != nil {
		t.Fatal(err)
	}
	check("dangling link", 0)
	if got := r.reloads.Get(); got != uint64(want) {
		t.Errorf("the metric is %d", got)
	}
}

func TestReloader_AFailedReloadIsRepeated(t *testing.T) {
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	writeFile(t, config, "a: 1\n")
	r, prom := newTestReloader(t, ReloadOptions{ConfigFile: config})
	prom.status = http.StatusInternalServerError
	for range 2 {
		if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), "500") || !strings.Contains(err.Error(), "no good configuration") {
			t.Errorf("%v", err)
		}
	}
	prom.status = http.StatusOK
	if err := r.reloadIfChanged(context.Background()); err != nil || prom.reloads != 3 {
		t.Errorf("%d reloads, %v", prom.reloads, err)
	}
}

// A change that could not be loaded and was reverted, or a file that could not be read for a while, is over: Prometheus
// may have applied the bad files in part, and the metric must not report a failure for ever.
func TestReloader_ReloadsOnceTheFilesAreWhatTheyWereBeforeAFailure(t *testing.T) {
	for name, fail := range map[string]func(t *testing.T, config string, prom *fakePrometheus){
		"a refused change": func(t *testing.T, config string, prom *fakePrometheus) {
			prom.status = http.StatusInternalServerError
			writeFile(t, config, "a: 2\n")
		},
		"a file that is missing": func(t *testing.T, config string, _ *fakePrometheus) {
			if err := os.Remove(config); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := filepath.Join(t.TempDir(), "prometheus.yml")
			writeFile(t, config, "a: 1\n")
			r, prom := newTestReloader(t, ReloadOptions{ConfigFile: config})
			r.round(t.Context())
			if r.success.Get() != 1 {
				t.Fatal("the first reload failed")
			}
			fail(t, config, prom)
			r.round(t.Context())
			if r.success.Get() != 0 || r.failed.Get() != 1 {
				t.Errorf("success %v after a failure, %d failures", r.success.Get(), r.failed.Get())
			}
			prom.status, prom.reloads = http.StatusOK, 0
			writeFile(t, config, "a: 1\n")
			r.round(t.Context())
			r.round(t.Context())
			if r.success.Get() != 1 || prom.reloads != 1 {
				t.Errorf("success %v, %d reloads after the revert", r.success.Get(), prom.reloads)
			}
		})
	}
}

func TestReloader_WritesTheExpandedConfiguration(t *testing.T) {
	t.Setenv("RELOADER_TEST", "value")
	dir := t.TempDir()
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	_, _ = zip.Write([]byte("a: $(RELOADER_TEST)\n"))
	_ = zip.Close()
	config, out := filepath.Join(dir, "prometheus.yml.gz"), filepath.Join(dir, "out.yml")
	writeFile(t, config, packed.String())
	r, _ := newTestReloader(t, ReloadOptions{ConfigFile: config, OutputFile: out})
	if err := r.reloadIfChanged(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(out); string(got) != "a: value\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	writeFile(t, config, "not gzip")
	if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), config) {
		t.Errorf("%v", err)
	}
	plain := filepath.Join(dir, "prometheus.yml")
	writeFile(t, plain, "a: $(RELOADER_TEST_UNSET)\n")
	r, prom := newTestReloader(t, ReloadOptions{ConfigFile: plain, OutputFile: out})
	if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), "RELOADER_TEST_UNSET") || prom.reloads != 0 {
		t.Errorf("%d reloads, %v", prom.reloads, err)
	}
}

func TestReloader_ALinkCycleIsAnError(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "again")); err != nil {
		t.Fatal(err)
	}
	r, prom := newTestReloader(t, ReloadOptions{RuleDirs: []string{dir}})
	if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), "directories deep") || prom.reloads != 0 {
		t.Errorf("%d reloads, %v", prom.reloads, err)
	}
}

func TestReloader_RunReloadsAfterAFailureAndEnds(t *testing.T) {
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	failed := make(chan struct{})
	reloaded := make(chan struct{})
	calls := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if calls++; calls == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			close(failed)
			return
		}
		close(reloaded)
	}))
	defer server.Close()
	writeFile(t, config, "a: 1\n")
	u, _ := url.Parse(server.URL)
	r, err := newReloader(ReloadOptions{ConfigFile: config, Every: time.Hour, Retry: time.Millisecond}, u, server.Client(), slog.New(slog.DiscardHandler), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	<-failed
	<-reloaded
	cancel()
	<-done
	if r.failed.Get() != 1 {
		t.Errorf("%d failures", r.failed.Get())
	}
}

func TestReloader_OutputNeedsAConfigurationFile(t *testing.T) {
	if _, err := newReloader(ReloadOptions{OutputFile: "x"}, &url.URL{}, http.DefaultClient, slog.New(slog.DiscardHandler), telemetry.New()); err == nil {
		t.Error("no error")
	}
	r, prom := newTestReloader(t, ReloadOptions{})
	r.Run(context.Background()) // returns: there is nothing to watch
	if prom.reloads != 0 {
		t.Error("reloaded without a file")
	}
}

// An alert fires while the last reload has not succeeded.
func TestReloader_WithoutWatchedFilesNoReloadHasFailed(t *testing.T) {
	for _, tt := range []struct {
		o    ReloadOptions
		want float64
	}{{ReloadOptions{}, 1}, {ReloadOptions{ConfigFile: "x"}, 0}, {ReloadOptions{RuleDirs: []string{"x"}}, 0}} {
		if r, _ := newTestReloader(t, tt.o); r.success.Get() != tt.want {
			t.Errorf("%+v: %v, want %v", tt.o, r.success.Get(), tt.want)
		}
	}
}

// countedBody counts how often it was closed.
type countedBody struct {
	io.Reader
	closed *int
}

func (b countedBody) Close() error { *b.closed++; return nil }

// respondWith is a respondBy that always gives the same response.
type respondWith func() *http.Response

func (f respondWith) RoundTrip(*http.Request) (*http.Response, error) { return f(), nil }

// Otherwise each reload would hold a connection for as long as the process runs.
func TestReloader_ResponsesAreClosed(t *testing.T) {
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError} {
		closed := 0
		client := &http.Client{Transport: respondWith(func() *http.Response {
			return &http.Response{StatusCode: status, Body: countedBody{strings.NewReader(strings.Repeat("x", 5000)), &closed}}
		})}
		r, err := newReloader(ReloadOptions{ConfigFile: config}, &url.URL{Scheme: "http", Host: "a"}, client, slog.New(slog.DiscardHandler), telemetry.New())
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, config, "a: 1\n")
		if err := r.reloadIfChanged(context.Background()); (err == nil) != (status == http.StatusOK) {
			t.Error(err)
		}
		if closed != 1 {
			t.Errorf("%d: closed %d times", status, closed)
		}
	}
}
