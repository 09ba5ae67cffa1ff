package ingest

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/pprof/profile"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ferula-io/ferula/internal/profiles"
)

// target serves profiles whose cumulative values grow by 10 with every scrape.
func target(t *testing.T) (*httptest.Server, *sync.Map) {
	t.Helper()
	requested := &sync.Map{} // path and query -> true
	var fetches atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requested.Store(r.URL.String(), true)
		switch r.URL.Path {
		case "/pre/debug/pprof/allocs":
			n := fetches.Add(1)
			_, _ = w.Write(testProfile(t, func(p *profile.Profile) {
				p.SampleType = []*profile.ValueType{{Type: "alloc_space", Unit: "bytes"}, {Type: "inuse_space", Unit: "bytes"}}
				p.Sample[0].Value, p.TimeNanos = []int64{10 * n, 5}, time.Now().UnixNano()
			}))
		case "/pre/debug/pprof/profile", "/pre/own":
			_, _ = w.Write(testProfile(t, func(p *profile.Profile) { p.TimeNanos = time.Now().UnixNano() }))
		case "/pre/debug/pprof/block":
			_, _ = w.Write([]byte("no profile"))
		default:
			http.Error(w, "gone", http.StatusGone)
		}
	}))
	t.Cleanup(server.Close)
	return server, requested
}

const someJob = `
global: {scrape_interval: 1s, scrape_timeout: 2s}
scrape_configs:
  - job_name: shop
    params: {debug: ["0"]}
    static_configs:
      - targets: ["ADDRESS"]
        labels: {zone: a, secret: x}
    relabel_configs:
      - {source_labels: [zone], target_label: region}
      - {action: labeldrop, regex: secret}
    profiling_config:
      path_prefix: /pre
      pprof_config:
        goroutine: {enabled: false}
        own: {path: /own, seconds: 1}
`

func startScraper(t *testing.T, text string) (*Scraper, *memory, func()) {
	t.Helper()
	store := &memory{}
	in, err := New(Options{}, store, slog.New(slog.DiscardHandler), nil)
	must(t, err)
	s, err := NewScraper(in, "anonymous", slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
	must(t, err)
	cfg, err := parseConfig([]byte(text))
	if err == nil {
		err = s.ApplyConfig(cfg)
	}
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return s, store, stop
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s", what)
		}
	}
}

func TestScraper_StoresLabelsAndDeltas(t *testing.T) {
	server, requested := target(t)
	address := strings.TrimPrefix(server.URL, "http://")
	s, store, stop := startScraper(t, strings.ReplaceAll(someJob, "ADDRESS", address))
	of := func(name string) (found []storedProfile) {
		for _, k := range store.list() {
			if strings.HasPrefix(k.labels, "__name__="+name+",") {
				found = append(found, k)
			}
		}
		return found
	}
	wait(t, "three heaps, CPU and an own profile", func() bool {
		return len(of("memory")) >= 3 && len(of("process_cpu")) > 0 && len(of("own")) > 0
	})
	wait(t, "failures", func() bool {
		return s.scrapes.With("shop", "mutex", "failed").Get() > 0 && s.scrapes.With("shop", "block", "failed").Get() > 0
	})
	stop()
	want := "__name__=memory,instance=" + address + ",job=shop,region=a,service_name=shop,zone=a"
	for i, k := range of("memory") {
		if alloc, inuse := k.stacks("alloc_space")["main;work"], k.stacks("inuse_space")["main;work"]; alloc != min(10, 10*int64(i)) || inuse != 5 || k.labels != want {
			t.Errorf("fetch %d: %d allocated, %d in use, %s", i, alloc, inuse, k.labels)
		}
	}
	for _, path := range []string{"/pre/debug/pprof/profile?debug=0&seconds=1", "/pre/own?debug=0&seconds=1", "/pre/debug/pprof/allocs?debug=0"} {
		if _, ok := requested.Load(path); !ok {
			t.Errorf("%s was not requested", path)
		}
	}
	if _, ok := requested.Load("/pre/debug/pprof/goroutine?debug=0"); ok {
		t.Error("a profile that is switched off was requested for")
	}
}

func TestScraper_ReloadKeepsUnchangedJobs(t *testing.T) {
	server, _ := target(t)
	text := strings.ReplaceAll(someJob, "ADDRESS", strings.TrimPrefix(server.URL, "http://"))
	s, store, _ := startScraper(t, text)
	wait(t, "a profile", func() bool { return len(store.list()) > 0 })
	pools := func() map[string]*pool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.pools
	}
	before := pools()["shop"]
	apply := func(text string) {
		t.Helper()
		cfg, err := parseConfig([]byte(text))
		if err == nil {
			err = s.ApplyConfig(cfg)
		}
		must(t, err)
	}
	apply(text + "  - {job_name: other, static_configs: [{targets: ['127.0.0.1:1']}]}\n")
	if pools()["shop"] != before || pools()["other"] == nil {
		t.Error("the unchanged job was restarted, or the new one is missing")
	}
	apply("scrape_configs: []")
	if len(pools()) != 0 || len(before.loops) != 0 {
		t.Error("a job goes on that is not there any more")
	}
}

func TestParseConfig_ErrorNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "scrape_configs: []": "",
		"scrape_config: []":                                     "line 1: field scrape_config not found",
		"scrape_configs:\n  - job_name: a\n    jbo: 1":          "line 3: field jbo not found",
		"scrape_configs: [{job_name: ''}]":                      "job_name is empty",
		"scrape_configs: [{job_name: a}, {job_name: a}]":        `duplicate job "a"`,
		"scrape_configs: [{job_name: a, scheme: ftp}]":          "neither http nor https",
		"scrape_configs: [{job_name: a, scrape_interval: 1ms}]": "shorter than a second",
		"scrape_configs: [null]":                                "scrape_configs[0] is empty",
		"scrape_configs:\n  - job_name: a\n    profiling_config:\n      pprof_config:\n        memory: {pth: /x}": "line 5: field pth not found",
		"scrape_configs: [{job_name: a, profiling_config: {pprof_config: {memory: {path: x}}}}]":                  "does not begin with a slash",
		"scrape_configs: [{job_name: a, profiling_config: {pprof_config: {mine: {}}}}]":                           `profile "mine": path ""`,
		"scrape_configs: [{job_name: a, profiling_config: {pprof_config: {process_cpu: {seconds: 99}}}}]":         "99 seconds are not between",
		"scrape_configs: [{job_name: a, relabel_configs: [{action: nonsense}]}]":                                  "unknown relabel action",
		"scrape_configs: [{job_name: a, basic_auth: {username: a, password: b, password_file: c}}]":               "at most one of basic_auth",
		"scrape_configs: [{job_name: a, kubernetes_sd_configs: []}]":                                              "kubernetes_sd_configs not found",
	} {
		_, err := parseConfig([]byte(text))
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := LoadConfig(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was read")
	}
	path := filepath.Join(t.TempDir(), "profiles.yml")
	must(t, os.WriteFile(path, []byte("x: 1"), 0o600))
	if _, err := LoadConfig(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Error(err)
	}
}

func TestScraper_TooLargeProfileIsAnError(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte{0}, 1<<20)) }))
	defer server.Close()
	in, _ := newIngester(t, Limits{ProfileBytes: 1000})
	s, err := NewScraper(in, "a", slog.New(slog.DiscardHandler), nil, nil)
	must(t, err)
	defer s.Close()
	f := &fetcher{pool: &pool{scraper: s, job: &JobConfig{ScrapeTimeout: 5e9}, client: server.Client()}, url: server.URL, labels: named()}
	if err := f.fetch(context.Background()); err == nil || !strings.Contains(err.Error(), "1001 bytes, at most 1000") {
		t.Error(err)
	}
	f.spec.delta = true
	if err := f.fetch(context.Background()); err == nil {
		t.Error("no error of what is no profile")
	}
}

// The library that computes the increase refuses what is repaired elsewhere.
func TestScraper_DeltaOfABrokenProfileIsAnError(t *testing.T) {
	zipped, err := gzip.NewReader(bytes.NewReader(testProfile(t, nil)))
	must(t, err)
	raw, err := io.ReadAll(zipped)
	must(t, err)
	raw = append(raw, 2<<3|2, 6, 1<<3, 99, 2<<3, 1, 2<<3, 1) // a sample of an unknown location
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(raw) }))
	defer server.Close()
	in, store := newIngester(t, Limits{})
	s, err := NewScraper(in, "a", slog.New(slog.DiscardHandler), nil, nil)
	must(t, err)
	defer s.Close()
	f := &fetcher{pool: &pool{scraper: s, job: &JobConfig{ScrapeTimeout: 20e9}, client: server.Client()}, url: server.URL, labels: named()}
	f.spec.delta = true
	for range 2 {
		if err := f.fetch(context.Background()); !errors.Is(err, profiles.ErrBadRequest) || len(store.list()) != 0 {
			t.Errorf("%v; %d are stored", err, len(store.list()))
		}
	}
}

// Every fetch releases its slot, whether it succeeds or fails.
func TestScraper_FetchesReleaseTheirSlots(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(bytes.Repeat([]byte{0}, 2000)) }))
	defer server.Close()
	in, _ := newIngester(t, Limits{ProfileBytes: 1000})
	s, err := NewScraper(in, "a", slog.New(slog.DiscardHandler), nil, nil)
	must(t, err)
	defer s.Close()
	f := &fetcher{pool: &pool{scraper: s, job: &JobConfig{ScrapeTimeout: 20e9}, client: server.Client()}, url: server.URL, labels: named()}
	for n := range fetchesMax + 1 {
		if err := f.fetch(context.Background()); err == nil || !strings.Contains(err.Error(), "1001 bytes") {
			t.Fatalf("fetch %d: %v", n, err)
		}
		if len(s.slots) != 0 {
			t.Fatalf("fetch %d: %d slots are taken", n, len(s.slots))
		}
	}
}
