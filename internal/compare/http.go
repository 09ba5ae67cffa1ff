package compare

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/ferula-io/ferula/internal/version"
)

// response is the response of one side to a query.
type response struct {
	status    int
	body      []byte
	Status    string          `json:"status"`
	Data      json.RawMessage `json:"data"`
	ErrorType string          `json:"errorType"`
	Error     string          `json:"error"`
	Warnings  []string        `json:"warnings"`
	Infos     []string        `json:"infos"`
}

// empty reports whether the response has no series and no error.
func (a *response) empty() bool {
	return a.Status == "success" && bytes.Contains(a.Data, []byte(`"result":[]`))
}

// ask sends a query to one side. An error means that there is no response of the API to compare.
func (r *runner) ask(ctx context.Context, side Side, pace *rate.Limiter, q *Query, cost *Cost) (*response, error) {
	form, path := url.Values{"query": {q.Expr}}, "/api/v1/query"
	if q.Range {
		path = "/api/v1/query_range"
		form.Set("start", seconds(q.StartMS))
		form.Set("end", seconds(q.EndMS))
		form.Set("step", seconds(q.StepMS))
	} else {
		form.Set("time", seconds(q.EndMS))
	}
	if err := pace.Wait(ctx); err != nil {
		return nil, err
	}
	begin := time.Now()
	status, body, err := r.fetch(ctx, side, http.MethodPost, path, form)
	if err != nil {
		return nil, err
	}
	cost.add(int64(len(body)), time.Since(begin))
	a := &response{status: status, body: body}
	if err := json.Unmarshal(body, a); err != nil || a.Status == "" {
		return nil, fmt.Errorf("%s: status %d is not a response of the query API: %.200q", side.Name, status, body)
	}
	return a, nil
}

// seconds writes a time or a duration in ms as a parameter in seconds.
func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', -1, 64) }

// fetch sends a request and reads the body of the response up to the limit.
func (r *runner) fetch(ctx context.Context, side Side, method, path string, form url.Values) (int, []byte, error) {
	if r.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, r.Timeout, fmt.Errorf("no response within %s", r.Timeout))
		defer cancel()
	}
	to, sent := side.URL.JoinPath(path), ""
	if method == http.MethodPost {
		sent = form.Encode()
	} else {
		to.RawQuery = form.Encode()
	}
	request, err := http.NewRequestWithContext(ctx, method, to.String(), strings.NewReader(sent))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("User-Agent", version.UserAgent())
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	status, body, err := 0, []byte(nil), error(nil)
	resp, err := side.HTTP.Do(request)
	if err == nil {
		defer resp.Body.Close()
		status = resp.StatusCode
		body, err = io.ReadAll(io.LimitReader(resp.Body, r.BytesMax+1))
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return 0, nil, fmt.Errorf("%s: %w", side.Name, context.Cause(ctx))
	case err != nil:
		return 0, nil, fmt.Errorf("%s: %w", side.Name, err)
	case int64(len(body)) > r.BytesMax:
		return 0, nil, fmt.Errorf("%s: %w of %d bytes: --max-response-bytes", side.Name, ErrLimit, r.BytesMax)
	}
	return status, body, nil
}

// get decodes the data of an endpoint other than queries.
func (r *runner) get(ctx context.Context, side Side, path string, form url.Values, data any) error {
	if err := r.left.Wait(ctx); err != nil {
		return err
	}
	status, body, err := r.fetch(ctx, side, http.MethodGet, path, form)
	if err != nil {
		return err
	}
	var a response
	if err := json.Unmarshal(body, &a); err != nil || a.Status != "success" {
		return fmt.Errorf("%s: %s: status %d: %.200q", side.Name, path, status, cmp.Or(a.Error, string(body)))
	}
	return json.Unmarshal(a.Data, data)
}

// element is an element of the result of an instant query.
type element struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"`
}

// instant evaluates an expression at the end of the run.
func (r *runner) instant(ctx context.Context, side Side, expr string) ([]element, error) {
	var data struct {
		Result []element `json:"result"`
	}
	err := r.get(ctx, side, "/api/v1/query", url.Values{"query": {expr}, "time": {seconds(r.End.UnixMilli())}}, &data)
	return data.Result, err
}

// program is a kind of server.
type program string

const (
	prometheus program = "Prometheus"
	thanos     program = "Thanos"
	victoria   program = "VictoriaMetrics"
	mimir      program = "Mimir"
	ferula     program = "ferula"
)

// builds are the metrics by which a program is known, the most specific first: ferula has Prometheus' metric, too.
var builds = []struct {
	metric string
	is     program
}{{"ferula_build_info", ferula}, {"thanos_build_info", thanos}, {"vm_app_version", victoria},
	{"cortex_build_info", mimir}, {"prometheus_build_info", prometheus}}

var versionLabel = regexp.MustCompile(`[{,](?:short_)?version="([^"]*)"`)

// identify finds which programs the servers are, and whether each scrapes for itself. It returns an error if a
// server does not respond.
func (r *runner) identify(ctx context.Context) error {
	if r.Left.URL == nil {
		return nil
	}
	for _, s := range []struct {
		side Side
		to   *SideReport
	}{{r.Left, &r.report.Left}, {r.Right, &r.report.Right}} {
		_, page, err := r.fetch(ctx, s.side, http.MethodGet, "/metrics", nil)
		if err != nil && !errors.Is(err, ErrLimit) {
			return err
		}
		for _, b := range builds {
			if line := metricLine(page, b.metric); line != "" {
				s.to.program, s.to.Program = b.is, string(b.is)
				if v := versionLabel.FindStringSubmatch(line); v != nil {
					s.to.Program += " " + v[1]
				}
				break
			}
		}
	}
	left, err := r.instant(ctx, r.Left, "scrape_duration_seconds")
	right, rightErr := r.instant(ctx, r.Right, "scrape_duration_seconds")
	if err != nil || rightErr != nil {
		return nil // servers without this metric can be compared
	}
	durations := map[string]string{}
	for _, s := range left {
		durations[fmt.Sprint(s.Metric)] = fmt.Sprint(s.Value[1])
	}
	for _, s := range right {
		if d, ok := durations[fmt.Sprint(s.Metric)]; ok && d != fmt.Sprint(s.Value[1]) {
			r.report.OwnScrapes = true
		}
	}
	return nil
}

// metricLine returns the first line of a /metrics page with a metric; "" if there is none.
func metricLine(page []byte, name string) string {
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(line, name); ok && strings.IndexAny(rest, "{ ") == 0 {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// cpu returns the CPU time of a server in seconds, nil if it does not expose it.
func (r *runner) cpu(ctx context.Context, side Side) *float64 {
	if side.URL == nil {
		return nil
	}
	_, page, err := r.fetch(ctx, side, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil
	}
	fields := strings.Fields(metricLine(page, "process_cpu_seconds_total"))
	if len(fields) < 2 {
		return nil
	}
	v, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return nil
	}
	return &v
}
