package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/ferula-io/ferula/internal/app"
)

const v2Message = "io.prometheus.write.v2.Request"

// sendingTo returns a configuration whose samples are sent to a receiver.
func sendingTo(t *testing.T, receiver, more string) string {
	return writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf(`
global: {external_labels: {sender: one}}
remote_write:
- url: %s/api/v1/write
  name: receiver
  send_exemplars: true
  send_native_histograms: true
  queue_config: {batch_send_deadline: 50ms, min_backoff: 10ms, max_backoff: 100ms}
  metadata_config: {send_interval: 100ms}
  %s
`, receiver, more))
}

// must writes a request that the server must accept.
func (s *server) must(contentType string, body []byte) {
	s.t.Helper()
	if status, text, _ := s.write(contentType, "snappy", body); status != http.StatusNoContent {
		s.t.Fatalf("%d %s", status, text)
	}
}

// untilSent writes samples of a series to the sender until the receiver has one. Then the
// sender has begun: it sends only samples that are newer than its start.
func untilSent(t *testing.T, sender, receiver *server) {
	t.Helper()
	eventually(t, 30*time.Second, "the first sample to be sent", func() bool {
		sender.must(v1Type, encoded(t, v1(v1Series(time.Now().UnixMilli(), 1, "__name__", "begun"))))
		return receiver.value("begun") == "1"
	})
}

func TestServe_RemoteWriteSendsSamplesHistogramsAndExemplars(t *testing.T) {
	for _, message := range []string{"prometheus.WriteRequest", v2Message} {
		t.Run(message, func(t *testing.T) {
			receiver := startServe(t, idle(t))
			file := sendingTo(t, receiver.base, "protobuf_message: "+message)
			sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
			untilSent(t, sender, receiver)
			sender.must(v2Type, encoded(t, everyKind(time.Now().UnixMilli())))
			// In the format 2.0 Prometheus' queue sends an exemplar as a series without
			// samples, which Prometheus' receiver rejects.
			checkEveryKind(t, receiver, message != v2Message)
			if _, page := sender.get("/metrics"); !strings.Contains(page, "prometheus_remote_storage_samples_total{") || !strings.Contains(page, "prometheus_remote_storage_histograms_total{") {
				t.Error("the metrics of the queue are missing")
			}
		})
	}
}

// everyKind returns a float with an exemplar, a histogram and a histogram of floats.
func everyKind(now int64) *writev2.Request {
	ints := &histogram.Histogram{Count: 3, Sum: 4.5, ZeroThreshold: 0.001, PositiveSpans: []histogram.Span{{Length: 1}}, PositiveBuckets: []int64{3}}
	return &writev2.Request{
		Symbols: []string{"", "__name__", "pears", "Pears.", "trace_id", "x", "latency", "sizes"},
		Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 2},
			Samples:    []writev2.Sample{{Timestamp: now, Value: 2.5}},
			Exemplars:  []writev2.Exemplar{{LabelsRefs: []uint32{4, 5}, Value: 1, Timestamp: now}},
			Metadata:   writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: 3},
		}, {
			LabelsRefs: []uint32{1, 6}, Histograms: []writev2.Histogram{writev2.FromIntHistogram(0, now, ints)},
		}, {
			LabelsRefs: []uint32{1, 7}, Histograms: []writev2.Histogram{writev2.FromFloatHistogram(0, now, ints.ToFloat(nil))},
		}},
	}
}

// checkEveryKind waits until a server has the series of everyKind, with external labels.
func checkEveryKind(t *testing.T, receiver *server, exemplars bool) {
	t.Helper()
	for query, want := range map[string]string{
		`pears{sender="one"}`: "2.5", `histogram_count(latency{sender="one"})`: "3", `histogram_sum(sizes{sender="one"})`: "4.5",
	} {
		eventually(t, 30*time.Second, query, func() bool { return receiver.value(query) == want })
	}
	if !exemplars {
		return
	}
	eventually(t, 30*time.Second, "the exemplar", func() bool {
		_, body := receiver.get("/api/v1/query_exemplars?query=pears")
		return strings.Contains(body, `"trace_id":"x"`)
	})
}

// series writes samples 0 to n-1 of a series, a millisecond apart, and returns the
// timestamp after the last.
func (s *server) series(t *testing.T, name string, from, n int, startMS int64) {
	t.Helper()
	for i := from; i < from+n; i++ {
		s.must(v1Type, encoded(t, v1(v1Series(startMS+int64(i), float64(i), "__name__", name))))
	}
}

// missing returns how many of the samples 0 to n-1 of a series a server does not have.
func (s *server) missing(name string, n int) int {
	s.t.Helper()
	// The samples are a millisecond apart, so the last may be in the future.
	_, body := s.get(fmt.Sprintf("/api/v1/query?query=%s[1h]&time=%d", name, time.Now().Add(time.Minute).Unix()))
	var response struct {
		Data struct {
			Result []struct {
				Values [][2]any `json:"values"`
			} `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal([]byte(body), &response); err != nil {
		return n
	}
	have := map[string]bool{}
	for _, series := range response.Data.Result {
		for _, v := range series.Values {
			have[fmt.Sprint(v[1])] = true
		}
	}
	lost := 0
	for i := range n {
		if !have[fmt.Sprint(i)] {
			lost++
		}
	}
	return lost
}

// A receiver that is killed, and started again on its address, gets the samples that were
// appended in between. They are read from the sender's log.
func TestServe_RemoteWriteLosesNothingWhileTheReceiverIsDown(t *testing.T) {
	path, dir, address := binary(t), t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	args := []string{"serve", "--web.listen-address=" + address, "--storage.tsdb.path=" + dir, "--config.file=" + writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")}
	receiver := startProcess(t, path, args...)
	file := sendingTo(t, "http://"+address, "")
	sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
	untilSent(t, sender, receiver.server)
	start := time.Now().UnixMilli()
	sender.series(t, "kept", 0, 100, start)
	if err := receiver.signal(syscall.SIGKILL); err == nil {
		t.Fatal("the receiver ended without an error")
	}
	sender.series(t, "kept", 100, 200, start)
	receiver = startProcess(t, path, args...)
	sender.series(t, "kept", 300, 100, start)
	eventually(t, 60*time.Second, "every sample at the receiver", func() bool { return receiver.missing("kept", 400) == 0 })
	_ = receiver.signal(syscall.SIGTERM)
}

// Appended samples are in the log, but the queue may not have read them yet.
func TestServe_RemoteWriteIsFlushedAtShutdown(t *testing.T) {
	receiver := startServe(t, idle(t))
	file := sendingTo(t, receiver.base, "")
	sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
	untilSent(t, sender, receiver)
	sender.series(t, "last", 0, 300, time.Now().UnixMilli())
	if err := sender.stop(); err != nil {
		t.Fatal(err)
	}
	if lost := receiver.missing("last", 300); lost != 0 {
		t.Errorf("%d of 300 samples were not sent at shutdown", lost)
	}
}

// The labels of a series are only in the part of the log from before the kill.
func TestServe_RemoteWriteGoesOnAfterAKill(t *testing.T) {
	receiver := startServe(t, idle(t))
	path, dir := binary(t), t.TempDir()
	args := []string{"serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path=" + dir, "--config.file=" + sendingTo(t, receiver.base, "")}
	sender := startProcess(t, path, args...)
	untilSent(t, sender.server, receiver)
	if err := sender.signal(syscall.SIGKILL); err == nil {
		t.Fatal("the sender ended without an error")
	}
	sender = startProcess(t, path, args...)
	again := func() string { return receiver.value(`count_over_time(begun[1h])`) }
	before := again()
	eventually(t, 30*time.Second, "a sample of the same series after the kill", func() bool {
		sender.must(v1Type, encoded(t, v1(v1Series(time.Now().UnixMilli(), 1, "__name__", "begun"))))
		return again() != before
	})
	start := time.Now().UnixMilli()
	sender.series(t, "after", 0, 50, start)
	if err := sender.signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if lost := receiver.missing("after", 50); lost != 0 {
		t.Errorf("%d of 50 samples after the kill are missing", lost)
	}
}

func TestServe_RemoteWriteIsReloaded(t *testing.T) {
	receiver := startServe(t, idle(t))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.EnableLifecycle = file, true })
	reload := func(text string) (int, string) {
		t.Helper()
		writeFile(t, file, text)
		resp, err := http.Post(sender.base+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	section := "remote_write: [{url: '" + receiver.base + "/api/v1/write', queue_config: {batch_send_deadline: 50ms}}]\n"
	if status, text := reload(section); status != http.StatusOK {
		t.Fatal(text)
	}
	untilSent(t, sender, receiver)
	for name, bad := range map[string]string{
		"a missing file":    "remote_write: [{url: 'http://127.0.0.1:1/', tls_config: {ca_file: /does/not/exist}}]\n",
		"a section twice":   strings.Replace(section, "]\n", ", "+strings.TrimPrefix(section, "remote_write: ["), 1),
		"an unknown format": "remote_write: [{url: 'http://127.0.0.1:1/', protobuf_message: other}]\n",
	} {
		if status, text := reload(bad); status == http.StatusOK {
			t.Errorf("%s: %s", name, text)
		}
	}
	sender.series(t, "still", 0, 10, time.Now().UnixMilli())
	eventually(t, 30*time.Second, "samples after a refused reload", func() bool { return receiver.missing("still", 10) == 0 })
	if status, text := reload("scrape_configs: []\n"); status != http.StatusOK {
		t.Fatal(text)
	}
	if _, page := sender.get("/metrics"); strings.Contains(page, "prometheus_remote_storage_shards{") {
		t.Error("the queue of a removed section still runs")
	}
}

// A stopped queue drops its pending samples after the flush deadline.
func TestServe_RefusedReloadKeepsWhatWaitsForTheReceiver(t *testing.T) {
	t.Run("profile targets", func(t *testing.T) {
		refusedReloadKeeps(t, "", func(_, profiles string) {
			writeFile(t, profiles, "scrape_configs: [{job_name: a, tls_config: {ca_file: /does/not/exist}}]\n")
		})
	})
	// Every reload opens this log again, also that of a job that has not changed.
	t.Run("a log of failed scrapes", func(t *testing.T) {
		refusedReloadKeeps(t, "\nscrape_configs: [{job_name: a, scrape_failure_log_file: failed/a.log}]", func(config, _ string) {
			if err := os.RemoveAll(filepath.Join(filepath.Dir(config), "failed")); err != nil {
				t.Fatal(err)
			}
		})
	})
}

// refusedReloadKeeps changes the section of a receiver that is down, and breaks another part of
// the configuration.
func refusedReloadKeeps(t *testing.T, more string, spoil func(config, profiles string)) {
	path, dir, address := binary(t), t.TempDir(), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	args := []string{"serve", "--web.listen-address=" + address, "--storage.tsdb.path=" + dir, "--config.file=" + writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")}
	receiver := startProcess(t, path, args...)
	file := sendingTo(t, "http://"+address, more)
	if err := os.Mkdir(filepath.Join(filepath.Dir(file), "failed"), 0o700); err != nil {
		t.Fatal(err)
	}
	profiles := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: []\n")
	sender := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Profiles.ConfigFile, o.Web.EnableLifecycle = file, profiles, true
		o.Send.FlushDeadline = 10 * time.Millisecond
	})
	untilSent(t, sender, receiver.server)
	if err := receiver.signal(syscall.SIGKILL); err == nil {
		t.Fatal("the receiver ended without an error")
	}
	sender.series(t, "waits", 0, 200, time.Now().UnixMilli())
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, file, strings.Replace(string(text), "max_backoff: 100ms", "max_backoff: 90ms", 1))
	spoil(file, profiles)
	resp, err := http.Post(sender.base+"/-/reload", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		t.Fatal("the reload was accepted")
	}
	receiver = startProcess(t, path, args...)
	eventually(t, 60*time.Second, "every sample at the receiver", func() bool { return receiver.missing("waits", 200) == 0 })
	_ = receiver.signal(syscall.SIGTERM)
}

func TestPeerPrometheus_ReceivesRemoteWrite(t *testing.T) {
	path := peerBinary(t, "prometheus")
	for _, message := range []string{"prometheus.WriteRequest", v2Message} {
		t.Run(message, func(t *testing.T) {
			address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
			config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "storage: {exemplars: {max_exemplars: 1000}}\n")
			startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+address,
				"--web.enable-remote-write-receiver", "--enable-feature=exemplar-storage,metadata-wal-records")
			peer := &server{t: t, base: "http://" + address}
			target := exposition(t, "# HELP pressure Pressure of the pipe.\n# TYPE pressure gauge\npressure 3\n# EOF\n")
			file := sendingTo(t, peer.base, "protobuf_message: "+message+`
scrape_configs: [{job_name: pipe, scrape_interval: 200ms, scrape_timeout: 200ms, static_configs: [{targets: ['`+target+`']}]}]`)
			sender := startServe(t, func(o *app.ServeOptions) {
				o.ConfigFile = file
				o.Scrape.MetadataInWAL = true
			})
			untilSent(t, sender, peer)
			sender.must(v2Type, encoded(t, everyKind(time.Now().UnixMilli())))
			checkEveryKind(t, peer, message != v2Message)
			eventually(t, 30*time.Second, "the scraped sample", func() bool { return peer.value(`pressure{job="pipe",sender="one"}`) == "3" })
		})
	}
}

// exposition serves a metrics page in the OpenMetrics format and returns its address.
func exposition(t *testing.T, page string) string {
	t.Helper()
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(target.Close)
	return strings.TrimPrefix(target.URL, "http://")
}
