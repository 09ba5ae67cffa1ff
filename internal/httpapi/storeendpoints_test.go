package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/exemplar"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// recordingStores implements httpapi.Stores with fixed results. It records the arguments of the latest call, and fails if err is set.
type recordingStores struct {
	listedStores
	statuses []fanout.Status
	groups   []storeapi.RuleGroup
	err      error
	late     bool // series and targets arrive when the context has ended

	r    fanout.Request
	call string
	ctx  context.Context
}

func (s *recordingStores) note(ctx context.Context, call ...any) {
	s.ctx, s.call = ctx, strings.TrimSpace(fmt.Sprintln(call...))
}

func (s *recordingStores) Statuses() []fanout.Status { return s.statuses }

func (s *recordingStores) Query(r fanout.Request) httpapi.StoreQuery {
	s.r = r
	return s
}

func (s *recordingStores) Querier(mint, maxt int64) (storage.Querier, error) {
	s.note(context.Background(), s.r.ReplicaLabels, time.Duration(s.r.MaxResolutionMS)*time.Millisecond, mint, maxt)
	return recordingQuerier{storage.NoopQuerier(), s}, s.err
}

func (s *recordingStores) Exemplars(ctx context.Context, start, end int64, selectors [][]*labels.Matcher) ([]exemplar.QueryResult, annotations.Annotations, error) {
	s.note(ctx, s.r.ReplicaLabels, start, end, selectors)
	one := exemplar.Exemplar{Labels: labels.FromStrings("t", "x"), Value: 0.5, Ts: 1500, HasTs: true}
	return []exemplar.QueryResult{{SeriesLabels: labels.FromStrings("a", "1"), Exemplars: []exemplar.Exemplar{one, one}}, {}}, nil, s.err
}

func (s *recordingStores) MetricMetadata(ctx context.Context, metric string, limit int) (map[string][]metadata.Metadata, annotations.Annotations, error) {
	s.note(ctx, metric, limit)
	return map[string][]metadata.Metadata{
		"b": {{Type: model.MetricTypeGauge, Unit: "u", Help: "h"}},
		"a": {{Type: model.MetricTypeCounter, Help: "1"}, {Type: model.MetricTypeCounter, Help: "2"}},
	}, annotations.New().Add(errors.New("store x is missing")), s.err
}

func (s *recordingStores) Targets(ctx context.Context, state string) (storeapi.Targets, annotations.Annotations, error) {
	s.note(ctx, state)
	return storeapi.Targets{}, nil, s.err
}

func (s *recordingStores) Rules(ctx context.Context, kind string, _ [][]*labels.Matcher) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	s.note(ctx, kind)
	return s.groups, nil, s.err
}

type recordingQuerier struct {
	storage.Querier
	stores *recordingStores
}

func (q recordingQuerier) Select(ctx context.Context, sorted bool, hints *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	if q.stores.late {
		<-ctx.Done()
		return storage.ErrSeriesSet(ctx.Err())
	}
	return q.Querier.Select(ctx, sorted, hints, matchers...)
}

// responseOf requests a path of an API.
func responseOf(o httpapi.Options, path string) *httptest.ResponseRecorder {
	if o.Parser == nil {
		o.Parser = parser.NewParser(parser.Options{})
	}
	mux := http.NewServeMux()
	httpapi.New(o).Register(mux, prefix)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, prefix+path, nil))
	return w
}

// checkResponse checks the status and the body of the response to a path, which ends with want.
func checkResponse(t *testing.T, o httpapi.Options, path string, status int, want string) {
	t.Helper()
	if w := responseOf(o, path); w.Code != status || !strings.HasSuffix(w.Body.String(), want) {
		t.Errorf("%s: %d %s\nwant %d %s", path, w.Code, w.Body, status, want)
	}
}

func TestAPI_StoresAreListedByComponent(t *testing.T) {
	at := time.Unix(1, 0).UTC()
	stores := &recordingStores{statuses: []fanout.Status{
		{Name: "b", LastCheck: at, LastError: errors.New(`no "route"`), MinMS: -1, MaxMS: 2},
		{Name: "a", Component: "store", LastCheck: at, LabelSets: []labels.Labels{labels.FromStrings("x", "1"), labels.FromStrings("y", "2")}, MaxMS: 5},
		{Name: "c", Component: "store", LastCheck: at},
	}}
	checkResponse(t, httpapi.Options{Stores: stores}, "/stores", http.StatusOK, `{"status":"success","data":{"store":[`+
		`{"name":"a","lastCheck":"1970-01-01T00:00:01Z","lastError":null,"labelSets":[{"x":"1"},{"y":"2"}],"minTime":0,"maxTime":5},`+
		`{"name":"c","lastCheck":"1970-01-01T00:00:01Z","lastError":null,"labelSets":[],"minTime":0,"maxTime":0}],"unknown-store-api":[`+
		`{"name":"b","lastCheck":"1970-01-01T00:00:01Z","lastError":"no \"route\"","labelSets":[],"minTime":-1,"maxTime":2}]}}`)
	checkResponse(t, httpapi.Options{Stores: &recordingStores{}}, "/stores", http.StatusOK, `"data":{}}`)
}

func TestAPI_MetadataOfStoresIsLimited(t *testing.T) {
	const (
		first = `{"type":"counter","unit":"","help":"1"}`
		both  = `"a":[` + first + `,{"type":"counter","unit":"","help":"2"}]`
		b     = `"b":[{"type":"gauge","unit":"u","help":"h"}]`
		end   = `},"warnings":["store x is missing"]}`
	)
	stores := &recordingStores{}
	for query, want := range map[string]string{
		"": both + "," + b, "limit=2": both + "," + b, "limit=1": both, "limit=0": "", "limit=-5": both + "," + b,
		"limit_per_metric=2": both + "," + b, "limit_per_metric=1": `"a":[` + first + `],` + b, "limit_per_metric=0": both + "," + b,
	} {
		checkResponse(t, httpapi.Options{Stores: stores}, "/metadata?"+query, http.StatusOK, `{"status":"success","data":{`+want+end)
	}
	if checkResponse(t, httpapi.Options{Stores: stores}, "/metadata?metric=m&limit=3", http.StatusOK, end); stores.call != "m 3" {
		t.Errorf("the stores got %q", stores.call)
	}
	for query, want := range map[string]string{
		"limit=x": "limit must be a number", "limit_per_metric=x": "limit_per_metric must be a number", "partial_response=x": `invalid parameter \"partial_response\": strconv.ParseBool: parsing \"x\": invalid syntax`,
	} {
		checkResponse(t, httpapi.Options{Stores: stores}, "/metadata?"+query, http.StatusBadRequest, want+`"}`)
	}
}

func TestAPI_ExemplarsOfStores(t *testing.T) {
	stores := &recordingStores{}
	o := httpapi.Options{Stores: stores}
	const one = `{"labels":{"t":"x"},"value":"0.5","timestamp":1.500}`
	checkResponse(t, o, "/query_exemplars?query=up%2Bdown&start=1&end=2&replicaLabels[]=r", http.StatusOK,
		`{"status":"success","data":[{"seriesLabels":{"a":"1"},"exemplars":[`+one+`,`+one+`]},{"seriesLabels":{},"exemplars":[]}]}`)
	if want := `[r] 1000 2000 [[__name__="up"] [__name__="down"]]`; stores.call != want {
		t.Errorf("the stores got %q, want %q", stores.call, want)
	}
	checkResponse(t, o, "/query_exemplars?query=up&start=2&end=2", http.StatusOK, `]}`)
	checkResponse(t, o, "/query_exemplars?query=up&start=2&end=1.999", http.StatusBadRequest, `end timestamp must not be before start timestamp"}`)
	checkResponse(t, o, "/query_exemplars?query=up&dedup=x", http.StatusBadRequest, `invalid syntax"}`)
}

// Rules and alerts that the stores return are those of the response, in order.
func TestAPI_AlertsOfSeveralRulesOfStores(t *testing.T) {
	alert := func(name string) storeapi.Alert {
		return storeapi.Alert{Labels: labels.FromStrings("n", name), State: "pending", Value: "1"}
	}
	text := func(name string) string {
		return `{"labels":{"n":"` + name + `"},"annotations":{},"state":"pending","value":"1"}`
	}
	stores := &recordingStores{groups: []storeapi.RuleGroup{
		{Name: "g", File: "f", Rules: []storeapi.Rule{
			{Alerting: true, Name: "A", Alerts: []storeapi.Alert{alert("1"), alert("2")}},
			{Name: "r", Query: "up", Labels: labels.FromStrings("l", "v"), Health: "ok"},
		}},
		{Name: "h", File: "f", Rules: []storeapi.Rule{{Alerting: true, Name: "A", Alerts: []storeapi.Alert{alert("3")}}}},
	}}
	o := httpapi.Options{Stores: stores}
	if checkResponse(t, o, "/alerts", http.StatusOK, `"data":{"alerts":[`+text("1")+`,`+text("2")+`,`+text("3")+`]}}`); stores.call != "alert" {
		t.Errorf("the stores got %q", stores.call)
	}
	for query, want := range map[string]string{"": "all", "type=": "all", "type=ALERT": "alert", "type=record": "record"} {
		if responseOf(o, "/rules?"+query); stores.call != want {
			t.Errorf("%s: the stores got %q", query, stores.call)
		}
	}
	const end = `"evaluationTime":0,"lastEvaluation":"0001-01-01T00:00:00Z"`
	checkResponse(t, o, "/rules?rule_name[]=r&file[]=f", http.StatusOK,
		`"data":{"groups":[{"name":"g","file":"f","rules":[{"name":"r","query":"up","health":"ok",`+end+`,"type":"recording","labels":{"l":"v"}}],"interval":0,"limit":0,`+end+`}]}}`)
}

func TestAPI_StatesOfTargetsReachTheStores(t *testing.T) {
	stores := &recordingStores{}
	for query, want := range map[string]string{"": "any", "state=any": "any", "state=ACTIVE": "active", "state=dropped": "dropped"} {
		if w := responseOf(httpapi.Options{Stores: stores}, "/targets?"+query); stores.call != want || w.Code != http.StatusOK {
			t.Errorf("%s: %q, %d", query, stores.call, w.Code)
		}
	}
}

func TestAPI_ErrorsOfStoresAreReturned(t *testing.T) {
	stores := &recordingStores{err: errors.New("all stores are gone")}
	for _, path := range []string{"/metadata", "/query_exemplars?query=up", "/rules", "/alerts", "/targets", "/labels", "/label/a/values", "/series?match[]=up"} {
		checkResponse(t, httpapi.Options{Stores: stores}, path, http.StatusUnprocessableEntity, `"errorType":"execution","error":"all stores are gone"}`)
	}
	for _, path := range []string{"/rules?", "/alerts?", "/targets?", "/labels?", "/label/a/values?", "/series?match[]=up&"} {
		checkResponse(t, httpapi.Options{Stores: &recordingStores{}}, path+"partial_response=x", http.StatusBadRequest, `invalid syntax"}`)
	}
}

// A context whose timer runs on would hold the request's memory until the timeout.
func TestOptions_StoreTimeoutIsReleasedWithTheResponse(t *testing.T) {
	for _, path := range []string{"/metadata", "/query_exemplars?query=up", "/rules", "/alerts", "/targets"} {
		for _, err := range []error{nil, errors.New("gone")} {
			stores := &recordingStores{err: err}
			responseOf(httpapi.Options{Stores: stores, StoreTimeout: time.Hour}, path)
			if _, ok := stores.ctx.Deadline(); !ok || !errors.Is(stores.ctx.Err(), context.Canceled) {
				t.Errorf("%s: deadline %v, %v after the response", path, ok, stores.ctx.Err())
			}
		}
	}
}

// The deadline reaches the stores, so the bare error of the context may arrive while the response is written.
func TestOptions_StoreTimeoutWhileSeriesAreReadIsATimeout(t *testing.T) {
	o := httpapi.Options{Stores: &recordingStores{late: true}, StoreTimeout: time.Millisecond}
	checkResponse(t, o, "/series?match[]=up", http.StatusServiceUnavailable, `"errorType":"timeout","error":"the stores have not responded in time: context deadline exceeded"}`)
	failed := httpapi.Options{Stores: &failingStores{err: errors.New("gone")}, StoreTimeout: time.Hour}
	checkResponse(t, failed, "/series?match[]=up", http.StatusUnprocessableEntity, `"errorType":"execution","error":"gone"}`)
	named := httpapi.Options{Stores: &failingStores{err: context.DeadlineExceeded}} // without a timeout it is that of a store
	checkResponse(t, named, "/series?match[]=up", http.StatusUnprocessableEntity, `"errorType":"execution","error":"context deadline exceeded"}`)
}

// failingStores implements httpapi.Stores with selections that fail.
type failingStores struct {
	listedStores
	err error
}

func (s *failingStores) Query(fanout.Request) httpapi.StoreQuery { return s }

func (s *failingStores) Querier(int64, int64) (storage.Querier, error) {
	return failingQuerier{f: failing{selected: s.err}}, nil
}

func TestOptions_MetadataRangeIsTheDefaultOfLists(t *testing.T) {
	stores := &recordingStores{}
	o := httpapi.Options{Stores: stores, StoreDefaults: httpapi.StoreDefaults{MetadataRange: time.Hour}, Now: func() time.Time { return time.Unix(10_000, 0) }}
	for query, want := range map[string]string{
		"": "6400000 10000000", "start=1": "1000 10000000", "end=7000": "6400000 7000000", "start=2&end=2": "2000 2000",
	} {
		for _, path := range []string{"/labels?", "/label/a/values?", "/series?match[]=up&"} {
			if w := responseOf(o, path+query); w.Code != http.StatusOK || !strings.HasSuffix(stores.call, " "+want) {
				t.Errorf("%s%s: %d, %s, want %s", path, query, w.Code, stores.call, want)
			}
		}
	}
	for query, want := range map[string]string{
		"start=x": "invalid time value for 'start'", "end=x": "invalid time value for 'end'", "start=10001": "end timestamp must not be before start time", "end=6399": "end timestamp must not be before start time",
	} {
		if w := responseOf(o, "/labels?"+query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %s", query, w.Code, w.Body)
		}
	}
}
