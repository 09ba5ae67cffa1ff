package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/google/pprof/profile"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/ferula-io/ferula/internal/app"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/profiles/profilepb/googlev1"
	"github.com/ferula-io/ferula/internal/tsdb"
)

const cpuType = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

// postJSON posts JSON to a method of the profile API. A response of status 200 is
// decoded into response, if it is not nil.
func (s *server) postJSON(method string, request map[string]any, response any) (int, string) {
	s.t.Helper()
	body, err := json.Marshal(request)
	if err != nil {
		s.t.Fatal(err)
	}
	resp, err := http.Post(s.base+"/"+method, "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK && response != nil {
		if err := json.Unmarshal(text, response); err != nil {
			s.t.Fatalf("%s: %v in %.300s", method, err, text)
		}
	}
	return resp.StatusCode, string(text)
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

func TestProfiles_WithoutSelfProfilingTheStoreIsEmpty(t *testing.T) {
	s := startServe(t, nil)
	if status, text := s.postJSON("querier.v1.QuerierService/ProfileTypes", map[string]any{}, nil); status != http.StatusOK || strings.TrimSpace(text) != "{}" {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.postJSON("querier.v1.QuerierService/GetProfileStats", map[string]any{}, nil); status != http.StatusOK || strings.TrimSpace(text) != "{}" {
		t.Errorf("%d %s", status, text)
	}
}

var exemplarID = regexp.MustCompile(`ferula_http_request_duration_seconds_bucket\{[^}]*handler="/api/v1/query"[^#]*# \{[^}]*profile_id="([^"]+)"`)

func TestProfiles_ExemplarOfARequestHistogramSelectsTheCPUProfileOfItsTime(t *testing.T) {
	s := startServe(t, profiling(time.Second))
	own := func() string {
		request, err := http.NewRequest(http.MethodGet, s.base+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
		resp, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if m := exemplarID.FindSubmatch(text); m != nil {
			return string(m[1])
		}
		return ""
	}
	seen := map[string]bool{} // a profile is stored only after its interval ended
	eventually(t, 60*time.Second, "an exemplar whose profile has samples", func() bool {
		for range 100 {
			s.get("/api/v1/query?query=1")
		}
		if id := own(); id != "" {
			seen[id] = true
		}
		for id := range seen {
			if f := s.flame("process_cpu:samples:count:cpu:nanoseconds", "", id); f.Flamegraph.Total != "" && f.Flamegraph.Total != "0" {
				return true
			}
		}
		return false
	})
}

// folded uploads folded stacks to /ingest, as older SDKs do.
func (s *server) folded(query, stacks string) (int, string) {
	s.t.Helper()
	resp, err := http.Post(s.base+"/ingest?"+query, "text/plain", strings.NewReader(stacks))
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func TestProfiles_PushedProfilesAreQueriedByEveryProtocolAndSurviveARestart(t *testing.T) {
	dir := t.TempDir()
	inDir := func(o *app.ServeOptions) { o.Store.Dir = dir }
	s := startServe(t, inDir)
	from := time.Now().Add(-10 * time.Second).Unix()
	if status, text := s.folded(fmt.Sprintf("name=shop%%7Bzone=a%%7D&from=%d&until=now", from), "main;work;sort 3\nmain;idle 1\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
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
	if err := raw.Write(&packed); err != nil {
		t.Fatal(err)
	}
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
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
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
	p, err := profile.ParseUncompressed(marshal(t, mergedMessage(t, s, options...)))
	if err != nil {
		t.Fatal(err)
	}
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
	reload := func() (int, string) {
		resp, err := http.Post(s.base+"/-/reload", "", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	writeFile(t, path, job("two")+"    jbo: 1\n")
	if status, text := reload(); status != http.StatusInternalServerError || !strings.Contains(text, "line 7: field jbo not found") {
		t.Errorf("%d %s", status, text)
	}
	writeFile(t, path, job("two"))
	if status, text := reload(); status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	eventually(t, 60*time.Second, "goroutines of the other job", func() bool { return s.flame(goroutines, `{service_name="two"}`).has("app.(*Serve).Run") })
}

func TestProfiles_UnknownConfigurationKeyIsRefusedAtStart(t *testing.T) {
	path := writeFile(t, t.TempDir()+"/profiles.yml", "scrape_configs:\n  - job_name: a\n    scrape_interv: 1s\n")
	_, err := app.NewServe(app.ServeOptions{Web: app.WebOptions{ListenAddress: "127.0.0.1:0"}, Store: tsdb.Options{Dir: t.TempDir()}, Profiles: app.ProfilesOptions{ConfigFile: path}, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "line 3: field scrape_interv not found") {
		t.Error(err)
	}
}

// One request returns the CPU flame graph of the slowest request's interval, with
// match=handler only of its endpoint.
func TestProfiles_ExemplarFlamegraphReturnsTheProfileOfTheSlowestRequest(t *testing.T) {
	config := writeFile(t, t.TempDir()+"/prometheus.yml", "")
	s := startServe(t, func(o *app.ServeOptions) { profiling(time.Second)(o); o.ConfigFile = config })
	address := strings.TrimPrefix(s.base, "http://")
	writeFile(t, config, "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs: [{job_name: own, static_configs: [{targets: ['"+address+"']}]}]\n")
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
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
			if status, text := s.get(slow); status != http.StatusOK {
				t.Fatal(status, text)
			}
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
	if status, text := s.get("/api/v1/exemplar/flamegraph?profile_id=" + d.ID); status != http.StatusOK || !strings.Contains(text, `"exemplar":null,"by":"profile_id"`) {
		t.Errorf("%d %.200s", status, text)
	}
	if status, text := s.get("/api/v1/exemplar/flamegraph?profile_id=00000000-0000-0000-0000-000000000001"); status != http.StatusOK || !strings.Contains(text, `"warnings":["the profile is not ingested yet`) {
		t.Errorf("%d %.200s", status, text)
	}
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
		if status, text := s.get(path); status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %q", path, status, text, want)
		}
	}
}

func TestProfiles_GRPCPortAcceptsPushesAndQueries(t *testing.T) {
	s := startServe(t, func(o *app.ServeOptions) { o.GRPC.ListenAddress = "127.0.0.1:0" })
	if status, text := s.folded("name=shop", "main;work 3\n"); status != http.StatusOK {
		t.Fatal(status, text)
	}
	raw := mergedProfile(t, s)
	raw.TimeNanos = time.Now().UnixNano()
	var packed bytes.Buffer
	if err := raw.Write(&packed); err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = conn.Invoke(context.Background(), "/push.v1.PusherService/Push", &profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{
		Labels:  []*profilepb.LabelPair{{Name: "__name__", Value: "process_cpu"}, {Name: "service_name", Value: "by gRPC"}},
		Samples: []*profilepb.RawSample{{RawProfile: packed.Bytes()}},
	}}}, &profilepb.PushResponse{})
	if err != nil {
		t.Fatal(err)
	}
	var response profilepb.LabelValuesResponse
	if err := conn.Invoke(context.Background(), "/querier.v1.QuerierService/LabelValues", &profilepb.LabelValuesRequest{Name: "service_name"}, &response); err != nil || fmt.Sprint(response.Names) != "[by gRPC shop]" {
		t.Error(err, response.Names)
	}
}
