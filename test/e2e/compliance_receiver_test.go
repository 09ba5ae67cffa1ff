package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

// receiverCase is a remote write request and the response that it must have. Cases are sent in their order.
type receiverCase struct {
	name, contentType, encoding string
	body                        []byte
	status                      int
	written                     string // samples, histograms and exemplars of the 2.0 headers; "" if there are none
	text                        string // in the body
}

// row is a series of a 2.0 request: names and values of labels in the order in which they are sent.
type row struct {
	labels     []string
	samples    []writev2.Sample
	histograms []writev2.Histogram
	exemplars  []writev2.Exemplar
	metadata   writev2.Metadata
}

// v2Of encodes a 2.0 request. Its symbols are the empty one, then the labels of the rows in their order, then
// "trace_id" and "x". Exemplars refer to the last two.
func v2Of(t *testing.T, rows ...row) []byte {
	t.Helper()
	table := writev2.NewSymbolTable()
	var req writev2.Request
	for _, r := range rows {
		ts := writev2.TimeSeries{Samples: r.samples, Histograms: r.histograms, Exemplars: r.exemplars, Metadata: r.metadata}
		for _, l := range r.labels {
			ts.LabelsRefs = append(ts.LabelsRefs, table.Symbolize(l))
		}
		for i := range ts.Exemplars {
			ts.Exemplars[i].LabelsRefs = []uint32{table.Symbolize("trace_id"), table.Symbolize("x")}
		}
		req.Timeseries = append(req.Timeseries, ts)
	}
	req.Symbols = table.Symbols()
	return encoded(t, &req)
}

func nameOf(name string, more ...string) []string { return append([]string{"__name__", name}, more...) }

// v1Cases are requests of the format 1.0, and requests with invalid headers or bodies.
func v1Cases(t *testing.T, now int64) []receiverCase {
	one := func(name string, tsMS int64, v float64, more ...string) []byte {
		return encoded(t, v1(v1Series(tsMS, v, nameOf(name, more...)...)))
	}
	stale := math.Float64frombits(value.StaleNaN)
	several := v1Series(now-2000, 1, "__name__", "rw_several")
	several.Samples = append(several.Samples, prompb.Sample{Timestamp: now - 1000, Value: stale}, prompb.Sample{Timestamp: now, Value: math.Inf(1)})
	backwards := v1Series(now, 1, "__name__", "rw_backwards")
	backwards.Samples = append(backwards.Samples, prompb.Sample{Timestamp: now - 1000, Value: 2})
	v1Name := v1Type + ";proto=prometheus.WriteRequest"
	return []receiverCase{
		{"a sample", v1Type, "snappy", one("rw_plain", now, 1), 204, "", ""},
		{"the message is named", v1Name, "snappy", one("rw_named", now, 1), 204, "", ""},
		{"a space before the parameter", v1Type + "; proto=prometheus.WriteRequest", "snappy", one("rw_space", now, 1), 204, "", ""},
		{"no content type", "", "snappy", one("rw_untyped", now, 1), 204, "", ""},
		{"no encoding", v1Type, "", one("rw_unencoded", now, 1), 204, "", ""},
		{"an empty request", v1Type, "snappy", encoded(t, v1()), 204, "", ""},
		{"labels only", v1Type, "snappy", encoded(t, v1(prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: "rw_bare"}}})), 204, "", ""},
		{"several samples, one stale", v1Type, "snappy", encoded(t, v1(several)), 204, "", ""},
		{"unsorted labels", v1Type, "snappy", encoded(t, v1(v1Series(now, 1, "z", "1", "__name__", "rw_unsorted", "a", "2"))), 204, "", ""},
		{"an empty label", v1Type, "snappy", one("rw_empty", now, 1, "a", ""), 204, "", ""},
		{"a label twice", v1Type, "snappy", one("rw_twice", now, 1, "a", "1", "a", "2"), 204, "", ""},
		{"no name", v1Type, "snappy", encoded(t, v1(v1Series(now, 1, "a", "rw_nameless"))), 204, "", ""},
		{"a name in UTF-8", v1Type, "snappy", one("rw_\u00fcber.all", now, 1), 204, "", ""},
		{"a name that is not UTF-8", v1Type, "snappy", one("rw_\xff", now, 1), 204, "", ""},
		{"the same again", v1Type, "snappy", one("rw_plain", now, 1), 204, "", ""},
		{"another value of the same time", v1Type, "snappy", one("rw_plain", now, 2), 400, "", "duplicate sample"},
		{"out of order", v1Type, "snappy", one("rw_plain", now-5000, 1), 400, "", "out of order"},
		{"backwards in one series", v1Type, "snappy", encoded(t, v1(backwards)), 204, "", ""},
		{"too old", v1Type, "snappy", one("rw_plain", now-24*3600_000, 1), 400, "", "out of bounds"},
		{"a good series and a late sample", v1Type, "snappy", encoded(t, v1(v1Series(now, 1, "__name__", "rw_beside"), v1Series(now-5000, 1, "__name__", "rw_plain"))), 400, "", "out of order"},
		{"not snappy", v1Type, "snappy", []byte("\x05plain"), 400, "", "corrupt input"},
		{"framed snappy", v1Type, "snappy", []byte("\xff\x06\x00\x00sNaPpY\x01\x05\x00\x00\x00\x00\x00\x00x"), 400, "", "corrupt input"},
		{"not protobuf", v1Type, "snappy", snappy.Encode(nil, []byte("\x0a\xff\xff")), 400, "", "EOF"},
		{"an empty body", v1Type, "snappy", nil, 400, "", "corrupt input"},
		{"another encoding", v1Type, "gzip", one("rw_gzip", now, 1), 415, "", "gzip"},
		{"another type", "application/json", "snappy", one("rw_json", now, 1), 415, "", "application/json"},
		{"another message", v1Type + ";proto=some.Message", "snappy", one("rw_other", now, 1), 415, "", "some.Message"},
		{"a parameter that is not a pair", v1Type + ";proto", "snappy", one("rw_parameter", now, 1), 415, "", "content-type"},
		{"2.0 as 1.0", v1Type, "snappy", v2Of(t, row{labels: nameOf("rw_as_one"), samples: []writev2.Sample{{Timestamp: now, Value: 1}}}), 204, "", ""},
	}
}

// v2Cases are requests of the format 2.0.
func v2Cases(t *testing.T, now int64) []receiverCase {
	at := func(ms int64, v float64) []writev2.Sample { return []writev2.Sample{{Timestamp: now + ms, Value: v}} }
	ints := &histogram.Histogram{Count: 3, Sum: 4.5, ZeroThreshold: 0.001, PositiveSpans: []histogram.Span{{Length: 1}}, PositiveBuckets: []int64{3}}
	wrong := &histogram.Histogram{Count: 7, Sum: 4.5, ZeroThreshold: 0.001, PositiveSpans: []histogram.Span{{Length: 1}}, PositiveBuckets: []int64{3}}
	custom := &histogram.Histogram{Schema: histogram.CustomBucketsSchema, Count: 3, Sum: 4.5, CustomValues: []float64{1, 2}, PositiveSpans: []histogram.Span{{Length: 2}}, PositiveBuckets: []int64{1, 1}}
	hist := func(h *histogram.Histogram) []writev2.Histogram {
		return []writev2.Histogram{writev2.FromIntHistogram(0, now, h)}
	}
	floats := []writev2.Histogram{writev2.FromFloatHistogram(0, now, ints.ToFloat(nil))}
	exemplars := func(n int) (list []writev2.Exemplar) {
		for i := range n {
			list = append(list, writev2.Exemplar{Value: float64(i), Timestamp: now + int64(i)})
		}
		return list
	}
	started := at(0, 1)
	started[0].StartTimestamp = now - 60_000
	raw := func(symbols []string, refs ...uint32) []byte {
		return encoded(t, &writev2.Request{Symbols: symbols, Timeseries: []writev2.TimeSeries{{LabelsRefs: refs, Samples: at(0, 1)}}})
	}
	cases := []receiverCase{
		{name: "a sample", body: v2Of(t, row{labels: nameOf("rw2_plain"), samples: at(0, 1)}), status: 204, written: "1 0 0"},
		{name: "an empty request", body: v2Of(t), status: 204, written: "0 0 0"},
		{name: "two series of three samples", body: v2Of(t, row{labels: nameOf("rw2_a"), samples: append(at(-1000, 1), at(0, math.NaN())...)}, row{labels: nameOf("rw2_b", "x", "y"), samples: at(0, 1)}), status: 204, written: "3 0 0"},
		{name: "a histogram", body: v2Of(t, row{labels: nameOf("rw2_ints"), histograms: hist(ints)}), status: 204, written: "0 1 0"},
		{name: "a histogram of floats", body: v2Of(t, row{labels: nameOf("rw2_floats"), histograms: floats}), status: 204, written: "0 1 0"},
		{name: "a histogram with custom buckets", body: v2Of(t, row{labels: nameOf("rw2_custom"), histograms: hist(custom)}), status: 204, written: "0 1 0"},
		{name: "a histogram whose count is wrong", body: v2Of(t, row{labels: nameOf("rw2_wrong"), histograms: hist(wrong)}), status: 400, written: "0 0 0", text: "observations"},
		{name: "a wrong histogram and a sample", body: v2Of(t, row{labels: nameOf("rw2_wrong"), histograms: hist(wrong)}, row{labels: nameOf("rw2_right"), samples: at(0, 1)}), status: 400, written: "1 0 0", text: "observations"},
		{name: "an exemplar", body: v2Of(t, row{labels: nameOf("rw2_exemplar"), samples: at(0, 1), exemplars: exemplars(1)}), status: 204, written: "1 0 1"},
		{name: "two exemplars", body: v2Of(t, row{labels: nameOf("rw2_exemplars"), samples: at(0, 1), exemplars: exemplars(2)}), status: 204, written: "1 0 2"},
		{name: "an exemplar of a histogram", body: v2Of(t, row{labels: nameOf("rw2_ints_exemplar"), histograms: hist(ints), exemplars: exemplars(1)}), status: 204, written: "0 1 1"},
		{name: "an exemplar alone", body: v2Of(t, row{labels: nameOf("rw2_alone"), exemplars: exemplars(1)}), status: 400, written: "0 0 0", text: "at least one sample"},
		{name: "metadata alone", body: v2Of(t, row{labels: nameOf("rw2_metadata"), metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_GAUGE}}), status: 400, written: "0 0 0", text: "at least one sample"},
		{name: "metadata", body: v2Of(t, row{labels: nameOf("rw2_typed"), samples: at(0, 1), metadata: writev2.Metadata{Type: writev2.Metadata_METRIC_TYPE_COUNTER, HelpRef: 2}}), status: 204, written: "1 0 0"},
		{name: "metadata that refers to nothing", body: v2Of(t, row{labels: nameOf("rw2_typed_badly"), samples: at(0, 1), metadata: writev2.Metadata{HelpRef: 99}}), status: 400, written: "0 0 0", text: "metadata"},
		{name: "a start timestamp", body: v2Of(t, row{labels: nameOf("rw2_started"), samples: started}), status: 204, written: "1 0 0"},
		{name: "samples and a histogram", body: v2Of(t, row{labels: nameOf("rw2_both"), samples: at(-1000, 1), histograms: hist(ints)}), status: 204, written: "1 1 0"},
		{name: "unsorted labels", body: v2Of(t, row{labels: []string{"z", "1", "__name__", "rw2_unsorted", "a", "2"}, samples: at(0, 1)}), status: 204, written: "1 0 0"},
		{name: "a label twice", body: v2Of(t, row{labels: nameOf("rw2_twice", "a", "1", "a", "2"), samples: at(0, 1)}), status: 400, written: "0 0 0", text: "duplicated label"},
		{name: "no name", body: v2Of(t, row{labels: []string{"a", "rw2"}, samples: at(0, 1)}), status: 400, written: "0 0 0", text: "invalid metric name or labels"},
		{name: "no labels", body: raw([]string{""}), status: 400, written: "0 0 0", text: "invalid metric name or labels"},
		{name: "an odd number of references", body: raw([]string{"", "__name__", "rw2_odd"}, 1, 2, 1), status: 400, written: "0 0 0", text: "labelRefs"},
		{name: "a reference to nothing", body: raw([]string{"", "__name__", "rw2_nothing"}, 1, 7), status: 400, written: "0 0 0", text: "symbol"},
		{name: "the first symbol is not empty", body: raw([]string{"__name__", "rw2_first"}, 0, 1), status: 204, written: "1 0 0"},
		{name: "no symbols", body: raw(nil, 0, 1), status: 400, written: "0 0 0", text: "symbol"},
		{name: "a name that is not UTF-8", body: v2Of(t, row{labels: nameOf("rw2_\xff"), samples: at(0, 1)}), status: 400, written: "0 0 0", text: "invalid metric name or labels"},
		{name: "the same again", body: v2Of(t, row{labels: nameOf("rw2_plain"), samples: at(0, 1)}), status: 204, written: "1 0 0"},
		{name: "another value of the same time", body: v2Of(t, row{labels: nameOf("rw2_plain"), samples: at(0, 2)}), status: 400, written: "0 0 0", text: "duplicate sample"},
		{name: "out of order", body: v2Of(t, row{labels: nameOf("rw2_plain"), samples: at(-5000, 1)}), status: 400, written: "0 0 0", text: "out of order"},
		{name: "a part is late", body: v2Of(t, row{labels: nameOf("rw2_part"), samples: at(0, 1)}, row{labels: nameOf("rw2_plain"), samples: at(-5000, 1)}, row{labels: nameOf("rw2_rest"), samples: at(0, 1)}), status: 400, written: "2 0 0", text: "out of order"},
		{name: "a part has no name", body: v2Of(t, row{labels: []string{"a", "b"}, samples: at(0, 1)}, row{labels: nameOf("rw2_beside"), samples: at(0, 1)}), status: 400, written: "1 0 0", text: "invalid metric name or labels"},
		{name: "too old", body: v2Of(t, row{labels: nameOf("rw2_plain"), samples: at(-24*3600_000, 1)}), status: 400, written: "0 0 0", text: "out of bounds"},
		{name: "not protobuf", body: snappy.Encode(nil, []byte("\x22\xff\xff")), status: 400, written: "0 0 0", text: "EOF"},
		{name: "not snappy", body: []byte("\x05plain"), status: 400, text: "corrupt input"},
		{name: "another encoding", encoding: "zstd", body: v2Of(t), status: 415, text: "zstd"},
	}
	for i := range cases {
		c := &cases[i]
		c.name, c.contentType = "2.0: "+c.name, v2Type
		if c.encoding == "" {
			c.encoding = "snappy"
		}
	}
	return cases
}

// push sends a request without empty headers, and returns status, written counts and body.
func (s *server) push(c receiverCase) (status int, written, text string) {
	s.t.Helper()
	req, err := http.NewRequest(http.MethodPost, s.base+"/api/v1/write", bytes.NewReader(c.body))
	if err != nil {
		s.t.Fatal(err)
	}
	for name, value := range map[string]string{"Content-Type": c.contentType, "Content-Encoding": c.encoding} {
		if value != "" {
			req.Header.Set(name, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	var counts []string
	for _, kind := range []string{"Samples", "Histograms", "Exemplars"} {
		counts = append(counts, resp.Header.Values("X-Prometheus-Remote-Write-"+kind+"-Written")...)
	}
	return resp.StatusCode, strings.Join(counts, " "), string(body)
}

// The requests of the compliance suite for receivers, including those whose response the suite leaves to the receiver.
// The responses to both formats are those of Prometheus; the test below compares them with a real one.
func TestServe_RemoteWriteRespondsAsComplianceDemands(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	for _, c := range append(v1Cases(t, now), v2Cases(t, now)...) {
		if status, written, text := s.push(c); status != c.status || written != c.written || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d, written %q, %q; want %d, %q, %q", c.name, status, written, text, c.status, c.written, c.text)
		}
	}
}

func TestPeerPrometheus_RemoteWriteHasTheSameResponsesAndSamples(t *testing.T) {
	path := peerBinary(t, "prometheus")
	address := fmt.Sprintf("127.0.0.1:%d", freePort(t))
	config := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), "scrape_configs: []\n")
	startPeer(t, "http://"+address+"/-/ready", path, "--config.file="+config, "--storage.tsdb.path="+t.TempDir(), "--web.listen-address="+address,
		"--web.enable-remote-write-receiver", "--enable-feature=exemplar-storage", "--log.level=error")
	peer, ours := &server{t: t, base: "http://" + address}, startServe(t, idle(t))
	now := time.Now().UnixMilli()
	for _, c := range append(v1Cases(t, now), v2Cases(t, now)...) {
		status, written, text := ours.push(c)
		wantStatus, wantWritten, wantText := peer.push(c)
		text = strings.TrimPrefix(text, "corrupt remote write request: ")
		if status != wantStatus || written != wantWritten || text != wantText {
			t.Errorf("%s\nferula     %d, written %q, %q\nPrometheus %d, written %q, %q", c.name, status, written, text, wantStatus, wantWritten, wantText)
		}
		if wantStatus != c.status || wantWritten != c.written || !strings.Contains(wantText, c.text) {
			t.Errorf("%s: the table does not have what Prometheus does: %d, %q, %q", c.name, wantStatus, wantWritten, wantText)
		}
	}
	at := fmt.Sprint(now/1000 + 1)
	compared := 0
	for _, request := range []string{
		"/api/v1/query?" + url.Values{"query": {`{__name__=~"rw.+"}[1m]`}, "time": {at}}.Encode(),
		"/api/v1/query_exemplars?" + url.Values{"query": {`{__name__=~"rw.+"}`}, "start": {fmt.Sprint(now/1000 - 60)}, "end": {at}}.Encode(),
		"/api/v1/series?" + url.Values{"match[]": {`{__name__=~"rw.+"}`}}.Encode(),
	} {
		got, want := ours.stored(request)
		theirs, _ := peer.stored(request)
		compared += want
		if got != theirs {
			t.Errorf("%s\nferula     %s\nPrometheus %s", request, got, theirs)
		}
	}
	if compared < 40 {
		t.Errorf("only %d series and exemplars were compared", compared)
	}
}

// stored returns a response, and the number of occurrences of names of this file in it.
func (s *server) stored(request string) (string, int) {
	s.t.Helper()
	_, body := s.get(request)
	return body, strings.Count(body, `"__name__":"rw`)
}
