package httpapi

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// storeTargets returns the targets of all stores in Prometheus' format. Like Thanos it
// omits fields that StoreAPI does not have: scrape interval, timeout and the counts of
// dropped targets.
func (a *API) storeTargets(r *http.Request) (response, *apiError) {
	state := strings.ToLower(r.FormValue("state"))
	switch state {
	case "":
		state = "any"
	case "any", "active", "dropped":
	default:
		return response{}, invalidParameter("state", fmt.Errorf("%q is not one of any, active, dropped", state))
	}
	return ofStores(a, r, purpose{dedup: true}, func(q StoreQuery) (storeapi.Targets, annotations.Annotations, error) {
		return q.Targets(r.Context(), state)
	}, func(s *stream, found storeapi.Targets) {
		s.raw(`{"activeTargets":`)
		values(s, found.Active)
		s.raw(`,"droppedTargets":`)
		each(s, found.Dropped, func(set *labels.Labels) {
			s.raw(`{"discoveredLabels":`)
			s.labels(*set)
			s.raw("}")
		})
		s.raw(`}`)
	})
}

// storeRules returns the rules of all stores in Prometheus' format. It omits the time at
// which an alert last fired, which StoreAPI does not have.
func (a *API) storeRules(r *http.Request) (response, *apiError) {
	kind := strings.ToLower(r.FormValue("type"))
	switch kind {
	case "":
		kind = "all"
	case "alert", "record":
	default:
		return response{}, invalidParameter("type", fmt.Errorf("not supported value %q", kind))
	}
	matchers, err := a.opts.Parser.ParseMetricSelectors(r.Form["match[]"])
	if err != nil {
		return response{}, invalidParameter("match[]", err)
	}
	return a.rulesOfStores(r, kind, matchers, func(s *stream, groups []storeapi.RuleGroup) {
		s.raw(`{"groups":`)
		each(s, filterGroups(groups, r.Form["rule_name[]"], r.Form["rule_group[]"], r.Form["file[]"]), s.ruleGroup)
		s.raw(`}`)
	})
}

func (a *API) rulesOfStores(r *http.Request, kind string, matchers [][]*labels.Matcher,
	write func(*stream, []storeapi.RuleGroup)) (response, *apiError) {
	return ofStores(a, r, purpose{dedup: true}, func(q StoreQuery) ([]storeapi.RuleGroup, annotations.Annotations, error) {
		return q.Rules(r.Context(), kind, matchers)
	}, write)
}

// filterGroups filters groups in place by rule name, group name and file. An empty list
// matches everything. With any filter, groups without rules are removed.
func filterGroups(groups []storeapi.RuleGroup, names, groupNames, files []string) []storeapi.RuleGroup {
	if len(names)+len(groupNames)+len(files) == 0 {
		return groups
	}
	matches := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	left := groups[:0]
	for _, g := range groups {
		g.Rules = slices.DeleteFunc(g.Rules, func(r storeapi.Rule) bool { return !matches(names, r.Name) })
		if len(g.Rules) > 0 && matches(groupNames, g.Name) && matches(files, g.File) {
			left = append(left, g)
		}
	}
	return left
}

func (s *stream) ruleGroup(g *storeapi.RuleGroup) {
	s.field(`{"name":`, g.Name)
	s.field(`,"file":`, g.File)
	s.raw(`,"rules":`)
	each(s, g.Rules, s.rule)
	s.raw(`,"interval":`)
	s.number(g.IntervalSeconds)
	s.raw(`,"limit":`)
	s.integer(g.Limit)
	s.raw(`,"evaluationTime":`)
	s.number(g.EvaluationSeconds)
	s.raw(`,"lastEvaluation":`)
	s.rfc3339(g.LastEvaluation)
	s.raw("}")
}

func (s *stream) rule(r *storeapi.Rule) {
	if r.Alerting {
		r.Alerts = append([]storeapi.Alert{}, r.Alerts...) // not null
		s.value(struct {
			*storeapi.Rule
			Type string `json:"type"`
		}{r, "alerting"})
		return
	}
	s.value(struct {
		*storeapi.Rule
		Type   string        `json:"type"`
		Labels labels.Labels `json:"labels,omitzero"`
		// Fields that only alerting rules have.
		State         any `json:"state,omitempty"`
		Duration      any `json:"duration,omitempty"`
		KeepFiringFor any `json:"keepFiringFor,omitempty"`
		Annotations   any `json:"annotations,omitempty"`
		Alerts        any `json:"alerts,omitempty"`
	}{Rule: r, Type: "recording", Labels: r.Labels})
}

// storeAlerts returns the active alerts of all alerting rules.
func (a *API) storeAlerts(r *http.Request) (response, *apiError) {
	return a.rulesOfStores(r, "alert", nil, func(s *stream, groups []storeapi.RuleGroup) {
		var all []storeapi.Alert
		for _, g := range groups {
			for _, rule := range g.Rules {
				all = append(all, rule.Alerts...)
			}
		}
		s.raw(`{"alerts":`)
		values(s, all)
		s.raw(`}`)
	})
}
