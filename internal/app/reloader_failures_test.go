package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/metrics"
)

// respondBy is a function that responds to requests.
type respondBy func(*http.Request) (*http.Response, error)

func (f respondBy) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func respond(status int, body string) *http.Response {
	return &http.Response{StatusCode: status, Status: http.StatusText(status), Body: io.NopCloser(strings.NewReader(body))}
}

// newWith returns a reloader whose requests go to f.
func reloaderTo(t *testing.T, o ReloadOptions, f respondBy) (*reloader, *metrics.Set) {
	t.Helper()
	reg := telemetry.New()
	r, err := newReloader(o, &url.URL{Scheme: "http", Host: "prometheus"}, &http.Client{Transport: f}, slog.New(slog.DiscardHandler), reg)
	if err != nil {
		t.Fatal(err)
	}
	return r, reg.Own
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
	r, _ = reloaderTo(t, ReloadOptions{ConfigFile: config, Every: time.Millisecond, Retry: time.Millisecond}, func(*http.Request) (*http.Response, error) {
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

func TestReloader_MetricsHaveTheNamesAndHelpOfThanos(t *testing.T) {
	_, set := reloaderTo(t, ReloadOptions{}, nil)
	var b strings.Builder
	for _, f := range set.Families() {
		b.WriteString("# HELP " + f.Name + " " + f.Help + "\n")
	}
	set.WritePrometheus(&b)
	text := b.String()
	for _, want := range []string{
		"# HELP thanos_sidecar_reloader_last_reload_successful Whether the last reload of Prometheus succeeded.\n",
		"# HELP thanos_sidecar_reloader_reloads_total Reloads of Prometheus that succeeded.\n",
		"# HELP thanos_sidecar_reloader_reloads_failed_total Reloads of Prometheus that failed,",
		"\nthanos_sidecar_reloader_last_reload_successful 1\n", "\nthanos_sidecar_reloader_reloads_total 0\n", "\nthanos_sidecar_reloader_reloads_failed_total 0\n",
	} {
		if !strings.Contains("\n"+text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
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

// failingWriter is a hash that fails.
type failingWriter struct{}

var errFull = errors.New("full")

func (failingWriter) Write([]byte) (int, error) { return 0, errFull }

func TestReloader_ErrorsOfTheHashAreReturned(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "a.yml"), "a: 1\n")
	r, _ := newTestReloader(t, ReloadOptions{ConfigFile: filepath.Join(dir, "a.yml")})
	if err := r.config(failingWriter{}); !errors.Is(err, errFull) {
		t.Error(err)
	}
	if err := hashTree(failingWriter{}, dir, 0); !errors.Is(err, errFull) {
		t.Error(err)
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
	r, _ := reloaderTo(t, ReloadOptions{}, func(*http.Request) (*http.Response, error) {
		return respond(http.StatusInternalServerError, strings.Repeat("x", 1025)), nil
	})
	if err := r.postReload(context.Background()); err == nil || !strings.HasSuffix(err.Error(), ": "+strings.Repeat("x", 1024)) {
		t.Error(err)
	}
	r, _ = reloaderTo(t, ReloadOptions{}, func(*http.Request) (*http.Response, error) { return nil, errFull })
	if err := r.postReload(context.Background()); !errors.Is(err, errFull) {
		t.Error(err)
	}
	if r.url = ":"; r.postReload(context.Background()) == nil {
		t.Error("no error of an invalid URL")
	}
}

func TestReloader_ReleasesItsTimer(t *testing.T) {
	var used context.Context
	r, _ := reloaderTo(t, ReloadOptions{}, func(request *http.Request) (*http.Response, error) {
		used = request.Context()
		if _, ok := used.Deadline(); !ok || used.Err() != nil {
			t.Error("no deadline")
		}
		return respond(http.StatusOK, ""), nil
	})
	if err := r.postReload(context.Background()); err != nil || used.Err() == nil {
		t.Error(err, used.Err())
	}
}
