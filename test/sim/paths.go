package sim

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gogo/protobuf/proto"
	"github.com/klauspost/compress/snappy"
	"github.com/parquet-go/parquet-go"
	"github.com/prometheus/prometheus/prompb"
)

// Metrics of the simulator: floats, a classic histogram and a native one.
const (
	metricName    = "sim_value"
	classicName   = "sim_classic"
	nativeName    = "sim_native"
	everything    = `{__name__=~"sim_.+"}`
	withoutNative = `{__name__=~"sim_.+",__name__!="` + nativeName + `"}`
)

// errRefused means that the server refused the whole request.
var errRefused = errors.New("refused")

// send sends series by remote write 1.0. A nil error is an acknowledgement. After
// errRefused no sample is stored; after any other error samples may be stored.
func send(ctx context.Context, c *http.Client, base string, list []prompb.TimeSeries) error {
	raw, err := proto.Marshal(&prompb.WriteRequest{Timeseries: list})
	if err != nil {
		return err
	}
	status, body, err := post(ctx, c, base+"/api/v1/write", snappy.Encode(nil, raw), map[string]string{"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"})
	return writeResult(status, body, err)
}

// writeResult turns the response of a write into send's error.
func writeResult(status int, body string, err error) error {
	switch {
	case err != nil:
		return err
	case status/100 == 2:
		return nil
	case status/100 == 4:
		return fmt.Errorf("%w: %d %s", errRefused, status, body)
	default:
		return fmt.Errorf("status %d: %s", status, body)
	}
}

// floatSeries returns a series as remote write sends it.
func floatSeries(name string, series map[string]string, points map[int64]float64) prompb.TimeSeries {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: name}}}
	for _, label := range sortedKeys(series) {
		ts.Labels = append(ts.Labels, prompb.Label{Name: label, Value: series[label]})
	}
	for _, ms := range sortedKeys(points) {
		ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: ms, Value: points[ms]})
	}
	return ts
}

// add adds the samples and histograms of a series of remote write or remote read.
func (s samples) add(ts prompb.TimeSeries, drop []string) {
	labels := map[string]string{}
	for _, l := range ts.Labels {
		labels[l.Name] = l.Value
	}
	key := dataKey(labels, drop)
	for _, p := range ts.Samples {
		s.put(key, p.Timestamp, p.Value)
	}
	for i := range ts.Histograms {
		h := &ts.Histograms[i]
		if h.IsFloatHistogram() {
			s.putHistogram(key, h.Timestamp, h.ToFloatHistogram())
		} else {
			s.putHistogram(key, h.Timestamp, h.ToIntHistogram().ToFloat(nil))
		}
	}
}

func post(ctx context.Context, c *http.Client, target string, body []byte, header map[string]string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	responseBody, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(responseBody), err
}

// api sends a GET and returns body and header. A status other than 200 is an error.
func api(ctx context.Context, c *http.Client, target string, params url.Values, header map[string]string) ([]byte, http.Header, error) {
	status, body, got, err := get(ctx, c, target, params, header)
	if err != nil {
		return nil, nil, err
	}
	if status != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: status %d: %.500s", target, status, body)
	}
	return body, got, nil
}

// get sends a GET and returns status, body and header.
func get(ctx context.Context, c *http.Client, target string, params url.Values, header map[string]string) (int, []byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target+"?"+params.Encode(), nil)
	if err != nil {
		return 0, nil, nil, err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, resp.Header, err
}

// matrix is one series of a response of the API and of `ferula read --format=jsonl`.
type matrix struct {
	Metric     map[string]string    `json:"metric"`
	Values     [][2]any             `json:"values"`
	Histograms [][2]json.RawMessage `json:"histograms"`
}

// addMatrix adds a series. A timestamp must not occur twice.
func (s samples) addMatrix(m matrix, drop []string) error {
	key := dataKey(m.Metric, drop)
	for _, v := range m.Values {
		ms, f, err := point(v)
		if err != nil {
			return err
		}
		if _, double := s[key][ms]; double {
			return fmt.Errorf("sample {%s} @%d occurs twice", key, ms)
		}
		s.put(key, ms, f)
	}
	for _, pair := range m.Histograms {
		var at float64
		if err := json.Unmarshal(pair[0], &at); err != nil {
			return err
		}
		if err := s.putHistogramJSON(key, int64(at*1000+0.5), pair[1]); err != nil {
			return err
		}
	}
	return nil
}

// queryRaw reads every sample of the selector in [minMS, maxMS] by an instant query with
// a range selector. It also returns the warnings, which mark a partial response.
func queryRaw(ctx context.Context, c *http.Client, base, selector string, minMS, maxMS int64, drop []string, params url.Values) (samples, []string, error) {
	form := url.Values{
		"query": {fmt.Sprintf("%s[%dms]", selector, maxMS-minMS+1)},
		"time":  {seconds(maxMS)},
	}
	for name, values := range params {
		form[name] = values
	}
	body, _, err := api(ctx, c, base+"/api/v1/query", form, nil)
	if err != nil {
		return nil, nil, err
	}
	var r struct {
		Warnings []string `json:"warnings"`
		Data     struct {
			Result []matrix `json:"result"`
		} `json:"data"`
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, nil, err
	}
	got := samples{}
	for _, m := range r.Data.Result {
		if err := got.addMatrix(m, drop); err != nil {
			return nil, nil, err
		}
	}
	return got, r.Warnings, nil
}

func point(v [2]any) (int64, float64, error) {
	t, ok := v[0].(float64)
	text, isText := v[1].(string)
	if !ok || !isText {
		return 0, 0, fmt.Errorf("invalid point %v", v)
	}
	f, err := strconv.ParseFloat(text, 64)
	return int64(t*1000 + 0.5), f, err
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) }

// readRequest returns the body of a remote read request for all samples of the metrics.
func readRequest(minMS, maxMS int64, accepted prompb.ReadRequest_ResponseType) ([]byte, error) {
	raw, err := proto.Marshal(&prompb.ReadRequest{
		Queries: []*prompb.Query{{
			StartTimestampMs: minMS, EndTimestampMs: maxMS,
			Matchers: []*prompb.LabelMatcher{{Type: prompb.LabelMatcher_RE, Name: "__name__", Value: "sim_.+"}},
		}},
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{accepted},
	})
	return snappy.Encode(nil, raw), err
}

// remoteReadSamples reads by remote read with the response type SAMPLES, which
// Prometheus used before streaming.
func remoteReadSamples(ctx context.Context, c *http.Client, base string, minMS, maxMS int64, drop []string) (samples, error) {
	request, err := readRequest(minMS, maxMS, prompb.ReadRequest_SAMPLES)
	if err != nil {
		return nil, err
	}
	status, body, err := post(ctx, c, base+"/api/v1/read", request, map[string]string{
		"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy", "X-Prometheus-Remote-Read-Version": "0.1.0",
	})
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("remote read: status %d: %s", status, body)
	}
	plain, err := snappy.Decode(nil, []byte(body))
	if err != nil {
		return nil, err
	}
	var resp prompb.ReadResponse
	if err := proto.Unmarshal(plain, &resp); err != nil {
		return nil, err
	}
	got := samples{}
	for _, result := range resp.Results {
		for _, ts := range result.Timeseries {
			got.add(*ts, drop)
		}
	}
	return got, nil
}

// formats are the formats of `ferula read`.
var formats = []string{"jsonl", "csv", "openmetrics", "parquet", "blocks"}

// export runs `ferula read` and parses its output. source is the flag of the source, like
// --url=http://…. The format openmetrics has no native histograms.
func export(ctx context.Context, binary, source, format string, minMS, maxMS int64, drop []string) (samples, error) {
	selector := everything
	if format == "openmetrics" {
		selector = withoutNative
	}
	dir, err := os.MkdirTemp("", "ferula-sim-read-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	output := filepath.Join(dir, "out")
	if format != "blocks" && format != "parquet" {
		output = "-"
	}
	args := []string{"read", source, "--match=" + selector, "--output=" + output, "--format=" + format, "--no-progress",
		"--start=" + seconds(minMS), "--end=" + seconds(maxMS), "--retries=0", "--log.level=warn"}
	command := exec.CommandContext(ctx, binary, args...)
	var out, stderr bytes.Buffer
	command.Stdout, command.Stderr = &out, &stderr
	if err := command.Run(); err != nil {
		return nil, fmt.Errorf("ferula %s: %w: %s", strings.Join(args, " "), err, stderr.String())
	}
	switch format {
	case "jsonl":
		return parseJSONLines(out.Bytes(), drop)
	case "csv":
		return parseCSV(out.Bytes(), drop)
	case "parquet":
		return parseParquet(output, drop)
	case "blocks":
		got, _, err := blockSamples(output, drop)
		return got, err
	default:
		return parseOpenMetrics(out.String(), drop)
	}
}

func parseJSONLines(text []byte, drop []string) (samples, error) {
	got := samples{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var line matrix
		if err := decoder.Decode(&line); err == io.EOF {
			return got, nil
		} else if err != nil {
			return nil, fmt.Errorf("jsonl: %w", err)
		}
		if err := got.addMatrix(line, drop); err != nil {
			return nil, fmt.Errorf("jsonl: %w", err)
		}
	}
}

// addRow adds a row of the formats csv and parquet.
func (s samples) addRow(labelsJSON string, ms int64, value *float64, histogram string, drop []string) error {
	labels := map[string]string{}
	if err := json.Unmarshal([]byte(labelsJSON), &labels); err != nil {
		return fmt.Errorf("labels %q: %w", labelsJSON, err)
	}
	key := dataKey(labels, drop)
	if histogram != "" {
		return s.putHistogramJSON(key, ms, []byte(histogram))
	}
	if _, double := s[key][ms]; double || value == nil {
		return fmt.Errorf("sample {%s} @%d occurs twice or has no value", key, ms)
	}
	s.put(key, ms, *value)
	return nil
}

func parseCSV(text []byte, drop []string) (samples, error) {
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(rows) == 0 {
		return nil, errors.New("csv: no header")
	}
	column := map[string]int{}
	for i, name := range rows[0] {
		column[name] = i
	}
	got := samples{}
	for _, row := range rows[1:] {
		ms, err := strconv.ParseInt(row[column["timestamp"]], 10, 64)
		if err != nil {
			return nil, err
		}
		var value *float64
		if text := row[column["value"]]; text != "" {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			value = &v
		}
		if err := got.addRow(row[column["labels"]], ms, value, row[column["histogram"]], drop); err != nil {
			return nil, fmt.Errorf("csv: %w", err)
		}
	}
	return got, nil
}

func parseParquet(file string, drop []string) (samples, error) {
	type row struct {
		Labels    string   `parquet:"labels"`
		Timestamp int64    `parquet:"timestamp,timestamp(millisecond)"`
		Value     *float64 `parquet:"value,optional"`
		Histogram *string  `parquet:"histogram,optional"`
	}
	rows, err := parquet.ReadFile[row](file)
	if err != nil {
		return nil, fmt.Errorf("parquet: %w", err)
	}
	got := samples{}
	for _, r := range rows {
		histogram := ""
		if r.Histogram != nil {
			histogram = *r.Histogram
		}
		if err := got.addRow(r.Labels, r.Timestamp, r.Value, histogram, drop); err != nil {
			return nil, fmt.Errorf("parquet: %w", err)
		}
	}
	return got, nil
}

// parseOpenMetrics reads lines `name{labels} value timestamp`. The simulator's
// label values hold no spaces, commas or quotes.
func parseOpenMetrics(text string, drop []string) (samples, error) {
	got := samples{}
	ended := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if line == "# EOF" {
			ended = true
		}
		if line == "" || line[0] == '#' {
			continue
		}
		head, rest, _ := strings.Cut(line, " ")
		value, stamp, _ := strings.Cut(rest, " ")
		name, list, _ := strings.Cut(head, "{")
		labels := map[string]string{"__name__": name}
		for _, pair := range strings.Split(strings.TrimSuffix(list, "}"), ",") {
			if label, quoted, ok := strings.Cut(pair, "="); ok {
				labels[label] = strings.Trim(quoted, `"`)
			}
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("openmetrics: %q: %w", line, err)
		}
		at, err := strconv.ParseFloat(stamp, 64)
		if err != nil {
			return nil, fmt.Errorf("openmetrics: %q: %w", line, err)
		}
		key, ms := dataKey(labels, drop), int64(at*1000+0.5)
		if _, double := got[key][ms]; double {
			return nil, fmt.Errorf("openmetrics: %q: its timestamp occurs twice", line)
		}
		got.put(key, ms, v)
	}
	if !ended {
		return nil, errors.New("openmetrics: no # EOF")
	}
	return got, nil
}
