// Package promapi is the rest of what a Prometheus says over HTTP, for whom its
// samples are not enough: its configuration and flags, how far back it reaches,
// labels, exemplars, rules, targets and metadata.
//
// A Client asks one server and gives plain values; an answer is read whole, and a
// longer one than its limit is an error. Services offers some of it as the gRPC
// services by which Thanos' components ask each other, with the external labels
// put on. Series do not come this way (package remoteread), and nothing is kept:
// who wants to know more often than the server should be asked keeps it himself.
package promapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"go.yaml.in/yaml/v3"

	"github.com/ferula-io/ferula/internal/jsontree"
)

// ErrUnavailable is returned when the server did not answer, or said that it
// cannot now; ErrRefused when it found the question wrong; ErrAnswer when its
// answer is not what it should be, or too long.
var (
	ErrUnavailable = errors.New("Prometheus is unavailable")
	ErrRefused     = errors.New("Prometheus refused the request")
	ErrBadResponse = errors.New("answer of Prometheus is not understood")
)

// Options of a client.
type Options struct {
	URL              *url.URL     // of the server, without /api
	HTTP             *http.Client // with the authentication and TLS that it needs; nil: http.DefaultClient
	ResponseBytesMax int64        // 0: 256 MiB
}

// Client asks one Prometheus. It is safe for concurrent use.
type Client struct{ opts Options }

// New makes a client; nothing is asked yet.
func New(opts Options) *Client {
	if opts.HTTP == nil {
		opts.HTTP = http.DefaultClient
	}
	if opts.ResponseBytesMax == 0 {
		opts.ResponseBytesMax = 256 << 20
	}
	return &Client{opts}
}

// get asks for a path with a query; the caller closes the body.
func (c *Client) get(ctx context.Context, path string, query url.Values) (*http.Response, error) {
	u := c.opts.URL.JoinPath(path)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	request.Header.Set("User-Agent", "ferula")
	resp, err := c.opts.HTTP.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return resp, nil
}

// data is the member data of an answer, and its warnings.
func (c *Client) data(ctx context.Context, path string, query url.Values) (jsontree.Value, []string, error) {
	resp, err := c.get(ctx, path, query)
	if err != nil {
		return jsontree.Value{}, nil, err
	}
	defer resp.Body.Close()
	return c.answered(resp, path)
}

// answered reads a response.
func (c *Client) answered(resp *http.Response, path string) (jsontree.Value, []string, error) {
	text, err := io.ReadAll(io.LimitReader(resp.Body, c.opts.ResponseBytesMax+1))
	if err != nil {
		return jsontree.Value{}, nil, fmt.Errorf("%w: %s: %w", ErrUnavailable, path, err)
	}
	if int64(len(text)) > c.opts.ResponseBytesMax {
		return jsontree.Value{}, nil, fmt.Errorf("%w: %s: longer than %d bytes", ErrBadResponse, path, c.opts.ResponseBytesMax)
	}
	answer, bad := jsontree.Parse(text)
	if resp.StatusCode/100 != 2 {
		kind := ErrUnavailable
		if resp.StatusCode/100 == 4 && resp.StatusCode != http.StatusTooManyRequests {
			kind = ErrRefused
		}
		said := answer.Get("error").Text()
		if said == "" {
			said = strings.TrimSpace(string(text[:min(len(text), 1024)]))
		}
		return jsontree.Value{}, nil, fmt.Errorf("%w: %s: %s: %s", kind, path, resp.Status, said)
	}
	if bad == nil && answer.Get("status").Text() != "success" {
		bad = fmt.Errorf("status is %q", answer.Get("status").Text())
	}
	if bad != nil {
		return jsontree.Value{}, nil, fmt.Errorf("%w: %s: %w", ErrBadResponse, path, bad)
	}
	return answer.Get("data"), texts(answer.Get("warnings")), nil
}

func texts(list jsontree.Value) []string {
	var all []string
	for _, e := range list.Elements() {
		all = append(all, e.Text())
	}
	return all
}

// labelBytesMax is how long a name or a value may be: Prometheus' label sets hold no
// more than 16 MiB in one.
const labelBytesMax = 8 << 20

func checkLabel(name, value string) error {
	if n := max(len(name), len(value)); n > labelBytesMax {
		return fmt.Errorf("a label of %d bytes is longer than %d", n, labelBytesMax)
	}
	return nil
}

// labelsOf reads an object of strings.
func labelsOf(v jsontree.Value) (labels.Labels, error) {
	b := labels.NewScratchBuilder(len(v.Members()))
	for _, m := range v.Members() {
		text := m.Value.Text()
		if err := checkLabel(m.Name, text); err != nil {
			return labels.EmptyLabels(), fmt.Errorf("%w: %w", ErrBadResponse, err)
		}
		b.Add(m.Name, text)
	}
	b.Sort()
	return b.Labels(), nil
}

// ExternalLabels are those of the configuration that the server runs with.
func (c *Client) ExternalLabels(ctx context.Context) (labels.Labels, error) {
	data, _, err := c.data(ctx, "api/v1/status/config", nil)
	if err != nil {
		return labels.EmptyLabels(), err
	}
	var file struct {
		Global struct {
			External map[string]string `yaml:"external_labels"`
		} `yaml:"global"`
	}
	// Not config.Load: a newer server may say what this program does not know.
	if err := yaml.Unmarshal([]byte(data.Get("yaml").Text()), &file); err != nil {
		return labels.EmptyLabels(), fmt.Errorf("%w: its configuration: %w", ErrBadResponse, err)
	}
	return labels.FromMap(file.Global.External), nil
}

// Flags are the flags that the server was started with.
func (c *Client) Flags(ctx context.Context) (map[string]string, error) {
	data, _, err := c.data(ctx, "api/v1/status/flags", nil)
	flags := map[string]string{}
	for _, m := range data.Members() {
		flags[m.Name] = m.Value.Text()
	}
	return flags, err
}

// lowestTimestamp is the only place where the server says how far back it reaches.
const lowestTimestamp = "prometheus_tsdb_lowest_timestamp_seconds "

// LowestTimestampMS is the time of the oldest sample, math.MinInt64 if there is
// nothing yet to tell.
func (c *Client) LowestTimestampMS(ctx context.Context) (int64, error) {
	resp, err := c.get(ctx, "metrics", nil)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%w: metrics: %s", ErrUnavailable, resp.Status)
	}
	lines := bufio.NewScanner(io.LimitReader(resp.Body, c.opts.ResponseBytesMax))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		text, ok := strings.CutPrefix(lines.Text(), lowestTimestamp)
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return 0, fmt.Errorf("%w: metrics: %w", ErrBadResponse, err)
		}
		if seconds*1000 >= math.MaxInt64/2 { // an empty head has no lowest time
			return math.MinInt64, nil
		}
		return int64(seconds * 1000), nil
	}
	if err := lines.Err(); err != nil {
		return 0, fmt.Errorf("%w: metrics: %w", ErrUnavailable, err)
	}
	return 0, fmt.Errorf("%w: metrics: there is no %s", ErrBadResponse, strings.TrimSpace(lowestTimestamp))
}

// window is the query of a request about labels. Times are inclusive.
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

// seconds writes a time as the server reads one. What is beyond the ends of its
// time is cut to them.
func seconds(ms int64) string {
	const end = 9_000_000_000_000_000 // the year 287,000
	ms = min(max(ms, -end), end)
	return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64)
}

// selector writes matchers as PromQL, whose parser wants one that an absent label
// does not satisfy; every series has a name.
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

// LabelNames lists the names of labels of matching series, sorted.
func (c *Client) LabelNames(ctx context.Context, matchers []*labels.Matcher, minMS, maxMS, limit int64) (names, warnings []string, err error) {
	data, warnings, err := c.data(ctx, "api/v1/labels", window(matchers, minMS, maxMS, limit))
	return texts(data), warnings, err
}

// LabelValues lists the values of one label, sorted.
func (c *Client) LabelValues(ctx context.Context, name string, matchers []*labels.Matcher, minMS, maxMS, limit int64) (values, warnings []string, err error) {
	data, warnings, err := c.data(ctx, "api/v1/label/"+url.PathEscape(escapedName(name))+"/values", window(matchers, minMS, maxMS, limit))
	return texts(data), warnings, err
}

// escapedName spells a name that is not plain as the path of that request wants
// it: U__, with each other character as _hex_ and _ doubled.
func escapedName(name string) string {
	plain := name != "" && !strings.HasPrefix(name, "U__")
	for i, r := range name {
		if !(r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9') {
			plain = false
		}
	}
	if plain {
		return name
	}
	escaped := "U__"
	for i, r := range name {
		switch {
		case r == '_':
			escaped += "__"
		case r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || i > 0 && r >= '0' && r <= '9':
			escaped += string(r)
		default:
			escaped += "_" + strconv.FormatInt(int64(r), 16) + "_"
		}
	}
	return escaped
}

// Exemplars are those of the selectors in a PromQL expression.
func (c *Client) Exemplars(ctx context.Context, query string, minMS, maxMS int64) (results []exemplar.QueryResult, warnings []string, err error) {
	data, warnings, err := c.data(ctx, "api/v1/query_exemplars", url.Values{"query": {query}, "start": {seconds(minMS)}, "end": {seconds(maxMS)}})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range data.Elements() {
		var result exemplar.QueryResult
		if result.SeriesLabels, err = labelsOf(e.Get("seriesLabels")); err != nil {
			return nil, nil, err
		}
		for _, x := range e.Get("exemplars").Elements() {
			value, err := strconv.ParseFloat(x.Get("value").Text(), 64)
			if err != nil {
				return nil, nil, fmt.Errorf("%w: exemplar: %w", ErrBadResponse, err)
			}
			lset, err := labelsOf(x.Get("labels"))
			if err != nil {
				return nil, nil, err
			}
			result.Exemplars = append(result.Exemplars, exemplar.Exemplar{
				Labels: lset, Value: value, HasTs: true, Ts: int64(math.Round(x.Get("timestamp").Float() * 1000)),
			})
		}
		results = append(results, result)
	}
	return results, warnings, nil
}
