package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb"

	"github.com/ferula-io/ferula/internal/app"
)

// shutdownConfig is a configuration without targets, with an out-of-order window.
func shutdownConfig(t *testing.T, window string) string {
	return writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
		"global: {external_labels: {cluster: eu}}\nscrape_configs: []\nstorage: {tsdb: {out_of_order_time_window: "+window+"}}\n")
}

// lastHours are samples of the 110 minutes before end, in order, and a late one.
func lastHours(t *testing.T, end time.Time) (bodies [][]byte) {
	for at := end.Add(-110 * time.Minute); !at.After(end); at = at.Add(time.Minute) {
		v := float64(at.UnixMilli() % 7_000_001)
		bodies = append(bodies, encoded(t, v1(v1Series(at.UnixMilli(), v, "__name__", "requests_total", "job", "a"),
			v1Series(at.UnixMilli()+7, v/3, "__name__", "requests_total", "job", "b"))))
	}
	late := end.Add(-90 * time.Second).UnixMilli()
	return append(bodies, encoded(t, v1(v1Series(late, 5, "__name__", "requests_total", "job", "a"))))
}

// responsesOf are the responses of a querier over stores to queries about the two hours before end.
func responsesOf(t *testing.T, end time.Time, stores ...string) string {
	t.Helper()
	q := startQuery(t, stores, nil)
	var all strings.Builder
	for _, query := range []string{`requests_total`, `{__name__=~".+"}[2h]`, `count_over_time(requests_total[2h])`,
		`sum by (job) (rate(requests_total[5m]))`} {
		paths := []string{"/api/v1/query?" + url.Values{"query": {query}, "time": {fmt.Sprint(end.Unix())}}.Encode()}
		if !strings.HasSuffix(query, "}[2h]") {
			paths = append(paths, "/api/v1/query_range?"+url.Values{"query": {query}, "step": {"60"},
				"start": {fmt.Sprint(end.Add(-2 * time.Hour).Unix())}, "end": {fmt.Sprint(end.Unix())}}.Encode())
		}
		for _, path := range paths {
			status, body := q.get(path)
			if status != http.StatusOK || !strings.Contains(body, `"job":"a"`) || strings.Contains(body, "warnings") {
				t.Fatalf("%s: %d %s", path, status, body)
			}
			fmt.Fprintln(&all, path, body)
		}
	}
	return all.String()
}

// shippedBlocks returns the metas of the blocks in a bucket, and the number of their samples. It fails if blocks with
// samples in order overlap.
func shippedBlocks(t *testing.T, bucket string) (blocks []tsdb.BlockMeta, samples uint64) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(bucket, "*", "meta.json"))
	if err != nil {
		t.Fatal(err)
	}
	var inOrder []tsdb.BlockMeta
	for _, path := range found {
		var meta tsdb.BlockMeta
		text, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(text, &meta)
		}
		if err != nil {
			t.Fatal(err)
		}
		blocks, samples = append(blocks, meta), samples+meta.Stats.NumSamples
		if !meta.Compaction.FromOutOfOrder() {
			inOrder = append(inOrder, meta)
		}
	}
	slices.SortFunc(inOrder, func(a, b tsdb.BlockMeta) int { return cmp.Compare(a.MinTime, b.MinTime) })
	if overlaps := tsdb.OverlappingBlocks(inOrder); len(overlaps) > 0 {
		t.Error(overlaps)
	}
	return blocks, samples
}

func TestServe_LastHoursLeaveWithTheProcess(t *testing.T) {
	dir, bucket, file := t.TempDir(), t.TempDir(), shutdownConfig(t, "30m")
	start := func() *server {
		return startServe(t, func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.GRPC.ListenAddress = "127.0.0.1:0"
			o.Store.Dir, o.ShutdownUpload = dir, time.Minute
		})
	}
	end := time.Now().Add(-time.Minute).Truncate(time.Second)
	s := start()
	s.writeAll(lastHours(t, end))
	want := responsesOf(t, end, s.grpc)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	blocks, samples := shippedBlocks(t, bucket)
	if samples != 2*111+1 {
		t.Errorf("the bucket has %d samples", samples)
	}
	if got := responsesOf(t, end, startStore(t, bucket)); got != want {
		t.Errorf("the bucket's responses differ:\n%s\n%s", got, want)
	}
	s = start()
	if got := responsesOf(t, end, s.grpc, startStore(t, bucket)); got != want {
		t.Errorf("responses differ after the start:\n%s\n%s", got, want)
	}
	now := time.Now().UnixMilli()
	s.writeAll([][]byte{encoded(t, v1(v1Series(now, 1, "__name__", "requests_total", "job", "a")))})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if after, samples := shippedBlocks(t, bucket); len(after) != len(blocks)+1 || samples != 2*111+2 {
		t.Errorf("%d blocks after %d, %d samples", len(after), len(blocks), samples)
	}
	if got := responsesOf(t, end, startStore(t, bucket)); got != want {
		t.Errorf("the bucket's responses differ after the second shutdown:\n%s\n%s", got, want)
	}
}

// Results of rules with a query_offset are older than the last sample, so they would be refused after a start.
func TestServe_ScrapedSamplesLeaveWithTheProcessUnlessRulesAreLate(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "scraped 1") }))
	defer target.Close()
	for _, offset := range []string{"0s", "1m"} {
		t.Run(offset, func(t *testing.T) {
			dir, bucket, configs := t.TempDir(), t.TempDir(), t.TempDir()
			writeFile(t, filepath.Join(configs, "rules.yml"), "groups: [{name: g, query_offset: "+offset+", rules: [{record: r, expr: vector(1)}]}]\n")
			file := writeFile(t, filepath.Join(configs, "prometheus.yml"), "global: {external_labels: {cluster: eu}, scrape_interval: 1s}\nrule_files: [rules.yml]\n"+
				"scrape_configs: [{job_name: j, static_configs: [{targets: ['"+strings.TrimPrefix(target.URL, "http://")+"']}]}]\n")
			scrapes, blocks := 0, 0
			for range 2 {
				s := startServe(t, func(o *app.ServeOptions) {
					shipping(file, bucket, "")(o)
					o.Store.Dir, o.ShutdownUpload = dir, time.Minute
				})
				before := scrapes
				eventually(t, 60*time.Second, "another scrape", func() bool {
					scrapes, _ = strconv.Atoi(s.value("count_over_time(scraped[10m])"))
					return scrapes > before
				})
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
				after, _ := shippedBlocks(t, bucket)
				if offset == "0s" && len(after) <= blocks || offset != "0s" && len(after) > 0 {
					t.Errorf("%d blocks after %d", len(after), blocks)
				}
				blocks = len(after)
			}
		})
	}
}

// After the head was written to a block, samples from before its end would be refused or, within the window, be in blocks
// that overlap. A sender repeats them.
func TestServe_PushedSamplesStayInTheHeadWithoutALongOutOfOrderWindow(t *testing.T) {
	for _, window := range []string{"0s", "5m"} {
		t.Run(window, func(t *testing.T) { pushedSamplesStay(t, window) })
	}
}

func pushedSamplesStay(t *testing.T, window string) {
	dir, bucket, file := t.TempDir(), t.TempDir(), shutdownConfig(t, window)
	start := func() *server {
		return startServe(t, func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.Store.Dir, o.ShutdownUpload = dir, time.Minute
		})
	}
	now := time.Now()
	s := start()
	s.writeAll([][]byte{encoded(t, v1(v1Series(now.UnixMilli(), 1, "__name__", "fast")))})
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if err := start().stop(); err != nil { // before the sender has tried again
		t.Fatal(err)
	}
	if blocks, _ := shippedBlocks(t, bucket); len(blocks) > 0 {
		t.Error(blocks)
	}
	s = start()
	s.writeAll([][]byte{encoded(t, v1(v1Series(now.Add(-time.Minute).UnixMilli(), 1, "__name__", "slow")))})
	if got := len(s.instant(`{__name__=~"fast|slow"}`)); got != 2 {
		t.Errorf("%d series", got)
	}
}

// stalledBucket is the configuration of a bucket whose requests do not end before the test. uploads has an element once
// a block is looked for, before its upload.
func stalledBucket(t *testing.T) (config string, uploads <-chan struct{}) {
	begun, over := make(chan struct{}, 1), make(chan struct{})
	stalls := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/meta.json") {
			select {
			case begun <- struct{}{}:
			default:
			}
		}
		select {
		case <-r.Context().Done():
		case <-over:
		}
	}))
	t.Cleanup(func() { close(over); stalls.Close() })
	return "{type: S3, config: {bucket: blocks, region: r, insecure: true, access_key: a, secret_key: s, endpoint: " +
		strings.TrimPrefix(stalls.URL, "http://") + "}}", begun
}

func TestServe_ShutdownUploadEndsAtItsTimeoutAndTheNextStartUploads(t *testing.T) {
	dir, bucket, file := t.TempDir(), t.TempDir(), shutdownConfig(t, "30m")
	stalled, _ := stalledBucket(t)
	end := time.Now().Add(-time.Minute).Truncate(time.Second)
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, "", stalled)(o)
		o.GRPC.ListenAddress = "127.0.0.1:0"
		o.Store.Dir, o.ShutdownUpload = dir, 10*time.Second
	})
	s.writeAll(lastHours(t, end))
	want := responsesOf(t, end, s.grpc)
	if err := s.stop(); err != nil { // it fails if the shutdown takes longer than 30 s
		t.Fatal(err)
	}
	s = startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.GRPC.ListenAddress = "127.0.0.1:0"
		o.Store.Dir = dir
	})
	eventually(t, 60*time.Second, "the blocks of the shutdown to be shipped", func() bool {
		_, body := s.get("/-/ready")
		return strings.Contains(body, "Shipping last succeeded")
	})
	if _, samples := shippedBlocks(t, bucket); samples != 2*111+1 {
		t.Errorf("the bucket has %d samples", samples)
	}
	if got := responsesOf(t, end, s.grpc, startStore(t, bucket)); got != want {
		t.Errorf("responses differ after the start:\n%s\n%s", got, want)
	}
}

func TestServe_SecondSIGTERMEndsTheUploadOfTheShutdown(t *testing.T) {
	stalled, uploads := stalledBucket(t)
	p := startProcess(t, binary(t), "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+t.TempDir(),
		"--config.file="+shutdownConfig(t, "30m"), "--objstore.config="+stalled, "--shutdown.upload-timeout=1h",
		"--storage.tsdb.min-block-duration=2h", "--storage.tsdb.max-block-duration=2h")
	p.writeAll(lastHours(t, time.Now().Add(-time.Minute)))
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-uploads:
	case <-time.After(60 * time.Second):
		t.Fatalf("no upload:\n%s", p.log)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(60 * time.Second):
		t.Fatalf("the process runs after two signals:\n%s", p.log)
	}
}
