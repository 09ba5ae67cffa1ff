package httpapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/httpapi"
	"github.com/ferula-io/ferula/internal/thanos/fanout"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// listedStores are stores with one target and one rule group.
type listedStores struct{ httpapi.StoreQuery }

func (s listedStores) Query(fanout.Request) httpapi.StoreQuery { return s }

func (listedStores) Statuses() []fanout.Status { return nil }

func (listedStores) Targets(context.Context, string) (storeapi.Targets, annotations.Annotations, error) {
	return storeapi.Targets{
		Active:  []storeapi.ActiveTarget{{Labels: labels.FromStrings("a", "1"), ScrapePool: "p", ScrapeURL: "u", GlobalURL: "g", Health: "up", LastScrape: time.Unix(1, 5e8).UTC(), LastScrapeSeconds: 0.25}},
		Dropped: []labels.Labels{labels.FromStrings("b", "2")},
	}, annotations.New().Add(errors.New("store x is missing")), nil
}

func (listedStores) Rules(_ context.Context, _ string, matchers [][]*labels.Matcher) ([]storeapi.RuleGroup, annotations.Annotations, error) {
	at := time.Unix(1, 0).UTC()
	if fmt.Sprint(matchers) == `[[l="none"] [m=~"a.*"]]` {
		return nil, nil, nil
	}
	return []storeapi.RuleGroup{{Name: "n", File: "f", IntervalSeconds: 15, Limit: 3, LastEvaluation: at, Rules: []storeapi.Rule{
		{Name: "r", Query: "up", Health: "err", LastError: "e", LastEvaluation: at},
		{
			Alerting: true, Name: "A", Query: "1", State: "firing", Health: "ok", DurationSeconds: 60, LastEvaluation: at,
			Alerts: []storeapi.Alert{{Labels: labels.FromStrings("l", "m"), State: "firing", Value: "1e+00", ActiveAt: at}},
		},
	}}}, nil, nil
}

func TestAPI_TargetsAndRulesOfStoresHavePrometheusFormat(t *testing.T) {
	mux := http.NewServeMux()
	httpapi.New(httpapi.Options{Stores: listedStores{}, Parser: parser.NewParser(parser.Options{})}).Register(mux, "/api/v1")
	const (
		recording = `{"name":"r","query":"up","health":"err","lastError":"e","evaluationTime":0,"lastEvaluation":"1970-01-01T00:00:01Z","type":"recording"}`
		alert     = `{"labels":{"l":"m"},"annotations":{},"state":"firing","activeAt":"1970-01-01T00:00:01Z","value":"1e+00"}`
		alerting  = `{"state":"firing","name":"A","query":"1","duration":60,"keepFiringFor":0,"labels":{},"annotations":{},"alerts":[` + alert + `],"health":"ok","evaluationTime":0,"lastEvaluation":"1970-01-01T00:00:01Z","type":"alerting"}`
		before    = `{"status":"success","data":{"groups":[{"name":"n","file":"f","rules":[`
		after     = `],"interval":15,"limit":3,"evaluationTime":0,"lastEvaluation":"1970-01-01T00:00:01Z"}]}}`
		none      = `{"status":"success","data":{"groups":[]}}`
	)
	for path, want := range map[string]string{
		"/targets": `{"status":"success","data":{"activeTargets":[{"discoveredLabels":{},"labels":{"a":"1"},"scrapePool":"p","scrapeUrl":"u","globalUrl":"g","lastError":"","lastScrape":"1970-01-01T00:00:01.5Z","lastScrapeDuration":0.25,"health":"up"}],` +
			`"droppedTargets":[{"discoveredLabels":{"b":"2"}}]},"warnings":["store x is missing"]}`,
		"/rules":                              before + recording + "," + alerting + after,
		"/rules?rule_name[]=r":                before + recording + after,
		"/rules?rule_name[]=A&rule_group[]=n": before + alerting + after,
		"/rules?file[]=f&file[]=g":            before + recording + "," + alerting + after,
		"/rules?rule_name[]=x":                none,
		"/rules?rule_group[]=x":               none,
		"/rules?file[]=x":                     none,
		"/alerts":                             `{"status":"success","data":{"alerts":[` + alert + `]}}`,
		"/rules?match[]={l=%22none%22}&match[]={m=~%22a.*%22}": none,
		"/rules?match[]=%7B": `{"status":"error","errorType":"bad_data","error":"invalid parameter \"match[]\": 1:2: parse error: unexpected end of input inside braces"}`,
		"/rules?type=x":      `{"status":"error","errorType":"bad_data","error":"invalid parameter \"type\": not supported value \"x\""}`,
		"/targets?state=x":   `{"status":"error","errorType":"bad_data","error":"invalid parameter \"state\": \"x\" is not one of any, active, dropped"}`,
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1"+path, nil))
		if got := w.Body.String(); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", path, got, want)
		}
	}
}
