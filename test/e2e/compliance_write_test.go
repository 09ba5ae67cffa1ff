package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/ferula-io/ferula/internal/app"
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

// push sends a request and returns status, written counts and body.
func (s *server) push(c receiverCase) (status int, written, text string) {
	s.t.Helper()
	status, text, header := s.write(c.contentType, c.encoding, c.body)
	var counts []string
	for _, kind := range []string{"Samples", "Histograms", "Exemplars"} {
		counts = append(counts, header.Values("X-Prometheus-Remote-Write-"+kind+"-Written")...)
	}
	return status, strings.Join(counts, " "), text
}

// The requests of the compliance suite for receivers, including those whose response the suite leaves to the receiver.
// The responses to both formats are those of Prometheus; the test below compares them with a real one.
func TestServe_RemoteWriteRespondsAsComplianceDemands(t *testing.T) {
	s := startServe(t, idle(t))
	now := time.Now().UnixMilli()
	bomb := append([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}, bytes.Repeat([]byte{0xfe}, 1000)...) // claims 4 GiB
	for _, c := range append(append(v1Cases(t, now), v2Cases(t, now)...),
		receiverCase{"far in the future", v1Type, "snappy", encoded(t, v1(v1Series(now+3600_000, 1, "__name__", "rw_future"))), 400, "", "too far in the future"},
		receiverCase{"a snappy bomb", v1Type, "snappy", bomb, 400, "", "decoded"},
		receiverCase{"a huge body", v1Type, "snappy", make([]byte, 33<<20), 413, "", "33554432 bytes"},
	) {
		if status, written, text := s.push(c); status != c.status || written != c.written || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d, written %q, %q; want %d, %q, %q", c.name, status, written, text, c.status, c.written, c.text)
		}
	}
}

func TestPeerPrometheus_RemoteWriteHasTheSameResponsesAndSamples(t *testing.T) {
	peer, ours := startPrometheus(t, "", "", "--enable-feature=exemplar-storage"), startServe(t, idle(t))
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
		_, got := ours.get(request)
		if _, theirs := peer.get(request); got != theirs {
			t.Errorf("%s\nferula     %s\nPrometheus %s", request, got, theirs)
		}
		compared += strings.Count(got, `"__name__":"rw`)
	}
	if compared < 40 {
		t.Errorf("only %d series and exemplars were compared", compared)
	}
}

// captor is a remote write receiver that keeps the received data.
type captor struct {
	*httptest.Server
	t *testing.T

	mu        sync.Mutex
	headers   []http.Header
	samples   map[string][]prompb.Sample // by labels, in the order in which they were sent
	exemplars map[string]int             // by labels
	metadata  map[string]string          // type and help, by family (1.0) or metric name (2.0)
}

func startCaptor(t *testing.T) *captor {
	c := &captor{t: t, samples: map[string][]prompb.Sample{}, exemplars: map[string]int{}, metadata: map[string]string{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			body, err = snappy.Decode(nil, body)
		}
		if err != nil {
			t.Errorf("a request's body: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.headers = append(c.headers, r.Header)
		if strings.Contains(r.Header.Get("Content-Type"), v2Message) {
			c.keepV2(w, body)
		} else {
			c.keepV1(body)
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *captor) keepV1(body []byte) {
	var req prompb.WriteRequest
	if err := proto.Unmarshal(body, &req); err != nil {
		c.t.Error(err)
	}
	for _, ts := range req.Timeseries {
		var pairs []string
		for _, l := range ts.Labels {
			pairs = append(pairs, l.Name+"="+l.Value)
		}
		key := strings.Join(pairs, ",")
		c.samples[key] = append(c.samples[key], ts.Samples...)
		c.exemplars[key] += len(ts.Exemplars)
	}
	for _, m := range req.Metadata {
		c.metadata[m.MetricFamilyName] = strings.ToLower(m.Type.String()) + " " + m.Help
	}
}

// keepV2 also checks the rules of the format about symbols and references.
func (c *captor) keepV2(w http.ResponseWriter, body []byte) {
	var req writev2.Request
	if err := proto.Unmarshal(body, &req); err != nil {
		c.t.Error(err)
	}
	if len(req.Symbols) == 0 || req.Symbols[0] != "" {
		c.t.Errorf("the first symbol of %q is not empty", req.Symbols)
	}
	if sorted := slices.Sorted(slices.Values(req.Symbols)); len(slices.Compact(sorted)) != len(req.Symbols) {
		c.t.Errorf("symbols are repeated: %q", req.Symbols)
	}
	samples, exemplars := 0, 0
	for _, ts := range req.Timeseries {
		var pairs []string
		name := ""
		if len(ts.LabelsRefs)%2 != 0 {
			c.t.Errorf("%d references of labels", len(ts.LabelsRefs))
		}
		for i := 0; i+1 < len(ts.LabelsRefs); i += 2 {
			key, value := req.Symbols[ts.LabelsRefs[i]], req.Symbols[ts.LabelsRefs[i+1]]
			pairs = append(pairs, key+"="+value)
			if key == "__name__" {
				name = value
			}
		}
		key := strings.Join(pairs, ",")
		for _, s := range ts.Samples {
			c.samples[key] = append(c.samples[key], prompb.Sample{Timestamp: s.Timestamp, Value: s.Value})
		}
		c.exemplars[key] += len(ts.Exemplars)
		typ := strings.TrimPrefix(ts.Metadata.Type.String(), "METRIC_TYPE_")
		c.metadata[name] = strings.ToLower(typ) + " " + req.Symbols[ts.Metadata.HelpRef]
		samples, exemplars = samples+len(ts.Samples), exemplars+len(ts.Exemplars)
	}
	w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", fmt.Sprint(samples))
	w.Header().Set("X-Prometheus-Remote-Write-Histograms-Written", "0")
	w.Header().Set("X-Prometheus-Remote-Write-Exemplars-Written", fmt.Sprint(exemplars))
}

// has reports whether a sample of a series with this value, as text, was sent.
func (c *captor) has(key, want string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.samples[key], func(s prompb.Sample) bool { return valueText(s.Value) == want })
}

// valueText distinguishes a stale marker from another NaN.
func valueText(v float64) string {
	if math.Float64bits(v) == value.StaleNaN {
		return "stale"
	}
	return fmt.Sprint(v)
}

// senderCase is a scraped page, and the values that series of its job must have at the receiver. Their labels are
// listed in the order in which they must be sent. @ is the target's address.
type senderCase struct {
	job, settings, contentType, page string
	want                             map[string]string
	absent                           string // a metric that must not arrive
}

const (
	textPage = "text/plain; version=0.0.4"
	openPage = "application/openmetrics-text; version=1.0.0"
)

func senderCases(timedMS int64) []senderCase {
	plain := func(job, name string) string { return "__name__=" + name + ",instance=@,job=" + job }
	return []senderCase{
		{"counter", "", textPage, "# HELP apples_total Apples.\n# TYPE apples_total counter\napples_total 3\n",
			map[string]string{plain("counter", "apples_total"): "3", plain("counter", "up"): "1", plain("counter", "scrape_samples_scraped"): "1"}, ""},
		{"gauge", "", textPage, "# TYPE g gauge\ng -1.5\ng_nan NaN\ng_inf +Inf\ng_least -Inf\ng_zero 0\ng_exact 0.1234567890123456\n",
			map[string]string{
				plain("gauge", "g"): "-1.5", plain("gauge", "g_nan"): "NaN", plain("gauge", "g_inf"): "+Inf", plain("gauge", "g_least"): "-Inf",
				plain("gauge", "g_zero"): "0", plain("gauge", "g_exact"): "0.1234567890123456",
			}, ""},
		{"histogram", "", textPage, "# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 3\nh_count 3\nh_sum 4.5\n",
			map[string]string{
				"__name__=h_bucket,instance=@,job=histogram,le=1.0": "2", "__name__=h_bucket,instance=@,job=histogram,le=+Inf": "3",
				plain("histogram", "h_count"): "3", plain("histogram", "h_sum"): "4.5",
			}, ""},
		{"summary", "", textPage, "# TYPE s summary\ns{quantile=\"0.5\"} 2\ns_count 3\ns_sum 4.5\n",
			map[string]string{"__name__=s,instance=@,job=summary,quantile=0.5": "2", plain("summary", "s_count"): "3", plain("summary", "s_sum"): "4.5"}, ""},
		{"labels", "", textPage, "odd{z=\"1\",B=\"2\",a=\"\",_c=\"\u00fcn\u00ef\"} 1\n", map[string]string{"B=2,__name__=odd,_c=\u00fcn\u00ef,instance=@,job=labels,z=1": "1"}, ""},
		{"repeated", "", textPage, "twice{a=\"1\",a=\"2\"} 1\n", map[string]string{plain("repeated", "up"): "0"}, "twice"},
		{"invalid", "", textPage, "before 1\nafter{ 2\n", map[string]string{plain("invalid", "up"): "0"}, "before"},
		{"unknown", "", "", "", map[string]string{plain("unknown", "up"): "0"}, ""}, // 404
		{"own", "", textPage, "owned{job=\"other\",instance=\"there\"} 1\n", map[string]string{"__name__=owned,exported_instance=there,exported_job=other,instance=@,job=own": "1"}, ""},
		{"honor", "honor_labels: true,", textPage, "honored{job=\"other\",instance=\"there\"} 1\n", map[string]string{"__name__=honored,instance=there,job=other": "1", plain("honor", "up"): "1"}, ""},
		{"timed", "", textPage, fmt.Sprintf("timed 7 %d\n", timedMS), map[string]string{plain("timed", "timed"): "7"}, ""},
		{"exemplar", "", openPage, "# TYPE e counter\ne_total 5 # {trace_id=\"x\"} @\n# EOF\n", map[string]string{plain("exemplar", "e_total"): "5"}, ""},
		{"stale", "", textPage, "ends 1\n", map[string]string{plain("stale", "ends"): "stale"}, ""},
	}
}

// The requirements of the compliance suite for senders, for both formats: which series of which page are sent, with
// which labels, values, times and headers.
func TestServe_RemoteWriteSendsTheShapesThatComplianceDemands(t *testing.T) {
	for message, wantHeader := range map[string][2]string{
		"prometheus.WriteRequest": {"application/x-protobuf", "0.1.0"}, v2Message: {"application/x-protobuf;proto=" + v2Message, "2.0.0"},
	} {
		t.Run(message, func(t *testing.T) {
			timed := time.Now().Add(time.Minute).UnixMilli() // only what is newer than the start is sent
			cases := senderCases(timed)
			c := startCaptor(t)
			target := startPages(t, c, cases)
			sections := "protobuf_message: " + message + "\nscrape_configs:\n"
			for _, tt := range cases {
				sections += fmt.Sprintf("- {job_name: %s, metrics_path: /%[1]s, scrape_interval: 500ms, scrape_timeout: 500ms, %s static_configs: [{targets: ['%s']}]}\n", tt.job, tt.settings, target)
			}
			text := try(os.ReadFile(sendingTo(t, c.URL, sections))).must(t)
			s := serveFile(t, strings.Replace(string(text), "external_labels: {sender: one}", "", 1), func(o *app.ServeOptions) {
				o.Scrape.MetadataInWAL = true
			})
			for _, tt := range cases {
				for key, want := range tt.want {
					key = strings.ReplaceAll(key, "@", target)
					eventually(t, 30*time.Second, key+" "+want, func() bool { return c.has(key, want) })
				}
			}
			eventually(t, 30*time.Second, "an exemplar", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.exemplars["__name__=e_total,instance="+target+",job=exemplar"] > 0
			})
			eventually(t, 30*time.Second, "metadata", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.metadata["apples_total"] == "counter Apples."
			})
			noError(t, s.stop())
			c.check(cases, target, timed, wantHeader)
		})
	}
}

// startPages serves the page of each case at its job's name. The page of "stale" is complete until its sample was
// sent. Exemplars have a new value in each scrape, since a repeated exemplar is not stored.
func startPages(t *testing.T, c *captor, cases []senderCase) (address string) {
	var scrapes atomic.Int64
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, tt := range cases {
			if r.URL.Path != "/"+tt.job || tt.contentType == "" {
				continue
			}
			page := strings.ReplaceAll(tt.page, "@", fmt.Sprint(scrapes.Add(1)))
			if tt.job == "stale" && c.has("__name__=ends,instance="+r.Host+",job=stale", "1") {
				page = "other 1\n"
			}
			w.Header().Set("Content-Type", tt.contentType)
			_, _ = io.WriteString(w, page)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(target.Close)
	return strings.TrimPrefix(target.URL, "http://")
}

// check checks the rules that apply to all sent data.
func (c *captor) check(cases []senderCase, target string, timedMS int64, wantHeader [2]string) {
	t := c.t
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.headers {
		if h.Get("Content-Type") != wantHeader[0] || h.Get("X-Prometheus-Remote-Write-Version") != wantHeader[1] || h.Get("Content-Encoding") != "snappy" {
			t.Errorf("headers are %v", h)
			break
		}
	}
	for key, samples := range c.samples {
		names := strings.Split(key, ",")
		for i := range names {
			names[i], _, _ = strings.Cut(names[i], "=")
		}
		if sorted := slices.Sorted(slices.Values(names)); !slices.Equal(names, slices.Compact(sorted)) || !slices.Contains(names, "__name__") {
			t.Errorf("%s: labels are not sorted, or repeated, or without a name", key)
		}
		for i := 1; i < len(samples); i++ {
			if samples[i].Timestamp < samples[i-1].Timestamp {
				t.Errorf("%s: a sample at %d follows one at %d", key, samples[i].Timestamp, samples[i-1].Timestamp)
			}
		}
		for _, tt := range cases {
			if tt.absent != "" && strings.Contains(key, "__name__="+tt.absent+",") {
				t.Errorf("%s was sent", key)
			}
		}
	}
	if got := c.samples["__name__=timed,instance="+target+",job=timed"]; len(got) == 0 || got[0].Timestamp != timedMS {
		t.Errorf("samples with the target's timestamp %d: %v", timedMS, got)
	}
}

// A refused batch is sent again if its status means that it may be accepted later, and never otherwise. Each section
// has one shard, so that a batch that is sent again is the next request.
func TestServe_RemoteWriteRetriesAsComplianceDemands(t *testing.T) {
	again := map[string]bool{
		"/500": true, "/502": true, "/503": true, "/429/retried": true,
		"/429": false, "/400": false, "/401": false, "/404": false, "/413": false, "/415": false,
	}
	var mu sync.Mutex
	bodies := map[string][][]byte{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		mu.Lock()
		defer mu.Unlock()
		bodies[r.URL.Path] = append(bodies[r.URL.Path], body)
		status := http.StatusNoContent
		if len(bodies[r.URL.Path]) == 1 {
			_, _ = fmt.Sscanf(r.URL.Path, "/%d", &status)
			w.Header().Set("Retry-After", "0")
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(receiver.Close)
	text := "remote_write:\n"
	for path := range again {
		text += fmt.Sprintf("- {url: '%s%s', metadata_config: {send: false}, queue_config: {max_shards: 1, batch_send_deadline: 50ms, min_backoff: 10ms, max_backoff: 50ms, retry_on_http_429: %t}}\n",
			receiver.URL, path, strings.HasSuffix(path, "/retried"))
	}
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), text)
	})
	eventually(t, 30*time.Second, "two requests of every section", func() bool {
		s.must(v1Type, encoded(t, v1(v1Series(time.Now().UnixMilli(), 1, "__name__", "sent"))))
		mu.Lock()
		defer mu.Unlock()
		for path := range again {
			if len(bodies[path]) < 2 {
				return false
			}
		}
		return true
	})
	mu.Lock()
	defer mu.Unlock()
	for path, want := range again {
		if got := bytes.Equal(bodies[path][0], bodies[path][1]); got != want {
			t.Errorf("%s: the batch was sent again: %t, want %t", path, got, want)
		}
	}
}

// Scrapes and remote write name the program and its version, which Prometheus' packages have from a build flag.
func TestServe_RequestsNameTheProgramAndItsVersion(t *testing.T) {
	t.Parallel()
	var scraper atomic.Value
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scraper.Store(r.Header.Get("User-Agent"))
		w.Header().Set("Content-Type", textPage)
		_, _ = io.WriteString(w, "g 1\n")
	}))
	t.Cleanup(target.Close)
	c := startCaptor(t)
	address := strings.TrimPrefix(target.URL, "http://")
	file := sendingTo(t, c.URL, "\nscrape_configs: [{job_name: a, scrape_interval: 500ms, scrape_timeout: 500ms, static_configs: [{targets: ['"+address+"']}]}]")
	p := startProcess(t, binary(t), "serve", "--web.listen-address=127.0.0.1:0", "--storage.tsdb.path="+t.TempDir(), "--config.file="+file, "--no-profiles.self")
	eventually(t, 30*time.Second, "a scraped sample to be sent", func() bool { return c.has("__name__=g,instance="+address+",job=a,sender=one", "1") })
	noError(t, p.signal(os.Interrupt))
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, got := range []string{fmt.Sprint(scraper.Load()), c.headers[0].Get("User-Agent")} {
		if !ferulaProduct.MatchString(got) {
			t.Errorf("User-Agent is %q", got)
		}
	}
}

var ferulaProduct = regexp.MustCompile(`^ferula/[0-9]\S+$`)
