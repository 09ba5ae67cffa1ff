package promapi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/ferula-io/ferula/internal/codec/apipb"
	"github.com/ferula-io/ferula/internal/jsontree"
)

// Services serves thanos.Rules, thanos.Targets and thanos.Metadata from one Prometheus.
type Services struct {
	client   *Client
	external func() labels.Labels
}

// NewServices returns the services. The labels of external are added to rules and
// targets and replace labels of the same name.
func NewServices(client *Client, external func() labels.Labels) *Services {
	return &Services{client, external}
}

// Register registers the services with a gRPC server.
func (s *Services) Register(to *grpc.Server) {
	to.RegisterService(describe("thanos.Rules", "Rules", (*Services).rules), s)
	to.RegisterService(describe("thanos.Targets", "Targets", (*Services).targets), s)
	to.RegisterService(describe("thanos.Metadata", "MetricMetadata", (*Services).metadata), s)
}

// describe describes a service of one method with one request and a stream of responses.
func describe[In any](service, method string, serve func(*Services, *In, grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: method, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
			in := new(In)
			if err := stream.RecvMsg(in); err != nil {
				return err
			}
			return toStatus(serve(srv.(*Services), in, stream))
		}}},
		Metadata: "internal/codec/apipb/api.proto",
	}
}

func toStatus(err error) error {
	code := codes.Internal
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, ErrUnavailable):
		code = codes.Unavailable
	case errors.Is(err, ErrRefused):
		code = codes.InvalidArgument
	default:
		if known, ok := status.FromError(err); ok {
			return known.Err()
		}
	}
	return status.Error(code, err.Error())
}

// abort is the number of Thanos' partial response strategy ABORT. Rule groups of a
// Prometheus have it, as Prometheus has no other strategy.
const abort = 1

func (s *Services) rules(in *pb.RulesRequest, out grpc.ServerStream) error {
	query := url.Values{"rule_name[]": in.RuleName, "rule_group[]": in.RuleGroup, "file[]": in.File}
	if in.Type != pb.RulesRequest_ALL {
		query.Set("type", strings.ToLower(in.Type.String()))
	}
	data, warnings, err := s.client.data(out.Context(), "api/v1/rules", query)
	if err != nil {
		return err
	}
	external := s.external()
	for _, g := range data.Get("groups").Elements() {
		group, err := ruleGroup(g, external)
		if err != nil {
			return fmt.Errorf("%w: rules: %w", ErrBadResponse, err)
		}
		if err := out.SendMsg(&pb.RulesResponse{Result: &pb.RulesResponse_Group{Group: group}}); err != nil {
			return err
		}
	}
	for _, w := range warnings {
		if err := out.SendMsg(&pb.RulesResponse{Result: &pb.RulesResponse_Warning{Warning: w}}); err != nil {
			return err
		}
	}
	return nil
}

func ruleGroup(g jsontree.Value, external labels.Labels) (*pb.RuleGroup, error) {
	last, err := parseTimestamp(g.Get("lastEvaluation"))
	if err != nil {
		return nil, err
	}
	limit, _ := g.Get("limit").Int()
	group := &pb.RuleGroup{
		Name: g.Get("name").Text(), File: g.Get("file").Text(), Interval: g.Get("interval").Float(), Limit: limit,
		EvaluationDurationSeconds: g.Get("evaluationTime").Float(), LastEvaluation: last, PartialResponseStrategy: abort,
	}
	for _, r := range g.Get("rules").Elements() {
		rule, err := ruleOf(r, external)
		if err != nil {
			return nil, err
		}
		group.Rules = append(group.Rules, rule)
	}
	return group, nil
}

func ruleOf(r jsontree.Value, external labels.Labels) (*pb.Rule, error) {
	last, err := parseTimestamp(r.Get("lastEvaluation"))
	if err != nil {
		return nil, err
	}
	lset := labelSet(r.Get("labels"), external)
	switch kind := r.Get("type").Text(); kind {
	case "recording":
		return &pb.Rule{Result: &pb.Rule_Recording{Recording: &pb.RecordingRule{
			Name: r.Get("name").Text(), Query: r.Get("query").Text(), Labels: lset, Health: r.Get("health").Text(), LastError: r.Get("lastError").Text(),
			EvaluationDurationSeconds: r.Get("evaluationTime").Float(), LastEvaluation: last,
		}}}, nil
	case "alerting":
		alert := &pb.Alert{
			State: alertState(r.Get("state").Text()), Name: r.Get("name").Text(), Query: r.Get("query").Text(), DurationSeconds: r.Get("duration").Float(),
			KeepFiringForSeconds: r.Get("keepFiringFor").Float(), Labels: lset, Annotations: labelSet(r.Get("annotations"), labels.EmptyLabels()),
			Health: r.Get("health").Text(), LastError: r.Get("lastError").Text(), EvaluationDurationSeconds: r.Get("evaluationTime").Float(), LastEvaluation: last,
		}
		for _, a := range r.Get("alerts").Elements() {
			active, err := parseTimestamp(a.Get("activeAt"))
			if err != nil {
				return nil, err
			}
			alert.Alerts = append(alert.Alerts, &pb.AlertInstance{
				// Thanos does not add external labels to alerts.
				Labels: labelSet(a.Get("labels"), labels.EmptyLabels()), Annotations: labelSet(a.Get("annotations"), labels.EmptyLabels()),
				State: alertState(a.Get("state").Text()), ActiveAt: active, Value: a.Get("value").Text(),
			})
		}
		return &pb.Rule{Result: &pb.Rule_Alert{Alert: alert}}, nil
	default:
		return nil, fmt.Errorf("rule of unknown type %q", kind)
	}
}

func alertState(text string) pb.AlertState {
	return pb.AlertState(pb.AlertState_value[strings.ToUpper(text)]) // 0, UNKNOWN, for other states
}

// parseTimestamp parses a time. It returns nil if v is absent or null.
func parseTimestamp(v jsontree.Value) (*pb.Timestamp, error) {
	if v.Kind == jsontree.Absent || v.Kind == jsontree.Null {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339Nano, v.Text())
	if err != nil {
		return nil, err
	}
	return &pb.Timestamp{Seconds: at.Unix(), Nanos: int32(at.Nanosecond())}, nil
}

// labelSet decodes an object of strings and adds the external labels, which win.
func labelSet(v jsontree.Value, external labels.Labels) *pb.LabelSet {
	all := map[string]string{}
	for _, m := range v.Members() {
		all[m.Name] = m.Value.Text()
	}
	external.Range(func(l labels.Label) { all[l.Name] = l.Value })
	set := &pb.LabelSet{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		set.Labels = append(set.Labels, &pb.Label{Name: name, Value: all[name]})
	}
	return set
}

func (s *Services) targets(in *pb.TargetsRequest, out grpc.ServerStream) error {
	query := url.Values{}
	if in.State != pb.TargetsRequest_ANY {
		query.Set("state", strings.ToLower(in.State.String()))
	}
	data, warnings, err := s.client.data(out.Context(), "api/v1/targets", query)
	if err != nil {
		return err
	}
	external, found := s.external(), &pb.TargetDiscovery{}
	for _, t := range data.Get("activeTargets").Elements() {
		last, err := parseTimestamp(t.Get("lastScrape"))
		if err != nil {
			return fmt.Errorf("%w: targets: %w", ErrBadResponse, err)
		}
		found.ActiveTargets = append(found.ActiveTargets, &pb.ActiveTarget{
			DiscoveredLabels: labelSet(t.Get("discoveredLabels"), external), Labels: labelSet(t.Get("labels"), external),
			ScrapePool: t.Get("scrapePool").Text(), ScrapeUrl: t.Get("scrapeUrl").Text(), GlobalUrl: t.Get("globalUrl").Text(),
			LastError: t.Get("lastError").Text(), LastScrape: last, LastScrapeDuration: t.Get("lastScrapeDuration").Float(), Health: health(t.Get("health").Text()),
		})
	}
	for _, t := range data.Get("droppedTargets").Elements() {
		found.DroppedTargets = append(found.DroppedTargets, &pb.DroppedTarget{DiscoveredLabels: labelSet(t.Get("discoveredLabels"), external)})
	}
	if err := out.SendMsg(&pb.TargetsResponse{Result: &pb.TargetsResponse_Targets{Targets: found}}); err != nil {
		return err
	}
	for _, w := range warnings {
		if err := out.SendMsg(&pb.TargetsResponse{Result: &pb.TargetsResponse_Warning{Warning: w}}); err != nil {
			return err
		}
	}
	return nil
}

func health(text string) pb.TargetHealth {
	switch text {
	case "up":
		return pb.TargetHealth_UP
	case "down":
		return pb.TargetHealth_DOWN
	}
	return pb.TargetHealth_HEALTH_UNKNOWN
}

func (s *Services) metadata(in *pb.MetricMetadataRequest, out grpc.ServerStream) error {
	query := url.Values{}
	if in.Metric != "" {
		query.Set("metric", in.Metric)
	}
	if in.Limit >= 0 {
		query.Set("limit", strconv.FormatInt(int64(in.Limit), 10))
	}
	data, warnings, err := s.client.data(out.Context(), "api/v1/metadata", query)
	if err != nil {
		return err
	}
	found := &pb.MetricMetadata{Metadata: map[string]*pb.MetricMetadataEntry{}}
	for _, m := range data.Members() {
		entry := &pb.MetricMetadataEntry{}
		for _, meta := range m.Value.Elements() {
			entry.Metas = append(entry.Metas, &pb.Meta{Type: meta.Get("type").Text(), Help: meta.Get("help").Text(), Unit: meta.Get("unit").Text()})
		}
		found.Metadata[m.Name] = entry
	}
	if err := out.SendMsg(&pb.MetricMetadataResponse{Result: &pb.MetricMetadataResponse_Metadata{Metadata: found}}); err != nil {
		return err
	}
	for _, w := range warnings {
		if err := out.SendMsg(&pb.MetricMetadataResponse{Result: &pb.MetricMetadataResponse_Warning{Warning: w}}); err != nil {
			return err
		}
	}
	return nil
}
