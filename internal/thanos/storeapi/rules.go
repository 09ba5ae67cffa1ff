package storeapi

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/ferula-io/ferula/internal/thanos/storepb/apipb"
)

// RuleGroup is a rule group of a Prometheus or a ruler, with the result of its last evaluation, as the Rules API
// returns it. The names in JSON are those of Prometheus' API.
type RuleGroup struct {
	Name              string    `json:"name"`
	File              string    `json:"file"`
	IntervalSeconds   float64   `json:"interval"`
	EvaluationSeconds float64   `json:"evaluationTime"`
	Limit             int64     `json:"limit"`
	LastEvaluation    time.Time `json:"lastEvaluation"`
	Rules             []Rule    `json:"rules"`
}

// Rule is a recording or an alerting rule.
type Rule struct {
	Alerting bool   `json:"-"`
	State    string `json:"state"` // of an alerting rule: inactive, pending, firing or unknown
	Name     string `json:"name"`
	Query    string `json:"query"`
	// DurationSeconds and KeepFiringSeconds are set for alerting rules only, as Annotations and Alerts.
	DurationSeconds   float64       `json:"duration"`
	KeepFiringSeconds float64       `json:"keepFiringFor"`
	Labels            labels.Labels `json:"labels"`
	Annotations       labels.Labels `json:"annotations"`
	Alerts            []Alert       `json:"alerts"`
	Health            string        `json:"health"`
	LastError         string        `json:"lastError,omitempty"`
	EvaluationSeconds float64       `json:"evaluationTime"`
	LastEvaluation    time.Time     `json:"lastEvaluation"`
}

// Alert is a pending or firing alert.
type Alert struct {
	Labels      labels.Labels `json:"labels"`
	Annotations labels.Labels `json:"annotations"`
	State       string        `json:"state"`
	ActiveAt    time.Time     `json:"activeAt,omitzero"`
	Value       string        `json:"value"`
}

// RulesRequest selects rules.
type RulesRequest struct {
	Type string // alert, record or all
	// Names of rules, groups and files, and selectors of rules' labels; none: all. A store
	// may ignore them.
	Names, Groups, Files, Matchers []string
	AbortOnPartial                 bool
}

// Rules returns the rules of a store. The whole response is in memory; more than listMax rules, alerts and warnings
// are ErrLimit.
func (c *Client) Rules(ctx context.Context, r RulesRequest) (groups []RuleGroup, warnings []string, err error) {
	request := &apipb.RulesRequest{
		Type:                    apipb.RulesRequest_Type(apipb.RulesRequest_Type_value[strings.ToUpper(r.Type)]),
		PartialResponseStrategy: int32(strategy(r.AbortOnPartial)),
		RuleName:                r.Names, RuleGroup: r.Groups, File: r.Files, MatcherString: r.Matchers,
	}
	var invalid error
	warnings, err = receive(ctx, c, "/thanos.Rules/Rules", request, "rules and alerts", func(msg *apipb.RulesResponse) (n int) {
		if g := msg.GetGroup(); g != nil {
			group := groupFrom(g)
			for i := range group.Rules {
				rule := &group.Rules[i]
				invalid = cmp.Or(invalid, checkJSON("rule "+rule.Name, rule.LastEvaluation, rule.EvaluationSeconds))
				for _, a := range rule.Alerts {
					invalid = cmp.Or(invalid, checkJSON("alert of rule "+rule.Name, a.ActiveAt, 0))
				}
				n += 1 + len(rule.Alerts)
			}
			invalid = cmp.Or(invalid, checkJSON("rule group "+group.Name, group.LastEvaluation, group.EvaluationSeconds+group.IntervalSeconds))
			groups = append(groups, group)
		}
		return n
	})
	return groups, warnings, cmp.Or(err, invalid)
}

func groupFrom(g *apipb.RuleGroup) RuleGroup {
	group := RuleGroup{
		Name: g.Name, File: g.File, IntervalSeconds: g.Interval, EvaluationSeconds: g.EvaluationDurationSeconds,
		Limit: g.Limit, LastEvaluation: timeOf(g.LastEvaluation),
	}
	for _, r := range g.Rules {
		if a := r.GetAlert(); a != nil {
			group.Rules = append(group.Rules, alertingFrom(a))
		} else if r := r.GetRecording(); r != nil {
			group.Rules = append(group.Rules, Rule{
				Name: r.Name, Query: r.Query, Labels: labelsIn(r.Labels), Health: r.Health, LastError: r.LastError,
				EvaluationSeconds: r.EvaluationDurationSeconds, LastEvaluation: timeOf(r.LastEvaluation),
			})
		}
	}
	return group
}

func alertingFrom(a *apipb.Alert) Rule {
	rule := Rule{
		Alerting: true, Name: a.Name, Query: a.Query, Labels: labelsIn(a.Labels), Health: a.Health, LastError: a.LastError,
		EvaluationSeconds: a.EvaluationDurationSeconds, LastEvaluation: timeOf(a.LastEvaluation),
		State: stateOf(a.State), DurationSeconds: a.DurationSeconds, KeepFiringSeconds: a.KeepFiringForSeconds,
		Annotations: labelsIn(a.Annotations),
	}
	for _, one := range a.Alerts {
		rule.Alerts = append(rule.Alerts, Alert{
			Labels: labelsIn(one.Labels), Annotations: labelsIn(one.Annotations), State: stateOf(one.State), Value: one.Value,
			ActiveAt: timeOf(one.ActiveAt),
		})
	}
	return rule
}

func stateOf(s apipb.AlertState) string {
	switch s {
	case apipb.AlertState_INACTIVE:
		return "inactive"
	case apipb.AlertState_PENDING:
		return "pending"
	case apipb.AlertState_FIRING:
		return "firing"
	}
	return "unknown"
}
