package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net"
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
			r, prom := newTestReloader(t, ReloadOptions{ConfigFile: config, Every: time.Hour, Retry: time.Minute})
			r.round(t.Context())
			if r.success.Get() != 1 {
				t.Fatal("the first reload failed")
			}
			fail(t, config, prom)
			if pause := r.round(t.Context()); pause != r.opts.Retry {
				t.Errorf("a pause of %s after a failure", pause)
			}
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

// Otherwise each reload would hold a connection for as long as the process runs.
func TestReloader_ResponsesAreClosed(t *testing.T) {
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError} {
		closed := 0
		r := reloaderTo(t, ReloadOptions{ConfigFile: config}, func(*http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Body: countedBody{strings.NewReader(strings.Repeat("x", 5000)), &closed}}, nil
		})
		writeFile(t, config, "a: 1\n")
		if err := r.reloadIfChanged(context.Background()); (err == nil) != (status == http.StatusOK) {
			t.Error(err)
		}
		if closed != 1 {
			t.Errorf("%d: closed %d times", status, closed)
		}
	}
}

// respondBy is a function that responds to requests.
type respondBy func(*http.Request) (*http.Response, error)

func (f respondBy) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(body))}
}

// reloaderTo returns a reloader whose requests go to f.
func reloaderTo(t *testing.T, o ReloadOptions, f respondBy) *reloader {
	t.Helper()
	r, err := newReloader(o, &url.URL{Scheme: "http", Host: "prometheus"}, &http.Client{Transport: f}, slog.New(slog.DiscardHandler), telemetry.New())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The metrics are read while the requests of the reloads get their responses.
func TestReloader_MetricsTellWhetherTheLastReloadSucceeded(t *testing.T) {
	config := filepath.Join(t.TempDir(), "prometheus.yml")
	writeFile(t, config, "a: 1\n")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var r *reloader
	calls := 0
	check := func(reloads, failed uint64, success float64) {
		t.Helper()
		if r.reloads.Get() != reloads || r.failed.Get() != failed || r.success.Get() != success {
			t.Errorf("call %d: %d reloads, %d failures, success %v", calls, r.reloads.Get(), r.failed.Get(), r.success.Get())
		}
	}
	r = reloaderTo(t, ReloadOptions{ConfigFile: config, Every: time.Millisecond, Retry: time.Millisecond}, func(*http.Request) (*http.Response, error) {
		switch calls++; calls {
		case 1:
			check(0, 0, 0)
			writeFile(t, config, "a: 2\n")
			return respond(http.StatusOK, ""), nil
		case 2: // the file may have been read before it changed: the reload of its new content
			check(1, 0, 1)
			return respond(http.StatusInternalServerError, ""), nil
		case 3:
			check(1, 1, 0)
			return respond(http.StatusOK, ""), nil
		}
		cancel()
		return nil, ctx.Err()
	})
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	for r.reloads.Get() < 2 {
		select {
		case <-done:
			t.Fatal("Run has returned")
		case <-time.After(time.Millisecond):
		}
	}
	writeFile(t, config, "a: 3\n") // ends the run
	<-done
	check(2, 1, 1) // a reload that a shutdown interrupts has not failed
}

func TestReloader_UnreadableFilesAreErrors(t *testing.T) {
	dir := t.TempDir()
	var zipped bytes.Buffer
	zip := gzip.NewWriter(&zipped)
	_, _ = zip.Write(bytes.Repeat([]byte("a: 1\n"), 100))
	_ = zip.Close()
	writeFile(t, filepath.Join(dir, "cut.gz"), zipped.String()[:zipped.Len()-9])
	writeFile(t, filepath.Join(dir, "good.yml"), "a: 1\n")
	writeFile(t, filepath.Join(dir, "directory", "file"), "")
	for path, target := range map[string]string{"itself": "itself", "memory": "/proc/self/mem"} {
		if err := os.MkdirAll(filepath.Join(dir, path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, path, path)); err != nil {
			t.Fatal(err)
		}
	}
	good := filepath.Join(dir, "good.yml")
	for want, o := range map[string]ReloadOptions{
		"absent.yml: no such file":                {ConfigFile: filepath.Join(dir, "absent.yml")},
		"cut.gz: unexpected EOF":                  {ConfigFile: filepath.Join(dir, "cut.gz")},
		"no/out.yml.tmp: no such file":            {ConfigFile: good, OutputFile: filepath.Join(dir, "no", "out.yml")},
		"file exists":                             {ConfigFile: good, OutputFile: filepath.Join(dir, "directory")},
		"rule directory " + dir + "/absent: open": {ConfigFile: good, RuleDirs: []string{filepath.Join(dir, "absent")}},
		"itself/itself: too many levels":          {RuleDirs: []string{filepath.Join(dir, "itself")}},
		"memory/memory: input/output error":       {RuleDirs: []string{filepath.Join(dir, "memory")}},
	} {
		r, prom := newTestReloader(t, o)
		if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), want) || prom.reloads != 0 {
			t.Errorf("%d reloads, %v, want %s", prom.reloads, err, want)
		}
	}
}

func TestReloader_RuleDirectoriesAreReadToSixteenLevels(t *testing.T) {
	dir := t.TempDir()
	deepest := filepath.Join(dir, strings.Repeat("d/", 16))
	writeFile(t, filepath.Join(deepest, "a.yml"), "groups: []\n")
	r, prom := newTestReloader(t, ReloadOptions{RuleDirs: []string{dir}})
	if err := r.reloadIfChanged(context.Background()); err != nil || prom.reloads != 1 {
		t.Errorf("%d reloads, %v", prom.reloads, err)
	}
	writeFile(t, filepath.Join(deepest, "d", "a.yml"), "groups: []\n")
	if err := r.reloadIfChanged(context.Background()); err == nil || !strings.Contains(err.Error(), "more than 16 directories deep") {
		t.Error(err)
	}
}

func TestReloader_SocketsAmongRulesAreNoFiles(t *testing.T) {
	t.Chdir(t.TempDir()) // the path of a socket is short
	writeFile(t, "rules/z.yml", "groups: []\n")
	socket, err := net.Listen("unix", "rules/a")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	r, prom := newTestReloader(t, ReloadOptions{RuleDirs: []string{"rules"}})
	for n, text := range []string{"groups: []\n", "groups: [ ]\n"} {
		writeFile(t, "rules/z.yml", text)
		if err := r.reloadIfChanged(context.Background()); err != nil || prom.reloads != n+1 {
			t.Errorf("%d reloads, %v", prom.reloads, err)
		}
	}
}

// Prometheus, or what watches the file, must not see a change where there is none.
func TestReloader_TheOutputIsWrittenOnlyIfItChanges(t *testing.T) {
	dir := t.TempDir()
	config, out := filepath.Join(dir, "in.yml"), filepath.Join(dir, "out.yml")
	r, prom := newTestReloader(t, ReloadOptions{ConfigFile: config, OutputFile: out})
	apply := func(text string) os.FileInfo {
		t.Helper()
		writeFile(t, config, text)
		if err := r.reloadIfChanged(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(out); err != nil || string(got) != text {
			t.Fatalf("%q, %v", got, err)
		}
		info, err := os.Stat(out)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	first := apply("a: 1\n")
	if second := apply("a: 1\n"); !os.SameFile(first, second) || prom.reloads != 1 {
		t.Errorf("written again, %d reloads", prom.reloads)
	}
	if third := apply("a: 2\n"); os.SameFile(first, third) || prom.reloads != 2 {
		t.Errorf("not renamed, %d reloads", prom.reloads)
	}
}

func TestReloader_ErrorsHaveTheBeginningOfTheResponse(t *testing.T) {
	r := reloaderTo(t, ReloadOptions{}, func(*http.Request) (*http.Response, error) {
		return respond(http.StatusInternalServerError, strings.Repeat("x", 1025)), nil
	})
	if err := r.postReload(context.Background()); err == nil || !strings.HasSuffix(err.Error(), ": "+strings.Repeat("x", 1024)) {
		t.Error(err)
	}
	r = reloaderTo(t, ReloadOptions{}, func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF })
	if err := r.postReload(context.Background()); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Error(err)
	}
	if r.url = ":"; r.postReload(context.Background()) == nil {
		t.Error("no error of an invalid URL")
	}
}

func TestReloader_CompressedConfigurationAboveTheLimitIsRefused(t *testing.T) {
	for extra, want := range []string{"", "more than 67108864 bytes"} {
		var zipped bytes.Buffer
		w, err := gzip.NewWriterLevel(&zipped, gzip.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(bytes.Repeat([]byte("#"), reloadFileBytesMax+extra)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		r := reloader{opts: ReloadOptions{ConfigFile: filepath.Join(dir, "prometheus.yml.gz"), OutputFile: filepath.Join(dir, "out.yml")}}
		if err := os.WriteFile(r.opts.ConfigFile, zipped.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		err = r.config(sha256.New())
		out, readErr := os.ReadFile(r.opts.OutputFile)
		if want == "" {
			if err != nil || len(out) != reloadFileBytesMax {
				t.Errorf("at the limit: %v, %d bytes", err, len(out))
			}
			continue
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), r.opts.ConfigFile) || readErr == nil {
			t.Errorf("above the limit: %v, %d bytes were written", err, len(out))
		}
	}
}
