package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/prometheus/prometheus/storage/remote"

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
	if status, text, _ := s.write(contentType, "snappy", body); status/100 != 2 {
		s.t.Fatalf("%s: %d %s", s.base, status, text)
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
			sender.expect("/metrics", 0, "prometheus_remote_storage_samples_total{", "prometheus_remote_storage_histograms_total{")
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
		receiver.waitValue(query, want)
	}
	if !exemplars {
		return
	}
	receiver.waitFor("/api/v1/query_exemplars?query=pears", `"trace_id":"x"`)
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

// Appended samples are in the log, but the queue may not have read them yet.
func TestServe_RemoteWriteIsFlushedAtShutdown(t *testing.T) {
	receiver := startServe(t, idle(t))
	file := sendingTo(t, receiver.base, "")
	sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = file })
	untilSent(t, sender, receiver)
	sender.series(t, "last", 0, 300, time.Now().UnixMilli())
	noError(t, sender.stop())
	if lost := receiver.missing("last", 300); lost != 0 {
		t.Errorf("%d of 300 samples were not sent at shutdown", lost)
	}
}

func TestServe_RemoteWriteIsReloaded(t *testing.T) {
	receiver := startServe(t, idle(t))
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	sender := startServe(t, func(o *app.ServeOptions) { o.ConfigFile, o.Web.EnableLifecycle = file, true })
	reload := func(text string) (int, string) {
		writeFile(t, file, text)
		return sender.reload()
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
			noError(t, os.RemoveAll(filepath.Join(filepath.Dir(config), "failed")))
		})
	})
}

// refusedReloadKeeps changes the section of a receiver that is down, and breaks another part of
// the configuration.
func refusedReloadKeeps(t *testing.T, more string, spoil func(config, profiles string)) {
	path, dir, address := binary(t), t.TempDir(), freeAddress(t)
	args := []string{"serve", "--web.listen-address=" + address, "--storage.tsdb.path=" + dir, "--config.file=" + writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")}
	receiver := startProcess(t, path, args...)
	file := sendingTo(t, "http://"+address, more)
	noError(t, os.Mkdir(filepath.Join(filepath.Dir(file), "failed"), 0o700))
	profiles := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: []\n")
	sender := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile, o.Profiles.ConfigFile, o.Web.EnableLifecycle = file, profiles, true
		o.Send.FlushDeadline = 10 * time.Millisecond
	})
	untilSent(t, sender, receiver.server)
	receiver.kill()
	sender.series(t, "waits", 0, 200, time.Now().UnixMilli())
	text := try(os.ReadFile(file)).must(t)
	writeFile(t, file, strings.Replace(string(text), "max_backoff: 100ms", "max_backoff: 90ms", 1))
	spoil(file, profiles)
	if status, _ := sender.reload(); status == http.StatusOK {
		t.Fatal("the reload was accepted")
	}
	receiver = startProcess(t, path, args...)
	eventually(t, 60*time.Second, "every sample at the receiver", func() bool { return receiver.missing("waits", 200) == 0 })
	_ = receiver.signal(syscall.SIGTERM)
}

func TestPeerPrometheus_ReceivesRemoteWrite(t *testing.T) {
	for _, message := range []string{"prometheus.WriteRequest", v2Message} {
		t.Run(message, func(t *testing.T) {
			peer := startPrometheus(t, "storage: {exemplars: {max_exemplars: 1000}}\n", "", "--enable-feature=exemplar-storage,metadata-wal-records")
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
			peer.waitValue(`pressure{job="pipe",sender="one"}`, "3")
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

// counter is a receiver that counts how often it has accepted each sample, by metric, kind and timestamp. While it stalls,
// requests wait until their clients give up.
type counter struct {
	*httptest.Server
	stalls atomic.Bool
	down   atomic.Bool

	mu    sync.Mutex
	times map[string]int
}

func newCounter(t *testing.T) *counter {
	c := &counter{times: map[string]int{}}
	c.Server = httptest.NewServer(http.HandlerFunc(c.receive))
	t.Cleanup(c.Server.Close)
	return c
}

func (c *counter) receive(w http.ResponseWriter, r *http.Request) {
	request, err := remote.DecodeWriteRequest(r.Body)
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case c.stalls.Load():
		<-r.Context().Done()
		return
	case c.down.Load():
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, series := range request.Timeseries {
		name := ""
		for _, l := range series.Labels {
			if l.Name == "__name__" {
				name = l.Value
			}
		}
		for _, s := range series.Samples {
			c.times[fmt.Sprint(name, " ", s.Timestamp)]++
		}
		for _, h := range series.Histograms {
			c.times[fmt.Sprint(name, " ", h.Timestamp)]++
		}
		for _, e := range series.Exemplars {
			c.times[fmt.Sprint(name, " exemplar ", e.Timestamp)]++
		}
	}
}

// missing returns how many of the samples the receiver has not accepted.
func (c *counter) missing(samples []string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range samples {
		if c.times[s] == 0 {
			n++
		}
	}
	return n
}

// most returns how often the receiver has accepted the sample that it got most often.
func (c *counter) most() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, times := range c.times {
		n = max(n, times)
	}
	return n
}

// The whole log fits into one segment here: what a restart may send again is sent at most twice.
func TestServe_RemoteWriteGoesOnWhereItStopped(t *testing.T) {
	for name, test := range map[string]struct {
		signal syscall.Signal
		stall  func(*counter, bool)
	}{
		"SIGTERM while the receiver stalls":  {syscall.SIGTERM, func(c *counter, on bool) { c.stalls.Store(on) }},
		"SIGKILL while the receiver stalls":  {syscall.SIGKILL, func(c *counter, on bool) { c.stalls.Store(on) }},
		"SIGTERM while the receiver is down": {syscall.SIGTERM, func(c *counter, on bool) { c.down.Store(on) }},
		"SIGKILL while the receiver is down": {syscall.SIGKILL, func(c *counter, on bool) { c.down.Store(on) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiver := newCounter(t)
			config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), fmt.Sprintf(`
remote_write:
- url: %s
  send_exemplars: true
  send_native_histograms: true
  queue_config: {batch_send_deadline: 20ms, min_backoff: 10ms, max_backoff: 50ms}
  metadata_config: {send: false}
`, receiver.URL))
			args := []string{"serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path=" + t.TempDir(),
				"--config.file=" + config}
			sender := startProcess(t, binary(t), append(slices.Clone(args), "--storage.remote.flush-deadline=100ms")...)
			now := time.Now().UnixMilli()
			var acknowledged []string
			write := func(metric string, n int) {
				now++
				sender.series(t, metric, 0, n, now)
				for range n {
					acknowledged = append(acknowledged, fmt.Sprint(metric, " ", now))
					now++
				}
			}
			all := func() bool { return receiver.missing(acknowledged) == 0 }
			write("kept", 50)
			eventually(t, 30*time.Second, "the first samples at the receiver", all)
			test.stall(receiver, true)
			write("kept", 50)
			write("other", 50)
			sender.must(v2Type, encoded(t, everyKind(now)))
			for _, s := range []string{"pears ", "pears exemplar ", "latency ", "sizes "} {
				acknowledged = append(acknowledged, fmt.Sprint(s, now))
			}
			if err := sender.signal(test.signal); (err == nil) != (test.signal == syscall.SIGTERM) {
				t.Fatal(err)
			}
			test.stall(receiver, false)
			sender = startProcess(t, binary(t), args...)
			write("kept", 50)
			eventually(t, 30*time.Second, "every sample at the receiver", all)
			if n := receiver.most(); n > 2 {
				t.Errorf("a sample was sent %d times", n)
			}
			noError(t, sender.signal(syscall.SIGTERM))
			before := receiver.most()
			sender = startProcess(t, binary(t), args...)
			write("kept", 1)
			eventually(t, 30*time.Second, "a sample after a clean stop", all)
			if n := receiver.most(); n != before {
				t.Error("samples that were sent before a clean stop are sent again")
			}
			_ = sender.signal(syscall.SIGTERM)
		})
	}
}

const (
	v1Type = "application/x-protobuf"
	v2Type = "application/x-protobuf;proto=io.prometheus.write.v2.Request"
)

// idle sets a configuration without scrape jobs, so that the storage has only samples
// that the test writes.
func idle(t *testing.T) func(*app.ServeOptions) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	return func(o *app.ServeOptions) { o.ConfigFile = file }
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	raw := try(proto.Marshal(m)).must(t)
	return snappy.Encode(nil, raw)
}

// write posts a remote write request and returns status, body and headers.
func (s *server) write(contentType, encoding string, body []byte) (int, string, http.Header) {
	s.t.Helper()
	return s.request("POST", "/api/v1/write", string(body), "Content-Type", contentType, "Content-Encoding", encoding)
}

func v1(series ...prompb.TimeSeries) *prompb.WriteRequest {
	return &prompb.WriteRequest{Timeseries: series}
}

func v1Series(tsMS int64, v float64, labels ...string) prompb.TimeSeries {
	ts := prompb.TimeSeries{Samples: []prompb.Sample{{Timestamp: tsMS, Value: v}}}
	for i := 0; i+1 < len(labels); i += 2 {
		ts.Labels = append(ts.Labels, prompb.Label{Name: labels[i], Value: labels[i+1]})
	}
	return ts
}

func TestServe_PushedSeriesHaveTypeAndUnitLabelsIfTheFeatureIsOn(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	for feature, want := range map[string]string{"type-and-unit-labels": "gauge bytes", "promql-duration-expr": " "} {
		p := startProcess(t, binary(t), "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+t.TempDir(), "--config.file="+file, "--enable-feature="+feature)
		req := &writev2.Request{
			Symbols: []string{"", "__name__", "pears_bytes", "bytes"},
			Timeseries: []writev2.TimeSeries{{
				LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Timestamp: time.Now().UnixMilli(), Value: 2.5}},
				Metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, UnitRef: 3},
			}},
		}
		if status, text, _ := p.write(v2Type, "snappy", encoded(t, req)); status != http.StatusNoContent {
			t.Fatalf("%d %s", status, text)
		}
		found := p.instant("pears_bytes")
		if len(found) != 1 || found[0].Metric["__type__"]+" "+found[0].Metric["__unit__"] != want {
			t.Errorf("%s: %v, want %q", feature, found, want)
		}
		noError(t, p.signal(os.Interrupt))
	}
}
