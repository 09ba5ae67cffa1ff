package profileapi

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/codec/profilepb"
)

// ProfileType is what is measured, as `name:sample_type:sample_unit:period_type:period_unit`.
type ProfileType struct {
	ID                                                   string
	Name, SampleType, SampleUnit, PeriodType, PeriodUnit string
}

// ParseProfileType takes an ID apart.
func ParseProfileType(id string) (ProfileType, error) {
	parts := strings.Split(id, ":")
	// Some SDKs add :delta behind, which means nothing to a reader.
	if len(parts) == 6 && parts[5] == "delta" {
		parts, id = parts[:5], strings.TrimSuffix(id, ":delta")
	}
	if len(parts) != 5 || slices.Contains(parts[:3], "") {
		return ProfileType{}, badRequest{fmt.Errorf("profile type %q is not of the form name:sample_type:sample_unit:period_type:period_unit", id)}
	}
	return ProfileType{ID: id, Name: parts[0], SampleType: parts[1], SampleUnit: parts[2], PeriodType: parts[3], PeriodUnit: parts[4]}, nil
}

// selector reads `{a="b",c=~"d"}`. None at all means everything.
func (s *Server) selector(text string) ([]*labels.Matcher, error) {
	if len(text) > s.opts.SelectorBytes {
		return nil, badRequest{fmt.Errorf("a selector of %d bytes is longer than %d", len(text), s.opts.SelectorBytes)}
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	matchers, err := s.parser.ParseMetricSelector(text)
	if err != nil {
		return nil, badRequest{fmt.Errorf("selector %s: %w", text, err)}
	}
	return matchers, nil
}

// selectorsMax is how many selectors one request may join.
const selectorsMax = 100

func (s *Server) selectors(texts []string) ([][]*labels.Matcher, error) {
	if len(texts) > selectorsMax {
		return nil, badRequest{fmt.Errorf("%d matchers are more than %d", len(texts), selectorsMax)}
	}
	var anyOf [][]*labels.Matcher
	for _, text := range texts {
		matchers, err := s.selector(text)
		if err != nil {
			return nil, err
		}
		if matchers == nil {
			return nil, nil // one of them lets everything through
		}
		anyOf = append(anyOf, matchers)
	}
	return anyOf, nil
}

// span checks a range. Requests about labels may leave it out.
func span(startMS, endMS int64, optional bool) (int64, int64, error) {
	switch {
	case startMS == 0 && endMS == 0 && optional:
		return math.MinInt64, math.MaxInt64, nil
	case startMS > endMS:
		return 0, 0, badRequest{fmt.Errorf("the range is upside down: start %d is after end %d (milliseconds)", startMS, endMS)}
	case startMS == 0 && endMS == 0:
		return 0, 0, badRequest{errors.New("start and end are missing (milliseconds)")}
	}
	return startMS, endMS, nil
}

// idsMax is how many ids one request may name.
const idsMax = 10_000

type selection struct {
	tenant, profileType, selector string
	startMS, endMS                int64
	profiles, traces, spans       []string
	stack                         *profilepb.StackTraceSelector
	nodes                         *int64
}

func (s *Server) querySelection(sel selection) (Query, error) {
	q := Query{Tenant: sel.tenant, ProfileIDs: sel.profiles, TraceIDs: sel.traces, SpanIDs: sel.spans, NodesMax: s.opts.NodesDefault}
	var err error
	if q.Type, err = ParseProfileType(sel.profileType); err != nil {
		return q, err
	}
	if q.Matchers, err = s.selector(sel.selector); err != nil {
		return q, err
	}
	if q.StartMS, q.EndMS, err = span(sel.startMS, sel.endMS, false); err != nil {
		return q, err
	}
	if n := len(sel.profiles) + len(sel.traces) + len(sel.spans); n > idsMax {
		return q, badRequest{fmt.Errorf("%d ids are more than %d", n, idsMax)}
	}
	if sel.nodes != nil && *sel.nodes != 0 {
		if *sel.nodes < 0 || *sel.nodes > int64(s.opts.NodesMax) {
			return q, badRequest{fmt.Errorf("max_nodes %d is not between 1 and %d", *sel.nodes, s.opts.NodesMax)}
		}
		q.NodesMax = int(*sel.nodes)
	}
	for _, site := range sel.stack.GetCallSite() {
		q.CallSites = append(q.CallSites, site.GetName())
	}
	if sel.stack.GetGoPgo() != nil {
		return q, unimplemented("stack_trace_selector.go_pgo")
	}
	return q, nil
}

func (s *Server) mergeQuery(tenant string, m *profilepb.SelectMergeStacktracesRequest) (Query, error) {
	return s.querySelection(selection{
		tenant: tenant, profileType: m.GetProfileTypeID(), selector: m.GetLabelSelector(), startMS: m.GetStart(), endMS: m.GetEnd(),
		profiles: m.GetProfileIdSelector(), traces: m.GetTraceIdSelector(), spans: m.GetSpanSelector(),
		stack: m.GetStackTraceSelector(), nodes: m.MaxNodes,
	})
}

// seriesRequest is what SelectSeries and SelectHeatmap share.
type seriesRequest interface {
	GetProfileTypeID() string
	GetLabelSelector() string
	GetStart() int64
	GetEnd() int64
	GetStep() float64
	GetGroupBy() []string
	GetLimit() int64
	GetExemplarType() profilepb.ExemplarType
}

func (s *Server) seriesQuery(tenant string, m seriesRequest) (SeriesQuery, error) {
	base, err := s.querySelection(selection{tenant: tenant, profileType: m.GetProfileTypeID(), selector: m.GetLabelSelector(), startMS: m.GetStart(), endMS: m.GetEnd()})
	q := SeriesQuery{Query: base, GroupBy: m.GetGroupBy()}
	if err != nil {
		return q, err
	}
	step := m.GetStep()
	if !(step >= 0.001) || step > 1e9 { // NaN is neither
		return q, badRequest{fmt.Errorf("step %v is not between 0.001 and 1e9 seconds", step)}
	}
	q.StepMS = int64(math.Round(step * 1000))
	if q.EndMS-q.StartMS < 0 || (q.EndMS-q.StartMS)/q.StepMS >= s.opts.PointsMax {
		return q, badRequest{fmt.Errorf("the range makes more than %d points a series with a step of %v seconds: take a longer step", s.opts.PointsMax, step)}
	}
	if limit := m.GetLimit(); limit < 0 || limit > math.MaxInt32 {
		return q, badRequest{fmt.Errorf("limit %d is not between 0 and %d", limit, math.MaxInt32)}
	} else {
		q.SeriesMax = int(limit)
	}
	if len(q.GroupBy) > selectorsMax {
		return q, badRequest{fmt.Errorf("%d labels to group by are more than %d", len(q.GroupBy), selectorsMax)}
	}
	switch m.GetExemplarType() {
	case profilepb.ExemplarType_EXEMPLAR_TYPE_UNSPECIFIED, profilepb.ExemplarType_EXEMPLAR_TYPE_NONE:
	case profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL:
		q.Exemplars = true
	case profilepb.ExemplarType_EXEMPLAR_TYPE_SPAN:
		return q, unimplemented("EXEMPLAR_TYPE_SPAN")
	default:
		return q, badRequest{fmt.Errorf("exemplar_type %d is unknown", m.GetExemplarType())}
	}
	return q, nil
}
