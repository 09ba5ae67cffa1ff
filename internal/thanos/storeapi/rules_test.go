package storeapi

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// listHandler serves one method: it sends messages and then returns err.
func listHandler[In any](service, method string, in *In, err error, messages ...any) func(*grpc.Server) {
	return func(s *grpc.Server) {
		s.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
			StreamName: method, ServerStreams: true, Handler: func(_ any, stream grpc.ServerStream) error {
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				for _, m := range messages {
					if err := stream.SendMsg(m); err != nil {
						return err
					}
				}
				return err
			},
		}}}, struct{}{})
	}
}

func set(pairs ...string) *apipb.LabelSet {
	s := &apipb.LabelSet{}
	for i := 0; i < len(pairs); i += 2 {
		s.Labels = append(s.Labels, &apipb.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	return s
}

var listedAt = &apipb.Timestamp{Seconds: 1000, Nanos: 5}

func TestClient_TargetsOfAllMessages(t *testing.T) {
	var in apipb.TargetsRequest
	messages := []any{
		&apipb.TargetsResponse{Result: &apipb.TargetsResponse_Targets{Targets: &apipb.TargetDiscovery{ActiveTargets: []*apipb.ActiveTarget{
			{DiscoveredLabels: set("b", "2", "a", "1"), ScrapePool: "p", ScrapeUrl: "u", GlobalUrl: "g", LastError: "e", LastScrape: listedAt, LastScrapeDuration: 0.5, Health: apipb.TargetHealth_DOWN},
		}}}},
		&apipb.TargetsResponse{Result: &apipb.TargetsResponse_Warning{Warning: "w"}},
		&apipb.TargetsResponse{Result: &apipb.TargetsResponse_Targets{Targets: &apipb.TargetDiscovery{DroppedTargets: []*apipb.DroppedTarget{{DiscoveredLabels: set("c", "3")}, {}}}}},
	}
	got, warnings, err := NewClient(connect(t, listHandler("thanos.Targets", "Targets", &in, nil, messages...)), ClientOptions{}).Targets(t.Context(), TargetsRequest{State: "dropped", AbortOnPartial: true})
	want := Targets{
		Active: []ActiveTarget{{
			Discovered: labels.FromStrings("a", "1", "b", "2"), ScrapePool: "p", ScrapeURL: "u", GlobalURL: "g", LastError: "e", Health: "down",
			LastScrape: time.Unix(1000, 5).UTC(), LastScrapeSeconds: 0.5,
		}},
		Dropped: []labels.Labels{labels.FromStrings("c", "3"), labels.EmptyLabels()},
	}
	if err != nil || !reflect.DeepEqual(got, want) || len(warnings) != 1 || in.State != apipb.TargetsRequest_DROPPED || in.PartialResponseStrategy != int32(strategy(true)) {
		t.Errorf("%v %v %+v; request %v", err, warnings, got, &in)
	}
}

func TestClient_RulesOfAllMessages(t *testing.T) {
	var in apipb.RulesRequest
	group := &apipb.RuleGroup{Name: "n", File: "f", Interval: 2, EvaluationDurationSeconds: 0.5, Limit: 3, LastEvaluation: listedAt, Rules: []*apipb.Rule{
		{Result: &apipb.Rule_Recording{Recording: &apipb.RecordingRule{Name: "r", Query: "q", Labels: set("a", "1"), Health: "ok", LastError: "e", EvaluationDurationSeconds: 4, LastEvaluation: listedAt}}},
		{},
		{Result: &apipb.Rule_Alert{Alert: &apipb.Alert{
			Name: "A", Query: "q", State: apipb.AlertState_FIRING, DurationSeconds: 5, KeepFiringForSeconds: 6, Annotations: set("x", "y"),
			Alerts: []*apipb.AlertInstance{{Labels: set("l", "m"), State: apipb.AlertState_PENDING, ActiveAt: listedAt, Value: "1e+00"}},
		}}},
	}}
	messages := []any{&apipb.RulesResponse{Result: &apipb.RulesResponse_Warning{Warning: "w"}}, &apipb.RulesResponse{Result: &apipb.RulesResponse_Group{Group: group}}}
	got, warnings, err := NewClient(connect(t, listHandler("thanos.Rules", "Rules", &in, nil, messages...)), ClientOptions{}).Rules(t.Context(), RulesRequest{Type: "alert"})
	at := time.Unix(1000, 5).UTC()
	want := []RuleGroup{{Name: "n", File: "f", IntervalSeconds: 2, EvaluationSeconds: 0.5, Limit: 3, LastEvaluation: at, Rules: []Rule{
		{Name: "r", Query: "q", Labels: labels.FromStrings("a", "1"), Health: "ok", LastError: "e", EvaluationSeconds: 4, LastEvaluation: at},
		{
			Alerting: true, Name: "A", Query: "q", State: "firing", DurationSeconds: 5, KeepFiringSeconds: 6, Annotations: labels.FromStrings("x", "y"),
			Alerts: []Alert{{Labels: labels.FromStrings("l", "m"), State: "pending", ActiveAt: at, Value: "1e+00"}},
		},
	}}}
	if err != nil || !reflect.DeepEqual(got, want) || len(warnings) != 1 || in.Type != apipb.RulesRequest_ALERT {
		t.Errorf("%v %v %+v; request %v", err, warnings, got, &in)
	}
}

// The lists of all stores are one response: what it cannot have is an error of the store that sent it.
func TestClient_ElementThatJSONCannotHaveIsAnError(t *testing.T) {
	late := &apipb.Timestamp{Seconds: 1 << 40}
	rule := func(a *apipb.Alert) []*apipb.Rule { return []*apipb.Rule{{Result: &apipb.Rule_Alert{Alert: a}}} }
	for want, group := range map[string]*apipb.RuleGroup{
		"rule group g: ":             {Name: "g", LastEvaluation: late},
		"rule r: ":                   {Rules: rule(&apipb.Alert{Name: "r", LastEvaluation: late})},
		"alert of rule with alert: ": {Rules: rule(&apipb.Alert{Name: "with alert", Alerts: []*apipb.AlertInstance{{ActiveAt: late}}})},
		"rule NaN: ":                 {Rules: rule(&apipb.Alert{Name: "NaN", EvaluationDurationSeconds: math.NaN()})},
		"rule group Inf: ":           {Name: "Inf", EvaluationDurationSeconds: math.Inf(1)},
	} {
		conn := connect(t, listHandler("thanos.Rules", "Rules", &apipb.RulesRequest{}, nil, &apipb.RulesResponse{Result: &apipb.RulesResponse_Group{Group: group}}))
		if _, _, err := NewClient(conn, ClientOptions{}).Rules(t.Context(), RulesRequest{}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for _, target := range []*apipb.ActiveTarget{{ScrapeUrl: "u", LastScrape: late}, {ScrapeUrl: "u", LastScrapeDuration: math.NaN()}} {
		found := &apipb.TargetDiscovery{ActiveTargets: []*apipb.ActiveTarget{target}}
		conn := connect(t, listHandler("thanos.Targets", "Targets", &apipb.TargetsRequest{}, nil, &apipb.TargetsResponse{Result: &apipb.TargetsResponse_Targets{Targets: found}}))
		if _, _, err := NewClient(conn, ClientOptions{}).Targets(t.Context(), TargetsRequest{}); err == nil || !strings.Contains(err.Error(), "target u: ") {
			t.Errorf("%v: %v", target, err)
		}
	}
}

func TestClient_CutListIsAnError(t *testing.T) {
	var in apipb.RulesRequest
	gone := status.Error(codes.Unavailable, "gone")
	conn := connect(t, listHandler("thanos.Rules", "Rules", &in, gone, &apipb.RulesResponse{Result: &apipb.RulesResponse_Group{Group: &apipb.RuleGroup{}}}))
	if _, _, err := NewClient(conn, ClientOptions{}).Rules(t.Context(), RulesRequest{}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}
