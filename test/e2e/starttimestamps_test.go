package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// counting serves pages of OpenMetrics with a counter, a histogram and a summary that have start timestamps. The page is
// the same until step changes, and every third step restarts the counters. Times of samples are in the page, so that
// all who scrape it store the same.
type counting struct {
	begun time.Time
	step  atomic.Int64
}

// at returns the time of the samples of the current page.
func (c *counting) at() time.Time { return c.begun.Add(time.Duration(c.step.Load()) * 5 * time.Second) }

func (c *counting) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	step, at := c.step.Load(), float64(c.at().UnixMilli())/1000
	life := step % 3
	created := float64(c.begun.UnixMilli())/1000 + float64(step-life)*5 - 2
	w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
	fmt.Fprintf(w, `# TYPE a counter
a_total{l="x"} %[1]d %[2]f
a_created{l="x"} %[3]f
# TYPE h histogram
h_bucket{le="1"} %[1]d %[2]f
h_bucket{le="+Inf"} %[4]d %[2]f
h_count %[4]d %[2]f
h_sum %[4]d %[2]f
h_created %[3]f
# TYPE plain counter
plain_total %[1]d %[2]f
# TYPE step gauge
step %[5]d %[2]f
# EOF
`, 10+7*life, at, created, 20+9*life, step)
}

// startTimestampFeatures are the sets of features that are compared.
var startTimestampFeatures = map[string]string{
	"stored":     "st-storage,use-start-timestamps,promql-experimental-functions",
	"zero":       "created-timestamp-zero-ingestion,extra-scrape-metrics",
	"histograms": "histograms-st-encoding,xor2-encoding,use-start-timestamps,promql-experimental-functions",
}

func TestPeerPrometheus_StartTimestampsAreStoredAndEvaluatedTheSame(t *testing.T) {
	peerBinary(t, "prometheus")
	program := binary(t) // builds it, before the time of the first sample is taken
	for name, features := range startTimestampFeatures {
		t.Run(name, func(t *testing.T) {
			pages := &counting{begun: time.Now().Add(-90 * time.Second).Truncate(time.Second)}
			target := httptest.NewServer(pages)
			t.Cleanup(target.Close)
			config := fmt.Sprintf(`
global: {scrape_interval: 200ms, scrape_timeout: 200ms, external_labels: {replica: a}}
scrape_configs:
- {job_name: nhcb, convert_classic_histograms_to_nhcb: true, static_configs: [{targets: [%q]}]}
- {job_name: plain, static_configs: [{targets: [%[1]q]}]}
`, strings.TrimPrefix(target.URL, "http://"))
			theirs := startPrometheus(t, config, "", "--enable-feature="+features)
			dir := t.TempDir()
			address, data := freeAddress(t), filepath.Join(dir, "data")
			p := launch(t, program, "serve", "--config.file="+writeFile(t, filepath.Join(dir, "prometheus.yml"), config),
				"--storage.tsdb.path="+data, "--web.listen-address="+address, "--grpc-address=127.0.0.1:0",
				"--enable-feature="+features)
			ours := &server{t: t, base: "http://" + address, ready: "/-/ready"}
			ours.waitReady()
			for step := range int64(9) {
				pages.step.Store(step)
				want := fmt.Sprint(step)
				for _, s := range []*server{ours, theirs} {
					for _, job := range []string{"nhcb", "plain"} {
						s.waitValue(`step{job="`+job+`"}`, want)
					}
				}
			}
			compareStartTimestamps(t, pages.begun, name, ours, theirs)
			// Prometheus opens the directory, write-ahead log included.
			noError(t, p.signal(syscall.SIGTERM))
			<-p.ended
			compareStartTimestamps(t, pages.begun, name, startPrometheus(t, "", data, "--enable-feature="+features), theirs)
		})
	}
}

// compareStartTimestamps compares responses to queries that depend on start timestamps.
func compareStartTimestamps(t *testing.T, begun time.Time, name string, ours, theirs *server) {
	t.Helper()
	start, end := begun.Unix()-10, begun.Unix()+45
	for _, query := range []string{
		`a_total`, `a_created`, `h`, `h_count`, `plain_total`,
		`rate(a_total[20s])`, `increase(a_total[20s])`, `irate(a_total[20s])`, `resets(a_total[30s])`, `increase(h[20s])`,
		`rate(h_count[20s])`, `rate(plain_total[20s])`, `start_timestamp(a_total)`, `start_timestamp(h)`,
		`start_timestamp(plain_total)`, `count by (__name__) ({__name__=~"scrape_.+", job="plain"})`,
	} {
		path := fmt.Sprintf("/api/v1/query_range?query=%s&start=%d&end=%d&step=1", url.QueryEscape(query), start, end)
		_, got := ours.get(path)
		_, want := theirs.get(path)
		if got != want {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s: byte %d differs: got %s\nwant %s", query, at, got[max(0, at-200):], want[max(0, at-200):])
		}
		if strings.HasPrefix(query, "start_timestamp(a") && name == "stored" && !strings.Contains(want, "values") {
			t.Errorf("%s: nothing to compare: %s", query, want)
		}
	}
}
