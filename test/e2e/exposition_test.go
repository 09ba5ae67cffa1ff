package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"

	"github.com/ferula-io/ferula/internal/app"
)

// The page has the role's own metrics and those of Prometheus' packages. Prometheus'
// parser reads it, and each family occurs once.
func TestMetrics_EveryRoleExposesOneValidPageInEveryFormat(t *testing.T) {
	objects := "type: FILESYSTEM\nconfig: {directory: " + t.TempDir() + "}\n"
	s := startServe(t, func(o *app.ServeOptions) {
		o.ConfigFile = configFile(t, "cluster: one")
		o.Ship.Bucket, o.Ship.IgnoreBlockSize = objects, true
	})
	sidecar := startSidecar(t, s.base, func(o *app.SidecarOptions) {
		o.Ship = app.ShippingOptions{Bucket: objects, IgnoreBlockSize: true}
	})
	sidecar.waitReady()
	query := startQuery(t, []string{sidecar.grpc}, nil)
	front := startFrontend(t, s.base, func(o *app.QueryFrontendOptions) {
		o.RangeCache, o.LabelCache = "type: IN-MEMORY\n", "type: IN-MEMORY\n"
		o.Frontend.Labels.Interval = time.Hour
	})
	for _, c := range []struct {
		name     string
		server   *server
		families int
		wanted   []string
	}{
		{"serve", s, 100, []string{
			"prometheus_tsdb_head_series", "prometheus_tsdb_head_min_time_seconds", "prometheus_config_last_reload_successful",
			"prometheus_remote_read_handler_queries", "thanos_shipper_uploads_total", "ferula_profiles_shipper_blocks_waiting",
			"ferula_profiles_received_total", "ferula_profiles_pushes_total", "thanos_objstore_bucket_operations_total",
			`ferula_http_requests_total{code="200", handler="/api/v1/query", method="GET"}`,
			`ferula_http_request_duration_seconds_count{code="200", handler="/api/v1/query", method="GET"}`,
		}},
		{"sidecar", sidecar.server, 60, []string{
			"thanos_sidecar_prometheus_up", "thanos_sidecar_reloader_reloads_total", "thanos_shipper_dir_syncs_total",
			`grpc_server_started_total{grpc_method="Info", grpc_service="thanos.info.Info", grpc_type="unary"}`,
		}},
		{"query", query.server, 60, []string{`ferula_query_stores{component="sidecar", up="true"}`, "prometheus_engine_queries"}},
		{"query-frontend", front, 60, []string{
			`ferula_frontend_cache_lookups_total{cache="query_range", result="miss"}`, `ferula_frontend_cache_memory_max_bytes{cache="labels"}`,
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.server.traced("/api/v1/query?query=1", openTrace)
			wanted := append(c.wanted, "ferula_build_info", "go_goroutines", "process_cpu_seconds_total", "process_open_fds")
			pageInEveryFormat(t, c.server, c.families, wanted)
		})
	}
}

func pageInEveryFormat(t *testing.T, s *server, families int, wanted []string) {
	for _, accept := range []string{
		"", "text/plain;version=1.0.0;escaping=allow-utf-8", "application/openmetrics-text;version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		page, contentType := s.metricsPage(accept)
		checkFamiliesOnce(t, page, contentType, families)
		series := seriesOf(t, page, contentType)
		for _, want := range wanted {
			if !strings.Contains(series, "\n"+want) {
				t.Errorf("%s: no %s", contentType, want)
			}
		}
	}
	page, _ := s.metricsPage("application/openmetrics-text;version=1.0.0")
	if !bytes.HasSuffix(page, []byte("\n# EOF\n")) || bytes.Count(page, []byte("# EOF")) != 1 || !bytes.Contains(page, []byte(`# {trace_id="`+openTrace+`"}`)) {
		t.Errorf("no # EOF or no exemplar:\n%s", page)
	}
}

// checkFamiliesOnce fails the test if the page has fewer families or one of them twice.
func checkFamiliesOnce(t *testing.T, page []byte, contentType string, families int) {
	t.Helper()
	seen := map[string]int{}
	if strings.Contains(contentType, "protobuf") {
		decoder := expfmt.NewDecoder(bytes.NewReader(page), expfmt.Format(contentType))
		for {
			var family dto.MetricFamily
			if err := decoder.Decode(&family); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			seen[family.GetName()]++
		}
	} else {
		for line := range strings.Lines(string(page)) {
			if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
				name, _, _ := strings.Cut(rest, " ")
				seen[name]++
			}
		}
	}
	if len(seen) < families {
		t.Errorf("%s: only %d families", contentType, len(seen))
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: family %s occurs %d times", contentType, name, n)
		}
	}
}

// seriesOf returns the series that Prometheus' scraper parses, one per line.
func seriesOf(t *testing.T, page []byte, contentType string) string {
	t.Helper()
	p := try(textparse.New(page, contentType, labels.NewSymbolTable(), textparse.ParserOptions{})).must(t)
	var b strings.Builder
	seen := map[string]bool{}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return b.String()
		}
		if err != nil {
			t.Fatalf("%s: %v", contentType, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var l labels.Labels
		p.Labels(&l)
		if seen[l.String()] {
			t.Errorf("%s: %s occurs twice", contentType, l)
		}
		seen[l.String()] = true
		b.WriteString("\n" + l.Get("__name__") + l.DropReserved(func(name string) bool { return name == "__name__" }).String())
	}
}

// openTrace is the trace of the requests whose exemplars are looked for.
const openTrace = "0af7651916cd43dd8448eb211c80319c"

func (s *server) metricsPage(accept string) (page []byte, contentType string) {
	s.t.Helper()
	status, text, header := s.request("GET", "/metrics", "", "Accept", accept)
	if status != http.StatusOK {
		s.t.Fatalf("%s: status %d", accept, status)
	}
	return []byte(text), header.Get("Content-Type")
}

// openCase is a page in the OpenMetrics format. If samples is -1, the page must not be accepted: up is 0.
type openCase struct {
	name, page string
	samples    int
}

// openCases are pages that a parser of OpenMetrics accepts or refuses. Each page has its own families, so that the
// metadata of all can be compared.
func openCases(now time.Time) []openCase {
	seconds := fmt.Sprintf("%d.250", now.Unix())
	return []openCase{
		{"empty", "# EOF\n", 0},
		{"gauge", "# TYPE ga gauge\n# UNIT ga \n# HELP ga A gauge.\nga 1\nga{a=\"b\"} -1.5e3\n# EOF\n", 2},
		{"values", "va{v=\"nan\"} NaN\nva{v=\"inf\"} +Inf\nva{v=\"least\"} -Inf\nva{v=\"small\"} 1e-300\n# EOF\n", 4},
		{"counter", "# TYPE co counter\n# HELP co A \\\"counter\\\" of\\nlines \\\\.\nco_total 17.0\nco_created 1520872607.123\n# EOF\n", 2},
		{"countername", "# TYPE cn counter\ncn 1\n# EOF\n", 1},
		{"unit", "# TYPE un_seconds gauge\n# UNIT un_seconds seconds\nun_seconds 1\n# EOF\n", 1},
		{"histogram", "# TYPE hi histogram\nhi_bucket{le=\"0.1\"} 8 # {} 0.05\nhi_bucket{le=\"1.0\"} 10 # {id=\"x\"} 0.9 " + seconds + "\nhi_bucket{le=\"+Inf\"} 17\nhi_count 17\nhi_sum 324.1\nhi_created 1520430000.1\n# EOF\n", 6},
		{"gaugehistogram", "# TYPE gh gaugehistogram\ngh_bucket{le=\"1\"} 1\ngh_bucket{le=\"+Inf\"} 2\ngh_gcount 2\ngh_gsum 3\n# EOF\n", 4},
		{"summary", "# TYPE su summary\nsu{quantile=\"0.5\"} 3\nsu{quantile=\"1\"} 4\nsu_count 2\nsu_sum 7\n# EOF\n", 4},
		{"info", "# TYPE in info\nin_info{version=\"1\"} 1\n# EOF\n", 1},
		{"stateset", "# TYPE st stateset\nst{st=\"a\"} 1\nst{st=\"b\"} 0\n# EOF\n", 2},
		{"unknown", "# TYPE uk unknown\nuk 1\n# EOF\n", 1},
		{"timestamp", "ts 1 " + seconds + "\n# EOF\n", 1},
		{"exemplar", "# TYPE ex counter\nex_total{a=\"b\"} 5 # {trace_id=\"0af7\",span=\"b7\"} 0.5 " + seconds + "\n# EOF\n", 1},
		{"escapes", "es{a=\"quote \\\" slash \\\\ line \\n end\"} 1\n# EOF\n", 1},
		{"comma", "cm{a=\"1\",} 1\n# EOF\n", 1},
		{"braces", "br{} 1\n# EOF\n", 1},
		{"unicode", "uc{a=\"\u00fcn\u00ef \u2603\"} 1\n# EOF\n", 1},
		{"quoted", "# TYPE \"qu.o\u00fc\" gauge\n{\"qu.o\u00fc\",\"a.b\"=\"c\"} 1\n# EOF\n", 1},
		{"spaces", "sp {a = \"b\"} 1\n# EOF\n", -1},
		{"helpless", "# HELP he\nhe 1\n# EOF\n", -1},
		{"unfinished", "uf 1\n", -1},
		{"nothing", "", 0},
		{"hexadecimal", "hx 0x10\n# EOF\n", -1},
		{"after", "af 1\n# EOF\nbf 2\n", -1},
		{"ending", "en 1\n# EOF", 1},
		{"noline", "nl 1", -1},
		{"blank", "bl 1\n\n# EOF\n", -1},
		{"comment", "# free words\ncw 1\n# EOF\n", -1},
		{"indent", " id 1\n# EOF\n", -1},
		{"tab", "tb\t1\n# EOF\n", -1},
		{"twospaces", "tw  1\n# EOF\n", -1},
		{"carriage", "cr 1\r\n# EOF\r\n", -1},
		{"badtype", "# TYPE bt meter\nbt 1\n# EOF\n", -1},
		{"badunit", "# UNIT bu seconds\nbu 1\n# EOF\n", -1},
		{"badvalue", "bv one\n# EOF\n", -1},
		{"novalue", "nv\n# EOF\n", -1},
		{"badtime", "bi 1 now\n# EOF\n", -1},
		{"nantime", "nt 1 NaN\n# EOF\n", -1},
		{"inftime", "it 1 +Inf\n# EOF\n", -1},
		{"badname", "0n 1\n# EOF\n", -1},
		{"badlabel", "bb{0=\"1\"} 1\n# EOF\n", -1},
		{"unquoted", "uq{a=1} 1\n# EOF\n", -1},
		{"single", "sq{a='1'} 1\n# EOF\n", -1},
		{"open", "op{a=\"1\" 1\n# EOF\n", -1},
		{"onlycomma", "oc{,} 1\n# EOF\n", -1},
		{"twice", "tc{a=\"1\",a=\"2\"} 1\n# EOF\n", -1},
		{"broken", "bk{a=\"\xff\"} 1\n# EOF\n", -1},
		{"badexemplar", "# TYPE be counter\nbe_total 1 # {a=\"b\"\n# EOF\n", -1},
		{"exemplarvalue", "# TYPE ev counter\nev_total 1 # {a=\"b\"}\n# EOF\n", -1},
		{"exemplartime", "# TYPE et counter\net_total 1 # {a=\"b\"} 1 NaN\n# EOF\n", -1},
		{"exemplargauge", "# TYPE eg gauge\neg 1 # {a=\"b\"} 1\n# EOF\n", 1},
		{"late", "la 1\n# TYPE lb gauge\nlb 2\nlc{ 3\n# EOF\n", -1},
		{"again", "ag 1\nag 2\n# EOF\n", 2},
	}
}

// startOpenPages serves each page at its name and returns a configuration that scrapes all of them.
func startOpenPages(t *testing.T, cases []openCase) (config string) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, c := range cases {
			if r.URL.Path == "/"+c.name {
				w.Header().Set("Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8")
				_, _ = io.WriteString(w, c.page)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(target.Close)
	text := "global: {scrape_interval: 5s, scrape_timeout: 5s}\nstorage: {exemplars: {max_exemplars: 1000}}\nscrape_configs:\n"
	for _, c := range cases {
		text += fmt.Sprintf("- {job_name: %s, metrics_path: /%[1]s, static_configs: [{targets: ['%s']}]}\n", c.name, strings.TrimPrefix(target.URL, "http://"))
	}
	return writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), text)
}

// scraped waits until every page was scraped. It returns, for each job, its series with their values and the error of
// the scrape.
func scraped(t *testing.T, s *server, cases []openCase) map[string]string {
	t.Helper()
	s.waitValue("count(up)", fmt.Sprint(len(cases)))
	// A job's series are committed together with its up.
	jobs := map[string][]string{}
	for _, v := range s.instant(`{job!="",__name__!="scrape_duration_seconds"}`) {
		text := try(json.Marshal(v.Metric)).must(t)
		// How many series a scrape added depends on which one is the first.
		if v.Metric["__name__"] != "scrape_series_added" {
			jobs[v.Metric["job"]] = append(jobs[v.Metric["job"]], fmt.Sprintf("%s %v", text, v.Value[1]))
		}
	}
	_, body := s.get("/api/v1/targets?state=active")
	var targets struct {
		Data struct {
			ActiveTargets []struct{ ScrapePool, Health, LastError string }
		}
	}
	noError(t, json.Unmarshal([]byte(body), &targets))
	for _, target := range targets.Data.ActiveTargets {
		jobs[target.ScrapePool] = append(jobs[target.ScrapePool], target.Health+" "+target.LastError)
	}
	result := map[string]string{}
	for job, lines := range jobs {
		slices.Sort(lines)
		result[job] = strings.Join(lines, "\n")
	}
	return result
}

func TestServe_OpenMetricsPagesAreAcceptedAndRefusedAsPrometheusDoes(t *testing.T) {
	cases := openCases(time.Now())
	config := startOpenPages(t, cases)
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = config })
	got := scraped(t, s, cases)
	for _, c := range cases {
		up, n := "1", fmt.Sprint(c.samples)
		if c.samples < 0 {
			up, n = "0", "0"
		}
		s.expectValue(up, `up{job="`+c.name+`"}`)
		if v := s.value(`scrape_samples_scraped{job="` + c.name + `"}`); v != n && up == "1" {
			t.Errorf("%s: %q samples, want %s:\n%s", c.name, v, n, got[c.name])
		}
	}
}

func TestPeerPrometheus_OpenMetricsPagesHaveTheSameSamplesAndErrors(t *testing.T) {
	cases := openCases(time.Now())
	config := startOpenPages(t, cases)
	peer := prometheusOf(t, config, t.TempDir(), "--enable-feature=exemplar-storage")
	ours := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = config })
	got, want := scraped(t, ours, cases), scraped(t, peer, cases)
	for _, c := range cases {
		if got[c.name] != want[c.name] {
			t.Errorf("%s: %q\nferula     %s\nPrometheus %s", c.name, c.page, got[c.name], want[c.name])
		}
		if up := strings.Contains(want[c.name], "up \n"); up != (c.samples >= 0) {
			t.Errorf("%s: the table does not have what Prometheus does: %s", c.name, want[c.name])
		}
	}
	if got, want := ours.value("timestamp(ts)"), peer.value("timestamp(ts)"); got != want || got == "" {
		t.Errorf("the timestamp of the page is %s, at Prometheus %s", got, want)
	}
	for _, request := range []string{"/api/v1/metadata", "/api/v1/query_exemplars?" + url.Values{"query": {`{__name__=~"ex_total|hi_bucket"}`}}.Encode()} {
		if _, a := ours.get(request); a == "" {
			t.Errorf("%s: nothing", request)
		} else if _, b := peer.get(request); withoutUntimed(a) != withoutUntimed(b) {
			t.Errorf("%s\nferula     %s\nPrometheus %s", request, a, b)
		}
	}
}

// withoutUntimed removes the timestamps of exemplars that got the time of their scrape.
func withoutUntimed(body string) string { return untimed.ReplaceAllString(body, "$1") }

var untimed = regexp.MustCompile(`("value":"0.05",)"timestamp":[0-9.]+`)

// ferula's own page in the OpenMetrics format obeys the rules of the format that Prometheus' parser does not check.
func TestServe_OwnMetricsAreStrictOpenMetrics(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.ConfigFile = configFile(t, "cluster: one") })
	s.traced("/api/v1/query?query=1", openTrace)
	page, contentType := s.metricsPage("application/openmetrics-text;version=1.0.0")
	if !strings.HasPrefix(contentType, "application/openmetrics-text") {
		t.Fatalf("Content-Type is %s", contentType)
	}
	samples, faults := openMetricsFaults(string(page))
	for _, fault := range faults {
		t.Error(fault)
	}
	if samples < 500 {
		t.Errorf("only %d samples were checked", samples)
	}
}

// The check finds the faults that it is meant to find.
func TestOpenMetricsFaults_AreFound(t *testing.T) {
	for page, want := range map[string]string{
		"# TYPE a gauge\na 1\n# EOF\n": "", "# TYPE a histogram\na_bucket{le=\"1.0\"} 1\na_bucket{le=\"+Inf\"} 2\na_count 2\na_sum 1\n# EOF\n": "",
		"# TYPE a gauge\na 1\n":                                                        "EOF",
		"# TYPE a counter\na 1\n# EOF\n":                                               "suffix",
		"# TYPE a counter\na_total -1\n# EOF\n":                                        "negative",
		"# TYPE a gauge\na 1\n# TYPE b gauge\nb 1\na{c=\"1\"} 1\n# EOF\n":              "of no family",
		"# TYPE a gauge\na 1\n# TYPE a gauge\n# EOF\n":                                 "twice",
		"# TYPE a gauge\na 1\na 1\n# EOF\n":                                            "twice",
		"# TYPE a gauge\na 1\n# HELP a b\n# EOF\n":                                     "after its samples",
		"# TYPE a gauge\n# UNIT a seconds\na 1\n# EOF\n":                               "unit",
		"# TYPE a gauge\na 1 # {b=\"c\"} 1\n# EOF\n":                                   "exemplar",
		"# TYPE a gauge\n\na 1\n# EOF\n":                                               "line",
		"# TYPE a gauge\na 1 \n# EOF\n":                                                "line",
		"# TYPE a histogram\na_bucket{le=\"1.0\"} 1\n# EOF\n":                          "+Inf",
		"# TYPE a histogram\na_bucket{le=\"+Inf\"} 1\na_count 2\n# EOF\n":              "count",
		"# TYPE a histogram\na_bucket{le=\"2.0\"} 3\na_bucket{le=\"+Inf\"} 2\n# EOF\n": "ascend",
	} {
		_, faults := openMetricsFaults(page)
		if text := strings.Join(faults, "\n"); want == "" && text != "" || !strings.Contains(text, want) {
			t.Errorf("%q: %q, want %q", page, text, want)
		}
	}
}

var (
	openMeta   = regexp.MustCompile(`^# (TYPE|HELP|UNIT) ([a-zA-Z_:][a-zA-Z0-9_:]*) ?(.*)$`)
	openSample = regexp.MustCompile(`^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{((?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\]|\\.)*",?)*)\})? (\S+)( # \{.*\} \S+(?: \S+)?)?$`)
	openLe     = regexp.MustCompile(`,?\ble="([^"]*)",?`)
	// openSuffixes are the suffixes that samples of a type may have.
	openSuffixes = map[string][]string{
		"counter": {"_total", "_created"}, "gauge": {""}, "unknown": {""}, "stateset": {""}, "info": {"_info"},
		"summary": {"", "_count", "_sum", "_created"}, "histogram": {"_bucket", "_count", "_sum", "_created"},
	}
)

// openChecker is the state of openMetricsFaults: the family whose lines are being read, and the earlier families and
// series.
type openChecker struct {
	family, typ   string
	samples       int
	seen, series  map[string]bool
	buckets       map[string][2]float64 // the last bound and count, by name and labels without le
	counts        map[string]float64
	faults        []string
	familySamples int
}

func (c *openChecker) fault(format string, args ...any) {
	if len(c.faults) < 20 {
		c.faults = append(c.faults, fmt.Sprintf(format, args...))
	}
}

// openMetricsFaults returns the number of samples of a page, and its violations of the specification of OpenMetrics
// 1.0.
func openMetricsFaults(page string) (samples int, faults []string) {
	c := &openChecker{seen: map[string]bool{}, series: map[string]bool{}}
	body, ends := strings.CutSuffix(page, "# EOF\n")
	if !ends {
		c.fault("no # EOF at the end")
	}
	for line := range strings.Lines(body) {
		line = strings.TrimSuffix(line, "\n")
		if m := openMeta.FindStringSubmatch(line); m != nil {
			c.meta(m[1], m[2], m[3])
		} else if m := openSample.FindStringSubmatch(line); m != nil {
			c.sample(m[1], m[2], m[3], m[4] != "")
		} else {
			c.fault("line %q", line)
		}
	}
	c.endFamily()
	return c.samples, c.faults
}

func (c *openChecker) meta(kind, name, text string) {
	if name != c.family {
		c.endFamily()
		if c.seen[name] {
			c.fault("family %s occurs twice", name)
		}
		c.family, c.typ, c.familySamples = name, "unknown", 0
		c.seen[name], c.buckets, c.counts = true, map[string][2]float64{}, map[string]float64{}
	}
	if c.seen[kind+" "+name] {
		c.fault("%s of %s occurs twice", kind, name)
	}
	c.seen[kind+" "+name] = true
	if c.familySamples > 0 {
		c.fault("%s of %s is after its samples", kind, name)
	}
	switch kind {
	case "TYPE":
		c.typ = text
		if openSuffixes[text] == nil {
			c.fault("type %q of %s", text, name)
		}
	case "UNIT":
		if text != "" && !strings.HasSuffix(name, "_"+text) {
			c.fault("%s does not end with its unit %s", name, text)
		}
	}
}

func (c *openChecker) sample(name, labels, text string, exemplar bool) {
	c.samples, c.familySamples = c.samples+1, c.familySamples+1
	suffix, ok := strings.CutPrefix(name, c.family)
	if !ok || c.family == "" {
		c.fault("%s is of no family, or its family is interrupted", name)
		return
	}
	if !slices.Contains(openSuffixes[c.typ], suffix) {
		c.fault("%s: suffix %q of a %s", name, suffix, c.typ)
	}
	if key := name + "{" + labels; c.series[key] {
		c.fault("%s} occurs twice", key)
	} else {
		c.series[key] = true
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		c.fault("%s: %v", name, err)
	}
	if exemplar && suffix != "_total" && suffix != "_bucket" {
		c.fault("%s has an exemplar", name)
	}
	if slices.Contains([]string{"_total", "_bucket", "_count"}, suffix) && (v < 0 || math.IsNaN(v)) {
		c.fault("%s is negative or NaN: %s", name, text)
	}
	switch {
	case c.typ == "histogram" && suffix == "_bucket":
		le := openLe.FindStringSubmatch(labels)
		if le == nil {
			c.fault("%s{%s} has no le", name, labels)
			return
		}
		bound, err := strconv.ParseFloat(le[1], 64)
		key := strings.Trim(openLe.ReplaceAllString(labels, ","), ",")
		if last, ok := c.buckets[key]; err != nil || ok && (bound <= last[0] || v < last[1]) {
			c.fault("%s{%s}: bounds or counts do not ascend", name, labels)
		}
		c.buckets[key] = [2]float64{bound, v}
	case c.typ == "histogram" && suffix == "_count":
		c.counts[labels] = v
	}
}

func (c *openChecker) endFamily() {
	for key, last := range c.buckets {
		if !math.IsInf(last[0], 1) {
			c.fault("%s{%s} has no bucket +Inf", c.family, key)
		}
		if n, ok := c.counts[key]; ok && n != last[1] {
			c.fault("%s{%s}: the count is %g, the last bucket %g", c.family, key, n, last[1])
		}
	}
	c.buckets = nil
}
