// Package localrules serves Thanos' gRPC service Rules, by which queriers list the rules
// that this process evaluates.
package localrules

import (
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/rules"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// Service serves thanos.Rules.
type Service struct {
	groups   func() []*rules.Group
	parser   parser.Parser
	external func() labels.Labels
}

// New returns a service that lists groups. parser parses the matchers of requests. The service adds the external labels
// to the labels of each rule. An external label replaces a label of the rule that has the same name.
func New(groups func() []*rules.Group, parser parser.Parser, external func() labels.Labels) *Service {
	return &Service{groups, parser, external}
}

// Register registers the service with a gRPC server.
func (s *Service) Register(to grpc.ServiceRegistrar) {
	to.RegisterService(&grpc.ServiceDesc{
		ServiceName: "thanos.Rules",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: "Rules", ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				in := new(pb.RulesRequest)
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				return srv.(*Service).rules(in, stream)
			}}},
		Metadata: "internal/thanos/storepb/apipb/api.proto",
	}, s)
}

// rules sends a message for each group with selected rules.
func (s *Service) rules(in *pb.RulesRequest, out grpc.ServerStream) error {
	matchers, err := s.parser.ParseMetricSelectors(in.MatcherString)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "matcher_string: %v", err)
	}
	selected := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	external := s.external()
	for _, g := range s.groups() {
		if !selected(in.RuleGroup, g.Name()) || !selected(in.File, g.File()) {
			continue
		}
		group := &pb.RuleGroup{
			Name: g.Name(), File: g.File(), Interval: g.Interval().Seconds(), Limit: int64(g.Limit()),
			EvaluationDurationSeconds: g.GetEvaluationTime().Seconds(), LastEvaluation: timestamp(g.GetLastEvaluation()),
			PartialResponseStrategy: abort,
		}
		for _, rule := range g.Rules(matchers...) {
			if !selected(in.RuleName, rule.Name()) {
				continue
			}
			if alerting, ok := rule.(*rules.AlertingRule); !ok && in.Type != pb.RulesRequest_ALERT {
				group.Rules = append(group.Rules, recording(rule, external))
			} else if ok && in.Type != pb.RulesRequest_RECORD {
				group.Rules = append(group.Rules, alert(alerting, external))
			}
		}
		if len(group.Rules) == 0 {
			continue
		}
		if err := out.SendMsg(&pb.RulesResponse{Result: &pb.RulesResponse_Group{Group: group}}); err != nil {
			return err
		}
	}
	return nil
}

// abort is the number of Thanos' partial response strategy ABORT. Thanos uses it for the
// groups of a Prometheus.
const abort = 1

func recording(rule rules.Rule, external labels.Labels) *pb.Rule {
	return &pb.Rule{Result: &pb.Rule_Recording{Recording: &pb.RecordingRule{
		Name: rule.Name(), Query: rule.Query().String(), Labels: labelSet(rule.Labels(), external),
		Health: string(rule.Health()), LastError: lastError(rule),
		EvaluationDurationSeconds: rule.GetEvaluationDuration().Seconds(),
		LastEvaluation:            timestamp(rule.GetEvaluationTimestamp()),
	}}}
}

func alert(rule *rules.AlertingRule, external labels.Labels) *pb.Rule {
	none := labels.EmptyLabels()
	converted := &pb.Alert{
		State: stateOf(rule.State()), Name: rule.Name(), Query: rule.Query().String(),
		DurationSeconds: rule.HoldDuration().Seconds(), KeepFiringForSeconds: rule.KeepFiringFor().Seconds(),
		Labels: labelSet(rule.Labels(), external), Annotations: labelSet(rule.Annotations(), none),
		Health: string(rule.Health()), LastError: lastError(rule),
		EvaluationDurationSeconds: rule.GetEvaluationDuration().Seconds(),
		LastEvaluation:            timestamp(rule.GetEvaluationTimestamp()),
	}
	for _, a := range rule.ActiveAlerts() {
		converted.Alerts = append(converted.Alerts, &pb.AlertInstance{
			Labels: labelSet(a.Labels, none), Annotations: labelSet(a.Annotations, none), State: stateOf(a.State),
			ActiveAt: timestamp(a.ActiveAt), Value: strconv.FormatFloat(a.Value, 'e', -1, 64),
		})
	}
	return &pb.Rule{Result: &pb.Rule_Alert{Alert: converted}}
}

func stateOf(state rules.AlertState) pb.AlertState {
	switch state {
	case rules.StateFiring:
		return pb.AlertState_FIRING
	case rules.StatePending:
		return pb.AlertState_PENDING
	case rules.StateInactive:
		return pb.AlertState_INACTIVE
	}
	return pb.AlertState_UNKNOWN
}

func lastError(rule rules.Rule) string {
	if err := rule.LastError(); err != nil {
		return err.Error()
	}
	return ""
}

func timestamp(at time.Time) *pb.Timestamp {
	return &pb.Timestamp{Seconds: at.Unix(), Nanos: int32(at.Nanosecond())}
}

// labelSet returns own with the external labels, which replace labels of the same names.
func labelSet(own, external labels.Labels) *pb.LabelSet {
	b := labels.NewBuilder(own)
	external.Range(func(l labels.Label) { b.Set(l.Name, l.Value) })
	set := &pb.LabelSet{}
	b.Labels().Range(func(l labels.Label) {
		set.Labels = append(set.Labels, &pb.Label{Name: l.Name, Value: l.Value})
	})
	return set
}
