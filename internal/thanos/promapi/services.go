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

	pb "github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// Services serves thanos.Rules, thanos.Targets, thanos.Metadata and thanos.Status from one
// Prometheus.
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
func (s *Services) Register(to grpc.ServiceRegistrar) {
	to.RegisterService(describe("thanos.Rules", "Rules", (*Services).rules), s)
	to.RegisterService(describe("thanos.Targets", "Targets", (*Services).targets), s)
	to.RegisterService(describe("thanos.Metadata", "MetricMetadata", (*Services).metadata), s)
	to.RegisterService(describe("thanos.Status", "TSDBStatistics", (*Services).tsdbStatistics), s)
}

// describe describes a service of one method with one request and a stream of responses.
func describe[In any](service, method string, serve func(*Services, *In, grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: method, ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				in := new(In)
				if err := stream.RecvMsg(in); err != nil {
					return err
				}
				return toStatus(serve(srv.(*Services), in, stream))
			}}},
		Metadata: "internal/thanos/storepb/apipb/api.proto",
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
	var data struct {
		Groups []groupJSON `json:"groups"`
	}
	warnings, err := s.client.data(out.Context(), "api/v1/rules", query, &data)
	if err != nil {
		return err
	}
	external := s.external()
	for _, g := range data.Groups {
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

// groupJSON, ruleJSON and alertJSON are objects in the response of the rules endpoint.
type groupJSON struct {
	Name           string     `json:"name"`
	File           string     `json:"file"`
	Interval       float64    `json:"interval"`
	Limit          int64      `json:"limit"`
	EvaluationTime float64    `json:"evaluationTime"`
	LastEvaluation *time.Time `json:"lastEvaluation"`
	Rules          []ruleJSON `json:"rules"`
}

type ruleJSON struct {
	Type           string            `json:"type"`
	Name           string            `json:"name"`
	Query          string            `json:"query"`
	Labels         map[string]string `json:"labels"`
	Health         string            `json:"health"`
	LastError      string            `json:"lastError"`
	EvaluationTime float64           `json:"evaluationTime"`
	LastEvaluation *time.Time        `json:"lastEvaluation"`

	State         string            `json:"state"`
	Duration      float64           `json:"duration"`
	KeepFiringFor float64           `json:"keepFiringFor"`
	Annotations   map[string]string `json:"annotations"`
	Alerts        []alertJSON       `json:"alerts"`
}

type alertJSON struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	State       string            `json:"state"`
	ActiveAt    *time.Time        `json:"activeAt"`
	Value       string            `json:"value"`
}

func ruleGroup(g groupJSON, external labels.Labels) (*pb.RuleGroup, error) {
	group := &pb.RuleGroup{
		Name: g.Name, File: g.File, Interval: g.Interval, Limit: g.Limit,
		EvaluationDurationSeconds: g.EvaluationTime, LastEvaluation: timestamp(g.LastEvaluation),
		PartialResponseStrategy: abort,
	}
	for _, r := range g.Rules {
		rule, err := ruleOf(r, external)
		if err != nil {
			return nil, err
		}
		group.Rules = append(group.Rules, rule)
	}
	return group, nil
}

func ruleOf(r ruleJSON, external labels.Labels) (*pb.Rule, error) {
	lset, last := labelSet(r.Labels, external), timestamp(r.LastEvaluation)
	switch r.Type {
	case "recording":
		return &pb.Rule{Result: &pb.Rule_Recording{Recording: &pb.RecordingRule{
			Name: r.Name, Query: r.Query, Labels: lset, Health: r.Health, LastError: r.LastError,
			EvaluationDurationSeconds: r.EvaluationTime, LastEvaluation: last,
		}}}, nil
	case "alerting":
		alert := &pb.Alert{
			State: alertState(r.State), Name: r.Name, Query: r.Query, DurationSeconds: r.Duration,
			KeepFiringForSeconds: r.KeepFiringFor,
			Labels:               lset, Annotations: labelSet(r.Annotations, labels.EmptyLabels()),
			Health: r.Health, LastError: r.LastError, EvaluationDurationSeconds: r.EvaluationTime, LastEvaluation: last,
		}
		for _, a := range r.Alerts {
			alert.Alerts = append(alert.Alerts, &pb.AlertInstance{
				// Thanos does not add external labels to alerts.
				Labels: labelSet(a.Labels, labels.EmptyLabels()), Annotations: labelSet(a.Annotations, labels.EmptyLabels()),
				State: alertState(a.State), ActiveAt: timestamp(a.ActiveAt), Value: a.Value,
			})
		}
		return &pb.Rule{Result: &pb.Rule_Alert{Alert: alert}}, nil
	default:
		return nil, fmt.Errorf("rule of unknown type %q", r.Type)
	}
}

func alertState(text string) pb.AlertState {
	return pb.AlertState(pb.AlertState_value[strings.ToUpper(text)]) // 0, UNKNOWN, for other states
}

// timestamp converts a time, which may be nil.
func timestamp(at *time.Time) *pb.Timestamp {
	if at == nil {
		return nil
	}
	return &pb.Timestamp{Seconds: at.Unix(), Nanos: int32(at.Nanosecond())}
}

// labelSet adds the external labels, which replace labels of the same name.
func labelSet(own map[string]string, external labels.Labels) *pb.LabelSet {
	all := maps.Clone(own)
	if all == nil {
		all = map[string]string{}
	}
	external.Range(func(l labels.Label) { all[l.Name] = l.Value })
	set := &pb.LabelSet{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		set.Labels = append(set.Labels, &pb.Label{Name: name, Value: all[name]})
	}
	return set
}

// targetJSON is a target. A dropped target has discovered labels only.
type targetJSON struct {
	DiscoveredLabels   map[string]string `json:"discoveredLabels"`
	Labels             map[string]string `json:"labels"`
	ScrapePool         string            `json:"scrapePool"`
	ScrapeURL          string            `json:"scrapeUrl"`
	GlobalURL          string            `json:"globalUrl"`
	LastError          string            `json:"lastError"`
	LastScrape         *time.Time        `json:"lastScrape"`
	LastScrapeDuration float64           `json:"lastScrapeDuration"`
	Health             string            `json:"health"`
}

func (s *Services) targets(in *pb.TargetsRequest, out grpc.ServerStream) error {
	query := url.Values{}
	if in.State != pb.TargetsRequest_ANY {
		query.Set("state", strings.ToLower(in.State.String()))
	}
	var data struct {
		Active  []targetJSON `json:"activeTargets"`
		Dropped []targetJSON `json:"droppedTargets"`
	}
	warnings, err := s.client.data(out.Context(), "api/v1/targets", query, &data)
	if err != nil {
		return err
	}
	external, found := s.external(), &pb.TargetDiscovery{}
	for _, t := range data.Active {
		found.ActiveTargets = append(found.ActiveTargets, &pb.ActiveTarget{
			DiscoveredLabels: labelSet(t.DiscoveredLabels, external), Labels: labelSet(t.Labels, external),
			ScrapePool: t.ScrapePool, ScrapeUrl: t.ScrapeURL, GlobalUrl: t.GlobalURL,
			LastError: t.LastError, LastScrape: timestamp(t.LastScrape), LastScrapeDuration: t.LastScrapeDuration,
			Health: health(t.Health),
		})
	}
	for _, t := range data.Dropped {
		found.DroppedTargets = append(found.DroppedTargets,
			&pb.DroppedTarget{DiscoveredLabels: labelSet(t.DiscoveredLabels, external)})
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
	var data map[string][]struct {
		Type string `json:"type"`
		Help string `json:"help"`
		Unit string `json:"unit"`
	}
	warnings, err := s.client.data(out.Context(), "api/v1/metadata", query, &data)
	if err != nil {
		return err
	}
	found := &pb.MetricMetadata{Metadata: map[string]*pb.MetricMetadataEntry{}}
	for name, metas := range data {
		entry := &pb.MetricMetadataEntry{}
		for _, meta := range metas {
			entry.Metas = append(entry.Metas, &pb.Meta{Type: meta.Type, Help: meta.Help, Unit: meta.Unit})
		}
		found.Metadata[name] = entry
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
