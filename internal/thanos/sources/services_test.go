package sources

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/process/telemetry"
	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Thanos adds the external labels to rules and targets, and not to the alerts of a rule.
func TestPrometheus_RulesAndTargetsGetExternalLabels(t *testing.T) {
	status := http.StatusOK
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		switch r.URL.Path {
		case "/api/v1/rules":
			fmt.Fprint(w, `{"status":"success","data":{"groups":[{"name":"g","rules":[{"type":"alerting","name":"A","labels":{"a":"1","cluster":"own"},"alerts":[{"labels":{"x":"1"}}]}]}]},"warnings":["w"]}`)
		case "/api/v1/targets":
			fmt.Fprint(w, `{"status":"success","data":{"activeTargets":[{"discoveredLabels":{"d":"1"},"labels":{"job":"j"}}],"droppedTargets":[{"discoveredLabels":{"z":"1"}}]}}`)
		case "/api/v1/metadata":
			fmt.Fprint(w, `{"status":"success","data":{"up":[{"type":"gauge","help":"h","unit":""}]}}`)
		default:
			fmt.Fprint(w, `{"status":"success","data":{"headStats":{"numSeries":5}}}`)
		}
	}))
	defer server.Close()
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	s := NewPrometheus(PrometheusOptions{URL: u, HTTP: server.Client()}, telemetry.New())
	s.external = labels.FromStrings("cluster", "eu")
	groups, warnings, err := s.Rules(t.Context(), storeapi.RulesRequest{Type: "all"})
	if err != nil || len(warnings) != 1 || groups[0].Rules[0].Labels.String() != `{a="1", cluster="eu"}` || groups[0].Rules[0].Alerts[0].Labels.Len() != 1 {
		t.Errorf("%+v, %v", groups, err)
	}
	targets, _, err := s.Targets(t.Context(), storeapi.TargetsRequest{State: "any"})
	if err != nil || targets.Active[0].Labels.String() != `{cluster="eu", job="j"}` || targets.Active[0].Discovered.Len() != 2 || targets.Dropped[0].Len() != 2 {
		t.Errorf("%+v, %v", targets, err)
	}
	if found, _, err := s.MetricMetadata(t.Context(), storeapi.MetadataRequest{Limit: -1}); err != nil || len(found["up"]) != 1 {
		t.Error(found, err)
	}
	for value, want := range map[string]int{"eu": 1, "us": 0} {
		r := storeapi.StatusRequest{Limit: 10, Matchers: []*labels.Matcher{labels.MustNewMatcher(labels.MatchEqual, "cluster", value)}}
		if found, _, err := s.TSDBStatistics(t.Context(), r); err != nil || len(found) != want || want == 1 && found[0].Series != 5 {
			t.Errorf("%s: %+v, %v", value, found, err)
		}
	}
	status = http.StatusServiceUnavailable
	_, _, rulesErr := s.Rules(t.Context(), storeapi.RulesRequest{Type: "all"})
	_, _, targetsErr := s.Targets(t.Context(), storeapi.TargetsRequest{State: "any"})
	_, _, metadataErr := s.MetricMetadata(t.Context(), storeapi.MetadataRequest{Limit: -1})
	_, _, statusErr := s.TSDBStatistics(t.Context(), storeapi.StatusRequest{Limit: 10})
	for _, err := range []error{rulesErr, targetsErr, metadataErr, statusErr} {
		if !errors.Is(err, storeapi.ErrUnavailable) {
			t.Error(err)
		}
	}
}
