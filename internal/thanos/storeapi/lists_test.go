package storeapi

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/metadata"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// listing is a source of lists. It has no series.
type listing struct {
	Source
	groups   []RuleGroup
	targets  Targets
	metadata map[string][]metadata.Metadata
	err      error

	rules RulesRequest
	state TargetsRequest
	of    string
}

// Capabilities implements Source.
func (*listing) Capabilities() Capabilities {
	return Capabilities{Rules: true, Targets: true, MetricMetadata: true}
}

func (l *listing) Rules(_ context.Context, r RulesRequest) ([]RuleGroup, []string, error) {
	l.rules = r
	return l.groups, []string{"w"}, l.err
}

func (l *listing) Targets(_ context.Context, r TargetsRequest) (Targets, []string, error) {
	l.state = r
	return l.targets, []string{"w"}, l.err
}

func (l *listing) MetricMetadata(_ context.Context, r MetadataRequest) (map[string][]metadata.Metadata, []string, error) {
	l.of = fmt.Sprint(r.Metric, " ", r.Limit, " ", r.AbortOnPartial)
	return l.metadata, []string{"w"}, l.err
}

func TestServer_ListsArriveAsTheyAre(t *testing.T) {
	at := time.Unix(1000, 5).UTC()
	l := &listing{
		groups: []RuleGroup{
			{Name: "n", File: "f", IntervalSeconds: 2, EvaluationSeconds: 0.5, Limit: 3, LastEvaluation: at, Rules: []Rule{
				{Name: "r", Query: "q", Labels: labels.FromStrings("a", "1"), Health: "ok", LastError: "e", EvaluationSeconds: 4, LastEvaluation: at},
				{
					Alerting: true, Name: "A", Query: "q", Labels: labels.FromStrings("b", "2"), State: "firing", DurationSeconds: 5, KeepFiringSeconds: 6, Annotations: labels.FromStrings("x", "y"),
					Alerts: []Alert{{Labels: labels.FromStrings("l", "m"), State: "pending", ActiveAt: at, Value: "1e+00"}},
				},
				{Alerting: true, Name: "U", State: "unknown"},
			}},
			{Name: "empty"},
		},
		metadata: map[string][]metadata.Metadata{"m": {{Type: "counter", Help: "h", Unit: "u"}, {Type: "gauge"}}},
	}
	for i := range 2*messageItems + 1 {
		health := []string{"up", "down", "unknown"}[i%3]
		l.targets.Active = append(l.targets.Active, ActiveTarget{
			Discovered: labels.FromStrings("d", fmt.Sprint(i)), Labels: labels.FromStrings("l", fmt.Sprint(i)), ScrapePool: "p", ScrapeURL: "u", GlobalURL: "g",
			Health: health, LastError: "e", LastScrape: at, LastScrapeSeconds: 0.5,
		})
		l.targets.Dropped = append(l.targets.Dropped, labels.FromStrings("x", fmt.Sprint(i)))
		l.metadata[fmt.Sprint("m", i)] = []metadata.Metadata{{Type: "gauge", Help: fmt.Sprint(i)}}
	}
	client := NewClient(connect(t, NewServer(l, ServerOptions{}).registerAll, GRPCServerOptions()...), ClientOptions{})
	request := RulesRequest{Type: "alert", Names: []string{"A"}, Groups: []string{"n"}, Files: []string{"f"}, Matchers: []string{`{a="1"}`}, AbortOnPartial: true}
	groups, warnings, err := client.Rules(t.Context(), request)
	if err != nil || !reflect.DeepEqual(groups, l.groups) || len(warnings) != 1 || !reflect.DeepEqual(l.rules, request) {
		t.Errorf("rules: %v %q %+v; request %+v", err, warnings, groups, l.rules)
	}
	targets, warnings, err := client.Targets(t.Context(), TargetsRequest{State: "dropped"})
	if err != nil || !reflect.DeepEqual(targets, l.targets) || len(warnings) != 1 || l.state != (TargetsRequest{State: "dropped"}) {
		t.Errorf("targets: %v %q, %d and %d", err, warnings, len(targets.Active), len(targets.Dropped))
	}
	found, warnings, err := client.MetricMetadata(t.Context(), MetadataRequest{Metric: "m", Limit: 7})
	if err != nil || !reflect.DeepEqual(found, l.metadata) || len(warnings) != 1 || l.of != "m 7 false" {
		t.Errorf("metadata: %v %q %d; request %s", err, warnings, len(found), l.of)
	}
	l.err = fmt.Errorf("%w: store s", ErrUnavailable)
	if _, _, err := client.Rules(t.Context(), RulesRequest{Type: "all"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("rules: %v", err)
	}
	if _, _, err := client.Targets(t.Context(), TargetsRequest{State: "any"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("targets: %v", err)
	}
	if _, _, err := client.MetricMetadata(t.Context(), MetadataRequest{Limit: -1}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("metadata: %v", err)
	}
}

// registerAll registers the services as a server of a process does.
func (s *Server) registerAll(to *grpc.Server) { s.Register(to) }

func TestServer_RefusesUnknownKindsOfLists(t *testing.T) {
	client := NewClient(connect(t, NewServer(&listing{}, ServerOptions{}).registerAll, GRPCServerOptions()...), ClientOptions{})
	_, err := receive(t.Context(), client, "/thanos.Rules/Rules", &apipb.RulesRequest{Type: 9}, "", func(*apipb.RulesResponse) int { return 0 })
	if !errors.Is(err, ErrBadRequest) {
		t.Errorf("rules: %v", err)
	}
	_, err = receive(t.Context(), client, "/thanos.Targets/Targets", &apipb.TargetsRequest{State: 9}, "", func(*apipb.TargetsResponse) int { return 0 })
	if !errors.Is(err, ErrBadRequest) {
		t.Errorf("targets: %v", err)
	}
}
