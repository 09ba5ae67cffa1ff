package sources

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/version"
)

// errUnavailable is returned when the server sent no response or a temporary error;
// errRefused when it rejected the request; errBadResponse when its response is invalid
// or too long.
var (
	errUnavailable = errors.New("Prometheus is unavailable")
	errRefused     = errors.New("Prometheus refused the request")
	errBadResponse = errors.New("invalid response of Prometheus")
)

// client sends requests to one Prometheus, for what remote read does not return: configuration and flags, the oldest
// timestamp, labels, exemplars, rules, targets, metadata and statistics of the TSDB. It reads most responses as a
// whole, within a limit, and decodes responses of series as they arrive. It is safe for concurrent use.
type client struct {
	url      *url.URL // of the server, without /api
	http     *http.Client
	bytesMax int64 // of one response
}

// newClient returns a client that uses the authentication and TLS of an HTTP client. It sends nothing yet.
func newClient(to *url.URL, by *http.Client) *client {
	return &client{to, by, 256 << 20}
}

// get sends a GET request. The caller closes the response's body.
func (c *client) get(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	u := c.url.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errRefused, err)
	}
	request.Header.Set("User-Agent", version.UserAgent())
	resp, err := c.http.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return resp, nil
}

// response is the JSON envelope of every endpoint's response. Data points to the value into which
// its field data is decoded.
type response struct {
	Status   string   `json:"status"`
	Data     any      `json:"data"`
	Warnings []string `json:"warnings"`
	Error    string   `json:"error"`
}

// data sends a GET request, decodes the field data of the response into a value, and returns the warnings.
func (c *client) data(ctx context.Context, path string, query url.Values, into any) (warnings []string, err error) {
	resp, err := c.get(ctx, path, query)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return c.decodeResponse(resp, path, into)
}

func (c *client) decodeResponse(resp *http.Response, path string, into any) (warnings []string, err error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, c.bytesMax+1))
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errUnavailable, path, err)
	}
	if int64(len(text)) > c.bytesMax {
		return nil, fmt.Errorf("%w: %s: longer than %d bytes", errBadResponse, path, c.bytesMax)
	}
	r := response{Data: into}
	bad := json.Unmarshal(text, &r)
	if resp.StatusCode/100 != 2 {
		kind := errUnavailable
		if resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusTooManyRequests {
			kind = errRefused
		}
		reason := r.Error
		if reason == "" {
			reason = strings.TrimSpace(string(text[:min(len(text), 1024)]))
		}
		return nil, fmt.Errorf("%w: %s: %s: %s", kind, path, resp.Status, reason)
	}
	if bad == nil && r.Status != "success" {
		bad = fmt.Errorf("status is %q", r.Status)
	}
	if bad != nil {
		return nil, fmt.Errorf("%w: %s: %w", errBadResponse, path, bad)
	}
	return r.Warnings, nil
}

// labelBytesMax bounds a label's name or value: a label set of Prometheus holds at most
// 16 MiB.
const labelBytesMax = 8 << 20

func checkLabel(name, value string) error {
	if n := max(len(name), len(value)); n > labelBytesMax {
		return fmt.Errorf("a label of %d bytes exceeds the limit of %d", n, labelBytesMax)
	}
	return nil
}

// labelsOf returns a label set whose labels are not too long.
func labelsOf(all map[string]string) (labels.Labels, error) {
	for name, value := range all {
		if err := checkLabel(name, value); err != nil {
			return labels.EmptyLabels(), fmt.Errorf("%w: %w", errBadResponse, err)
		}
	}
	return labels.FromMap(all), nil
}

// Config returns the external labels of the server's configuration, and whether it reads other servers, too.
func (c *client) Config(ctx context.Context) (external labels.Labels, readsOthers bool, err error) {
	var data struct {
		YAML string `json:"yaml"`
	}
	if _, err := c.data(ctx, "api/v1/status/config", nil, &data); err != nil {
		return labels.EmptyLabels(), false, err
	}
	var file struct {
		Global struct {
			External map[string]string `yaml:"external_labels"`
		} `yaml:"global"`
		RemoteRead []any `yaml:"remote_read"`
	}
	// config.Load is not used: it refuses settings of a newer server that this version does
	// not know.
	if err := yaml.Unmarshal([]byte(data.YAML), &file); err != nil {
		return labels.EmptyLabels(), false, fmt.Errorf("%w: its configuration: %w", errBadResponse, err)
	}
	return labels.FromMap(file.Global.External), len(file.RemoteRead) > 0, nil
}

// Flags returns the values of the server's command line flags.
func (c *client) Flags(ctx context.Context) (map[string]string, error) {
	flags := map[string]string{}
	_, err := c.data(ctx, "api/v1/status/flags", nil, &flags)
	return flags, err
}

// AcceptsMS returns the lowest timestamp that the head has or accepts, in ms: that of its oldest sample, or half the
// range of a block before its newest. An empty head accepts all.
func (c *client) AcceptsMS(ctx context.Context, has extent) (int64, error) {
	if has.headMaxMS == math.MaxInt64 {
		return math.MinInt64, nil
	}
	flags, err := c.Flags(ctx)
	if err != nil {
		return 0, err
	}
	const name = "storage.tsdb.min-block-duration"
	blockRange, err := model.ParseDuration(flags[name])
	if err != nil {
		return 0, fmt.Errorf("%w: --%s is %q", errBadResponse, name, flags[name])
	}
	return min(has.headMinMS, has.headMaxMS-time.Duration(blockRange).Milliseconds()/2), nil
}

// extent describes the data of a server. No endpoint of the API returns it, but metrics.
type extent struct {
	minMS      int64 // the timestamp of the oldest sample, math.MinInt64 if there are no samples
	headMinMS  int64 // the timestamps of the oldest and the newest sample in the head,
	headMaxMS  int64 // math.MaxInt64 if it is empty
	blockBytes int64 // size of all blocks; -1: unknown
}

const (
	lowestTimestamp = "prometheus_tsdb_lowest_timestamp_seconds"
	headMinTime     = "prometheus_tsdb_head_min_time"
	headMaxTime     = "prometheus_tsdb_head_max_time"
	blocksBytes     = "prometheus_tsdb_storage_blocks_bytes"
)

// Extent returns what the server has. Its error is nil if at least the oldest timestamp is known.
func (c *client) Extent(ctx context.Context) (extent, error) {
	resp, err := c.get(ctx, "metrics", nil)
	if err != nil {
		return extent{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return extent{}, fmt.Errorf("%w: metrics: %s", errUnavailable, resp.Status)
	}
	values := map[string]float64{}
	lines := bufio.NewScanner(io.LimitReader(resp.Body, c.bytesMax))
	lines.Buffer(nil, 1<<20)
	for len(values) < 4 && lines.Scan() {
		name, text, _ := strings.Cut(lines.Text(), " ")
		if name != lowestTimestamp && name != headMinTime && name != headMaxTime && name != blocksBytes {
			continue
		}
		if values[name], err = strconv.ParseFloat(text, 64); err != nil {
			return extent{}, fmt.Errorf("%w: metrics: %w", errBadResponse, err)
		}
	}
	if err := lines.Err(); err != nil {
		return extent{}, fmt.Errorf("%w: metrics: %w", errUnavailable, err)
	}
	lowest, found := values[lowestTimestamp]
	if !found {
		return extent{}, fmt.Errorf("%w: metrics: no metric %s", errBadResponse, lowestTimestamp)
	}
	e := extent{math.MinInt64, math.MaxInt64, math.MaxInt64, -1}
	if lowest*1000 < math.MaxInt64/2 { // else the value of an empty head
		e.minMS = int64(lowest * 1000)
	}
	bytes, found := values[blocksBytes]
	headMin, hasMin := values[headMinTime]
	headMax, hasMax := values[headMaxTime]
	if found && hasMin && hasMax {
		e.blockBytes = int64(bytes)
		if headMin < math.MaxInt64/2 {
			e.headMinMS, e.headMaxMS = int64(headMin), int64(headMax)
		}
	}
	return e, nil
}

// window returns the parameters of a request about labels. Timestamps are inclusive.
func window(matchers []*labels.Matcher, minMS, maxMS, limit int64) url.Values {
	q := url.Values{"start": {seconds(minMS)}, "end": {seconds(maxMS)}}
	if len(matchers) > 0 {
		q.Set("match[]", selector(matchers))
	}
	if limit > 0 {
		q.Set("limit", strconv.FormatInt(limit, 10))
	}
	return q
}

// seconds formats a timestamp as the API expects it. It is limited to the range that
// Prometheus parses.
func seconds(ms int64) string {
	const end = 9_000_000_000_000_000 // the year 287,000
	ms = min(max(ms, -end), end)
	return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64)
}

// selector formats matchers as PromQL. The parser requires a matcher that does not match an
// absent label. If there is none, selector adds a matcher of the name, which every series
// has.
func selector(matchers []*labels.Matcher) string {
	parts := make([]string, len(matchers))
	some := false
	for i, m := range matchers {
		parts[i] = m.String()
		some = some || !m.Matches("")
	}
	if !some {
		parts = append(parts, `__name__!=""`)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// LabelNames returns the label names of matching series, sorted.
func (c *client) LabelNames(ctx context.Context, matchers []*labels.Matcher, minMS, maxMS,
	limit int64) (names, warnings []string, err error) {
	warnings, err = c.data(ctx, "api/v1/labels", window(matchers, minMS, maxMS, limit), &names)
	return names, warnings, err
}

// LabelValues returns the values of one label, sorted.
func (c *client) LabelValues(ctx context.Context, name string, matchers []*labels.Matcher, minMS, maxMS,
	limit int64) (values, warnings []string, err error) {
	warnings, err = c.data(ctx, "api/v1/label/"+url.PathEscape(escapedName(name))+"/values",
		window(matchers, minMS, maxMS, limit), &values)
	return values, warnings, err
}

// escapedName escapes a label name for the path, unless it is a legacy name.
func escapedName(name string) string {
	if escaped := model.EscapeName(name, model.ValueEncodingEscaping); escaped != name || !strings.HasPrefix(name, "U__") {
		return escaped
	}
	return "U__" + strings.ReplaceAll(name, "_", "__") // otherwise the server would take it for an escaped one
}

// Exemplars returns the exemplars of the selectors in a PromQL expression.
func (c *client) Exemplars(ctx context.Context, query string, minMS,
	maxMS int64) (results []exemplar.QueryResult, warnings []string, err error) {
	var data []struct {
		SeriesLabels map[string]string `json:"seriesLabels"`
		Exemplars    []struct {
			Labels    map[string]string `json:"labels"`
			Value     string            `json:"value"` // NaN and Inf are not JSON
			Timestamp float64           `json:"timestamp"`
		} `json:"exemplars"`
	}
	warnings, err = c.data(ctx, "api/v1/query_exemplars", url.Values{"query": {query}, "start": {seconds(minMS)},
		"end": {seconds(maxMS)}}, &data)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range data {
		var result exemplar.QueryResult
		if result.SeriesLabels, err = labelsOf(e.SeriesLabels); err != nil {
			return nil, nil, err
		}
		for _, x := range e.Exemplars {
			value, err := strconv.ParseFloat(x.Value, 64)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: exemplar: %w", errBadResponse, err)
			}
			lset, err := labelsOf(x.Labels)
			if err != nil {
				return nil, nil, err
			}
			result.Exemplars = append(result.Exemplars, exemplar.Exemplar{Labels: lset, Value: value, HasTs: true,
				Ts: int64(math.Round(x.Timestamp * 1000))})
		}
		results = append(results, result)
	}
	return results, warnings, nil
}
