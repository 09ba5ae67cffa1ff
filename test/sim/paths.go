package sim

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gogo/protobuf/proto"
	"github.com/google/pprof/profile"
	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
)

const metricName = "sim_value"

// errRefused means that the server refused the whole request.
var errRefused = errors.New("refused")

// write sends samples by remote write 1.0. A nil error is an acknowledgement. After
// errRefused no sample is stored; after any other error they may be.
func write(ctx context.Context, c *http.Client, base string, series map[string]string, points map[int64]float64) error {
	ts := prompb.TimeSeries{Labels: []prompb.Label{{Name: "__name__", Value: metricName}}}
	for _, name := range sortedKeys(series) {
		ts.Labels = append(ts.Labels, prompb.Label{Name: name, Value: series[name]})
	}
	for _, ms := range sortedKeys(points) {
		ts.Samples = append(ts.Samples, prompb.Sample{Timestamp: ms, Value: points[ms]})
	}
	raw, err := proto.Marshal(&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{ts}})
	if err != nil {
		return err
	}
	status, body, err := post(ctx, c, base+"/api/v1/write", snappy.Encode(nil, raw), map[string]string{"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"})
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

// queryResponse is the response of /api/v1/query.
type queryResponse struct {
	Status   string   `json:"status"`
	Error    string   `json:"error"`
	Warnings []string `json:"warnings"`
	Data     struct {
		ResultType string `json:"resultType"`
		Result     []struct {
			Metric map[string]string `json:"metric"`
			Value  [2]any            `json:"value"`
			Values [][2]any          `json:"values"`
		} `json:"result"`
	} `json:"data"`
}

// api sends a GET and returns body and header. A status other than 200 is an error.
func api(ctx context.Context, c *http.Client, target string, params url.Values, header map[string]string) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target+"?"+params.Encode(), nil)
	if err != nil {
		return nil, nil, err
	}
	for name, value := range header {
		req.Header.Set(name, value)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, nil, fmt.Errorf("%s: status %d: %.500s", target, resp.StatusCode, body)
	}
	return body, resp.Header, nil
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
	var r queryResponse
	if err := json.Unmarshal(body, &r); err != nil {
		return nil, nil, err
	}
	got := samples{}
	for _, s := range r.Data.Result {
		key := seriesKey(s.Metric, append([]string{"__name__"}, drop...)...)
		for _, v := range s.Values {
			ms, f, err := point(v)
			if err != nil {
				return nil, nil, err
			}
			if _, double := got[key][ms]; double {
				return nil, nil, fmt.Errorf("sample {%s} @%d occurs twice", key, ms)
			}
			got.put(key, ms, f)
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

// readRequest returns the body of a remote read request for all samples of a metric.
func readRequest(metric string, minMS, maxMS int64, accepted prompb.ReadRequest_ResponseType) ([]byte, error) {
	raw, err := proto.Marshal(&prompb.ReadRequest{
		Queries: []*prompb.Query{{
			StartTimestampMs: minMS, EndTimestampMs: maxMS,
			Matchers: []*prompb.LabelMatcher{{Name: "__name__", Value: metric}},
		}},
		AcceptedResponseTypes: []prompb.ReadRequest_ResponseType{accepted},
	})
	return snappy.Encode(nil, raw), err
}

// remoteReadSamples reads by remote read with the response type SAMPLES, which
// Prometheus used before streaming.
func remoteReadSamples(ctx context.Context, c *http.Client, base string, minMS, maxMS int64, drop []string) (samples, error) {
	request, err := readRequest(metricName, minMS, maxMS, prompb.ReadRequest_SAMPLES)
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
			labels := map[string]string{}
			for _, l := range ts.Labels {
				labels[l.Name] = l.Value
			}
			key := seriesKey(labels, append([]string{"__name__"}, drop...)...)
			for _, s := range ts.Samples {
				got.put(key, s.Timestamp, s.Value)
			}
		}
	}
	return got, nil
}

// export runs `ferula read` with the format jsonl, csv or openmetrics and parses its
// standard output. source is the flag of the source, like --url=http://….
func export(ctx context.Context, binary, source, format string, minMS, maxMS int64, drop []string) (samples, error) {
	args := []string{"read", source, "--match=" + metricName, "--output=-", "--format=" + format, "--no-progress",
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
	default:
		return parseOpenMetrics(out.String(), drop)
	}
}

func parseJSONLines(text []byte, drop []string) (samples, error) {
	got := samples{}
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var line struct {
			Metric map[string]string `json:"metric"`
			Values [][2]any          `json:"values"`
		}
		if err := decoder.Decode(&line); err == io.EOF {
			return got, nil
		} else if err != nil {
			return nil, fmt.Errorf("jsonl: %w", err)
		}
		key := seriesKey(line.Metric, append([]string{"__name__"}, drop...)...)
		for _, pair := range line.Values {
			ms, v, err := point(pair)
			if err != nil {
				return nil, fmt.Errorf("jsonl: %w", err)
			}
			got.put(key, ms, v)
		}
	}
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
		labels := map[string]string{}
		if err := json.Unmarshal([]byte(row[column["labels"]]), &labels); err != nil {
			return nil, fmt.Errorf("csv: labels %q: %w", row[column["labels"]], err)
		}
		ms, err := strconv.ParseInt(row[column["timestamp"]], 10, 64)
		if err != nil {
			return nil, err
		}
		v, err := strconv.ParseFloat(row[column["value"]], 64)
		if err != nil {
			return nil, err
		}
		got.put(seriesKey(labels, append([]string{"__name__"}, drop...)...), ms, v)
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
		labels := map[string]string{}
		if _, list, ok := strings.Cut(head, "{"); ok {
			for _, pair := range strings.Split(strings.TrimSuffix(list, "}"), ",") {
				if name, quoted, ok := strings.Cut(pair, "="); ok {
					labels[name] = strings.Trim(quoted, `"`)
				}
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
		got.put(seriesKey(labels, append([]string{"__name__"}, drop...)...), int64(at*1000+0.5), v)
	}
	if !ended {
		return nil, errors.New("openmetrics: no # EOF")
	}
	return got, nil
}

// stacks describes a CPU profile: the number of samples, the depth of their stacks, which
// differ at the root, and the value of each sample in nanoseconds.
type stacks struct {
	samples, depth int
	value          int64
}

func (s stacks) total() int64 { return int64(s.samples) * s.value }

// encode returns the profile as a gzipped pprof.
func (s stacks) encode(at time.Time) ([]byte, error) {
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}},
		PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"},
		Period:     10_000_000, TimeNanos: at.UnixNano(), DurationNanos: int64(10 * time.Second),
	}
	location := func(name string) *profile.Location {
		f := &profile.Function{ID: uint64(len(p.Function) + 1), Name: name}
		p.Function = append(p.Function, f)
		l := &profile.Location{ID: uint64(len(p.Location) + 1), Line: []profile.Line{{Function: f}}}
		p.Location = append(p.Location, l)
		return l
	}
	shared := make([]*profile.Location, 0, s.depth)
	for i := range s.depth - 1 {
		shared = append(shared, location(fmt.Sprintf("frame%d", i)))
	}
	roots := make([]*profile.Location, min(s.samples, 500))
	for i := range roots {
		roots[i] = location(fmt.Sprintf("root%d", i))
	}
	leaf := location("leaf")
	for i := range s.samples {
		// The second frame makes stacks with the same root differ.
		chain := []*profile.Location{leaf}
		if len(shared) > 0 {
			chain = append(chain, shared[i%len(shared)])
		}
		chain = append(chain, shared...)
		chain = append(chain, roots[i%len(roots)])
		p.Sample = append(p.Sample, &profile.Sample{Location: chain, Value: []int64{s.value}})
	}
	var out bytes.Buffer
	err := p.Write(&out)
	return out.Bytes(), err
}

// pushProfile pushes by push.v1 in JSON.
func pushProfile(ctx context.Context, c *http.Client, base, tenant, service string, raw []byte) error {
	message := map[string]any{"series": []any{map[string]any{
		"labels":  []any{map[string]string{"name": "__name__", "value": "process_cpu"}, map[string]string{"name": "service_name", "value": service}},
		"samples": []any{map[string]string{"rawProfile": base64.StdEncoding.EncodeToString(raw)}},
	}}}
	body, err := json.Marshal(message)
	if err != nil {
		return err
	}
	status, text, err := post(ctx, c, base+"/push.v1.PusherService/Push", body, map[string]string{"Content-Type": "application/json", "X-Scope-OrgID": tenant})
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		return nil
	case status/100 == 4:
		return fmt.Errorf("%w: %d %s", errRefused, status, text)
	default:
		return fmt.Errorf("push: status %d: %s", status, text)
	}
}

// profileTotal returns the total of a service's flame graph, by querier.v1 in JSON.
func profileTotal(ctx context.Context, c *http.Client, base, tenant, service string, fromMS, toMS int64) (int64, error) {
	body, err := json.Marshal(map[string]any{
		"profileTypeID": "process_cpu:cpu:nanoseconds:cpu:nanoseconds", "labelSelector": fmt.Sprintf("{service_name=%q}", service),
		"start": strconv.FormatInt(fromMS, 10), "end": strconv.FormatInt(toMS, 10),
	})
	if err != nil {
		return 0, err
	}
	status, text, err := post(ctx, c, base+"/querier.v1.QuerierService/SelectMergeStacktraces", body, map[string]string{"Content-Type": "application/json", "X-Scope-OrgID": tenant})
	if err != nil {
		return 0, err
	}
	if status != http.StatusOK {
		return 0, fmt.Errorf("SelectMergeStacktraces: status %d: %s", status, text)
	}
	var r struct {
		Flamegraph struct {
			Total json.Number `json:"total"`
		} `json:"flamegraph"`
	}
	decoder := json.NewDecoder(strings.NewReader(text))
	if err := decoder.Decode(&r); err != nil {
		return 0, fmt.Errorf("flame graph: %w in %.300s", err, text)
	}
	if r.Flamegraph.Total == "" {
		return 0, nil
	}
	return strconv.ParseInt(strings.Trim(string(r.Flamegraph.Total), `"`), 10, 64)
}
