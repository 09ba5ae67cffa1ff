package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
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

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb"
	"github.com/prometheus/prometheus/tsdb/chunks"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/test/chunksample"
)

// twoHours is the duration of a block that is shipped.
const twoHours = 2 * time.Hour

// writeBlock writes a level-1 block of two hours and returns its ULID. back 0 is the last
// complete block range before now, 1 the one before. Each series has a sample per minute.
func writeBlock(t *testing.T, dir string, back int, series ...labels.Labels) string {
	t.Helper()
	start := time.Now().Truncate(twoHours).Add(-time.Duration(back+1) * twoHours).UnixMilli()
	var list []storage.Series
	for i, lset := range series {
		var points []chunks.Sample
		for at := start; at < start+twoHours.Milliseconds(); at += 60_000 {
			points = append(points, chunksample.Float{MS: at, Value: float64(i) + float64(at%7200_000)/1e6})
		}
		list = append(list, storage.NewListSeries(lset, points))
	}
	path := try(tsdb.CreateBlock(list, dir, twoHours.Milliseconds(), slog.New(slog.NewTextHandler(io.Discard, nil)))).must(t)
	return filepath.Base(path)
}

func shipping(file, bucket string, text string) func(*app.ServeOptions) {
	return func(o *app.ServeOptions) {
		o.ConfigFile = file
		o.Store.MinBlockDuration, o.Store.MaxBlockDuration = twoHours, twoHours
		o.Ship.Bucket = text
		if text == "" {
			o.Ship.Bucket = "type: FILESYSTEM\nconfig: {directory: " + bucket + "}\n"
		}
	}
}

func TestServe_ShipsItsBlocks(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	id := writeBlock(t, dir, 1, labels.FromStrings("__name__", "shipped", "a", "1"))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = 200 * time.Millisecond
		o.Profiles.Self, o.Profiles.Every, o.Profiles.Store.HeadAge = true, 50*time.Millisecond, time.Second
	})
	s.waitFor("/-/ready", "Shipping last succeeded")
	text, err := os.ReadFile(filepath.Join(bucket, id, "meta.json"))
	if err != nil || !strings.Contains(string(text), `"cluster": "eu"`) || !strings.Contains(string(text), `"source": "ferula"`) {
		t.Errorf("%s, %v", text, err)
	}
	eventually(t, 60*time.Second, "a block of profiles to be shipped", func() bool {
		found, _ := filepath.Glob(filepath.Join(bucket, "profiles", "*", "*", "index"))
		return len(found) > 0
	})
	for _, name := range []string{"index", "chunks/000001"} {
		want := try(os.ReadFile(filepath.Join(dir, id, name))).must(t)
		if got, err := os.ReadFile(filepath.Join(bucket, id, name)); err != nil || string(got) != string(want) {
			t.Errorf("%s differs: %v", name, err)
		}
	}
	s.expect("/metrics", 0, "thanos_shipper_uploads_total 1", "thanos_objstore_bucket_operations_total")
}

func TestServe_UnsafeShippingOptionsAreRefused(t *testing.T) {
	labelled := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	bare := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	for what, change := range map[string]func(*app.ServeOptions){
		"external":           shipping(bare, t.TempDir(), ""),
		"min-block-duration": func(o *app.ServeOptions) { shipping(labelled, t.TempDir(), "")(o); o.Store.MaxBlockDuration = 0 },
		"must both be 2h": func(o *app.ServeOptions) {
			shipping(labelled, t.TempDir(), "")(o)
			o.Store.MinBlockDuration = time.Hour
		},
		"not supported": shipping(labelled, "", "type: COS\nconfig: {}\n"),
	} {
		opts := app.ServeOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Logger: slog.New(slog.DiscardHandler)}
		change(&opts)
		opts.Store.Dir = t.TempDir()
		if _, err := app.NewServe(opts); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestServe_BucketOutageIsReportedAndShippingRecovers(t *testing.T) {
	dir, nowhere := t.TempDir(), filepath.Join(t.TempDir(), "file")
	writeFile(t, nowhere, "a file where the bucket's folder should be")
	writeBlock(t, dir, 1, labels.FromStrings("__name__", "waits"))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, nowhere, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.RetryMin = 50 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the failure in /-/ready", func() bool {
		status, body := s.get("/-/ready")
		return status == 200 && strings.Contains(body, "Shipping has failed since") && strings.Contains(body, "waiting: 1")
	})
	noError(t, os.Remove(nowhere))
	s.waitFor("/-/ready", "Shipping last succeeded")
}

func TestServe_ShipsOutOfOrderSamples(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"),
		"global: {external_labels: {cluster: eu}}\nscrape_configs: []\nstorage: {tsdb: {out_of_order_time_window: 1d}}\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = time.Second
	})
	start := time.Now().Truncate(twoHours).Add(-4 * twoHours)
	sampleAt := func(minutes int) []byte {
		return encoded(t, v1(v1Series(start.Add(time.Duration(minutes)*time.Minute).UnixMilli(), float64(minutes), "__name__", "late")))
	}
	var bodies [][]byte
	for minutes := 0; minutes <= 170; minutes += 10 { // 12 samples in the first two hours
		bodies = append(bodies, sampleAt(minutes))
	}
	// An out-of-order sample, and one that makes the head long enough to be compacted.
	s.writeAll(append(bodies, sampleAt(5), sampleAt(190)))
	eventually(t, 60*time.Second, "all 13 samples of the first two hours to be shipped", func() bool {
		found := try(filepath.Glob(filepath.Join(bucket, "*", "meta.json"))).must(t)
		var samples uint64
		for _, path := range found {
			text, err := os.ReadFile(path)
			var meta tsdb.BlockMeta
			if err == nil {
				err = json.Unmarshal(text, &meta)
			}
			if err != nil {
				return false // it is being written
			}
			samples += meta.Stats.NumSamples
		}
		return samples == 13
	})
}

// The database deletes blocks beyond the retention when it opens, before the first sync.
func TestServe_UnshippedBlocksThatTheStartDeletesAreCountedAsLost(t *testing.T) {
	dir, bucket := t.TempDir(), t.TempDir()
	old, recent := oldAndNew(t, dir)
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "global: {external_labels: {cluster: eu}}\nscrape_configs: []\n")
	s := startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.Store.Dir = dir
		o.Ship.Shipper.Interval = 200 * time.Millisecond
	})
	eventually(t, 60*time.Second, "the recent block to be shipped", func() bool { return blockExists(t, bucket, recent) })
	if blockExists(t, dir, old) {
		t.Fatal("the old block was not deleted")
	}
	s.waitFor("/metrics", "ferula_shipper_blocks_lost_total 1\n")
}

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
	found := try(filepath.Glob(filepath.Join(bucket, "*", "meta.json"))).must(t)
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
	noError(t, s.stop())
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
	noError(t, s.stop())
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
				noError(t, s.stop())
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
	noError(t, s.stop())
	noError(t, start().stop()) // before the sender has tried again
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
	noError(t, s.stop()) // it fails if the shutdown takes longer than 30 s
	s = startServe(t, func(o *app.ServeOptions) {
		shipping(file, bucket, "")(o)
		o.GRPC.ListenAddress = "127.0.0.1:0"
		o.Store.Dir = dir
	})
	s.waitFor("/-/ready", "Shipping last succeeded")
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
	noError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-uploads:
	case <-time.After(60 * time.Second):
		t.Fatalf("no upload:\n%s", p.log)
	}
	if err := p.signal(syscall.SIGTERM); err != nil && strings.Contains(err.Error(), "did not end") {
		t.Error(err)
	}
}

// Thanos' compactor halts at overlapping blocks. Here it finds blocks of two shutdowns, and a block whose range
// begins where the block of the first shutdown ends. Afterwards Prometheus opens the directory of the server.
func TestPeerThanosCompact_AcceptsBlocksOfShutdowns(t *testing.T) {
	thanos := peerBinary(t, "thanos")
	dir, bucket, file := t.TempDir(), t.TempDir(), shutdownConfig(t, "30m")
	begin := time.Now().Truncate(twoHours).Add(-4 * twoHours)
	at := begin
	var s *server
	run := func(until time.Duration) {
		s = startServe(t, func(o *app.ServeOptions) {
			shipping(file, bucket, "")(o)
			o.GRPC.ListenAddress = "127.0.0.1:0"
			o.Store.Dir, o.ShutdownUpload, o.Ship.Shipper.Interval = dir, time.Minute, 100*time.Millisecond
		})
		var bodies [][]byte
		for ; at.Before(begin.Add(until)); at = at.Add(time.Minute) {
			bodies = append(bodies, encoded(t, v1(v1Series(at.UnixMilli(), float64(at.Unix()), "__name__", "kept"))))
		}
		s.writeAll(bodies)
	}
	run(47 * time.Minute)
	noError(t, s.stop())
	run(6 * time.Hour)
	inRange := func(m tsdb.BlockMeta) bool { return m.MaxTime <= begin.Add(twoHours).UnixMilli() }
	s.waitFor("/metrics", "thanos_shipper_uploads_total 2\n")
	ask := func(base *server) string {
		status, body := base.get("/api/v1/query_range?" + url.Values{"query": {`{__name__="kept"}`}, "step": {"60"},
			"start": {fmt.Sprint(begin.Unix())}, "end": {fmt.Sprint(at.Unix())}}.Encode())
		if status != http.StatusOK || strings.Count(body, "[") < 360 {
			t.Errorf("%d %.300s", status, body)
		}
		return body
	}
	want := ask(s)
	noError(t, s.stop())
	blocks, samples := shippedBlocks(t, bucket)
	if samples != 360 || !slices.ContainsFunc(blocks, inRange) {
		t.Errorf("%d samples, %v", samples, blocks)
	}
	yml := writeFile(t, filepath.Join(t.TempDir(), "objstore.yml"), filesystem(bucket))
	if n := summarizeBucket(t, filesystem(bucket)); n != len(blocks) {
		t.Errorf("%d of %d blocks have summaries", n, len(blocks))
	}
	out := tool(t, dir, thanos, "tools", "bucket", "verify", "--objstore.config-file="+yml, "--issues=overlapped_blocks",
		"--issues=index_known_issues", "--log.level=warn")
	if strings.Contains(out, "level=") {
		t.Error(out)
	}
	tool(t, dir, thanos, "compact", "--data-dir="+t.TempDir(), "--objstore.config-file="+yml, "--consistency-delay=0s",
		"--delete-delay=0s", "--http-address="+freeAddress(t))
	if after, _ := shippedBlocks(t, bucket); !slices.ContainsFunc(after, func(m tsdb.BlockMeta) bool { return m.Compaction.Level > 1 }) {
		t.Errorf("nothing was compacted: %v", after)
	}
	left, _ := filepath.Glob(filepath.Join(bucket, "*", "summaries"))
	for _, file := range left {
		if _, err := os.Stat(filepath.Join(filepath.Dir(file), "meta.json")); err != nil {
			t.Errorf("Thanos deletes a block without its summaries: %v", err)
		}
	}
	if n := summarizeBucket(t, filesystem(bucket)); n == 0 || len(left) >= len(blocks) {
		t.Errorf("%d compacted blocks have summaries, %d files are left of %d", n, len(left), len(blocks))
	}
	q := startQuery(t, []string{startStore(t, bucket)}, nil)
	if got := strings.Replace(ask(q.server), `"cluster":"eu"`, "", 1); got != strings.Replace(want, `"__name__":"kept"`, `"__name__":"kept",`, 1) {
		t.Errorf("the compacted bucket responds\n%.500s\nnot\n%.500s", got, want)
	}
	if got := ask(prometheusOf(t, file, dir)); got != want {
		t.Errorf("Prometheus responds\n%.500s\nnot\n%.500s", got, want)
	}
}
