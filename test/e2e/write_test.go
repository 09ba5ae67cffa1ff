package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/ferula-io/ferula/internal/app"
)

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
	raw, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return snappy.Encode(nil, raw)
}

// write posts a remote write request and returns status, body and headers.
func (s *server) write(contentType, encoding string, body []byte) (int, string, http.Header) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.base+"/api/v1/write", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Content-Encoding", encoding)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text), resp.Header
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

func TestServe_RemoteWriteV1IsQueryable(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	h := prompb.FromIntHistogram(now, &histogram.Histogram{
		Schema: 0, Count: 3, Sum: 4.5, ZeroThreshold: 0.001,
		PositiveSpans: []histogram.Span{{Offset: 0, Length: 1}}, PositiveBuckets: []int64{3},
	})
	series := v1Series(now, 1.5, "__name__", "apples", "kind", "red")
	series.Exemplars = []prompb.Exemplar{{Labels: []prompb.Label{{Name: "trace_id", Value: "abc"}}, Value: 7, Timestamp: now}}
	req := v1(series, prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "latency"}}, Histograms: []prompb.Histogram{h}})
	if status, text, _ := s.write(v1Type, "snappy", encoded(t, req)); status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	if got := s.value("apples"); got != "1.5" {
		t.Errorf("apples is %q", got)
	}
	if got := s.value("histogram_count(latency)"); got != "3" {
		t.Errorf("the histogram's count is %q", got)
	}
	if _, body := s.get("/api/v1/query_exemplars?query=apples"); !strings.Contains(body, `"trace_id":"abc"`) {
		t.Errorf("no exemplar: %s", body)
	}
}

func TestServe_RemoteWriteV2ReturnsWrittenCounts(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	req := &writev2.Request{
		Symbols: []string{"", "__name__", "pears", "Pears.", "trace_id", "x"},
		Timeseries: []writev2.TimeSeries{{
			LabelsRefs: []uint32{1, 2},
			Samples:    []writev2.Sample{{Timestamp: now, Value: 2.5}},
			Exemplars:  []writev2.Exemplar{{LabelsRefs: []uint32{4, 5}, Value: 1, Timestamp: now}},
			Metadata:   writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE, HelpRef: 3},
		}},
	}
	status, text, header := s.write(v2Type, "snappy", encoded(t, req))
	if status != http.StatusNoContent {
		t.Fatalf("%d %s", status, text)
	}
	for _, kind := range []string{"Samples", "Exemplars"} {
		if got := header.Get("X-Prometheus-Remote-Write-" + kind + "-Written"); got != "1" {
			t.Errorf("%s written: %q", kind, got)
		}
	}
	if got := s.value("pears"); got != "2.5" {
		t.Errorf("pears is %q", got)
	}
}

func TestServe_RemoteWriteRefusesInvalidInputAsPrometheusDoes(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	sample := func(tsMS int64, v float64) []byte {
		return encoded(t, v1(v1Series(tsMS, v, "__name__", "apples")))
	}
	if status, text, _ := s.write(v1Type, "snappy", sample(now, 1)); status != 204 {
		t.Fatalf("%d %s", status, text)
	}
	bomb := append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, bytes.Repeat([]byte{0xfe}, 1000)...) // claims 4 GiB
	tests := []struct {
		name, contentType, encoding string
		body                        []byte
		status                      int
		text                        string
	}{
		{"the same again is fine", v1Type, "snappy", sample(now, 1), 204, ""},
		{"another value at the same time", v1Type, "snappy", sample(now, 2), 400, "duplicate sample for timestamp"},
		{"out of order", v1Type, "snappy", sample(now-60_000, 1), 400, "out of order sample"},
		{"too old", v1Type, "snappy", sample(now-24*3600_000, 1), 400, "out of bounds"},
		{"far in the future", v1Type, "snappy", sample(now+3600_000, 1), 400, "too far in the future"},
		{"broken snappy", v1Type, "snappy", []byte("\x05not snappy"), 400, "corrupt input"},
		{"a snappy bomb", v1Type, "snappy", bomb, 400, "decoded"},
		{"broken protobuf", v1Type, "snappy", snappy.Encode(nil, []byte("\x0a\xff\xff\xff\xff\x0f")), 400, "unexpected EOF"},
		{"broken protobuf 2.0", v2Type, "snappy", snappy.Encode(nil, []byte("\x22\xff\xff\xff\xff\x0f")), 400, "unexpected EOF"},
		{"a symbol that is not there", v2Type, "snappy", encoded(t, &writev2.Request{Symbols: []string{""}, Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{7, 8}}}}), 400, "symbol"},
		{"unknown content type", "text/plain", "snappy", sample(now, 1), 415, "content-type"},
		{"unknown message", v1Type + ";proto=other.Request", "snappy", sample(now, 1), 415, "other.Request"},
		{"unknown encoding", v1Type, "gzip", sample(now, 1), 415, "gzip"},
		{"a huge body", v1Type, "snappy", make([]byte, 33<<20), 413, "33554432 bytes"},
	}
	for _, tt := range tests {
		status, text, _ := s.write(tt.contentType, tt.encoding, tt.body)
		if status != tt.status || !strings.Contains(text, tt.text) {
			t.Errorf("%s: %d %q, want %d and %q", tt.name, status, text, tt.status, tt.text)
		}
	}
	if got := s.value("apples"); got != "1" {
		t.Errorf("after all that apples is %q", got)
	}
	if status, _ := s.get("/api/v1/write"); status != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", status)
	}
}

func TestServe_SeriesWithInvalidLabelsAreCountedAndTheRestIsWritten(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	req := v1(
		v1Series(now, 1, "kind", "nameless"),
		v1Series(now, 1, "__name__", "twice", "a", "1", "a", "2"),
		v1Series(now, 1, "__name__", "broken\xff"),
		v1Series(now, 1, "__name__", "good"),
	)
	if status, text, _ := s.write(v1Type, "snappy", encoded(t, req)); status != 204 {
		t.Fatalf("%d %s", status, text)
	}
	if got := s.value(`good`); got != "1" {
		t.Errorf("good is %q", got)
	}
	if _, metrics := s.get("/metrics"); !strings.Contains(metrics, "prometheus_api_remote_write_invalid_labels_samples_total 3") {
		t.Error("the refused samples are not counted")
	}
	v2 := &writev2.Request{Symbols: []string{"", "kind", "nameless"}, Timeseries: []writev2.TimeSeries{{LabelsRefs: []uint32{1, 2}, Samples: []writev2.Sample{{Timestamp: now, Value: 1}}}}}
	if status, text, _ := s.write(v2Type, "snappy", encoded(t, v2)); status != 400 || !strings.Contains(text, "invalid metric name or labels") {
		t.Errorf("2.0: %d %s", status, text)
	}
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
		if err := p.signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
}

func TestServe_ConcurrentWritersLoseNothing(t *testing.T) {
	s := startServe(t, idle(t))
	const writers, rounds = 8, 20
	now := time.Now().Add(-time.Minute).UnixMilli()
	errs := make(chan error, writers)
	for w := range writers {
		go func() {
			for i := range rounds {
				body := encoded(t, v1(v1Series(now+int64(i)*1000, float64(i), "__name__", "load", "writer", fmt.Sprint(w))))
				if status, text, _ := s.write(v1Type, "snappy", body); status != 204 {
					errs <- fmt.Errorf("writer %d: %d %s", w, status, text)
					return
				}
			}
			errs <- nil
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if got := s.value("sum(count_over_time(load[2m]))"); got != fmt.Sprint(writers*rounds) {
		t.Errorf("%s of %d samples are stored", got, writers*rounds)
	}
}
