package promapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// responses of Prometheus 3.15, by path; any other path is 404.
var responses = map[string]string{
	"/p/api/v1/status/config":             `{"status":"success","data":{"yaml":"global:\n  scrape_interval: 15s\n  external_labels:\n    replica: r1\n    cluster: \"e\\u00fc\"\nscrape_configs: []\nsome_newer_section: {a: b}\n"}}`,
	"/p/api/v1/status/flags":              `{"status":"success","data":{"storage.tsdb.min-block-duration":"2h","web.enable-lifecycle":"true"}}`,
	"/p/metrics":                          "# TYPE prometheus_tsdb_lowest_timestamp_seconds gauge\nprometheus_tsdb_lowest_timestamp 1\nprometheus_tsdb_lowest_timestamp_seconds 1.7e+09\nx 2\n",
	"/p/api/v1/labels":                    `{"status":"success","data":["__name__","a"],"warnings":["cut short"]}`,
	"/p/api/v1/label/a/values":            `{"status":"success","data":["1","\u00fc"]}`,
	"/p/api/v1/label/U__a_2e_b__c/values": `{"status":"success","data":["dotted"]}`,
	"/p/api/v1/query_exemplars":           `{"status":"success","data":[{"seriesLabels":{"__name__":"x","job":"a"},"exemplars":[{"labels":{"trace_id":"7"},"value":"0.5","timestamp":1700000000.123}]}]}`,
	"/p/api/v1/rules": `{"status":"success","data":{"groups":[{"name":"g","file":"f.yml","interval":15,"limit":3,"evaluationTime":0.5,"lastEvaluation":"2026-01-02T03:04:05.6Z","rules":[
		{"type":"recording","name":"r","query":"q","labels":{"a":"1","cluster":"own"},"health":"ok","evaluationTime":0.1,"lastEvaluation":"2026-01-02T03:04:05Z"},
		{"type":"alerting","state":"firing","name":"A","query":"up == 0","duration":60,"keepFiringFor":30,"labels":{"s":"c"},"annotations":{"t":"x"},"alerts":[{"labels":{"alertname":"A"},"annotations":{},"state":"firing","activeAt":"2026-01-02T03:04:05Z","value":"0e+00"}],"health":"err","lastError":"e"}]}]}}`,
	"/p/api/v1/targets":     `{"status":"success","data":{"activeTargets":[{"discoveredLabels":{"__address__":"x:1"},"labels":{"job":"j"},"scrapePool":"p","scrapeUrl":"http://x:1/metrics","globalUrl":"http://y:1/metrics","lastError":"","lastScrape":"2026-01-02T03:04:05.6Z","lastScrapeDuration":0.25,"health":"up"}],"droppedTargets":[{"discoveredLabels":{"__address__":"z:1"}}],"droppedTargetCounts":{"p":1}}}`,
	"/p/api/v1/status/tsdb": `{"status":"success","data":{"headStats":{"numSeries":5,"numLabelPairs":6,"chunkCount":7,"minTime":-8,"maxTime":9},"seriesCountByMetricName":[{"name":"up","value":1}],"labelValueCountByLabelName":[{"name":"job","value":2}],"memoryInBytesByLabelName":[{"name":"job","value":3}],"seriesCountByLabelValuePair":[{"name":"job=a","value":4}]}}`,
	"/p/api/v1/metadata":    `{"status":"success","data":{"up":[{"type":"gauge","help":"h","unit":""}]}}`,
}

var external = labels.FromStrings("cluster", "eu")

// fake is a Prometheus that records the query parameters.
type fake struct {
	*httptest.Server
	query  url.Values
	status int
	text   string // "": responses
}

func newFake(t *testing.T) (*fake, *Client) {
	t.Helper()
	f := &fake{}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.query = r.URL.Query()
		text, ok := responses[r.URL.Path]
		switch {
		case f.status != 0:
			w.WriteHeader(f.status)
			fmt.Fprint(w, f.text)
		case f.text != "":
			fmt.Fprint(w, f.text)
		case !ok:
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, text)
		}
	}))
	t.Cleanup(f.Close)
	u, err := url.Parse(f.URL + "/p/")
	if err != nil {
		t.Fatal(err)
	}
	return f, New(Options{URL: u, HTTP: f.Client(), ResponseBytesMax: 1 << 16})
}

func TestClient_ReadsResponsesOfPrometheus(t *testing.T) {
	f, c := newFake(t)
	ctx := context.Background()
	if got, err := c.ExternalLabels(ctx); err != nil || got.String() != `{cluster="eü", replica="r1"}` {
		t.Errorf("external labels %s, %v", got, err)
	}
	if got, err := c.Flags(ctx); err != nil || got["storage.tsdb.min-block-duration"] != "2h" {
		t.Errorf("flags %v, %v", got, err)
	}
	if got, err := c.LowestTimestampMS(ctx); err != nil || got != 1_700_000_000_000 {
		t.Errorf("lowest time %d, %v", got, err)
	}
	matchers := []*labels.Matcher{labels.MustNewMatcher(labels.MatchRegexp, "a.b", `x"|`)}
	names, warnings, err := c.LabelNames(ctx, matchers, math.MinInt64, math.MaxInt64, 3)
	if err != nil || strings.Join(names, " ") != "__name__ a" || len(warnings) != 1 || f.query.Get("limit") != "3" || f.query.Get("match[]") != `{"a.b"=~"x\"|",__name__!=""}` || f.query.Get("end") != "9000000000000.000" {
		t.Errorf("%q, %q, %v; query %v", names, warnings, err, f.query)
	}
	values, _, err := c.LabelValues(ctx, "a", nil, 1500, 2500, 0)
	if err != nil || strings.Join(values, " ") != "1 ü" || f.query.Get("start") != "1.500" || f.query.Has("match[]") || f.query.Has("limit") {
		t.Errorf("%q, %v; query %v", values, err, f.query)
	}
	if values, _, err = c.LabelValues(ctx, "a.b_c", nil, 0, 1, 0); err != nil || len(values) != 1 {
		t.Errorf("%q, %v", values, err)
	}
	results, _, err := c.Exemplars(ctx, "x", 0, 1)
	if err != nil || len(results) != 1 || results[0].Exemplars[0].Ts != 1700000000123 || results[0].Exemplars[0].Value != 0.5 || results[0].SeriesLabels.Get("job") != "a" {
		t.Errorf("%+v, %v", results, err)
	}
}

func TestClient_InvalidResponsesAreErrors(t *testing.T) {
	f, c := newFake(t)
	ctx := context.Background()
	for _, wrong := range []struct {
		status int
		text   string
		want   error
	}{
		{400, `{"status":"error","error":"bad matcher"}`, ErrRefused}, {422, "no", ErrRefused}, {503, "starting", ErrUnavailable}, {429, "", ErrUnavailable}, {500, "{", ErrUnavailable},
		{0, `{"status":"success","data":`, ErrBadResponse}, {0, "<html>", ErrBadResponse}, {0, `{"status":"error"}`, ErrBadResponse}, {0, `"` + strings.Repeat("x", 1<<17) + `"`, ErrBadResponse},
	} {
		f.status, f.text = wrong.status, wrong.text
		if _, _, err := c.LabelNames(ctx, nil, 0, 1, 0); !errors.Is(err, wrong.want) {
			t.Errorf("%d %.40s: %v, want %v", wrong.status, wrong.text, err, wrong.want)
		}
	}
	for text, want := range map[string]error{"x 1\n": ErrBadResponse, "prometheus_tsdb_lowest_timestamp_seconds soon\n": ErrBadResponse} {
		f.status, f.text = 0, text
		if _, err := c.LowestTimestampMS(ctx); !errors.Is(err, want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	f.text = "prometheus_tsdb_lowest_timestamp_seconds 9.223372036854776e+15\n"
	if got, err := c.LowestTimestampMS(ctx); err != nil || got != math.MinInt64 {
		t.Errorf("an empty head: %d, %v", got, err)
	}
	f.text = `{"status":"success","data":{"yaml":"global: [\n"}}`
	if _, err := c.ExternalLabels(ctx); !errors.Is(err, ErrBadResponse) {
		t.Error(err)
	}
	f.Close()
	if _, err := c.Flags(ctx); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// call sends a request to a service and receives the first message.
func call(t *testing.T, conn *grpc.ClientConn, method string, in, out any) error {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(stream.SendMsg(in), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	return stream.RecvMsg(out)
}

func TestServices_AddExternalLabels(t *testing.T) {
	f, c := newFake(t)
	server := grpc.NewServer()
	NewServices(c, func() labels.Labels { return external }).Register(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	defer func() { server.Stop(); <-done }()
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var rules pb.RulesResponse
	if err := call(t, conn, "/thanos.Rules/Rules", &pb.RulesRequest{Type: pb.RulesRequest_ALERT, RuleName: []string{"A"}}, &rules); err != nil {
		t.Fatal(err)
	}
	g := rules.GetGroup()
	if f.query.Get("type") != "alert" || f.query.Get("rule_name[]") != "A" || g.GetName() != "g" || g.GetLimit() != 3 || g.GetLastEvaluation().GetNanos() != 600_000_000 || g.GetPartialResponseStrategy() != abort || len(g.GetRules()) != 2 {
		t.Fatalf("query %v: %v", f.query, g)
	}
	recording, alert := g.Rules[0].GetRecording(), g.Rules[1].GetAlert()
	if fmt.Sprint(recording.GetLabels().GetLabels()) == "" || recording.Labels.Labels[1].Value != "eu" || recording.Labels.Labels[0].Name != "a" {
		t.Errorf("%v", recording)
	}
	if alert.GetState() != pb.AlertState_FIRING || alert.DurationSeconds != 60 || alert.KeepFiringForSeconds != 30 || alert.LastError != "e" || len(alert.Alerts) != 1 || alert.Alerts[0].ActiveAt.GetSeconds() == 0 || len(alert.Alerts[0].Labels.Labels) != 1 {
		t.Errorf("%v", alert)
	}
	var targets pb.TargetsResponse
	if err := call(t, conn, "/thanos.Targets/Targets", &pb.TargetsRequest{State: pb.TargetsRequest_ACTIVE}, &targets); err != nil {
		t.Fatal(err)
	}
	found := targets.GetTargets()
	if f.query.Get("state") != "active" || len(found.GetActiveTargets()) != 1 || found.ActiveTargets[0].Health != pb.TargetHealth_UP || len(found.ActiveTargets[0].Labels.Labels) != 2 || len(found.DroppedTargets) != 1 || found.ActiveTargets[0].LastScrapeDuration != 0.25 {
		t.Errorf("query %v: %v", f.query, found)
	}
	var metadata pb.MetricMetadataResponse
	if err := call(t, conn, "/thanos.Metadata/MetricMetadata", &pb.MetricMetadataRequest{Metric: "up", Limit: -1}, &metadata); err != nil {
		t.Fatal(err)
	}
	if f.query.Get("metric") != "up" || f.query.Has("limit") || metadata.GetMetadata().GetMetadata()["up"].GetMetas()[0].Help != "h" {
		t.Errorf("query %v: %v", f.query, &metadata)
	}
	matching := []*pb.LabelMatcher{{Name: "cluster", Value: "eu"}, {Type: 3, Name: "cluster", Value: "u."}}
	var statistics pb.TSDBStatisticsResponse
	if err := call(t, conn, "/thanos.Status/TSDBStatistics", &pb.TSDBStatisticsRequest{Limit: 3, Matchers: matching}, &statistics); err != nil {
		t.Fatal(err)
	}
	of := statistics.GetStatistics().GetStatistics()[""]
	if h := of.GetHeadStatistics(); f.query.Get("limit") != "3" || fmt.Sprint(h.GetNumSeries(), h.GetNumLabelPairs(), h.GetChunkCount(), h.GetMinTime(), h.GetMaxTime()) != "5 6 7 -8 9" {
		t.Errorf("query %v: %v", f.query, &statistics)
	}
	if err := call(t, conn, "/thanos.Status/TSDBStatistics", &pb.TSDBStatisticsRequest{Limit: 20_000}, &statistics); err != nil || f.query.Get("limit") != "10000" {
		t.Errorf("more than a Prometheus accepts: query %v, %v", f.query, err)
	}
	if fmt.Sprintf("%d %d %d %s", of.GetSeriesCountByMetricName()[0].GetValue(), of.GetLabelValueCountByLabelName()[0].GetValue(), of.GetMemoryInBytesByLabelName()[0].GetValue(), of.GetSeriesCountByLabelValuePair()[0].GetName()) != "1 2 3 job=a" {
		t.Errorf("%v", of)
	}
	for _, in := range []*pb.TSDBStatisticsRequest{{Matchers: []*pb.LabelMatcher{{Type: 1, Name: "cluster", Value: "eu"}}}, {Tenant: "a"}} {
		if err := call(t, conn, "/thanos.Status/TSDBStatistics", in, &statistics); !errors.Is(err, io.EOF) {
			t.Errorf("%v: %v", in, err)
		}
	}
	for _, m := range []*pb.LabelMatcher{{Type: 4}, {Type: -1}, {Type: 2, Name: "a", Value: "("}} {
		if err := call(t, conn, "/thanos.Status/TSDBStatistics", &pb.TSDBStatisticsRequest{Matchers: []*pb.LabelMatcher{m}}, &statistics); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%v: %v", m, err)
		}
	}
	f.status = 503
	if err := call(t, conn, "/thanos.Rules/Rules", &pb.RulesRequest{}, &rules); status.Code(err) != codes.Unavailable {
		t.Error(err)
	}
	f.status, f.text = 0, `{"status":"success","data":{"groups":[{"rules":[{"type":"new"}]}]}}`
	if err := call(t, conn, "/thanos.Rules/Rules", &pb.RulesRequest{}, &rules); status.Code(err) != codes.Internal {
		t.Error(err)
	}
}

func TestNew_WithoutAnHTTPClient(t *testing.T) {
	f, _ := newFake(t)
	u, err := url.Parse(f.URL + "/p/")
	if err != nil {
		t.Fatal(err)
	}
	defer http.DefaultClient.CloseIdleConnections()
	if got, err := New(Options{URL: u}).ExternalLabels(context.Background()); err != nil || got.Len() != 2 {
		t.Error(got, err)
	}
}
