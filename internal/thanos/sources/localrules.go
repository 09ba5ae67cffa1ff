package sources

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/rules"

	"github.com/ferula-io/ferula/internal/thanos/storeapi"
)

// Rules implements storeapi.Services: the rules that this process evaluates. The external labels replace labels of a
// rule that have the same names.
func (s *Local) Rules(_ context.Context, r storeapi.RulesRequest) (all []storeapi.RuleGroup, _ []string, err error) {
	matchers, err := s.parser.ParseMetricSelectors(r.Matchers)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: matcher_string: %w", storeapi.ErrBadRequest, err)
	}
	selected := func(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }
	external := s.external()
	for _, g := range s.groups() {
		if !selected(r.Groups, g.Name()) || !selected(r.Files, g.File()) {
			continue
		}
		group := storeapi.RuleGroup{
			Name: g.Name(), File: g.File(), IntervalSeconds: g.Interval().Seconds(), Limit: int64(g.Limit()),
			EvaluationSeconds: g.GetEvaluationTime().Seconds(), LastEvaluation: g.GetLastEvaluation(),
		}
		for _, rule := range g.Rules(matchers...) {
			alerting, ok := rule.(*rules.AlertingRule)
			if selected(r.Names, rule.Name()) && (r.Type == "all" || ok == (r.Type == "alert")) {
				group.Rules = append(group.Rules, ruleOf(rule, alerting, external))
			}
		}
		if len(group.Rules) > 0 {
			all = append(all, group)
		}
	}
	return all, nil, nil
}

// ruleOf converts a rule. alerting is the same rule; nil: it is a recording rule.
func ruleOf(rule rules.Rule, alerting *rules.AlertingRule, external labels.Labels) storeapi.Rule {
	r := storeapi.Rule{
		Name: rule.Name(), Query: rule.Query().String(), Labels: storeapi.WithExternal(rule.Labels(), external),
		Health: string(rule.Health()), EvaluationSeconds: rule.GetEvaluationDuration().Seconds(),
		LastEvaluation: rule.GetEvaluationTimestamp(),
	}
	if err := rule.LastError(); err != nil {
		r.LastError = err.Error()
	}
	if alerting == nil {
		return r
	}
	r.Alerting, r.State, r.Annotations = true, alerting.State().String(), alerting.Annotations()
	r.DurationSeconds, r.KeepFiringSeconds = alerting.HoldDuration().Seconds(), alerting.KeepFiringFor().Seconds()
	for _, a := range alerting.ActiveAlerts() {
		r.Alerts = append(r.Alerts, storeapi.Alert{
			Labels: a.Labels, Annotations: a.Annotations, State: a.State.String(), ActiveAt: a.ActiveAt,
			Value: strconv.FormatFloat(a.Value, 'e', -1, 64),
		})
	}
	return r
}
