package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/pprof"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
	"github.com/ferula-io/ferula/internal/series/labelenc"
)

func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m)
}

const cpu = "process_cpu:cpu:nanoseconds:cpu:nanoseconds"

const firstID = "00000000-0000-0000-0000-000000000001"

var errFull = fmt.Errorf("%w: too much", profiles.ErrLimit)

// stub is a Querier and Pusher that records the request and returns fixed results.
type stub struct {
	tenant  string
	pushed  []profilepb.RawProfile
	request any
	err     error
	open    atomic.Int32 // results that were not closed
}

func (s *stub) Push(_ context.Context, tenant string, profiles []profilepb.RawProfile) error {
	s.tenant, s.pushed = tenant, profiles
	return s.err
}

func (s *stub) ProfileTypes(_ context.Context, r *profiles.LabelsRequest) ([]profiles.Type, []error, error) {
	s.tenant, s.request = r.Tenant, *r
	t, err := profiles.ParseType(cpu)
	return []profiles.Type{t}, nil, errors.Join(err, s.err)
}

func (s *stub) LabelNames(_ context.Context, r *profiles.LabelsRequest) ([]string, []error, error) {
	s.tenant, s.request = r.Tenant, *r
	return []string{"service_name"}, nil, s.err
}

func (s *stub) LabelValues(_ context.Context, r *profiles.LabelsRequest) ([]string, []error, error) {
	s.tenant, s.request = r.Tenant, *r
	return []string{"a", `b"`}, []error{errFull}, s.err
}

func (s *stub) Series(_ context.Context, r *profiles.LabelsRequest) ([][]byte, []error, error) {
	s.tenant, s.request = r.Tenant, *r
	return [][]byte{labelenc.AppendLabel(nil, "service_name", "a")}, nil, s.err
}

func (s *stub) Stats(string) (profiles.Stats, error) {
	return profiles.Stats{OldestMS: 1, NewestMS: 2}, s.err
}

func (s *stub) SelectSeries(_ context.Context, r *profiles.SeriesRequest) (*profiles.SeriesResult, error) {
	s.tenant, s.request = r.Tenant, *r
	if s.err != nil {
		return nil, s.err
	}
	s.open.Add(1)
	a := profiles.NewSeriesResult(func() { s.open.Add(-1) })
	a.Series = []profiles.Series{{Labels: labelenc.AppendLabel(nil, "service_name", "a"), Points: []profiles.Point{
		{TimeMS: 15_000, Value: 1}, {TimeMS: 30_000, Value: 5},
	}}}
	if r.Exemplars {
		set := labelenc.AppendLabel(labelenc.AppendLabel(nil, "pod", "x"), "service_name", "a")
		a.Sets, a.GroupBy = [][]byte{labelenc.AppendLabel(nil, "pod", "w"), set}, []string{"service_name"}
		a.Series[0].Exemplars = []profiles.Exemplar{{ID: profiles.ID{15: 2}, TimeNS: 14_999_000_000, Value: 1}, {ID: profiles.ID{15: 1}, TimeNS: 29_999_000_001, Value: 5, Set: 1}}
		if r.Spans {
			a.Series[0].Exemplars[1].Span, a.Spans = 1, []profiles.Span{{}, {ID: 0xabc}}
		}
	}
	return a, nil
}

func (s *stub) Heatmap(_ context.Context, r *profiles.HeatmapRequest) (*profiles.Heatmap, error) {
	s.request = *r
	id, _ := profiles.ParseID(firstID)
	x := profiles.HeatmapExemplar{ID: id, TimeNS: 59_999e6, Value: 7, Labels: labelenc.AppendLabel(nil, "pod", "x")}
	if r.Spans {
		x.Span = profiles.Span{ID: 0xabc, Trace: profiles.TraceID{15: 1}}
	}
	slot := profiles.HeatmapSlot{TimeMS: 60_000, YMin: []float64{1.5}, Counts: []int32{3}}
	if r.Exemplars {
		slot.Exemplars = []profiles.HeatmapExemplar{x}
	}
	return &profiles.Heatmap{Series: []profiles.HeatmapSeries{{Labels: labelenc.AppendLabel(nil, "service_name", "a"), Slots: []profiles.HeatmapSlot{slot}}}}, s.err
}

func (s *stub) Analyze(_ context.Context, r *profiles.LabelsRequest) (profiles.Analysis, []error, error) {
	s.request = *r
	return profiles.Analysis{Blocks: 2, Series: 3, Profiles: 4, IndexBytes: 5, RowsBytes: 6, SymbolsBytes: 7}, nil, s.err
}

// flame returns main -> (work -> main, idle), where idle is nearly nothing.
func flame() *profiles.FlameGraph {
	return &profiles.FlameGraph{
		Names:   []string{"total", "main", "idle", "work"},
		Levels:  [][]int64{{0, 1000, 0, 0}, {0, 1000, 100, 1}, {0, 1, 1, 2, 0, 899, 400, 3}, {1, 499, 499, 1}},
		Total:   1000,
		MaxSelf: 499,
	}
}

func (s *stub) MergeFlame(_ context.Context, r *profiles.MergeRequest) (*profiles.FlameGraph, error) {
	s.tenant, s.request = r.Tenant, *r
	f := flame()
	return &profiles.FlameGraph{Names: f.Names, Levels: f.Levels, Total: f.Total, MaxSelf: f.MaxSelf}, s.err
}

func (s *stub) MergePprof(_ context.Context, r *profiles.MergeRequest) ([]byte, []error, error) {
	s.request = *r
	return []byte{0x32, 0, 0x48, 7}, nil, s.err // string_table: [""], time_nanos: 7
}

// serve runs a server over a stub, with HTTP/2 without TLS.
func serve(t *testing.T, prefix string) (*stub, string) {
	t.Helper()
	s := &stub{}
	mux := http.NewServeMux()
	New(Options{BodyMaxBytes: 1 << 20}, s, s).Register(mux, prefix, nil)
	server := httptest.NewUnstartedServer(mux)
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(func() {
		server.Close()
		if n := s.open.Load(); n != 0 {
			t.Errorf("%d results were not closed", n)
		}
	})
	return s, server.URL + prefix
}

func h2c() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

func TestServer_EveryProtocolAndEncodingReturnsTheSame(t *testing.T) {
	for name, options := range map[string][]connect.ClientOption{
		"connect": nil, "connect json": {connect.WithProtoJSON()},
		"gRPC": {connect.WithGRPC()}, "gRPC json": {connect.WithGRPC(), connect.WithProtoJSON()}, "gRPC-web": {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			s, base := serve(t, "/prefix")
			client := http.DefaultClient
			if strings.HasPrefix(name, "gRPC") {
				client = h2c()
				defer client.CloseIdleConnections()
			}
			push := connect.NewClient[profilepb.PushRequest, profilepb.PushResponse](client, base+pusherPath+"Push", options...)
			request := connect.NewRequest(&profilepb.PushRequest{Series: []*profilepb.RawProfileSeries{{
				Labels:  []*profilepb.LabelPair{{Name: "service_name", Value: "a"}},
				Samples: []*profilepb.RawSample{{RawProfile: []byte("pprof"), ID: "id"}, {RawProfile: []byte("other")}},
			}}})
			request.Header().Set("X-Scope-OrgID", "acme")
			if _, err := push.CallUnary(context.Background(), request); err != nil {
				t.Fatal(err)
			}
			lset := []profilepb.RawLabel{{Name: "service_name", Value: "a"}}
			want := []profilepb.RawProfile{{Labels: lset, Raw: []byte("pprof"), ID: "id"}, {Labels: lset, Raw: []byte("other")}}
			if s.tenant != "acme" || !reflect.DeepEqual(s.pushed, want) {
				t.Errorf("%s pushed %v", s.tenant, s.pushed)
			}
			series := connect.NewClient[profilepb.SelectSeriesRequest, profilepb.SelectSeriesResponse](client, base+querierPath+"SelectSeries", options...)
			response, err := series.CallUnary(context.Background(), connect.NewRequest(&profilepb.SelectSeriesRequest{
				ProfileTypeID: cpu, LabelSelector: `{a="b"}`, Start: 1, End: 60_000, Step: 15, GroupBy: []string{"g"}, ExemplarType: profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL,
			}))
			must(t, err)
			expect := &profilepb.SelectSeriesResponse{Series: []*profilepb.Series{{
				Labels: []*profilepb.LabelPair{{Name: "service_name", Value: "a"}},
				Points: []*profilepb.Point{
					{Value: 1, Timestamp: 15_000, Exemplars: []*profilepb.Exemplar{{Timestamp: 14_999, ProfileId: "00000000-0000-0000-0000-000000000002", Value: 1, Labels: []*profilepb.LabelPair{{Name: "pod", Value: "w"}}}}},
					{Value: 5, Timestamp: 30_000, Exemplars: []*profilepb.Exemplar{{Timestamp: 29_999, ProfileId: firstID, Value: 5, Labels: []*profilepb.LabelPair{{Name: "pod", Value: "x"}}}}},
				},
			}}}
			if !proto.Equal(response.Msg, expect) {
				t.Errorf("response %s", protojson.Format(response.Msg))
			}
			q := s.request.(profiles.SeriesRequest)
			if q.Tenant != AnonymousTenant || q.Type.SampleUnit != "nanoseconds" || q.StepMS != 15_000 || q.EndMS != 60_000 || !q.Exemplars || q.Average || !slices.Equal(q.GroupBy, []string{"g"}) || fmt.Sprint(q.Matchers) != `[a="b"]` {
				t.Errorf("request %+v", q)
			}
			s.err = fmt.Errorf("tenant acme: %w", errFull)
			if _, err = push.CallUnary(context.Background(), request); connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "too much") {
				t.Error(err)
			}
		})
	}
}

func TestCodeOf_ErrorsOfProfiles(t *testing.T) {
	for err, want := range map[error]connect.Code{
		pprof.ErrCorrupt: connect.CodeInvalidArgument, pprof.ErrLimit: connect.CodeInvalidArgument,
		profiles.ErrBadRequest: connect.CodeInvalidArgument, io.EOF: connect.CodeInternal,
	} {
		if got := codeOf(fmt.Errorf("push: %w", err)); got != want {
			t.Errorf("%v: %v, want %v", err, got, want)
		}
	}
}

func post(t *testing.T, address, body string, header ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, address, strings.NewReader(body))
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(r)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, string(b)
}

func TestServer_BadRequestErrorNamesTheReason(t *testing.T) {
	_, base := serve(t, "")
	whole := func(change string) string {
		fields := map[string]string{"profileTypeID": `"` + cpu + `"`, "start": `"1"`, "end": `"60000"`, "step": "15"}
		if change != "" {
			name, value, _ := strings.Cut(change, "=")
			if fields[name] = value; value == "" {
				delete(fields, name)
			}
		}
		var parts []string
		for name, value := range fields {
			parts = append(parts, `"`+name+`":`+value)
		}
		return "{" + strings.Join(parts, ",") + "}"
	}
	for _, tt := range []struct {
		method, body string
		status       int
		code, text   string
	}{
		{"SelectSeries", whole(`exemplarType="EXEMPLAR_TYPE_INDIVIDUAL"`), 200, "", `"profileId":"` + firstID},
		{"SelectSeries", whole(`labelSelector="{a=}"`), 400, "invalid_argument", "selector {a=}"},
		{"SelectSeries", whole(`labelSelector="{a=~\"(\"}"`), 400, "invalid_argument", "missing closing"},
		{"SelectSeries", whole(`labelSelector="{` + strings.Repeat("a", 70000) + `"`), 400, "invalid_argument", "exceeds the limit"},
		{"SelectSeries", whole(`start="60001"`), 400, "invalid_argument", "is before its start"},
		{"SelectSeries", whole(`end=`), 400, "invalid_argument", "is before its start"},
		{"SelectSeries", whole(`step=0`), 400, "invalid_argument", "step 0"},
		{"SelectSeries", whole(`step="NaN"`), 400, "invalid_argument", "step NaN"},
		{"SelectSeries", whole(`step=-1`), 400, "invalid_argument", "step -1"},
		{"SelectSeries", whole(`step=0.001`), 400, "invalid_argument", "more than 11000 points"},
		{"SelectSeries", whole(`limit="-1"`), 400, "invalid_argument", "limit -1"},
		{"SelectSeries", whole(`profileTypeID="cpu"`), 400, "invalid_argument", `profile type \"cpu\"`},
		{"SelectSeries", whole(`profileTypeID=`), 400, "invalid_argument", `profile type \"\"`},
		{"SelectSeries", whole(`exemplarType="EXEMPLAR_TYPE_SPAN"`), 200, "", `"spanId":"0000000000000abc"`},
		{"SelectSeries", whole(`exemplarType=77`), 400, "invalid_argument", "exemplar_type 77"},
		{"SelectSeries", whole(`start="a"`), 400, "invalid_argument", "start"},
		{"SelectSeries", `{`, 400, "invalid_argument", "unmarshal"},
		{"SelectSeries", strings.Repeat(" ", 2<<20), 429, "resource_exhausted", "1048576"},
		{"SelectSeries", `{"stackTraceSelector":` + strings.Repeat(`{"a":`, 20000), 400, "invalid_argument", "recursion"},
		{"SelectMergeStacktraces", whole(""), 200, "", `"total":"1000"`},
		{"SelectMergeStacktraces", whole(`maxNodes="0"`), 200, "", `"total":"1000"`},
		{"SelectMergeStacktraces", whole(`maxNodes="-1"`), 200, "", `"total":"1000"`},
		{"SelectMergeStacktraces", whole(`maxNodes="-2"`), 400, "invalid_argument", "max_nodes -2"},
		{"SelectMergeStacktraces", whole(`maxNodes="9000000000000"`), 400, "invalid_argument", "is not between 1 and 1048576; -1 means all nodes"},
		{"SelectMergeStacktraces", whole(`format="PROFILE_FORMAT_TREE"`), 200, "", `"tree":"`},
		{"SelectMergeStacktraces", whole(`format="PROFILE_FORMAT_DOT"`), 200, "", `"dot":"digraph`},
		{"SelectMergeStacktraces", whole(`format="PROFILE_FORMAT_PPROF"`), 200, "", `"timeNanos":"7"`},
		{"SelectMergeStacktraces", whole(`format=99`), 400, "invalid_argument", "format 99"},
		{"SelectMergeProfile", whole(""), 200, "", `"timeNanos":"7"`},
		{"SelectMergeSpanProfile", whole(""), 400, "invalid_argument", "span_selector is missing"},
		{"SelectMergeSpanProfile", whole(`spanSelector=["00000000000000ff"]`), 200, "", `"total":"1000"`},
		{"SelectMergeSpanProfile", whole(`spanSelector=["0000000000000000"]`), 400, "invalid_argument", "span id"},
		{"SelectHeatmap", whole(""), 200, "", `"counts":[3]`},
		{"SelectHeatmap", whole(`queryType=9`), 400, "invalid_argument", "query_type 9"},
		{"SelectHeatmap", whole(`step=0`), 400, "invalid_argument", "step 0"},
		{"SelectHeatmap", whole(`exemplarType="EXEMPLAR_TYPE_SPAN"`), 400, "invalid_argument", "EXEMPLAR_TYPE_INDIVIDUAL only"},
		{"SelectHeatmap", whole(`exemplarType="EXEMPLAR_TYPE_INDIVIDUAL"`), 200, "", `"profileId":"` + firstID},
		{"AnalyzeQuery", `{"start":"1","end":"2","query":"` + cpu + `{a=\"b\"}"}`, 200, "", `"totalQueriedSeries":"3"`},
		{"AnalyzeQuery", `{"query":"{"}`, 400, "invalid_argument", "selector {"},
		{"SelectMergeStacktraces", whole(`profileIdSelector=["x"]`), 400, "invalid_argument", `profile id \"x\" is not a UUID`},
		{"SelectMergeStacktraces", whole(`profileIdSelector=["` + firstID + `"]`), 200, "", `"total":"1000"`},
		{"SelectMergeStacktraces", whole(`spanSelector=["00f"]`), 400, "invalid_argument", `span id \"00f\"`},
		{"SelectMergeProfile", whole(`traceIdSelector=["00f"]`), 400, "invalid_argument", `trace id \"00f\"`},
		{"Diff", `{}`, 400, "invalid_argument", "both left and right"},
		{"Diff", `{"left":` + whole("") + `,"right":` + whole("start=") + `}`, 200, "", `"leftTicks":"1000"`},
		{"ProfileTypes", `{}`, 200, "", `"ID":"` + cpu + `"`},
		{"ProfileTypes", ``, 200, "", `"sampleUnit":"nanoseconds"`},
		{"ProfileTypes", `{"start":"2","end":"1"}`, 400, "invalid_argument", "is before its start"},
		{"LabelNames", `{"matchers":["{a=\"b\"}"]}`, 200, "", `"names":["service_name"]`},
		{"LabelNames", `{"matchers":["{"]}`, 400, "invalid_argument", "selector {"},
		{"LabelValues", `{}`, 400, "invalid_argument", "name is missing"},
		{"LabelValues", `{"name":"a","fromANewerClient":1}`, 200, "", `"b\""`},
		{"Series", `{"labelNames":["service_name"]}`, 200, "", `{"labelsSet":[{"labels":[{"name":"service_name","value":"a"}]}]}`},
		{"GetProfileStats", `{}`, 200, "", `"dataIngested":true`},
		{"NoSuchMethod", `{}`, 404, "", ""},
	} {
		status, body := post(t, base+querierPath+tt.method, tt.body)
		body = strings.NewReplacer(`": "`, `":"`, `", "`, `","`, `":[ "`, `":["`, `": true`, `":true`).Replace(body) // protojson varies its white space
		if status != tt.status || !strings.Contains(body, tt.text) {
			t.Errorf("%s %.80s: %d %.300s, want %d with %q", tt.method, tt.body, status, body, tt.status, tt.text)
		}
		var failure struct{ Code, Message string }
		if tt.code != "" && (json.Unmarshal([]byte(body), &failure) != nil || failure.Code != tt.code) {
			t.Errorf("%s %.80s: %.300s, want code %s", tt.method, tt.body, body, tt.code)
		}
	}
}

func TestServer_RequestBeyondBodyMaxWhenDecompressedIsRejected(t *testing.T) {
	_, base := serve(t, "")
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(make([]byte, 50<<20)); err != nil {
		t.Fatal(err)
	}
	must(t, w.Close())
	if status, body := post(t, base+pusherPath+"Push", b.String(), "Content-Type", "application/proto", "Content-Encoding", "gzip"); status != 429 || !strings.Contains(body, "1048576") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := post(t, base+pusherPath+"Push", "no gzip", "Content-Type", "application/proto", "Content-Encoding", "gzip"); status != 400 || !strings.Contains(body, "decompressor") {
		t.Errorf("%d %s", status, body)
	}
	if status, _ := post(t, base+pusherPath+"Push", "{}", "Content-Type", "text/plain"); status != 415 {
		t.Error(status)
	}
}

func TestTenantOf_AcceptsDirectoryNamesOnly(t *testing.T) {
	s, base := serve(t, "")
	for tenant, ok := range map[string]bool{
		"": true, "acme-1": true, "a_b.c!*'()": true, "..": false, ".": false, "a/b": false, "a|b": false, "a b": false, "ä": false, strings.Repeat("x", 151): false,
	} {
		status, body := post(t, base+querierPath+"ProfileTypes", "{}", "X-Scope-OrgID", tenant)
		if want := tenant; ok && status == 200 {
			if want == "" {
				want = AnonymousTenant
			}
			if s.tenant != want {
				t.Errorf("%q became %q", tenant, s.tenant)
			}
		} else if ok != (status == 200) || !strings.Contains(body, "X-Scope-OrgID") {
			t.Errorf("%q: %d %s", tenant, status, body)
		}
	}
}

func TestRender_ReturnsTheFlameGraphOfTheQuerier(t *testing.T) {
	s, base := serve(t, "")
	get := func(path string, form ...string) (int, string) {
		values := url.Values{}
		for i := 0; i+1 < len(form); i += 2 {
			values.Add(form[i], form[i+1])
		}
		resp, err := http.Get(base + path + "?" + values.Encode())
		must(t, err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		must(t, err)
		return resp.StatusCode, string(b)
	}
	status, body := get("/pyroscope/render", "query", cpu+`{a="b"}`, "from", "0", "until", "60", "groupBy", "service_name")
	want := `{"version":1,"flamebearer":{"names":["total","main","idle","work"],"levels":[[0,1000,0,0],[0,1000,100,1],[0,1,1,2,0,899,400,3],[1,499,499,1]],"numTicks":1000,"maxSelf":499},` +
		`"metadata":{"format":"single","spyName":"","sampleRate":1000000000,"units":"samples","name":"cpu"},` +
		`"timeline":{"startTime":0,"samples":[0,1,5,0,0],"durationDelta":15},"groups":{"a":{"startTime":0,"samples":[0,1,5,0,0],"durationDelta":15}}}`
	if status != 200 || body != want {
		t.Errorf("%d %s\nwant %s", status, body, want)
	}
	if q := s.request.(profiles.SeriesRequest); q.StartMS != 0 || q.EndMS != 60_000 || !slices.Equal(q.GroupBy, []string{"service_name"}) {
		t.Errorf("request %+v", q)
	}
	for _, tt := range []struct {
		path   string
		form   []string
		status int
		text   string
	}{
		{"/pyroscope/render", nil, 400, "query is missing"},
		{"/pyroscope/render", []string{"query", "cpu{}"}, 400, `profile type "cpu"`},
		{"/pyroscope/render", []string{"query", cpu, "from", "yesterday"}, 400, `from: not a time: "yesterday"`},
		{"/pyroscope/render", []string{"query", cpu, "from", "now", "until", "now-1h"}, 400, "is before its start"},
		{"/pyroscope/render", []string{"query", cpu, "format", "html"}, 400, "neither json nor dot"},
		{"/pyroscope/render", []string{"query", cpu, "max-nodes", "x"}, 400, "max-nodes"},
		{"/pyroscope/render", []string{"query", cpu, "aggregation", "max"}, 400, "neither sum nor avg"},
		{"/pyroscope/render", []string{"query", cpu, "from", "now-1h", "aggregation", "avg"}, 200, `"flamebearer"`},
		{"/pyroscope/render", []string{"query", cpu, "format", "dot"}, 200, "digraph"},
		{"/pyroscope/render-diff", []string{"leftQuery", cpu, "rightQuery", cpu}, 200, `"leftTicks":1000,"rightTicks":1000`},
		{"/pyroscope/render-diff", []string{"leftQuery", cpu}, 400, "rightQuery is missing"},
		{"/pyroscope/label-values", []string{"label", "x"}, 200, `["a","b\""]`},
		{"/pyroscope/label-values", nil, 400, "label is missing"},
		{"/pyroscope/label-names", nil, 200, `["service_name"]`},
	} {
		if status, body := get(tt.path, tt.form...); status != tt.status || !strings.Contains(body, tt.text) {
			t.Errorf("%s %v: %d %s", tt.path, tt.form, status, body)
		}
	}
	s.err = errFull
	if status, body := get("/pyroscope/render", "query", cpu); status != 429 || !strings.Contains(body, "too much") {
		t.Errorf("%d %s", status, body)
	}
}

func TestDiff_OfAFlameGraphWithItselfHasEqualSides(t *testing.T) {
	d := Diff(flame(), flame(), 0)
	if d.Total != 2000 || d.LeftTicks != 1000 || d.RightTicks != 1000 || d.MaxSelf != 499 || len(d.Levels) != 4 {
		t.Fatalf("%+v", d)
	}
	for _, level := range d.Levels {
		for i := 0; i < len(level); i += diffWidth {
			if !slices.Equal(level[i:i+3], level[i+3:i+6]) {
				t.Errorf("sides differ: %v", level[i:i+diffWidth])
			}
		}
	}
	// The right side alone, then neither.
	d = Diff(nil, flame(), 0)
	if d.LeftTicks != 0 || d.RightTicks != 1000 || !slices.Equal(d.Levels[2], []int64{0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 899, 400, 2}) && !slices.Equal(d.Levels[2], []int64{0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 899, 400, 3}) {
		t.Errorf("%+v", d)
	}
	if d = Diff(nil, nil, 0); len(d.Levels) != 0 {
		t.Errorf("%+v", d)
	}
}

func TestDot_DropsSmallNodesAndCountsRecursionOnce(t *testing.T) {
	got := Dot(flame(), profiles.Type{Name: "process_cpu", SampleUnit: "nanoseconds"})
	for _, want := range []string{`label="main\n599 of 1000 nanoseconds"`, `label="work\n400 of 899 nanoseconds"`, `n0 -> n1 [label="899"]`, `n1 -> n0 [label="499"]`} {
		if !strings.Contains(got, want) {
			t.Errorf("no %s in\n%s", want, got)
		}
	}
	if strings.Contains(got, "idle") {
		t.Errorf("idle is drawn:\n%s", got)
	}
}

func FuzzRequests(f *testing.F) {
	s := &stub{}
	mux := http.NewServeMux()
	New(Options{}, s, s).Register(mux, "", nil)
	seed, err := proto.Marshal(&profilepb.SelectSeriesRequest{ProfileTypeID: cpu, Start: 1, End: 2, Step: 1, LabelSelector: `{a=~"b.*"}`})
	must(f, err)
	f.Add("SelectSeries", false, seed)
	f.Add("SelectMergeStacktraces", true, []byte(`{"profileTypeID":"a:b:c:d:e"}`))
	f.Fuzz(func(t *testing.T, method string, asJSON bool, body []byte) {
		r, err := http.NewRequest(http.MethodPost, "http://x"+querierPath+url.PathEscape(method), bytes.NewReader(body))
		if err != nil {
			t.Skip()
		}
		r.Header.Set("Content-Type", map[bool]string{false: "application/proto", true: "application/json"}[asJSON])
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		if w.Code == http.StatusInternalServerError {
			t.Fatalf("%s %q: %s", method, body, w.Body)
		}
	})
}

// The encoder reads exemplars from the query's result: it allocates nothing per exemplar.
func TestSeriesEncoder_DoesNotAllocatePerPoint(t *testing.T) {
	allocations := func(n int, encode func(profilepb.Encoder, []byte) []byte) float64 {
		set := labelenc.AppendLabel(nil, "service_name", "a")
		s := profiles.Series{Labels: set}
		for i := range n {
			s.Points = append(s.Points, profiles.Point{TimeMS: int64(i), Value: 1.5})
			s.Exemplars = append(s.Exemplars, profiles.Exemplar{ID: profiles.ID{1}, TimeNS: 1e18, Value: 7})
		}
		encoder := &profilepb.SeriesEncoder{Result: &profiles.SeriesResult{Series: []profiles.Series{s}, Sets: [][]byte{set}}}
		buf := encode(encoder, nil)
		return testing.AllocsPerRun(10, func() { buf = encode(encoder, buf[:0]) })
	}
	for name, encode := range map[string]func(profilepb.Encoder, []byte) []byte{"protobuf": profilepb.Encoder.AppendProto, "JSON": profilepb.Encoder.AppendJSON} {
		few, many := allocations(10, encode), allocations(1000, encode)
		if many > few+10 { // with the race detector pools lose buffers at random
			t.Errorf("%s: %v allocations of 10 points, %v of 1,000", name, few, many)
		}
	}
}

// must ends a test that cannot go on after an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
