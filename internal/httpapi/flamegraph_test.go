package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	modelexemplar "github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/profiles"
)

// recordingFlames implements api.Flames. It records the latest request.
type recordingFlames struct {
	got    profiles.ExemplarRequest
	result *profiles.ExemplarResult
	err    error
}

func (f *recordingFlames) Find(_ context.Context, r profiles.ExemplarRequest) (*profiles.ExemplarResult, error) {
	f.got = r
	return f.result, f.err
}

func flameOptions() (*recordingFlames, httpapi.Options) {
	flames := &recordingFlames{result: &profiles.ExemplarResult{Flame: &profiles.FlameGraph{Total: 1}}}
	return flames, httpapi.Options{Flames: flames, Parser: parser.NewParser(parser.Options{})}
}

func TestExemplarFlamegraph_RequestHasTheParameters(t *testing.T) {
	flames, o := flameOptions()
	up := [][]*labels.Matcher{{labels.MustNewMatcher(labels.MatchEqual, "__name__", "up")}}
	for query, want := range map[string]profiles.ExemplarRequest{
		"profile_id=p":                           {ProfileID: "p", NodesMax: 8192},
		"profile_id=p&start=1&end=2":             {ProfileID: "p", NodesMax: 8192, StartMS: 1000, EndMS: 2000},
		"profile_id=p&end=0":                     {ProfileID: "p", NodesMax: 8192, StartMS: -9223309901257974000, EndMS: 0},
		"profile_id=p&start=0":                   {ProfileID: "p", NodesMax: 8192, StartMS: 0, EndMS: 9223309901257974999},
		"query=up&start=2&end=2":                 {Selectors: up, NodesMax: 8192, StartMS: 2000, EndMS: 2000},
		"query=up&start=1&end=2&time=1.5":        {Selectors: up, NodesMax: 8192, StartMS: 1000, EndMS: 2000, NearMS: 1500},
		"profile_id=p&window=1":                  {ProfileID: "p", NodesMax: 8192, WindowMS: 1000},
		"profile_id=p&match=a&match=b":           {ProfileID: "p", NodesMax: 8192, Match: []string{"a", "b"}},
		"profile_id=p&type=a:b:c:d:e":            {ProfileID: "p", NodesMax: 8192, Type: profiles.Type{Name: "a", SampleType: "b", SampleUnit: "c", PeriodType: "d", PeriodUnit: "e"}},
		"profile_id=p&selector=up":               {ProfileID: "p", NodesMax: 8192, Matchers: up[0]},
		"profile_id=p&max_nodes=1":               {ProfileID: "p", NodesMax: 1},
		"profile_id=p&max_nodes=1048576":         {ProfileID: "p", NodesMax: 1 << 20},
		"profile_id=p&query=sum(none_is_parsed&": {ProfileID: "p", NodesMax: 8192},
	} {
		want.Tenant = "anonymous"
		if w := responseOf(o, "/exemplar/flamegraph?"+query); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		} else if got := fmt.Sprintf("%+v", flames.got); got != fmt.Sprintf("%+v", want) {
			t.Errorf("%s: %s, want %+v", query, got, want)
		}
	}
}

func TestExemplarFlamegraph_BadParametersAreNamed(t *testing.T) {
	_, o := flameOptions()
	for query, want := range map[string]string{
		"": `either \"profile_id\" or \"query\" must be given`, "query=sum(": "parse error", "query=1": `invalid parameter \"query\": selects no series`,
		"query=up&start=x": "invalid time value for 'start'", "query=up&start=2&end=1": "end timestamp must not be before start timestamp", "profile_id=p&end=x": "invalid time value for 'end'",
		"profile_id=p&time=x": `invalid parameter \"time\"`, "profile_id=p&window=0": `\"0\" is not a duration above zero`, "profile_id=p&window=-1s": "is not a duration above zero", "profile_id=p&window=x": "is not a duration above zero",
		"profile_id=p&type=a": `invalid parameter \"type\"`, "profile_id=p&selector={": `invalid parameter \"selector\"`, "profile_id=p&max_nodes=0": `\"0\" is not between 1 and 1048576`,
		"profile_id=p&max_nodes=1048577": `\"1048577\" is not between 1 and 1048576`, "profile_id=p&max_nodes=x": `invalid parameter \"max_nodes\"`,
	} {
		if w := responseOf(o, "/exemplar/flamegraph?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) || !strings.Contains(w.Body.String(), `"errorType":"bad_data"`) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}

func TestExemplarFlamegraph_TenantIsThatOfTheRequest(t *testing.T) {
	flames, o := flameOptions()
	mux := http.NewServeMux()
	httpapi.New(o).Register(mux, prefix)
	for value, want := range map[string]string{"team-a": "team-a", "a/b": ""} {
		r := httptest.NewRequest(http.MethodGet, prefix+"/exemplar/flamegraph?profile_id=p", nil)
		r.Header.Set("X-Scope-OrgID", value)
		w := httptest.NewRecorder()
		if mux.ServeHTTP(w, r); (w.Code == http.StatusOK) != (want != "") || want != "" && flames.got.Tenant != want {
			t.Errorf("%s: %d %s, tenant %q", value, w.Code, w.Body, flames.got.Tenant)
		}
	}
	o.FlamesTenant = func(http.Header) (string, error) { return "of-the-option", nil }
	if responseOf(o, "/exemplar/flamegraph?profile_id=p"); flames.got.Tenant != "of-the-option" {
		t.Errorf("tenant %q", flames.got.Tenant)
	}
}

func TestExemplarFlamegraph_ErrorsHaveTheirKind(t *testing.T) {
	flames, o := flameOptions()
	for _, c := range []struct {
		err    error
		status int
		kind   string
	}{
		{profiles.ErrNoExemplar, 400, "bad_data"}, {fmt.Errorf("%w: odd", profiles.ErrBadRequest), 400, "bad_data"}, {profiles.ErrUnavailable, 500, "unavailable"},
		{errors.New("broken"), 422, "execution"}, {context.Canceled, 499, "canceled"},
	} {
		flames.err = c.err
		if w := responseOf(o, "/exemplar/flamegraph?profile_id=p"); w.Code != c.status || !strings.Contains(w.Body.String(), `"errorType":"`+c.kind+`"`) {
			t.Errorf("%v: %d %s", c.err, w.Code, w.Body)
		}
	}
}

func TestExemplarFlamegraph_Response(t *testing.T) {
	flames, o := flameOptions()
	kind := profiles.Type{Name: "a", SampleType: "b", SampleUnit: "c", PeriodType: "d", PeriodUnit: "e"}
	flames.result = &profiles.ExemplarResult{
		Found: true, Series: labels.FromStrings("s", "1"), Exemplar: modelexemplar.Exemplar{Labels: labels.FromStrings("profile_id", "x"), Value: 2, Ts: 3000},
		By: "time", ID: "x", Type: kind,
		Flame: &profiles.FlameGraph{
			Names: []string{"total", "f"}, Levels: [][]int64{{0, 1 << 53, 0, 0}, {0, 1<<53 + 1, -(1 << 53), -(1<<53 + 1)}}, Total: 9, MaxSelf: 8,
			Warnings: []error{errors.New("a block is missing")},
		},
	}
	const flame = `"by":"time","id":"x","type":"a:b:c:d:e","flamegraph":{"names":["total","f"],"levels":[[0,9007199254740992,0,0],[0,"9007199254740993",-9007199254740992,"-9007199254740993"]],"total":`
	checkResponse(t, o, "/exemplar/flamegraph?profile_id=p", http.StatusOK,
		`"data":{"exemplar":{"seriesLabels":{"s":"1"},"exemplar":{"labels":{"profile_id":"x"},"value":"2","timestamp":3}},`+flame+`9,"maxSelf":8}},"warnings":["a block is missing"]}`)
	flames.result.Found, flames.result.Flame.Total, flames.result.Flame.Warnings = false, 0, nil
	checkResponse(t, o, "/exemplar/flamegraph?profile_id=p", http.StatusOK,
		`"data":{"exemplar":null,`+flame+`0,"maxSelf":8}},"warnings":["the profile is not ingested yet, or it has no matching samples"]}`)
	flames.result.Flame.Total = 1
	checkResponse(t, o, "/exemplar/flamegraph?profile_id=p", http.StatusOK, flame+`1,"maxSelf":8}}}`)
}

// A flame graph of a million nodes is written in pieces, and not any further after a failed write.
func TestExemplarFlamegraph_LargeResponseIsSentInPieces(t *testing.T) {
	flames, o := flameOptions()
	for range 3000 {
		flames.result.Flame.Levels = append(flames.result.Flame.Levels, make([]int64, 200))
	}
	mux := http.NewServeMux()
	httpapi.New(o).Register(mux, prefix)
	r := func() *http.Request {
		return httptest.NewRequest(http.MethodGet, prefix+"/exemplar/flamegraph?profile_id=p", nil)
	}
	whole := newDiscard()
	if mux.ServeHTTP(whole, r()); whole.total < 1_200_000 || whole.largest > 500_000 {
		t.Errorf("%d bytes, %d at once", whole.total, whole.largest)
	}
	cut := &stuckWriter{header: http.Header{}, left: 1}
	func() {
		defer func() {
			if cause := recover(); !reflect.DeepEqual(cause, http.ErrAbortHandler) {
				t.Errorf("%v", cause)
			}
		}()
		mux.ServeHTTP(cut, r())
	}()
	if cut.after != 1 {
		t.Errorf("%d writes after the first", cut.after-1)
	}
}
