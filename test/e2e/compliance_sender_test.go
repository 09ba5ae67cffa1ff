package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
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
	"github.com/prometheus/prometheus/model/value"
	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"

	"github.com/ferula-io/ferula/internal/app"
)

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
			text, err := os.ReadFile(sendingTo(t, c.URL, sections))
			if err != nil {
				t.Fatal(err)
			}
			file := writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), strings.Replace(string(text), "external_labels: {sender: one}", "", 1))
			s := startServe(t, func(o *app.ServeOptions) {
				o.ConfigFile = file
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
			if err := s.stop(); err != nil {
				t.Fatal(err)
			}
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
	if err := p.signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, got := range []string{fmt.Sprint(scraper.Load()), c.headers[0].Get("User-Agent")} {
		if !ferulaProduct.MatchString(got) {
			t.Errorf("User-Agent is %q", got)
		}
	}
}

var ferulaProduct = regexp.MustCompile(`^ferula/[0-9]\S+$`)
