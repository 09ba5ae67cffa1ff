package api

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/profiles"
	"github.com/ferula-io/ferula/internal/profiles/profilepb"
)

// profileType parses a type's ID. Some SDKs append :delta, which has no meaning for
// queries.
func profileType(id string) (profiles.Type, error) {
	return profiles.ParseType(strings.TrimSuffix(id, ":delta"))
}

// selector parses `{a="b",c=~"d"}`. An empty selector matches everything.
func (s *Server) selector(text string) ([]*labels.Matcher, error) {
	if len(text) > selectorMax {
		return nil, badRequest{fmt.Errorf("a selector of %d bytes exceeds the limit of %d", len(text), selectorMax)}
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

// selectorsMax is the number of selectors, or of labels to group by, in one request.
const selectorsMax = 100

func (s *Server) selectors(texts []string) ([][]*labels.Matcher, error) {
	if len(texts) > selectorsMax {
		return nil, badRequest{fmt.Errorf("%d selectors exceed the limit of %d", len(texts), selectorsMax)}
	}
	var anyOf [][]*labels.Matcher
	for _, text := range texts {
		matchers, err := s.selector(text)
		if err != nil {
			return nil, err
		}
		if matchers == nil {
			return nil, nil // an empty selector matches everything
		}
		anyOf = append(anyOf, matchers)
	}
	return anyOf, nil
}

// recentMS is the range, in ms, of a request for labels that has neither start nor end: the last hour.
const recentMS = 60 * 60 * 1000

// timeRange validates a range. If optional is set and both ends are 0, it returns the last hour.
func timeRange(startMS, endMS int64, optional bool) (int64, int64, error) {
	switch {
	case startMS == 0 && endMS == 0 && optional:
		now := time.Now().UnixMilli()
		return now - recentMS, now, nil
	case startMS > endMS:
		return 0, 0, badRequest{fmt.Errorf("the end of the range (%d) is before its start (%d), in milliseconds",
			endMS, startMS)}
	case startMS == 0 && endMS == 0:
		return 0, 0, badRequest{errors.New("start and end are missing (milliseconds)")}
	}
	return startMS, endMS, nil
}

// idsMax is the number of IDs (of profiles, traces and spans), or of functions of a call site, in one request.
const idsMax = 10_000

// mergeRequest validates a request and converts it to a request of profiles. Requests of other messages that select
// profiles have some of its fields.
func (s *Server) mergeRequest(tenant string, m *profilepb.SelectMergeStacktracesRequest) (profiles.MergeRequest,
	error) {
	r := profiles.MergeRequest{Tenant: tenant, MaxNodes: s.opts.NodesDefault}
	var err error
	if r.Type, err = profileType(m.GetProfileTypeID()); err != nil {
		return r, err
	}
	if r.Matchers, err = s.selector(m.GetLabelSelector()); err != nil {
		return r, err
	}
	if r.StartMS, r.EndMS, err = timeRange(m.GetStart(), m.GetEnd(), false); err != nil {
		return r, err
	}
	if n := len(m.GetProfileIdSelector()) + len(m.GetTraceIdSelector()) + len(m.GetSpanSelector()); n > idsMax {
		return r, badRequest{fmt.Errorf("%d ids exceed the limit of %d", n, idsMax)}
	}
	if r.Spans, err = parsed(m.GetSpanSelector(), profiles.ParseSpanID); err != nil {
		return r, err
	}
	if r.Traces, err = parsed(m.GetTraceIdSelector(), profiles.ParseTraceID); err != nil {
		return r, err
	}
	if r.IDs, err = parsed(m.GetProfileIdSelector(), profiles.ParseID); err != nil {
		return r, err
	}
	switch n := m.GetMaxNodes(); {
	case n == -1:
		r.MaxNodes = 0 // all nodes, up to NodesMax of the query engine
	case n < 0 || n > nodesMax:
		return r, badRequest{fmt.Errorf("max_nodes %d is not between 1 and %d; -1 means all nodes", n, nodesMax)}
	case n > 0:
		r.MaxNodes = int(n)
	}
	stack := m.GetStackTraceSelector()
	if pgo := stack.GetGoPgo(); pgo != nil {
		r.PGO = &profiles.PGO{KeepFrames: int(min(pgo.GetKeepLocations(), math.MaxInt32)),
			AggregateCallees: pgo.GetAggregateCallees()}
	}
	if n := len(stack.GetCallSite()); n > idsMax {
		return r, badRequest{fmt.Errorf("a call site of %d functions exceeds the limit of %d", n, idsMax)}
	}
	for _, site := range stack.GetCallSite() { // from the root of the stack
		r.CallSite = append(r.CallSite, site.GetName())
	}
	return r, nil
}

func parsed[T any](texts []string, parse func(string) (T, error)) (ids []T, err error) {
	for _, text := range texts {
		id, err := parse(text)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, nil
}

func (s *Server) seriesQuery(tenant string, m *profilepb.SelectSeriesRequest) (profiles.SeriesRequest, error) {
	base, err := s.mergeRequest(tenant, &profilepb.SelectMergeStacktracesRequest{
		ProfileTypeID: m.GetProfileTypeID(), LabelSelector: m.GetLabelSelector(), Start: m.GetStart(), End: m.GetEnd(),
		StackTraceSelector: m.GetStackTraceSelector(),
	})
	r := overTime(base)
	if err != nil {
		return r, err
	}
	step := m.GetStep()
	if !(step >= 0.001) || step > 1e9 { // also rejects NaN
		return r, badRequest{fmt.Errorf("step %v is not between 0.001 and 1e9 seconds", step)}
	}
	r.StepMS = int64(math.Round(step * 1000))
	if r.EndMS-r.StartMS < 0 || // it overflows
		(r.EndMS-r.StartMS)/r.StepMS >= pointsMax {
		return r, badRequest{fmt.Errorf("the range has more than %d points per series with a step of %v seconds: "+
			"use a longer step", pointsMax, step)}
	}
	limit := m.GetLimit()
	if limit < 0 || limit > math.MaxInt32 {
		return r, badRequest{fmt.Errorf("limit %d is not between 0 and %d", limit, math.MaxInt32)}
	}
	r.Limit = int(limit)
	r.GroupBy = m.GetGroupBy()
	if len(r.GroupBy) > selectorsMax {
		return r, badRequest{fmt.Errorf("%d labels to group by exceed the limit of %d", len(r.GroupBy), selectorsMax)}
	}
	switch m.GetExemplarType() {
	case profilepb.ExemplarType_EXEMPLAR_TYPE_UNSPECIFIED, profilepb.ExemplarType_EXEMPLAR_TYPE_NONE:
	case profilepb.ExemplarType_EXEMPLAR_TYPE_INDIVIDUAL:
		r.Exemplars = true
	case profilepb.ExemplarType_EXEMPLAR_TYPE_SPAN:
		r.Exemplars, r.Spans = true, true
	default:
		return r, badRequest{fmt.Errorf("exemplar_type %d is unknown", m.GetExemplarType())}
	}
	switch m.GetAggregation() {
	case profilepb.TimeSeriesAggregationType_TIME_SERIES_AGGREGATION_TYPE_SUM:
	case profilepb.TimeSeriesAggregationType_TIME_SERIES_AGGREGATION_TYPE_AVERAGE:
		r.Average = true
	default:
		return r, badRequest{fmt.Errorf("aggregation %d is unknown", m.GetAggregation())}
	}
	return r, nil
}

// overTime returns a request for values over time with the selection of r.
func overTime(r profiles.MergeRequest) profiles.SeriesRequest {
	return profiles.SeriesRequest{Tenant: r.Tenant, Type: r.Type, Matchers: r.Matchers, StartMS: r.StartMS,
		EndMS: r.EndMS, CallSite: r.CallSite}
}

func (s *Server) labelsQuery(tenant string, selectors []string, startMS, endMS int64) (profiles.LabelsRequest, error) {
	r := profiles.LabelsRequest{Tenant: tenant}
	var err error
	if r.StartMS, r.EndMS, err = timeRange(startMS, endMS, true); err != nil {
		return r, err
	}
	r.AnyOf, err = s.selectors(selectors)
	return r, err
}
