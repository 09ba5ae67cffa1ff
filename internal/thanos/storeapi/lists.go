package storeapi

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
	pb "github.com/ferula-io/ferula/internal/thanos/storepb/thanospb"
)

const listFile = "internal/thanos/storepb/apipb/api.proto"

// listDesc describes a service of one method.
func listDesc[In any](service, method string, serve func(*Server, *In, grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{ServiceName: "thanos." + service, HandlerType: (*any)(nil), Metadata: listFile,
		Streams: []grpc.StreamDesc{streamed(method, serve)}}
}

// messageItems is the number of targets or metrics of one message, which bounds its size.
const messageItems = 1000

// sendAll sends the messages, then the warnings.
func sendAll(out grpc.ServerStream, messages []any, warnings []string, warning func(string) any) error {
	for _, w := range warnings {
		messages = append(messages, warning(w))
	}
	for _, m := range messages {
		if err := out.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

func aborting(strategy int32) bool {
	return strategy == int32(pb.PartialResponseStrategy_ABORT)
}

func (s *Server) rules(in *apipb.RulesRequest, out grpc.ServerStream) error {
	if _, known := apipb.RulesRequest_Type_name[int32(in.Type)]; !known {
		return fmt.Errorf("%w: unknown type of rules %d", ErrBadRequest, in.Type)
	}
	groups, warnings, err := s.src.Rules(out.Context(), RulesRequest{
		Type: strings.ToLower(in.Type.String()), Names: in.RuleName, Groups: in.RuleGroup, Files: in.File,
		Matchers: in.MatcherString, AbortOnPartial: aborting(in.PartialResponseStrategy),
	})
	if err != nil {
		return err
	}
	var messages []any
	for i := range groups {
		messages = append(messages, &apipb.RulesResponse{Result: &apipb.RulesResponse_Group{Group: groupTo(&groups[i])}})
	}
	return sendAll(out, messages, warnings, func(w string) any {
		return &apipb.RulesResponse{Result: &apipb.RulesResponse_Warning{Warning: w}}
	})
}

func (s *Server) targets(in *apipb.TargetsRequest, out grpc.ServerStream) error {
	if _, known := apipb.TargetsRequest_State_name[int32(in.State)]; !known {
		return fmt.Errorf("%w: unknown state of targets %d", ErrBadRequest, in.State)
	}
	found, warnings, err := s.src.Targets(out.Context(),
		TargetsRequest{State: strings.ToLower(in.State.String()), AbortOnPartial: aborting(in.PartialResponseStrategy)})
	if err != nil {
		return err
	}
	var messages []any
	add := func(some *apipb.TargetDiscovery) {
		messages = append(messages, &apipb.TargetsResponse{Result: &apipb.TargetsResponse_Targets{Targets: some}})
	}
	for part := range slices.Chunk(found.Active, messageItems) {
		some := &apipb.TargetDiscovery{}
		for i := range part {
			some.ActiveTargets = append(some.ActiveTargets, targetTo(&part[i]))
		}
		add(some)
	}
	for part := range slices.Chunk(found.Dropped, messageItems) {
		some := &apipb.TargetDiscovery{}
		for _, set := range part {
			some.DroppedTargets = append(some.DroppedTargets, &apipb.DroppedTarget{DiscoveredLabels: labelsOut(set)})
		}
		add(some)
	}
	if len(messages) == 0 { // as a sidecar of Thanos
		add(&apipb.TargetDiscovery{})
	}
	return sendAll(out, messages, warnings, func(w string) any {
		return &apipb.TargetsResponse{Result: &apipb.TargetsResponse_Warning{Warning: w}}
	})
}

func (s *Server) metadata(in *apipb.MetricMetadataRequest, out grpc.ServerStream) error {
	found, warnings, err := s.src.MetricMetadata(out.Context(), MetadataRequest{Metric: in.Metric, Limit: int(in.Limit),
		AbortOnPartial: aborting(in.PartialResponseStrategy)})
	if err != nil {
		return err
	}
	var messages []any
	add := func(names []string) {
		some := &apipb.MetricMetadata{Metadata: map[string]*apipb.MetricMetadataEntry{}}
		for _, name := range names {
			entry := &apipb.MetricMetadataEntry{}
			for _, m := range found[name] {
				entry.Metas = append(entry.Metas, &apipb.Meta{Type: string(m.Type), Help: m.Help, Unit: m.Unit})
			}
			some.Metadata[name] = entry
		}
		messages = append(messages, &apipb.MetricMetadataResponse{
			Result: &apipb.MetricMetadataResponse_Metadata{Metadata: some}})
	}
	if len(found) == 0 { // as a sidecar of Thanos
		add(nil)
	}
	for names := range slices.Chunk(slices.Sorted(maps.Keys(found)), messageItems) {
		add(names)
	}
	return sendAll(out, messages, warnings, func(w string) any {
		return &apipb.MetricMetadataResponse{Result: &apipb.MetricMetadataResponse_Warning{Warning: w}}
	})
}

func groupTo(g *RuleGroup) *apipb.RuleGroup {
	group := &apipb.RuleGroup{
		Name: g.Name, File: g.File, Interval: g.IntervalSeconds, EvaluationDurationSeconds: g.EvaluationSeconds,
		Limit:          g.Limit,
		LastEvaluation: timestampOf(g.LastEvaluation), PartialResponseStrategy: int32(pb.PartialResponseStrategy_ABORT),
	}
	for i := range g.Rules {
		r := &g.Rules[i]
		if r.Alerting {
			group.Rules = append(group.Rules, &apipb.Rule{Result: &apipb.Rule_Alert{Alert: alertingTo(r)}})
			continue
		}
		group.Rules = append(group.Rules, &apipb.Rule{Result: &apipb.Rule_Recording{Recording: &apipb.RecordingRule{
			Name: r.Name, Query: r.Query, Labels: labelsOut(r.Labels), Health: r.Health, LastError: r.LastError,
			EvaluationDurationSeconds: r.EvaluationSeconds, LastEvaluation: timestampOf(r.LastEvaluation),
		}}})
	}
	return group
}

func alertingTo(r *Rule) *apipb.Alert {
	alert := &apipb.Alert{
		Name: r.Name, Query: r.Query, Labels: labelsOut(r.Labels), Health: r.Health, LastError: r.LastError,
		EvaluationDurationSeconds: r.EvaluationSeconds, LastEvaluation: timestampOf(r.LastEvaluation),
		State: stateTo(r.State), DurationSeconds: r.DurationSeconds, KeepFiringForSeconds: r.KeepFiringSeconds,
		Annotations: labelsOut(r.Annotations),
	}
	for i := range r.Alerts {
		a := &r.Alerts[i]
		alert.Alerts = append(alert.Alerts, &apipb.AlertInstance{
			Labels: labelsOut(a.Labels), Annotations: labelsOut(a.Annotations), State: stateTo(a.State), Value: a.Value,
			ActiveAt: timestampOf(a.ActiveAt),
		})
	}
	return alert
}

func targetTo(t *ActiveTarget) *apipb.ActiveTarget {
	health := apipb.TargetHealth_HEALTH_UNKNOWN
	switch t.Health {
	case "up":
		health = apipb.TargetHealth_UP
	case "down":
		health = apipb.TargetHealth_DOWN
	}
	return &apipb.ActiveTarget{
		DiscoveredLabels: labelsOut(t.Discovered), Labels: labelsOut(t.Labels), ScrapePool: t.ScrapePool,
		ScrapeUrl: t.ScrapeURL, GlobalUrl: t.GlobalURL,
		LastError: t.LastError, LastScrape: timestampOf(t.LastScrape), LastScrapeDuration: t.LastScrapeSeconds,
		Health: health,
	}
}

// stateTo returns UNKNOWN for a state without a number.
func stateTo(text string) apipb.AlertState {
	return apipb.AlertState(apipb.AlertState_value[strings.ToUpper(text)])
}

// timestampOf is the inverse of timeOf.
func timestampOf(at time.Time) *apipb.Timestamp {
	if at.IsZero() {
		return nil
	}
	return &apipb.Timestamp{Seconds: at.Unix(), Nanos: int32(at.Nanosecond())}
}

func labelsOut(set labels.Labels) *apipb.LabelSet {
	out := &apipb.LabelSet{}
	set.Range(func(l labels.Label) { out.Labels = append(out.Labels, &apipb.Label{Name: l.Name, Value: l.Value}) })
	return out
}
