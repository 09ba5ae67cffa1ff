package compare_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ferula-io/ferula/internal/compare"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("go.opencensus.io/stats/view.(*worker).start"),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// end is the time of all queries that have none.
var end = time.Unix(1_700_000_000, 0)

// stub is a server with a response for each query.
type stub struct {
	*httptest.Server
	mu       sync.Mutex
	status   int
	bodies   map[string]string // by query, or by path
	asked    []url.Values      // of queries
	lookups  []string          // path and parameters of other requests
	metrics  string
	onSecond func(*http.Request) // called by the second query
}

func serve(t *testing.T, bodies map[string]string) *stub {
	s := &stub{bodies: bodies, status: 200, metrics: "prometheus_build_info{branch=\"x\",version=\"3.15.0\"} 1\n"}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

// ServeHTTP implements http.Handler.
func (s *stub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = r.ParseForm()
	if r.URL.Path == "/metrics" {
		fmt.Fprint(w, s.metrics)
		return
	}
	key, known := r.URL.Path, false
	if r.Method == http.MethodPost {
		s.asked = append(s.asked, r.Form)
		if len(s.asked) == 2 && s.onSecond != nil {
			s.onSecond(r)
		}
		key = r.Form.Get("query")
	} else {
		s.lookups = append(s.lookups, r.URL.Path+" "+r.Form.Get("match[]")+r.Form.Get("query"))
		if q := r.Form.Get("query"); q != "" {
			key = q
		}
	}
	body, known := s.bodies[key]
	if !known {
		body = vector()
	}
	if strings.Contains(body, `"status":"error"`) {
		w.WriteHeader(cmp.Or(s.status, 422))
	}
	fmt.Fprint(w, body)
}

func success(kind, result string) string {
	return `{"status":"success","data":{"resultType":"` + kind + `","result":` + result + `}}`
}

func vector(samples ...string) string { return success("vector", "["+strings.Join(samples, ",")+"]") }

func vectorSample(name, v string) string {
	return `{"metric":{"__name__":"` + name + `"},"value":[1700000000,"` + v + `"]}`
}

func side(t *testing.T, s *stub) compare.Side {
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return compare.Side{URL: u, HTTP: s.Client(), Name: s.URL}
}

// load writes a file and loads it.
func load(t *testing.T, text string) ([]compare.Query, []compare.Skipped) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	queries, skipped, err := compare.Load([]string{path})
	if err != nil {
		t.Fatal(err)
	}
	return queries, skipped
}

func runBoth(t *testing.T, left, right *stub, text string, change func(*compare.Options)) *compare.Report {
	t.Helper()
	queries, skipped := load(t, text)
	o := compare.Options{Left: side(t, left), Right: side(t, right), Queries: queries, Skipped: skipped, Mode: compare.Auto,
		End: end, Range: time.Hour, Step: 30 * time.Second, BytesMax: 1 << 20, QueriesMax: 1000, Now: time.Now}
	if change != nil {
		change(&o)
	}
	report, err := compare.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func TestCompare_EveryKindOfDifferenceIsNamed(t *testing.T) {
	const failed = `{"status":"error","errorType":"execution","error":"too many samples"}`
	histogram := func(count string) string {
		return success("matrix", `[{"metric":{"a":"b"},"histograms":[[1,{"count":"`+count+`","sum":"5","buckets":[[0,"1","2","3"]]}]]}]`)
	}
	matrix := func(list ...string) string { return success("matrix", "["+strings.Join(list, ",")+"]") }
	a, b := `{"metric":{"s":"a"},"values":[[1,"1"],[2,"2"]]}`, `{"metric":{"s":"b"},"values":[[1,"1"]]}`
	for name, c := range map[string]struct {
		query, left, right string
		want               []compare.Difference
		same               string // bytes or values
	}{
		"the same bytes":   {"up", vector(vectorSample("up", "1")), vector(vectorSample("up", "1")), nil, "bytes"},
		"another number":   {"up", vector(vectorSample("up", "1e3")), vector(vectorSample("up", "1000")), nil, "values"},
		"order of a range": {"up", matrix(a, b), matrix(b, a), nil, "values"},
		"order of a vector": {"up", vector(vectorSample("x", "1"), vectorSample("y", "1")),
			vector(vectorSample("y", "1"), vectorSample("x", "1")), nil, "values"},
		"order of sort": {"(sort(up))", vector(vectorSample("x", "1"), vectorSample("y", "1")),
			vector(vectorSample("y", "1"), vectorSample("x", "1")), []compare.Difference{{Kind: compare.KindOrder,
				Left: `{__name__="x"} {__name__="y"}`, Right: `{__name__="y"} {__name__="x"}`}}, ""},
		"a value": {"up", vector(vectorSample("up", "0.30000000000000004")), vector(vectorSample("up", "0.3")),
			[]compare.Difference{{Kind: compare.KindValue, Series: `{__name__="up"}`, TimeMS: 1_700_000_000_000,
				Left: "0.30000000000000004", Right: "0.3", ULP: 1}}, ""},
		"minus zero": {"up", vector(vectorSample("up", "0")), vector(vectorSample("up", "-0")),
			[]compare.Difference{{Kind: compare.KindValue, Series: `{__name__="up"}`, TimeMS: 1_700_000_000_000,
				Left: "0", Right: "-0"}}, ""},
		"NaN": {"up", vector(vectorSample("up", "NaN")), vector(vectorSample("up", "1")),
			[]compare.Difference{{Kind: compare.KindValue, Series: `{__name__="up"}`, TimeMS: 1_700_000_000_000,
				Left: "NaN", Right: "1"}}, ""},
		"a series": {"up", matrix(a), matrix(a, b),
			[]compare.Difference{{Kind: compare.KindSeries, Series: `{s="b"}`, Right: "1"}}, ""},
		"a sample": {"up", matrix(a), matrix(`{"metric":{"s":"a"},"values":[[2,"2"]]}`),
			[]compare.Difference{{Kind: compare.KindSample, Series: `{s="a"}`, TimeMS: 1000, Left: "1"}}, ""},
		"a histogram": {"up", histogram("3"), histogram("4"), []compare.Difference{{Kind: compare.KindHistogram,
			Series: `{a="b"}`, TimeMS: 1000, Left: "{count:3, sum:5, (1,2]:3}", Right: "{count:4, sum:5, (1,2]:3}"}}, ""},
		"a scalar": {"1", success("scalar", `[1,"1"]`), success("scalar", `[1,"2"]`),
			[]compare.Difference{{Kind: compare.KindValue, TimeMS: 1000, Left: "1", Right: "2", ULP: 1 << 52}}, ""},
		"a string": {"'x'", success("string", `[1,"x"]`), success("string", `[1,"y"]`),
			[]compare.Difference{{Kind: compare.KindText, Left: "x", Right: "y"}}, ""},
		"a result type": {"up", matrix(), vector(), []compare.Difference{{Kind: compare.KindType, Left: "matrix",
			Right: "vector"}}, ""},
		"a warning": {"up", vector(), strings.Replace(vector(), `{`, `{"warnings":["w"],"infos":["i"],`, 1),
			[]compare.Difference{{Kind: compare.KindWarning, Right: "w"}, {Kind: compare.KindInfo, Right: "i"}}, ""},
		"an error": {"up", failed, vector(), []compare.Difference{{Kind: compare.KindStatus, Left: "422", Right: "200"},
			{Kind: compare.KindErrorType, Left: "execution"}, {Kind: compare.KindError, Left: "too many samples"}}, ""},
		"a function that is not known": {"nofunction(x)", failed, failed, nil, "bytes"},
		"another error": {"up", failed, strings.Replace(failed, "many", "few", 1), []compare.Difference{
			{Kind: compare.KindError, Left: "too many samples", Right: "too few samples"}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			left, right := serve(t, map[string]string{c.query: c.left}), serve(t, map[string]string{c.query: c.right})
			left.status, right.status = 422, 422
			report := runBoth(t, left, right, c.query, nil)
			got := report.Results[0]
			if !slices.Equal(got.Differences, c.want) || got.NotCompared != "" {
				t.Errorf("differences %+v, not compared %q", got.Differences, got.NotCompared)
			}
			same := map[bool]string{report.SameBytes == 1: "bytes", report.SameValues == 1: "values"}[true]
			if same != c.same || report.Compared != 1 || (report.Different == 1) != (c.same == "") {
				t.Errorf("same %q, compared %d", same, report.Compared)
			}
			for _, format := range []string{"text", "json", "html"} {
				var out bytes.Buffer
				if err := report.Write(&out, format); err != nil {
					t.Fatal(err)
				}
				for _, d := range got.Differences {
					if !strings.Contains(out.String(), string(d.Kind)) {
						t.Errorf("the report as %s lacks %q:\n%s", format, d.Kind, &out)
					}
				}
				if format == "json" && !json.Valid(out.Bytes()) {
					t.Errorf("invalid JSON: %s", &out)
				}
			}
		})
	}
}

func TestCompare_WhatIsNotAResponseIsNotCompared(t *testing.T) {
	long := vector(vectorSample(strings.Repeat("x", 2000), "1"))
	left := serve(t, map[string]string{"up": "<html>", "long": long})
	right := serve(t, map[string]string{"up": vector(), "long": long})
	report := runBoth(t, left, right, "up\n# a comment\n\nlong\ngood\n", func(o *compare.Options) { o.BytesMax = 1000 })
	if report.NotCompared != 2 || report.Compared != 1 {
		t.Errorf("%d not compared, %d compared", report.NotCompared, report.Compared)
	}
	for i, want := range []string{"is not a response of the query API", "longer than the limit of 1000 bytes: --max-response-bytes", ""} {
		if got := report.Results[i].NotCompared; !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("query %d: %q, want %q", i, got, want)
		}
	}
}

func TestCompare_ServersAreAskedInTurnWithinLimits(t *testing.T) {
	left, right := serve(t, nil), serve(t, nil)
	for _, s := range []*stub{left, right} {
		s.metrics += "process_cpu_seconds_total 5\n"
	}
	report := runBoth(t, left, right, "a\nb\nc\n", func(o *compare.Options) { o.Repeat, o.QueriesMax = 3, 2 })
	if report.Left.Requests != 6 || report.Right.Requests != 6 || report.Results[0].Left.Requests != 3 {
		t.Errorf("requests %+v", report.Left)
	}
	if len(report.Skipped) != 1 || report.Skipped[0].Why != "1 queries were left out" {
		t.Errorf("skipped %+v", report.Skipped)
	}
	if report.Left.CPUSeconds == nil || *report.Left.CPUSeconds != 0 || report.Left.Program != "Prometheus 3.15.0" {
		t.Errorf("%+v", report.Left)
	}
	if report = runBoth(t, left, right, "a", func(o *compare.Options) { o.Idle = true }); report.Right.IdleCPUSeconds == nil || report.Right.IdleCPUSeconds == report.Right.CPUSeconds {
		t.Errorf("%+v", report.Right)
	}
	right.metrics = ""
	if report = runBoth(t, left, right, "a", nil); report.Left.CPUSeconds != nil {
		t.Error("CPU of one server only")
	}
}

func TestCompare_AnInterruptedRunReportsWhatWasDone(t *testing.T) {
	left, right := serve(t, nil), serve(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	left.onSecond = func(r *http.Request) {
		cancel()
		<-r.Context().Done() // the client has gone
	}
	queries, _ := load(t, "a\nb\nc\nd\n")
	report, err := compare.Run(ctx, compare.Options{Left: side(t, left), Right: side(t, right), Queries: queries, End: end,
		BytesMax: 1 << 20, QueriesMax: 1000, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if !report.Interrupted || report.Compared != 1 || report.NotCompared != 3 {
		t.Errorf("interrupted %t, %d compared, %d not", report.Interrupted, report.Compared, report.NotCompared)
	}
}

func TestCompare_KnownDifferencesHaveTheirReason(t *testing.T) {
	value := func(v string) map[string]string {
		return map[string]string{"sum(rate(x[5m]))": vector(vectorSample("x", v))}
	}
	for name, c := range map[string]struct{ metrics, right, want string }{
		"digits":          {"prometheus_build_info{} 1\n", "0.30000000000000004", "order of its series"},
		"far":             {"prometheus_build_info{} 1\n", "0.4", ""},
		"VictoriaMetrics": {"vm_app_version{version=\"x\", short_version=\"v1.151.0\"} 1\n", "0.4", "does not extrapolate"},
		"Thanos":          {"thanos_build_info{version=\"0.42.4\"} 1\n", "0.4", "resets"},
	} {
		t.Run(name, func(t *testing.T) {
			left, right := serve(t, value("0.3")), serve(t, value(c.right))
			right.metrics = c.metrics
			report := runBoth(t, left, right, "sum(rate(x[5m]))", nil)
			got := report.Results[0].Differences[0].Reason
			if !strings.Contains(got, c.want) || (c.want == "") != (got == "") || report.Different != 1 ||
				(report.Explained == 1) != (c.want != "") {
				t.Errorf("reason %q of %+v", got, report.Results[0])
			}
		})
	}
	left, right := serve(t, map[string]string{"up": vector(vectorSample("up", "0.3")), "scrape_duration_seconds": vector(vectorSample("", "10"))}),
		serve(t, map[string]string{"up": vector(vectorSample("up", "0.4")), "scrape_duration_seconds": vector(vectorSample("", "11"))})
	report := runBoth(t, left, right, "up", nil)
	if !report.OwnScrapes || !strings.Contains(report.Results[0].Differences[0].Reason, "scrapes for itself") {
		t.Errorf("%+v", report)
	}
}

// Whatever a server sends is an answer that differs, or an error.
func TestCompare_ServersMaySendAnything(t *testing.T) {
	odd := map[string]string{
		"scrape_duration_seconds": success("vector", `[{"metric":{},"value":[[1],{"a":[]}]}]`),
		"/api/v1/labels":          `{"status":"success","data":{}}`, "up": success("matrix", `[{"metric":{},"values":[[1,"x"]]}]`),
		"x": success("vector", `[{"metric":{"a":"b"},"value":[1,"1"]},{"metric":{"a":"b"},"value":[1,"2"]}]`),
	}
	left, right := serve(t, odd), serve(t, odd)
	left.metrics, right.metrics = "ferula_build_info", "process_cpu_seconds_total"
	odd = map[string]string{"scrape_duration_seconds": odd["scrape_duration_seconds"], "up": vector(), "x": vector()}
	right.bodies = odd
	report := runBoth(t, left, right, "up\nx\n", nil)
	if r := report.Results[0]; !strings.Contains(r.NotCompared, "malformed response") {
		t.Errorf("%+v", r)
	}
	if r := report.Results[1]; len(r.Differences) != 2 {
		t.Errorf("the same labels twice: %+v", r)
	}
}

func TestRun_ASeriesThatARightSideSendsTwiceIsADifference(t *testing.T) {
	left := serve(t, map[string]string{"q": vector(vectorSample("a", "1"))})
	right := serve(t, map[string]string{"q": vector(vectorSample("a", "2"), vectorSample("a", "1"))})
	queries, _ := load(t, "q\n")
	report, err := compare.Run(t.Context(), compare.Options{Left: side(t, left), Right: side(t, right), Queries: queries,
		Mode: compare.Auto, End: end, Range: time.Hour, Step: 30 * time.Second, BytesMax: 1 << 20, QueriesMax: 100, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(report.Results[0].Differences, func(d compare.Difference) bool { return d.Kind == compare.KindSeries }) {
		t.Errorf("%+v", report.Results)
	}
}

func TestRun_AnErrorDoesNotHideAnEarlierDifference(t *testing.T) {
	left := serve(t, map[string]string{"q": vector(vectorSample("a", "1"))})
	right := serve(t, map[string]string{"q": vector(vectorSample("a", "2"))})
	left.onSecond = func(*http.Request) { left.bodies["q"] = "no JSON" }
	queries, _ := load(t, "q\n")
	report, err := compare.Run(t.Context(), compare.Options{Left: side(t, left), Right: side(t, right), Queries: queries, Repeat: 2,
		Mode: compare.Auto, End: end, Range: time.Hour, Step: 30 * time.Second, BytesMax: 1 << 20, QueriesMax: 100, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if report.Different != 1 || report.NotCompared != 0 {
		t.Errorf("%+v", report.Results)
	}
}

func TestRun_QueriesLeftOutAreNotCompared(t *testing.T) {
	s := serve(t, nil)
	queries, _ := load(t, `{"panels":[{"targets":[{"expr":"a"},{"expr":"b"},{"expr":"c{d=\"$unknown\"}"}]}]}`)
	report, err := compare.Run(t.Context(), compare.Options{Left: side(t, s), Right: side(t, s), Queries: queries,
		Mode: compare.Auto, End: end, Range: time.Hour, Step: 30 * time.Second, BytesMax: 1 << 20, QueriesMax: 1, Now: time.Now})
	if err != nil {
		t.Fatal(err)
	}
	if report.Compared != 1 || report.NotCompared != 2 {
		t.Errorf("%d compared, %d not compared, skipped %+v", report.Compared, report.NotCompared, report.Skipped)
	}
}
