package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/profilepb/googlev1"
)

const cpuType = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// postJSON posts JSON to a method of the profile API. A response of status 200 is
// decoded into response, if it is not nil.
func (s *server) postJSON(method string, request map[string]any, response any) (int, string) {
	s.t.Helper()
	status, text := s.post("/"+method, "application/json", string(try(json.Marshal(request)).must(s.t)))
	if status == http.StatusOK && response != nil {
		decode(s.t, text, response)
	}
	return status, text
}

// lastHour sets start and end of a request to the last hour and the next minute.
func lastHour(fields map[string]any) map[string]any {
	fields["start"] = fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli())
	fields["end"] = fmt.Sprint(time.Now().Add(time.Minute).UnixMilli())
	return fields
}

type seriesResponse struct {
	Series []struct {
		Labels []struct{ Name, Value string }
		Points []struct {
			Value     float64
			Timestamp string
			Exemplars []struct {
				ProfileID string `json:"profileId"`
				Value     string
				Labels    []struct{ Name, Value string }
			}
		}
	}
}

type flameResponse struct {
	Flamegraph struct {
		Names  []string
		Levels []struct{ Values []string }
		Total  string
	}
}

// flame returns the flame graph of a profile type and a label selector; ids limit it to
// these profiles.
func (s *server) flame(profileType, selector string, ids ...string) flameResponse {
	s.t.Helper()
	var f flameResponse
	request := lastHour(map[string]any{"profileTypeID": profileType, "labelSelector": selector})
	if len(ids) > 0 {
		request["profileIdSelector"] = ids
	}
	if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", request, &f); status != http.StatusOK {
		s.t.Fatalf("%s%s: %d %s", profileType, selector, status, text)
	}
	return f
}

func (f flameResponse) has(function string) bool {
	for _, name := range f.Flamegraph.Names {
		if strings.Contains(name, function) {
			return true
		}
	}
	return false
}

func profiling(every time.Duration) func(*app.ServeOptions) {
	return func(o *app.ServeOptions) { o.Profiles.Self, o.Profiles.Every = true, every }
}

func TestProfiles_SelfProfilesAreSelectedByExemplar(t *testing.T) {
	s := startServe(t, profiling(time.Second))
	var found seriesResponse
	eventually(t, 60*time.Second, "points of own CPU with exemplars", func() bool {
		s.get("/api/v1/query?query=count({__name__!=''})")
		found = seriesResponse{}
		status, text := s.postJSON("querier.v1.QuerierService/SelectSeries", lastHour(map[string]any{
			"profileTypeID": cpuType, "labelSelector": `{service_name="ferula"}`, "groupBy": []string{"service_name"}, "step": 15, "exemplarType": "EXEMPLAR_TYPE_INDIVIDUAL",
		}), &found)
		if status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
		return len(found.Series) == 1 && len(found.Series[0].Points[0].Exemplars) == 1 && found.Series[0].Points[0].Exemplars[0].Value != ""
	})
	if l := found.Series[0].Labels; len(l) != 1 || l[0].Value != "ferula" {
		t.Errorf("labels %v", l)
	}
	exemplar := found.Series[0].Points[0].Exemplars[0]
	if f := s.flame(cpuType, "", exemplar.ProfileID); f.Flamegraph.Total != exemplar.Value || len(f.Flamegraph.Levels) < 2 {
		t.Errorf("the exemplar's value is %s, the total of its flame graph %s", exemplar.Value, f.Flamegraph.Total)
	}
	eventually(t, 60*time.Second, "the other profiles", func() bool {
		var types struct{ ProfileTypes []struct{ ID string } }
		s.postJSON("querier.v1.QuerierService/ProfileTypes", map[string]any{}, &types)
		all := fmt.Sprint(types)
		for _, id := range []string{"memory:alloc_space:bytes:space:bytes", "memory:inuse_space:bytes:space:bytes", "goroutines:goroutine:count:goroutine:count"} { // a server at rest may have no contention, and profiles without samples are not stored
			if !strings.Contains(all, id) {
				return false
			}
		}
		return true
	})
	if f := s.flame("goroutines:goroutine:count:goroutine:count", ""); !f.has("app.(*Serve).Run") {
		t.Errorf("no goroutine of the server among %.300s", fmt.Sprint(f.Flamegraph.Names))
	}
	// Self-profiling must release the CPU profiler to /debug/pprof.
	status, text := s.get("/debug/pprof/profile?seconds=1")
	if p, err := profile.ParseData([]byte(text)); status != http.StatusOK || err != nil || len(p.SampleType) != 2 {
		t.Errorf("/debug/pprof/profile: %d %v", status, err)
	}
}

// folded uploads folded stacks to /ingest, as older SDKs do.
func (s *server) folded(query, stacks string) (int, string) {
	s.t.Helper()
	return s.post("/ingest?"+query, "text/plain", stacks)
}

func TestProfiles_PushedProfilesAreQueriedByEveryProtocolAndSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	inDir := func(o *app.ServeOptions) { o.Store.Dir = dir }
	s := startServe(t, inDir)
	from := time.Now().Add(-10 * time.Second).Unix()
	s.mustFold(fmt.Sprintf("name=shop%%7Bzone=a%%7D&from=%d&until=now", from), "main;work;sort 3\nmain;idle 1\n")
	f := s.flame(cpuType, `{service_name="shop"}`)
	if !f.has("sort") || f.Flamegraph.Total != "40000000" {
		t.Errorf("%+v", f)
	}
	raw := mergedProfile(t, s, connect.WithGRPC())
	if err := raw.CheckValid(); err != nil || len(raw.Sample) != 2 {
		t.Errorf("%v, %d samples", err, len(raw.Sample))
	}
	push := connect.NewClient[profilepb.PushRequest, profilepb.PushResponse](http.DefaultClient, s.base+"/push.v1.PusherService/Push")
	var packed bytes.Buffer
	raw.TimeNanos = time.Now().UnixNano() // the time of a merged profile is the start of the range
	noError(t, raw.Write(&packed))
	_, err := push.CallUnary(context.Background(), connect.NewRequest(&profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{
		Labels:  []*profilepb.LabelPair{{Name: "__name__", Value: "process_cpu"}, {Name: "service_name", Value: "again"}},
		Samples: []*profilepb.RawSample{{RawProfile: packed.Bytes()}},
	}}}))
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		if f := s.flame(cpuType, `{service_name="again"}`); !f.has("sort") || f.Flamegraph.Total != "40000000" {
			t.Errorf("%+v", f)
		}
		status, text := s.get("/pyroscope/render?" + url.Values{"query": {cpuType + `{service_name="shop"}`}, "from": {"now-1h"}, "until": {"now"}, "groupBy": {"zone"}}.Encode())
		if status != http.StatusOK || !strings.Contains(text, `"sort"`) || !strings.Contains(text, `"numTicks":40000000`) || !strings.Contains(text, `"groups":{"a":`) {
			t.Errorf("%d %s", status, text)
		}
		if status, text = s.get("/pyroscope/label-values?label=service_name"); status != http.StatusOK || text != `["again","shop"]` {
			t.Errorf("%d %s", status, text)
		}
	}
	check()
	noError(t, s.stop())
	s = startServe(t, inDir)
	check()
}

func h2cClient(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: p}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// mergedMessage returns all profiles of service shop, merged into one pprof.
func mergedMessage(t *testing.T, s *server, options ...connect.ClientOption) *googlev1.Profile {
	t.Helper()
	client := connect.NewClient[profilepb.SelectMergeStacktracesRequest, profilepb.SelectMergeStacktracesResponse](h2cClient(t), s.base+"/querier.v1.QuerierService/SelectMergeStacktraces", options...)
	response, err := client.CallUnary(context.Background(), connect.NewRequest(&profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: cpuType, LabelSelector: `{service_name="shop"}`, Start: time.Now().Add(-time.Hour).UnixMilli(), End: time.Now().Add(time.Second).UnixMilli(), Format: profilepb.ProfileFormat_PROFILE_FORMAT_PPROF,
	}))
	if err != nil {
		t.Fatal(err)
	}
	return response.Msg.GetPprof().GetProfile()
}

func mergedProfile(t *testing.T, s *server, options ...connect.ClientOption) *profile.Profile {
	t.Helper()
	p := try(profile.ParseUncompressed(marshal(t, mergedMessage(t, s, options...)))).must(t)
	return p
}

func TestProfiles_PushOverALimitIsRefusedWithTheLimitsName(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) {
		o.Profiles.Limits.Labels, o.Profiles.Limits.Series = 3, 1
	})
	if status, text := s.folded("name=a%7Bx=1,y=2%7D", "main 1"); status != http.StatusBadRequest || !strings.Contains(text, "4 labels, at most 3") {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.folded("name=a", "main 1"); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.folded("name=b", "main 1"); status != http.StatusTooManyRequests || !strings.Contains(text, "the limit of 1") {
		t.Errorf("%d %s", status, text)
	}
	_, text := s.get("/metrics")
	for _, want := range []string{`ferula_profiles_discarded_total{reason="labels"} 1`, `ferula_profiles_discarded_total{reason="series"} 1`, "ferula_profiles_received_total 1"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in /metrics", want)
		}
	}
}

func TestProfiles_TargetsAreScrapedAndTheFileIsReloaded(t *testing.T) {
	target := startServe(t, nil)
	address := strings.TrimPrefix(target.base, "http://")
	path := t.TempDir() + "/profiles.yml"
	job := func(name string) string {
		return `
global: {scrape_interval: 1s}
scrape_configs:
  - job_name: ` + name + `
    static_configs: [{targets: ['` + address + `']}]
    profiling_config: {pprof_config: {process_cpu: {enabled: false}}}
`
	}
	writeFile(t, path, job("one"))
	s := startServe(t, func(o *app.ServeOptions) {
		o.Profiles.ConfigFile, o.Web.EnableLifecycle = path, true
	})
	goroutines := "goroutines:goroutine:count:goroutine:count"
	eventually(t, 60*time.Second, "goroutines of the target", func() bool {
		return s.flame(goroutines, `{service_name="one",job="one",instance="`+address+`"}`).has("app.(*Serve).Run")
	})
	writeFile(t, path, job("two")+"    jbo: 1\n")
	s.reloadFails("line 7: field jbo not found")
	writeFile(t, path, job("two"))
	s.mustReload()
	eventually(t, 60*time.Second, "goroutines of the other job", func() bool { return s.flame(goroutines, `{service_name="two"}`).has("app.(*Serve).Run") })
}

// One request returns the CPU flame graph of the slowest request's interval, with
// match=handler only of its endpoint.
func TestProfiles_ExemplarFlamegraphReturnsTheProfileOfTheSlowestRequest(t *testing.T) {
	config := writeFile(t, t.TempDir()+"/prometheus.yml", "")
	s := startServe(t, func(o *app.ServeOptions) { profiling(time.Second)(o); o.ConfigFile = config })
	address := strings.TrimPrefix(s.base, "http://")
	writeFile(t, config, "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: own, static_configs: [{targets: ['"+address+"']}]}]\n")
	noError(t, syscall.Kill(syscall.Getpid(), syscall.SIGHUP))
	var response struct {
		Data struct {
			Exemplar struct {
				SeriesLabels map[string]string
				Exemplar     struct{ Labels map[string]string }
			}
			By, ID, Type string
			Flamegraph   struct {
				Names  []string
				Levels [][]int64
				Total  int64
			}
		}
	}
	params := func(extra ...string) string {
		form := url.Values{"query": {`ferula_http_request_duration_seconds_bucket{handler="/api/v1/query_range"}`}}
		for i := 0; i+1 < len(extra); i += 2 {
			form.Set(extra[i], extra[i+1])
		}
		return "/api/v1/exemplar/flamegraph?" + form.Encode()
	}
	now := time.Now().Unix()
	slow := "/api/v1/query_range?" + url.Values{"query": {"sum(rate(up[5m])) + scalar(vector(1)) * time()"}, "start": {fmt.Sprint(now - 3600*24)}, "end": {fmt.Sprint(now)}, "step": {"10"}}.Encode()
	eventually(t, 60*time.Second, "the CPU of the endpoint", func() bool {
		for range 20 {
			s.expect(slow, http.StatusOK)
		}
		status, text := s.get(params("match", "handler"))
		if status == http.StatusBadRequest && strings.Contains(text, "no exemplar") {
			return false
		}
		if err := json.Unmarshal([]byte(text), &response); err != nil || status != http.StatusOK {
			t.Fatal(status, text)
		}
		return response.Data.Flamegraph.Total > 0
	})
	d := response.Data
	if d.By != "profile_id" || d.Exemplar.Exemplar.Labels["profile_id"] != d.ID || d.Exemplar.SeriesLabels["handler"] != "/api/v1/query_range" || d.Type != cpuType || d.Flamegraph.Names[0] != "total" {
		t.Errorf("%+v", d)
	}
	if whole := s.flame(cpuType, "", d.ID).Flamegraph.Total; len(whole) < len(fmt.Sprint(d.Flamegraph.Total)) {
		t.Errorf("the total of all endpoints is %s, that of one is %d", whole, d.Flamegraph.Total)
	}
	s.expect("/api/v1/exemplar/flamegraph?profile_id="+d.ID, http.StatusOK, `"exemplar":null,"by":"profile_id"`)
	s.expect("/api/v1/exemplar/flamegraph?profile_id=00000000-0000-0000-0000-000000000001", http.StatusOK, `"warnings":["the profile is not ingested yet`)
	for path, want := range map[string]string{
		"/api/v1/exemplar/flamegraph":                           "must be given",
		"/api/v1/exemplar/flamegraph?query=1":                   "selects no series",
		"/api/v1/exemplar/flamegraph?query=%7B":                 "parse error",
		"/api/v1/exemplar/flamegraph?query=nothing_of_the_kind": "no exemplar in this range",
		"/api/v1/exemplar/flamegraph?profile_id=x":              "not a UUID",
		params("type", "x"):                                     "type",
		params("selector", "{"):                                 "selector",
		params("max_nodes", "0"):                                "max_nodes",
		params("time", "x"):                                     "time",
		params("start", "2", "end", "1"):                        "end timestamp must not be before",
	} {
		s.expect(path, http.StatusBadRequest, want)
	}
}

func TestProfiles_GRPCPortAcceptsPushesAndQueries(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.GRPC.ListenAddress = "127.0.0.1:0" })
	s.mustFold("name=shop", "main;work 3\n")
	raw := mergedProfile(t, s)
	raw.TimeNanos = time.Now().UnixNano()
	var packed bytes.Buffer
	noError(t, raw.Write(&packed))
	conn := try(grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))).must(t)
	defer conn.Close()
	noError(t, conn.Invoke(context.Background(), "/push.v1.PusherService/Push", &profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{
		Labels:  []*profilepb.LabelPair{{Name: "__name__", Value: "process_cpu"}, {Name: "service_name", Value: "by gRPC"}},
		Samples: []*profilepb.RawSample{{RawProfile: packed.Bytes()}},
	}}}, &profilepb.PushResponse{}))
	var response profilepb.LabelValuesResponse
	if err := conn.Invoke(context.Background(), "/querier.v1.QuerierService/LabelValues", &profilepb.LabelValuesRequest{Name: "service_name"}, &response); err != nil || fmt.Sprint(response.Names) != "[by gRPC shop]" {
		t.Error(err, response.Names)
	}
}

func TestProfiles_OTLPOfACollectorIsQueryable(t *testing.T) {
	s := startServe(t, nil)
	request := fmt.Sprintf(`{
  "resourceProfiles": [{
    "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}, {"key": "host.name", "value": {"stringValue": "a1"}}]},
    "scopeProfiles": [{"profiles": [{
      "sampleType": {"typeStrindex": 1, "unitStrindex": 2}, "periodType": {"typeStrindex": 3, "unitStrindex": 4}, "period": "10000000",
      "timeUnixNano": "%d", "durationNano": "1000000000",
      "samples": [{"stackIndex": 1, "values": ["17"]}]}]}]}],
  "dictionary": {
    "stringTable": ["", "samples", "count", "cpu", "nanoseconds", "main", "work"], "mappingTable": [{}], "linkTable": [{}], "attributeTable": [{}],
    "functionTable": [{}, {"nameStrindex": 5}, {"nameStrindex": 6}],
    "locationTable": [{}, {"lines": [{"functionIndex": 1}]}, {"lines": [{"functionIndex": 2}]}],
    "stackTable": [{}, {"locationIndices": [2, 1]}]}}`, time.Now().UnixNano())
	if status, text := s.send(http.MethodPost, "/v1development/profiles", "application/json", []byte(request)); status != http.StatusOK || text != "{}" {
		t.Fatalf("%d %s", status, text)
	}
	f := s.flame(cpuType, `{service_name="shop",host_name="a1"}`)
	if f.Flamegraph.Total != "170000000" || !f.has("main") || !f.has("work") {
		t.Errorf("%+v", f)
	}
}

// trace1 is the trace of the spans 1 and 2.
const trace1 = "4bf92f3577b34da6a3ce929d0e0e4736"

// spans returns a profile of two spans of one trace, and of samples without a span.
func spans(t *testing.T) []byte {
	t.Helper()
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "cpu", Unit: "nanoseconds"}}, PeriodType: &profile.ValueType{Type: "cpu", Unit: "nanoseconds"}, Period: 1e7,
		TimeNanos: time.Now().UnixNano(), DurationNanos: 1e9,
	}
	for i, name := range []string{"main.first", "main.second", "main.idle"} {
		f := &profile.Function{ID: uint64(i + 1), Name: name}
		l := &profile.Location{ID: uint64(i + 1), Line: []profile.Line{{Function: f}}}
		p.Function, p.Location = append(p.Function, f), append(p.Location, l)
		s := &profile.Sample{Location: []*profile.Location{l}, Value: []int64{int64(i+1) * 100}}
		if i < 2 {
			s.Label = map[string][]string{"span_id": {fmt.Sprintf("%016x", i+1)}, "trace_id": {trace1}}
		}
		p.Sample = append(p.Sample, s)
	}
	var b bytes.Buffer
	noError(t, p.Write(&b))
	return b.Bytes()
}

func TestProfiles_ExemplarOfAnotherProgramSelectsProfilesByTime(t *testing.T) {
	page := "# TYPE latency_seconds histogram\nlatency_seconds_bucket{le=\"+Inf\"} 1 # {trace_id=\"" + trace1 + "\",span_id=\"0000000000000002\"} 0.5\nlatency_seconds_count 1\nlatency_seconds_sum 0.5\n# EOF\n"
	exporter := newPage(t, "application/openmetrics-text; version=1.0.0; charset=utf-8", page)
	s := serveFile(t, "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: app, static_configs: [{targets: ['"+exporter+"']}]}]\n", nil)
	resp := try(http.Post(s.base+"/ingest?format=pprof&name=app", "application/octet-stream", bytes.NewReader(spans(t)))).must(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatal(resp.Status)
	}
	// Without a selection of spans all samples count.
	if f := s.flame(cpuType, `{service_name="app"}`); f.Flamegraph.Total != "600" || !f.has("main.second") {
		t.Errorf("%+v", f)
	}
	for _, c := range []struct {
		field, value string
		status       int
		want         string
	}{
		{"spanSelector", "0000000000000002", 200, `"total":"200"`},
		{"traceIdSelector", trace1, 200, `"total":"300"`},
		{"spanSelector", "x", 400, "span id"},
		{"traceIdSelector", "x", 400, "trace id"},
	} {
		request := lastHour(map[string]any{"profileTypeID": cpuType, "labelSelector": "{}", c.field: []string{c.value}})
		if status, text := s.postJSON("querier.v1.QuerierService/SelectMergeStacktraces", request, nil); status != c.status || !strings.Contains(text, c.want) {
			t.Errorf("%s %s: %d %s", c.field, c.value, status, text)
		}
	}
	// The exemplar of another program has no profile ID, so its time selects.
	query := "/api/v1/exemplar/flamegraph?query=latency_seconds_bucket"
	s.expect(query, http.StatusBadRequest, "no exemplar in this range")
	eventually(t, 60*time.Second, "the exemplar's flame graph", func() bool {
		status, text := s.get(query + "&window=1m&" + url.Values{"selector": {`{service_name="app"}`}}.Encode())
		if status == http.StatusBadRequest && strings.Contains(text, "no exemplar") {
			return false
		}
		if status != http.StatusOK || !strings.Contains(text, `"by":"time","id":""`) || !strings.Contains(text, `"total":600`) || !strings.Contains(text, "main.second") || !strings.Contains(text, `"trace_id":"`+trace1+`"`) {
			t.Fatalf("%d %s", status, text)
		}
		return true
	})
}

// newPage serves one page of metrics until the test ends, and returns its address.
func newPage(t *testing.T, contentType, text string) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// client returns the command that runs a real SDK, from test/clients/build.sh, which
// pins its release.
func client(t *testing.T, name string) []string {
	t.Helper()
	out, err := exec.Command("../clients/build.sh", "-n", name).Output()
	if err != nil && peersWanted() {
		out, err = exec.Command("../clients/build.sh", name).Output()
	}
	needsPeer(t, "the client "+name, err == nil && len(out) > 0)
	return strings.Fields(string(out))
}

func TestPeerSDK_PushedProfilesAreQueryable(t *testing.T) {
	for _, tt := range []struct {
		name, service, function string
		types                   []string
	}{
		{"go", "go.client", "main.hotGo", []string{
			cpuType, "memory:alloc_space:bytes:space:bytes", "memory:inuse_space:bytes:space:bytes", "goroutines:goroutine:count:goroutine:count", "mutex:delay:nanoseconds:contentions:count",
		}},
		{"python", "python.client", "hot_python", []string{cpuType}},
		{"node", "node.client", "hotNode", []string{"wall:cpu:nanoseconds:wall:nanoseconds", "memory:inuse_space:bytes:inuse_space:bytes"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			command := client(t, tt.name)
			s := startServe(t, nil)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			out, err := exec.CommandContext(ctx, command[0], append(command[1:], s.base)...).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var types struct{ ProfileTypes []struct{ ID string } }
			s.postJSON("querier.v1.QuerierService/ProfileTypes", map[string]any{}, &types)
			selector := `{service_name="` + tt.service + `",region="eu"}`
			for _, id := range tt.types {
				f := s.flame(id, selector)
				if f.Flamegraph.Total == "" || f.Flamegraph.Total == "0" {
					t.Errorf("the flame graph of %s is empty; profile types: %v\n%s", id, types.ProfileTypes, out)
				}
				if strings.Contains(id, ":cpu:nanoseconds") && !f.has(tt.function) {
					t.Errorf("no %s among %.500s of %s", tt.function, fmt.Sprint(f.Flamegraph.Names), id)
				}
			}
		})
	}
}

func TestPeerGoToolPprof_OpensMergedProfiles(t *testing.T) {
	goBinary, err := exec.LookPath("go")
	needsPeer(t, "go", err == nil && peersWanted())
	s := startServe(t, nil)
	s.mustFold("name=shop", "main;work;sort 3\nmain;idle 1\n")
	path := filepath.Join(t.TempDir(), "cpu.pb")
	noError(t, os.WriteFile(path, marshal(t, mergedMessage(t, s)), 0o600))
	out, err := exec.Command(goBinary, "tool", "pprof", "-top", "-unit=ms", path).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "30ms") || !strings.Contains(string(out), "sort") || !strings.Contains(string(out), "Type: cpu") {
		t.Errorf("%v\n%s", err, out)
	}
}

const onePart = "{rate: 64MB, profile_size: 1KB}"

// pushed pushes a profile of 2 KiB for a tenant and returns the status.
func (s *server) pushed(tenant string) int {
	s.t.Helper()
	status, _, _ := s.request("POST", "/ingest?name=shop&format=groups", "main;"+strings.Repeat("f", 2048)+" 1\n", "X-Scope-OrgID", tenant)
	return status
}

// replaceFile changes a file at once, so that no reader gets half of it.
func replaceFile(t *testing.T, path, text string) {
	t.Helper()
	noError(t, os.Rename(writeFile(t, path+".new", text), path))
}

// An automatic reload reads the file of profiles too, so a change of it must cause one.
func TestServe_AutoReloadAppliesAChangedFileOfProfiles(t *testing.T) {
	for name, metrics := range map[string]string{"with a file of metrics": "scrape_configs: []\n", "alone": ""} {
		t.Run(name, func(t *testing.T) {
			file := writeFile(t, filepath.Join(t.TempDir(), "profiles.yml"), "scrape_configs: []\n")
			s := startServe(t, func(o *app.ServeOptions) {
				o.Profiles.ConfigFile, o.Peer.AutoReload = file, 50*time.Millisecond
				if metrics != "" {
					o.ConfigFile = writeFile(t, filepath.Join(t.TempDir(), "prometheus.yml"), metrics)
				}
			})
			if status := s.pushed("acme"); status != http.StatusOK {
				t.Fatal(status)
			}
			replaceFile(t, file, "limits: {acme: "+onePart+"}\n")
			eventually(t, 30*time.Second, "the limit of the tenant", func() bool { return s.pushed("acme") == http.StatusBadRequest })
			if status := s.pushed("other"); status != http.StatusOK {
				t.Errorf("another tenant: %d", status)
			}
			replaceFile(t, file, "limits: {acme: {nonsense: 1}}\n")
			s.waitFor("/metrics", "\nprometheus_config_last_reload_successful 0\n")
			if status := s.pushed("acme"); status != http.StatusBadRequest {
				t.Errorf("after a refused file: %d", status)
			}
			replaceFile(t, file, "scrape_configs: []\n")
			eventually(t, 30*time.Second, "the limit to be gone", func() bool { return s.pushed("acme") == http.StatusOK })
		})
	}
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b := try(proto.Marshal(m)).must(t)
	return b
}

// mustFold uploads folded stacks that the server must accept.
func (s *server) mustFold(query, stacks string) {
	s.t.Helper()
	if status, text := s.folded(query, stacks); status != http.StatusOK {
		s.t.Fatalf("%d %s", status, text)
	}
}
